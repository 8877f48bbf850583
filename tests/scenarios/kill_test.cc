// SIGKILL at any moment while many threads write.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/child.h"
#include "support/scenario.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

// How often each case is killed: environment variable PERDURE_KILL_ROUNDS, or a few times.
uint64_t kill_rounds() {
  const char* text = std::getenv("PERDURE_KILL_ROUNDS");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  return std::max<uint64_t>(3, scaled(8));
}

class Kill : public ScenarioTest {
 protected:
  uint32_t threads() const { return concurrent() ? 3 : 1; }

  // Lets a child write until it has reported a random number of operations, and kills it. Brings
  // the model up to date with all that was told.
  std::vector<Operation> write_and_kill(const Workload& workload, uint64_t capacity_bytes) {
    Witness witness(workload, model_);
    Child child([&](int out) {
      const auto* store = new Store(reopen(capacity_bytes));  // never closed
      write_and_tell(store->typed(), workload, out);
    });
    // Short runs as often as long ones: from a handful of operations to many thousands.
    const uint64_t enough = random_.below(uint64_t{1} << (3 + random_.below(12)));
    while (witness.acknowledged() < enough && witness.receive(child)) {
    }
    child.kill();
    while (witness.receive(child)) {  // what it told before it died
    }
    EXPECT_EQ(child.wait(), -SIGKILL);
    EXPECT_EQ(witness.lies(), "");
    EXPECT_GE(witness.acknowledged(), enough);
    return witness.in_flight();
  }

  // Opens what the dead left, says what became of operations in flight, then what is wrong.
  std::string inspect(const Store& store, const std::vector<Operation>& in_flight) const {
    const std::string letters = fates(store.typed(), model_, in_flight);
    Model settled = model_;
    std::string wrong = settle(settled, in_flight, letters);
    wrong += difference(store.typed(), settled, keys_);
    wrong += faults_and_leaks(store.pool, {store.index.get()});
    return letters + wrong;
  }

  // Verifies after a kill, either in a process that is killed in its turn, before it closes the
  // pool, or in this one, which writes some more and closes cleanly.
  void verify(const std::vector<Operation>& in_flight, bool crash_again, uint64_t capacity_bytes) {
    Workload more{random_.next(), 1, keys_, next_value(100), 100};
    const auto judge = [&](const std::string& text) {
      const uint64_t count = std::min<uint64_t>(in_flight.size(), text.size());
      ASSERT_EQ(text.substr(count), "");
      ASSERT_EQ(settle(model_, in_flight, text.substr(0, count)), "");
    };
    if (crash_again) {
      judge(in_crashing_child([&] {
        return inspect(*new Store(reopen(capacity_bytes)), in_flight);  // never closed
      }));
      return;
    }
    Store store = reopen(capacity_bytes);
    EXPECT_FALSE(store.pool.info().clean);
    ASSERT_NO_FATAL_FAILURE(judge(inspect(store, in_flight)));
    OperationStream stream(more, 0);
    for (uint64_t i = 0; i < more.operations_max; ++i) {
      const Operation operation = stream.next();
      if (perform(store.typed(), operation) == Outcome::kFull) continue;
      const auto found = model_.find(operation.key);
      const auto now =
          after(operation, found == model_.end() ? std::nullopt : std::optional(found->second));
      model_.erase(operation.key);
      if (now) model_[operation.key] = *now;
    }
    ASSERT_EQ(difference(store.typed(), model_, keys_), "");
    ASSERT_EQ(faults(store.pool, {store.index.get()}), "");
    store.close();
  }

  void kill_and_verify(uint64_t round, uint64_t capacity_bytes) {
    const Workload workload{random_.next(), threads(), keys_, next_value(uint64_t{1} << 24)};
    std::vector<Operation> in_flight;
    ASSERT_NO_FATAL_FAILURE(in_flight = write_and_kill(workload, capacity_bytes));
    ASSERT_NO_FATAL_FAILURE(verify(in_flight, round % 2 == 0, capacity_bytes)) << "round " << round;
  }

  // Values that no operation has had yet, `count` of them.
  uint64_t next_value(uint64_t count) {
    value_ += count;
    return value_ - count;
  }

  uint64_t keys_ = 3000;  // the writers' keys are below this
  Model model_;

 private:
  uint64_t value_ = 1;
};

TEST_P(Kill, LosesNothingThatWasAcknowledged) {
  constexpr uint64_t kCapacityBytes = uint64_t{128} << 20;
  create_small(kCapacityBytes).close();
  for (uint64_t round = 0; round < kill_rounds(); ++round) {
    ASSERT_NO_FATAL_FAILURE(kill_and_verify(round, kCapacityBytes)) << "round " << round;
  }
}

TEST_P(Kill, LosesNothingWithTheStructuresOwnDefaults) {
  constexpr uint64_t kCapacityBytes = uint64_t{256} << 20;
  keys_ = 30'000;
  create_store(pool_path(), pool_options(kCapacityBytes), GetParam(), {}).close();
  for (uint64_t round = 0; round < (kill_rounds() + 1) / 2; ++round) {
    ASSERT_NO_FATAL_FAILURE(kill_and_verify(round, kCapacityBytes)) << "round " << round;
  }
}

TEST_P(Kill, LosesNothingWhileThePoolIsFull) {
  const uint64_t capacity_bytes = std::max(GetParam().entry().traits.capacity_bytes_min, MiB(4));
  keys_ = 600;
  {
    // Fill the pool with keys that nobody touches afterwards.
    Store store = create_small(capacity_bytes);
    for (uint64_t key = uint64_t{1} << 32;; ++key) {
      if (perform(store.typed(), {Verb::kInsert, key, key}) == Outcome::kFull) break;
      model_[key] = key;
    }
    ASSERT_GT(model_.size(), 100U);
    store.close();
  }
  for (uint64_t round = 0; round < (kill_rounds() + 1) / 2; ++round) {
    ASSERT_NO_FATAL_FAILURE(kill_and_verify(round, capacity_bytes)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, Kill, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
