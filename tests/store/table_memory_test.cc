// Memory of hash tables: zeros, whatever stood there before.
#include "store/table_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace perdure::test {
namespace {

constexpr uint64_t kWords = uint64_t{256} << 10 >> 3;
constexpr uint64_t kBytes = kWords * sizeof(uint64_t);

// Locked memory the system does not take back (mlock(2), mlockall(2)).
TEST(TableMemoryTest, IsZerosAgainWhereItWasLocked) {
  for (const bool locked : {false, true}) {
    uint64_t* before = nullptr;
    {
      const store::TableMemory table(kWords);
      before = table.get();
      if (locked && ::mlock(before, kBytes) != 0) GTEST_SKIP() << "no memory may be locked";
      std::fill_n(before, kWords, 7);
    }
    const store::TableMemory table(kWords);
    EXPECT_EQ(table.get(), before);  // else it tests nothing
    EXPECT_EQ(std::count(table.get(), table.get() + kWords, 0), kWords);
    if (locked) ::munlock(before, kBytes);
  }
}

}  // namespace
}  // namespace perdure::test
