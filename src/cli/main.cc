// The `perdure` command: its subcommands, and what its exit code says.

#include <fmt/core.h>

#include "cli/entry.h"
#include "cli/extension.h"
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
    "  141  the reader of standard output went away, as `head` does\n"
    "\n"
    "Colour and progress bars appear on terminals only; NO_COLOR turns colour off.";

void define(CLI::App& app, Action& action) {
  app.description("Durable storage structures in persistent memory.");
  app.footer(kFooter);
  app.set_version_flag("--version",
                       fmt::format("perdure {} (pool format {})", kVersion, kFormatVersion));
  add_put(app, action);
  add_get(app, action);
  add_del(app, action);
  add_load(app, action);
  add_dump(app, action);
  add_scan(app, action);
  add_count(app, action);
  add_stat(app, action);
  add_pool(app, action);
  add_convert(app, action);
  add_drop(app, action);
  add_rename(app, action);
  add_files(app, action);
  add_db(app, action);
  add_store(app, action);
  add_serve(app, action);
  for (const Extension& extension : extensions()) extension.add_commands(app, action);
  add_quickstart(app, action);
  add_list(app, action);
  add_completion(app, action);
}

}  // namespace
}  // namespace perdure::cli

int main(int argc, char** argv) {
  return perdure::cli::run_command_line(argc, argv,
                                        [&](CLI::App& app, perdure::cli::Action& action) {
                                          for (const auto& one : perdure::cli::extensions()) {
                                            one.dispatch(argc, argv);
                                          }
                                          perdure::cli::define(app, action);
                                        });
}
