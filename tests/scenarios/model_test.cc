// Random operations, against a std::map.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/property.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

constexpr uint64_t kKeysOfSteps = 24;
constexpr uint64_t kBurst = 160;  // how many keys one fill or drain goes over, at most
constexpr uint64_t kUniverse = kKeysOfSteps + kBurst;

enum class Action : uint8_t {
  kInsert,
  kUpdate,
  kUpsert,
  kRemove,
  kLookup,
  kExchange,  // compare with what is there, or with something else, and write
  kRemoveIf,  // compare, and remove
  kFill,      // upsert many keys in a row
  kDrain,     // remove many keys in a row
  kReopen,    // close cleanly and open
  kCompare,   // everything with the model
};

struct Step {
  Action action;
  uint64_t key;
  uint64_t value;  // of a burst: how many keys
};

std::ostream& operator<<(std::ostream& out, const Step& step) {
  static const char* const kNames[] = {"insert", "update",   "upsert",    "remove",
                                       "lookup", "exchange", "remove_if", "fill",
                                       "drain",  "reopen",   "compare"};
  return out << kNames[static_cast<int>(step.action)] << ' ' << step.key << ' ' << step.value;
}

rc::Gen<Step> any_step() {
  const auto action = rc::gen::weightedElement<Action>({{6, Action::kUpsert},
                                                        {4, Action::kInsert},
                                                        {4, Action::kUpdate},
                                                        {4, Action::kRemove},
                                                        {3, Action::kLookup},
                                                        {3, Action::kExchange},
                                                        {2, Action::kRemoveIf},
                                                        {3, Action::kFill},
                                                        {2, Action::kDrain},
                                                        {1, Action::kReopen},
                                                        {1, Action::kCompare}});
  return rc::gen::construct<Step>(action, rc::gen::inRange<uint64_t>(0, kKeysOfSteps),
                                  rc::gen::inRange<uint64_t>(0, 1 << 20));
}

std::string verdict(bool right, const char* call, uint64_t key) {
  return right ? std::string() : std::string(call) + " of key " + std::to_string(key) + " lied\n";
}

// Performs one operation on both. Returns what disagrees, in words.
std::string apply(Action action, uint64_t key, uint64_t value, TypedIndex index, Model& model) {
  const auto before = value_in(model, key);
  const uint64_t expected = value % 4 != 0 && before ? *before : value + 1;
  switch (action) {
    case Action::kInsert:
      if (!before) model[key] = value;
      return verdict(index.insert(key, value) == !before, "insert", key);
    case Action::kUpdate:
      if (before) model[key] = value;
      return verdict(index.update(key, value) == before.has_value(), "update", key);
    case Action::kRemove:
      model.erase(key);
      return verdict(index.remove(key) == before.has_value(), "remove", key);
    case Action::kLookup:
      return verdict(index.lookup(key) == before, "lookup", key);
    case Action::kExchange:
      if (before == expected) model[key] = value;
      return verdict(index.compare_exchange(key, expected, value) == (before == expected),
                     "compare_exchange", key);
    case Action::kRemoveIf:
      if (before == expected) model.erase(key);
      return verdict(index.compare_remove(key, expected) == (before == expected), "compare_remove",
                     key);
    default:
      model[key] = value;
      index.upsert(key, value);
      return {};
  }
}

class ModelTest : public ScenarioTest {
 protected:
  std::string perform(const Step& step, Store& store, Model& model) {
    switch (step.action) {
      case Action::kFill:
      case Action::kDrain: {
        const bool fill = step.action == Action::kFill;
        for (uint64_t i = 0; i < step.value % kBurst; ++i) {
          const std::string wrong = apply(fill ? Action::kUpsert : Action::kRemove, step.key + i,
                                          step.value + i, store.typed(), model);
          if (!wrong.empty()) return wrong;
        }
        return {};
      }
      case Action::kReopen:
        store.close();
        store = reopen();
        return {};
      case Action::kCompare:
        return difference(store.typed(), model, kUniverse);
      default:
        return apply(step.action, step.key, step.value, store.typed(), model);
    }
  }
};

class RandomOperations : public ModelTest {};

TEST_P(RandomOperations, AgreesOnEveryShortSequence) {
  expect_property(100, 300, [this] {
    const auto steps = *rc::gen::container<std::vector<Step>>(any_step());
    std::remove(pool_path().c_str());
    Store store = create_small(MiB(64));
    Model model;
    for (const Step& step : steps) {
      const std::string wrong = perform(step, store, model);
      if (!wrong.empty()) RC_FAIL(wrong);
    }
    const std::string wrong =
        difference(store.typed(), model, kUniverse) + faults(store.pool, {store.index.get()});
    if (!wrong.empty()) RC_FAIL(wrong);
    RC_TAG(steps.size() / 100);
  });
}

