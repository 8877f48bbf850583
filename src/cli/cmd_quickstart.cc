// perdure quickstart: see it survive.

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/describe.h"
#include "cli/quickstart.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/units.h"

namespace perdure::cli {
namespace {

double load_rate(const QuickstartReport& report) {
  return report.load_seconds > 0
             ? static_cast<double>(report.loaded_after_kill) / report.load_seconds
             : 0;
}

std::string count_in_colour(const Palette& palette, uint64_t count) {
  return count == 0 ? palette.good("0") : palette.bad(format_count(count));
}

void print_summary(const QuickstartOptions& options, const QuickstartReport& report) {
  const Palette palette(stdout);
  const Facts facts = {
      {"records", format_count(report.records)},
      {"acknowledged",
       fmt::format("{} before the kill", format_count(report.acknowledged_before_kill))},
      {"lost", count_in_colour(palette, report.lost)},
      {"recovery", format_nanoseconds(report.recovery_ms * 1e6) + " to open after the kill"},
      {"served", fmt::format("{} of {} answers right, the first {} after a SIGKILL and a new start",
                             format_count(report.served_right), format_count(report.served_asked),
                             format_nanoseconds(report.served_first_answer_ms * 1e6))},
      {"throughput", fmt::format("{} with {}", format_rate(load_rate(report)),
                                 format_counted(options.threads, "thread"))},
      {"in DRAM", format_bytes(static_cast<uint64_t>(report.dram_bytes))},
      {"in the pool", fmt::format("{} for {} of text", format_bytes(report.pool.size_bytes),
                                  format_bytes(report.source_bytes))},
      {"medium", medium_in_words(report.pool.medium)},
      {"domain", domain_in_words(report.pool.domain)},
      {"durability", durability_in_words(report.pool)}};
  fmt::print("\n{}\n{}\n", palette.bold("Summary"), to_lines(facts));
  fmt::print("{}\n", report.sound() ? palette.good("Everything that was acknowledged is there.")
                                    : palette.bad("VERIFICATION FAILED: see above."));
  if (options.keep) {
    fmt::print("Look around: perdure get {0}/words.pool persist; perdure stat {0}/words.pool\n",
               options.folder);
  } else {
    fmt::print("The pool was removed; with --keep it stays, to look around.\n");
  }
}

int run_command(QuickstartOptions options, bool json) {
  options.quiet = json;
  const QuickstartReport report = run_quickstart(options);
  if (json) {
    fmt::print("{}\n", to_json(report).dump(2));
  } else {
    print_summary(options, report);
  }
  return report.sound() ? kExitOk : kExitDamage;
}

}  // namespace

nlohmann::json to_json(const QuickstartReport& report) {
  nlohmann::json looked_up = nlohmann::json::array();
  for (const auto& [word, text] : report.looked_up) {
    nlohmann::json record = nlohmann::json::object();
    set_json(record, "key", word);
    set_json(record, "value", text);
    looked_up.push_back(record);
  }
  return {{"records", report.records},
          {"source_bytes", report.source_bytes},
          {"acknowledged_before_kill", report.acknowledged_before_kill},
          {"killed", report.killed},
          {"present_after_kill", report.present_after_kill},
          {"lost", report.lost},
          {"wrong", report.wrong},
          {"recovery_ms", report.recovery_ms},
          {"loaded_after_kill", report.loaded_after_kill},
          {"load_seconds", report.load_seconds},
          {"records_per_second", load_rate(report)},
          {"verified", report.verified},
          {"excess", report.excess},
          {"served_asked", report.served_asked},
          {"served_right", report.served_right},
          {"served_first_answer_ms", report.served_first_answer_ms},
          {"problems", report.problems},
          {"sound", report.sound()},
          {"dram_bytes", report.dram_bytes},
          {"pool", pool_json(report.pool)},
          {"looked_up", looked_up}};
}

void add_quickstart(CLI::App& app, Action& action) {
  auto options = std::make_shared<QuickstartOptions>();
  auto json = std::make_shared<bool>(false);
  options->threads = std::max(std::thread::hardware_concurrency(), 2U);
  CLI::App* command =
      add_command(app, "quickstart",
                  "Load a dictionary durably, kill the loader half-way, find everything again, "
                  "serve it",
                  "  perdure quickstart\n"
                  "  perdure quickstart --folder /dev/shm/perdure --keep\n"
                  "\nThe data is real: WordNet (Debian package wordnet-base) and the package index "
                  "that apt has\n"
                  "downloaded. Exit code 3 if a record was lost or is wrong.\n");
  add_folder_option(*command, options->folder, "For the pool; decides the medium", "Options");
  command->add_option("--threads", options->threads, "Threads that load")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--keep", options->keep, "Leave the pool and its source in the folder");
  command->add_option("--source", options->source,
                      "Load this TSV or JSON lines file and not the dictionary");
  add_json_flag(*command, *json);
  command->callback([options, json, &action] {
    action = [options, json] { return run_command(*options, *json); };
  });
}

}  // namespace perdure::cli
