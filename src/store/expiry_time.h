// A time of expiry as the API says it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "perdure/store.h"

namespace perdure::store {

// The last that Store::Time can say (it counts nanoseconds, and ends in 2262), in milliseconds
// since 1970.
inline constexpr auto kExpiryMsMax = static_cast<uint64_t>(
    std::chrono::floor<std::chrono::milliseconds>(Store::Time::max().time_since_epoch()).count());

// What lies behind that is it.
inline Store::Time time_of_expiry(uint64_t ms) {
  return Store::Time(std::chrono::milliseconds(std::min(ms, kExpiryMsMax)));
}

}  // namespace perdure::store
