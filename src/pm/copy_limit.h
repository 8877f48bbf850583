// How much memory a copy of a pool may take, of a process that reads it.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::pm {

// Throws kNoSpace, in words that say what to do, if `bytes` are more than `bytes_max`, or, if that
// is 0, than half of what the machine has free (MemAvailable of /proc/meminfo; without it, nothing
// is refused). `pool`: for messages.
void require_memory_for_copy(uint64_t bytes, uint64_t bytes_max, const std::string& pool);

}  // namespace perdure::pm
