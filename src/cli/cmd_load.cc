// perdure load: store the records of a text file or of standard input.

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/loader.h"
#include "cli/open_index.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "perdure/store.h"

namespace perdure::cli {
namespace {

struct LoadCommandOptions {
  Target target;
  Creation creation;
  std::string source = "-";
  std::string format = "auto";
  uint32_t ranges = 0;  // 0: as the structure has it
  LoadOptions load;
};

TextFormat format_of(const LoadCommandOptions& options, LineSource& source) {
  const TextFormat format =
      options.format == "auto" ? detect_format(source) : parse_format(options.format);
  if (format == TextFormat::kCsv) source.keep_quoted_newlines();
  return format;
}

double rate_of(const LoadReport& report) {
  return report.seconds > 0 ? static_cast<double>(report.acknowledged) / report.seconds : 0;
}

void print_json(const LoadCommandOptions& options, TextFormat format, const LoadReport& report) {
  const nlohmann::json object = {{"source", options.source},
                                 {"format", to_string(format)},
                                 {"structure", options.target.name},
                                 {"lines", report.lines},
                                 {"acknowledged", report.acknowledged},
                                 {"skipped_bad", report.bad},
                                 {"bad_examples", report.bad_examples},
                                 {"resumed_after", report.resumed_after},
                                 {"complete", !report.interrupted},
                                 {"seconds", report.seconds},
                                 {"records_per_second", rate_of(report)}};
  fmt::print("{}\n", object.dump(2));
}

void print_text(const LoadReport& report) {
  const Palette palette(stdout);
  for (const std::string& sentence : report.bad_examples) {
    fmt::print(stderr, "perdure: skipped {}\n", sentence);
  }
  if (report.resumed_after > 0 && report.resumed_after == report.lines && !report.interrupted) {
    fmt::print("{}: all {} lines were acknowledged before; nothing to do\n",
               palette.good("already loaded"), format_count(report.lines));
    return;
  }
  fmt::print("{}: {} lines read, {} records acknowledged in {:.2f} s ({})",
             report.interrupted ? palette.bad("stopped") : palette.good("loaded"),
             format_count(report.lines), format_count(report.acknowledged), report.seconds,
             format_rate(rate_of(report)));
  if (report.resumed_after > 0) {
    fmt::print(", after {} that an earlier load had acknowledged",
               format_count(report.resumed_after));
  }
  if (report.bad > 0) fmt::print(", {} bad lines skipped", format_count(report.bad));
  fmt::print("{}\n", report.interrupted ? "; --resume goes on from there" : "");
}

void check_acknowledge_fd(const LoadOptions& options) {
  if (options.bulk && options.acknowledge_fd >= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "--acknowledge reports each record as soon as it is durable, and with --bulk none "
                "is on its own; leave one of them out");
  }
  if (options.acknowledge_fd < 0 || fcntl(options.acknowledge_fd, F_GETFD) != -1) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("--acknowledge {}: this file descriptor is not open", options.acknowledge_fd));
}

// Keys of the source, each as likely as any other. Bad lines are left to the load.
std::vector<std::string> sample_keys(const LoadCommandOptions& options) {
  constexpr uint64_t kSample = 64 << 10;
  LineSource source(options.source);
  if (!source.is_file()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--ranges: {} is no file; the source is read twice, to sample its "
                            "keys first",
                            source.name()));
  }
  const TextFormat format = format_of(options, source);
  const Kind value_kind =
      options.creation.value_kind.empty() ? Kind::kBytes : parse_kind(options.creation.value_kind);
  std::mt19937_64 random(1);
  std::vector<std::string> lines;
  std::string_view line;
  for (uint64_t met = 0; source.next(line);) {
    if (is_blank(line, format) || (options.load.header && source.line_number() == 1)) continue;
    if (met++ < kSample) {
      lines.emplace_back(line);
    } else if (const uint64_t place = random() % met; place < kSample) {
      lines[place] = line;
    }
  }
  std::vector<std::string> keys;
  Value key;
  Value value;
  for (const std::string& one : lines) {
    try {
      parse_record(one, format, Kind::kBytes, value_kind, key, value);
      keys.emplace_back(key.bytes());
    } catch (const Error&) {
      continue;
    }
  }
  return keys;
}

