// Folders and files for tests: made empty, gone afterwards.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::test {

// A new folder on DRAM (/dev/shm) or on a disk (TMPDIR, or /tmp), removed with all that it holds.
class TempDir {
 public:
  enum class Place { kMemory, kDisk };

  explicit TempDir(Place place = Place::kMemory);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A tmpfs of its own, unmounted afterwards. Needs the right to mount.
class SmallTmpfs {
 public:
  explicit SmallTmpfs(uint64_t size_bytes);
  ~SmallTmpfs();
  SmallTmpfs(const SmallTmpfs&) = delete;
  SmallTmpfs& operator=(const SmallTmpfs&) = delete;

  // Whether this process may mount; all else works only if so.
  bool mounted() const { return mounted_; }
  std::string file(const std::string& name) const { return dir_.file(name); }
  // Mounts it again, read-only or writable. Nothing on it may be open for writing.
  void set_read_only(bool read_only) const;

 private:
  TempDir dir_;
  uint64_t size_bytes_;
  bool mounted_ = false;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);
// Puts the bytes of a value at `offset` of a file.
template <typename T>
void patch_file(const std::string& path, uint64_t offset, const T& value) {
  std::string bytes = read_file(path);
  bytes.replace(offset, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
  write_file(path, bytes);
}

}  // namespace perdure::test
