// perdure crash: structures through every crash the hardware allows.

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "lab/crash/explorer.h"
#include "lab/crash/index_subject.h"
#include "lab/crash/mutation.h"
#include "lab/crash/sites.h"

namespace perdure::cli {
namespace {

struct CrashCommandOptions {
  lab::crash::IndexWorkload workload;
  double budget = 60;
  bool mutate = false;
};

int run_command(const CrashCommandOptions& options) {
  using namespace lab::crash;
  IndexSubject subject(options.workload);
  const Run run = subject.record({});
  fmt::print("{} events\n", run.trace.events.size());
  ExploreOptions explore_options;
  explore_options.seconds_max = options.budget;
  Verdicts verdicts;
  const Exploration result = explore(run, subject, explore_options, verdicts);
  fmt::print("points {} complete {} visited {} states {} nested {}/{} seconds {:.2f} finished {} findings {}\n", result.points,
             result.points_complete, result.visited, result.states, result.nested_runs,
             result.nested_states, result.seconds, result.finished, result.findings.size());
  const SiteNames names(run.trace);
  for (const Finding& f : result.findings) {
    fmt::print("event {} {} {}: {}\n", f.event, f.in_flight ? "in" : "after",
               run.operations[f.thread][f.operation], f.what);
    for (const auto& lost : f.lost) {
      fmt::print("   lost {} at {} \n", static_cast<int>(lost.state),
                 names.of(run.trace.events[lost.event].pc));
    }
  }
  if (options.mutate) {
    const auto m = mutate(run, subject, explore_options, verdicts,
           [](const MutationSite& s, size_t done, size_t of) {
             fmt::print("{}/{} {} {} x{} {} states {} {}\n", done, of, to_string(s.kind), s.place,
                        s.executions, s.killed ? "killed" : "SURVIVED", s.states, s.how.substr(0, 90));
             std::fflush(stdout);
           });
    fmt::print("{}/{} in {:.1f} s\n", m.killed, m.sites.size(), m.seconds);
  }
  return result.findings.empty() ? 0 : 1;
}

}  // namespace

void add_crash(CLI::App& app, Action& action);
void add_crash(CLI::App& app, Action& action) {
  auto options = std::make_shared<CrashCommandOptions>();
  CLI::App* command = add_command(app, "crash", "crash", "perdure crash plush");
  command->add_option("STRUCTURE", options->workload.structure)->required();
  command->add_option("--operations", options->workload.operations);
  command->add_option("--prepared", options->workload.prepared);
  command->add_option("--keys", options->workload.keys);
  command->add_option("--threads", options->workload.threads);
  command->add_option("--schedule", options->workload.schedule);
  command->add_option("--seed", options->workload.seed);
  command->add_option("--budget", options->budget);
  command->add_flag("--mutate", options->mutate);
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
