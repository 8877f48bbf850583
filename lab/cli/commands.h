// The laboratory's part of the command line. `perdure` has some of its commands
// (src/cli/extension.h). Those that run observed code, `amp`, `crash` and others, are in another
// executable, perdure-lab, because observed code needs a runtime that the others are better
// without.
#pragma once

#include <string>

#include "cli/command.h"

namespace perdure::cli {

void add_bench(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
// Each of the two executables has a part of it.
void add_study(CLI::App& app, Action& action);
void add_study_buffer_pool(CLI::App& study, Action& action);
void add_study_lsm(CLI::App& study, Action& action);
void add_study_radix(CLI::App& study, Action& action);
void add_study_serving(CLI::App& study, Action& action);

// A command of perdure-lab: known to `perdure` for its help and completion.
void add_lab_command(CLI::App& app, const std::string& name, const std::string& description,
                     Action& action);

}  // namespace perdure::cli
