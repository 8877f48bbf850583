#include "pm/unfinished_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "pm/file.h"
#include "pm/system_error.h"

namespace perdure::pm {

namespace {

constexpr std::string_view kEnding = ".unfinished";
constexpr size_t kDigits = 16;

}  // namespace

uint64_t random_number(const std::string& subject) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw_errno("getrandom", subject, errno);
  }
  return number;
}

mode_t mode_of(int file) {
  struct stat status{};
  if (file < 0 || ::fstat(file, &status) != 0) return UnfinishedFile::kModeMax;
  return status.st_mode & UnfinishedFile::kModeMax;
}

mode_t mode_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return UnfinishedFile::kModeMax;
  return status.st_mode & UnfinishedFile::kModeMax;
}

UnfinishedFile::UnfinishedFile(const std::string& path, mode_t mode) : path_(path), mode_(mode) {
  remove_left_over();
  while (!make()) {
  }
}

UnfinishedFile::~UnfinishedFile() {
  if (!finished_) ::unlink(unfinished_.c_str());
  ::close(file_);
}

void UnfinishedFile::copy_from(const UnfinishedFile& other) {
  constexpr size_t kPart = size_t{1} << 20;
  off_t from = 0;
  ssize_t copied = 0;
  do {
    copied = ::copy_file_range(other.file_, &from, file_, nullptr, kPart, 0);
  } while (copied > 0 || (copied < 0 && errno == EINTR));
  if (copied == 0) return;
  if (errno != EXDEV && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    throw_errno("copy_file_range", unfinished_, errno);
  // The system cannot: by hand.
  std::vector<char> part(kPart);
  auto at = static_cast<uint64_t>(from);
  while (const uint64_t got = read_at(other.file_, other.unfinished_, at, part.data(), kPart)) {
    write_at(file_, unfinished_, at, part.data(), got);
    at += got;
  }
}

void UnfinishedFile::finish(bool replace) {
  if (::fsync(file_) != 0) throw_errno("fsync", unfinished_, errno);
  if (!replace) {
    rename_to_new(unfinished_, path_);
  } else if (::rename(unfinished_.c_str(), path_.c_str()) != 0) {
    throw_errno("rename", path_, errno);
  }
  finished_ = true;
  sync_parent_of(path_);
}

bool UnfinishedFile::make() {
  unfinished_ = fmt::format("{}.{:016x}{}", path_, random_number(path_), kEnding);
  file_ =
      ::open(unfinished_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, new_file_mode() & mode_);
  if (file_ < 0 && errno == EEXIST) return false;
  if (file_ < 0) throw_errno("open", unfinished_, errno);
  // Where there are no locks nobody gets the one that he removes such a file with. Who has it now
  // is about to.
  int result = 0;
  do {
    result = ::flock(file_, LOCK_SH | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  const bool is_being_removed = result != 0 && errno == EWOULDBLOCK;
  struct stat status{};
  if (!is_being_removed && ::fstat(file_, &status) == 0 && status.st_nlink > 0) return true;
  ::close(file_);  // taken for left over before it was locked
  return false;
}

// As far as that can be done: it is in nobody's way.
void UnfinishedFile::remove_left_over() const {
  const std::string begin = std::filesystem::path(path_).filename().string() + ".";
  std::error_code failed;
  for (std::filesystem::directory_iterator at(parent_of(path_), failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.size() != begin.size() + kDigits + kEnding.size() || !name.starts_with(begin) ||
        !name.ends_with(kEnding) ||
        name.find_first_not_of("0123456789abcdef", begin.size()) != begin.size() + kDigits) {
      continue;
    }
    const int file = ::open(at->path().c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) continue;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlink(at->path().c_str());
    ::close(file);
  }
}

}  // namespace perdure::pm
