// Requests in RESP, the protocol of Redis: arrays of bulk strings, and inline commands (words on a
// line).
//
// Both versions of the protocol send requests in the same form. Source: redis.io, "Redis
// serialization protocol specification".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::server {

struct RequestLimits {
  size_t bulk_bytes_max = size_t{64} << 20;      // of one argument
  size_t request_bytes_max = size_t{256} << 20;  // of all of them
  size_t arguments_max = size_t{1} << 20;
  size_t inline_bytes_max = size_t{64} << 10;  // of a line
};

class RespParser {
 public:
  enum class Result : unsigned char {
    kRequest,   // may be empty: an empty line, or array
    kNeedMore,  // and nothing was consumed
    kError      // error() says why; the connection cannot go on
  };

  explicit RespParser(const RequestLimits& limits) : limits_(&limits) {}

  // Takes the first request off `input`; `consumed` becomes its length, and its arguments are added
  // to `out`. They lie in `input`, or, of words on a line, in the parser, until the next call. A
  // request that comes in pieces is looked at from where the last call stopped, so `input` must
  // begin with the same bytes as then.
  Result parse(std::string_view input, size_t& consumed, std::vector<std::string_view>& out);

  const std::string& error() const { return error_; }
  // At least so many bytes in all are needed for the request that has begun; 0: unknown.
  size_t bytes_wanted() const { return wanted_; }
  // Forgets a request that has begun: the next call begins with other bytes.
  void restart();

 private:
  using Arguments = std::vector<std::string_view>;
  bool parse_whole(std::string_view input, size_t& consumed, Arguments& out) const;
  Result parse_array(std::string_view input, size_t& consumed, Arguments& out);
  Result parse_inline(std::string_view input, size_t& consumed, Arguments& out);
  bool split_words(std::string_view line, Arguments& out);
  Result fail(std::string message);
  // Reads "digits\r\n" at `at`, up to 20 digits. 1: read, 0: more is needed, -1: no number.
  static int read_number(std::string_view input, size_t& at, long long& value);

  const RequestLimits* limits_;
  std::vector<size_t> begins_;  // of the arguments of a request that comes in pieces, or in words
  std::vector<size_t> sizes_;
  size_t at_ = 0;       // where to go on
  size_t scanned_ = 0;  // of an inline request: no end of line before that
  long long expected_ = -1;
  size_t wanted_ = 0;
  std::string words_;  // of an inline request, without quotes
  std::string error_;
};

}  // namespace perdure::server
