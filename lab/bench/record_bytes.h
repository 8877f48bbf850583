// Records as byte strings: what is stored under a number, and whether what came back is that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure::lab {

struct RecordForm {
  uint64_t key_bytes = 16;  // the prefix, and 8 more (as text 16), at least
  uint64_t value_bytes = 64;
  std::string prefix = {};
  bool text_keys = false;  // in hexadecimal digits, for protocols whose keys are words of a line
  // Like those of the web, of random lengths; `key_bytes` and `prefix` are not looked at.
  bool url_keys = false;
};
inline constexpr uint64_t kUrlBytesMin = 30;
inline constexpr uint64_t kUrlBytesMax = 100;
inline constexpr uint64_t kUrlHosts = 4096;

// One for each thread: what it gives is valid until the same is asked for the next time.
class RecordBytes {
 public:
  explicit RecordBytes(const RecordForm& form);

  // Of the record whose key is this word. Byte strings sort as the words do, but for URLs.
  std::string_view key(uint64_t word);
  // `word`: the record's key, or, for the value that an update writes, the next number.
  std::string_view value(uint64_t word);

  // Whether this is what an insert stores for the record with this key, or what an update does.
  bool is_of(uint64_t word, std::string_view value) const {
    return value.size() == value_.size() && version_of(word, value) <= 1;
  }
  // Whether it is what an update stores; true of values without bytes.
  bool is_updated(uint64_t word, std::string_view value) const {
    return value_.empty() || version_of(word, value) == 1;
  }
  // The word that begins the key. The key must be one that key() gave, and no URL.
  uint64_t word_of(std::string_view key) const;

  uint64_t key_bytes() const { return key_.size(); }
  uint64_t value_bytes() const { return value_.size(); }

 private:
  std::string_view url(uint64_t word);
  // The number in a value of the record with this key: 0 as inserted, 1 as updated.
  uint64_t version_of(uint64_t word, std::string_view value) const;

  const size_t prefix_bytes_;
  const bool text_keys_;
  const bool url_keys_;
  std::string key_;
  std::string value_;
};

}  // namespace perdure::lab
