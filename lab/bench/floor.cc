#include "lab/bench/floor.h"

#include <cpuid.h>
#include <fmt/core.h>
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/permutation.h"
#include "common/ticks.h"
#include "pm/memory.h"

namespace perdure::lab {
namespace {

constexpr uint64_t kFlushMappingBytes = uint64_t{64} << 20;
constexpr uint64_t kChainReads = uint64_t{1} << 20;
constexpr double kWatchNs = 1e8;

// A name that nothing else in `folder` has.
std::string scratch_path(const std::string& folder) {
  static std::atomic<unsigned> count{0};
  return fmt::format("{}/perdure-bench-{}-{}", folder, ::getpid(), ++count);
}

inline void store_line(std::byte* line, uint64_t stamp) {
  // Volatile, so that every one of the eight words is written, in full, each time.
  auto* words = reinterpret_cast<volatile uint64_t*>(line);
  for (uint64_t word = 0; word < pm::kLineBytes / sizeof(uint64_t); ++word)
    words[word] = stamp + word;
}

__attribute__((target("clwb"))) void sweep_clwb(std::byte* lines, uint64_t count, uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * pm::kLineBytes, stamp);
    _mm_clwb(lines + line * pm::kLineBytes);
    _mm_sfence();
  }
}

__attribute__((target("clflushopt"))) void sweep_clflushopt(std::byte* lines, uint64_t count,
                                                            uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * pm::kLineBytes, stamp);
    _mm_clflushopt(lines + line * pm::kLineBytes);
    _mm_sfence();
  }
}

void sweep_clflush(std::byte* lines, uint64_t count, uint64_t stamp) {
  for (uint64_t line = 0; line < count; ++line) {
    store_line(lines + line * pm::kLineBytes, stamp);
    _mm_clflush(lines + line * pm::kLineBytes);
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
    : mapping_(pm::Mapping::create_file(scratch_path(folder))),
      size_bytes_(std::max(size_bytes / pm::kLineBytes, uint64_t{2}) * pm::kLineBytes) {
  mapping_.remove_file();
  mapping_.map(size_bytes_);
  mapping_.reserve(0, size_bytes_);
  std::memset(data(), 1, size_bytes_);
}

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

double FlushFloor::measure_ns(double share) {
  const uint64_t all = mapping_.size_bytes() / pm::kLineBytes;
  const auto lines = static_cast<uint64_t>(static_cast<double>(all) * share);
  const double start = steady_seconds();
  sweep_(mapping_.data(), lines, ++stamp_);
  return (steady_seconds() - start) * 1e9 / static_cast<double>(lines);
}

ReadChain::ReadChain(const std::string& folder, uint64_t size_bytes)
    : mapping_(folder, size_bytes) {
  const uint64_t lines = mapping_.size_bytes() / pm::kLineBytes;
  const Permutation order(lines);
  uint64_t from = order.at(0);
  at_ = from;
  for (uint64_t place = 1; place <= lines; ++place) {
    const uint64_t to = order.at(place % lines);
    std::memcpy(mapping_.data() + from * pm::kLineBytes, &to, sizeof to);
    from = to;
  }
}

double ReadChain::measure_ns(double share) {
  const auto reads = static_cast<uint64_t>(static_cast<double>(kChainReads) * share);
  const std::byte* lines = mapping_.data();
  uint64_t at = at_;
  const double start = steady_seconds();
  for (uint64_t read = 0; read < reads; ++read) {
    std::memcpy(&at, lines + at * pm::kLineBytes, sizeof at);
  }
  const double elapsed_s = steady_seconds() - start;
  at_ = at;
  return elapsed_s * 1e9 / static_cast<double>(reads);
}

void Pauses::measure(double share) {
  const TickClock& clock = TickClock::get();
  const auto shortest = static_cast<uint64_t>(kShortestNs / clock.ns_per_tick());
  const auto end = static_cast<uint64_t>(kWatchNs * share / clock.ns_per_tick());
  const uint64_t start = clock.now();
  uint64_t last = start;
  while (last - start < end) {
    const uint64_t now = clock.now();
    if (now - last >= shortest) {
      const double pause_ns = static_cast<double>(now - last) * clock.ns_per_tick();
      ++count;
      sum_ns += pause_ns;
      longest_ns = std::max(longest_ns, pause_ns);
    }
    last = now;
  }
  watched_s += static_cast<double>(last - start) * clock.ns_per_tick() / 1e9;
}

}  // namespace perdure::lab
