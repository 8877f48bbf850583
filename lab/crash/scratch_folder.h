// A folder of its own for files that nobody wants to keep: in memory, if there is such a place.
#pragma once

#include <string>

namespace perdure::lab::crash {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace perdure::lab::crash
