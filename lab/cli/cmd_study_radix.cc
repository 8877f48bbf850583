// perdure study radix-trees: radix trees beside B+trees, by keys and write latency.

#include <memory>

#include "cli/command.h"
#include "lab/cli/commands.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/radix/radix_trees.h"

namespace perdure::cli {
namespace {

struct RadixCommandOptions {
  lab::study::RadixStudyOptions study;
  std::vector<std::string> keys = {"dense", "sparse", "clustered"};
  StudySizes sizes;
  StudyOutputs outputs;
};

lab::study::RadixStudyOptions resolve(const RadixCommandOptions& options) {
  lab::study::RadixStudyOptions study = options.study;
  study.keys.clear();
  for (const std::string& keys : options.keys) {
    study.keys.push_back(lab::study::parse_radix_keys(keys));
  }
  resolve_sizes(options.sizes, study);
  return study;
}

int run_radix_trees(const RadixCommandOptions& options) {
  const lab::study::RadixStudyOptions resolved = resolve(options);
  const auto run = [&](const ProgressSink& progress, const std::atomic<bool>& stop) {
    return lab::study::run_radix_study(resolved, progress, stop);
  };
  const nlohmann::json study =
      run_and_show(options.outputs, run, lab::study::radix_table, lab::study::radix_html);
  if (study.at("interrupted").get<bool>()) print_how_to_continue(resolved.state);
  return exit_code_of_measured(study);
}

void add_radix_options(CLI::App& command, RadixCommandOptions& options) {
  const std::string group = "Workload";
  as_list(command.add_option("--keys", options.keys, "A list of dense, sparse, clustered"))
      ->group(group);
  as_list(command.add_option("--write-latency", options.study.write_latencies_ns,
                             "A list of nanoseconds that each flushed line takes more; 0: this "
                             "memory as it is"))
      ->group(group);
  as_list(command.add_option("--length", options.study.lengths,
                             "A list of the records that range queries ask for"))
      ->group(group);
  command
      .add_option("--records", options.sizes.records, "Records to insert into each, such as 10M")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--operations", options.sizes.operations,
                  "Searches, and a tenth as many range queries (default: as many as records)")
      ->group(group);
  as_list(command.add_option("--threads", options.study.threads, "A list, such as 1,2"))
      ->group(group);
  command.add_option("--seed", options.study.seed, "The same seed gives the same operations")
      ->capture_default_str()
      ->group(group);
}

void add_radix_run_options(CLI::App& command, RadixCommandOptions& options) {
  const std::string group = "Run";
  add_state_option(command, options.study.state, group);
  command.add_option("--repeats", options.study.repeats, "Of which medians are told")
      ->capture_default_str()
      ->group(group);
  add_pool_options(command, options.study.folder, options.sizes.capacity, group);
  command.add_option("--html", options.outputs.html, "Also write a page with plots to this file")
      ->group(group);
}

}  // namespace

void add_study_radix(CLI::App& study, Action& action) {
  auto options = std::make_shared<RadixCommandOptions>();
  CLI::App* command = add_command(
      study, "radix-trees",
      "Measure radix trees beside B+trees, by the keys and the write latency of the memory",
      "  perdure study radix-trees --html study.html\n"
      "  perdure study radix-trees --records 10M --repeats 3 --state study.state\n"
      "  perdure study radix-trees wort wbtree --keys dense,sparse --write-latency 0,300,600\n"
      "  perdure study radix-trees p-hot+vl p-masstree+vl p-bwtree --json > study.json\n"
      "\nThe evaluation of WORT: inserts as the memory gets slower to write, lines flushed and "
      "fences for\neach insert, searches, range queries and memory, with dense, sparse and "
      "clustered keys.\ndocs/studies.md says how to read it. Ctrl-C gives what is done until then. "
      "Exit code 3 says that\na structure gave wrong answers, 4 that a measurement failed.\n");
  command
      ->add_option("STRUCTURE", options->study.structures,
                   "What to compare (default: wort, woart, art-cow, p-art+vl, wbtree, nv-tree, "
                   "fptree, fast-fair)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_radix_options(*command, *options);
  add_radix_run_options(*command, *options);
  add_json_flag(*command, options->outputs.json);
  command->callback(
      [options, &action] { action = [options] { return run_radix_trees(*options); }; });
}

}  // namespace perdure::cli
