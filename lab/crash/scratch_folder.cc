#include "lab/crash/scratch_folder.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "perdure/error.h"

namespace perdure::lab::crash {

ScratchFolder::ScratchFolder() {
  std::error_code ignored;
  std::string pattern = std::filesystem::exists("/dev/shm", ignored) ? "/dev/shm" : "/tmp";
  pattern += "/perdure-crash-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: cannot make a folder: {}", pattern, std::strerror(errno)));
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace perdure::lab::crash
