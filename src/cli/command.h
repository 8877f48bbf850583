// What all subcommands of `perdure` share: exit codes, how they are added to the command line, and
// the options that several of them have.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::cli {

// The exit codes of the command; `perdure --help` lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitAbsent = 1,         // the key is absent (put --insert: present)
  kExitUsage = 2,          // the command line makes no sense
  kExitDamage = 3,         // the pool is damaged, or a verification failed
  kExitError = 4,          // any other error; standard error says which
  kExitInterrupted = 130,  // stopped by Ctrl-C
  kExitClosedPipe = 141    // the reader of standard output went away, as `head` does
};

// Standard output or a file could not be written, for this reason (an errno). A pipe whose reader
// has gone ends the command without words, with kExitClosedPipe; anything else is Error(kIo).
[[noreturn]] void throw_cannot_write(const std::string& name, int reason);
struct ClosedPipe {};

// What main() runs once the command line was understood. Returns the exit code.
using Action = std::function<int()>;

// Each adds one subcommand, which sets `action` when it is chosen.
void add_put(CLI::App& app, Action& action);
void add_get(CLI::App& app, Action& action);
void add_del(CLI::App& app, Action& action);
void add_load(CLI::App& app, Action& action);
void add_dump(CLI::App& app, Action& action);
void add_scan(CLI::App& app, Action& action);
void add_count(CLI::App& app, Action& action);
void add_stat(CLI::App& app, Action& action);
void add_pool(CLI::App& app, Action& action);
void add_pool_backup(CLI::App& pool, Action& action);  // to `perdure pool`
void add_pool_compact(CLI::App& pool, Action& action);
void add_pool_salvage(CLI::App& pool, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_drop(CLI::App& app, Action& action);
void add_rename(CLI::App& app, Action& action);
void add_files(CLI::App& app, Action& action);
void add_db(CLI::App& app, Action& action);
void add_store(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_quickstart(CLI::App& app, Action& action);
void add_list(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

// A subcommand with a description and examples (one a line), and `--json`.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& examples);
void add_json_flag(CLI::App& command, bool& json);

// An option that takes a list, such as 1,2,4, or is repeated; its help shows the default.
CLI::Option* as_list(CLI::Option* option);

// --folder, where a command makes its files, with `help`. Earlier names of it, --dir and --path,
// are understood as well, and not shown.
void add_folder_option(CLI::App& command, std::string& folder, const std::string& help,
                       const std::string& group);

// Of commands that make pools for themselves and remove them.
void add_pool_options(CLI::App& command, std::string& folder, std::string& capacity,
                      const std::string& group);

// Which structure of which pool.
struct Target {
  std::string pool;
  std::string name = "main";
  std::string domain;  // empty: as detected
  bool json = false;
  // Of commands that read.
  bool live = false;     // beside a writer: from a copy that it makes
  std::string copy_max;  // empty: PoolOptions::copy_bytes_max by default
};

// Adds POOL, --name, --domain and --json.
void add_target_options(CLI::App& command, Target& target);

// Adds --live and --copy-max, or --copy-max alone.
void add_reading_options(CLI::App& command, Target& target);
void add_copy_option(CLI::App& command, Target& target);

// How to make a pool and a structure that are not there yet; empty: the default, or, for one that
// is there, whatever it has.
struct Creation {
  std::string capacity = "1G";
  bool capacity_given = false;
  std::string reserve = "0";
  std::string structure;
  std::string key_kind;
  std::string value_kind;
  std::string durability = "best";
  std::vector<std::string> options;  // "name=value"
};

// Adds --capacity, --structure, --key-kind, --value-kind, --durability and --option.
void add_creation_options(CLI::App& command, Creation& creation);

// "name=value" lines as a map. Throws Error(kInvalidArgument) on lines of another form.
OptionMap parse_structure_options(const std::vector<std::string>& lines);

// Opening options from --capacity, --durability and --domain.
PoolOptions pool_options_for(const Target& target, const Creation& creation);
PoolOptions reading_options_for(const Target& target);

}  // namespace perdure::cli
