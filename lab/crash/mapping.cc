#include "lab/crash/mapping.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "perdure/error.h"

namespace perdure::lab::crash {

void throw_system_error(const std::string& what) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(errno)));
}

Mapping::Mapping(uint64_t bytes) : bytes_(bytes) {
  base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) throw_system_error("cannot map memory for a program");
}

Mapping::Mapping(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw_system_error(path);
  struct stat status{};
  base_ = MAP_FAILED;
  if (fstat(file, &status) == 0) {
    bytes_ = static_cast<uint64_t>(status.st_size);
    // Shared by its words: in worker processes the runtime makes it private (private_files.h).
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int reason = errno;
  close(file);
  errno = reason;
  if (base_ == MAP_FAILED) throw_system_error(path);
}

Mapping::~Mapping() { munmap(base_, bytes_); }

}  // namespace perdure::lab::crash
