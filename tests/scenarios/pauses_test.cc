// Threads that write, look up and scan the same nodes while these are split, merged and moved. Made
// for the build in which threads pause on purpose (pm/pause.h; `make test-pauses`), and true in
// every other.
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/complaints.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

// Every `stable_each`-th key, in the order of keys, is there all the time; the others belong to one
// writer each, come in one wave and go in the next, so that the structure grows and shrinks around
// the keys that stay. A wave passes over the keys: all threads work within few neighbours at a
// time, in the same nodes.
class Waves {
 public:
  static constexpr uint64_t kKeys = 600;
  static constexpr uint64_t kWindow = 32;     // neighbours
  static constexpr uint64_t kStep = 16;       // of the window
  static constexpr uint64_t kEachStep = 120;  // operations, of all writers
  static constexpr uint64_t kWriters = 6;

  Waves(TypedIndex index, bool ordered, uint64_t stable_each, uint64_t waves, uint64_t seed)
      : index_(index),
        ordered_(ordered),
        stable_each_(stable_each),
        waves_(waves),
        seed_(seed),
        models_(kWriters) {
    std::map<std::string, uint64_t> sorted;
    for (uint64_t key = 0; key < kKeys; ++key) {
      sorted[order_of(make_key(index.any().key_kind(), key).datum())] = key;
    }
    for (const auto& [order, key] : sorted) {
      if (ranked_.size() % stable_each_ == 0) stable_[order] = key;
      ranked_.push_back(key);
    }
  }

  std::string run() {
    for (const auto& [order, key] : stable_) index_.insert(key, stable_value(key));
    std::vector<std::thread> writers;
    std::vector<std::thread> readers;
    for (uint64_t t = 0; t < kWriters; ++t) {
      writers.emplace_back([this, t] { complaints_.catch_in([&] { write(t); }); });
    }
    readers.emplace_back([this] { complaints_.catch_in([&] { look_up(); }); });
    for (uint64_t t = 0; t < 2; ++t) {
      readers.emplace_back(
          [this, t] { complaints_.catch_in([&] { ordered_ ? scan(t) : walk(); }); });
    }
    for (std::thread& writer : writers) writer.join();
    done_.store(true, std::memory_order_relaxed);
    for (std::thread& reader : readers) reader.join();
    return complaints_.text();
  }

  // What the structure holds at the end.
  Model model() const {
    Model all;
    for (const auto& [order, key] : stable_) all[key] = stable_value(key);
    for (const Model& of_writer : models_) all.insert(of_writer.begin(), of_writer.end());
    return all;
  }

 private:
  static uint64_t stable_value(uint64_t key) { return key * 3 + 1; }

  // Sorts as the structure's keys do.
  static std::string order_of(Datum key) {
    if (key.kind() == Kind::kBytes) return std::string(key.bytes());
    std::string text;
    for (int shift = 56; shift >= 0; shift -= 8) {
      text.push_back(static_cast<char>(key.word() >> shift));
    }
    return text;
  }

  // The number of a key in the window, with a chance, or of any key.
  uint64_t near_by(Random& random, uint64_t percent, uint64_t& rank) const {
    const uint64_t step = operations_.load(std::memory_order_relaxed) / kEachStep;
    rank = random.chance(percent) ? (step * kStep + random.below(kWindow)) % kKeys
                                  : random.below(kKeys);
    return ranked_[rank];
  }
  uint64_t own_key(uint64_t thread, Random& random, uint64_t percent) const {
    for (;;) {
      uint64_t rank = 0;
      const uint64_t key = near_by(random, percent, rank);
      if (rank % stable_each_ != 0 && rank % kWriters == thread) return key;
    }
  }

  void write(uint64_t thread) {
    Random random(seed_ + thread);
    for (;;) {
      const uint64_t step = operations_.fetch_add(1, std::memory_order_relaxed) / kEachStep;
      const uint64_t wave = step * kStep / kKeys;
      if (wave >= waves_) return;
      change(thread, random, wave % 2 == 0 ? 10 : 85);
      if (!random.chance(20)) continue;
      const uint64_t key = own_key(thread, random, 85);
      if (index_.lookup(key) != value_in(models_[thread], key)) {
        complaints_.add("its writer's lookup of key " + std::to_string(key) + " lied");
      }
    }
  }

  void change(uint64_t thread, Random& random, uint64_t removals_percent) {
    Model& model = models_[thread];
    const uint64_t key = own_key(thread, random, 85);
    const uint64_t value = random.next() >> 40;
    const bool present = model.contains(key);
    const std::string name = "key " + std::to_string(key);
    if (random.chance(removals_percent)) {
      if (index_.remove(key) != present) complaints_.add("the removal of " + name + " lied");
      model.erase(key);
    } else if (random.chance(30)) {
      index_.upsert(key, value);
      model[key] = value;
    } else if (random.chance(30)) {
      if (index_.update(key, value) != present) complaints_.add("the update of " + name + " lied");
      if (present) model[key] = value;
    } else {
      if (index_.insert(key, value) == present) complaints_.add("the insert of " + name + " lied");
      if (!present) model[key] = value;
    }
  }

