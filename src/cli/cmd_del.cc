// perdure del: remove records.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/open_index.h"
#include "cli/text.h"

namespace perdure::cli {
namespace {

struct DelOptions {
  Target target;
  std::vector<std::string> keys;
};

int run_del(const DelOptions& options) {
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_write(options.target);
  // All keys are read before the first is removed: a key that is no number removes nothing.
  std::vector<Value> keys(options.keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    parse_datum(options.keys[i], opened->index().key_kind(), keys[i]);
  }
  nlohmann::json absent = nlohmann::json::array();
  for (const Value& key : keys) {
    if (opened->index().remove(key.datum())) continue;
    nlohmann::json object = nlohmann::json::object();
    set_json(object, "key", key.datum());
    absent.push_back(object);
    if (!options.target.json) {
      fmt::print(stderr, "perdure: key \"{}\" is absent\n", to_text(key.datum()));
    }
  }
  opened->close();
  if (options.target.json) {
    const nlohmann::json object = {{"removed", keys.size() - absent.size()}, {"absent", absent}};
    fmt::print("{}\n", object.dump());
  }
  return absent.empty() ? kExitOk : kExitAbsent;
}

}  // namespace

void add_del(CLI::App& app, Action& action) {
  auto options = std::make_shared<DelOptions>();
  CLI::App* command =
      add_command(app, "del", "Remove keys, durably; exit 1 if any of them is absent",
                  "  perdure del words.pool perdure\n"
                  "  perdure del --name cities words.pool Oslo Bergen\n");
  add_target_options(*command, options->target);
  command->add_option("KEY", options->keys, "The keys")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  command->callback([options, &action] { action = [options] { return run_del(*options); }; });
}

}  // namespace perdure::cli
