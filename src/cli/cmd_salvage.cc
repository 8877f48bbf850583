// perdure pool salvage: what is readable of a damaged pool.

#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/salvage.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/error.h"
#include "pm/file.h"

namespace perdure::cli {
namespace {

struct SalvageCommandOptions {
  Target target;  // `name` is not used
  std::string to;
  std::string capacity;                 // empty: as the damaged pool's
  std::vector<std::string> page_files;  // of databases in it
  std::vector<std::string> log_files;   // the same
};

void print_json(const SalvageCommandOptions& options, const SalvageReport& report) {
  nlohmann::json structures = nlohmann::json::array();
  for (const SalvagedStructure& one : report.structures) {
    structures.push_back({{"name", one.info.name},
                          {"type", one.info.type},
                          {"records", one.records},
                          {"unreadable", one.unreadable},
                          {"complete", one.complete},
                          {"lost", one.lost}});
    if (!one.page_file.empty()) structures.back()["pages"] = one.page_file;
    if (!one.log_file.empty()) structures.back()["log_file"] = one.log_file;
  }
  const nlohmann::json object = {{"from", options.target.pool},
                                 {"to", options.to},
                                 {"complete", report.is_complete()},
                                 {"structures", structures},
                                 {"problems", report.problems}};
  // What is quoted from a damaged pool may be anything.
  fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_text(const SalvageReport& report) {
  const Palette palette(stdout);
  for (const std::string& problem : report.problems)
    fmt::print("{} {}\n", palette.bad("*"), problem);
  for (const SalvagedStructure& one : report.structures) {
    const bool whole = one.complete && one.unreadable == 0;
    fmt::print("{} ({}): {} copied", one.info.name, one.info.type,
               format_counted(one.records, "record"));
    if (one.unreadable > 0) fmt::print(", {} lost", format_count(one.unreadable));
    if (!one.complete) fmt::print(", {}", palette.bad("and others, how many is not known"));
    fmt::print("{}\n", whole ? "" : ":");
    if (!one.page_file.empty()) fmt::print("  its pages are in {}\n", one.page_file);
    if (!one.log_file.empty()) fmt::print("  its log is in {}\n", one.log_file);
    for (const std::string& reason : one.lost) fmt::print("  {} {}\n", palette.bad("*"), reason);
  }
  fmt::print("{}\n", report.is_complete()
                         ? palette.good("all that the pool is known to hold was copied")
                         : palette.bad("not all could be copied; keep the damaged file"));
}

int run_salvage(const SalvageCommandOptions& options) {
  Creation creation;
  creation.capacity = options.capacity;
  PoolOptions pool_options;
  pool_options.capacity_bytes = options.capacity.empty() ? salvage_capacity(options.target.pool)
                                                         : parse_bytes(options.capacity);
  if (std::filesystem::exists(options.to)) {
    throw Error(ErrorCode::kExists,
                fmt::format("{} is there already; what is saved goes to a new pool", options.to));
  }
  // It gets its name when it is complete: what a killed command leaves must not look like all that
  // there was.
  std::random_device random;
  const std::string unfinished =
      fmt::format("{}.{:08x}{:08x}.unfinished", options.to, random(), random());
  const DatabaseFiles files{options.page_files, options.log_files, options.to};
  SalvageReport report;
  try {
    Pool to = Pool::create(unfinished, pool_options);
    ProgressBar bar("records");
    report = salvage_pool(options.target.pool, to, files, bar.sink());
    to.close();
    pm::rename_to_new(unfinished, options.to);
    pm::sync_parent_of(options.to);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    for (const SalvagedStructure& one : report.structures) {
      if (!one.page_file.empty()) std::filesystem::remove(one.page_file, ignored);
      if (!one.log_file.empty()) std::filesystem::remove(one.log_file, ignored);
    }
    throw;
  }
  if (options.target.json) {
    print_json(options, report);
  } else {
    print_text(report);
  }
  return report.is_complete() ? kExitOk : kExitDamage;
}

}  // namespace

void add_pool_salvage(CLI::App& pool, Action& action) {
  auto options = std::make_shared<SalvageCommandOptions>();
  CLI::App* command = add_command(
      pool, "salvage",
      "Copy what is readable of a damaged pool to a new one, and name what is lost",
      "  perdure pool salvage damaged.pool saved.pool\n"
      "  perdure pool salvage --pages bank.pages bank.pool saved.pool\n"
      "\nThe damaged pool is not modified. Structures are made anew with default options, "
      "versions\n"
      "and expiry are not kept. Exit code 3 if anything could not be read. A changed word in a\n"
      "structure of words from words may be read as it is: only byte strings have checksums.\n"
      "Of a database each tree is read page by page; where its pages are in a file of their\n"
      "own, the new one's are in NEW.NAME.pages. Give the page files of all databases of the\n"
      "pool, in any order: page 0 of each says whose it is. One whose page 0 is damaged is\n"
      "taken only for the one database that is left without a file, and it is said.\n"
      "The same with --log-file, where logs are in files: without its log file a database is\n"
      "read as its pages are, without the last commits, and it is said.\n");
  command->add_option("POOL", options->target.pool, "The damaged pool file")->required();
  command->add_option("NEW", options->to, "The pool file to make")->required();
  command->add_option("--capacity", options->capacity,
                      "Size that it may grow to (default: as the damaged pool)");
  command
      ->add_option("--pages", options->page_files,
                   "The page file of a database in it, which is not modified; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command
      ->add_option("--log-file", options->log_files,
                   "The log file of a database in it, which is not modified; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  add_json_flag(*command, options->target.json);
  command->callback([options, &action] { action = [options] { return run_salvage(*options); }; });
}

}  // namespace perdure::cli
