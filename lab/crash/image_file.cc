#include "lab/crash/image_file.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "perdure/error.h"

namespace perdure::lab::crash {

ImageFile::ImageFile(uint64_t bytes)
    : descriptor_(memfd_create("perdure-crash-image", MFD_CLOEXEC)), size_(bytes) {
  const auto fail = [](const char* what) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make a crash image: {}: {}", what, std::strerror(errno)));
  };
  if (descriptor_ < 0) fail("memfd_create");
  // System calls without the C library: the runtime makes files private in workers, and a worker
  // that explores a recovery needs an image that its own workers share.
  if (syscall(SYS_ftruncate, descriptor_, bytes) != 0) fail("ftruncate");
  const long mapped =
      syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == -1) fail("mmap");
  bytes_ = reinterpret_cast<unsigned char*>(mapped);  // NOLINT: an address, as the call gives it
  path_ = fmt::format("/proc/self/fd/{}", descriptor_);
}

ImageFile::~ImageFile() {
  munmap(bytes_, size_);
  close(descriptor_);
}

}  // namespace perdure::lab::crash
