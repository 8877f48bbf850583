#include "lab/bench/floor.h"

#include <cpuid.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lab/permutation.h"
#include "lab/ticks.h"
#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kFlushMappingBytes = uint64_t{64} << 20;
constexpr uint64_t kChainReads = uint64_t{1} << 20;

[[noreturn]] void fail(const std::string& folder, const char* doing, int error) {
  ErrorCode code = ErrorCode::kIo;
  if (error == ENOENT || error == ENOTDIR) code = ErrorCode::kNotFound;
  if (error == EACCES || error == EROFS) code = ErrorCode::kPermission;
  if (error == ENOSPC) code = ErrorCode::kNoSpace;
  throw Error(code, fmt::format("{}: cannot {} a scratch file for measuring: {}; choose another "
                                "folder with --path",
                                folder, doing, std::strerror(error)));
}

int open_scratch_file(const std::string& folder) {
  const int unnamed = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return unnamed;
  std::string path = folder + "/perdure-bench-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

inline void store_line(std::byte* line, uint64_t stamp) {
  // Volatile, so that every one of the eight words is written, in full, each time.
  auto* words = reinterpret_cast<volatile uint64_t*>(line);
  for (uint64_t word = 0; word < kLineBytes / sizeof(uint64_t); ++word) words[word] = stamp + word;
}

__attribute__((target("clwb"))) void sweep_clwb(std::byte* lines, uint64_t count, uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * kLineBytes, stamp);
    _mm_clwb(lines + line * kLineBytes);
    _mm_sfence();
  }
}

__attribute__((target("clflushopt"))) void sweep_clflushopt(std::byte* lines, uint64_t count,
                                                            uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * kLineBytes, stamp);
    _mm_clflushopt(lines + line * kLineBytes);
    _mm_sfence();
  }
}

void sweep_clflush(std::byte* lines, uint64_t count, uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * kLineBytes, stamp);
    _mm_clflush(lines + line * kLineBytes);
    _mm_sfence();
  }
}

// Bits of leaf 7, register EBX.
constexpr unsigned kHasClflushopt = 1U << 23;
constexpr unsigned kHasClwb = 1U << 24;

unsigned flush_features() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ? 0 : ebx;
}

}  // namespace

ScratchMapping::ScratchMapping(const std::string& folder, uint64_t size_bytes)
    : size_bytes_(std::max(size_bytes / kLineBytes, uint64_t{2}) * kLineBytes) {
  const int file = open_scratch_file(folder);
  if (file < 0) fail(folder, "make", errno);
  const int reserved = posix_fallocate(file, 0, static_cast<off_t>(size_bytes_));
  if (reserved != 0) {
    close(file);
    fail(folder, "reserve", reserved);
  }
  void* address = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (address == MAP_FAILED) fail(folder, "map", error);
  // Huge pages where the medium offers them, as pools have them; refusal changes nothing.
  madvise(address, size_bytes_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
  std::memset(data_, 1, size_bytes_);
}

ScratchMapping::~ScratchMapping() { munmap(data_, size_bytes_); }

FlushFloor::FlushFloor(const std::string& folder) : mapping_(folder, kFlushMappingBytes) {
  const unsigned features = flush_features();
  if ((features & kHasClwb) != 0) {
    instruction_ = "clwb";
    sweep_ = sweep_clwb;
  } else if ((features & kHasClflushopt) != 0) {
    instruction_ = "clflushopt";
    sweep_ = sweep_clflushopt;
  } else {
    instruction_ = "clflush";
    sweep_ = sweep_clflush;
  }
}

double FlushFloor::measure_ns() {
  const uint64_t lines = mapping_.size_bytes() / kLineBytes;
  const double start = steady_seconds();
  sweep_(mapping_.data(), lines, ++stamp_);
  return (steady_seconds() - start) * 1e9 / static_cast<double>(lines);
}

ReadChain::ReadChain(const std::string& folder, uint64_t size_bytes)
    : mapping_(folder, size_bytes) {
  const uint64_t lines = mapping_.size_bytes() / kLineBytes;
  const Permutation order(lines);
  uint64_t from = order.at(0);
  at_ = from;
  for (uint64_t place = 1; place <= lines; ++place) {
    const uint64_t to = order.at(place % lines);
    std::memcpy(mapping_.data() + from * kLineBytes, &to, sizeof to);
    from = to;
  }
}

double ReadChain::measure_ns() {
  const std::byte* lines = mapping_.data();
  uint64_t at = at_;
  const double start = steady_seconds();
  for (uint64_t read = 0; read < kChainReads; ++read) {
    std::memcpy(&at, lines + at * kLineBytes, sizeof at);
  }
  const double elapsed_s = steady_seconds() - start;
  at_ = at;
  return elapsed_s * 1e9 / static_cast<double>(kChainReads);
}

}  // namespace perdure::lab
