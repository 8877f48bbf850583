// perdure store check | stat | backup | restore: what only the key-value engine has.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/error.h"
#include "perdure/store.h"
#include "pm/file.h"

namespace perdure::cli {
namespace {

struct StoreCommandOptions {
  Target target;
  std::string file;
  std::string since;
  std::string consumer;
  std::vector<std::string> files;
  Creation creation;
};

int check_store(const StoreCommandOptions& options) {
  Pool pool = Pool::open(options.target.pool, reading_options_for(options.target));
  std::vector<std::string> problems;
  const StoreVerification met =
      Store::verify(pool, options.target.name,
                    [&](const std::string& sentence) { problems.push_back(sentence); });
  if (options.target.json) {
    const nlohmann::json object = {{"pool", options.target.pool}, {"store", options.target.name},
                                   {"sound", problems.empty()},   {"partitions", met.partitions},
                                   {"blocks", met.blocks},        {"long_values", met.long_values},
                                   {"log_records", met.records},  {"log_bytes", met.record_bytes},
                                   {"problems", problems}};
    fmt::print("{}\n", object.dump(2));
    return problems.empty() ? kExitOk : kExitDamage;
  }
  const Palette palette(stdout);
  for (const std::string& problem : problems) fmt::print("{} {}\n", palette.bad("*"), problem);
  const std::string read = fmt::format(
      "{} in {}, {}, {}", format_counted(met.records, "log record"),
      format_counted(met.blocks, "block"), format_counted(met.long_values, "long value"),
      format_counted(met.partitions, "partition"));
  if (problems.empty()) {
    fmt::print("{}: {} ({}, and the index)\n", options.target.pool, palette.good("sound"), read);
    return kExitOk;
  }
  fmt::print("{}: {}, {} found ({} were read); keep the file, and restore from a backup\n",
             options.target.pool, palette.bad("damaged"),
             format_counted(problems.size(), "problem"), read);
  return kExitDamage;
}

int stat_store(const StoreCommandOptions& options) {
  Pool pool = Pool::open(options.target.pool, reading_options_for(options.target));
  const Store store = Store::open(pool, options.target.name);
  const std::vector<Statistic> statistics = store.statistics();
  if (options.target.json) {
    const nlohmann::json object = {{"pool", pool_json(pool.info())},
                                   {"store", options.target.name},
                                   {"statistics", statistics_json(statistics)}};
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  Facts facts = {{"store", options.target.name}};
  for (const Statistic& statistic : statistics) {
    facts.emplace_back(statistic.name, figure_in_words(statistic));
  }
  fmt::print("{}", to_lines(facts));
  return kExitOk;
}

// Opened to read if it can be: then nothing is changed. It is opened to write with a consumer,
// which is moved on; after a crash, since only that makes durable what there is; and if others
// could not go on from the backup else.
enum class Opened : uint8_t { kToRead, kToReadOnlyForABase, kToWrite };

StoreBackup make_backup(const StoreCommandOptions& options, Opened opened) {
  const bool writes = opened == Opened::kToWrite;
  const bool keeps = !options.consumer.empty();
  Pool pool = Pool::open(options.target.pool, writes ? pool_options_for(options.target, {})
                                                     : reading_options_for(options.target));
  StoreBackup made;
  {
    // Without a consumer all of the log that is there can be read.
    Store store =
        Store::open(pool, options.target.name, {.changes_bytes = keeps ? 0 : ~uint64_t{0}});
    if (opened == Opened::kToReadOnlyForABase && !store.can_back_up_since()) {
      throw Error(ErrorCode::kReadOnly, "the backup is to be noted in the pool");
    }
    const std::vector<std::string> consumers = store.consumers();
    const bool is_there = std::ranges::find(consumers, options.consumer) != consumers.end();
    if (keeps && !is_there) store.add_consumer(options.consumer);
    try {
      made = store.backup(options.file, options.since);
    } catch (...) {
      // It would keep all of the log.
      if (keeps && !is_there) store.remove_consumer(options.consumer);
      throw;
    }
    for (uint32_t i = 0; keeps && i < store.partitions(); ++i) {
      store.acknowledge(options.consumer, i, made.positions[i]);
    }
  }
  if (writes) pool.close();
  return made;
}

// Who has the pool open to write makes the backup himself.
StoreBackup make_backup(const StoreCommandOptions& options) {
  try {
    if (!options.consumer.empty()) return make_backup(options, Opened::kToWrite);
    try {
      return make_backup(options, Opened::kToReadOnlyForABase);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kReadOnly) throw;
    }
    try {
      return make_backup(options, Opened::kToWrite);
    } catch (const Error& error) {
      // Who may only read it, or beside others who do: a backup from which none goes on, if it was
      // closed.
      const ErrorCode code = error.code();
      if (code != ErrorCode::kReadOnly && code != ErrorCode::kPermission &&
          code != ErrorCode::kLocked) {
        throw;
      }
    }
    return make_backup(options, Opened::kToRead);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLocked) throw;
  }
  return Store::backup_live(options.target.pool, options.target.name, options.file, options.since,
                            options.consumer);
}

int backup_store(const StoreCommandOptions& options) {
  const StoreBackup made = make_backup(options);
  if (options.target.json) {
    const nlohmann::json object = {{"file", options.file},
                                   {"whole", options.since.empty()},
                                   {"entries", made.entries},
                                   {"bytes", made.bytes}};
    fmt::print("{}\n", object.dump(2));
  } else {
    fmt::print("{}: {}, {}\n", options.file,
               format_counted(made.entries, options.since.empty() ? "record" : "change"),
               format_bytes(made.bytes));
  }
  return kExitOk;
}

int restore_store(const StoreCommandOptions& options) {
  const std::string& path = options.target.pool;
  if (std::filesystem::exists(path)) {
    throw Error(ErrorCode::kExists,
                fmt::format("{} is there already; a backup is restored to a new pool", path));
  }
  // It gets its name when it is complete. Until then it has one of its own, whoever else restores.
  std::random_device random;
  const std::string unfinished =
      fmt::format("{}.{:08x}{:08x}.unfinished", path, random(), random());
  uint64_t records = 0;
  try {
    Pool pool = Pool::create(unfinished, pool_options_for(options.target, options.creation));
    records = Store::restore(pool, options.target.name, options.files).size();
    pool.close();
    pm::rename_to_new(unfinished, path);
    pm::sync_parent_of(path);
  } catch (...) {
    std::filesystem::remove(unfinished);
    throw;
  }
  if (options.target.json) {
    fmt::print("{}\n", nlohmann::json{{"pool", path}, {"records", records}}.dump(2));
  } else {
    fmt::print("{}: {}\n", path, format_counted(records, "record"));
  }
  return kExitOk;
}

using Run = int (*)(const StoreCommandOptions&);

CLI::App* add_store_command(CLI::App& store, const std::shared_ptr<StoreCommandOptions>& options,
                            Action& action, const char* name, const char* description,
                            const char* examples, Run run) {
  CLI::App* command = add_command(store, name, description, examples);
  command->callback([options, &action, run] { action = [options, run] { return run(*options); }; });
  return command;
}

}  // namespace

