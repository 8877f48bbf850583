// perdure pool create | info | check | grow | shrink: pools as a whole. More of them in
// cmd_backup.cc.

#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/pool_check.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct PoolCommandOptions {
  Target target;  // `name` is not used
  Creation creation;
};

void add_pool_argument(CLI::App& command, Target& target) {
  command.add_option("POOL", target.pool, "The pool file")->required();
  add_json_flag(command, target.json);
}

void add_domain_option(CLI::App& command, Target& target) {
  command
      .add_option("--domain", target.domain,
                  "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
}

void print_pool(nlohmann::json object, Facts facts, const std::vector<StructureInfo>& structures,
                bool json) {
  if (json) {
    object["structures"] = nlohmann::json::array();
    for (const StructureInfo& structure : structures) {
      object["structures"].push_back(structure_json(structure));
    }
    fmt::print("{}\n", object.dump(2));
    return;
  }
  for (const StructureInfo& structure : structures) {
    facts.emplace_back("structure", fmt::format("{}: {}, {} -> {}", structure.name, structure.type,
                                                structure.key_kind, structure.value_kind));
  }
  if (structures.empty()) facts.emplace_back("structures", "none");
  fmt::print("{}", to_lines(facts));
}

void print_pool(const Pool& pool, bool json) {
  const PoolInfo info = pool.info();
  print_pool(pool_json(info), pool_facts(info), pool.structures(), json);
}

void print_pool(const PoolInspection& found, bool json) {
  print_pool(inspection_json(found), inspection_facts(found), found.structures, json);
}

int run_create(const PoolCommandOptions& options) {
  Pool pool = Pool::create(options.target.pool, pool_options_for(options.target, options.creation));
  print_pool(pool, options.target.json);
  pool.close();
  return kExitOk;
}

int run_info(const PoolCommandOptions& options) {
  // Who may not write to it would have to read a copy of all of it.
  const bool may_lock = ::access(options.target.pool.c_str(), R_OK | W_OK) == 0;
  if (may_lock || ::access(options.target.pool.c_str(), R_OK) != 0) {
    try {
      const Pool pool = Pool::open(options.target.pool, reading_options_for(options.target));
      print_pool(pool, options.target.json);
      return kExitOk;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kLocked) throw;
    }
  }
  print_pool(Pool::inspect(options.target.pool), options.target.json);
  return kExitOk;
}

int run_grow(const PoolCommandOptions& options) {
  PoolOptions opening = pool_options_for(options.target, {});
  opening.read_only = true;
  const uint64_t before = Pool::open(options.target.pool, opening).info().capacity_bytes;
  opening.read_only = false;
  opening.capacity_at_least_bytes = parse_bytes(options.creation.capacity);
  if (opening.capacity_at_least_bytes < before) {
    throw Error(ErrorCode::kCapacity,
                fmt::format("{}: has a capacity of {} bytes; a capacity cannot be lowered, and "
                            "costs nothing that is not used",
                            options.target.pool, before));
  }
  Pool pool = Pool::open(options.target.pool, opening);
  const uint64_t capacity = pool.info().capacity_bytes;
  pool.close();
  if (options.target.json) {
    const nlohmann::json object = {{"pool", options.target.pool},
                                   {"capacity_bytes", capacity},
                                   {"capacity_bytes_before", before}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}: may grow to {}, before to {}\n", options.target.pool, format_bytes(capacity),
               format_bytes(before));
  }
  return kExitOk;
}

int run_shrink(const PoolCommandOptions& options) {
  Pool pool = Pool::open(options.target.pool, pool_options_for(options.target, {}));
  const uint64_t bytes = pool.shrink();
  const uint64_t left_bytes = pool.info().size_bytes;
  pool.close();
  if (options.target.json) {
    const nlohmann::json object = {
        {"pool", options.target.pool}, {"shrunk_bytes", bytes}, {"size_bytes", left_bytes}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}: {} shorter, occupies {}\n", options.target.pool, format_bytes(bytes),
               format_bytes(left_bytes));
  }
  return kExitOk;
}

void print_check(const PoolCommandOptions& options, const PoolCheck& check) {
  const std::vector<std::string>& problems = check.problems;
  if (options.target.json) {
    const nlohmann::json object = {{"pool", options.target.pool},
                                   {"sound", problems.empty()},
                                   {"structures", check.structures},
                                   {"problems", problems}};
    fmt::print("{}\n", object.dump(2));
    return;
  }
  const Palette palette(stdout);
  for (const std::string& problem : problems) fmt::print("{} {}\n", palette.bad("*"), problem);
  if (problems.empty()) {
    fmt::print("{}: {} (header, directory, heap and {})\n", options.target.pool,
               palette.good("sound"), format_counted(check.structures, "structure"));
  } else {
    fmt::print(
        "{}: {}, {} found; keep the file, and restore a backup, or copy what is readable with "
        "`perdure pool salvage`\n",
        options.target.pool, palette.bad("damaged"), format_counted(problems.size(), "problem"));
  }
}

