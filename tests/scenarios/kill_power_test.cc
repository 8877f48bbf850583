// A process that dies leaves stores in the caches only, which the next one finds; then the power
// fails. Nothing that either acknowledged is lost, and no structure is damaged.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/failing_medium.h"
#include "support/scenario.h"

namespace perdure::test {
namespace {

class KillAndPowerFailure : public ScenarioTest {
 protected:
  using Value = std::optional<uint64_t>;  // none: the key is not there

  static PoolOptions forced() {
    PoolOptions options;
    options.capacity_bytes = uint64_t{16} << 20;
    options.growth_bytes = uint64_t{256} << 10;
    options.force_domain = true;
    options.domain = Domain::kLine;
    return options;
  }
  std::set<Value>& values_of(uint64_t key) {
    std::set<Value>& values = model_[key];
    if (values.empty()) values.insert(std::nullopt);
    return values;
  }

  void write(TypedIndex index, uint64_t operations, uint64_t insert_percent) {
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t key = random_.below(keys_);
      std::set<Value>& values = values_of(key);
      const std::set<Value> before = values;
      if (random_.chance(insert_percent)) {
        const uint64_t value = ++value_;
        values.insert(value);  // in case that it does not return
        index.upsert(key, value);
        values = {value};
      } else {
        values.insert(std::nullopt);
        // What a process that died had removed may be back after all.
        values = index.remove(key) ? std::set<Value>{std::nullopt} : before;
      }
    }
  }

  // Opens the pool and writes until the medium refuses a persist. False: it did not.
  bool write_until_refused(FailingMedium& medium, uint64_t persist, uint64_t operations,
                           uint64_t insert_percent) {
    medium.refuse_here(medium.persists() + persist, true);
    try {
      Store store = open_store(pool_path(), forced(), one_thread());
      write(store.typed(), operations, insert_percent);
      store.close();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    return medium.refused();
  }

  std::string differences(const Store& store) {
    std::string text = faults_and_leaks(store.pool, {store.index.get()});
    std::map<uint64_t, uint64_t> told;
    store.typed().for_each([&](uint64_t key, uint64_t value) {
      if (!told.emplace(key, value).second) text += "key " + std::to_string(key) + " twice\n";
    });
    for (uint64_t key = 0; key < keys_; ++key) {
      const Value found = store.typed().lookup(key);
      const auto at = told.find(key);
      const Value scanned = at == told.end() ? Value() : Value(at->second);
      if (found != scanned) text += "key " + std::to_string(key) + " differs in a scan\n";
      if (!values_of(key).contains(found))
        text += "key " + std::to_string(key) + " has what nobody wrote last\n";
    }
    return text;
  }

  std::map<uint64_t, std::set<Value>> model_;  // what each key may have
  uint64_t keys_ = 0;
  uint64_t value_ = 0;
};

TEST_P(KillAndPowerFailure, LosesNothing) {
  // Of a fault that was here one round in some hundreds told.
  const uint64_t rounds = scaled(200);
  for (uint64_t round = 0; round < rounds; ++round) {
    std::filesystem::remove(pool_path());
    model_.clear();
    keys_ = 20 + random_.below(150);
    FailingMedium medium(pool_path(), Domain::kLine);
    {
      OptionMap options = small_options(GetParam().structure);
      options.merge(one_thread());
      Store store = create_store(pool_path(), forced(), GetParam(), options);
      write(store.typed(), keys_ * 2, 60);
      write(store.typed(), random_.below(keys_), 20);
      store.close();
    }
    medium.begin();
    // Half of the crashes are soon after the opening.
    for (uint64_t deaths = 1 + random_.below(2); deaths > 0; --deaths)
      write_until_refused(medium, random_.below(random_.chance(50) ? 200 : 12), 60,
                          20 + random_.below(60));
    write_until_refused(medium, random_.below(random_.chance(50) ? 200 : 40), 80,
                        15 + random_.below(60));
    std::filesystem::rename(medium.make_image(FailingMedium::Image::kMixed, random_.next()),
                            pool_path());
    const Store store = open_store(pool_path(), {}, one_thread());
    ASSERT_EQ(differences(store), "") << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KillAndPowerFailure, wanted(all_cases()), by_turns());

}  // namespace
}  // namespace perdure::test
