// perdure list: the catalogue of structures.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/catalog.h"

namespace perdure::cli {
namespace {

std::string kinds_in_words(const Traits& traits) {
  std::string text;
  for (const auto& [key, value] : traits.kinds) {
    text += fmt::format("{}{} -> {}", text.empty() ? "" : ", ", to_string(key), to_string(value));
  }
  return text;
}

void print_entry(const CatalogEntry& entry) {
  const Palette palette(stdout);
  fmt::print("{}  {}\n", palette.bold(entry.name), entry.family);
  const Traits& traits = entry.traits;
  const Facts facts = {{"  paper", entry.paper},
                       {"  records", kinds_in_words(traits)},
                       {"  ordered", traits.ordered ? "yes: scan works" : "no"},
                       {"  concurrent", traits.concurrent ? "yes" : "no: one thread at a time"},
                       {"  DRAM use", to_string(traits.dram)},
                       {"  longest key", format_bytes(traits.key_bytes_max)},
                       {"  longest value", format_bytes(traits.value_bytes_max)},
                       {"  least capacity", format_bytes(traits.capacity_bytes_min)}};
  fmt::print("{}", to_lines(facts));
  Facts options;
  for (const OptionInfo& option : entry.options) {
    options.emplace_back("    " + option.name,
                         fmt::format("{} (default: {})", option.help, option.default_text));
  }
  if (!options.empty()) fmt::print("  options, for --option NAME=VALUE:\n{}", to_lines(options));
}

nlohmann::json entry_json(const CatalogEntry& entry) {
  nlohmann::json kinds = nlohmann::json::array();
  for (const auto& [key, value] : entry.traits.kinds) {
    kinds.push_back({{"key_kind", to_string(key)}, {"value_kind", to_string(value)}});
  }
  nlohmann::json options = nlohmann::json::array();
  for (const OptionInfo& option : entry.options) {
    options.push_back(
        {{"name", option.name}, {"default", option.default_text}, {"help", option.help}});
  }
  return {{"name", entry.name},
          {"family", entry.family},
          {"paper", entry.paper},
          {"ordered", entry.traits.ordered},
          {"concurrent", entry.traits.concurrent},
          {"dram", to_string(entry.traits.dram)},
          {"kinds", kinds},
          {"key_bytes_max", entry.traits.key_bytes_max},
          {"value_bytes_max", entry.traits.value_bytes_max},
          {"capacity_bytes_min", entry.traits.capacity_bytes_min},
          {"options", options}};
}

int run_list(bool json) {
  if (json) {
    nlohmann::json entries = nlohmann::json::array();
    for (const CatalogEntry& entry : catalog()) entries.push_back(entry_json(entry));
    fmt::print("{}\n", entries.dump(2));
    return kExitOk;
  }
  bool first = true;
  for (const CatalogEntry& entry : catalog()) {
    if (!std::exchange(first, false)) fmt::print("\n");
    print_entry(entry);
  }
  return kExitOk;
}

}  // namespace

void add_list(CLI::App& app, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      add_command(app, "list", "Show the structures there are, what they can do, their options",
                  "  perdure list\n"
                  "  perdure list --json\n");
  add_json_flag(*command, *json);
  command->callback([json, &action] { action = [json] { return run_list(*json); }; });
}

}  // namespace perdure::cli
