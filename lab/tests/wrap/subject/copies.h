// Ways to write and read memory, compiled as an observed program is, each to be seen exactly once.
#pragma once

#include <cstddef>

namespace wrap_subject {

constexpr size_t kBufferBytes = 40960;

// One of the ways: `run` writes `bytes` bytes at `to`, and reads as many from `from` if `reads`.
struct Way {
  const char* name;
  size_t bytes;
  bool reads;
  void (*run)(char* to, const char* from);
};

const Way* ways_begin();
const Way* ways_end();

}  // namespace wrap_subject
