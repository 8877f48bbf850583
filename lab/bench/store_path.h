// Where a benchmark keeps what it makes, and how that goes away.
#pragma once

#include <string>

namespace perdure::lab {

// A name for a pool file, or a folder of files, which is removed at the end. A benchmark that was
// killed cannot remove its own, and on tmpfs that is memory: the next one in the same folder does.
class StorePath {
 public:
  explicit StorePath(const std::string& folder);
  ~StorePath() { remove(); }
  StorePath(const StorePath&) = delete;
  StorePath& operator=(const StorePath&) = delete;
  const std::string& path() const { return path_; }
  void remove() const;

 private:
  std::string path_;
};

}  // namespace perdure::lab
