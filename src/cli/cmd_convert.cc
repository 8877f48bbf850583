// perdure convert: the records of a structure in a structure of another kind.
//
// The copy is made under the name NAME.converting, which counts for nothing: a crash leaves it, and the next
// conversion to NAME begins anew. When it is whole and durable it becomes NAME. Where it takes the place of the
// structure that it was made of, it is NAME.converted in between, which says that it is whole, then that one is
// dropped; who finds NAME.converted goes on from there.

#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/ticks.h"
#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

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
  bool finish_earlier();
  std::unique_ptr<AnyIndex> create(const AnyIndex& source);
  uint64_t copy();
  void take_place();
  void drop_if_there(const std::string& name) {
    if (find_structure(to(), name)) drop_structure(to(), name);
  }

  const ConvertOptions& options_;
  Pool from_;
  std::optional<Pool> other_;
  bool is_new_pool_ = false;
  std::string name_;
  std::string converting_;
  std::string converted_;
  bool replaces_;
  InterruptFlag interrupt_;
};

Converter::Converter(const ConvertOptions& options)
    : options_(options),
      from_(Pool::open(options.target.pool, pool_options_for(options.target, {}))),
      name_(options.name.empty() ? options.target.name : options.name),
      converting_(name_ + ".converting"),
      converted_(name_ + ".converted"),
      replaces_(options.to.empty() && name_ == options.target.name) {
  catalog_entry(options.structure);  // throws if there is none
}

void Converter::open_target_pool() {
  if (options_.to.empty()) return;
  Creation creation = options_.creation;
  if (!creation.capacity_given) creation.capacity = std::to_string(from_.info().capacity_bytes);
  Target target = options_.target;
  target.pool = options_.to;
  is_new_pool_ = ::access(options_.to.c_str(), F_OK) != 0;
  const PoolOptions options = pool_options_for(target, creation);
  other_.emplace(is_new_pool_ ? Pool::create(options_.to, options)
                              : Pool::open(options_.to, options));
}

// Of a conversion that a crash ended: true if the copy was whole, and has its place now.
bool Converter::finish_earlier() {
  drop_if_there(converting_);
  if (!replaces_ || !find_structure(to(), converted_)) return false;
  take_place();
  return true;
}

void Converter::take_place() {
  drop_if_there(name_);
  to().rename(converted_, name_);
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
  // That all of them are there, before anything is dropped: two keys may have become one of another kind.
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

int Converter::run() {
  const double start_s = steady_seconds();
  uint64_t records = 0;
  bool was_whole = false;
  try {
    open_target_pool();
    was_whole = finish_earlier();
    if (!was_whole) {
      if (!find_structure(from_, options_.target.name))
        open_index(from_, options_.target.name);  // throws
      if (!replaces_ && find_structure(to(), name_)) {
        throw Error(ErrorCode::kNameExists,
                    fmt::format("{}: there is a structure \"{}\" already; choose another name",
                                to().info().path, name_));
      }
      records = copy();
      if (replaces_) {
        to().rename(converting_, converted_);
        take_place();
      } else {
        to().rename(converting_, name_);
      }
    }
    if (other_) other_->close();
    from_.close();
  } catch (...) {
    try {
      drop_if_there(converting_);
    } catch (const std::exception&) {  // the next conversion does it
    }
    if (is_new_pool_) ::unlink(options_.to.c_str());
    if (interrupt_.raised()) {
      fmt::print(stderr, "perdure: stopped; nothing was changed\n");
      return kExitInterrupted;
    }
    throw;
  }
  const double seconds = steady_seconds() - start_s;
  if (options_.target.json) {
    const nlohmann::json object = {{"from", options_.target.name},    {"to", name_},
                                   {"structure", options_.structure}, {"records", records},
                                   {"finished_earlier", was_whole},   {"seconds", seconds}};
    fmt::print("{}\n", object.dump());
  } else if (was_whole) {
    fmt::print("finished an earlier conversion of \"{}\"\n", name_);
  } else {
    fmt::print("converted \"{}\" to \"{}\", a {}: {} in {:.2f} s\n", options_.target.name, name_,
               options_.structure, format_counted(records, "record"), seconds);
  }
  return kExitOk;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command =
      add_command(app, "convert", "Copy a structure into one of another kind",
                  "  perdure convert words.pool main p-art+vl            # in the place of main\n"
                  "  perdure convert words.pool main fptree sorted       # beside it\n"
                  "  perdure convert --to other.pool words.pool main rstore words\n"
                  "\nIn the place of the structure, or under a new NAME in this pool or another "
                  "one, which is made\n"
                  "if it is missing. The copy has its name only when it is whole and durable: "
                  "after a crash or\n"
                  "Ctrl-C what there was is there, and the same command begins anew, or finishes "
                  "what was whole.\n"
                  "With another --key-kind or --value-kind words become their digits, and digits "
                  "words. Versions\n"
                  "and expiry of a store are not kept.\n");
  command->add_option("POOL", options->target.pool, "The pool file")->required();
  command->add_option("FROM", options->target.name, "The structure to copy")->required();
  command
      ->add_option("STRUCTURE", options->structure,
                   "The kind of the copy; `perdure list` names them")
      ->required();
  command->add_option("NAME", options->name,
                      "The name of the copy (default: FROM, which it replaces)");
  command->add_option("--to", options->to, "The pool file to copy to");
  command
      ->add_option("--capacity", options->creation.capacity,
                   "Of a new pool, such as 64M or 10G (default: as POOL)")
      ->each([options_pointer = options.get()](const std::string&) {
        options_pointer->creation.capacity_given = true;
      });
  command->add_option("--key-kind", options->creation.key_kind, "u64 or bytes (default: as FROM)")
      ->check(CLI::IsMember({"u64", "bytes"}));
  command
      ->add_option("--value-kind", options->creation.value_kind, "u64 or bytes (default: as FROM)")
      ->check(CLI::IsMember({"u64", "bytes"}));
  as_list(command->add_option("--option", options->creation.options,
                              "An option of the copy, name=value"));
  command
      ->add_option("--domain", options->target.domain,
                   "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
  add_json_flag(*command, options->target.json);
  command->callback(
      [options, &action] { action = [options] { return Converter(*options).run(); }; });
}

}  // namespace perdure::cli
