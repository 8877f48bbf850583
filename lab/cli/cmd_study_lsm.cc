// perdure study lsm: LevelDB in a pool, RocksDB's caches, and what a restart leaves of them.

#include <memory>

#include "cli/command.h"
#include "common/units.h"
#include "lab/cli/commands.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/lsm/lsm.h"

namespace perdure::cli {
namespace {

struct LsmCommandOptions {
  lab::study::LsmStudyOptions study;
  std::string records = "2M";
  std::string before = "10s";
  std::string after = "10s";
  std::string level_records = "1M";
  std::string seconds = "1s";
  StudyOutputs outputs;
};

int run_lsm(const LsmCommandOptions& options) {
  lab::study::LsmStudyOptions resolved = options.study;
  resolved.records = parse_count(options.records);
  resolved.level_records = parse_count(options.level_records);
  resolved.seconds = parse_duration_s(options.seconds);
  resolved.before_s = parse_duration_s(options.before);
  resolved.after_s = parse_duration_s(options.after);
  const auto run = [&](const ProgressSink& progress, const std::atomic<bool>& stop) {
    return lab::study::run_lsm_study(resolved, progress, stop);
  };
  const nlohmann::json study =
      run_and_show(options.outputs, run, lab::study::lsm_table, lab::study::lsm_html);
  return study.at("interrupted").get<bool>() ? kExitInterrupted : kExitOk;
}

void add_lsm_options(CLI::App& command, LsmCommandOptions& options) {
  lab::study::LsmStudyOptions& study = options.study;
  command
      .add_option("--part", study.parts,
                  "groups, reads, mixes (LevelDB in a pool), cost, restart (RocksDB's caches)")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--level-records", options.level_records, "LevelDB's, of 16 + 100 bytes")
      ->capture_default_str();
  command.add_option("--seconds", options.seconds, "For which each figure of LevelDB is measured")
      ->capture_default_str();
  command
      .add_option("--pm-times", study.pm_times,
                  "Latency of LevelDB's persistent memory, in times of DRAM's")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--dram-ns", study.dram_ns, "Which this is")->capture_default_str();
  command.add_option("--disk", study.disk_folder, "Folder on a disk, for LevelDB's files there")
      ->capture_default_str();
  command.add_option("--records", options.records, "RocksDB's, of 8 + 100 bytes, such as 10M")
      ->capture_default_str();
  command.add_option("--value-size", study.value_bytes, "Bytes of a value")->capture_default_str();
  command
      .add_option("--latency-us", study.latency_us,
                  "Of each read from a file, which the emulated SSD takes")
      ->capture_default_str();
  command
      .add_option("--dram", study.dram_percent,
                  "Of the cache in DRAM alone, in percent of the bytes of all records")
      ->capture_default_str();
  command
      .add_option("--dram-beside", study.dram_beside_percent,
                  "Of the cache in DRAM beside the one in persistent memory")
      ->capture_default_str();
  command.add_option("--pm", study.pm_percent, "Of the one in persistent memory")
      ->capture_default_str();
  command.add_option("--before", options.before, "Time of reading before the restart")
      ->capture_default_str();
  command.add_option("--after", options.after, "Time of reading afterwards")->capture_default_str();
  command
      .add_option("--skew", study.skew,
                  "So many of the records get the others' share of the reads: 0.2 is 80/20")
      ->capture_default_str();
  command.add_flag("--self-similar", study.self_similar,
                   "These reads are skewed in the same way within those records, and so on");
  command.add_flag("!--no-in-dram", study.in_dram,
                   "The cache in persistent memory does not keep what the one in DRAM has");
  command.add_option("--threads", study.threads, "That read")->capture_default_str();
  command.add_option("--repeats", study.repeats, "Of which medians are told")
      ->capture_default_str();
  command.add_option("--seed", study.seed, "The same seed gives the same reads")
      ->capture_default_str();
  add_folder_option(command, study.folder, "For database and pool, which are removed", "OPTIONS");
  command.add_option("--html", options.outputs.html, "Also write a page with plots to this file");
}

}  // namespace

void add_study_lsm(CLI::App& study, Action& action) {
  auto options = std::make_shared<LsmCommandOptions>();
  CLI::App* command = add_command(
      study, "lsm", "Measure what LevelDB and RocksDB gain by persistent memory",
      "  perdure study lsm --html study.html\n"
      "  perdure study lsm --records 20M --before 60s --after 60s --repeats 3 --json > study.json\n"
      "  perdure study lsm --part restart --latency-us 20 --threads 4\n"
      "  perdure study lsm --part groups,reads,mixes --pm-times 2,3,4,5 --level-records 2M\n"
      "\nLevelDB with its files in a pool: synced writes in groups, and what of it is worth DRAM. "
      "RocksDB on files\nthat answer like an SSD: with a block cache in DRAM, and with a smaller "
      "one and a persistent block\ncache in a pool, at the prices of the dissertation that it "
      "repeats; and how soon after a restart it is\nas fast as before. docs/studies.md says how to "
      "read it. It needs a build with libleveldb-dev and\nlibrocksdb-dev.\n");
  add_lsm_options(*command, *options);
  add_json_flag(*command, options->outputs.json);
  command->callback([options, &action] { action = [options] { return run_lsm(*options); }; });
}

}  // namespace perdure::cli
