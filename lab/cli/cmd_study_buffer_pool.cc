// perdure study buffer-pool: the database's buffer pool in persistent memory, through crashes and
// beside others.

#include <memory>

#include "cli/command.h"
#include "common/units.h"
#include "lab/cli/commands.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/buffer/buffer_pool.h"

namespace perdure::cli {
namespace {

struct BufferCommandOptions {
  lab::study::BufferStudyOptions study;
  std::string records = "500k";
  std::string peer_records = "200k";
  std::string pages = "128M";
  std::string updates = "100k";
  std::string log = "32M";
  std::string before = "4s";
  std::string after = "6s";
  std::string seconds = "1s";
  StudyOutputs outputs;
};

lab::study::BufferStudyOptions resolve_buffer(const BufferCommandOptions& options) {
  lab::study::BufferStudyOptions study = options.study;
  study.records = parse_count(options.records);
  study.peer_records = parse_count(options.peer_records);
  study.pages_bytes = parse_bytes(options.pages);
  study.updates = parse_count(options.updates);
  study.log_bytes = parse_bytes(options.log);
  study.before_s = parse_duration_s(options.before);
  study.after_s = parse_duration_s(options.after);
  study.seconds = parse_duration_s(options.seconds);
  if (study.medium == "none") study.medium.clear();
  return study;
}

// A violation of what must hold is damage.
int exit_code_of_buffer(const nlohmann::json& study) {
  if (study.at("interrupted").get<bool>()) return kExitInterrupted;
  const nlohmann::json& results = study.at("results");
  if (results.contains("kills") && !results.at("kills").at("problems").empty()) return kExitDamage;
  if (results.contains("peers")) {
    for (const nlohmann::json& each : results.at("peers").at("stores"))
      if (each.at("problems") != 0) return kExitDamage;
  }
  return kExitOk;
}

int run_buffer_pool(const BufferCommandOptions& options) {
  const lab::study::BufferStudyOptions resolved = resolve_buffer(options);
  const auto run = [&](const ProgressSink& progress, const std::atomic<bool>& stop) {
    return lab::study::run_buffer_study(resolved, progress, stop);
  };
  const nlohmann::json study =
      run_and_show(options.outputs, run, lab::study::buffer_table, lab::study::buffer_html);
  return exit_code_of_buffer(study);
}

void add_restart_options(CLI::App& command, BufferCommandOptions& options) {
  const std::string group = "Restart and shares of DRAM";
  lab::study::BufferStudyOptions& study = options.study;
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str()->group(group);
  };
  add("--records", options.records, "Of 8 + 100 bytes, such as 10M");
  add("--value-size", study.value_bytes, "Bytes of a value");
  add("--pool", study.pool_percent, "Memory for pages, in percent of all pages");
  add("--dram", study.dram_percent, "Of that memory, what is DRAM, in percent");
  as_list(command.add_option("--dram-shares", study.dram_percents,
                             "The shares of DRAM to be compared, in percent"))
      ->group(group);
  as_list(command.add_option("--restarts", study.restarts,
                             "A list of aries, instant and ours: the restarts to be compared"))
      ->group(group);
  add("--mix", study.mix, "YCSB's of restart: a (half updates), b (a twentieth), c (reads)");
  add("--distribution", study.distribution, "Of the records, as `perdure bench` has it");
  add("--log", options.log, "Bytes of the log");
  add("--latency-us", study.latency_us, "Of each page read from the emulated SSD");
  add("--write-latency-us", study.write_latency_us, "Of each page written to it, and of a sync");
  add("--pm-ns", study.pm_ns, "That each use of a page in persistent memory takes longer");
  add("--emulate", study.medium,
      "The medium whose flushes and fences persists take: optane, a profile of `perdure amp`, "
      "none");
  add("--before", options.before, "Time before the crash, the second half of it on the SSD");
  add("--after", options.after, "Time afterwards; half of it for each share of DRAM");
}

void add_buffer_options(CLI::App& command, BufferCommandOptions& options) {
  lab::study::BufferStudyOptions& study = options.study;
  as_list(command.add_option("--part", study.parts,
                             "A list of updates, restart, dram, peers and kills"));
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  add("--seconds", options.seconds, "Of each throughput of dram and peers");
  add("--threads", study.threads, "That work on a store");
  add("--repeats", study.repeats, "Of which medians are told");
  add("--seed", study.seed, "The same seed gives the same operations");
  add("--pages", options.pages, "Bytes of pages that updates are made to");
  add("--updates", options.updates, "Of each size, in five turns");
  add("--peer-records", options.peer_records, "Of point reads and updates beside other stores");
  add("--warehouses", study.tpcc.warehouses, "Of TPC-C");
  add("--items", study.tpcc.items, "Of TPC-C, which has 100,000");
  add("--kills", study.kills, "Of TPC-C, each with a check");
  add_restart_options(command, options);
  add_folder_option(command, study.folder, "For databases, pools and files, which are removed",
                    "OPTIONS");
  command.add_option("--html", options.outputs.html, "Also write a page with plots to this file");
}

}  // namespace

void add_study_buffer_pool(CLI::App& study, Action& action) {
  auto options = std::make_shared<BufferCommandOptions>();
  CLI::App* command = add_command(
      study, "buffer-pool",
      "Measure the database's buffer pool: checksums, restarts, shares of DRAM, TPC-C",
      "  perdure study buffer-pool --html study.html\n"
      "  perdure study buffer-pool --part restart --records 10M --before 60s --after 120s\n"
      "  perdure study buffer-pool --part peers,kills --warehouses 8 --kills 100\n"
      "\nWhat checksums cost an update; how soon after a SIGKILL a database on an emulated SSD is "
      "as "
      "fast as\nbefore, beside restarts that know nothing of pages in persistent memory; what a "
      "share of DRAM is worth;\nRocksDB's transactions and LMDB on the same medium. "
      "docs/studies.md says how to read it. Exit code 3\nsays that a check of what was committed "
      "failed.\n");
  add_buffer_options(*command, *options);
  add_json_flag(*command, options->outputs.json);
  command->callback(
      [options, &action] { action = [options] { return run_buffer_pool(*options); }; });
}

}  // namespace perdure::cli
