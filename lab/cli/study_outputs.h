// What the studies have in common on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/progress.h"
#include "common/units.h"

namespace perdure::cli {

// The page that a study writes at its end. Opened before the work, so that a path that cannot be
// written costs nothing. Throws Error(kIo).
class StudyPage {
 public:
  explicit StudyPage(const std::string& path);  // empty: none is asked for
  bool is_asked() const { return file_.is_open(); }
  void write(const std::string& html);

 private:
  std::string path_;
  std::ofstream file_;
};

// Where a study is shown.
struct StudyOutputs {
  std::string html;   // the page; empty: none
  bool json = false;  // its document in place of its table
};

// Runs a study beneath a progress bar, until Ctrl-C asks it to end, and shows it. Returns it.
// Throws what StudyPage and `run` throw.
using RunStudy =
    std::function<nlohmann::json(const ProgressSink& progress, const std::atomic<bool>& stop)>;
using ShowStudy = std::string (*)(const nlohmann::json& study);
nlohmann::json run_and_show(const StudyOutputs& outputs, const RunStudy& run, ShowStudy table,
                            ShowStudy html);

// Sizes as texts, of a study that measures cells.
struct StudySizes {
  std::string records = "200k";
  std::string operations;  // empty: as the study has it; capacity, too
  std::string capacity;
};
template <typename StudyOptions>
void resolve_sizes(const StudySizes& sizes, StudyOptions& study) {
  study.records = parse_count(sizes.records);
  if (!sizes.operations.empty()) study.operations = parse_count(sizes.operations);
  if (!sizes.capacity.empty()) study.capacity_bytes = parse_bytes(sizes.capacity);
}

void add_state_option(CLI::App& command, std::string& state, const std::string& group);

// Of a study that measures: interrupted, wrong answers, cells that failed, or none of these.
int exit_code_of_measured(const nlohmann::json& study);

// After an interruption, on standard error.
void print_how_to_continue(const std::string& state_path);

}  // namespace perdure::cli