TEST_P(RandomOperations, AgreesOnALongSequence) {
  constexpr uint64_t kKeys = 3000;
  const uint64_t operations = scaled(200'000);
  Store store = create_small(MiB(256));
  Model model;
  for (uint64_t i = 0; i < operations; ++i) {
    // Half of the operations go to a hundredth of the keys, so that both many records of one key
    // and many keys are there.
    const uint64_t key = random_.below(random_.chance(50) ? kKeys / 100 : kKeys);
    const auto action = static_cast<Action>(random_.below(7));
    ASSERT_EQ(apply(action, key, i, store.typed(), model), "") << "operation " << i;
    if (i % (operations / 8) == operations / 16) {
      ASSERT_EQ(difference(store.typed(), model, kKeys), "") << "operation " << i;
      ASSERT_EQ(faults(store.pool, {store.index.get()}), "") << "operation " << i;
      store.close();
      store = reopen();
      ASSERT_EQ(faults_and_leaks(store.pool, {store.index.get()}), "") << "operation " << i;
    }
  }
  EXPECT_EQ(difference(store.typed(), model, kKeys), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

TEST_P(RandomOperations, AgreesWithTheStructuresOwnDefaults) {
  constexpr uint64_t kKeys = 20'000;
  Store store = create_store(pool_path(), pool_options(MiB(256)), GetParam(), {});
  Model model;
  for (uint64_t i = 0; i < scaled(100'000); ++i) {
    const auto action = static_cast<Action>(random_.below(7));
    ASSERT_EQ(apply(action, random_.below(kKeys), i, store.typed(), model), "")
        << "operation " << i;
  }
  EXPECT_EQ(difference(store.typed(), model, kKeys), "");
  EXPECT_EQ(faults(store.pool, {store.index.get()}), "");
}

INSTANTIATE_TEST_SUITE_P(Catalog, RandomOperations, wanted(all_cases()), by_turns());

// Ordered structures also scan.
class OrderedModel : public ModelTest {
 protected:
  // The model's records as scan() should tell them: by key, in the order of the keys themselves.
  static std::vector<std::pair<uint64_t, uint64_t>> in_order(const Model& model, Kind kind) {
    std::vector<std::pair<uint64_t, uint64_t>> records(model.begin(), model.end());
    std::sort(records.begin(), records.end(), [kind](const auto& a, const auto& b) {
      const Value left = make_key(kind, a.first);
      const Value right = make_key(kind, b.first);
      return kind == Kind::kU64 ? left.word() < right.word() : left.bytes() < right.bytes();
    });
    return records;
  }

  // Compares scan(from, limit), or scan_back(), ended by its visitor after `visits`, with the
  // model.
  static std::string scan_difference(TypedIndex index, const Model& model, uint64_t from,
                                     uint64_t limit, uint64_t visits, bool down) {
    const Kind kind = index.any().key_kind();
    const Value first = make_key(kind, from);
    auto expected = in_order(model, kind);
    if (down) std::ranges::reverse(expected);
    std::erase_if(expected, [&](const auto& record) {
      const Value key = make_key(kind, record.first);
      const Value& low = down ? first : key;
      const Value& high = down ? key : first;
      return kind == Kind::kU64 ? low.word() < high.word() : low.bytes() < high.bytes();
    });
    expected.resize(std::min<uint64_t>(expected.size(), std::min(limit, visits)));
    std::vector<std::pair<uint64_t, uint64_t>> found;
    const auto visit = [&](Datum key, Datum value) {
      found.emplace_back(key_number(key).value_or(TypedIndex::kTorn),
                         value_number(value).value_or(TypedIndex::kTorn));
      return found.size() < visits;
    };
    if (down) {
      index.any().scan_back(first.datum(), limit, visit);
    } else {
      index.any().scan(first.datum(), limit, visit);
    }
    if (found == expected) return {};
    return std::string(down ? "scan back" : "scan") + " from key " + std::to_string(from) + ", " +
           std::to_string(limit) + " records: found " + std::to_string(found.size()) +
           ", expected " + std::to_string(expected.size()) + ", or others, or in another order\n";
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OrderedModel);

TEST_P(OrderedModel, ScansWhatTheModelHas) {
  expect_property(60, 200, [this] {
    const auto steps = *rc::gen::container<std::vector<Step>>(any_step());
    std::remove(pool_path().c_str());
    Store store = create_small(MiB(64));
    Model model;
    for (const Step& step : steps) {
      std::string wrong = perform(step, store, model);
      if (step.action == Action::kCompare) {
        for (const bool down : {false, true}) {
          wrong +=
              scan_difference(store.typed(), model, step.key, step.value % 100, 1 + step.key, down);
        }
      }
      if (!wrong.empty()) RC_FAIL(wrong);
    }
    const std::string wrong =
        scan_difference(store.typed(), model, 0, ~uint64_t{0}, ~uint64_t{0}, false) +
        scan_difference(store.typed(), model, kUniverse / 2, ~uint64_t{0}, ~uint64_t{0}, true);
    if (!wrong.empty()) RC_FAIL(wrong);
  });
}

INSTANTIATE_TEST_SUITE_P(Catalog, OrderedModel, wanted(ordered_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
