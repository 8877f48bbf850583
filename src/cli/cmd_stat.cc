// perdure stat: the figures of one structure and its pool.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "common/units.h"

namespace perdure::cli {
namespace {

struct StatOptions {
  Target target;
  bool count = false;
};

// How many records there are. Most structures tell; those that keep older records of a key beside the
// newest do not know, and are counted if that is asked for.
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

int run_stat(const StatOptions& options) {
  const Target& target = options.target;
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_read(target);
  const StructureInfo structure = opened->structure();
  const std::vector<Statistic> statistics = opened->index().statistics();
  const std::optional<uint64_t> records = live_records(opened->index(), statistics, options.count);
  const PoolInfo info = opened->pool().info();
  if (target.json) {
    nlohmann::json object = {{"pool", pool_json(info)}, {"structure", structure_json(structure)}};
    object["structure"]["live_records"] = records ? nlohmann::json(*records) : nlohmann::json();
    object["structure"]["statistics"] = statistics_json(statistics);
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = {{"structure", structure.name},
                 {"type", structure.type},
                 {"keys", structure.key_kind},
                 {"values", structure.value_kind},
                 {"live records", records ? format_count(*records)
                                          : "not known; --count goes through all of them"}};
  for (const Statistic& statistic : statistics) {
    facts.emplace_back(statistic.name, figure_in_words(statistic));
  }
  const Palette palette(stdout);
  fmt::print("{}\n{}\n{}\n{}", palette.bold("Pool"), to_lines(pool_facts(info)),
             palette.bold("Structure"), to_lines(facts));
  return kExitOk;
}

}  // namespace

void add_stat(CLI::App& app, Action& action) {
  auto options = std::make_shared<StatOptions>();
  CLI::App* command = add_command(app, "stat", "Show the figures of a structure and of its pool",
                                  "  perdure stat words.pool\n"
                                  "  perdure stat --name cities --json words.pool\n"
                                  "  perdure stat --count words.pool\n");
  add_target_options(*command, options->target);
  command->add_flag(
      "--count", options->count,
      "Count the records one by one, where the structure does not know how many it has");
  command->callback([options, &action] { action = [options] { return run_stat(*options); }; });
}

}  // namespace perdure::cli
