// What the executables of the command have in common: from arguments to an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/command.h"

namespace perdure::cli {

// Says what a memory fault most likely means before it takes its course, lets `define` describe the
// command line, parses it, carries out the action and turns errors into messages and exit codes.
int run_command_line(int argc, char** argv, const std::function<void(CLI::App&, Action&)>& define);

}  // namespace perdure::cli
