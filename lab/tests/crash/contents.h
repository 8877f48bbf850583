// What subjects have in common that keep names and contents in a pool, with a map as their model.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <string>

#include "perdure/error.h"
#include "perdure/pool.h"
#include "pm/checksum.h"

namespace perdure::lab::crash {

using Contents = std::map<std::string, std::string>;

inline std::string text_of(const Contents& contents) {
  std::string text;
  for (const auto& [name, content] : contents) {
    text += fmt::format("{} {} {:x}\n", name, content.size(),
                        pm::checksum64(content.data(), content.size()));
  }
  return text;
}

inline uint64_t digest_of(const Contents& contents) {
  const std::string text = text_of(contents);
  return pm::checksum64(text.data(), text.size());
}

// A pool of which every state is to be looked at.
inline PoolOptions explored_pool(uint64_t capacity_bytes) {
  PoolOptions options;
  options.capacity_bytes = capacity_bytes;
  options.growth_bytes = uint64_t{256} << 10;
  options.force_domain = true;
  options.domain = Domain::kLine;
  options.seal_on_close = false;
  return options;
}

[[noreturn]] inline void damaged(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, what);
}

// The i-th of the numbers that a seed names.
inline uint64_t drawn(uint64_t seed, uint64_t i) { return pm::checksum64(&i, sizeof i, seed); }

}  // namespace perdure::lab::crash
