// perdure drop | rename: structures of a pool as a whole.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/open_index.h"
#include "common/units.h"
#include "perdure/catalog.h"

namespace perdure::cli {
namespace {

struct DropCommandOptions {
  Target target;  // `name` is not used
  std::vector<std::string> names;
};

struct RenameCommandOptions {
  Target target;
  std::string from;
  std::string to;
};

// What `perdure load` notes beside a structure.
std::string progress_of(const std::string& name) { return name + ".progress"; }

int run_drop(const DropCommandOptions& options) {
  Pool pool = Pool::open(options.target.pool, pool_options_for(options.target, {}));
  // All names, before the first structure goes.
  for (const std::string& name : options.names) {
    if (!find_structure(pool, name)) drop_structure(pool, name);  // throws
  }
  nlohmann::json dropped = nlohmann::json::array();
  for (const std::string& name : options.names) {
    uint64_t freed_bytes = drop_structure(pool, name);
    if (find_structure(pool, progress_of(name)))
      freed_bytes += drop_structure(pool, progress_of(name));
    if (options.target.json) {
      dropped.push_back({{"structure", name}, {"freed_bytes", freed_bytes}});
    } else {
      fmt::print("dropped \"{}\": {} freed\n", name, format_bytes(freed_bytes));
    }
  }
  pool.close();
  if (options.target.json) fmt::print("{}\n", nlohmann::json({{"dropped", dropped}}).dump());
  return kExitOk;
}

int run_rename(const RenameCommandOptions& options) {
  Pool pool = Pool::open(options.target.pool, pool_options_for(options.target, {}));
  pool.rename(options.from, options.to);
  if (find_structure(pool, progress_of(options.from)) &&
      !find_structure(pool, progress_of(options.to))) {
    pool.rename(progress_of(options.from), progress_of(options.to));
  }
  pool.close();
  if (options.target.json) {
    fmt::print("{}\n", nlohmann::json({{"from", options.from}, {"to", options.to}}).dump());
  }
  return kExitOk;
}

void add_pool_and_domain(CLI::App& command, Target& target) {
  command.add_option("POOL", target.pool, "The pool file")->required();
  command
      .add_option("--domain", target.domain,
                  "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
  add_json_flag(command, target.json);
}

}  // namespace

void add_drop(CLI::App& app, Action& action) {
  auto options = std::make_shared<DropCommandOptions>();
  CLI::App* command = add_command(
      app, "drop", "Remove structures from a pool, with all that they hold",
      "  perdure drop words.pool old\n"
      "  perdure drop words.pool old older\n"
      "\nTheir space is used again by what the pool holds else; `perdure pool shrink` makes the "
      "file\n"
      "shorter. Each goes at once: a crash leaves all of it or nothing, and what it has left to "
      "free\n"
      "is freed when the pool is opened again. What `perdure load` noted beside it goes too.\n");
  add_pool_and_domain(*command, options->target);
  command->add_option("NAME", options->names, "The structures")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  command->callback([options, &action] { action = [options] { return run_drop(*options); }; });
}

void add_rename(CLI::App& app, Action& action) {
  auto options = std::make_shared<RenameCommandOptions>();
  CLI::App* command = add_command(app, "rename", "Give a structure of a pool another name",
                                  "  perdure rename words.pool main english\n");
  add_pool_and_domain(*command, options->target);
  command->add_option("FROM", options->from, "The name it has")->required();
  command->add_option("TO", options->to, "The name it gets; no structure has it")->required();
  command->callback([options, &action] { action = [options] { return run_rename(*options); }; });
}

}  // namespace perdure::cli