void add_store(CLI::App& app, Action& action) {
  auto options = std::make_shared<StoreCommandOptions>();
  CLI::App* store =
      add_command(app, "store", "Look after a key-value store: rstore, rstore+ordered, rstore+pm",
                  "  perdure store check words.pool || echo damaged\n"
                  "  perdure store stat words.pool\n"
                  "  perdure store backup words.pool monday.backup\n"
                  "  perdure store restore again.pool monday.backup\n"
                  "\n`perdure put` and `perdure load` make one; --structure chooses its index: "
                  "rstore (by hash, in\nDRAM), rstore+ordered (in DRAM, for scans), rstore+pm "
                  "(by hash, in PM).\n");
  store->require_subcommand(1);
  CLI::App* check = add_store_command(*store, options, action, "check",
                                      "Verify blocks, log records and index; name what is wrong",
                                      "  perdure store check words.pool\n"
                                      "\nModifies nothing. Goes on behind what is damaged: each "
                                      "damaged block, record and long value "
                                      "is named.\nExit code 3 when damage is found.\n",
                                      check_store);
  add_target_options(*check, options->target);
  CLI::App* stat =
      add_store_command(*store, options, action, "stat", "Records, blocks, compaction, DRAM",
                        "  perdure store stat words.pool\n", stat_store);
  add_target_options(*stat, options->target);
  CLI::App* backup = add_store_command(
      *store, options, action, "backup", "Write the store, or what has changed, to a file",
      "  perdure store backup words.pool monday.backup --consumer nightly\n"
      "  perdure store backup words.pool tuesday.backup --since monday.backup --consumer nightly\n"
      "\nThe file gets its name when it is complete. --consumer has the store keep what it writes "
      "from "
      "now on until\nthe next backup by this name, over all openings; without, --since works as "
      "far as "
      "the log happens to go back.\nA process that has the store open, such as `perdure serve`, "
      "makes "
      "the backup itself, and goes on.\n",
      backup_store);
  add_target_options(*backup, options->target);
  backup
      ->add_option(
          "FILE", options->file,
          "The file to write; a backup that is there is replaced when the new one is complete")
      ->required();
  backup->add_option("--since", options->since, "Only what was written after this backup");
  backup->add_option("--consumer", options->consumer,
                     "Keep the log for the next backup by this name; made if it is not there");
  CLI::App* restore = add_store_command(
      *store, options, action, "restore", "Make a pool with a store of backups",
      "  perdure store restore again.pool monday.backup tuesday.backup\n"
      "\nA whole backup first, then those since, in order. All are verified before anything is "
      "written.\n",
      restore_store);
  add_target_options(*restore, options->target);
  restore->add_option("FILE", options->files, "Backups")->required();
  restore
      ->add_option("--capacity", options->creation.capacity,
                   "Size that the pool may grow to, such as 64M or 10G")
      ->capture_default_str();
}

}  // namespace perdure::cli
