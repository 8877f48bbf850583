// A folder of a study's own, which goes with all that is in it.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "perdure/error.h"

namespace perdure::lab::study {

class StudyFolder {
 public:
  explicit StudyFolder(const std::string& where) : path_(where + "/perdure-study-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr)
      throw Error(ErrorCode::kIo, fmt::format("{}: no folder can be made there", where));
  }
  // Not by a child that has died of an exception: the folder is its parent's.
  ~StudyFolder() {
    if (getpid() != owner_) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  StudyFolder(const StudyFolder&) = delete;
  StudyFolder& operator=(const StudyFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  pid_t owner_ = getpid();
};

}  // namespace perdure::lab::study
