// The commands that run observed code, `amp`, `crash` and others: another executable, perdure-lab, has them,
// because observed code needs a runtime that the others are better without.
#pragma once

#include <string>

#include "cli/command.h"

namespace perdure::cli {

// For --help and completion.
void add_lab_commands(CLI::App& app, Action& action);
// One of them that is a subcommand of one that is not.
void add_lab_command(CLI::App& app, const std::string& name, const std::string& description,
                     Action& action);

// If these arguments name one of them, becomes perdure-lab with the same arguments, and returns
// only by throwing Error(kNotFound). Else does nothing.
void run_lab_command(int argc, char** argv);

// The path of perdure-lab: $PERDURE_LAB_COMMAND, or beside this executable, or in
// ../libexec/perdure (wherever it is installed to); empty if it is nowhere.
std::string find_lab_command();

}  // namespace perdure::cli
