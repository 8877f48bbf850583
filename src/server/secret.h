// Comparing passwords.
#pragma once

#include <cstddef>
#include <string_view>

namespace perdure::server {

// Takes as long for every `a` of a length.
inline bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  }
  return difference == 0;
}

}  // namespace perdure::server
