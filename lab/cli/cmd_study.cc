// perdure study: the part of it that measures. What counts on observed code is in perdure-lab.

#include <memory>

#include "cli/command.h"
#include "lab/cli/commands.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/range/range_indexes.h"

namespace perdure::cli {
namespace {

struct RangeCommandOptions {
  lab::study::RangeStudyOptions study;
  std::vector<std::string> parts = {"load", "uniform", "self-similar", "long-keys"};
  StudySizes sizes;
  StudyOutputs outputs;
};

lab::study::RangeStudyOptions resolve(const RangeCommandOptions& options) {
  lab::study::RangeStudyOptions study = options.study;
  study.parts.clear();
  for (const std::string& part : options.parts) {
    study.parts.push_back(lab::study::parse_range_part(part));
  }
  resolve_sizes(options.sizes, study);
  return study;
}

int run_range_indexes(const RangeCommandOptions& options) {
  const lab::study::RangeStudyOptions resolved = resolve(options);
  const auto run = [&](const ProgressSink& progress, const std::atomic<bool>& stop) {
    return lab::study::run_range_study(resolved, progress, stop);
  };
  const nlohmann::json study =
      run_and_show(options.outputs, run, lab::study::range_table, lab::study::range_html);
  if (study.at("interrupted").get<bool>()) print_how_to_continue(resolved.state);
  return exit_code_of_measured(study);
}

void add_workload_options(CLI::App& command, RangeCommandOptions& options) {
  const std::string group = "Workload";
  as_list(command.add_option(
              "--part", options.parts,
              "A list of load (with memory and recovery), uniform, self-similar, long-keys"))
      ->group(group);
  command.add_option("--records", options.sizes.records, "Records to load for each, such as 10M")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--operations", options.sizes.operations,
                  "Operations of each experiment (default: as many as records)")
      ->group(group);
  as_list(command.add_option("--threads", options.study.threads, "A list, such as 1,2,4"))
      ->group(group);
  command.add_option("--seed", options.study.seed, "The same seed gives the same operations")
      ->capture_default_str()
      ->group(group);
}

void add_run_options(CLI::App& command, RangeCommandOptions& options) {
  const std::string group = "Run";
  add_state_option(command, options.study.state, group);
  command.add_option("--repeats", options.study.repeats, "Of which medians are told")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--latency-sampling", options.study.latency_sampling,
                  "Share of the operations that are timed one by one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--emulate", options.study.emulated_medium,
          "Slow persists down to those of a medium: optane, a profile of `perdure amp`, or a stall "
          "for each line that is flushed, such as 300ns")
      ->group(group);
  add_pool_options(command, options.study.folder, options.sizes.capacity, group);
  command.add_option("--html", options.outputs.html, "Also write a page with plots to this file")
      ->group(group);
}

void add_range_indexes(CLI::App& study, Action& action) {
  auto options = std::make_shared<RangeCommandOptions>();
  CLI::App* command = add_command(
      study, "range-indexes",
      "Measure every range tree as the comparison of PiBench did, beside what it found",
      "  perdure study range-indexes --html study.html\n"
      "  perdure study range-indexes --records 10M --threads 1,8,16 --state study.state\n"
      "  perdure study range-indexes fptree wbtree --part uniform,long-keys\n"
      "  perdure study range-indexes --json > study.json; perdure report study.json -o page.html\n"
      "\nSingle operations and mixes, uniform and skewed, words and byte strings, by numbers of\n"
      "threads; latencies, memory and recovery. docs/studies.md says how to read it. Ctrl-C gives\n"
      "what is done until then. Exit code 3 says that a structure gave wrong answers, 4 that a\n"
      "measurement failed.\n");
  command
      ->add_option("STRUCTURE", options->study.structures,
                   "What to compare (default: all range trees, and dram-btree as a bound); other "
                   "stores of `perdure bench` too")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_workload_options(*command, *options);
  add_run_options(*command, *options);
  add_json_flag(*command, options->outputs.json);
  command->callback(
      [options, &action] { action = [options] { return run_range_indexes(*options); }; });
}

}  // namespace

void add_study(CLI::App& app, Action& action) {
  CLI::App* study =
      add_command(app, "study", "Repeat a published study over the whole catalogue, in one command",
                  "  perdure study range-indexes --html study.html\n"
                  "  perdure study buffer-pool --html study.html\n"
                  "  perdure study radix-trees --html study.html\n"
                  "  perdure study lsm --html study.html\n"
                  "  perdure study serving --html study.html\n"
                  "  perdure study write-amplification --html study.html\n");
  study->require_subcommand(1);
  add_range_indexes(*study, action);
  add_study_buffer_pool(*study, action);
  add_study_radix(*study, action);
  add_study_lsm(*study, action);
  add_study_serving(*study, action);
  add_lab_command(*study, "write-amplification",
                  "What every structure writes under LOAD, A, B and C, beside what was published",
                  action);
}

}  // namespace perdure::cli
