#include "cli/entry.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string_view>
#include <system_error>

#include "perdure/error.h"

namespace perdure::cli {
namespace {

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    case ErrorCode::kCorrupt:
    case ErrorCode::kTruncated:
      return kExitDamage;
    default:
      return kExitError;
  }
}

// "perdure pool info", as far as the command line was understood.
std::string chosen_command(const CLI::App& app) {
  std::string words = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    words += " " + at->get_name();
  }
  return words;
}

// A word where a subcommand was expected: what CLI11 calls "a subcommand is required". Empty if
// that is not what is wrong.
std::string not_a_command(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::string names;
  for (const CLI::App* command : at->get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  if (names.empty()) return "";
  for (const std::string& word : at->remaining()) {
    if (word.starts_with('-')) continue;
    return fmt::format("\"{}\" is no command of {}; there are: {}", word, chosen_command(app),
                       names);
  }
  return "";
}

int run(int argc, char** argv, const std::function<void(CLI::App&, Action&)>& define) {
  CLI::App app;
  app.name("perdure");
  app.require_subcommand(1);
  // Of an option that is given twice the last counts, so that scripts can append to a command.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Action action;
  define(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help and --version
      errno = 0;
      app.exit(error);
      if (!std::cout || std::fflush(stdout) != 0) throw_cannot_write("standard output", errno);
      return kExitOk;
    }
    const std::string unknown = not_a_command(app);
    fmt::print(stderr, "perdure: {}\nTry: {} --help\n", unknown.empty() ? error.what() : unknown,
               chosen_command(app));
    return kExitUsage;
  }
  const int code = action();
  if (std::fflush(stdout) != 0) throw_cannot_write("standard output", errno);
  return code;
}

// Says what a memory fault most likely means, and lets it take its course.
void on_fault(int signal) {
  constexpr std::string_view kMessage =
      "perdure: a memory fault. If the pool file was altered, cut short, or comes from a failing "
      "disk, `perdure pool check` names the damage; else this is a bug of perdure.\n";
  const ssize_t unused = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  static_cast<void>(unused);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Not where a sanitizer has its own handler.
void watch_faults() {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    struct sigaction present{};
    if (sigaction(signal, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
      std::signal(signal, on_fault);
    }
  }
}

}  // namespace

int run_command_line(int argc, char** argv, const std::function<void(CLI::App&, Action&)>& define) {
  watch_faults();
  // A reader that goes away is a failed write with an error, not a death without words.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv, define);
  } catch (const ClosedPipe&) {
    return kExitClosedPipe;
  } catch (const std::system_error& error) {  // of fmt::print()
    if (error.code().value() == EPIPE) return kExitClosedPipe;
    fmt::print(stderr, "perdure: {}\n", error.what());
    return kExitError;
  } catch (const Error& error) {
    fmt::print(stderr, "perdure: {}\n", error.what());
    if (error.code() == ErrorCode::kCorrupt) {
      fmt::print(stderr, "`perdure pool check` names all that is damaged.\n");
    }
    return exit_code_of(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "perdure: {}\n", error.what());
    return kExitError;
  }
}

}  // namespace perdure::cli
