// Memory that runs out. While a structure is closed: at every allocation of its destructor. The
// process lives, and nothing is lost: the next opening does what the destructor could not. In an
// operation, at any of its allocations: it happens wholly or not at all, and whatever comes
// afterwards finds the structure as it is to be.
#include "support/short_memory.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "support/child.h"
#include "support/scenario.h"
#include "support/workload.h"

namespace perdure::test {
namespace {

constexpr uint64_t kKeysOfShortMemory = 400;
constexpr uint64_t kSeldom = 40;  // allocations that are refused one by one; of those behind, few

class ShortMemoryTest : public ScenarioTest {
 protected:
  // Writes so that there is something to do at the end: nodes come and go, and values change.
  static void write(Store& store, Model& model, uint64_t round) {
    for (uint64_t key = 0; key < kKeysOfShortMemory; ++key) {
      store.typed().upsert(key, key + round);
      model[key] = key + round;
    }
    for (uint64_t key = round; key < kKeysOfShortMemory; key += 2) {
      store.typed().remove(key);
      model.erase(key);
    }
  }

  // In a child: closes with so few allocations left. Sets `refused`.
  std::string close_and_look(uint64_t allocations, bool& refused) {
    Model model;
    Store store = create_small(MiB(32));
    write(store, model, 0);
    {
      ShortMemory memory(allocations);
      store.index.reset();
      memory.end();
      refused = memory.refused() > 0;
    }
    store.pool.close();
    std::string wrong;
    for (uint64_t round = 1; round < 3; ++round) {
      store = reopen(MiB(32));
      wrong += difference(store.typed(), model, kKeysOfShortMemory);
      wrong += faults_and_leaks(store.pool, {store.index.get()});
      write(store, model, round);
      store.close();
    }
    return wrong;
  }
};

TEST_P(ShortMemoryTest, ADestructorThatFindsNoMemoryLosesNothing) {
  const std::string refused_path = dir_.file("refused");
  for (uint64_t allocations = 0;; allocations += 1 + allocations / kSeldom * 7) {
    std::filesystem::remove(pool_path());
    std::filesystem::remove(refused_path);
    const std::string wrong = in_crashing_child([&] {
      bool refused = false;
      std::string text = close_and_look(allocations, refused);
      if (refused) write_file(refused_path, "");
      return text;
    });
    ASSERT_EQ(wrong, "") << "with memory for " << allocations << " allocations";
    if (!std::filesystem::exists(refused_path)) break;
  }
}

// Operations that may find no memory, and what each key has after them.
class ShortOfMemory {
 public:
  ShortOfMemory(const Case& c, uint64_t seed) : case_(c), random_(seed) {}

  uint64_t refused() const { return refused_; }
  const Model& model() const { return model_; }

  // Carries out operations of which more are removals in every second round. Returns what is wrong.
  std::string write(const Store& store, uint64_t round, uint64_t operations) {
    const uint64_t removals = round % 2 == 0 ? 20 : 65;
    std::string wrong;
    for (uint64_t i = 0; i < operations && wrong.empty(); ++i) {
      const uint64_t key = random_.below(kKeysOfShortMemory);
      const Verb verb = random_.chance(removals) ? Verb::kRemove
                        : random_.chance(50)     ? Verb::kUpsert
                        : random_.chance(50)     ? Verb::kInsert
                                                 : Verb::kUpdate;
      wrong = write_one(store, {verb, key, ++value_});
    }
    return wrong;
  }

 private:
  static bool perform(AnyIndex& index, Verb verb, const Value& key, const Value& value) {
    if (verb == Verb::kInsert) return index.insert(key.datum(), value.datum());
    if (verb == Verb::kUpdate) return index.update(key.datum(), value.datum());
    if (verb == Verb::kRemove) return index.remove(key.datum());
    return index.upsert(key.datum(), value.datum()), true;
  }

  std::string write_one(const Store& store, const Operation& operation) {
    const auto at = model_.find(operation.key);
    const std::optional<uint64_t> before =
        at == model_.end() ? std::nullopt : std::optional(at->second);
    const bool applies =
        operation.verb == Verb::kUpsert || (operation.verb == Verb::kInsert) != before.has_value();
    std::optional<uint64_t> now = applies ? after(operation, before) : before;
    const Value key = make_key(case_.key, operation.key);
    const Value value = make_value(case_.value, operation.value);
    const std::string name = "operation " + std::to_string(static_cast<uint32_t>(operation.verb)) +
                             " of key " + std::to_string(operation.key);
    ShortMemory memory(random_.below(random_.chance(50) ? 3 : 30));
    bool done = false;
    bool thrown = false;
    try {
      done = perform(*store.index, operation.verb, key, value);
    } catch (const std::bad_alloc&) {
      thrown = true;
    } catch (const Error& error) {
      memory.end();
      return name + " throws: " + error.what();
    }
    memory.end();
    refused_ += memory.refused() > 0 ? 1 : 0;
    if (!thrown && done != applies) return name + " returns another thing than it has done";
    if (thrown) {
      const std::optional<uint64_t> found = store.typed().lookup(operation.key);
      if (found != before && found != now) return name + " has left what nobody wrote";
      now = found;
    }
    model_.erase(operation.key);
    if (now) model_[operation.key] = *now;
    return {};
  }

  Case case_;
  Random random_;
  Model model_;
  uint64_t value_ = 0;
  uint64_t refused_ = 0;
};

TEST_P(ShortMemoryTest, AnOperationThatFindsNoMemoryHappensOrDoesNot) {
  const std::string wrong = in_crashing_child([&] {
    ShortOfMemory writer(GetParam(), base_seed());
    Store store = create_small(MiB(32));
    std::string text;
    for (uint64_t round = 0; round < 6 && text.empty(); ++round) {
      text = writer.write(store, round, scaled(1500));
      if (text.empty()) text = difference(store.typed(), writer.model(), kKeysOfShortMemory);
      if (text.empty()) text = faults(store.pool, {store.index.get()});
      if (text.empty() && round % 2 == 1) {
        store.close();
        store = reopen(MiB(32));
        text = difference(store.typed(), writer.model(), kKeysOfShortMemory);
        text += faults_and_leaks(store.pool, {store.index.get()});
      }
    }
    return text;
  });
  EXPECT_EQ(wrong, "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, ShortMemoryTest, wanted(all_cases()), case_name);

}  // namespace
}  // namespace perdure::test
