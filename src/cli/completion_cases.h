// What completes a command line, made from its definition.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace perdure::cli {

// Arms of two `case` statements of bash.
struct CompletionCases {
  std::string values;  // of options, by "command:--option"
  std::string words;   // options, subcommands and structures, by "command"
};

// Of all subcommands of `app` but hidden ones; with `path` empty, of the command itself too.
void add_completion_cases(const CLI::App& app, const std::string& path, CompletionCases& cases);

}  // namespace perdure::cli
