// Base64, as keys of memcached's meta commands may be written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/command_error.h"

namespace perdure::server {

// Throws CommandError if it is none.
inline std::string_view decode_base64(std::string_view text, std::string& out) {
  const auto value_of = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    if (c == '/') return 63;
    return -1;
  };
  out.clear();
  while (text.ends_with('=')) text.remove_suffix(1);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = value_of(c);
    if (value < 0) throw CommandError("CLIENT_ERROR error decoding key");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

}  // namespace perdure::server
