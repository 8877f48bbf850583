#include "support/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <string_view>

#include "index/owned_blocks.h"
#include "index/presets.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::test {

namespace {

constexpr std::string_view kMore = "_more";
constexpr std::ptrdiff_t kTurns = 5;  // see by_turns()

// Of a structure that stands in the catalogue with its locks in DRAM ("+vl"), which stands alone.
bool is_reference(const CatalogEntry& entry) {
  return std::ranges::any_of(
      catalog(), [&](const CatalogEntry& other) { return other.name == entry.name + "+vl"; });
}

// Variants differ from their structure in a policy of how records are written, not in how kinds are
// stored (the store's indexes are no such variants): they run with words, and one of each family
// with byte strings, too. Words with byte strings take the way of byte strings in every structure,
// behind one of three typed faces: they run with one structure of each. PERDURE_ALL_KINDS=1 runs
// everything.
bool worth_running(const CatalogEntry& entry, Kind key, Kind value) {
  static const bool all = std::getenv("PERDURE_ALL_KINDS") != nullptr;
  if (all) return true;
  const bool stands_alone = entry.name == "rstore+ordered" || entry.name == "rstore+pm" ||
                            entry.name == "p-art+vl" || entry.name == "p-masstree+vl" ||
                            entry.name == "p-hot+vl";
  const bool variant = (entry.name.find('+') != std::string::npos && !stands_alone) ||
                       entry.name == "art-cow" || is_reference(entry);  // of one core
  // Where every access costs many times more, kinds are taken in turn; the rest runs without.
  if (kUnderThreadSanitizer || kUnderAddressSanitizer || (kWithAssertions && !kWithPauses)) {
    const Kind kind = kUnderThreadSanitizer ? Kind::kU64 : Kind::kBytes;
    return !variant && key == value &&
           (key == kind || entry.name == catalog().front().name || entry.traits.kinds.size() == 1);
  }
  if (key != value) {
    return entry.name == "plush" || entry.name == "plush+range" || entry.name == "cceh" ||
           entry.name == "fptree";
  }
  const bool with_bytes = !variant || entry.name == "p-clht+fc+ve+xs" || entry.name == "level+rb" ||
                          entry.name == "fast-fair+rb+xs";
  return key == Kind::kU64 || with_bytes;
}

std::vector<Case> cases_with(const std::function<bool(const Traits&)>& capability) {
  std::vector<Case> cases;
  for (const CatalogEntry& entry : catalog()) {
    if (!capability(entry.traits)) continue;
    for (const auto& [key, value] : entry.traits.kinds) {
      if (worth_running(entry, key, value)) cases.push_back({entry.name, key, value});
    }
  }
  return cases;
}

struct Block {
  uint64_t offset;
  uint64_t bytes;
};

// Those of the indexes, and of the pool's log of transactions.
std::vector<Block> owned_blocks(const Pool& pool, const std::vector<const AnyIndex*>& indexes) {
  std::vector<Block> blocks;
  pm::impl_of(pool).visit_blocks(
      [&](uint64_t offset, uint64_t bytes) { blocks.push_back({offset, bytes}); });
  for (const AnyIndex* index : indexes) {
    index::visit_blocks_of(
        *index, [&](uint64_t offset, uint64_t bytes) { blocks.push_back({offset, bytes}); });
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.offset < b.offset; });
  return blocks;
}

}  // namespace

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.structure) {
    if (c == '+') {
      name += "_plus";
    } else {
      name += c == '-' ? '_' : c;
    }
  }
  return name + "_" + to_string(info.param.key) + "_" + to_string(info.param.value);
}

std::function<std::string(const testing::TestParamInfo<Case>&)> by_turns(
    std::source_location where) {
  const std::string file = std::filesystem::path(where.file_name()).filename();
  const auto turn = std::accumulate(file.begin(), file.end(), std::ptrdiff_t{0});
  return [turn](const testing::TestParamInfo<Case>& info) {
    static const std::vector<Case> cases = all_cases();
    const auto place = std::find_if(cases.begin(), cases.end(), [&](const Case& c) {
      return c.structure == info.param.structure && c.key == info.param.key &&
             c.value == info.param.value;
    });
    const bool more = (place - cases.begin() + turn) % kTurns != 0;
    return case_name(info) + std::string(more ? kMore : "");
  };
}

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.structure << " from " << to_string(c.key) << " to " << to_string(c.value);
}

