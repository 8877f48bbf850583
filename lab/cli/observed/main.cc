// perdure-lab: the commands of `perdure` that run observed code. `perdure` becomes it when one of
// them is asked for.

#include <fmt/core.h>

#include "cli/completion_cases.h"
#include "cli/entry.h"
#include "lab/cli/commands.h"

namespace perdure::cli {

void add_amp(CLI::App& app, Action& action);
void add_crash(CLI::App& app, Action& action);
void add_trace(CLI::App& app, Action& action);

namespace {

// For `perdure completion`.
void add_completion_cases_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("completion-cases", "");
  command->group("");
  command->callback([&app, &action] {
    action = [&app] {
      CompletionCases cases;
      for (const CLI::App* each : app.get_subcommands(nullptr)) {
        if (!each->get_group().empty()) add_completion_cases(*each, each->get_name(), cases);
      }
      fmt::print("{}\f\n{}", cases.values, cases.words);
      return kExitOk;
    };
  });
}

void define(CLI::App& app, Action& action) {
  app.description("The instruments of perdure.");
  add_amp(app, action);
  add_crash(app, action);
  add_study(app, action);
  add_trace(app, action);
  add_completion_cases_command(app, action);
}

}  // namespace
}  // namespace perdure::cli

int main(int argc, char** argv) {
  return perdure::cli::run_command_line(argc, argv, perdure::cli::define);
}
