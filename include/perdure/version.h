// The version of the library and of the pool format.
#pragma once

#include <cstdint>

namespace perdure {

inline constexpr const char kVersion[] = "0.1.0";

// Bumped when the bytes of a pool change their meaning. A build opens pools of its own format
// version and refuses others with Error(kVersion).
inline constexpr uint32_t kFormatVersion = 2;

}  // namespace perdure
