// Threads that write, look up and scan a Plush of byte strings while payload is collected and
// entries go down. Made for the build in which threads pause on purpose (pm/pause.h; `make
// test-pauses`), and true in every other.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "perdure/plush.h"
#include "support/complaints.h"
#include "support/data.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using Texts = Plush<uint64_t, std::string>;

// Runs of neighbouring keys come and go, those of each writer its own; one key in kStableEach
// stays. All in one or two partitions, whose writers meet all of the other's collections and
// migrations.
class PlushThreads : public testing::TestWithParam<PlushOrder> {
 protected:
  static constexpr uint64_t kKeys = 4096;
  static constexpr uint64_t kWriters = 2;
  static constexpr uint64_t kStableEach = 16;
  static constexpr uint64_t kValueMax = 3000;

  static bool stays(uint64_t key) { return key % kStableEach == 0; }
  static uint64_t writer_of(uint64_t key) { return key % kStableEach % kWriters; }
  static std::string value_of(uint64_t key, uint64_t bytes) {
    return std::to_string(key) + ' ' + std::string(bytes, static_cast<char>('a' + key % 26));
  }
  static bool is_value_of(uint64_t key, std::string_view value) {
    return value.starts_with(std::to_string(key) + ' ') &&
           (value.back() == ' ' || value.back() == static_cast<char>('a' + key % 26));
  }

  PlushOptions options() const {
    PlushOptions made{.directory_bits = 1, .fanout = 16, .partitions = 2, .order = GetParam()};
    made.filter_levels = static_cast<uint32_t>(base_seed() % 3);
    if (GetParam() == PlushOrder::kRange) made.key_max = kKeys - 1;
    return made;
  }

  void write(uint64_t writer, uint64_t operations) {
    Random random(base_seed() + writer);
    std::map<uint64_t, std::string>& model = models_[writer];
    for (uint64_t done = 0; done < operations;) {
      const bool removes = random.below(3) == 0;
      const uint64_t bytes_max = random.below(4) == 0 ? kValueMax : 200;
      const uint64_t first = random.below(kKeys);
      const uint64_t run = 1 + random.below(removes ? 1000 : 300);
      for (uint64_t key = first; key < std::min(first + run, kKeys); ++key) {
        if (stays(key) || writer_of(key) != writer) continue;
        ++done;
        if (removes) {
          if (table_.remove(key) != (model.erase(key) == 1))
            complaints_.add("the removal of key " + std::to_string(key) + " lied");
          continue;
        }
        std::string value = value_of(key, random.below(bytes_max));
        table_.upsert(key, value);
        model[key] = std::move(value);
      }
    }
  }

  void look_up() {
    Random random(base_seed() + 100);
    std::string found;
    while (!done_.load(std::memory_order_relaxed)) {
      const uint64_t key = random.below(kKeys);
      const bool there = table_.lookup(key, found);
      if (there ? !is_value_of(key, found) : stays(key))
        complaints_.add("a lookup of key " + std::to_string(key) + " lied");
    }
  }

  void scan() {
    Random random(base_seed() + 200);
    while (!done_.load(std::memory_order_relaxed)) {
      const uint64_t from = random.below(kKeys);
      uint64_t next = (from + kStableEach - 1) / kStableEach * kStableEach;
      uint64_t visits = 0;
      constexpr uint64_t kLimit = 500;
      table_.scan(from, kLimit, [&](uint64_t key, std::string_view value) {
        ++visits;
        if (key > next) complaints_.add("a scan left out key " + std::to_string(next));
        if (key >= next) next = key / kStableEach * kStableEach + kStableEach;
        if (!is_value_of(key, value)) complaints_.add("a scan visited a wrong value");
        return true;
      });
      if (visits < kLimit && next < kKeys) complaints_.add("a scan ended early");
    }
  }

  void walk() {
    while (!done_.load(std::memory_order_relaxed)) {
      uint64_t stable = 0;
      table_.for_each([&](uint64_t key, std::string_view value) {
        stable += stays(key) ? 1 : 0;
        if (!is_value_of(key, value)) complaints_.add("a walk visited a wrong value");
      });
      if (stable != kKeys / kStableEach) complaints_.add("a walk left out a key");
    }
  }

  Pool pool_ = Pool::anonymous({.capacity_bytes = uint64_t{128} << 20});
  Texts table_ = Texts::create(pool_, "t", options());
  std::map<uint64_t, std::string> models_[kWriters];
  std::atomic<bool> done_{false};
  Complaints complaints_;
};

TEST_P(PlushThreads, CollectingPayloadBesideReadersAndWriters) {
  for (uint64_t key = 0; key < kKeys; key += kStableEach) table_.upsert(key, value_of(key, 20));
  std::vector<std::thread> readers;
  readers.emplace_back([&] { complaints_.catch_in([&] { look_up(); }); });
  readers.emplace_back(
      [&] { complaints_.catch_in([&] { GetParam() == PlushOrder::kRange ? scan() : walk(); }); });
  std::vector<std::thread> writers;
  for (uint64_t i = 0; i < kWriters; ++i)
    writers.emplace_back([&, i] { complaints_.catch_in([&] { write(i, rounds(30000)); }); });
  for (std::thread& writer : writers) writer.join();
  done_.store(true, std::memory_order_relaxed);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(complaints_.text(), "");
  std::string found;
  for (uint64_t key = 0; key < kKeys; ++key) {
    if (stays(key)) continue;
    const auto& model = models_[writer_of(key)];
    const auto expected = model.find(key);
    ASSERT_EQ(table_.lookup(key, found), expected != model.end()) << key;
    if (expected == model.end()) continue;
    ASSERT_EQ(found, expected->second) << key;
  }
  EXPECT_EQ(table_.check([](const std::string& text) { ADD_FAILURE() << text; }), 0U);
}

INSTANTIATE_TEST_SUITE_P(Orders, PlushThreads,
                         testing::Values(PlushOrder::kHash, PlushOrder::kRange),
                         [](const auto& info) {
                           return info.param == PlushOrder::kHash ? "Hash" : "Range";
                         });

}  // namespace
}  // namespace perdure::test
