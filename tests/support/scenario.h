// What all scenarios share: one case for each structure and each pair of key and value kinds that
// the catalogue says it supports.
//
//   class Reopen : public ScenarioTest {};
//   TEST_P(Reopen, KeepsEveryAcknowledgedInsert) { Store store = create_small(MiB(64)); ... }
//   INSTANTIATE_TEST_SUITE_P(Catalog, Reopen, testing::ValuesIn(all_cases()), case_name);
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <source_location>
#include <string>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/pool.h"
#include "support/data.h"
#include "support/files.h"
#include "support/random.h"
#include "support/scale.h"
#include "support/typed_index.h"

namespace perdure::test {

struct Case {
  std::string structure;
  Kind key;
  Kind value;

  const CatalogEntry& entry() const { return catalog_entry(structure); }
};

// "plush_u64_bytes": GoogleTest allows letters, digits and underscores.
std::string case_name(const testing::TestParamInfo<Case>& info);
// The same for a scenario that takes long: `make test` runs it over every fifth case, the others in
// other files, so that each case is in about a fifth of these scenarios. The names of those that it
// leaves to `make test-more` end in "_more".
std::function<std::string(const testing::TestParamInfo<Case>&)> by_turns(
    std::source_location where = std::source_location::current());
std::ostream& operator<<(std::ostream& out, const Case& c);

// All cases of the catalogue, or those whose structure has a capability.
std::vector<Case> all_cases();
std::vector<Case> concurrent_cases();
std::vector<Case> ordered_cases();
std::vector<Case> unordered_cases();

// For INSTANTIATE_TEST_SUITE_P: these cases. In a process that is to run the tests of one case, as
// CTest's do, only that case: making thousands of others takes longer than most tests.
testing::internal::ParamGenerator<Case> wanted(std::vector<Case> cases);

// Options that make a structure as small as it can be, so that a few thousand operations reach
// every level, migration, split and reuse of a log. Empty for structures not listed there.
OptionMap small_options(const std::string& structure);

// An open pool and one structure in it, closed in the right order.
struct Store {
  Pool pool;
  std::unique_ptr<AnyIndex> index;

  TypedIndex typed() const { return TypedIndex(*index); }
  // Closes both. Errors of closing the pool show, unlike in the destructor.
  void close() {
    index.reset();
    pool.close();
  }
};

inline constexpr char kIndexName[] = "index";

Store create_store(const std::string& path, const PoolOptions& pool_options, const Case& c,
                   const OptionMap& options);
Store open_store(const std::string& path, const PoolOptions& pool_options,
                 const OptionMap& options = {});

// What is wrong with a pool that nobody writes to: what its own check and those of `indexes`
// report, blocks that two structures claim, and blocks that lie outside the pool. In words; empty
// if nothing is wrong.
std::string faults(const Pool& pool, const std::vector<const AnyIndex*>& indexes);

// The same for a pool just opened, whose structures are all in `indexes`: also says if the pool has
// more or fewer bytes allocated than the structures own, which would be a leak.
std::string faults_and_leaks(const Pool& pool, const std::vector<const AnyIndex*>& indexes);

class ScenarioTest : public testing::TestWithParam<Case> {
 protected:
  ScenarioTest();

  static uint64_t MiB(uint64_t n) { return n << 20; }

  // Options of a pool on DRAM: flushes and fences as on persistent memory for half of the kinds,
  // none for the others.
  PoolOptions pool_options(uint64_t capacity_bytes) const;
  std::string pool_path() const { return dir_.file("pool"); }
  // A new pool at pool_path() with the case's structure, as small as it can be.
  Store create_small(uint64_t capacity_bytes) const;
  Store reopen(uint64_t capacity_bytes = uint64_t{64} << 20) const;

  Value key(uint64_t number) const { return make_key(GetParam().key, number); }
  Value value(uint64_t number) const { return make_value(GetParam().value, number); }
  // With these options a structure is opened by this thread alone, so that persists can be counted
  // and refused in their turn.
  static OptionMap one_thread();
  bool concurrent() const { return GetParam().entry().traits.concurrent; }

  TempDir dir_;
  Random random_;
};

}  // namespace perdure::test
