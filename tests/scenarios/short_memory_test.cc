// Memory that runs out while a structure is closed: at every allocation of its destructor. The
// process lives, and nothing is lost: the next opening does what the destructor could not.
#include "support/short_memory.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "support/child.h"
#include "support/scenario.h"

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

INSTANTIATE_TEST_SUITE_P(Catalog, ShortMemoryTest, wanted(all_cases()), case_name);

}  // namespace
}  // namespace perdure::test
