// Batches: what they answer, what several threads see of them, what is left of them after a kill.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/child.h"
#include "support/errors.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

using Numbers = std::vector<std::pair<uint64_t, uint64_t>>;  // keys and values

// A batch by numbers, and what came of it.
class Batch {
 public:
  Batch(TypedIndex index, const Numbers& numbers)
      : index_(index.any()), flags_(std::make_unique<bool[]>(numbers.size() + 1)) {
    for (const auto& [key, value] : numbers) {
      owned_.push_back(make_key(index_.key_kind(), key));
      owned_.push_back(make_value(index_.value_kind(), value));
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      records_.push_back({owned_[2 * i].datum(), owned_[2 * i + 1].datum()});
      keys_.push_back(owned_[2 * i].datum());
    }
    flags_[keys_.size()] = true;  // beyond the batch: stays as it is
  }

  uint64_t insert() { return index_.multi_insert(records_, flags()); }
  void upsert() { index_.multi_upsert(records_); }
  // What is there, by position.
  std::vector<std::optional<uint64_t>> lookup() {
    std::vector<Value> out(keys_.size());
    for (Value& value : out) value.set_bytes() = "untouched";
    const uint64_t count = index_.multi_lookup(keys_, out, flags());
    uint64_t there = 0;
    std::vector<std::optional<uint64_t>> found(keys_.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const bool untouched = out[i].kind() == Kind::kBytes && out[i].bytes() == "untouched";
      if (flags_[i]) found[i] = value_number(out[i].datum()).value_or(TypedIndex::kTorn);
      if (!flags_[i] && !untouched) found[i] = TypedIndex::kTorn;
      there += flags_[i] ? 1 : 0;
    }
    EXPECT_EQ(count, there);
    return found;
  }
  std::span<bool> flags() { return {flags_.get(), keys_.size()}; }
  bool kept_to_its_room() const { return flags_[keys_.size()]; }

 private:
  AnyIndex& index_;
  std::vector<Value> owned_;
  std::vector<AnyRecord> records_;
  std::vector<Datum> keys_;
  std::unique_ptr<bool[]> flags_;
};

class Batches : public ScenarioTest {
 protected:
  // From no record to several groups of them.
  Numbers any_batch(uint64_t keys, uint64_t value) {
    static constexpr uint64_t kSizes[] = {0, 1, 2, 7, 15, 16, 17, 33, 100};
    Numbers numbers(kSizes[random_.below(std::size(kSizes))]);
    const uint64_t first = random_.below(keys);
    const bool close = random_.chance(30);  // many equal ones
    for (auto& [key, number] : numbers) {
      key = close ? (first + random_.below(8)) % keys : random_.below(keys);
      number = value++;
    }
    return numbers;
  }

  static void expect_inserts(TypedIndex index, const Numbers& numbers, Model& model) {
    Batch batch(index, numbers);
    const uint64_t count = batch.insert();
    std::vector<bool> expected;
    for (const auto& [key, value] : numbers) expected.push_back(model.emplace(key, value).second);
    const std::vector<bool> answers(batch.flags().begin(), batch.flags().end());
    ASSERT_EQ(answers, expected);
    ASSERT_EQ(count, static_cast<uint64_t>(std::ranges::count(expected, true)));
    ASSERT_TRUE(batch.kept_to_its_room());
  }

  static void expect_lookups(TypedIndex index, const Numbers& numbers, const Model& model) {
    Batch batch(index, numbers);
    const auto found = batch.lookup();
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(found[i], value_in(model, numbers[i].first)) << "key " << numbers[i].first;
    }
    ASSERT_TRUE(batch.kept_to_its_room());
  }

  void one_batch(TypedIndex index, uint64_t keys, uint64_t value, Model& model) {
    const Numbers numbers = any_batch(keys, value);
    switch (random_.below(4)) {
      case 0:
        return expect_lookups(index, numbers, model);
      case 1:
        Batch(index, numbers).upsert();
        for (const auto& [key, number] : numbers) model[key] = number;
        return;
      case 2:
        for (const auto& [key, number] : numbers) {
          ASSERT_EQ(index.remove(key), model.erase(key) > 0);
        }
        return;
      default:
        return expect_inserts(index, numbers, model);
    }
  }
};

