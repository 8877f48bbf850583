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

// Writes text to places up to an end, and cuts off what goes beyond.
class Writer {
 public:
  Writer(char* begin, char* end) : at_(begin), end_(end) {}
  bool is_full() const { return at_ == end_; }
  void write(std::string_view text) {
    const auto bytes = std::min<size_t>(text.size(), static_cast<size_t>(end_ - at_));
    std::memcpy(at_, text.data(), bytes);
    at_ += bytes;
  }

 private:
  char* at_;
  char* end_;
};

}  // namespace

RecordBytes::RecordBytes(const RecordForm& form)
    : prefix_bytes_(form.prefix.size()),
      text_keys_(form.text_keys),
      url_keys_(form.url_keys),
      key_(form.prefix),
      value_(form.value_bytes, 'v') {
  const size_t number_bytes = text_keys_ ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
  key_.resize(url_keys_ ? kUrlBytesMax
                        : std::max<uint64_t>(form.key_bytes, prefix_bytes_ + number_bytes));
}

// https://HOST.org/SEGMENT/SEGMENT/...NUMBER: one of 4,096 hosts, a path through folders of which
// each has four others, cut off where the length says, and the word itself in 11 characters.
std::string_view RecordBytes::url(uint64_t word) {
  static_assert(kUrlBytesMin == 8 + 6 + 5 + 11 && kUrlHosts == 1 << 12);
  constexpr std::string_view kSyllables = "bacadefigohukelamonipeqirosutavi";
  constexpr std::array<std::string_view, 16> kSegments = {
      "news/",    "catalogue/", "en/",    "articles/", "2024/",   "images/", "products/", "a/",
      "archive/", "users/",     "index/", "de/",       "papers/", "media/",  "blog/",     "items/"};
  constexpr std::string_view kDigits =
      "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
  uint64_t random = mix_word(word);
  const uint64_t length = kUrlBytesMin + random % (kUrlBytesMax - kUrlBytesMin + 1);
  random = mix_word(random);
  char* const end = key_.data() + length;
  Writer writer(key_.data(), end - 11);
  writer.write("https://");
  for (uint64_t i = 0; i < 3; ++i, random >>= 4)
    writer.write(kSyllables.substr(random % 16 * 2, 2));
  writer.write(".org/");
  for (uint64_t depth = 0; !writer.is_full(); ++depth, random >>= 2)
    writer.write(kSegments[(depth * 4 + random % 4) % kSegments.size()]);
  for (char* digit = end - 11; digit != end; ++digit, word >>= 6) *digit = kDigits[word % 64];
  return {key_.data(), length};
}

std::string_view RecordBytes::key(uint64_t word) {
  if (url_keys_) return url(word);
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
