// Writes that are not logged, mixed with writes that are.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "index/hash.h"
#include "perdure/plush.h"
#include "support/child.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using Words = Plush<uint64_t, uint64_t>;
using Strings = Plush<std::string, std::string>;

enum class Act : uint32_t { kUpsert, kInsert, kUpdate, kRemove, kLoose, kLooseInsert, kCheckpoint };

struct Op {
  Act act;
  uint64_t key;
  uint64_t value;
};

// The operations that follow from a seed.
class Ops {
 public:
  Ops(uint64_t seed, uint64_t keys) : random_(seed), keys_(keys) {}
  Op next() {
    static constexpr Act kActs[] = {Act::kUpsert, Act::kInsert, Act::kUpdate, Act::kRemove,
                                    Act::kLoose,  Act::kLoose,  Act::kLoose,  Act::kLooseInsert};
    const Act act = random_.below(400) == 0 ? Act::kCheckpoint : kActs[random_.below(8)];
    return {act, random_.below(keys_), random_.next()};
  }

 private:
  Random random_;
  uint64_t keys_;
};

// What a key holds, and what a crash may make of it.
struct Fate {
  std::optional<uint64_t> held;
  std::set<std::optional<uint64_t>> behind;
};
using Fates = std::map<uint64_t, Fate>;

void account(Fates& fates, const Op& op) {
  if (op.act == Act::kCheckpoint) {
    for (auto& [key, fate] : fates) fate.behind.clear();
    return;
  }
  Fate& fate = fates[op.key];
  const bool present = fate.held.has_value();
  if ((op.act == Act::kInsert || op.act == Act::kLooseInsert) && present) return;
  if ((op.act == Act::kUpdate || op.act == Act::kRemove) && !present) return;
  if (op.act == Act::kLoose || op.act == Act::kLooseInsert) {
    fate.behind.insert(fate.held);
  } else {
    fate.behind.clear();
  }
  fate.held = op.act == Act::kRemove ? std::nullopt : std::optional(op.value);
}

template <typename T>
struct Codec;
template <>
struct Codec<uint64_t> {
  static uint64_t encode(uint64_t number) { return number; }
  static uint64_t decode(uint64_t word) { return word; }
};
// Long enough that payload chunks fill, are collected, and entries get chunks of their own.
template <>
struct Codec<std::string> {
  static std::string encode(uint64_t number) {
    std::string text = std::to_string(number);
    const uint64_t repeat = number % 97 == 0 ? 900 : number % 23;
    for (uint64_t i = 0; i < repeat; ++i) text += ',' + std::to_string(number ^ i);
    return text;
  }
  static uint64_t decode(const std::string& text) {
    const uint64_t number = std::stoull(text);
    return encode(number) == text ? number : ~uint64_t{0};
  }
};

template <typename T>
class BulkTest : public testing::Test {
 protected:
  using K = typename T::key_type;
  using V = typename T::value_type;

  static constexpr uint64_t kKeys = 700;
  PoolOptions pool_options_{.capacity_bytes = uint64_t{32} << 20};
  PlushOptions small_{.directory_bits = 4, .fanout = 2, .partitions = 2, .log_percent = 300};
  TempDir dir_;
  std::string path_ = dir_.file("pool");

  void create() const {
    Pool pool = Pool::create(path_, pool_options_);
    T::create(pool, "t", small_);
  }
  static V value(uint64_t number) { return Codec<V>::encode(number); }
  static K key(uint64_t number) { return Codec<K>::encode(number); }

  static void perform(T& table, const Op& op) {
    switch (op.act) {
      case Act::kUpsert:
        return table.upsert(key(op.key), value(op.value));
      case Act::kInsert:
        return static_cast<void>(table.insert(key(op.key), value(op.value)));
      case Act::kUpdate:
        return static_cast<void>(table.update(key(op.key), value(op.value)));
      case Act::kRemove:
        return static_cast<void>(table.remove(key(op.key)));
      case Act::kLoose:
        return table.upsert(key(op.key), value(op.value), Logging::kOff);
      case Act::kLooseInsert:
        return static_cast<void>(table.insert(key(op.key), value(op.value), Logging::kOff));
      case Act::kCheckpoint:
        return table.checkpoint(2);
    }
  }

  static std::optional<uint64_t> held(const T& table, uint64_t number) {
    V found{};
    if (!table.lookup(key(number), found)) return std::nullopt;
    return Codec<V>::decode(found);
  }

