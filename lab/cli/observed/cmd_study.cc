// perdure study: whole studies, in one command each.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "lab/cli/commands.h"
#include "lab/cli/observed/amp_options.h"
#include "lab/cli/study_outputs.h"
#include "lab/study/write_amplification.h"

namespace perdure::cli {

namespace {

struct StudyCommandOptions {
  AmpChoices amp = {.workloads = {"load", "a", "b", "c"}};
  unsigned jobs = 0;
  std::string state;
  std::string html;
  bool json = false;
};

lab::study::StudyOptions resolve(const StudyCommandOptions& options) {
  lab::study::StudyOptions study;
  study.amp = resolve(options.amp);
  study.jobs = options.jobs;
  study.state = options.state;
  return study;
}

int exit_code_of(const lab::study::StudyReport& report) {
  if (report.interrupted) return kExitInterrupted;
  if (report.failed() > 0) return kExitDamage;
  return report.failures.empty() ? kExitOk : kExitError;
}

int run_write_amplification(const StudyCommandOptions& options) {
  const lab::study::StudyOptions study = resolve(options);
  StudyPage page(options.html);
  const InterruptFlag interrupt;
  lab::study::StudyReport report;
  {
    ProgressBar bar("ops");
    report = lab::study::run_study(study, bar.sink(), interrupt.raised());
  }
  fmt::print("{}", options.json ? to_json(report).dump(2) + "\n" : to_table(report));
  if (page.is_asked()) page.write(to_html(report));
  if (report.interrupted) print_how_to_continue(options.state);
  return exit_code_of(report);
}

void add_run_options(CLI::App& command, StudyCommandOptions& options) {
  const std::string group = "Run";
  add_state_option(command, options.state, group);
  command
      .add_option("--jobs", options.jobs,
                  "Cells that are counted at a time, in processes of their own (default: two, if "
                  "there are as many processors)")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  add_pool_options(command, options.amp.folder, options.amp.capacity, group);
  command.add_option("--html", options.html, "Also write a page with figures to this file")
      ->group(group);
}

void add_write_amplification(CLI::App& study, Action& action) {
  auto options = std::make_shared<StudyCommandOptions>();
  CLI::App* command = add_command(
      study, "write-amplification",
      "What every structure writes under LOAD, A, B and C, beside what was published",
      "  perdure study write-amplification\n"
      "  perdure study write-amplification --records 4M --state study.state --html study.html\n"
      "  perdure study write-amplification p-clht p-clht+fc --workload load,a --threads 1,16\n"
      "  perdure study write-amplification --json > study.json\n"
      "\nFor each structure and workload: 64-byte writes that reach the memory controller (WPQ), "
      "media\n"
      "writes, their ratio, and an estimate of the speed; then what each optimisation changes.\n"
      "docs/studies.md says how to read it. Ctrl-C gives what is done until then. Exit code 3 "
      "says\n"
      "that a structure gave wrong answers.\n");
  command
      ->add_option("STRUCTURE", options->amp.structures,
                   "Structures (default: all of the catalogue); see `perdure list`")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_workload_options(*command, options->amp, "Workload");
  add_model_options(*command, options->amp, "Model");
  add_run_options(*command, *options);
  add_json_flag(*command, options->json);
  command->callback(
      [options, &action] { action = [options] { return run_write_amplification(*options); }; });
}

}  // namespace

void add_study(CLI::App& app, Action& action) {
  CLI::App* study =
      add_command(app, "study", "Repeat a published study over the whole catalogue, in one command",
                  "  perdure study write-amplification --html study.html\n");
  study->require_subcommand(1);
  add_write_amplification(*study, action);
}

}  // namespace perdure::cli
