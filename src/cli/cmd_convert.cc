// perdure convert: the records of a structure in a structure of another kind.
//
// The copy is made under the name NAME.converting, which counts for nothing: a crash leaves it, and
// the next conversion to NAME drops it and begins anew. When it is whole and durable it becomes
// NAME. Where it takes the place of the structure that it was made of, the two exchange their names
// in one step, and what is NAME.converting then, the old one, is dropped: no crash leaves a pool
// without NAME, nor a copy that a later conversion would take for whole while NAME has been written
// to.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/convert_foreign.h"
#include "cli/interrupt.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/ticks.h"
#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "pm/pool_impl.h"

namespace perdure::cli {
namespace {

struct ConvertOptions {
  Target target;  // `name` is the structure to copy
  std::string structure;
  std::string name;  // of the copy; empty: that of the structure, which it replaces in its pool
  std::string to;    // another pool; empty: the same
  Creation creation;
};

struct Interrupted {};

// A key or value of another kind, by its text.
Datum as_kind(Datum datum, Kind kind, Value& scratch) {
  if (datum.kind() == kind) return datum;
  parse_datum(to_text(datum), kind, scratch);
  return scratch.datum();
}

class Converter {
 public:
  explicit Converter(const ConvertOptions& options);

  int run();

 private:
  Pool& to() { return other_ ? *other_ : from_; }
  void open_target_pool();
  std::unique_ptr<AnyIndex> create(const AnyIndex& source);
  uint64_t copy();
  void take_place();
  void give_up() noexcept;
  // What a crash, or an error, left of a conversion.
  void drop_left_over() {
    if (find_structure(to(), converting_)) drop_structure(to(), converting_);
  }

  const ConvertOptions& options_;
  Pool from_;
  std::optional<Pool> other_;
  bool is_new_pool_ = false;  // made by this run
  std::string name_;
  std::string converting_;
  bool replaces_;
  InterruptFlag interrupt_;
};

Converter::Converter(const ConvertOptions& options)
    : options_(options),
      from_(Pool::open(options.target.pool, pool_options_for(options.target, {}))),
      name_(options.name.empty() ? options.target.name : options.name),
      converting_(name_ + ".converting"),
      replaces_(options.to.empty() && name_ == options.target.name) {
  catalog_entry(options.structure);  // throws if there is none
  if (options.to.empty() && options.target.name == converting_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is the name of a copy on its way to \"{}\", which would be "
                            "dropped; rename it first",
                            converting_, name_));
  }
}

void Converter::open_target_pool() {
  if (options_.to.empty()) return;
  Creation creation = options_.creation;
  if (!creation.capacity_given) creation.capacity = std::to_string(from_.info().capacity_bytes);
  Target target = options_.target;
  target.pool = options_.to;
  const PoolOptions options = pool_options_for(target, creation);
  if (::access(options_.to.c_str(), F_OK) == 0) {
    other_.emplace(Pool::open(options_.to, options));
    return;
  }
  other_.emplace(Pool::create(options_.to, options));
  is_new_pool_ = true;  // not before: what somebody else has made meanwhile is his
}

std::unique_ptr<AnyIndex> Converter::create(const AnyIndex& source) {
  const Creation& wanted = options_.creation;
  const Kind key = wanted.key_kind.empty() ? source.key_kind() : parse_kind(wanted.key_kind);
  const Kind value =
      wanted.value_kind.empty() ? source.value_kind() : parse_kind(wanted.value_kind);
  return create_index(to(), converting_, options_.structure, key, value,
                      parse_structure_options(wanted.options));
}

