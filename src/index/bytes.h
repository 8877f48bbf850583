// Words as bytes and back, for tables that store keys and values of both kinds as byte strings.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "perdure/index.h"

namespace perdure::index {

// A word as bytes, for as long as the object lives.
class AsBytes {
 public:
  AsBytes() = default;
  explicit AsBytes(uint64_t word) { std::memcpy(bytes_, &word, sizeof word); }
  explicit AsBytes(std::string_view view) : view_(view), direct_(true) {}
  std::string_view view() const { return direct_ ? view_ : std::string_view(bytes_, 8); }

 private:
  char bytes_[8] = {};
  std::string_view view_;
  bool direct_ = false;
};

inline void assign(uint64_t& out, std::string_view bytes) {
  std::memcpy(&out, bytes.data(), sizeof out);
}
inline void assign(std::string& out, std::string_view bytes) { out.assign(bytes); }

template <typename T>
Argument<T> from_bytes(std::string_view bytes) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    uint64_t word = 0;
    assign(word, bytes);
    return word;
  } else {
    return bytes;
  }
}

}  // namespace perdure::index
