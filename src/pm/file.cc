#include "pm/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "pm/system_error.h"

namespace perdure::pm {

namespace {

constexpr uint64_t kSmallPageBytes = 4096;

void touch(char* byte) {
  volatile char* const at = byte;
  *at = *at;
}

}  // namespace

uint64_t read_at(int file, const std::string& subject, uint64_t offset, void* to, uint64_t bytes) {
  uint64_t done = 0;
  bool touched = false;
  while (done < bytes) {
    const ssize_t n = ::pread(file, static_cast<char*>(to) + done, bytes - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EFAULT && !touched) {
      // A pool's memory that a backup has protected: the system does not wait for it, a store does.
      touched = true;
      for (uint64_t at = done; at < bytes; at += kSmallPageBytes)
        touch(static_cast<char*>(to) + at);
      touch(static_cast<char*>(to) + bytes - 1);
      continue;
    }
    if (n < 0) throw_errno("read", subject, errno);
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
  }
  return done;
}

void write_at(int file, const std::string& subject, uint64_t offset, const void* from,
              uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(file, static_cast<const char*>(from) + done, bytes - done,
                               static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw_errno("write", subject, n == 0 ? ENOSPC : errno);
    done += static_cast<uint64_t>(n);
  }
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void sync_parent_of(const std::string& path) {
  const std::string parent = parent_of(path);
  const int folder = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) throw_errno("open", parent, errno);
  const int result = ::fsync(folder);
  const int reason = errno;
  ::close(folder);
  if (result != 0) throw_errno("fsync", parent, reason);
}

void rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  int reason = errno;
  if (reason == EINVAL || reason == ENOSYS) {  // the file system cannot; mostly it can link
    if (::link(from.c_str(), to.c_str()) == 0) {
      ::unlink(from.c_str());
      return;
    }
    reason = errno;
  }
  if (reason == EEXIST) {
    throw Error(ErrorCode::kExists, to + " has come to be there meanwhile; it stays as it is");
  }
  throw_errno("rename", to, reason);
}

namespace {

thread_local bool makes_private_files = false;

}  // namespace

PrivateFiles::PrivateFiles() : before_(makes_private_files) { makes_private_files = true; }
PrivateFiles::~PrivateFiles() { makes_private_files = before_; }

mode_t new_file_mode() { return makes_private_files ? 0600 : 0644; }

}  // namespace perdure::pm
