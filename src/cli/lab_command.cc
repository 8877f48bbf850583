#include "cli/lab_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

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

}  // namespace

void add_lab_command(CLI::App& app, const std::string& name, const std::string& description,
                     Action& action) {
  CLI::App* command = app.add_subcommand(name, description);
  command->set_help_flag();  // perdure-lab has its help, and its completion
  // Arguments never come here: run_lab_command() has seen them before.
  command->callback([&action] { action = [] { return kExitError; }; });
}

void add_lab_commands(CLI::App& app, Action& action) {
  for (const LabCommand& known : kCommands) {
    add_lab_command(app, known.name, known.description, action);
  }
}

std::string find_lab_command() {
  if (const char* named = std::getenv("PERDURE_LAB_COMMAND")) return named;
  const std::string folder = executable_folder();
  for (const char* place : {"/perdure-lab", "/" PERDURE_LAB_FOLDER "/perdure-lab"}) {
    if (access((folder + place).c_str(), X_OK) == 0) return folder + place;
  }
  return "";
}

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

}  // namespace perdure::cli