TEST_P(Batches, AnswerLikeSingleCalls) {
  const uint64_t batches = scaled(2000);
  Store store = create_small(MiB(128));
  Model model;
  for (uint64_t i = 0; i < batches; ++i) {
    const uint64_t keys = random_.chance(50) ? 60 : 3000;
    ASSERT_NO_FATAL_FAILURE(one_batch(store.typed(), keys, i * 100, model)) << "batch " << i;
    if (i % (batches / 3 + 1) != batches / 3) continue;
    ASSERT_EQ(difference(store.typed(), model, 3000), "") << "batch " << i;
    store.close();
    store = reopen(MiB(128));
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "batch " << i;
  }
  EXPECT_EQ(difference(store.typed(), model, 3000), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Batches, AnswerLikeSingleCallsWithTheStructuresOwnDefaults) {
  const Store store = create_store(pool_path(), pool_options(MiB(256)), GetParam(), {});
  Model model;
  for (uint64_t i = 0; i < scaled(1500); ++i) {
    ASSERT_NO_FATAL_FAILURE(one_batch(store.typed(), 20'000, i * 100, model)) << "batch " << i;
  }
  EXPECT_EQ(difference(store.typed(), model, 20'000), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(Batches, RefuseTooLittleRoomForResults) {
  const Store store = create_small(MiB(64));
  const std::vector<Value> keys = {key(1), key(2)};
  const Value any = value(1);
  const Datum data[] = {keys[0].datum(), keys[1].datum()};
  const AnyRecord records[] = {{data[0], any.datum()}, {data[1], any.datum()}};
  std::vector<Value> values(2);
  bool flag[1] = {};
  EXPECT_TRUE(fails_with(ErrorCode::kInvalidArgument,
                         [&] { store.index->multi_lookup(data, values, flag); }));
  EXPECT_TRUE(
      fails_with(ErrorCode::kInvalidArgument, [&] { store.index->multi_insert(records, flag); }));
  EXPECT_EQ(difference(store.typed(), {}, 10), "");
}

TEST_P(Batches, TellWhatWentInBeforeThePoolWasFull) {
  const uint64_t capacity_bytes = std::max(GetParam().entry().traits.capacity_bytes_min, MiB(4));
  const Store store = create_small(capacity_bytes);
  Model model;
  uint64_t next = 0;
  for (bool full = false; !full;) {
    ASSERT_LT(next, uint64_t{1} << 24);
    Numbers numbers;
    for (uint64_t i = 0; i < 50; ++i, ++next) numbers.emplace_back(next, next + 1);
    Batch batch(store.typed(), numbers);
    try {
      batch.insert();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      full = true;
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (batch.flags()[i]) model.insert(numbers[i]);
    }
  }
  EXPECT_EQ(difference(store.typed(), model, next), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, Batches, wanted(all_cases()), case_name);

// Several threads insert the same keys in batches, with values that tell key and thread.
class ConcurrentBatches : public Batches {
 protected:
  static constexpr uint64_t kThreads = 4;
  static constexpr uint64_t kShared = 64;  // keys that all write again and again

  // Returns what is wrong, in words.
  static std::string work(TypedIndex index, uint64_t thread, uint64_t keys, uint64_t& inserted) {
    Random random(base_seed() + thread);
    const auto value_of = [&](uint64_t key) { return key * kThreads + thread; };
    for (uint64_t first = 0; first < keys; first += 40) {
      Numbers numbers;
      const uint64_t turn = random.below(40);
      for (uint64_t i = 0; i < 40; ++i) {
        const uint64_t key = first + (i + turn) % 40;
        numbers.emplace_back(key, value_of(key));
      }
      inserted += Batch(index, numbers).insert();
      Numbers shared(20);
      for (auto& [key, value] : shared) {
        key = keys + random.below(kShared);
        value = value_of(key);
      }
      Batch(index, shared).upsert();
      numbers.insert(numbers.end(), shared.begin(), shared.end());
      const auto found = Batch(index, numbers).lookup();
      for (size_t i = 0; i < numbers.size(); ++i) {
        // This thread or another wrote it, and nobody removes any.
        if (found[i] && *found[i] / kThreads == numbers[i].first) continue;
        return "key " + std::to_string(numbers[i].first) + " is lost, or has another's value";
      }
    }
    return {};
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConcurrentBatches);

TEST_P(ConcurrentBatches, InsertEachKeyOnce) {
  const uint64_t keys = scaled(8000) / 40 * 40;
  const Store store = create_small(MiB(256));
  std::vector<uint64_t> inserted(kThreads);
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      try {
        wrong[t] = work(store.typed(), t, keys, inserted[t]);
      } catch (const std::exception& error) {
        wrong[t] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (uint64_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(wrong[t], "");
    sum += inserted[t];
  }
  EXPECT_EQ(sum, keys);
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, ConcurrentBatches, wanted(concurrent_cases()), case_name);

// A child writes batches and reports each that returned, until it is killed.
class BatchKill : public Batches {
 protected:
  static constexpr uint64_t kKeys = 2000;
  static constexpr uint64_t kRecordsMax = 40;

  struct Written {
    bool inserts;
    Numbers numbers;
  };
  // The batches of a run follow from its seed, and have values of their own.
  static Written draw(Random& random, uint64_t value) {
    Written written{random.chance(50), Numbers(1 + random.below(kRecordsMax))};
    for (auto& [key, number] : written.numbers) {
      key = random.below(random.chance(20) ? 20 : kKeys);
      number = value++;
    }
    return written;
  }

  static void write_and_tell(TypedIndex index, uint64_t seed, uint64_t value, int out) {
    Random random(seed);
    for (uint64_t told = 1;; ++told, value += kRecordsMax) {
      const Written written = draw(random, value);
      Batch batch(index, written.numbers);
      if (written.inserts) {
        batch.insert();
      } else {
        batch.upsert();
      }
      send(out, &told, sizeof told);
    }
  }

  static void apply(Model& model, const Written& written, uint64_t i) {
    const auto& [key, value] = written.numbers[i];
    if (!written.inserts || !model.contains(key)) model[key] = value;
  }

  // Takes what the index has of a batch that was in flight into the model. A key may be as before,
  // or as after any of its records.
  static std::string settle(TypedIndex index, Model& model, const Written& written) {
    std::map<uint64_t, std::vector<std::optional<uint64_t>>> allowed;
    Model after = model;
    for (uint64_t i = 0; i < written.numbers.size(); ++i) {
      const uint64_t key = written.numbers[i].first;
      auto& states = allowed[key];
      if (states.empty()) states.push_back(value_in(after, key));
      apply(after, written, i);
      states.push_back(value_in(after, key));
    }
    std::string wrong;
    for (const auto& [key, states] : allowed) {
      const auto found = index.lookup(key);
      if (std::ranges::find(states, found) == states.end()) {
        wrong += "key " + std::to_string(key) + " is neither as before nor as after\n";
      }
      if (found) model[key] = *found;
    }
    return wrong;
  }
};

TEST_P(BatchKill, LosesNothingOfABatchThatReturned) {
  constexpr uint64_t kCapacityBytes = uint64_t{128} << 20;
  create_small(kCapacityBytes).close();
  Model model;
  uint64_t value = 1;
  for (uint64_t round = 0; round < std::max<uint64_t>(3, scaled(8)); ++round) {
    const uint64_t seed = random_.next();
    Child child([&](int out) {
      const auto* store = new Store(reopen(kCapacityBytes));  // never closed
      write_and_tell(store->typed(), seed, value, out);
    });
    const uint64_t enough = random_.below(uint64_t{1} << (2 + random_.below(8)));
    uint64_t told = 0;
    while (told < enough && child.receive(&told, sizeof told)) {
    }
    child.kill();
    while (child.receive(&told, sizeof told)) {  // what it told before it died
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    Random random(seed);
    for (uint64_t i = 0; i < told; ++i, value += kRecordsMax) {
      const Written written = draw(random, value);
      for (uint64_t at = 0; at < written.numbers.size(); ++at) apply(model, written, at);
    }
    Store store = reopen(kCapacityBytes);
    ASSERT_EQ(settle(store.typed(), model, draw(random, value)), "") << "round " << round;
    value += kRecordsMax;
    ASSERT_EQ(difference(store.typed(), model, kKeys), "") << "round " << round;
    ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "round " << round;
    store.close();
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, BatchKill, wanted(all_cases()), case_name);

}  // namespace
}  // namespace perdure::test
