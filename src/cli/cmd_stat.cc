// perdure stat: the figures of one structure and its pool.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/store.h"
#include "cli/terminal.h"

namespace perdure::cli {
namespace {

int run_stat(const Target& target) {
  const std::unique_ptr<Store> store = Store::open_to_read(target);
  const StructureInfo structure = store->structure();
  const std::vector<Statistic> statistics = store->index().statistics();
  const PoolInfo info = store->pool().info();
  if (target.json) {
    nlohmann::json object = {{"pool", pool_json(info)}, {"structure", structure_json(structure)}};
    object["structure"]["statistics"] = statistics_json(statistics);
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = {{"structure", structure.name},
                 {"type", structure.type},
                 {"keys", structure.key_kind},
                 {"values", structure.value_kind}};
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
  auto target = std::make_shared<Target>();
  CLI::App* command = add_command(app, "stat", "Show the figures of a structure and of its pool",
                                  "  perdure stat words.pool\n"
                                  "  perdure stat --name cities --json words.pool\n");
  add_target_options(*command, *target);
  command->callback([target, &action] { action = [target] { return run_stat(*target); }; });
}

}  // namespace perdure::cli