  // Compares a table with what a crash may have made of it, and takes that for settled.
  static void settle(const T& table, Fates& fates) {
    for (auto& [number, fate] : fates) {
      const std::optional<uint64_t> now = held(table, number);
      EXPECT_TRUE(now == fate.held || fate.behind.contains(now)) << "key " << number;
      fate = {now, {}};
    }
    EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
};

using Tables = testing::Types<Words, Strings>;
TYPED_TEST_SUITE(BulkTest, Tables);

TYPED_TEST(BulkTest, UnloggedWritesSurviveACrashAfterACheckpoint) {
  for (const unsigned threads : {1U, 2U}) {
    std::filesystem::remove(this->path_);
    this->create();
    const std::string said = in_crashing_child([&]() -> std::string {
      auto* pool = new Pool(Pool::open(this->path_, this->pool_options_));
      auto* table = new TypeParam(TypeParam::open(*pool, "t"));
      for (uint64_t i = 0; i < 3000; ++i) {
        table->upsert(this->key(i), this->value(i), Logging::kOff);
      }
      table->checkpoint(threads);
      return "";
    });
    ASSERT_EQ(said, "");
    Pool pool = Pool::open(this->path_, this->pool_options_);
    const auto table = TypeParam::open(pool, "t");
    for (uint64_t i = 0; i < 3000; ++i) ASSERT_EQ(this->held(table, i), i);
    EXPECT_EQ(table.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
  }
}

TYPED_TEST(BulkTest, UnloggedWritesSurviveACleanClose) {
  Pool pool = Pool::anonymous(this->pool_options_);
  {
    auto table = TypeParam::create(pool, "t", this->small_);
    for (uint64_t i = 0; i < 100; ++i) table.upsert(this->key(i), this->value(i), Logging::kOff);
  }
  const auto table = TypeParam::open(pool, "t");
  for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(this->held(table, i), i);
}

// Killed again and again: only unlogged writes since the last checkpoint are ever lost, each
// wholly.
TYPED_TEST(BulkTest, ACrashTakesNothingButUnloggedWrites) {
  this->create();
  Random random(base_seed());
  Fates fates;
  for (uint64_t key = 0; key < this->kKeys; ++key) fates[key] = {};
  const uint64_t rounds = std::max<uint64_t>(4, scaled(16));
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t seed = random.next();
    const uint64_t enough = random.below(uint64_t{1} << (3 + random.below(12)));
    Child child([&](int out) {
      auto* pool = new Pool(Pool::open(this->path_, this->pool_options_));
      auto* table = new TypeParam(TypeParam::open(*pool, "t"));
      Ops ops(seed, this->kKeys);
      for (uint32_t done = 0;; ++done) {
        send(out, &done, sizeof done);  // as many have returned
        this->perform(*table, ops.next());
      }
    });
    Ops ops(seed, this->kKeys);
    uint32_t done = 0;
    uint32_t applied = 0;
    const auto receive = [&] {
      if (!child.receive(&done, sizeof done)) return false;
      for (; applied < done; ++applied) account(fates, ops.next());
      return true;
    };
    while (applied < enough && receive()) {
    }
    child.kill();
    while (receive()) {
    }
    ASSERT_EQ(child.wait(), -SIGKILL);
    // The next one may have had its effect, or part of what its checkpoint does.
    const Op last = ops.next();
    if (last.act != Act::kCheckpoint) {
      Fate& fate = fates[last.key];
      std::set<std::optional<uint64_t>> before = fate.behind;
      before.insert(fate.held);
      account(fates, last);
      fates[last.key].behind.merge(before);
    }
    Pool pool = Pool::open(this->path_, this->pool_options_);
    ASSERT_NO_FATAL_FAILURE(this->settle(TypeParam::open(pool, "t"), fates)) << "round " << round;
    if (testing::Test::HasFailure()) return;
  }
}

// What hides an older version of a key may be unlogged: the collector must not drop the older one.
TEST(BulkPayload, CollectingGarbageKeepsWhatACrashGoesBackTo) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const PoolOptions options{.capacity_bytes = uint64_t{32} << 20};
  const std::string filler(500, 'f');
  const std::string old(5000, 'o');  // ten of them are most of a chunk, which stays while they live
  const std::string said = in_crashing_child([&]() -> std::string {
    auto* pool = new Pool(Pool::create(path, options));
    auto* table = new Strings(Strings::create(
        *pool, "t", {.directory_bits = 6, .fanout = 2, .partitions = 1, .log_percent = 300}));
    for (uint64_t i = 0; i < 10; ++i) table->upsert(std::to_string(i), old);
    for (uint64_t i = 0; i < 60; ++i) table->upsert("a" + std::to_string(i), filler);
    for (uint64_t i = 0; i < 10; ++i) table->upsert(std::to_string(i), "new", Logging::kOff);
    // A third chunk begins; the first is garbage by now and collected, the second is not.
    for (uint64_t i = 0; i < 150; ++i) table->upsert("b" + std::to_string(i), filler);
    return "";
  });
  ASSERT_EQ(said, "");
  Pool pool = Pool::open(path, options);
  const auto table = Strings::open(pool, "t");
  std::string value;
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(table.lookup(std::to_string(i), value)) << i;
    EXPECT_TRUE(value == "new" || value == old) << i;
  }
}

