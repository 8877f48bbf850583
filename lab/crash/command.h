// Commands of the user, run with a time limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace perdure::lab::crash {

// The words of a command line, as a shell splits them: quotes and backslashes count. If it needs
// more of a shell than that (variables, pipes, patterns), the words run one.
std::vector<std::string> command_words(const std::string& line);

struct CommandResult {
  int status = 0;       // its exit code
  std::string problem;  // how it ended instead of exiting, in words
  std::string output;   // its standard output
  std::string errors;   // its standard error, at most a few KiB
};

inline constexpr uint64_t kCommandErrorBytes = 4096;  // of the standard error that are kept

struct CommandLimits {
  unsigned seconds = 10;
  uint64_t output_bytes = uint64_t{64} << 20;
};

// Runs a command to its end, with variables added to the environment (an empty value removes one)
// and no standard input. It is killed with its children when its time is over, and when this
// process dies. Throws Error(kNotFound) if there is no such program, Error(kIo) if it cannot be
// run.
CommandResult run_command(const std::vector<std::string>& words,
                          const std::vector<std::pair<std::string, std::string>>& variables,
                          const CommandLimits& limits);

// Starts a command in a process group of its own, with variables added as above, no standard input,
// its output and errors in these files, and `inherited` open. It is killed when this process dies.
// -1 if it cannot be started.
pid_t start_command(const std::vector<std::string>& words,
                    const std::vector<std::pair<std::string, std::string>>& variables, int output,
                    int errors, int inherited);

}  // namespace perdure::lab::crash
