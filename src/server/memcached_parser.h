// Requests in memcached's text protocol, classic and meta: a line of words, and for some a block of
// data.
//
// Source: memcached's doc/protocol.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::server {

class MemcachedParser {
 public:
  static constexpr size_t kLineBytesMax = size_t{64} << 10;

  enum class Result : uint8_t {
    kRequest,
    kNeedMore,
    kRefused,  // error() is the answer, and the request is taken off
    kError     // the same; the connection cannot go on
  };

  explicit MemcachedParser(size_t value_bytes_max) : value_bytes_max_(value_bytes_max) {}

  // Takes the first request off `input`; `consumed` becomes its length, also with kNeedMore: data
  // that is refused is dropped as it comes. Words and data lie in `input`.
  Result parse(std::string_view input, size_t& consumed);

  // Adds what stands where most requests have their key, of those, up to `most`, that are whole in
  // `input`, where the next one begins. Refuses nothing: what it does not know ends it.
  void look_ahead(std::string_view input, size_t most, std::vector<std::string_view>& keys) const;

  const std::vector<std::string_view>& words() const { return words_; }
  std::string_view data() const { return data_; }
  const std::string& error() const { return error_; }
  // So many bytes in all are needed for the request that has begun; 0: unknown.
  size_t bytes_wanted() const { return wanted_; }

 private:
  Result refuse(const char* error, Result result = Result::kRefused);

  size_t value_bytes_max_;
  std::vector<std::string_view> words_;
  std::string_view data_;
  std::string error_;
  size_t scanned_ = 0;
  size_t wanted_ = 0;
  uint64_t dropping_ = 0;  // bytes of data, and its line end, that are to be dropped
};

}  // namespace perdure::server
