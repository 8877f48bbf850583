// Numbers as bytes whose order is theirs: parts of the keys of records.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace perdure::server {

inline void append_ordered(std::string& out, uint64_t number) {
  const uint64_t big_endian = __builtin_bswap64(number);
  out.append(reinterpret_cast<const char*>(&big_endian), sizeof big_endian);
}

// `bytes` has at least 8.
inline uint64_t read_ordered(std::string_view bytes) {
  uint64_t big_endian = 0;
  std::memcpy(&big_endian, bytes.data(), sizeof big_endian);
  return __builtin_bswap64(big_endian);
}

// No NaN. -0 becomes 0.
inline uint64_t ordered_of_real(double value) {
  const auto bits = std::bit_cast<uint64_t>(value == 0 ? 0.0 : value);
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
inline double real_of_ordered(uint64_t ordered) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return std::bit_cast<double>((ordered & kSign) != 0 ? ordered & ~kSign : ~ordered);
}

}  // namespace perdure::server
