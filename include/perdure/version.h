// The version of the library and of the pool format.
#pragma once

#include <cstdint>

namespace perdure {

inline constexpr const char kVersion[] = "0.1.0";

// The newest format version. Bumped when the bytes of a pool change their meaning: a build refuses
// pools of a newer one with Error(kVersion). Pools are made with version 2, and become version 3
// when they are given what builds that know 2 alone do not: a raised capacity
// (PoolOptions::capacity_at_least_bytes), or more than 256 structures.
inline constexpr uint32_t kFormatVersion = 3;

}  // namespace perdure
