#include "buffer/data_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "perdure/error.h"
#include "pm/file.h"
#include "pm/file_lock.h"
#include "pm/system_error.h"

namespace perdure::buffer {

namespace {

// What io_uring has under way for a process goes on after its death, and keeps the lock so long:
// who comes next must not write before. It is a matter of milliseconds; a file whose pool is
// another one's is told as locked after this time.
void wait_for_the_dead(int file, const std::string& path) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (pm::has_writer(file, path) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string file_subject(const std::string& path, const char* what) {
  return fmt::format("{}: the {}", path, what);
}

}  // namespace

int open_data_file(const std::string& path, const char* what, bool create) {
  const std::string subject = file_subject(path, what);
  const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
  int file = ::open(path.c_str(), flags | O_DIRECT, 0644);
  // tmpfs and some others know no O_DIRECT; some of them have made the file by then.
  if (file < 0 && errno == EINVAL) file = ::open(path.c_str(), flags & ~O_EXCL, 0644);
  if (file < 0 && create && errno == EEXIST) {
    throw Error(ErrorCode::kExists,
                fmt::format("{} is there already, and a new database needs a file of its own: {}",
                            subject, kIfLeftBehind));
  }
  if (file < 0) pm::throw_errno("open", subject, errno);
  bool own = false;
  try {
    wait_for_the_dead(file, path);
    pm::lock_for_writer(file, path, what);
    own = create;
    if (create) {
      if (::fsync(file) != 0) pm::throw_errno("fsync", subject, errno);
      pm::sync_parent_of(path);
    }
  } catch (...) {
    if (own) ::unlink(path.c_str());
    ::close(file);
    throw;
  }
  return file;
}

int open_data_file_to_read(const std::string& path, const char* what) {
  const std::string subject = file_subject(path, what);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) pm::throw_errno("open", subject, errno);
  wait_for_the_dead(file, path);
  if (!pm::has_writer(file, path)) return file;
  ::close(file);
  throw Error(ErrorCode::kLocked, fmt::format("{} is in use by another process", subject));
}

}  // namespace perdure::buffer
