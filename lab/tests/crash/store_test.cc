// Every crash of what a store does beside its records: a consumer's changes, and eviction.
#include "perdure/store.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"
#include "store/fixture.h"

namespace perdure::lab::crash {
namespace {

// What both have in common: a store that one thread works on, and a model of what a user sees of
// it.
class StoreSubject : public Subject {
 public:
  StoreSubject(StoreOptions options, uint32_t operations, uint64_t seed)
      : options_(std::move(options)), operations_(operations), seed_(seed) {}

  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }

  Run record(const std::vector<uint32_t>&) override {
    const ScratchFolder folder;
    return recorded([&](Recording& recording) {
      Pool pool = Pool::create(folder.file("pool"), explored_pool(kCapacityBytes));
      Store store = Store::create(pool, "s", options_);
      begin(store);
      Contents model;
      for (uint32_t i = 0; i < prepared(); ++i)
        model = carry_out(store, model, step(i, seed_ + 99));
      recording.begin(inspect(pool, store));
      recording.skip_to_here();
      for (uint32_t i = 0; i < operations_; ++i) recording.perform(store, step(i, seed_));
      recording.skip_the_rest();
    });
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, explored_pool(kCapacityBytes));
    Store store = Store::open(pool, "s", options_);
    Contents contents = inspect(pool, store);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    for (uint32_t i = 0; i < 8; ++i) contents = carry_out(store, contents, step(i, 77));
    const std::string wrong = difference(inspect(pool, store), contents, contents);
    if (!wrong.empty()) damaged("after recovery operations go astray: " + wrong);
    return seen;
  }

  Run record_recovery(const std::string& path, const Work& work) override {
    return recorded([&](Recording& recording) {
      Pool pool = Pool::open(path, explored_pool(kCapacityBytes));
      Store store = Store::open(pool, "s", options_);
      recording.begin(inspect(pool, store));
      recording.recovered();
      for (uint32_t i = 0; i < 6 + std::min(work.operations, 20U); ++i) {
        recording.perform(store, step(i, work.seed + work.crashes));
      }
      recording.skip_the_rest();
    });
  }

 protected:
  enum class Verb : uint8_t { kPut, kRemove, kBatch, kRemovePrefix, kAcknowledge };
  struct Step {
    Verb verb;
    uint64_t random;

    std::string text() const {
      static constexpr const char* kNames[] = {"put", "remove", "batch", "prefix", "acknowledge"};
      return kNames[static_cast<size_t>(verb)];
    }
  };
  static constexpr uint64_t kCapacityBytes = uint64_t{2} << 20;

  virtual uint32_t prepared() const = 0;
  virtual void begin(Store& store) const = 0;
  virtual Step step(uint32_t i, uint64_t seed) const = 0;
  // What is seen after the step, of what was seen before.
  virtual Contents carry_out(Store& store, const Contents& before, const Step& step) const = 0;
  virtual Contents after(const Store& store, const Contents& before, const Step& step) const = 0;
  virtual Contents inspect(const Pool& pool, Store& store) const = 0;
  // What of `there` is neither as in `before` nor as in `after`, in words.
  virtual std::string difference(const Contents& there, const Contents& before,
                                 const Contents& after) const {
    return there == before || there == after ? "" : "other contents";
  }
  // Whether difference() decides, in place of digests.
  virtual bool is_loose() const { return false; }

  static void check(const Pool& pool, const Store& store) {
    pool.check(damaged);
    store.check(damaged);
  }

 private:
  // What was seen before and after an operation that begins at an event.
  struct Moment {
    uint32_t event;
    Contents before;
    Contents after;
  };