std::vector<Case> all_cases() {
  return cases_with([](const Traits&) { return true; });
}
std::vector<Case> concurrent_cases() {
  return cases_with([](const Traits& traits) { return traits.concurrent; });
}
std::vector<Case> ordered_cases() {
  return cases_with([](const Traits& traits) { return traits.ordered; });
}
std::vector<Case> unordered_cases() {
  return cases_with([](const Traits& traits) { return !traits.ordered; });
}

testing::internal::ParamGenerator<Case> wanted(std::vector<Case> cases) {
  // Before main(): from where the arguments stand. "--gtest_filter=Catalog/Kill.*/plush_u64_u64"
  static const std::string only = [] {
    std::ifstream in("/proc/self/cmdline");
    for (std::string argument; std::getline(in, argument, '\0');) {
      if (!argument.starts_with("--gtest_filter=Catalog/")) continue;
      argument.erase(0, argument.rfind('/') + 1);
      if (argument.find_first_of("*?:-.") != std::string::npos) continue;
      if (argument.ends_with(kMore)) argument.resize(argument.size() - kMore.size());
      return argument;
    }
    return std::string();
  }();
  if (!only.empty()) {
    std::erase_if(cases, [&](const Case& c) { return case_name({c, 0}) != only; });
  }
  return testing::ValuesIn(cases);
}

OptionMap small_options(const std::string& structure) {
  return index::presets_of(structure).small_options;
}

Store create_store(const std::string& path, const PoolOptions& pool_options, const Case& c,
                   const OptionMap& options) {
  Store store{Pool::create(path, pool_options), nullptr};
  store.index = create_index(store.pool, kIndexName, c.structure, c.key, c.value, options);
  return store;
}

Store open_store(const std::string& path, const PoolOptions& pool_options,
                 const OptionMap& options) {
  Store store{Pool::open(path, pool_options), nullptr};
  store.index = open_index(store.pool, kIndexName, options);
  return store;
}

std::string faults(const Pool& pool, const std::vector<const AnyIndex*>& indexes) {
  std::ostringstream text;
  uint64_t reported = 0;
  const auto report = [&](const std::string& sentence) {
    if (++reported <= 10) text << sentence << '\n';
  };
  uint64_t violations = pool.check(report);
  for (const AnyIndex* index : indexes) violations += index->check(report);
  if (violations != reported) {
    text << "check returned " << violations << " but reported " << reported << " violations\n";
  }
  uint64_t end_of_last = 0;
  for (const Block& block : owned_blocks(pool, indexes)) {
    if (block.offset < end_of_last) {
      text << "the block at " << block.offset << " overlaps the one that ends at " << end_of_last
           << '\n';
    }
    end_of_last = std::max(end_of_last, block.offset + block.bytes);
  }
  const uint64_t capacity_bytes = pool.info().capacity_bytes;
  if (end_of_last > capacity_bytes) {
    text << "a block ends at " << end_of_last << ", past the capacity " << capacity_bytes << '\n';
  }
  return text.str();
}

std::string faults_and_leaks(const Pool& pool, const std::vector<const AnyIndex*>& indexes) {
  uint64_t owned_bytes = 0;
  for (const Block& block : owned_blocks(pool, indexes)) owned_bytes += block.bytes;
  const uint64_t allocated_bytes = pool.info().allocated_bytes;
  std::string text = faults(pool, indexes);
  if (owned_bytes != allocated_bytes) {
    text += "the pool has " + std::to_string(allocated_bytes) +
            " bytes allocated, its structures own " + std::to_string(owned_bytes) + "\n";
  }
  return text;
}

ScenarioTest::ScenarioTest() : random_(base_seed()) {}

PoolOptions ScenarioTest::pool_options(uint64_t capacity_bytes) const {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = GetParam().key == GetParam().value ? Domain::kLine : Domain::kByte;
  return options;
}

Store ScenarioTest::create_small(uint64_t capacity_bytes) const {
  return create_store(pool_path(), pool_options(capacity_bytes), GetParam(),
                      small_options(GetParam().structure));
}

Store ScenarioTest::reopen(uint64_t capacity_bytes) const {
  return open_store(pool_path(), pool_options(capacity_bytes));
}

OptionMap ScenarioTest::one_thread() {
  for (const OptionInfo& option : GetParam().entry().options) {
    if (option.name == "recovery_threads") return {{option.name, "1"}};
  }
  return {};
}

}  // namespace perdure::test