// Returns how many records there are.
uint64_t Converter::copy() {
  constexpr uint64_t kCheckpointEvery = uint64_t{1} << 20;
  const std::unique_ptr<AnyIndex> source = open_index(from_, options_.target.name);
  const std::unique_ptr<AnyIndex> copy = create(*source);
  ProgressBar bar("records");
  uint64_t records = 0;
  Value key_scratch;
  Value value_scratch;
  source->for_each([&](Datum key, Datum value) {
    if (interrupt_.raised()) throw Interrupted{};
    copy->bulk_upsert(as_kind(key, copy->key_kind(), key_scratch),
                      as_kind(value, copy->value_kind(), value_scratch));
    if (++records % kCheckpointEvery == 0) copy->checkpoint(0);
    if (bar.visible() && records % 1000 == 0) {
      bar.show({.phase = "convert", .items = records, .fraction = -1, .detail = {}});
    }
  });
  copy->checkpoint(0);
  // That all of them are there, before anything is dropped: two keys may have become one of another
  // kind.
  uint64_t there = 0;
  copy->for_each([&](Datum, Datum) { ++there; });
  if (there == records) return records;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "{} records were copied, and {} are there: keys that differ have the same text; nothing "
          "was changed",
          format_count(records), format_count(there)));
}

void Converter::take_place() {
  if (!replaces_) return to().rename(converting_, name_);
  pm::impl_of(to()).exchange_names(converting_, name_);
  drop_left_over();  // what it was made of
}

void Converter::give_up() noexcept {
  try {
    if (is_new_pool_) {
      ::unlink(options_.to.c_str());
    } else if (options_.to.empty() || other_) {
      drop_left_over();
    }
  } catch (const std::exception&) {  // the next conversion does it
  }
}

