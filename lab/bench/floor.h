// The machine's own limits, measured in the same folder and the same run as the structures: what no
// durable insert and no lookup can be faster than, and what takes the processor from any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "pm/mapping.h"

namespace perdure::lab {

// A file that is mapped as a pool is, written full and removed from its folder at once: gone when
// this process is. Throws Error(kNotFound, kPermission, kNoSpace, kIo).
class ScratchMapping {
 public:
  ScratchMapping(const std::string& folder, uint64_t size_bytes);

  std::byte* data() const { return reinterpret_cast<std::byte*>(mapping_.base()); }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  pm::Mapping mapping_;
  uint64_t size_bytes_;
};

// The cost of making one cache line durable: 64-byte stores to successive lines, each followed by a
// flush (the best instruction that this CPU has) and a store fence.
class FlushFloor {
 public:
  explicit FlushFloor(const std::string& folder);

  // Nanoseconds per store + flush + fence, over one pass through the mapping (about 0.1 s), or that
  // share of it.
  double measure_ns(double share = 1);
  const char* instruction() const { return instruction_; }  // "clwb", "clflushopt", "clflush"

 private:
  ScratchMapping mapping_;
  const char* instruction_;
  void (*sweep_)(std::byte* lines, uint64_t count, uint64_t stamp);
  uint64_t stamp_ = 0;
};

// The cost of one cache miss: reads of 64-byte lines in random order, each of which must arrive
// before the address of the next is known.
class ReadChain {
 public:
  ReadChain(const std::string& folder, uint64_t size_bytes);

  // Nanoseconds per read, over the next part of the chain (about 0.1 s), or that share of it.
  double measure_ns(double share = 1);
  uint64_t size_bytes() const { return mapping_.size_bytes(); }

 private:
  ScratchMapping mapping_;
  uint64_t at_ = 0;
};

// What is taken from a thread that does nothing but look at the clock: by interrupts, by other
// processes, by the hypervisor. It is in the tail of every latency measured beside it.
struct Pauses {
  static constexpr double kShortestNs = 1000;

  double watched_s = 0;
  uint64_t count = 0;  // of kShortestNs or longer
  double sum_ns = 0;
  double longest_ns = 0;

  // Adds 0.1 s of watching, or that share of it.
  void measure(double share = 1);
  double per_s() const { return watched_s > 0 ? static_cast<double>(count) / watched_s : 0; }
  // Of the time, from 0 to 1.
  double share() const { return watched_s > 0 ? sum_ns / 1e9 / watched_s : 0; }
};

}  // namespace perdure::lab
