#include "support/files.h"

#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace perdure::test {

namespace {

std::string base_folder(TempDir::Place place) {
  if (place == TempDir::Place::kMemory && ::access("/dev/shm", W_OK | X_OK) == 0) return "/dev/shm";
  const char* text = std::getenv("TMPDIR");
  return text == nullptr || *text == '\0' ? "/tmp" : text;
}

[[noreturn]] void throw_system_error(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

TempDir::TempDir(Place place) : path_(base_folder(place) + "/perdure-test-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw_system_error(path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

SmallTmpfs::SmallTmpfs(uint64_t size_bytes) : size_bytes_(size_bytes) {
  const std::string size = "size=" + std::to_string(size_bytes);
  mounted_ = ::mount("perdure-test", dir_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
}

SmallTmpfs::~SmallTmpfs() {
  if (mounted_) ::umount2(dir_.path().c_str(), MNT_DETACH);
}

void SmallTmpfs::set_read_only(bool read_only) const {
  unsigned long flags = MS_REMOUNT;
  if (read_only) flags |= MS_RDONLY;
  const std::string size = "size=" + std::to_string(size_bytes_);
  if (::mount("perdure-test", dir_.path().c_str(), "tmpfs", flags, size.c_str()) != 0) {
    throw_system_error("remount of " + dir_.path());
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::string bytes(std::filesystem::file_size(path), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot read all of " + path);
  return bytes;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace perdure::test
