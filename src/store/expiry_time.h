// A time of expiry as the API says it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "perdure/store.h"

namespace perdure::store {

// From milliseconds since 1970. What Store::Time cannot say (it counts nanoseconds, and ends
// in 2262) is its end.
inline Store::Time time_of_expiry(uint64_t ms) {
  constexpr auto kMsMax = static_cast<uint64_t>(
      std::chrono::floor<std::chrono::milliseconds>(Store::Time::max().time_since_epoch()).count());
  return Store::Time(std::chrono::milliseconds(std::min(ms, kMsMax)));
}

}  // namespace perdure::store
