// perdure db create | put | get | del | scan | load | dump | check | stat | recover: a database of
// B+trees.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/record_printer.h"
#include "cli/record_source.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/database.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct DbOptions {
  Target target;
  std::string pages;  // the page file
  std::string log_file;
  std::string tree = "main";
  std::string key;
  std::string value;
  std::string capacity = "1G";
  std::string dram = "64M";
  std::string pm;
  std::string log = "16M";
  std::string archive;
  uint32_t page_bytes = 4096;
  uint32_t checksums = 8;
  uint64_t limit = 0;
  uint64_t batch = 100;
  bool backward = false;
};

DatabaseOptions database_options(const DbOptions& options) {
  DatabaseOptions database;
  database.page_file = options.pages;
  database.log_file = options.log_file;
  database.dram_bytes = parse_bytes(options.dram);
  if (!options.pm.empty()) {
    database.pm_bytes = parse_bytes(options.pm);
    database.pm_frames = database.pm_bytes != 0;
  }
  database.log_bytes = parse_bytes(options.log);
  database.page_bytes = options.page_bytes;
  database.checksums = options.checksums;
  database.archive = options.archive;
  return database;
}

// The pool and its database; closed in this order.
struct OpenDatabase {
  Pool pool;
  Database database;
};

OpenDatabase open_database(const DbOptions& options) {
  Pool pool = Pool::open(options.target.pool, pool_options_for(options.target, {}));
  Database database = Database::open(pool, options.target.name, database_options(options));
  return {std::move(pool), std::move(database)};
}

int create_in_db(const DbOptions& options) {
  Creation creation;
  creation.capacity = options.capacity;
  Pool pool = std::filesystem::exists(options.target.pool)
                  ? Pool::open(options.target.pool, pool_options_for(options.target, creation))
                  : Pool::create(options.target.pool, pool_options_for(options.target, creation));
  {
    Database::create(pool, options.target.name, database_options(options));
  }
  pool.close();
  return kExitOk;
}

int put_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const Tree tree = open.database.tree(options.tree);
  open.database.transact([&](Transaction& one) { one.put(tree, options.key, options.value); });
  return kExitOk;
}

int absent_in_db(const DbOptions& options) {
  fmt::print(stderr, "perdure: there is no key \"{}\"\n", options.key);
  return kExitAbsent;
}

int get_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const std::optional<Tree> tree = open.database.find_tree(options.tree);
  if (!tree) return absent_in_db(options);
  Transaction one = open.database.begin();
  const std::optional<std::string> value = one.get(*tree, options.key);
  if (!value) return absent_in_db(options);
  fmt::print("{}\n", *value);
  return kExitOk;
}

int del_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const std::optional<Tree> tree = open.database.find_tree(options.tree);
  bool erased = false;
  if (tree) {
    open.database.transact([&](Transaction& one) { erased = one.erase(*tree, options.key); });
  }
  return erased ? kExitOk : absent_in_db(options);
}

int scan_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const std::optional<Tree> tree = open.database.find_tree(options.tree);
  if (!tree) return kExitOk;
  Cursor cursor = open.database.snapshot().cursor(*tree);
  bool more = !options.backward     ? cursor.seek(options.key)
              : options.key.empty() ? cursor.seek_last()
                                    : cursor.seek_below(options.key);
  RecordPrinter printer("", options.target.json ? TextFormat::kJsonLines : TextFormat::kTsv);
  for (uint64_t n = 0; more && (options.limit == 0 || n < options.limit); ++n) {
    printer.print(cursor.key(), cursor.value());
    more = options.backward ? cursor.previous() : cursor.next();
  }
  printer.close();
  return kExitOk;
}

