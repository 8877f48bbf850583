#include "pm/mapping.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "pm/file.h"
#include "pm/observe.h"
#include "pm/system_error.h"

namespace perdure::pm {

namespace {

#ifndef MAP_SYNC
constexpr int kMapSync = 0x80000;
#else
constexpr int kMapSync = MAP_SYNC;
#endif
#ifndef MADV_POPULATE_WRITE
constexpr int kMadvPopulateWrite = 23;
#else
constexpr int kMadvPopulateWrite = MADV_POPULATE_WRITE;
#endif
#ifndef MADV_COLLAPSE
constexpr int kMadvCollapse = 25;
#else
constexpr int kMadvCollapse = MADV_COLLAPSE;
#endif

// Whether every persistent-memory region of this machine has the CPU caches inside its persistence
// domain, as the kernel tells it.
bool caches_are_persistent() {
  std::error_code ignored;
  bool any = false;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/nd/devices", ignored)) {
    std::ifstream file(device.path() / "persistence_domain");
    std::string text;
    if (!std::getline(file, text)) continue;
    if (text != "cpu_cache") return false;
    any = true;
  }
  return any;
}

// posix_fallocate until no signal interrupts it. Returns an error number, 0 if none.
int allocate_blocks(int fd, uint64_t offset, uint64_t bytes) {
  int result = 0;
  do {
    result = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result == EINTR);
  return result;
}

}  // namespace

Mapping Mapping::create_file(const std::string& path) {
  Mapping mapping;
  mapping.path_ = path;
  mapping.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, new_file_mode());
  if (mapping.fd_ < 0) {
    if (errno == ENOENT) throw_errno("open", parent_of(path), ENOENT);
    throw_errno("open", path, errno);
  }
  try {
    lock_for_writer(mapping.fd_, path, "pool");
    mapping.detect_medium();
  } catch (...) {
    mapping.remove_file();
    throw;
  }
  return mapping;
}

namespace {

void require_regular(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw_errno("stat", path, errno);
  if (S_ISDIR(status.st_mode)) throw_errno("open", path, EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kNotAFile,
                fmt::format("{}: is not a regular file; a pool lives in one", path));
  }
}

}  // namespace

Mapping Mapping::open_file(const std::string& path, bool read_only) {
  // Another file may come to have the name while this one is waited for or opened: `perdure pool
  // compact`.
  constexpr int kOpenAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    require_regular(path);
    Mapping mapping;
    mapping.path_ = path;
    mapping.read_only_ = read_only;
    if (read_only) {
      mapping.open_to_read();
    } else {
      mapping.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (mapping.fd_ < 0) throw_errno("open", path, errno);
      lock_for_writer(mapping.fd_, path, "pool");
    }
    if (mapping.is_replaced() && attempt < kOpenAttempts) continue;
    mapping.detect_medium();
    return mapping;
  }
}

// A lock needs a file that is open for writing, though nothing writes to it.
void Mapping::open_to_read() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ >= 0) {
    unlocked_ = !lock_for_reader(fd_, path_, "pool");
    return;
  }
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw_errno("open", path_, errno);
  unlocked_ = true;
  require_frozen();
}

bool Mapping::is_replaced() const {
  struct stat own{};
  struct stat named{};
  return ::fstat(fd_, &own) == 0 && (::stat(path_.c_str(), &named) != 0 ||
                                     named.st_dev != own.st_dev || named.st_ino != own.st_ino);
}

Mapping Mapping::look_at_file(const std::string& path) {
  require_regular(path);
  Mapping mapping;
  mapping.path_ = path;
  mapping.read_only_ = true;
  mapping.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (mapping.fd_ < 0) throw_errno("open", path, errno);
  mapping.detect_medium();
  return mapping;
}

Mapping Mapping::of_parts(const std::string& path, std::vector<int> files, std::vector<Part> parts,
                          uint64_t bytes) {
  Mapping mapping;
  mapping.path_ = path;
  mapping.read_only_ = true;
  mapping.fd_ = files.front();
  mapping.files_ = std::move(files);
  mapping.parts_ = std::move(parts);
  mapping.parts_bytes_ = bytes;
  mapping.detect_medium();
  return mapping;
}

Mapping Mapping::anonymous() {
  Mapping mapping;
  mapping.path_ = "(anonymous)";
  return mapping;
}

Mapping::~Mapping() { unmap_and_close(); }

