#include "lab/cli/study_outputs.h"

#include <fmt/core.h>

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

void print_how_to_continue(const std::string& state_path) {
  fmt::print(stderr, "{}\n",
             state_path.empty()
                 ? "With --state FILE, a study that is interrupted can be continued."
                 : fmt::format("The same command goes on where this stopped: {} keeps what is "
                               "done.",
                               state_path));
}

}  // namespace perdure::cli
