#include "cli/command.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {

void throw_cannot_write(const std::string& name, int reason) {
  if (reason == EPIPE) throw ClosedPipe();
  throw Error(ErrorCode::kIo, fmt::format("cannot write to {}: {}", name, std::strerror(reason)));
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& examples) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer("Examples:\n" + examples +
                  "\nExit codes: 0 ok, 1 key absent, 2 usage, 3 damage found, 4 other error, 130 "
                  "stopped by Ctrl-C, "
                  "141 the reader of the output went away.");
  return command;
}

void add_json_flag(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print the result as JSON");
}

CLI::Option* as_list(CLI::Option* option) {
  return option->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->capture_default_str();
}

void add_folder_option(CLI::App& command, std::string& folder, const std::string& help,
                       const std::string& group) {
  command.add_option("--folder", folder, help)->capture_default_str()->group(group);
  for (const char* earlier : {"--dir", "--path"}) command.add_option(earlier, folder)->group("");
}

void add_pool_options(CLI::App& command, std::string& folder, std::string& capacity,
                      const std::string& group) {
  add_folder_option(command, folder, "For the pools, which are removed", group);
  command
      .add_option("--capacity", capacity,
                  "Of each pool (default: eight times the raw bytes, 64M at least)")
      ->group(group);
}

void add_target_options(CLI::App& command, Target& target) {
  command.add_option("POOL", target.pool, "The pool file")->required();
  command.add_option("--name", target.name, "The structure in the pool")->capture_default_str();
  command
      .add_option("--domain", target.domain,
                  "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
  add_json_flag(command, target.json);
}

void add_reading_options(CLI::App& command, Target& target) {
  command.add_flag(
      "--live", target.live,
      "While another process has the pool open to write: read a copy in memory, of one "
      "instant, that it makes");
  add_copy_option(command, target);
}

void add_copy_option(CLI::App& command, Target& target) {
  command.add_option(
      "--copy-max", target.copy_max,
      "Most memory for a copy that has to be read, such as 10G (default: half of what "
      "is free)");
}

void add_creation_options(CLI::App& command, Creation& creation) {
  const std::string group = "Making what is missing";
  command
      .add_option("--capacity", creation.capacity,
                  "Size that a new pool may grow to, such as 64M or 10G")
      ->each([&creation](const std::string&) { creation.capacity_given = true; })
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--structure", creation.structure,
          "Type of a new structure (default: rstore, or plush where keys or values are u64)")
      ->group(group);
  command.add_option("--key-kind", creation.key_kind, "u64 or bytes (default: bytes)")
      ->check(CLI::IsMember({"u64", "bytes"}))
      ->group(group);
  command.add_option("--value-kind", creation.value_kind, "u64 or bytes (default: bytes)")
      ->check(CLI::IsMember({"u64", "bytes"}))
      ->group(group);
  command
      .add_option("--option", creation.options,
                  "NAME=VALUE, an option of the structure; may be repeated; see `perdure list`")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--durability", creation.durability,
                  "What an operation must survive: process, power, or best, which is the strongest "
                  "without a system call for each")
      ->check(CLI::IsMember({"best", "process", "power"}))
      ->capture_default_str();
}

OptionMap parse_structure_options(const std::vector<std::string>& lines) {
  OptionMap options;
  for (const std::string& line : lines) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--option \"{}\": write it as NAME=VALUE", line));
    }
    options[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return options;
}

PoolOptions pool_options_for(const Target& target, const Creation& creation) {
  PoolOptions options;
  options.capacity_bytes = parse_bytes(creation.capacity);
  options.reserve_bytes =
      creation.reserve == "all" ? options.capacity_bytes : parse_bytes(creation.reserve);
  options.durability = parse_durability(creation.durability);
  options.serve_backups = true;
  if (!target.domain.empty()) {
    options.force_domain = true;
    options.domain = parse_domain(target.domain);
  }
  return options;
}

PoolOptions reading_options_for(const Target& target) {
  PoolOptions options;
  options.read_only = true;
  if (!target.copy_max.empty()) options.copy_bytes_max = parse_bytes(target.copy_max);
  if (!target.domain.empty()) {
    options.force_domain = true;
    options.domain = parse_domain(target.domain);
  }
  return options;
}

}  // namespace perdure::cli
