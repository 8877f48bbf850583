#include "lab/bench/store_path.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "pm/file_lock.h"

namespace perdure::lab {
namespace {

unsigned next_store_number() {
  static std::atomic<unsigned> number{0};
  return ++number;
}

// Whether nobody holds the lock of this file. A process that seems dead may live in another
// container.
bool is_unlocked(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool unlocked = ::flock(file, LOCK_EX | LOCK_NB) == 0 && !pm::has_writer(file, path);
  ::close(file);
  return unlocked;
}

void remove_those_of_the_dead(const std::string& folder) {
  struct statfs system{};
  const bool in_memory = ::statfs(folder.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename();
    int pid = 0;
    if (std::sscanf(name.c_str(), "perdure-bench-%d-", &pid) != 1 || pid <= 0) continue;
    if (::kill(pid, 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    const bool unused = entry.is_directory(ignored) ? in_memory : is_unlocked(entry.path());
    if (unused) std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

StorePath::StorePath(const std::string& folder)
    : path_(fmt::format("{}/perdure-bench-{}-{}.pool", folder, ::getpid(), next_store_number())) {
  remove_those_of_the_dead(folder);
}

void StorePath::remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace perdure::lab