void Mapping::swap(Mapping& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(base_, other.base_);
  std::swap(region_, other.region_);
  std::swap(region_bytes_, other.region_bytes_);
  std::swap(capacity_bytes_, other.capacity_bytes_);
  std::swap(anonymous_bytes_, other.anonymous_bytes_);
  std::swap(fd_, other.fd_);
  std::swap(files_, other.files_);
  std::swap(parts_, other.parts_);
  std::swap(parts_bytes_, other.parts_bytes_);
  std::swap(mapped_file_bytes_, other.mapped_file_bytes_);
  std::swap(unlocked_, other.unlocked_);
  std::swap(read_only_, other.read_only_);
  std::swap(private_tail_, other.private_tail_);
  std::swap(huge_pages_, other.huge_pages_);
  std::swap(medium_, other.medium_);
}

void Mapping::detect_medium() {
  struct statfs status{};
  if (::fstatfs(fd_, &status) != 0) throw_errno("fstatfs", path_, errno);
  const auto type = static_cast<uint64_t>(status.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) {
    medium_ = Medium::kTmpfs;
  } else if (type == HUGETLBFS_MAGIC) {
    medium_ = Medium::kHugetlbfs;
  } else {
    medium_ = Medium::kFile;  // until map() finds that MAP_SYNC is granted
  }
}

