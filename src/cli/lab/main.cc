// perdure-lab: the part of `perdure` that runs observed code.

#include <fmt/format.h>

#include "cli/command.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::cli {
void add_crash(CLI::App& app, Action& action);
}

int main(int argc, char** argv) {
  using namespace perdure::cli;
  CLI::App app("Instruments", "perdure");
  app.require_subcommand(1);
  Action action;
  add_crash(app, action);
  CLI11_PARSE(app, argc, argv);
  try {
    return action();
  } catch (const std::exception& error) {
    fmt::print(stderr, "perdure: {}\n", error.what());
    return kExitError;
  }
}
