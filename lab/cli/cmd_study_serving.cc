// perdure study serving: servers as their clients see them.

#include <memory>

#include "cli/command.h"
#include "common/units.h"
#include "lab/cli/commands.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/serving/serving.h"

namespace perdure::cli {
namespace {

struct ServingCommandOptions {
  lab::study::ServingStudyOptions study;
  std::string records = "200k";
  std::string operations = "1M";
  std::string time_limit = "2s";
  std::vector<std::string> rates = {"peak", "50%", "80%"};
  std::string server_cpus;
  std::string client_cpus;
  StudyOutputs outputs;
};

lab::study::ServingStudyOptions resolve(const ServingCommandOptions& options) {
  lab::study::ServingStudyOptions study = options.study;
  study.records = parse_count(options.records);
  study.operations = parse_count(options.operations);
  study.time_limit_s = parse_duration_s(options.time_limit);
  study.server.rates.clear();
  for (const std::string& rate : options.rates) {
    study.server.rates.push_back(lab::OfferedRate::parse(rate));
  }
  if (!options.server_cpus.empty()) {
    study.server.server_processors = lab::parse_processors(options.server_cpus);
  }
  if (!options.client_cpus.empty()) {
    study.server.client_processors = lab::parse_processors(options.client_cpus);
  }
  return study;
}

int run_serving(const ServingCommandOptions& options) {
  const lab::study::ServingStudyOptions resolved = resolve(options);
  const auto run = [&](const ProgressSink& progress, const std::atomic<bool>& stop) {
    return lab::study::run_serving_study(resolved, progress, stop);
  };
  const nlohmann::json study =
      run_and_show(options.outputs, run, lab::study::serving_table, lab::study::serving_html);
  if (study.at("interrupted").get<bool>()) return kExitInterrupted;
  for (const nlohmann::json& result : study.at("results")) {
    if (result.at("failed").get<uint64_t>() > 0) return kExitDamage;
  }
  return kExitOk;
}

void add_serving_options(CLI::App& command, ServingCommandOptions& options) {
  lab::study::ServingStudyOptions& study = options.study;
  as_list(command.add_option(
      "--part", study.parts,
      "A list of 100 and 1000 (mixes with values of so many bytes, latencies, memory), scans"));
  command.add_option("--records", options.records, "Records to load, such as 10M")
      ->capture_default_str();
  command.add_option("--operations", options.operations, "Of each mix and rate, at most")
      ->capture_default_str();
  command.add_option("--time", options.time_limit, "Of each mix and rate, at most")
      ->capture_default_str();
  command.add_option("--repeats", study.repeats, "Of which medians are told")
      ->capture_default_str();
  command.add_option("--seed", study.seed, "The same seed gives the same operations")
      ->capture_default_str();
  command.add_option("--distribution", study.distribution, "As of `perdure bench`")
      ->capture_default_str();
  as_list(command.add_option("--rate", options.rates, "As of `perdure bench`"));
  command.add_option("--connections", study.server.connections, "Of all clients")
      ->capture_default_str();
  command.add_option("--server-cpus", options.server_cpus, "As of `perdure bench`");
  command.add_option("--client-cpus", options.client_cpus, "As of `perdure bench`");
  command.add_option("--dram-price", study.dram_price, "Of a GiB")->capture_default_str();
  command.add_option("--pm-price", study.pm_price, "Of a GiB")->capture_default_str();
  add_folder_option(command, study.folder, "For pools and files, which are removed", "OPTIONS");
  command.add_option("--html", options.outputs.html, "Also write a page with plots to this file");
}

}  // namespace

void add_study_serving(CLI::App& study, Action& action) {
  auto options = std::make_shared<ServingCommandOptions>();
  CLI::App* command = add_command(
      study, "serving",
      "Measure `perdure serve`, Redis and memcached as the dissertation on RStore did",
      "  perdure study serving --html study.html\n"
      "  perdure study serving --records 10M --time 30s --repeats 3 --json > study.json\n"
      "  perdure study serving perdure redis+aof --part 100,scans --rate peak,20k,40k,60k\n"
      "\nMixes of reads and writes with small and with large values, latencies against the rate of "
      "requests, scans,\n"
      "memory and its price. Servers that are not installed are left out. docs/studies.md says how "
      "to read it.\n");
  command
      ->add_option("SERVER", options->study.servers,
                   "What to compare, as `perdure bench --server` takes it (default: perdure, "
                   "perdure:hash, redis, "
                   "redis+aof, memcached)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_serving_options(*command, *options);
  add_json_flag(*command, options->outputs.json);
  command->callback([options, &action] { action = [options] { return run_serving(*options); }; });
}

}  // namespace perdure::cli