  class Recording {
   public:
    explicit Recording(const StoreSubject& subject) : subject_(subject) {
      run.operations.assign(1, {""});
      install(&recorder_);
    }
    void begin(Contents model) {
      model_ = std::move(model);
      run.expectations.push_back({0, {digest_of(model_)}});
      moments_->push_back({0, model_, model_});
    }
    void recovered() { run.recovered_at = recorder_.position(); }
    void skip_to_here() { run.skipped.emplace_back(0, recorder_.position()); }
    void skip_the_rest() {
      run.skipped.emplace_back(recorder_.position(), recorder_.position() + 1'000'000);
    }
    void perform(Store& store, const Step& step) {
      const Contents next = subject_.after(store, model_, step);
      run.operations[0].push_back(step.text());
      run.expectations.push_back({recorder_.position(), {digest_of(model_), digest_of(next)}});
      moments_->push_back({recorder_.position(), model_, next});
      begin_operation(operation_type(step.text().c_str()), 0);
      model_ = subject_.carry_out(store, model_, step);
      end_operation();
      run.expectations.push_back({recorder_.position() - 1, {digest_of(model_)}});
      moments_->push_back({recorder_.position() - 1, model_, model_});
    }
    Run finish() {
      install(nullptr);
      run.trace = recorder_.finish();
      if (!subject_.is_loose()) return std::move(run);
      run.explain_decides = true;
      run.explain = [moments = moments_, &subject = subject_](uint32_t event,
                                                              const std::string& text) {
        const Moment* last = &moments->front();
        for (const Moment& moment : *moments) {
          if (moment.event < event) last = &moment;
        }
        return subject.explain(text, last->before, last->after);
      };
      return std::move(run);
    }

    Run run;

   private:
    const StoreSubject& subject_;
    Recorder recorder_;
    Contents model_;
    std::shared_ptr<std::vector<Moment>> moments_ = std::make_shared<std::vector<Moment>>();
  };

  template <typename Work>
  Run recorded(Work work) const {
    Recording recording(*this);
    work(recording);
    return recording.finish();
  }

  // As difference(), of contents in words: of each name one line.
  std::string explain(const std::string& text, const Contents& before,
                      const Contents& after) const {
    const auto lines_of = [](const std::string& words) {
      std::vector<std::string> lines;
      for (size_t at = 0, end = 0; at < words.size(); at = end + 1) {
        end = words.find('\n', at);
        lines.push_back(words.substr(at, end - at));
      }
      return lines;
    };
    const std::string allowed = "\n" + text_of(before) + text_of(after);
    std::string wrong;
    for (const std::string& line : lines_of(text)) {
      if (allowed.find("\n" + line + "\n") == std::string::npos) wrong += "not so: " + line + "\n";
    }
    return wrong;
  }

  StoreOptions options_;
  uint32_t operations_;
  uint64_t seed_;
};

// A consumer's position and what it has not read, beside the records. Batches and removals by
// prefix over several partitions come wholly or not at all.
class ChangesSubject final : public StoreSubject {
 public:
  using StoreSubject::StoreSubject;
  std::string name() const override { return "store changes"; }

 protected:
  uint32_t prepared() const override { return 60; }
  void begin(Store& store) const override { store.add_consumer("c"); }
  Step step(uint32_t i, uint64_t seed) const override {
    static constexpr Verb kVerbs[] = {Verb::kPut,        Verb::kPut,   Verb::kPut,
                                      Verb::kRemove,     Verb::kBatch, Verb::kRemovePrefix,
                                      Verb::kAcknowledge};
    const uint64_t random = drawn(seed, i);
    return {kVerbs[random % std::size(kVerbs)], random >> 8};
  }

  static std::string key_of(uint64_t random) {
    return fmt::format("{}{}", static_cast<char>('a' + random % 4), random / 4 % 12);
  }
  static std::string value_of(uint64_t random) {
    return std::string(random % (random / 64 % 12 == 0 ? 400 : 40),
                       static_cast<char>('A' + random % 26));
  }
  static std::string stream_of(uint32_t partition) { return fmt::format("stream {}", partition); }
  static std::string line(const char* what, std::string_view key, std::string_view value) {
    return fmt::format("{} {} {}\n", what, key, value);
  }

  struct Write {
    std::string key;
    std::string value;
    bool removal;
  };
  static std::vector<Write> writes_of(const Step& step) {
    if (step.verb == Verb::kPut) return {{key_of(step.random), value_of(step.random >> 8), false}};
    if (step.verb == Verb::kRemove) return {{key_of(step.random), "", true}};
    std::vector<Write> writes;
    for (uint64_t n = 0; n < 1 + step.random % 4; ++n) {
      const uint64_t one = drawn(step.random, n);
      writes.push_back({key_of(one), value_of(one >> 8), (one >> 32) % 3 == 0});
      if (writes.back().removal) writes.back().value.clear();
    }
    return writes;
  }

