// Every crash of transactions over two structures: both have all of one or both have nothing of it,
// whatever lines of record, slot and structures are lost, and whichever of the two is opened first
// after which crash.
#include "perdure/transaction.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "index/owned_blocks.h"
#include "index/presets.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"
#include "support/at_place.h"

namespace perdure::lab::crash {
namespace {

constexpr uint64_t kTransactionKeys = 24;

class TransactionSubject final : public Subject {
 public:
  TransactionSubject(std::array<std::string, 2> structures, uint32_t operations, uint64_t seed)
      : structures_(std::move(structures)), seed_(seed), operations_(operations) {}

  std::string name() const override { return "transactions"; }
  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }

  Run record(const std::vector<uint32_t>&) override {
    const ScratchFolder folder;
    ModelRecording recording;
    Pool pool = Pool::create(folder.file("pool"), pool_options());
    Indexes indexes;
    for (int i = 0; i < 2; ++i) {
      indexes[i] = create_index(pool, kNames[i], structures_[i], Kind::kU64, Kind::kU64,
                                index::presets_of(structures_[i]).small_options);
    }
    recording.begin({});
    recording.skip_to_here();
    for (uint32_t i = 0; i < operations_; ++i) perform(pool, indexes, i, seed_, recording);
    recording.skip_the_rest();
    indexes = {};
    pool.close();
    return recording.finish();
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, pool_options());
    Indexes indexes = open(pool, 0);
    Contents contents = inspect(pool, indexes);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    for (uint32_t i = 0; i < 6; ++i) carry_out(pool, indexes, contents, i, 77);
    if (inspect(pool, indexes) != contents) damaged("after recovery operations go astray");
    return seen;
  }

  // One of the two is opened and written to alone, then the other.
  Run record_recovery(const std::string& path, const Work& work) override {
    ModelRecording recording;
    Pool pool = Pool::open(path, pool_options());
    Indexes indexes = open(pool, static_cast<int>(work.seed % 2));
    recording.begin(inspect(pool, indexes), work);
    recording.recovered();
    for (uint32_t i = 0; i < 3 + std::min(work.operations, 8U); ++i) {
      perform(pool, indexes, i, work.seed + work.crashes, recording);
    }
    recording.skip_the_rest();
    indexes = {};
    pool.close();
    return recording.finish();
  }

 private:
  using Indexes = std::array<std::unique_ptr<AnyIndex>, 2>;
  static constexpr const char* kNames[] = {"first", "second"};

  static PoolOptions pool_options() { return explored_pool(uint64_t{2} << 20); }
  static Indexes open(Pool& pool, int first) {
    Indexes indexes;
    for (const int i : {first, 1 - first}) indexes[i] = open_index(pool, kNames[i]);
    return indexes;
  }
  static std::string name_of(uint64_t which, uint64_t key) {
    return std::string(kNames[which]) + " " + std::to_string(key);
  }

  // Some keys get values or go; three in four are transactions, the others single writes of one
  // key.
  static bool is_single(uint32_t i, uint64_t seed) { return drawn(seed, i) % 4 == 3; }
  // One transaction in six finds no room half-way.
  static bool is_refused(uint32_t i, uint64_t seed) { return drawn(seed, i) / 4 % 6 == 0; }
  struct Write {
    uint64_t which;
    uint64_t key;
    std::optional<uint64_t> value;
  };
  static std::vector<Write> writes(uint32_t i, uint64_t seed) {
    const uint64_t random = drawn(seed, i);
    std::vector<Write> all;
    const uint64_t count = is_single(i, seed) ? 1 : 2 + random % 5;
    for (uint64_t n = 0; n < count; ++n) {
      const uint64_t one = drawn(random, n);
      Write write{one % 2, one / 2 % kTransactionKeys, {}};
      if (one >> 16 & 3) write.value = (one >> 20) % 1000;
      all.push_back(write);
    }
    return all;
  }
  static Contents after(Contents model, uint32_t i, uint64_t seed) {
    for (const auto& [which, key, value] : writes(i, seed)) {
      if (value) {
        model[name_of(which, key)] = std::to_string(*value);
      } else {
        model.erase(name_of(which, key));
      }
    }
    return model;
  }

