// What a study has finished, in a file, so that one that was interrupted goes on where it stopped.
//
//   StateFile state("study.state", parameters);
//   for (const json& result : state.results()) ...   // of earlier runs
//   state.add(result);
//
// The file has a line of JSON for the parameters and one for each result. A line that a crash cut
// short does not count and is removed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perdure::lab::study {

class StateFile {
 public:
  // Makes the file, or takes it up. With an empty path nothing is kept. Throws
  // Error(kInvalidArgument) if it is another kind of file, or was kept by a run with other
  // parameters, which it names; Error(kLocked) if another process has it; Error(kIo).
  StateFile(std::string path, const nlohmann::json& parameters);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const std::vector<nlohmann::json>& results() const { return results_; }
  // Throws Error(kIo).
  void add(const nlohmann::json& result);

 private:
  void take_up(const std::string& text, const nlohmann::json& parameters);
  void append(const nlohmann::json& line) const;

  std::string path_;
  int file_ = -1;
  std::vector<nlohmann::json> results_;
};

// A text that differs between builds of this program: whose counts may differ.
std::string build_identity();

}  // namespace perdure::lab::study
