// The `perdure` command: its subcommands, and what its exit code says.

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "cli/command.h"
#include "perdure/error.h"
#include "perdure/version.h"

namespace perdure::cli {
namespace {

constexpr char kFooter[] =
    "Start with `perdure quickstart`, or:\n"
    "  perdure put words.pool perdure 'to last'\n"
    "  perdure get words.pool perdure\n"
    "\n"
    "A key that begins with a dash goes behind `--`: perdure get words.pool -- -key\n"
    "\n"
    "Exit codes:\n"
    "  0  ok\n"
    "  1  the key is absent (put --insert: present)\n"
    "  2  usage: an argument makes no sense\n"
    "  3  the pool is damaged, or a verification failed\n"
    "  4  any other error; standard error says which\n"
    "  130  stopped by Ctrl-C\n"
    "\n"
    "Colour and progress bars appear on terminals only; NO_COLOR turns colour off.";

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    case ErrorCode::kCorrupt:
    case ErrorCode::kTruncated:
    case ErrorCode::kForeign:
    case ErrorCode::kEmpty:
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

int run(int argc, char** argv) {
  CLI::App app("Durable storage structures in persistent memory.", "perdure");
  app.footer(kFooter);
  app.set_version_flag("--version",
                       fmt::format("perdure {} (pool format {})", kVersion, kFormatVersion));
  app.require_subcommand(1);
  // Of an option that is given twice the last counts, so that scripts can append to a command.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Action action;
  add_put(app, action);
  add_get(app, action);
  add_del(app, action);
  add_load(app, action);
  add_dump(app, action);
  add_stat(app, action);
  add_pool(app, action);
  add_bench(app, action);
  add_quickstart(app, action);
  add_list(app, action);
  add_completion(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    fmt::print(stderr, "perdure: {}\nTry: {} --help\n", error.what(), chosen_command(app));
    return kExitUsage;
  }
  const int code = action();
  if (std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kIo, "cannot write to standard output");
  }
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
}  // namespace perdure::cli

int main(int argc, char** argv) {
  perdure::cli::watch_faults();
  // A reader that goes away is a failed write with an error, not a death without words.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return perdure::cli::run(argc, argv);
  } catch (const perdure::Error& error) {
    fmt::print(stderr, "perdure: {}\n", error.what());
    return perdure::cli::exit_code_of(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "perdure: {}\n", error.what());
    return perdure::cli::kExitError;
  }
}