// Several payloads are flushed under one fence. A first crash tears one and keeps the one behind
// it; the second crash comes when entries of the same sizes have been put there again, and keeps
// the log record of the second of them but nothing of its payload.
TEST(Payload, WhatACrashLeftBehindATornEntryIsNotTakenForALaterOne) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const PoolOptions options{
      .capacity_bytes = uint64_t{8} << 20, .force_domain = true, .domain = Domain::kByte};
  const PlushOptions shape{.directory_bits = 1, .fanout = 2, .partitions = 1};
  const auto value_of = [](const char* word) { return word + std::string(200, '.'); };
  const std::string key_a = "a";
  const std::string key_b = "b";
  constexpr uint64_t kEntryBytes = 232;  // of a key of one byte and such a value, with the header
  // Where the payload entry with this value is in an image of the pool.
  const auto entry_in = [&](const std::string& image, const char* word) {
    const size_t at = image.find(value_of(word));
    EXPECT_NE(at, std::string::npos);
    return at - 1 - 16;
  };
  const auto copy_entry = [&](std::string& to, const std::string& from, size_t at) {
    to.replace(at, kEntryBytes, from, at, kEntryBytes);
  };
  const std::string before = dir.file("before");

  std::string said = in_crashing_child([&]() -> std::string {
    auto* pool = new Pool(Pool::create(path, options));
    auto* table = new Strings(Strings::create(*pool, "t", shape));
    table->upsert(key_a, value_of("first-a"));
    table->upsert(key_b, value_of("first-b"));
    std::filesystem::copy_file(path, before);
    const std::string a = value_of("other-a");
    const std::string b = value_of("other-b");
    const std::vector<RecordOf<std::string, std::string>> both = {{key_a, a}, {key_b, b}};
    table->multi_upsert(both);
    return "";
  });
  ASSERT_EQ(said, "");
  std::string image = read_file(before);
  const std::string after = read_file(path);
  copy_entry(image, after, entry_in(after, "other-b"));
  write_file(path, image);

  std::filesystem::remove(before);
  said = in_crashing_child([&]() -> std::string {
    auto* pool = new Pool(Pool::open(path, options));
    auto* table = new Strings(Strings::open(*pool, "t"));
    table->upsert(key_a, value_of("third-a"));
    std::filesystem::copy_file(path, before);
    table->upsert(key_b, value_of("third-b"));
    return "";
  });
  ASSERT_EQ(said, "");
  image = read_file(path);
  copy_entry(image, read_file(before), entry_in(image, "third-b"));
  write_file(path, image);

  Pool pool = Pool::open(path, options);
  const auto table = Strings::open(pool, "t");
  std::string value;
  ASSERT_TRUE(table.lookup(key_a, value));
  EXPECT_EQ(value, value_of("third-a"));
  ASSERT_TRUE(table.lookup(key_b, value));
  EXPECT_EQ(value, value_of("first-b"));
}

// The epoch of a row has 18 bits, and unlogged writes use epochs up without passing through the
// log.
TEST(BulkEpochs, DoNotComeRoundWhileTheLogHoldsTheFirst) {
  const TempDir dir;
  const std::string path = dir.file("pool");
  const PoolOptions options{.capacity_bytes = uint64_t{8} << 20};
  std::vector<uint64_t> keys;  // of one row
  for (uint64_t key = 0; keys.size() < 32; ++key) {
    if (index::hash_of(key) >> 63 == 0) keys.push_back(key);
  }
  const std::string said = in_crashing_child([&]() -> std::string {
    auto* pool = new Pool(Pool::create(path, options));
    auto* table = new Words(Words::create(
        *pool, "t", {.directory_bits = 1, .fanout = 2, .partitions = 2, .log_percent = 300}));
    table->upsert(keys[0], 1);
    for (uint64_t i = 1; i < uint64_t{16} << 18; ++i) {
      table->upsert(keys[i % 32], 1000 + i, Logging::kOff);
    }
    return "";
  });
  ASSERT_EQ(said, "");
  Pool pool = Pool::open(path, options);
  const auto table = Words::open(pool, "t");
  uint64_t value = 0;
  ASSERT_TRUE(table.lookup(keys[0], value));
  EXPECT_NE(value, 1U);
}

}  // namespace
}  // namespace perdure::test
