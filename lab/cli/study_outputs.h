// What the studies have in common on the command line.
#pragma once

#include <fstream>
#include <string>

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

// After an interruption, on standard error.
void print_how_to_continue(const std::string& state_path);

}  // namespace perdure::cli