  Contents after(const Store& store, const Contents& before, const Step& step) const override {
    Contents next = before;
    if (step.verb == Verb::kAcknowledge) {
      const auto partition = static_cast<uint32_t>(step.random % store.partitions());
      std::string& stream = next[stream_of(partition)];
      stream.erase(0, stream.find('\n') + 1);  // nothing, if it is empty
      return next;
    }
    if (step.verb == Verb::kRemovePrefix) {
      const std::string prefix = key_of(step.random).substr(0, 1 + step.random / 512 % 2);
      std::vector<bool> concerned(store.partitions());
      std::erase_if(next, [&](const auto& one) {
        if (one.first.starts_with("stream") || !one.first.starts_with(prefix)) return false;
        concerned[store.partition_of(one.first)] = true;
        return true;
      });
      for (uint32_t p = 0; p < store.partitions(); ++p) {
        if (concerned[p]) next[stream_of(p)] += line("prefix", prefix, "");
      }
      return next;
    }
    for (const Write& write : writes_of(step)) {
      std::string& stream = next[stream_of(store.partition_of(write.key))];
      // In a batch a removal is a record whether or not the key is there, and is told.
      if (!write.removal) stream += line("put", write.key, write.value);
      if (write.removal && (step.verb == Verb::kBatch || next.contains(write.key))) {
        stream += line("remove", write.key, "");
      }
      if (write.removal) {
        next.erase(write.key);
      } else {
        next[write.key] = write.value;
      }
    }
    return next;
  }

  Contents carry_out(Store& store, const Contents& before, const Step& step) const override {
    Contents next = after(store, before, step);
    switch (step.verb) {
      case Verb::kPut:
        store.put(key_of(step.random), value_of(step.random >> 8));
        break;
      case Verb::kRemove:
        store.remove(key_of(step.random));
        break;
      case Verb::kBatch: {
        Store::Batch batch;
        for (const Write& write : writes_of(step)) {
          write.removal ? batch.remove(write.key) : batch.put(write.key, write.value);
        }
        store.apply(batch);
        break;
      }
      case Verb::kRemovePrefix:
        store.remove_prefix(key_of(step.random).substr(0, 1 + step.random / 512 % 2));
        break;
      case Verb::kAcknowledge: {
        const auto partition = static_cast<uint32_t>(step.random % store.partitions());
        Store::Changes changes = store.changes(partition, store.consumer_position("c", partition));
        Store::Change change;
        if (changes.next(change)) store.acknowledge("c", partition, change.version + 1);
        break;
      }
    }
    return next;
  }

  Contents inspect(const Pool& pool, Store& store) const override {
    check(pool, store);
    Contents contents;
    store.for_each(
        [&](std::string_view key, std::string_view value) { contents.emplace(key, value); });
    if (store.consumers() != std::vector<std::string>{"c"}) damaged("other consumers");
    for (uint32_t p = 0; p < store.partitions(); ++p) {
      std::string& stream = contents[stream_of(p)];
      Store::Changes changes = store.changes(p, store.consumer_position("c", p));
      for (Store::Change change; changes.next(change);) {
        static constexpr const char* kNames[] = {"put", "remove", "prefix"};
        stream += line(kNames[static_cast<size_t>(change.kind)], change.key, change.value);
      }
    }
    return contents;
  }
};

// A cache, whose keys have the last value or none.
class EvictionSubject final : public StoreSubject {
 public:
  using StoreSubject::StoreSubject;
  std::string name() const override { return "store eviction"; }

