// What the tests of stores share.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <string_view>

#include "perdure/store.h"

namespace perdure::test {

// A parameter of tests that run on several kinds of stores.
struct StoreCase {
  std::string name;
  StoreOptions options;
};
inline void PrintTo(const StoreCase& one, std::ostream* out) { *out << one.name; }
inline std::string name_of(const testing::TestParamInfo<StoreCase>& one) { return one.param.name; }

// A parameter of tests that run with each index.
inline std::string name_of_index(const testing::TestParamInfo<StoreIndex>& index) {
  switch (index.param) {
    case StoreIndex::kPm:
      return "Pm";
    case StoreIndex::kOrdered:
      return "Ordered";
    default:
      return "Hash";
  }
}

// Of a store in which a few hundred writes reach compaction, and growth of an index in PM.
inline StoreOptions tiny_store(StoreIndex index, uint32_t partitions) {
  StoreOptions options{.index = index, .partitions = partitions, .block_bytes = 1024};
  options.garbage_percent = 10;
  if (index == StoreIndex::kPm) {
    options.index_structure = "cceh:segment_buckets=16,initial_depth=1";
  }
  return options;
}

// A pool that grows in small steps, in domain `line`.
inline PoolOptions store_pool(uint64_t mebibytes) {
  PoolOptions options;
  options.capacity_bytes = mebibytes << 20;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = Domain::kLine;
  return options;
}

// The same for pools that are damaged: it is the store's own checksums that are to find it.
inline PoolOptions unsealed_store_pool(uint64_t mebibytes) {
  PoolOptions options = store_pool(mebibytes);
  options.seal_on_close = false;
  return options;
}

// What check() says, line by line.
inline std::string faults(const Store& store) {
  std::string text;
  store.check([&](const std::string& sentence) { text += sentence + "\n"; });
  return text;
}

// All records of a store or a snapshot, each of which must be told once.
template <typename Source>
std::map<std::string, std::string> content(const Source& source) {
  std::map<std::string, std::string> there;
  source.for_each([&](std::string_view key, std::string_view value) {
    EXPECT_TRUE(there.emplace(key, value).second) << "twice: " << key;
  });
  return there;
}

inline double figure(const Store& store, const std::string& name) {
  for (const Statistic& one : store.statistics()) {
    if (one.name == name) return one.value;
  }
  ADD_FAILURE() << name;
  return 0;
}

}  // namespace perdure::test
