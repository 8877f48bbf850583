// perdure stat: the figures of one structure and its pool.

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/block_cache.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct StatOptions {
  Target target;
  bool count = false;
};

// How many records there are. Most structures tell; those that keep older records of a key beside
// the newest do not know, and are counted if that is asked for.
std::optional<uint64_t> live_records(const AnyIndex& index,
                                     const std::vector<Statistic>& statistics, bool count) {
  if (count) {
    uint64_t records = 0;
    index.for_each([&records](Datum, Datum) { ++records; });
    return records;
  }
  for (const Statistic& statistic : statistics) {
    if (statistic.name == "records") return static_cast<uint64_t>(statistic.value);
  }
  return std::nullopt;
}

void print_facts(const Facts& pool, const Facts& structure) {
  const Palette palette(stdout);
  fmt::print("{}\n{}\n{}\n{}", palette.bold("Pool"), to_lines(pool), palette.bold("Structure"),
             to_lines(structure));
}

Facts structure_facts(const StructureInfo& structure, const std::string& live_records) {
  return {{"structure", structure.name},
          {"type", structure.type},
          {"keys", structure.key_kind},
          {"values", structure.value_kind},
          {"live records", live_records}};
}

// Beside a process that has the pool open for writing, which alone knows the figures of the
// structure.
int stat_beside_writer(const Target& target) {
  const PoolInspection found = Pool::inspect(target.pool);
  const auto structure = std::ranges::find(found.structures, target.name, &StructureInfo::name);
  if (structure == found.structures.end()) {
    throw Error(ErrorCode::kNoSuchName,
                fmt::format("{}: there is no structure named '{}'; `perdure pool info` lists what "
                            "there is",
                            target.pool, target.name));
  }
  if (target.json) {
    nlohmann::json object = {{"pool", inspection_json(found)},
                             {"structure", structure_json(*structure)}};
    object["structure"]["live_records"] = nullptr;
    object["structure"]["statistics"] = nullptr;
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = structure_facts(*structure, "not known here");
  facts.emplace_back("other figures",
                     "only the process that has the pool open knows them; a backup of it has them");
  print_facts(inspection_facts(found), facts);
  return kExitOk;
}

// Of a block cache: what the structure has no records of. Nothing: it is none, or cannot be read
// here.
std::optional<int> stat_block_cache(const Target& target) {
  std::optional<Pool> pool;
  try {
    pool.emplace(open_pool_to_read(target));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kLocked) return std::nullopt;
    throw;
  }
  const std::optional<StructureInfo> structure = find_structure(*pool, target.name);
  if (!structure || structure->type != BlockCache::kTypeName) return std::nullopt;
  const BlockCache cache = BlockCache::open(*pool, target.name);
  std::vector<Statistic> statistics = cache.statistics();
  // Of the time that it has been open, which is none.
  std::erase_if(statistics,
                [](const Statistic& each) { return each.unit.empty() && each.name != "blocks"; });
  PoolInfo info = pool->info();
  info.path = target.pool;
  if (target.json) {
    nlohmann::json object = {{"pool", pool_json(info)}, {"structure", structure_json(*structure)}};
    object["structure"]["live_records"] = nullptr;
    object["structure"]["statistics"] = statistics_json(statistics);
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = {{"structure", structure->name}, {"type", structure->type}};
  for (const Statistic& statistic : statistics)
    facts.emplace_back(statistic.name, figure_in_words(statistic));
  print_facts(pool_facts(info), facts);
  return kExitOk;
}

int run_stat(const StatOptions& options) {
  const Target& target = options.target;
  std::unique_ptr<OpenIndex> opened;
  try {
    opened = OpenIndex::open_to_read(target);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kWrongType) {
      if (const std::optional<int> done = stat_block_cache(target)) return *done;
    }
    if (error.code() != ErrorCode::kLocked || options.count || target.live) throw;
    return stat_beside_writer(target);
  }
  const StructureInfo structure = opened->structure();
  const std::vector<Statistic> statistics = opened->index().statistics();
  const std::optional<uint64_t> records = live_records(opened->index(), statistics, options.count);
  PoolInfo info = opened->pool().info();
  info.path = target.pool;  // whatever a copy is called
  if (target.json) {
    nlohmann::json object = {{"pool", pool_json(info)}, {"structure", structure_json(structure)}};
    object["structure"]["live_records"] = records ? nlohmann::json(*records) : nlohmann::json();
    object["structure"]["statistics"] = statistics_json(statistics);
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = structure_facts(
      structure, records ? format_count(*records) : "not known; --count goes through all of them");
  for (const Statistic& statistic : statistics) {
    facts.emplace_back(statistic.name, figure_in_words(statistic));
  }
  print_facts(pool_facts(info), facts);
  return kExitOk;
}

}  // namespace

void add_stat(CLI::App& app, Action& action) {
  auto options = std::make_shared<StatOptions>();
  CLI::App* command = add_command(app, "stat", "Show the figures of a structure and of its pool",
                                  "  perdure stat words.pool\n"
                                  "  perdure stat --name cities --json words.pool\n"
                                  "  perdure stat --count words.pool\n"
                                  "  perdure stat --live words.pool\n"
                                  "\nBeside a process that has the pool open for writing what only "
                                  "that one knows is left\nout, and said to be.\n");
  add_target_options(*command, options->target);
  add_reading_options(*command, options->target);
  command->add_flag(
      "--count", options->count,
      "Count the records one by one, where the structure does not know how many it has");
  command->callback([options, &action] { action = [options] { return run_stat(*options); }; });
}

}  // namespace perdure::cli
