// perdure convert: the records of a structure in a structure of another kind.
//
// The copy is made under the name NAME.converting, which counts for nothing: a crash leaves it, and the next
// conversion to NAME drops it and begins anew. When it is whole and durable it becomes NAME. Where it takes the place
// of the structure that it was made of, the two exchange their names in one step, and what is NAME.converting then, the
// old one, is dropped: no crash leaves a pool without NAME, nor a copy that a later conversion would take for whole
// while NAME has been written to.

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
                  "Ctrl-C what there was is there, and the same command begins anew.\n"
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
