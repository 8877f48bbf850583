// Memory that runs out, for the thread that asks for it.
//
//   ShortMemory memory(3);       // the fourth allocation of this thread from now on fails, and so do all later ones
//   index.reset();
//   memory.end();
//   if (memory.refused()) ...
//
// Only `operator new` fails, which this replaces for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::test {

class ShortMemory {
 public:
  explicit ShortMemory(uint64_t allocations);
  ~ShortMemory() { end(); }
  ShortMemory(const ShortMemory&) = delete;
  ShortMemory& operator=(const ShortMemory&) = delete;

  // There is memory again. What follows is not counted.
  void end();
  uint64_t refused() const { return refused_; }
  // Bytes that were allocated, refused ones not included.
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t refused_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace perdure::test
