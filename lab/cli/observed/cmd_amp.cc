// perdure amp: what structures write to persistent memory, counted on a model of it.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "lab/amp/amp.h"
#include "lab/amp/report.h"
#include "lab/cli/kinds.h"
#include "lab/cli/observed/amp_options.h"
#include "perdure/error.h"

namespace perdure::cli {

void add_amp(CLI::App& app, Action& action);

namespace {

struct AmpCommandOptions {
  AmpChoices amp = {.workloads = {"load"}};  // its structures may be the program's arguments
  std::string key_kind;
  std::string value_kind;
  std::string key_size = "16";
  std::string value_size = "64";
  std::vector<std::string> options;
  std::string program;
  bool by_site = false;
  size_t site_rows = 30;
  bool show_profile = false;
  bool json = false;
};

lab::AmpOptions resolve(const AmpCommandOptions& options) {
  lab::AmpOptions amp = resolve(options.amp);
  amp.structure_options = parse_structure_options(options.options);
  amp.key_kind = parse_kind(kind_or_default(options.key_kind, amp.structures));
  amp.value_kind = parse_kind(kind_or_default(options.value_kind, amp.structures));
  amp.key_bytes = parse_bytes(options.key_size);
  amp.value_bytes = parse_bytes(options.value_size);
  return amp;
}

void print(const lab::AmpReport& report, const AmpCommandOptions& options) {
  if (options.json) {
    fmt::print("{}\n", lab::to_json(report).dump(2));
    return;
  }
  fmt::print("{}", lab::to_table(report));
  if (options.by_site) fmt::print("{}", lab::sites_table(report, options.site_rows));
}

int run_structures(const AmpCommandOptions& options) {
  const lab::AmpOptions amp = resolve(options);
  const InterruptFlag interrupt;
  lab::AmpReport report;
  {
    ProgressBar bar("ops");
    report = lab::run_amp(amp, bar.sink(), interrupt.raised());
  }
  print(report, options);
  if (report.interrupted) return kExitInterrupted;
  return report.failed() > 0 ? kExitDamage : kExitOk;
}

int run_program(const AmpCommandOptions& options) {
  std::vector<std::string> command = {options.program};
  command.insert(command.end(), options.amp.structures.begin(), options.amp.structures.end());
  uint64_t records = 0;
  if (!options.amp.no_scale && !options.amp.records.empty()) {
    records = parse_count(options.amp.records);
  }
  const lab::AmpReport report =
      lab::run_amp_program(command, options.amp.profile, records, options.amp.threads);
  print(report, options);
  return report.program_code;
}

int show_profile(const AmpCommandOptions& options) {
  lab::Profile profile = lab::load_profile(options.amp.profile);
  if (!options.amp.records.empty() && !options.amp.no_scale) {
    lab::scale_cache(profile, parse_count(options.amp.records));
  }
  fmt::print("{}",
             options.json ? lab::to_json(profile).dump(2) + "\n" : lab::profile_table(profile));
  return kExitOk;
}

int run_command(const AmpCommandOptions& options) {
  if (options.show_profile) return show_profile(options);
  return options.program.empty() ? run_structures(options) : run_program(options);
}

void add_workload_options(CLI::App& command, AmpCommandOptions& options) {
  const std::string group = "Workload";
  add_workload_options(command, options.amp, group);
  for (const auto& [name, kind] : {std::pair{"--key-kind", &options.key_kind},
                                   std::pair{"--value-kind", &options.value_kind}}) {
    command
        .add_option(name, *kind,
                    "u64 or bytes (default: u64, or bytes if a structure takes nothing else)")
        ->check(CLI::IsMember({"u64", "bytes"}))
        ->group(group);
  }
  command.add_option("--key-size", options.key_size, "Bytes of a byte-string key, 8 at least")
      ->capture_default_str()
      ->group(group);
  command.add_option("--value-size", options.value_size, "Bytes of a byte-string value")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--option", options.options,
                  "NAME=VALUE, an option of the structures; may be repeated; see `perdure list`")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
}

void add_model_options(CLI::App& command, AmpCommandOptions& options) {
  const std::string group = "Model";
  add_model_options(command, options.amp, group);
  command.add_flag("--show-profile", options.show_profile, "Print the profile and do nothing else")
      ->group(group);
}

void add_run_options(CLI::App& command, AmpCommandOptions& options) {
  const std::string group = "Run";
  command
      .add_option("--program", options.program,
                  "Run this program, built with perdure-cc or perdure-c++, instead of structures")
      ->group(group);
  add_pool_options(command, options.amp.folder, options.amp.capacity, group);
  command.add_flag("--by-site", options.by_site, "Also show which lines of code write how much")
      ->group(group);
  command.add_option("--site-rows", options.site_rows, "Lines of these tables at most")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_amp(CLI::App& app, Action& action) {
  auto options = std::make_shared<AmpCommandOptions>();
  CLI::App* command = add_command(
      app, "amp", "Count what structures, or a program of yours, write to persistent memory",
      "  perdure amp plush --workload load,a,b,c --records 4M\n"
      "  perdure amp plush cceh --workload load --by-site\n"
      "  perdure amp plush --profile eadr --threads 1,2,4,8\n"
      "  perdure amp plush --profile my-memory.json --json > counts.json\n"
      "  perdure amp --program ./my-table --records 1M -- --my-option 17\n"
      "  perdure amp --show-profile --profile cxl\n"
      "\nThe structure runs with every load, store, flush and fence observed; a model of caches,\n"
      "memory controller and DIMMs counts what becomes of them. Counts are exact for the model "
      "and\n"
      "the same in every run; times are estimates from the counts. docs/lab.md explains both. The\n"
      "exit code of a program is passed on. Exit code 3 says that a structure gave wrong "
      "answers.\n");
  command
      ->add_option("STRUCTURE", options->amp.structures,
                   "Structures, side by side; see `perdure list`. With --program: its arguments")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_workload_options(*command, *options);
  add_model_options(*command, *options);
  add_run_options(*command, *options);
  add_json_flag(*command, options->json);
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