// A transaction for each `batch` of records.
int load_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const Tree tree = open.database.tree(options.tree);
  uint64_t count = 0;
  std::vector<std::pair<std::string, std::string>> records;
  const auto store = [&] {
    open.database.transact([&](Transaction& one) {
      for (const auto& [key, value] : records) one.put(tree, key, value);
    });
    count += records.size();
    records.clear();
  };
  LineSource source("-");
  const TextFormat format = detect_format(source);
  Value key;
  Value value;
  for (std::string_view line; source.next(line);) {
    if (is_blank(line, format)) continue;
    try {
      parse_record(line, format, Kind::kBytes, Kind::kBytes, key, value);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("line {}: {}; {} stored before it", source.line_number(),
                              error.what(), format_counted(count, "record")));
    }
    records.emplace_back(key.bytes(), value.bytes());
    if (records.size() >= std::max<uint64_t>(1, options.batch)) store();
  }
  if (!records.empty()) store();
  fmt::print("{} loaded\n", format_counted(count, "record"));
  return kExitOk;
}

int check_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  std::vector<std::string> problems;
  open.database.check([&](const std::string& sentence) { problems.push_back(sentence); });
  if (options.target.json) {
    const nlohmann::json object = {{"sound", problems.empty()}, {"problems", problems}};
    fmt::print("{}\n", object.dump(2));
  } else {
    const Palette palette(stdout);
    for (const std::string& problem : problems) fmt::print("{} {}\n", palette.bad("*"), problem);
    fmt::print("{}: {}\n", options.target.pool,
               problems.empty() ? palette.good("sound") : palette.bad("damaged"));
  }
  return problems.empty() ? kExitOk : kExitDamage;
}

int stat_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  if (options.target.json) {
    nlohmann::json object = {{"trees", open.database.trees()}};
    for (const Statistic& one : open.database.statistics()) {
      object[one.name] = static_cast<uint64_t>(one.value);
    }
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  for (const std::string& tree : open.database.trees()) fmt::print("tree  {}\n", tree);
  for (const Statistic& one : open.database.statistics()) {
    fmt::print("{:<22} {:>15} {}\n", one.name, format_count(static_cast<uint64_t>(one.value)),
               one.unit);
  }
  return kExitOk;
}

int recover_in_db(const DbOptions& options) {
  OpenDatabase open = open_database(options);
  const bool shown = Palette(stderr).good("") != "";  // a terminal
  open.database.recover([&](const RecoveryProgress& progress) {
    if (shown) fmt::print(stderr, "\r{} pages pending ", progress.pending);
  });
  if (shown) fmt::print(stderr, "\n");
  open.database.checkpoint();
  const RecoveryProgress done = open.database.recovery();
  const nlohmann::json object = {{"right", done.right},     {"older", done.older},
                                 {"newer", done.newer},     {"corrupted", done.corrupted},
                                 {"fetched", done.fetched}, {"archived", done.archived},
                                 {"pending", done.pending}};
  if (options.target.json) {
    fmt::print("{}\n", object.dump(2));
  } else {
    fmt::print(
        "pages in PM: {} right, {} older, {} newer, {} corrupted; {} read and replayed, {} from "
        "the archive; {} pending\n",
        done.right, done.older, done.newer, done.corrupted, done.fetched, done.archived,
        done.pending);
  }
  return done.pending == 0 ? kExitOk : kExitDamage;
}

using RunDb = int (*)(const DbOptions&);

CLI::App* add_db_command(CLI::App& db, const std::shared_ptr<DbOptions>& options, Action& action,
                         const char* name, const char* description, const char* examples,
                         RunDb run) {
  CLI::App* command = add_command(db, name, description, examples);
  command->add_option("POOL", options->target.pool, "The pool file")->required();
  command->add_option("--name", options->target.name, "Name of the database in the pool")
      ->default_val("db");
  command->add_option("--pages", options->pages, "The page file (default: pages are in the pool)");
  command->add_option("--log-file", options->log_file,
                      "The file of the write-ahead log (default: it is in the pool)");
  command->add_option("--dram", options->dram, "Memory for pages in DRAM")->capture_default_str();
  command->add_option("--pm", options->pm, "Room in the pool for pages that are worked on there");
  command->add_option("--archive", options->archive, "A file for the log that is no longer needed");
  command->callback([options, &action, run] { action = [options, run] { return run(*options); }; });
  return command;
}

void add_tree(CLI::App& command, const std::shared_ptr<DbOptions>& options) {
  command.add_option("--tree", options->tree, "Name of the tree")->capture_default_str();
}

