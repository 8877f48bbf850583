// perdure pool backup | restore: a pool as a file that is verified when it is read back.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct BackupCommandOptions {
  Target target;  // `name` is not used
  std::string file;
  std::string base;
};

struct RestoreCommandOptions {
  Target target;
  std::string file;
  std::vector<std::string> bases;
};

// Read-only: recovery runs on a private copy, and other readers may have the pool open. Who has it
// open to write makes the backup himself.
BackupReport make_backup(const BackupCommandOptions& options, const BackupOptions& backup) {
  try {
    return Pool::open(options.target.pool, reading_options_for(options.target))
        .backup(options.file, backup);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLocked) throw;
  }
  return Pool::backup_live(options.target.pool, options.file, backup);
}

int run_backup(const BackupCommandOptions& options) {
  ProgressBar bar("bytes");
  BackupOptions backup{.base = options.base, .progress = {}};
  if (bar.visible()) {
    backup.progress = [&bar](uint64_t done, uint64_t total) {
      bar.show({.phase = "back up",
                .items = done,
                .fraction = static_cast<double>(done) / static_cast<double>(total),
                .detail = {}});
    };
  }
  const BackupReport report = make_backup(options, backup);
  bar.clear();
  if (options.target.json) {
    const nlohmann::json object = {{"pool", options.target.pool},
                                   {"file", options.file},
                                   {"pool_bytes", report.pool_bytes},
                                   {"copied_bytes", report.copied_bytes},
                                   {"written_bytes", report.written_bytes},
                                   {"seconds", static_cast<double>(report.elapsed_ns) / 1e9}};
    fmt::print("{}\n", object.dump());
    return kExitOk;
  }
  fmt::print("{}: {} of {} in use, {} written in {:.2f} s\n", options.file,
             format_bytes(report.copied_bytes), format_bytes(report.pool_bytes),
             format_bytes(report.written_bytes), static_cast<double>(report.elapsed_ns) / 1e9);
  return kExitOk;
}

int run_restore(const RestoreCommandOptions& options) {
  Pool::restore(options.file, options.target.pool, options.bases);
  if (options.target.json) {
    fmt::print("{}\n",
               nlohmann::json({{"file", options.file}, {"pool", options.target.pool}}).dump());
  } else {
    fmt::print("{}: restored from {}; opening it recovers, as after a crash\n", options.target.pool,
               options.file);
  }
  return kExitOk;
}

}  // namespace

void add_pool_backup(CLI::App& pool, Action& action) {
  auto backup = std::make_shared<BackupCommandOptions>();
  CLI::App* command = add_command(
      pool, "backup", "Copy a pool to a file that `perdure pool restore` reads",
      "  perdure pool backup words.pool monday.backup\n"
      "  perdure pool backup --base monday.backup words.pool tuesday.backup\n"
      "\nOnly what is in use is copied; with --base only segments that have changed since that\n"
      "backup, which restoring then needs as well. A backup of this name is replaced once the new\n"
      "one is whole. A process that has the pool open to write makes the backup itself, and goes "
      "on, if\n"
      "it opened the pool to do so (PoolOptions::serve_backups): commands of perdure do.\n");
  command->add_option("POOL", backup->target.pool, "The pool file")->required();
  command->add_option("FILE", backup->file, "The backup to write")->required();
  command->add_option("--base", backup->base, "An earlier backup of the pool to rest on");
  add_copy_option(*command, backup->target);
  add_json_flag(*command, backup->target.json);
  command->callback([backup, &action] { action = [backup] { return run_backup(*backup); }; });

  auto restore = std::make_shared<RestoreCommandOptions>();
  command =
      add_command(pool, "restore", "Make a pool of a backup, and verify all of it",
                  "  perdure pool restore monday.backup words.pool\n"
                  "  perdure pool restore --base /old/monday.backup tuesday.backup words.pool\n"
                  "\nWhat a backup rests on is looked for beside it, under the name that it had. A "
                  "backup that\n"
                  "was cut off or changed is refused, with exit code 3, and no pool is left.\n");
  command->add_option("FILE", restore->file, "The backup")->required();
  command->add_option("POOL", restore->target.pool, "The pool file to make")->required();
  command->add_option("--base", restore->bases, "Where a backup that this one rests on is")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  add_json_flag(*command, restore->target.json);
  command->callback([restore, &action] { action = [restore] { return run_restore(*restore); }; });
}

}  // namespace perdure::cli