// As the option of a store that is made.
std::string boundaries_option(const LoadCommandOptions& options) {
  std::string text;
  for (const std::string& boundary : Store::boundaries_of(sample_keys(options), options.ranges)) {
    text += text.empty() ? "boundaries=" : ",";
    for (const char c : boundary) {
      text += c == ',' || c == '\\' ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                                    : std::string(1, c);
    }
  }
  return text;
}

int run_load(const LoadCommandOptions& options) {
  check_acknowledge_fd(options.load);
  const InterruptFlag interrupt;
  // The source first: without it, no pool is made.
  LineSource source(options.source, &interrupt.raised());
  const TextFormat format = format_of(options, source);
  Creation creation = options.creation;
  if (options.ranges != 0) {
    if (std::string text = boundaries_option(options); !text.empty()) {
      creation.options.push_back(std::move(text));
    }
  }
  const std::unique_ptr<OpenIndex> opened = OpenIndex::open_or_create(options.target, creation);
  LoadOptions load = options.load;
  if (!catalog_entry(opened->structure().type).traits.concurrent) load.threads = 1;
  LoadReport report;
  {
    std::optional<LoadProgress> progress(std::in_place, opened->pool(), options.target.name);
    ProgressBar bar("records");
    report = load_records(opened->index(), *progress, source, format, load, bar.sink(),
                          interrupt.raised());
  }
  opened->close();
  if (options.target.json) {
    print_json(options, format, report);
  } else {
    print_text(report);
  }
  return report.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace

void add_load(CLI::App& app, Action& action) {
  auto options = std::make_shared<LoadCommandOptions>();
  options->load.threads = std::max(std::thread::hardware_concurrency(), 1U);
  CLI::App* command = add_command(
      app, "load",
      "Store every record of a text file, durably; makes pool and structure if missing",
      "  perdure load words.pool words.tsv\n"
      "  perdure load --resume words.pool words.tsv      # go on after a crash or Ctrl-C\n"
      "  perdure load --structure rstore+ordered --ranges 16 words.pool words.tsv\n"
      "  zcat big.jsonl.gz | perdure load --capacity 20G big.pool -\n"
      "  perdure load --key-kind u64 --value-kind u64 numbers.pool squares.tsv\n"
      "\nTSV: key, tab, value on each line; \\t \\n \\r \\\\ and \\xNN stand for single bytes.\n"
      "CSV: key, comma, value, as in RFC 4180: a field in quotes may hold commas, newlines, and "
      "quotes\n"
      "written twice. JSON lines: {\"key\": ..., \"value\": ...}, or \"key_base64\" and "
      "\"value_base64\" for any\n"
      "bytes. Of a key that comes twice, the last line wins. What was stored stays stored when "
      "the\n"
      "load is stopped; loading again is harmless, and --resume leaves out what is known to be "
      "done\n"
      "(kept in the pool, in the structure NAME.progress). A bad line ends the load with exit code "
      "4\n"
      "unless --skip-bad is given.\n");
  command->alias("import");
  add_target_options(*command, options->target);
  command->add_option("FILE", options->source, "The source; - is standard input")
      ->capture_default_str();
  command
      ->add_option("--format", options->format,
                   "tsv, csv, jsonl, or auto: by the file's extension, else by its first byte")
      ->check(CLI::IsMember({"auto", "tsv", "csv", "jsonl"}))
      ->capture_default_str();
  command->add_flag("--header", options->load.header, "The first line names the fields");
  command->add_option("--threads", options->load.threads, "Threads that store")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--resume", options->load.resume,
                    "Leave out the leading lines that an earlier load of this source acknowledged");
  command->add_flag("--skip-bad", options->load.skip_bad, "Count bad lines and go on");
  command->add_flag("--bulk", options->load.bulk,
                    "Do not wait for each record to be durable, but for all of them now and then "
                    "and at the end (plush; other structures make each durable anyway)");
  command
      ->add_option("--ranges", options->ranges,
                   "Cut a new store into so many partitions by ranges of keys, which a sample of "
                   "FILE shows to have about as many records each; FILE is read twice")
      ->check(CLI::Range(1, 1024));
  command->add_option("--acknowledge", options->load.acknowledge_fd,
                      "Write the number of each line to this file descriptor (one a line) as soon "
                      "as its record is durable");
  add_creation_options(*command, options->creation);
  command->callback([options, &action] { action = [options] { return run_load(*options); }; });
}

}  // namespace perdure::cli
