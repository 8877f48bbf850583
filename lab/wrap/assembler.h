// The front end that stands in for `as`: reads its command line, and runs the real one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace perdure::lab::wrap {

// A command line of the GNU assembler, `@file` arguments replaced by what the files hold.
struct AssemblerCommand {
  std::vector<std::string> options;  // all that is no input, in order
  std::vector<std::string> inputs;   // none or `-`: standard input
  bool only_information = false;     // --help, --version and the like: nothing is assembled
  bool is_64_bit = true;             // neither --32 nor --x32
};

// Throws std::runtime_error if an `@file` cannot be read.
AssemblerCommand read_command(const std::vector<std::string>& arguments);

// The text of all inputs, each behind a line that tells its name to the assembler, so that messages
// and debug information name the file that the user knows. Throws std::runtime_error with the name
// of what cannot be read.
std::string read_inputs(const std::vector<std::string>& inputs);

// The assembler to run: the one that PERDURE_AS names or, without it, the first `as` on PATH that
// is not this program. Throws std::runtime_error if there is none.
std::string find_assembler();

// Becomes the real assembler. Returns only if that fails, with errno.
int exec_assembler(const std::string& path, const std::vector<std::string>& arguments);

// Runs the real assembler on a text. Its exit status, or 128 plus the signal that ended it.
int run_assembler(const std::string& path, const std::vector<std::string>& options,
                  const std::string& text);

}  // namespace perdure::lab::wrap