int Converter::run() {
  const double start_s = steady_seconds();
  uint64_t records = 0;
  try {
    open_target_pool();
    drop_left_over();
    if (!find_structure(from_, options_.target.name))
      open_index(from_, options_.target.name);  // throws
    if (!replaces_ && find_structure(to(), name_)) {
      throw Error(ErrorCode::kNameExists,
                  fmt::format("{}: there is a structure \"{}\" already; choose another name",
                              to().info().path, name_));
    }
    records = copy();
    take_place();
    if (other_) other_->close();
    from_.close();
  } catch (const Interrupted&) {
    give_up();
    fmt::print(stderr, "perdure: stopped; nothing was changed\n");
    return kExitInterrupted;
  } catch (...) {
    give_up();
    throw;
  }
  const double seconds = steady_seconds() - start_s;
  if (options_.target.json) {
    const nlohmann::json object = {{"from", options_.target.name},
                                   {"to", name_},
                                   {"structure", options_.structure},
                                   {"records", records},
                                   {"seconds", seconds}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("converted \"{}\" to \"{}\", a {}: {} in {:.2f} s\n", options_.target.name, name_,
               options_.structure, format_counted(records, "record"), seconds);
  }
  return kExitOk;
}

// What the command line says: a structure of the pool to copy, or another store's database.
struct ConvertArguments {
  ConvertOptions copy;
  ForeignConversion foreign;
};

// Options that both ways have.
void add_shared_options(CLI::App& command, ConvertArguments& arguments) {
  Creation& creation = arguments.copy.creation;
  command
      .add_option("--capacity", creation.capacity,
                  "Of a new pool, such as 64M or 10G (default: as POOL; 1G with --from)")
      ->each([&creation](const std::string&) { creation.capacity_given = true; });
  for (const auto& [option, kind] :
       {std::pair("--key-kind", &creation.key_kind), {"--value-kind", &creation.value_kind}}) {
    command.add_option(option, *kind, "u64 or bytes (default: as FROM; bytes with --from)")
        ->check(CLI::IsMember({"u64", "bytes"}));
  }
  as_list(command.add_option("--option", creation.options,
                             "An option of the new structure, name=value"));
  command
      .add_option("--domain", arguments.copy.target.domain,
                  "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
  add_json_flag(command, arguments.copy.target.json);
}

// Those of databases of other stores. Returns --from.
CLI::Option* add_foreign_options(CLI::App& command, ForeignConversion& foreign) {
  constexpr const char* kGroup = "Databases of other stores";
  ForeignSource& source = foreign.source;
  CLI::Option* from =
      command.add_option("--from", source.from, "leveldb:FOLDER, lmdb:PATH or rocksdb:FOLDER")
          ->group(kGroup);
  const auto add = [&](const char* name, std::string& text, const char* help) {
    return command.add_option(name, text, help)->needs(from)->group(kGroup);
  };
  add("--name", foreign.target.name, "The name of the new structure")->capture_default_str();
  add("--structure", foreign.creation.structure,
      "Its kind; `perdure list` names them (default: rstore; plush for words)");
  add("--database", source.database,
      "The part of this name: a column family of RocksDB, a named database of LMDB");
  for (const auto& [name, words] :
       {std::pair("--key-words", &source.key_words), {"--value-words", &source.value_words}}) {
    add(name, *words, "How the database writes words: in digits, or as little or big endian bytes")
        ->check(CLI::IsMember({"digits", "little", "big"}));
  }
  foreign.threads = std::max(std::thread::hardware_concurrency(), 1U);
  command.add_option("--threads", foreign.threads, "Threads that store")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->needs(from)
      ->group(kGroup);
  return from;
}

int run_convert(const ConvertArguments& arguments) {
  if (arguments.foreign.source.from.empty()) return Converter(arguments.copy).run();
  ForeignConversion foreign = arguments.foreign;
  foreign.target.pool = arguments.copy.target.pool;
  foreign.target.domain = arguments.copy.target.domain;
  foreign.target.json = arguments.copy.target.json;
  foreign.creation.capacity = arguments.copy.creation.capacity;
  foreign.creation.capacity_given = arguments.copy.creation.capacity_given;
  foreign.creation.key_kind = arguments.copy.creation.key_kind;
  foreign.creation.value_kind = arguments.copy.creation.value_kind;
  foreign.creation.options = arguments.copy.creation.options;
  return convert_foreign(foreign);
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ConvertArguments>();
  ConvertOptions& copy = arguments->copy;
  CLI::App* command = add_command(
      app, "convert", "Copy a structure, or a database of another store, into a structure",
      "  perdure convert words.pool main p-art+vl            # in the place of main\n"
      "  perdure convert words.pool main fptree sorted       # beside it\n"
      "  perdure convert --to other.pool words.pool main rstore words\n"
      "  perdure convert --from rocksdb:/var/lib/events --capacity 20G events.pool\n"
      "  perdure convert --from lmdb:/var/lib/ids --database users --key-words little \\\n"
      "      --key-kind u64 --structure fptree --name users ids.pool\n"
      "\nIn the place of the structure, or under a new NAME in this pool or another one, which is "
      "made\n"
      "if it is missing. The copy has its name only when it is whole and durable: after a crash "
      "or\n"
      "Ctrl-C what there was is there, and the same command begins anew.\n"
      "With another --key-kind or --value-kind words become their digits, and digits words. "
      "Versions\n"
      "and expiry of a store are not kept.\n"
      "\nWith --from there is only POOL, which is made if it is missing: all records of the "
      "database\n"
      "become a new structure. RocksDB and LMDB are opened for reading only; LevelDB has no such "
      "way: it\n"
      "is locked, and writes what its log holds to a table. Nothing else of the database is "
      "changed.\n");
  command->add_option("POOL", copy.target.pool, "The pool file")->required();
  CLI::Option* from = command->add_option("FROM", copy.target.name, "The structure to copy");
  CLI::Option* structure = command->add_option("STRUCTURE", copy.structure,
                                               "The kind of the copy; `perdure list` names them");
  command->add_option("NAME", copy.name, "The name of the copy (default: FROM, which it replaces)");
  CLI::Option* to = command->add_option("--to", copy.to, "The pool file to copy to");
  add_shared_options(*command, *arguments);
  add_foreign_options(*command, arguments->foreign)->excludes(from)->excludes(to);
  command->callback([arguments, from, structure, &action] {
    if (arguments->foreign.source.from.empty()) {
      if (from->empty()) throw CLI::RequiredError("FROM");
      if (structure->empty()) throw CLI::RequiredError("STRUCTURE");
    }
    action = [arguments] { return run_convert(*arguments); };
  });
}

}  // namespace perdure::cli
