// A medium that is slower than the memory under a pool: told of every line that is written back and of
// every fence, it may take its time. For measurements (`perdure bench --emulate`); without one, nothing
// here is called, and the verbs make no other decisions than they make for their domain anyway.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::pm {

class Medium {
 public:
  virtual ~Medium() = default;
  // The lines of [address, address + bytes) were flushed, or written past the caches.
  virtual void written_back(uintptr_t address, size_t bytes) = 0;
  // This thread waits until what it wrote back is durable.
  virtual void fenced() = 0;
};

// Pools of domain `line` that are mapped from now on are on this medium, until null is set; it must
// outlive them. Not thread-safe.
void emulate_medium(Medium* medium);
Medium* emulated_medium();

}  // namespace perdure::pm
