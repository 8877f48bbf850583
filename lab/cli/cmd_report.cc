// perdure report: a page of plots from measured results.

#include <fmt/core.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>

#include "cli/command.h"
#include "lab/cli/commands.h"
#include "lab/report/report.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct ReportCommandOptions {
  std::vector<std::string> files;
  std::string output;
  lab::report::ReportOptions report;
};

void write_page(const std::string& path, const std::string& page) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << page;
  file.close();
  if (!file) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write {}: {}", path, std::generic_category().message(errno)));
  }
}

int run_report(const ReportCommandOptions& options) {
  const std::vector<lab::report::ResultFile> files = lab::report::read_results(options.files);
  const std::string page = lab::report::to_html(files, options.report);
  if (options.output.empty()) {
    fmt::print("{}", page);
  } else {
    write_page(options.output, page);
  }
  return kExitOk;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto options = std::make_shared<ReportCommandOptions>();
  CLI::App* command = add_command(
      app, "report", "Draw measured results: one page of plots and tables, to read or to send",
      "  perdure bench plush cceh --threads 1,2,4 --json > result.json\n"
      "  perdure report result.json -o report.html\n"
      "  perdure amp plush cceh --json > writes.json\n"
      "  perdure report result.json writes.json -o report.html\n"
      "  perdure report before.json after.json --compare -o comparison.html\n"
      "\nThe page loads nothing and follows the reader's light or dark scheme. A comparison gives "
      "for\n"
      "each measurement that both files have the ratio of the second to the first, with its 95 %\n"
      "confidence interval over the repeats (Welch's t test on their logarithms).\n");
  command
      ->add_option(
          "RESULT", options->files,
          "Files written by perdure bench --json, perdure amp --json or perdure study --json")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  command->add_option("-o,--output", options->output, "The page (default: standard output)");
  command->add_option("--title", options->report.title, "Its title")->capture_default_str();
  command->add_flag("--compare", options->report.compare,
                    "Compare two results of perdure bench: the second with the first");
  command->callback([options, &action] { action = [options] { return run_report(*options); }; });
}

}  // namespace perdure::cli
