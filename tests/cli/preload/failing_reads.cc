// Preloaded into a command: a medium of which whole segments cannot be read from the file. What is
// mapped can. With $PERDURE_READS_HANG such a read makes a file of this name, and does not end.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  constexpr size_t kSegmentBytes = 64 << 10;
  if (bytes != kSegmentBytes) return ::syscall(SYS_pread64, file, to, bytes, offset);
  if (const char* const told = std::getenv("PERDURE_READS_HANG"); told != nullptr) {
    ::close(::open(told, O_CREAT | O_WRONLY, 0600));
    for (;;) ::pause();
  }
  errno = EIO;
  return -1;
}

extern "C" ssize_t pread64(int file, void* to, size_t bytes, off_t offset) {
  return pread(file, to, bytes, offset);
}