void add_records(CLI::App& db, const std::shared_ptr<DbOptions>& options, Action& action) {
  CLI::App* put = add_db_command(db, options, action, "put", "Store a record, durably",
                                 "  perdure db put bank.pool alice 10\n", put_in_db);
  put->add_option("KEY", options->key, "The key")->required();
  put->add_option("VALUE", options->value, "The value")->required();
  add_tree(*put, options);

  CLI::App* get = add_db_command(db, options, action, "get", "Print the value of a key",
                                 "  perdure db get bank.pool alice\n", get_in_db);
  get->add_option("KEY", options->key, "The key")->required();
  add_tree(*get, options);

  CLI::App* del = add_db_command(db, options, action, "del", "Remove a record, durably",
                                 "  perdure db del bank.pool alice\n", del_in_db);
  del->add_option("KEY", options->key, "The key")->required();
  add_tree(*del, options);

  CLI::App* scan = add_db_command(db, options, action, "scan", "Print records in the order of keys",
                                  "  perdure db scan bank.pool --limit 10 a\n"
                                  "  perdure db scan bank.pool --backward\n",
                                  scan_in_db);
  scan->add_option("KEY", options->key, "Where to begin; backward: below this key");
  scan->add_option("--limit", options->limit, "At most so many (default: all)");
  scan->add_flag("--backward", options->backward, "From the last key on");
  add_tree(*scan, options);
  add_json_flag(*scan, options->target.json);

  CLI::App* load = add_db_command(db, options, action, "load",
                                  "Store records from standard input, TSV or JSON lines",
                                  "  perdure db load bank.pool < accounts.tsv\n", load_in_db);
  load->add_option("--batch", options->batch, "Lines in a transaction")->capture_default_str();
  add_tree(*load, options);

  CLI::App* dump =
      add_db_command(db, options, action, "dump", "Print all records as TSV, which load takes",
                     "  perdure db dump bank.pool > accounts.tsv\n", scan_in_db);
  add_tree(*dump, options);
}

}  // namespace

void add_db(CLI::App& app, Action& action) {
  auto options = std::make_shared<DbOptions>();
  CLI::App* db = add_command(app, "db", "B+trees with transactions, in a persistent buffer pool",
                             "  perdure db create bank.pool --pages bank.pages\n"
                             "  perdure db put bank.pool --pages bank.pages alice 10\n"
                             "  perdure db scan bank.pool --pages bank.pages\n");
  db->require_subcommand(1);
  CLI::App* create = add_db_command(
      *db, options, action, "create", "Make a database; makes the pool, if missing",
      "  perdure db create bank.pool --capacity 4G --pages /data/bank.pages\n"
      "  perdure db create bank.pool --pages /data/bank.pages --log-file /ssd/bank.log\n"
      "\nWith a page file or a log file, all other commands need their names, too.\n",
      create_in_db);
  create->add_option("--capacity", options->capacity, "Size that a new pool may grow to")
      ->capture_default_str();
  create->add_option("--page-bytes", options->page_bytes, "4096 to 65536")->capture_default_str();
  create->add_option("--checksums", options->checksums, "Of a page, 1 to 32")
      ->capture_default_str();
  create->add_option("--log", options->log, "Size of the log")->capture_default_str();
  add_records(*db, options, action);
  CLI::App* check = add_db_command(*db, options, action, "check", "Verify all trees and pages",
                                   "  perdure db check bank.pool\n"
                                   "\nExit code 3 when damage is found.\n",
                                   check_in_db);
  add_json_flag(*check, options->target.json);
  CLI::App* stat =
      add_db_command(*db, options, action, "stat", "Trees, pages, frames, log, recovery",
                     "  perdure db stat bank.pool\n", stat_in_db);
  add_json_flag(*stat, options->target.json);
  CLI::App* recover = add_db_command(
      *db, options, action, "recover", "Mend all pages that a crash has left, and checkpoint",
      "  perdure db recover bank.pool\n"
      "\nOpening a database mends pages when they are asked for; this does all now.\n",
      recover_in_db);
  add_json_flag(*recover, options->target.json);
}

}  // namespace perdure::cli
