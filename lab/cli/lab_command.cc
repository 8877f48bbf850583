// How `perdure` comes to the commands of the laboratory: those that are linked into it, and those
// of perdure-lab, which it becomes.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cli/extension.h"
#include "cli/subprocess.h"
#include "lab/cli/commands.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct LabCommand {
  const char* name;
  const char* description;
};
constexpr std::array<LabCommand, 3> kCommands = {
    {{"amp", "Count what structures, or a program of yours, write to persistent memory"},
     {"crash", "Take structures, or a program of yours, through every crash the hardware allows"},
     {"trace", "Show what a recorded run did to persistent memory, event by event"}}};

// Of `study`, what counts is there, and what measures is here.
constexpr std::string_view kStudy = "write-amplification";

bool is_lab_command(int argc, char** argv) {
  const std::string_view first = argv[1];
  if (first == "study") return argc > 2 && argv[2] == kStudy;
  return std::any_of(kCommands.begin(), kCommands.end(),
                     [&](const LabCommand& command) { return command.name == first; });
}

std::string executable_folder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return ".";
  const std::string_view text(path.data(), static_cast<size_t>(length));
  return std::string(text.substr(0, text.rfind('/')));
}

// The path of perdure-lab: $PERDURE_LAB_COMMAND, or beside this executable, or in
// ../libexec/perdure (wherever it is installed to); empty if it is nowhere.
std::string find_lab_command() {
  if (const char* named = std::getenv("PERDURE_LAB_COMMAND")) return named;
  const std::string folder = executable_folder();
  for (const char* place : {"/perdure-lab", "/" PERDURE_LAB_FOLDER "/perdure-lab"}) {
    if (access((folder + place).c_str(), X_OK) == 0) return folder + place;
  }
  return "";
}

// What perdure-lab says of its commands: two texts with a form feed between. Nothing without it.
CompletionCases lab_cases() {
  CompletionCases cases;
  const std::string path = find_lab_command();
  if (path.empty()) return cases;
  Subprocess lab({path, "completion-cases"}, STDOUT_FILENO);
  std::string* into = &cases.values;
  lab.read_lines([&](std::string_view line) {
    if (line == "\f") {
      into = &cases.words;
    } else {
      *into += std::string(line) + "\n";
    }
    return true;
  });
  lab.wait();
  return cases;
}

void add_commands(CLI::App& app, Action& action) {
  add_bench(app, action);
  add_report(app, action);
  add_study(app, action);
  for (const LabCommand& known : kCommands) {
    add_lab_command(app, known.name, known.description, action);
  }
}

// If these arguments name one of its commands, becomes perdure-lab with the same arguments, and
// returns only by throwing Error(kNotFound). Else does nothing.
void run_lab_command(int argc, char** argv) {
  if (argc < 2 || !is_lab_command(argc, argv)) return;
  const std::string path = find_lab_command();
  if (path.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("this build has no instruments: `perdure {}` needs perdure-lab beside "
                            "this command, in " PERDURE_LAB_FOLDER " from there, or named by "
                            "PERDURE_LAB_COMMAND; building it takes GCC and no sanitizer",
                            argv[1]));
  }
  execv(path.c_str(), argv);
  throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", path, std::strerror(errno)));
}

[[maybe_unused]] const bool kExtended = extend({run_lab_command, add_commands, lab_cases});

}  // namespace

void add_lab_command(CLI::App& app, const std::string& name, const std::string& description,
                     Action& action) {
  CLI::App* command = app.add_subcommand(name, description);
  command->set_help_flag();  // perdure-lab has its help, and its completion
  // Arguments never come here: run_lab_command() has seen them before.
  command->callback([&action] { action = [] { return kExitError; }; });
}

}  // namespace perdure::cli
