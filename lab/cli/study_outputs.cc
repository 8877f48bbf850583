#include "lab/cli/study_outputs.h"

#include <fmt/core.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "perdure/error.h"

namespace perdure::cli {

StudyPage::StudyPage(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_.open(path);
  if (!file_) throw Error(ErrorCode::kIo, fmt::format("{}: cannot write the page there", path));
}

void StudyPage::write(const std::string& html) {
  file_ << html;
  file_.close();
  if (!file_) throw Error(ErrorCode::kIo, fmt::format("{}: cannot write the page", path_));
}

nlohmann::json run_and_show(const StudyOutputs& outputs, const RunStudy& run, ShowStudy table,
                            ShowStudy html) {
  StudyPage page(outputs.html);
  const InterruptFlag interrupt;
  nlohmann::json study;
  {
    ProgressBar bar("ops");
    study = run(bar.sink(), interrupt.raised());
  }
  fmt::print("{}", outputs.json ? study.dump(2) + "\n" : table(study));
  if (page.is_asked()) page.write(html(study));
  return study;
}

void add_state_option(CLI::App& command, std::string& state, const std::string& group) {
  command
      .add_option("--state", state,
                  "Keep what is done in this file; the same command then goes on where one that "
                  "was interrupted stopped")
      ->group(group);
}

void print_how_to_continue(const std::string& state_path) {
  fmt::print(stderr, "{}\n",
             state_path.empty()
                 ? "With --state FILE, a study that is interrupted can be continued."
                 : fmt::format("The same command goes on where this stopped: {} keeps what is "
                               "done.",
                               state_path));
}

int exit_code_of_measured(const nlohmann::json& study) {
  if (study.at("interrupted").get<bool>()) return kExitInterrupted;
  for (const nlohmann::json& result : study.at("results")) {
    if (result.at("failed").get<uint64_t>() > 0) return kExitDamage;
  }
  return study.at("failures").empty() ? kExitOk : kExitError;
}

}  // namespace perdure::cli