  void look_up() {
    Random random(seed_ + 100);
    while (!done_.load(std::memory_order_relaxed)) {
      uint64_t rank = 0;
      near_by(random, 85, rank);
      const uint64_t key = ranked_[rank / stable_each_ * stable_each_];
      const auto found = index_.lookup(key);
      if (!found) complaints_.add("key " + std::to_string(key) + " was not found");
      if (found && *found != stable_value(key)) complaints_.add("a lookup returned a wrong value");
    }
  }

  // Whole, in order, up or down, and nothing twice.
  void scan(uint64_t thread) {
    Random random(seed_ + 200 + thread);
    while (!done_.load(std::memory_order_relaxed)) {
      uint64_t rank = 0;
      const Value from = make_key(index_.any().key_kind(), near_by(random, 70, rank));
      const uint64_t limit = 1 + random.below(random.chance(20) ? kKeys : 60);
      if (random.chance(50)) {
        check_scan(false, from.datum(), limit, stable_.lower_bound(order_of(from.datum())),
                   stable_.end());
      } else {
        check_scan(true, from.datum(), limit,
                   std::make_reverse_iterator(stable_.upper_bound(order_of(from.datum()))),
                   stable_.rend());
      }
    }
  }

  template <typename At>
  void check_scan(bool down, Datum from, uint64_t limit, At expected, At end) {
    const auto comes_before = [down](const std::string& a, const std::string& b) {
      return down ? b < a : a < b;
    };
    std::string last = order_of(from);
    uint64_t visits = 0;
    const auto visit = [&](Datum key, Datum value) {
      std::string order = order_of(key);
      if (comes_before(order, last) || (visits > 0 && order == last)) {
        complaints_.add("a scan visited a key twice, or out of order");
      }
      ++visits;
      for (; expected != end && comes_before(expected->first, order); ++expected) {
        complaints_.add("a scan left out key " + std::to_string(expected->second));
      }
      if (expected != end && expected->first == order) {
        if (value_number(value) != stable_value(expected->second)) {
          complaints_.add("a scan visited a wrong value");
        }
        ++expected;
      }
      last = std::move(order);
      return true;
    };
    if (down) {
      index_.any().scan_back(from, limit, visit);
    } else {
      index_.any().scan(from, limit, visit);
    }
    if (visits > limit) complaints_.add("a scan visited more than it was asked for");
    if (visits < limit && expected != end) complaints_.add("a scan ended early");
  }

  void walk() {
    while (!done_.load(std::memory_order_relaxed)) {
      std::map<uint64_t, uint32_t> seen;
      std::map<uint64_t, uint64_t> values;
      index_.for_each([&](uint64_t key, uint64_t value) {
        if (key == TypedIndex::kTorn || value == TypedIndex::kTorn) {
          complaints_.add("for_each visited a torn record");
        } else {
          ++seen[key];
          values[key] = value;
        }
      });
      for (const auto& [order, key] : stable_) {
        if (seen[key] == 1 && values[key] == stable_value(key)) continue;
        complaints_.add("for_each visited key " + std::to_string(key) + " " +
                        std::to_string(seen[key]) + " times, or with a wrong value");
      }
    }
  }

  TypedIndex index_;
  const bool ordered_;
  const uint64_t stable_each_;
  const uint64_t waves_;
  const uint64_t seed_;
  std::vector<uint64_t> ranked_;            // numbers of keys, in the order of keys
  std::map<std::string, uint64_t> stable_;  // those that stay
  std::atomic<uint64_t> operations_{0};
  std::vector<Model> models_;  // of each writer's keys
  std::atomic<bool> done_{false};
  Complaints complaints_;
};

class Pauses : public ScenarioTest {
 protected:
  void run_waves(uint64_t stable_each);
};

void Pauses::run_waves(uint64_t stable_each) {
  Store store = create_small(MiB(256));
  Waves waves(store.typed(), GetParam().entry().traits.ordered, stable_each, 2 * scaled(10),
              base_seed());
  EXPECT_EQ(waves.run(), "");
  EXPECT_EQ(difference(store.typed(), waves.model(), Waves::kKeys), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
  store.close();
  store = reopen(MiB(256));
  EXPECT_EQ(difference(store.typed(), waves.model(), Waves::kKeys), "");
  EXPECT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "");
}

TEST_P(Pauses, NothingIsLostOrToldTwiceWhileNodesComeAndGo) { run_waves(8); }

// Leaves, and the nodes over them, go as well: between two keys that stay there is room for many.
TEST_P(Pauses, NothingIsLostOrToldTwiceWhileWholeRangesComeAndGo) { run_waves(100); }

INSTANTIATE_TEST_SUITE_P(Catalog, Pauses, wanted(concurrent_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
