// The program that GCC runs as its assembler when observed code is compiled (`-B FOLDER`).
//
// Its command line is that of `as`, with nothing added. What it says itself begins with
// `perdure-as:`. Environment: PERDURE_AS names the real assembler; PERDURE_AS_KEEP=FILE keeps the
// text that it is given; PERDURE_AS_QUIET=1 silences the warnings.
#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/wrap/assembler.h"
#include "lab/wrap/rewriter.h"

namespace {

using perdure::lab::wrap::AssemblerCommand;

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != 0 && std::strcmp(value, "0") != 0;
}

void report(const perdure::lab::wrap::Rewritten& rewritten, const AssemblerCommand& command) {
  if (is_set("PERDURE_AS_QUIET")) return;
  const bool named = !command.inputs.empty() && command.inputs.front() != "-";
  const std::string name = named ? command.inputs.front() : "standard input";
  const size_t added_lines = named ? 1 : 0;  // the line that names the file
  for (const auto& warning : rewritten.warnings) {
    std::cerr << "perdure-as: " << name << ": line " << warning.line - added_lines << ": "
              << warning.text << '\n';
  }
}

int assemble(const std::vector<std::string>& arguments) {
  namespace wrap = perdure::lab::wrap;
  const std::string assembler = wrap::find_assembler();
  const AssemblerCommand command = wrap::read_command(arguments);
  if (command.only_information || !command.is_64_bit) {
    const int error = wrap::exec_assembler(assembler, arguments);
    throw std::runtime_error("cannot run the assembler '" + assembler +
                             "': " + std::strerror(error));
  }
  const std::string text = wrap::read_inputs(command.inputs);
  const wrap::Rewritten rewritten = wrap::rewrite(text);
  report(rewritten, command);
  if (const char* keep = std::getenv("PERDURE_AS_KEEP"); keep != nullptr && *keep != 0) {
    std::ofstream(keep) << rewritten.text;
  }
  return wrap::run_assembler(assembler, command.options, rewritten.text);
}

}  // namespace

int main(int argc, char** argv) try {
  return assemble({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::cerr << "perdure-as: " << error.what() << '\n';
  return 1;
}