 protected:
  uint32_t prepared() const override { return 500; }
  void begin(Store&) const override {}
  bool is_loose() const override { return true; }
  Step step(uint32_t i, uint64_t seed) const override {
    const uint64_t random = drawn(seed, i);
    return {random % 6 == 0 ? Verb::kRemove : Verb::kPut, random >> 8};
  }
  static std::string key_of(const Step& step) { return fmt::format("k{}", step.random % 400); }
  static std::string value_of(const Step& step) {
    const uint64_t bytes = step.random / 512 % (step.random / 65536 % 16 == 0 ? 300 : 50);
    return fmt::format("{}.", step.random % 100'000) + std::string(bytes, 'v');
  }

  Contents after(const Store&, const Contents& before, const Step& step) const override {
    Contents next = before;
    if (step.verb == Verb::kPut) {
      next[key_of(step)] = value_of(step);
    } else {
      next.erase(key_of(step));
    }
    return next;
  }
  Contents carry_out(Store& store, const Contents& before, const Step& step) const override {
    if (step.verb == Verb::kPut) {
      store.put(key_of(step), value_of(step));
      if (store.get(key_of(step)) != value_of(step)) damaged("a write is not seen");
    } else {
      store.remove(key_of(step));
    }
    return after(store, before, step);
  }
  Contents inspect(const Pool& pool, Store& store) const override {
    check(pool, store);
    Contents contents;
    store.for_each(
        [&](std::string_view key, std::string_view value) { contents.emplace(key, value); });
    return contents;
  }
  std::string difference(const Contents& there, const Contents& before,
                         const Contents& after) const override {
    for (const auto& [key, value] : there) {
      const auto one = before.find(key);
      const auto other = after.find(key);
      const bool known = (one != before.end() && one->second == value) ||
                         (other != after.end() && other->second == value);
      if (!known) return "not so: " + key + " " + value;
    }
    return "";
  }
};

// Backups, each after a write. All of them are there when a crash is looked at, also those that
// were made after it: as after a pool was put back. From those none may go on, however much is
// written from there on.
class RunsSubject final : public StoreSubject {
 public:
  RunsSubject(StoreOptions options, uint32_t operations, uint64_t seed)
      : StoreSubject(std::move(options), operations, seed) {
    for (uint32_t i = 0; i < operations; ++i) bases_.insert(base_of(step(i, seed)));
  }
  std::string name() const override { return "store runs"; }

 protected:
  uint32_t prepared() const override { return 5; }
  void begin(Store& store) const override { store.backup(folder_.file("first")); }
  // After a crash in an opening nobody can say where the last run ended: it is refused, too.
  bool is_loose() const override { return true; }
  Step step(uint32_t i, uint64_t seed) const override { return {Verb::kPut, drawn(seed, i) >> 8}; }

  Contents after(const Store&, const Contents& before, const Step& step) const override {
    Contents next = before;
    next[fmt::format("k{}", step.random % 5)] = fmt::format("{}", step.random);
    if (bases_.contains(base_of(step))) next[base_of(step)] = "is taken";
    return next;
  }
  Contents carry_out(Store& store, const Contents& before, const Step& step) const override {
    store.put(fmt::format("k{}", step.random % 5), fmt::format("{}", step.random));
    const std::string base = base_of(step);
    if (bases_.contains(base)) store.backup(folder_.file(base));
    return after(store, before, step);
  }
  Contents inspect(const Pool& pool, Store& store) const override {
    check(pool, store);
    Contents contents;
    store.for_each(
        [&](std::string_view key, std::string_view value) { contents.emplace(key, value); });
    const ScratchFolder folder;
    for (const std::string& base : bases_) {
      if (!std::filesystem::exists(folder_.file(base))) continue;
      try {
        store.backup(folder.file("next"), folder_.file(base));
        contents[base] = "is taken";
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument) throw;
      }
    }
    return contents;
  }

 private:
  static std::string base_of(const Step& step) { return fmt::format("base{}", step.random); }

  ScratchFolder folder_;
  std::set<std::string> bases_;
};

StoreOptions small(StoreIndex index, uint32_t partitions) {
  StoreOptions options = test::tiny_store(index, partitions);
  options.recovery_threads = 1;
  return options;
}

class StoreCrash : public testing::TestWithParam<StoreIndex> {};

TEST_P(StoreCrash, AConsumerMissesNothingAndIsToldNothingTwice) {
  ChangesSubject subject(small(GetParam(), 3), 60, 1);
  const crash::Run run = subject.record({});
  explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 400);
}

TEST_P(StoreCrash, NoBackupGoesOnFromALostOne) {
  StoreOptions options = small(GetParam(), 2);
  options.changes_bytes = 512 << 10;
  RunsSubject subject(options, 12, 1);
  const crash::Run run = subject.record({});
  explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 400);
}

TEST_P(StoreCrash, ACacheHasTheLastValueOrNone) {
  StoreOptions options = small(GetParam(), 1);
  options.evict = true;
  options.bytes_max = 16 << 10;
  EvictionSubject subject(options, 80, 1);
  const crash::Run run = subject.record({});
  explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 400);
}

INSTANTIATE_TEST_SUITE_P(Indexes, StoreCrash,
                         testing::Values(StoreIndex::kHash, StoreIndex::kOrdered, StoreIndex::kPm),
                         test::name_of_index);

}  // namespace
}  // namespace perdure::lab::crash
