#include "cli/convert_foreign.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/interrupt.h"
#include "cli/loader.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "common/ticks.h"
#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct StoppedBySignal {};

class ForeignConverter {
 public:
  explicit ForeignConverter(const ForeignConversion& conversion) : conversion_(conversion) {}

  int run();

 private:
  uint64_t convert();
  uint64_t load(ForeignReader& reader, AnyIndex& into);
  void print(uint64_t records, double seconds) const;

  const ForeignConversion& conversion_;
  std::string structure_;
  InterruptFlag interrupt_;
};

uint64_t ForeignConverter::load(ForeignReader& reader, AnyIndex& into) {
  LoadOptions options;
  options.bulk = true;  // what a crash leaves counts for nothing
  options.threads = catalog_entry(structure_).traits.concurrent ? conversion_.threads : 1;
  LoadProgress none;
  LoadReport report;
  {
    ProgressBar bar("records");
    report = load_records(into, none, reader.lines(), TextFormat::kTsv, options, bar.sink(),
                          interrupt_.raised());
  }
  if (report.interrupted) throw StoppedBySignal{};
  const uint64_t records = reader.finish();
  // That all of them are there: two keys may have become one.
  uint64_t there = 0;
  into.for_each([&](Datum, Datum) { ++there; });
  if (there == records && report.lines == records) return records;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} has {} records, of which {} came, and {} are there: keys that differ are "
                  "the same number; nothing was changed",
                  conversion_.source.from, format_count(records), format_count(report.lines),
                  format_count(there)));
}

uint64_t ForeignConverter::convert() {
  // The source first: without it, no pool is made.
  ForeignReader reader(conversion_.source, interrupt_.raised());
  if (interrupt_.raised()) throw StoppedBySignal{};
  const std::unique_ptr<OpenIndex> into =
      OpenIndex::create_converting(conversion_.target, conversion_.creation);
  try {
    structure_ = into->structure().type;
    const uint64_t records = load(reader, into->index());
    into->keep();
    return records;
  } catch (...) {
    into->discard();
    throw;
  }
}

void ForeignConverter::print(uint64_t records, double seconds) const {
  const auto& [from, database, key_words, value_words] = conversion_.source;
  const std::string& name = conversion_.target.name;
  if (!conversion_.target.json) {
    fmt::print("converted {} to \"{}\", a {}: {} in {:.2f} s\n", from, name, structure_,
               format_counted(records, "record"), seconds);
    return;
  }
  nlohmann::json object = {{"from", from},
                           {"to", name},
                           {"structure", structure_},
                           {"records", records},
                           {"seconds", seconds}};
  if (!database.empty()) object["database"] = database;
  fmt::print("{}\n", object.dump());
}

int ForeignConverter::run() {
  const double start_s = steady_seconds();
  uint64_t records = 0;
  try {
    records = convert();
  } catch (...) {
    if (interrupt_.raised()) {
      fmt::print(stderr, "perdure: stopped; nothing was changed\n");
      return kExitInterrupted;
    }
    throw;
  }
  print(records, steady_seconds() - start_s);
  return kExitOk;
}

}  // namespace

int convert_foreign(const ForeignConversion& conversion) {
  return ForeignConverter(conversion).run();
}

}  // namespace perdure::cli
