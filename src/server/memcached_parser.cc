#include "server/memcached_parser.h"

#include <algorithm>
#include <charconv>

namespace perdure::server {

namespace {

// Which word says how long the data is; 0: there is none.
size_t length_word(std::string_view command) {
  if (command == "ms") return 2;
  for (const std::string_view one : {"set", "add", "replace", "append", "prepend", "cas"}) {
    if (command == one) return 4;
  }
  return 0;
}

}  // namespace

MemcachedParser::Result MemcachedParser::refuse(const char* error, Result result) {
  error_ = error;
  return result;
}

MemcachedParser::Result MemcachedParser::parse(std::string_view input, size_t& consumed) {
  consumed = 0;
  if (dropping_ > 0) {
    consumed = static_cast<size_t>(std::min<uint64_t>(dropping_, input.size()));
    dropping_ -= consumed;
    if (dropping_ > 0) return Result::kNeedMore;
    input.remove_prefix(consumed);
    scanned_ = 0;
    return refuse("SERVER_ERROR object too large for cache");
  }
  const size_t end = input.find('\n', scanned_);
  if (end == std::string_view::npos ? input.size() > kLineBytesMax : end > kLineBytesMax) {
    return refuse("CLIENT_ERROR line too long", Result::kError);
  }
  if (end == std::string_view::npos) {
    scanned_ = input.size();
    return Result::kNeedMore;
  }
  scanned_ = 0;
  wanted_ = 0;
  std::string_view line = input.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  words_.clear();
  data_ = {};
  for (size_t at = 0; at < line.size();) {
    const size_t begin = line.find_first_not_of(' ', at);
    if (begin == std::string_view::npos) break;
    at = std::min(line.find(' ', begin), line.size());
    words_.push_back(line.substr(begin, at - begin));
  }
  consumed = end + 1;
  if (words_.empty()) return refuse("ERROR");
  const size_t length = length_word(words_[0]);
  if (length == 0) return Result::kRequest;
  if (words_.size() <= length) return refuse("ERROR");
  uint64_t bytes = 0;
  const std::string_view digits = words_[length];
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (error != std::errc() || rest != digits.data() + digits.size() || bytes > UINT64_MAX / 2) {
    // Where the next request begins is not known.
    return refuse("CLIENT_ERROR bad data chunk", Result::kError);
  }
  if (bytes > value_bytes_max_) {
    dropping_ = bytes + 2;
    return Result::kNeedMore;
  }
  const size_t total = end + 1 + static_cast<size_t>(bytes) + 2;
  if (input.size() < total) {
    consumed = 0;
    wanted_ = total;
    return Result::kNeedMore;
  }
  data_ = input.substr(end + 1, static_cast<size_t>(bytes));
  if (input.substr(total - 2, 2) != "\r\n") {
    consumed = total;
    return refuse("CLIENT_ERROR bad data chunk", Result::kError);
  }
  consumed = total;
  return Result::kRequest;
}

void MemcachedParser::look_ahead(std::string_view input, size_t most,
                                 std::vector<std::string_view>& keys) const {
  if (dropping_ > 0) return;
  for (; most > 0; --most) {
    const size_t end = input.substr(0, kLineBytesMax).find('\n');
    if (end == std::string_view::npos) return;
    std::string_view line = input.substr(0, end);
    input.remove_prefix(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto next_word = [&] {
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
      const std::string_view word = line.substr(0, line.find(' '));
      line.remove_prefix(word.size());
      return word;
    };
    size_t left = length_word(next_word());
    const std::string_view key = next_word();
    if (!key.empty()) keys.push_back(key);
    if (left == 0) continue;
    std::string_view digits;
    for (; left > 1; --left) digits = next_word();
    uint64_t bytes = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
    if (error != std::errc() || input.size() < 2 || bytes > input.size() - 2) return;
    input.remove_prefix(static_cast<size_t>(bytes) + 2);
  }
}

}  // namespace perdure::server
