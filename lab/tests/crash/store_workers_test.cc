// Every crash of a store that workers work on, while partitions go from one to the other.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"
#include "perdure/store.h"
#include "store/fixture.h"
#include "store/store_impl.h"

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kCapacityBytes = uint64_t{2} << 20;
constexpr uint32_t kWriters = 3;
constexpr uint32_t kPartitions = 4;

// Each step is a write of each writer, all at the same time, and the move of a partition meanwhile.
// A crash within it keeps any of these writes, each wholly or not at all; one after it, all. The
// workers are no part of recovery: the images are opened without.
class WorkersSubject final : public Subject {
 public:
  WorkersSubject(StoreIndex index, uint32_t operations, uint64_t seed)
      : index_(index), operations_(operations), seed_(seed) {}

  std::string name() const override { return "store with workers"; }
  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }

  Run record(const std::vector<uint32_t>&) override {
    constexpr uint32_t kPrepared = 150;
    const ScratchFolder folder;
    Run run;
    Recorder recorder;
    install(&recorder);
    std::vector<Contents> models(1);  // before each step that is recorded, and after the last
    uint16_t thread = 0;
    {
      Pool pool = Pool::create(folder.file("pool"), explored_pool(kCapacityBytes));
      StoreOptions options = this->options();
      options.workers = 2;
      const auto store = store::StoreImpl::create(pool, "s", options);
      std::array<uint32_t, kPartitions> owners{};
      for (uint32_t p = 0; p < kPartitions; ++p) owners[p] = p % 2;
      for (uint32_t i = 0; i < kPrepared; ++i) {
        carry_out(*store, owners, i, seed_ + 99);
        for (uint32_t w = 0; w < kWriters; ++w) note(models[0], write_of(i, w, seed_ + 99));
      }
      thread = current_thread();
      run.operations.resize(thread + 1U, {""});
      for (uint32_t i = 0; i < operations_; ++i) {
        run.operations[thread].push_back(fmt::format("step {}", i));
        begin_operation(operation_type("step"), 0);
        carry_out(*store, owners, i, seed_);
        end_operation();
        models.push_back(models.back());
        for (uint32_t w = 0; w < kWriters; ++w) note(models.back(), write_of(i, w, seed_));
      }
    }
    install(nullptr);
    run.trace = recorder.finish();
    expect(run, thread, models);
    return run;
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, explored_pool(kCapacityBytes));
    Store store = Store::open(pool, "s", options());
    Contents contents = inspect(pool, store);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t w = 0; w < kWriters; ++w) {
        const std::vector<Write> writes = write_of(i, w, 77);
        store.apply(batch_of(writes));
        note(contents, writes);
      }
    }
    if (inspect(pool, store) != contents) damaged("after recovery operations go astray");
    return seen;
  }

 private:
  struct Write {
    std::string key;
    std::string value;
    bool removal;
  };

  StoreOptions options() const {
    StoreOptions options = test::tiny_store(index_, kPartitions);
    options.recovery_threads = 1;
    return options;
  }

  // No other writer has these keys. One in five is a batch.
  static std::vector<Write> write_of(uint32_t i, uint32_t writer, uint64_t seed) {
    const uint64_t random = drawn(seed, uint64_t{i} * kWriters + writer);
    std::vector<Write> writes;
    for (uint64_t n = 0; n < (random % 5 == 0 ? 3 : 1); ++n) {
      const uint64_t one = drawn(random, n);
      const std::string key = fmt::format("{}.{}", writer, one % 10);
      if (one / 16 % 4 == 0) {
        writes.push_back({key, "", true});
      } else {
        const auto letter = static_cast<char>('a' + one / 64 % 26);
        writes.push_back({key, std::string(one / 2048 % 90, letter), false});
      }
    }
    return writes;
  }
  static void note(Contents& contents, const std::vector<Write>& writes) {
    for (const Write& write : writes) {
      if (write.removal) {
        contents.erase(write.key);
      } else {
        contents[write.key] = write.value;
      }
    }
  }
  static Store::Batch batch_of(const std::vector<Write>& writes) {
    Store::Batch batch;
    for (const Write& write : writes) {
      write.removal ? batch.remove(write.key) : batch.put(write.key, write.value);
    }
    return batch;
  }

  static void carry_out(store::StoreImpl& store, std::array<uint32_t, kPartitions>& owners,
                        uint32_t i, uint64_t seed) {
    std::vector<std::jthread> writers;
    for (uint32_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&store, writes = write_of(i, w, seed)] {
        const Write& first = writes.front();
        if (writes.size() > 1) {
          store.apply(batch_of(writes));
        } else if (first.removal) {
          store.remove(first.key);
        } else {
          store.write({.key = first.key, .value = first.value});
        }
      });
    }
    uint32_t& owner = owners[i % kPartitions];
    owner = 1 - owner;
    store.move_partition(i % kPartitions, owner);
  }

  // The steps' bounds are looked for in the trace: while there are workers nobody knows how many
  // events there are.
  void expect(Run& run, uint16_t thread, const std::vector<Contents>& models) const {
    run.expectations.push_back({0, {digest_of(models[0])}});
    uint32_t step = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
    for (uint32_t i = 0; i < run.trace.events.size(); ++i) {
      const TraceEvent& event = run.trace.events[i];
      if (event.thread != thread) continue;
      if (event.kind == EventKind::kBegin) {
        if (step == 0) begin = i;
        Expectation any{i, {}};
        for (uint32_t some = 0; some < 1U << kWriters; ++some) {
          Contents contents = models[step];
          for (uint32_t w = 0; w < kWriters; ++w) {
            if ((some >> w & 1) != 0) note(contents, write_of(step, w, seed_));
          }
          any.digests.push_back(digest_of(contents));
        }
        run.expectations.push_back(std::move(any));
      } else if (event.kind == EventKind::kEnd) {
        run.expectations.push_back({i, {digest_of(models[++step])}});
        end = i;
      }
    }
    run.skipped.emplace_back(0, begin);
    run.skipped.emplace_back(end + 1, static_cast<uint32_t>(run.trace.events.size()) + 1);
  }

  static Contents inspect(const Pool& pool, const Store& store) {
    pool.check(damaged);
    store.check(damaged);
    Contents contents;
    store.for_each(
        [&](std::string_view key, std::string_view value) { contents.emplace(key, value); });
    return contents;
  }

  StoreIndex index_;
  uint32_t operations_;
  uint64_t seed_;
};

class StoreWorkersCrash : public testing::TestWithParam<StoreIndex> {};

TEST_P(StoreWorkersCrash, PartitionsThatMoveKeepWhatWasAcknowledged) {
  WorkersSubject subject(GetParam(), 60, 1);
  const crash::Run run = subject.record({});
  explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 400);
}

INSTANTIATE_TEST_SUITE_P(Indexes, StoreWorkersCrash,
                         testing::Values(StoreIndex::kHash, StoreIndex::kOrdered, StoreIndex::kPm),
                         test::name_of_index);

}  // namespace
}  // namespace perdure::lab::crash
