// perdure dump | scan | count: records as text that `perdure load` reads back, and how many there
// are.

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/open_index.h"
#include "cli/record_printer.h"
#include "cli/text.h"
#include "common/units.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct DumpOptions {
  Target target;
  std::string format = "tsv";
  std::string output;  // empty: standard output
};

RecordPrinter printer_for(const DumpOptions& options) {
  return {options.output,
          options.target.json ? TextFormat::kJsonLines : parse_format(options.format)};
}

int run_dump(const DumpOptions& options) {
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_read(options.target);
  RecordPrinter printer = printer_for(options);
  opened->index().for_each([&](Datum key, Datum value) { printer.print(key, value); });
  printer.close();
  return kExitOk;
}

// Keys from one on and before another; empty texts: no bound.
struct RangeOptions {
  std::string from;
  std::string to;
  std::string prefix;
  bool from_given = false;
  bool to_given = false;
  std::string limit;
  bool reverse = false;

  bool any() const { return from_given || to_given || !prefix.empty(); }
};

// The least byte string behind all that begin with the prefix; empty if there is none.
std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

bool is_less(const Datum& a, const Datum& b) {
  return a.kind() == Kind::kU64 ? a.word() < b.word() : a.bytes() < b.bytes();
}

// Calls `visit` for the records of the range, in the order of their keys, or from the last one on.
void scan_range(const AnyIndex& index, const RangeOptions& range,
                const std::function<void(Datum key, Datum value)>& visit) {
  const Kind kind = index.key_kind();
  if (!range.prefix.empty() && kind != Kind::kBytes) {
    throw Error(ErrorCode::kInvalidArgument, "--prefix is for keys of bytes; these are words");
  }
  Value from;
  Value to;
  if (kind == Kind::kU64) from.set(uint64_t{0});
  if (kind == Kind::kBytes) from.set_bytes() = range.prefix;
  if (range.from_given) parse_datum(range.from, kind, from);
  if (range.to_given) parse_datum(range.to, kind, to);
  const auto is_before_end = [&](Datum key) {
    if (!range.prefix.empty()) return key.bytes().starts_with(range.prefix);
    return !range.to_given || is_less(key, to.datum());
  };
  const uint64_t limit = range.limit.empty() ? ~uint64_t{0} : parse_count(range.limit);
  if (range.reverse) {
    std::optional<Datum> last;
    if (range.to_given) last = to.datum();
    const std::string beyond = end_of_prefix(range.prefix);
    if (!beyond.empty()) last = Datum(beyond);
    uint64_t left = limit;
    // The key where the range ends may be there, and is not a part of it.
    index.scan_back(last, limit == ~uint64_t{0} ? limit : limit + 1, [&](Datum key, Datum value) {
      if (left == 0 || is_less(key, from.datum())) return false;
      if (!is_before_end(key)) return true;
      visit(key, value);
      --left;
      return true;
    });
    return;
  }
  index.scan(from.datum(), limit, [&](Datum key, Datum value) {
    if (!is_before_end(key)) return false;
    visit(key, value);
    return true;
  });
}

int run_scan(const DumpOptions& options, const RangeOptions& range) {
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_read(options.target);
  RecordPrinter printer = printer_for(options);
  scan_range(opened->index(), range, [&](Datum key, Datum value) { printer.print(key, value); });
  printer.close();
  return kExitOk;
}

int run_count(const Target& target, const RangeOptions& range) {
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_to_read(target);
  uint64_t records = 0;
  const auto count = [&records](Datum, Datum) { ++records; };
  if (range.any()) {
    scan_range(opened->index(), range, count);
  } else {
    opened->index().for_each(count);
  }
  fmt::print("{}\n",
             target.json ? nlohmann::json({{"records", records}}).dump() : std::to_string(records));
  return kExitOk;
}

void add_range_options(CLI::App& command, RangeOptions& range) {
  CLI::Option* from =
      command.add_option("--from", range.from, "The first key")->each([&range](const std::string&) {
        range.from_given = true;
      });
  CLI::Option* to = command.add_option("--to", range.to, "The key to stop before")
                        ->each([&range](const std::string&) { range.to_given = true; });
  command.add_option("--prefix", range.prefix, "Only keys that begin so, of bytes")
      ->excludes(from)
      ->excludes(to);
}

void add_format_options(CLI::App& command, DumpOptions& options) {
  command.add_option("--format", options.format, "tsv, csv or jsonl (--json means jsonl)")
      ->check(CLI::IsMember({"tsv", "csv", "jsonl"}))
      ->capture_default_str();
  command.add_option("-o,--output", options.output, "Write to this file");
}

}  // namespace

void add_dump(CLI::App& app, Action& action) {
  auto options = std::make_shared<DumpOptions>();
  CLI::App* command = add_command(
      app, "dump", "Print every record, in a form that `perdure load` reads back",
      "  perdure dump words.pool > words.tsv\n"
      "  perdure dump --format jsonl words.pool | jq .key\n"
      "  perdure dump words.pool | perdure load --capacity 10G bigger.pool -\n"
      "\nTSV: key, tab, value. Tab, newline, carriage return and backslash are written\n"
      "\\t \\n \\r \\\\, other control characters and bytes that are not UTF-8 \\xNN.\n"
      "JSON lines: {\"key\": ..., \"value\": ...}; what is not UTF-8 is base64, in\n"
      "\"key_base64\" and \"value_base64\". CSV is that of RFC 4180, with single newlines. Records "
      "come in no particular order.\n");
  command->alias("export");
  add_target_options(*command, options->target);
  add_reading_options(*command, options->target);
  add_format_options(*command, *options);
  command->callback([options, &action] { action = [options] { return run_dump(*options); }; });
}

void add_scan(CLI::App& app, Action& action) {
  auto options = std::make_shared<DumpOptions>();
  auto range = std::make_shared<RangeOptions>();
  CLI::App* command = add_command(
      app, "scan", "Print the records of a range, in the order of their keys",
      "  perdure scan --from oslo --to paris cities.pool\n"
      "  perdure scan --prefix per --limit 10 words.pool\n"
      "  perdure scan --from 1000 --format jsonl numbers.pool\n"
      "  perdure scan --reverse --limit 10 numbers.pool\n"
      "\nFor structures that keep an order: see `perdure list`. Formats are those of `perdure "
      "dump`.\n");
  add_target_options(*command, options->target);
  add_reading_options(*command, options->target);
  add_range_options(*command, *range);
  command->add_option("--limit", range->limit, "So many records at most, such as 10k");
  command->add_flag("--reverse", range->reverse, "From the last record of the range to the first");
  add_format_options(*command, *options);
  command->callback([options, range, &action] {
    action = [options, range] { return run_scan(*options, *range); };
  });
}

void add_count(CLI::App& app, Action& action) {
  auto target = std::make_shared<Target>();
  auto range = std::make_shared<RangeOptions>();
  CLI::App* command =
      add_command(app, "count", "Count the records of a structure, or of a range of its keys",
                  "  perdure count words.pool\n"
                  "  perdure count --prefix per words.pool\n"
                  "\nGoes through all of them. Ranges need a structure that keeps an order.\n");
  add_target_options(*command, *target);
  add_reading_options(*command, *target);
  add_range_options(*command, *range);
  command->callback([target, range, &action] {
    action = [target, range] { return run_count(*target, *range); };
  });
}

}  // namespace perdure::cli
