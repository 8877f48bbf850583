// Which of the places where a structure flushes and fences the runs of a campaign reached. What
// they did not reach, they say nothing about.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lab/crash/explorer.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {

class Coverage {
 public:
  // What a run and the recoveries of its images reached.
  void add(const Run& run, const Exploration& exploration);

  // The places of the same source folders (of structures, or of the store) that were not, such as
  // "flush write.cc:120 append".
  // Empty if there is no such folder, or if the machine code cannot be read.
  std::vector<std::string> unreached() const;
  uint64_t reached() const { return reached_.size(); }

 private:
  std::set<std::string> reached_;
  std::set<std::string> folders_;
  // Calls in this program, by which the others are found, and its symbols.
  std::set<PersistSite> calls_;
  Symbols* symbols_ = nullptr;
};

}  // namespace perdure::lab::crash
