#include "pm/copy_limit.h"

#include <fmt/core.h>

#include <fstream>
#include <optional>
#include <string>

#include "perdure/error.h"

namespace perdure::pm {

namespace {

std::optional<uint64_t> available_bytes() {
  std::ifstream memory("/proc/meminfo");
  std::string name;
  for (uint64_t kib = 0; memory >> name >> kib; memory.ignore(64, '\n')) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return std::nullopt;
}

}  // namespace

void require_memory_for_copy(uint64_t bytes, uint64_t bytes_max, const std::string& pool) {
  const char* of_what = "is allowed";
  if (bytes_max == 0) {
    const std::optional<uint64_t> available = available_bytes();
    if (!available) return;
    bytes_max = *available / 2;
    of_what = "is half of the memory that is free";
  }
  if (bytes <= bytes_max) return;
  throw Error(
      ErrorCode::kNoSpace,
      fmt::format("{}: to be read it must be copied to memory, which takes {} bytes, and {} {}; "
                  "allow more (PoolOptions::copy_bytes_max, `--copy-max`), or read a backup of it, "
                  "which is not copied",
                  pool, bytes, bytes_max, of_what));
}

}  // namespace perdure::pm
