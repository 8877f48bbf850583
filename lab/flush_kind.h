// Which instruction writes a line back: all three write it, the last two also evict it.
#pragma once

#include <cstdint>

namespace perdure::lab {

enum class FlushKind : uint8_t { kClwb = 0, kClflushopt = 1, kClflush = 2 };

}  // namespace perdure::lab