void* Mapping::map_fixed(void* address, uint64_t bytes) {
  const int protection = PROT_READ | PROT_WRITE;
  if (fd_ < 0 || !files_.empty()) {
    return ::mmap(address, bytes, protection,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  if (read_only_) {
    return ::mmap(address, bytes, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd_, 0);
  }
  if (medium_ == Medium::kFile) {
    void* mapped = ::mmap(address, bytes, protection,
                          MAP_SHARED_VALIDATE | kMapSync | MAP_FIXED | MAP_NORESERVE, fd_, 0);
    if (mapped != MAP_FAILED) {
      medium_ = caches_are_persistent() ? Medium::kDaxEadr : Medium::kDax;
      return mapped;
    }
  }
  return ::mmap(address, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_, 0);
}

void Mapping::map(uint64_t capacity_bytes, bool huge_pages) {
  huge_pages_ = huge_pages;
  capacity_bytes_ = (capacity_bytes + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  region_bytes_ = capacity_bytes_ + kHugePageBytes;
  mapped_file_bytes_ = file_bytes();
  region_ =
      ::mmap(nullptr, region_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region_ == MAP_FAILED) {
    region_ = nullptr;
    throw_errno("mmap (address space)", path_, errno);
  }
  const auto aligned =
      (reinterpret_cast<uintptr_t>(region_) + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  void* mapped = map_fixed(reinterpret_cast<void*>(aligned), capacity_bytes_);
  if (mapped == MAP_FAILED) throw_errno("mmap", path_, errno);
  base_ = static_cast<char*>(mapped);
  map_parts();
  observe::map(base_, capacity_bytes_, path_.c_str());
  // Lookups are bound by the TLB; where the medium has no huge pages this is refused, harmlessly.
  ::madvise(base_, capacity_bytes_, huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

// Parts that follow each other in their file, too, are one mapping. The system has a limit of
// mappings: what is behind half of it is read.
void Mapping::map_parts() {
  constexpr size_t kMappingsMax = 30'000;
  size_t mappings = 0;
  for (size_t i = 0; i < parts_.size();) {
    Part part = parts_[i];
    for (++i; i < parts_.size() && parts_[i].file == part.file &&
              parts_[i].at == part.at + part.bytes && parts_[i].offset == part.offset + part.bytes;
         ++i) {
      part.bytes += parts_[i].bytes;
    }
    if (part.offset + part.bytes > capacity_bytes_) break;
    const int file = files_[part.file];
    const bool maps = ++mappings <= kMappingsMax && part.at % 4096 == 0;
    if (maps && ::mmap(base_ + part.offset, part.bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file,
                       static_cast<off_t>(part.at)) == MAP_FAILED) {
      throw_errno("mmap", path_, errno);
    }
    if (!maps) pm::read_at(file, path_, part.at, base_ + part.offset, part.bytes);
  }
}

void Mapping::freeze(uint64_t offset, uint64_t bytes) {
  const uint64_t begin = offset & ~(granule() - 1);
  const uint64_t end = (offset + bytes + granule() - 1) & ~(granule() - 1);
  if (::madvise(base_ + begin, end - begin, kMadvPopulateWrite) == 0) return;
  if (errno == EFAULT || errno == ENOMEM) throw_errno("madvise", path_, errno);
  for (uint64_t at = begin; at < end; at += 4096) {
    auto* byte = static_cast<volatile char*>(base_ + at);
    *byte = *byte;
  }
}

void Mapping::require_frozen() const {
  if (!unlocked_ || !has_writer()) return;
  throw Error(
      ErrorCode::kLocked,
      fmt::format("{}: the pool is open for writing in another process; read a backup of it, "
                  "or wait until it is closed there",
                  path_));
}

uint64_t Mapping::granule() const {
  return medium_ == Medium::kHugetlbfs ? kHugePageBytes : uint64_t{4096};
}

void Mapping::reserve(uint64_t offset, uint64_t bytes) {
  if (read_only_) return extend_private();
  if (fd_ < 0) {
    anonymous_bytes_ += bytes;
    return;
  }
  const uint64_t begin = offset & ~(granule() - 1);
  const uint64_t length = ((offset + bytes + granule() - 1) & ~(granule() - 1)) - begin;
  const bool in_memory = medium_ == Medium::kTmpfs || medium_ == Medium::kHugetlbfs;
  if (medium_ == Medium::kTmpfs && base_ != nullptr && huge_pages_)
    make_huge_pages(begin, begin + length);
  const int result = allocate_blocks(fd_, begin, length);
  if (result != 0) throw_errno("fallocate", path_, result);
  if (base_ != nullptr && in_memory) {
    // Map the pages now, in one call, rather than by a fault for each in the middle of inserts.
    ::madvise(base_ + begin, length, kMadvPopulateWrite);
  }
}

// Pages of the private copy come from memory. Behind the end of the file there are none: all that
// the pool may grow to gets some of its own, at the first call.
void Mapping::extend_private() {
  if (private_tail_) return;
  // Of when it was mapped: a writer may have come since, and made the file shorter.
  const uint64_t end = (mapped_file_bytes_ + granule() - 1) & ~(granule() - 1);
  if (end < capacity_bytes_ &&
      ::mmap(base_ + end, capacity_bytes_ - end, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    throw_errno("mmap", path_, errno);
  }
  private_tail_ = true;
}

uint64_t Mapping::cut(uint64_t offset) {
  const uint64_t before = file_bytes();
  const uint64_t end = (offset + granule() - 1) & ~(granule() - 1);
  if (fd_ < 0 || before <= end) return 0;
  int result = 0;
  do {
    result = ::ftruncate(fd_, static_cast<off_t>(end));
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw_errno("ftruncate", path_, errno);
  return before - end;
}

void Mapping::give_back(uint64_t offset, uint64_t bytes) {
  const uint64_t begin = (offset + granule() - 1) & ~(granule() - 1);
  const uint64_t end = (offset + bytes) & ~(granule() - 1);
  if (fd_ < 0) anonymous_bytes_ -= bytes;
  if (begin >= end) return;
  if (fd_ < 0) {
    ::madvise(base_ + begin, end - begin, MADV_DONTNEED);
  } else {
    static_cast<void>(::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  static_cast<off_t>(begin), static_cast<off_t>(end - begin)));
  }
}

void Mapping::make_huge_pages(uint64_t begin, uint64_t end) {
  const uint64_t first = (begin + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uint64_t last = end & ~(kHugePageBytes - 1);
  if (first >= last) return;
  const uint64_t file_bytes_before = file_bytes();
  if (file_bytes_before > first) return;  // somebody's blocks are there
  for (uint64_t block = first; block < last; block += kHugePageBytes) {
    // One block of the file must be there; the rest of the huge page comes zeroed with it.
    if (allocate_blocks(fd_, block, 4096) != 0 ||
        ::ftruncate(fd_, static_cast<off_t>(block + kHugePageBytes)) != 0) {
      // The caller finds out whether there is room, from where the file ended.
      if (::ftruncate(fd_, static_cast<off_t>(file_bytes_before)) != 0) {
        throw_errno("ftruncate", path_, errno);
      }
      return;
    }
    if (::madvise(base_ + block, kHugePageBytes, kMadvCollapse) != 0) return;
  }
}

uint64_t Mapping::read_at(uint64_t offset, void* target, uint64_t bytes) const {
  if (!files_.empty()) {
    if (offset >= parts_bytes_) return 0;
    bytes = std::min(bytes, parts_bytes_ - offset);
    std::memset(target, 0, bytes);
    auto part = std::ranges::upper_bound(parts_, offset, {}, &Part::offset);
    if (part != parts_.begin()) --part;
    for (; part != parts_.end() && part->offset < offset + bytes; ++part) {
      const uint64_t from = std::max(part->offset, offset);
      const uint64_t to = std::min(part->offset + part->bytes, offset + bytes);
      if (from >= to) continue;
      pm::read_at(files_[part->file], path_, part->at + (from - part->offset),
                  static_cast<char*>(target) + (from - offset), to - from);
    }
    return bytes;
  }
  return pm::read_at(fd_, path_, offset, target, bytes);
}

void Mapping::sync_metadata(bool with_name) const {
  if (fd_ < 0 || read_only_) return;
  if (::fsync(fd_) != 0) throw_errno("fsync", path_, errno);
  if (with_name) sync_parent_of(path_);
}

void Mapping::sync(uint64_t bytes) const {
  if (fd_ < 0 || read_only_) return;
  if (::msync(base_, bytes, MS_SYNC) != 0) throw_errno("msync", path_, errno);
}

void Mapping::unmap_and_close() noexcept {
  if (base_ != nullptr) observe::unmap(base_);
  if (region_ != nullptr) ::munmap(region_, region_bytes_);
  if (files_.empty()) {
    if (fd_ >= 0) ::close(fd_);
  } else {
    for (const int file : files_) ::close(file);
    files_.clear();
  }
  region_ = nullptr;
  base_ = nullptr;
  fd_ = -1;
}

void Mapping::remove_file() noexcept {
  if (fd_ >= 0) ::unlink(path_.c_str());
}

uint64_t Mapping::file_bytes() const {
  if (!files_.empty()) return parts_bytes_;
  if (fd_ < 0) return 0;
  struct stat status{};
  if (::fstat(fd_, &status) != 0) throw_errno("fstat", path_, errno);
  return static_cast<uint64_t>(status.st_size);
}

uint64_t Mapping::occupied_bytes() const {
  if (fd_ < 0) return anonymous_bytes_;
  struct stat status{};
  if (::fstat(fd_, &status) != 0) throw_errno("fstat", path_, errno);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// So that its page is there. Others may store to it meanwhile: nothing is made of what it holds.
[[gnu::no_sanitize_thread]] static void look_at(const char* byte) {
  static_cast<void>(*static_cast<const volatile char*>(byte));
}

bool Mapping::on_huge_pages(uint64_t from, uint64_t to) const {
  // The kernel reports pages that this process has looked at: a few, from all over the file. (Those
  // of a file on a disk would have to be read for it.)
  constexpr uint64_t kPlaces = 32;
  if (fd_ >= 0) to = std::min(to, file_bytes());
  const uint64_t step = std::max((to - from) / kPlaces, kHugePageBytes) & ~(kHugePageBytes - 1);
  for (uint64_t at = from; at < to && medium_ != perdure::Medium::kFile; at += step) {
    look_at(base_ + at);
  }
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2 && line.find('-') < 17) {
      inside = begin >= reinterpret_cast<uintptr_t>(base_) &&
               begin < reinterpret_cast<uintptr_t>(base_) + capacity_bytes_;
      continue;
    }
    if (!inside) continue;
    unsigned long kib = 0;
    for (const char* field : {"AnonHugePages: %lu", "ShmemPmdMapped: %lu", "FilePmdMapped: %lu",
                              "Shared_Hugetlb: %lu", "Private_Hugetlb: %lu"}) {
      if (std::sscanf(line.c_str(), field, &kib) == 1 && kib > 0) return true;
    }
  }
  return false;
}

Domain needed_domain(Medium medium, Durability& durability, const std::string& path) {
  const bool survives_power =
      medium == Medium::kFile || medium == Medium::kDax || medium == Medium::kDaxEadr;
  if (durability == Durability::kPower && !survives_power) {
    throw Error(ErrorCode::kDurability,
                fmt::format("{}: durability `power` was asked for, but the content of {} is gone "
                            "when power fails; use persistent memory or an ordinary file, or ask "
                            "for durability `process`",
                            path, to_string(medium)));
  }
  if (durability == Durability::kProcess && medium == Medium::kAnonymous) {
    throw Error(ErrorCode::kDurability,
                fmt::format("{}: durability `process` was asked for, but anonymous memory is gone "
                            "with the process; use a file, on tmpfs for the speed of memory",
                            path));
  }
  if (medium == Medium::kAnonymous) return Domain::kByte;
  if (durability == Durability::kBest) {
    const bool free_of_system_calls = medium == Medium::kDax || medium == Medium::kDaxEadr;
    durability = free_of_system_calls ? Durability::kPower : Durability::kProcess;
  }
  if (durability == Durability::kProcess) return Domain::kByte;
  switch (medium) {
    case Medium::kDax:
      return Domain::kLine;
    case Medium::kDaxEadr:
      return Domain::kByte;
    default:
      return Domain::kPage;
  }
}

Domain chosen_domain(Domain needed, const PoolOptions& options, const std::string& path) {
  Domain domain = needed;
  const char* text = std::getenv("PERDURE_DOMAIN");
  if (options.force_domain) {
    domain = options.domain;
  } else if (text != nullptr && *text != '\0') {
    domain = parse_domain(text);
  }
  const bool strong_enough = needed == Domain::kByte || domain == needed ||
                             (needed == Domain::kLine && domain == Domain::kPage);
  if (!strong_enough) {
    throw Error(ErrorCode::kDurability,
                fmt::format("{}: domain `{}` is weaker than `{}`, which the durability asked for "
                            "needs on this medium; do not force a domain, or ask for durability "
                            "`process`",
                            path, to_string(domain), to_string(needed)));
  }
  return domain;
}

}  // namespace perdure::pm