  // Whether it was not refused.
  static bool carry_out(Pool& pool, Indexes& indexes, Contents& model, uint32_t i, uint64_t seed) {
    const std::vector<Write> all = writes(i, seed);
    if (is_single(i, seed)) {
      AnyIndex& index = *indexes[all[0].which];
      all[0].value ? index.upsert(all[0].key, *all[0].value) : void(index.remove(all[0].key));
    } else {
      PoolTransaction transaction(pool);
      for (const auto& [which, key, value] : all) {
        if (value) {
          transaction.upsert(*indexes[which], key, *value);
        } else {
          transaction.remove(*indexes[which], key);
        }
      }
      try {
        const test::AtPlace here("transaction: applies",
                                 [come = 0, refuses = is_refused(i, seed)]() mutable {
                                   if (++come == 2 && refuses) {
                                     throw Error(ErrorCode::kPoolFull, "as if there were no room");
                                   }
                                 });
        transaction.commit();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPoolFull) throw;
        return false;  // what was applied is taken back
      }
    }
    model = after(model, i, seed);
    return true;
  }

  static void perform(Pool& pool, Indexes& indexes, uint32_t i, uint64_t seed,
                      ModelRecording& recording) {
    const bool single = is_single(i, seed);
    const Contents next = after(recording.model(), i, seed);
    Contents model = recording.model();
    recording.perform(single ? "write" : "commit", next, recording.open_without_changes(next),
                      single ? ModelRecording::Comes::kByName : ModelRecording::Comes::kTogether,
                      [&] { return carry_out(pool, indexes, model, i, seed); });
  }

  static Contents inspect(const Pool& pool, const Indexes& indexes) {
    pool.check(damaged);
    Contents contents;
    uint64_t owned_bytes = 0;
    const auto own = [&](uint64_t, uint64_t bytes) { owned_bytes += bytes; };
    for (uint64_t which = 0; which < 2; ++which) {
      indexes[which]->check(damaged);
      index::visit_blocks_of(*indexes[which], own);
      indexes[which]->for_each([&](Datum key, Datum value) {
        contents[name_of(which, key.word())] = std::to_string(value.word());
      });
    }
    pm::impl_of(pool).transactions().visit_blocks(own);
    if (owned_bytes != pool.info().allocated_bytes) damaged("blocks are lost, or owned twice");
    return contents;
  }

  std::array<std::string, 2> structures_;
  uint64_t seed_;
  uint32_t operations_;
};

TEST(TransactionCrash, EveryStateIsWhole) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    TransactionSubject subject(seed == 1 ? std::array<std::string, 2>{"cceh", "fast-fair"}
                                         : std::array<std::string, 2>{"plush", "wbtree"},
                               24, seed);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100);
  }
}

// At each point of single transactions, of structures without locks: a locked instruction orders
// flushes as a fence does.
TEST(TransactionCrash, EveryPointOfACommitIsWhole) {
  TransactionSubject subject({"wort", "wbtree"}, 24, 4);
  const crash::Run run = subject.record({});
  ExploreOptions options;
  options.points_max = 1000;
  options.states_max = test::rounds(3000);
  options.nested_max = 0;
  options.limits.complete_max = 16;
  options.limits.lines_alone_max = 8;
  options.limits.pairs_max = 4;
  options.limits.random = 4;
  for (size_t i = 12; i < 24; ++i) {
    if (run.operations.back().at(i + 1) != "commit") continue;
    SCOPED_TRACE(i);
    options.begin = run.expectations.at(1 + 2 * i).event;
    options.end = run.expectations.at(2 + 2 * i).event;
    Verdicts verdicts;
    const Exploration result = explore(run, subject, options, verdicts);
    report_findings(run, result);
    EXPECT_GT(result.states, 5U);
  }
}

// Crashes within single transactions, and again while what they left is finished and written over.
TEST(TransactionCrash, WhatIsFinishedStaysFinished) {
  TransactionSubject subject({"cceh", "fast-fair"}, 24, 3);
  const crash::Run run = subject.record({});
  ExploreOptions options;
  options.points_max = test::rounds(30);
  options.states_max = test::rounds(100);
  options.nested_max = test::rounds(10);
  options.nested_states = 150;
  options.crashes = 2;
  options.work = 100;
  options.limits.complete_max = 16;
  options.limits.lines_alone_max = 4;
  options.limits.pairs_max = 4;
  options.limits.random = 4;
  for (size_t i = 0; i < 24; i += 6) {
    if (run.operations.back().at(i + 1) != "commit") continue;
    SCOPED_TRACE(i);
    // Two expectations of each operation, behind that of the beginning.
    options.begin = run.expectations.at(1 + 2 * i).event;
    options.end = run.expectations.at(2 + 2 * i).event;
    Verdicts verdicts;
    const Exploration result = explore(run, subject, options, verdicts);
    report_findings(run, result);
    EXPECT_GT(result.nested_states, 20U);
  }
}

}  // namespace
}  // namespace perdure::lab::crash
