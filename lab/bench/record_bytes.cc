#include "lab/bench/record_bytes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>

#include "common/permutation.h"

namespace perdure::lab {
namespace {

// Sixteen digits.
void write_hexadecimal(uint64_t word, char* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int digit = 15; digit >= 0; --digit, word >>= 4) out[digit] = kDigits[word & 15];
}

}  // namespace

RecordBytes::RecordBytes(const RecordForm& form)
    : prefix_bytes_(form.prefix.size()),
      text_keys_(form.text_keys),
      key_(form.prefix),
      value_(form.value_bytes, 'v') {
  const size_t number_bytes = text_keys_ ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
  key_.resize(std::max<uint64_t>(form.key_bytes, prefix_bytes_ + number_bytes));
}

std::string_view RecordBytes::key(uint64_t word) {
  // Big-endian, so that byte strings sort as the words do; padding that depends on the word, so
  // that no part of the key is the same in all.
  if (text_keys_) {
    std::array<char, 16> digits;
    for (size_t at = prefix_bytes_; at < key_.size(); at += digits.size()) {
      write_hexadecimal(word, digits.data());
      std::memcpy(key_.data() + at, digits.data(), std::min(digits.size(), key_.size() - at));
      word = mix_word(word);
    }
    return key_;
  }
  uint64_t part = __builtin_bswap64(word);
  for (size_t at = prefix_bytes_; at < key_.size(); at += sizeof part) {
    std::memcpy(key_.data() + at, &part, std::min(sizeof part, key_.size() - at));
    part = mix_word(part);
  }
  return key_;
}

std::string_view RecordBytes::value(uint64_t word) {
  std::memcpy(value_.data(), &word, std::min(sizeof word, value_.size()));
  return value_;
}

uint64_t RecordBytes::word_of(std::string_view key) const {
  key.remove_prefix(std::min(prefix_bytes_, key.size()));
  uint64_t word = 0;
  if (text_keys_) {
    const char* const begin = std::to_address(key.begin());
    std::from_chars(begin, begin + std::min<size_t>(key.size(), 16), word, 16);
    return word;
  }
  std::memcpy(&word, key.data(), std::min(sizeof word, key.size()));
  return __builtin_bswap64(word);
}

uint64_t RecordBytes::version_of(uint64_t word, std::string_view value) const {
  const size_t bytes = std::min(sizeof word, value_.size());
  uint64_t stored = 0;
  uint64_t plain = 0;  // as much of the word as the value has room for
  std::memcpy(&stored, value.data(), bytes);
  std::memcpy(&plain, &word, bytes);
  if (stored == plain) return 0;
  ++word;
  std::memcpy(&plain, &word, bytes);
  return stored == plain ? 1 : ~uint64_t{0};
}

}  // namespace perdure::lab