// Beside a process that has the pool open for writing: what can be judged then. The rest is not
// checked, which is an error of its own.
int check_beside_writer(const PoolCommandOptions& options) {
  const PoolInspection found = Pool::inspect(options.target.pool);
  if (options.target.json) {
    const nlohmann::json object = {{"pool", options.target.pool},
                                   {"sound", nullptr},
                                   {"open_to_write", true},
                                   {"structures", found.structures.size()},
                                   {"problems", nlohmann::json::array()}};
    fmt::print("{}\n", object.dump(2));
  } else {
    fmt::print("{}: header, directory and descriptors are sound\n", options.target.pool);
  }
  fmt::print(stderr,
             "perdure: {}: heap and {} were not checked, as a process has the pool open for "
             "writing; check it when it is closed, or a backup of it\n",
             options.target.pool, format_counted(found.structures.size(), "structure"));
  return kExitError;
}

int run_check(const PoolCommandOptions& options) {
  try {
    const PoolCheck check = check_pool(options.target.pool);
    print_check(options, check);
    return check.problems.empty() ? kExitOk : kExitDamage;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kLocked) throw;
  }
  return check_beside_writer(options);
}

void add_create(CLI::App& pool, const std::shared_ptr<PoolCommandOptions>& options,
                Action& action) {
  CLI::App* command =
      add_command(pool, "create", "Make an empty pool",
                  "  perdure pool create --capacity 10G words.pool\n"
                  "  perdure pool create --durability power /mnt/pmem/words.pool\n");
  add_pool_argument(*command, options->target);
  command
      ->add_option("--capacity", options->creation.capacity,
                   "Size that the pool may grow to, such as 64M or 10G")
      ->capture_default_str();
  command
      ->add_option("--reserve", options->creation.reserve,
                   "How much of it the file gets now, such as 1G or all, so that later operations "
                   "need not wait for the system to clear memory")
      ->capture_default_str();
  command
      ->add_option("--durability", options->creation.durability,
                   "Refuse media that cannot give this: best, process or power")
      ->check(CLI::IsMember({"best", "process", "power"}))
      ->capture_default_str();
  add_domain_option(*command, options->target);
  command->callback([options, &action] { action = [options] { return run_create(*options); }; });
}

}  // namespace

void add_pool(CLI::App& app, Action& action) {
  auto options = std::make_shared<PoolCommandOptions>();
  CLI::App* pool = add_command(
      app, "pool",
      "Make, describe, check, grow, shrink, compact, back up, restore and salvage pools",
      "  perdure pool create --capacity 10G words.pool\n"
      "  perdure pool info words.pool\n"
      "  perdure pool check words.pool || echo damaged\n");
  pool->require_subcommand(1);
  add_create(*pool, options, action);

  CLI::App* info = add_command(
      *pool, "info", "Show header, medium, durability, sizes and structures",
      "  perdure pool info words.pool\n"
      "  perdure pool info --json words.pool\n"
      "\nWorks beside a process that has the pool open for writing, and on backups. What "
      "only that\nprocess knows is left out then, and said to be.\n");
  add_pool_argument(*info, options->target);
  info->callback([options, &action] { action = [options] { return run_info(*options); }; });

  CLI::App* check = add_command(
      *pool, "check", "Verify header, heap and structures, and name what is wrong",
      "  perdure pool check words.pool\n"
      "\nModifies nothing: recovery runs on a private copy. Exit code 3 when damage is found. "
      "Beside "
      "a\nprocess that has the pool open for writing header, directory and descriptors are checked "
      "alone:\nexit code 4 then.\n");
  add_pool_argument(*check, options->target);
  check->callback([options, &action] { action = [options] { return run_check(*options); }; });

  CLI::App* grow = add_command(
      *pool, "grow", "Raise what a pool may grow to",
      "  perdure pool grow --capacity 100G words.pool\n"
      "\nThe file stays as long as it is, and grows when it must. All structures stay; a crash\n"
      "leaves the former capacity or the new one. Releases that know pool format 2 alone refuse\n"
      "the pool then.\n");
  add_pool_argument(*grow, options->target);
  grow->add_option("--capacity", options->creation.capacity,
                   "Size that the pool may grow to from now on, such as 10G")
      ->required();
  add_domain_option(*grow, options->target);
  grow->callback([options, &action] { action = [options] { return run_grow(*options); }; });

  CLI::App* shrink = add_command(
      *pool, "shrink", "Give the free end of a pool's file back to its file system",
      "  perdure drop words.pool old && perdure pool shrink words.pool\n"
      "\nNothing is moved: free space below what is in use stays the pool's, which uses it again, "
      "and\n"
      "shows as `free` in `perdure pool info`; `perdure pool compact` gets that back, too. A "
      "crash\n"
      "leaves the pool shrunk or not, with all records.\n");
  add_pool_argument(*shrink, options->target);
  add_domain_option(*shrink, options->target);
  shrink->callback([options, &action] { action = [options] { return run_shrink(*options); }; });

  add_pool_compact(*pool, action);
  add_pool_backup(*pool, action);
  add_pool_salvage(*pool, action);
}

}  // namespace perdure::cli
