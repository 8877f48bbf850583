#include "server/resp_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace perdure::server {

namespace {

constexpr size_t kNumberBytesMax = 20;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// A word in quotes, from behind the first one; `at` moves behind the last one. False if it has no
// end.
bool read_quoted(std::string_view line, char quote, size_t& at, std::string& out) {
  while (at < line.size()) {
    const char c = line[at++];
    if (c == quote) return at == line.size() || is_space(line[at]);
    if (c != '\\' || at >= line.size()) {
      out += c;
      continue;
    }
    const char next = line[at++];
    if (quote == '\'') {
      if (next != '\'') out += '\\';
      out += next;
      continue;
    }
    if (next == 'x' && at + 1 < line.size() && hex_value(line[at]) >= 0 &&
        hex_value(line[at + 1]) >= 0) {
      out += static_cast<char>(hex_value(line[at]) * 16 + hex_value(line[at + 1]));
      at += 2;
      continue;
    }
    switch (next) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'b':
        out += '\b';
        break;
      case 'a':
        out += '\a';
        break;
      default:
        out += next;
    }
  }
  return false;
}

// Reads "digits\r\n" at `at`, up to six digits, if that is there; most are of one or two.
bool read_short(const char*& at, const char* end, size_t& value) {
  constexpr ptrdiff_t kBytesMax = 8;
  const auto digit = [](char c) {
    return static_cast<size_t>(static_cast<unsigned char>(c)) - '0';
  };
  const char* next = at;
  const char* const last = end - at > kBytesMax ? at + kBytesMax : end;
  for (value = 0; last - next >= 2; ++next) {
    if (digit(*next) > 9) break;
    value = 10 * value + digit(*next);
  }
  if (next == at || last - next < 2 || next[0] != '\r' || next[1] != '\n') return false;
  at = next + 2;
  return true;
}

}  // namespace

void RespParser::restart() {
  begins_.clear();
  sizes_.clear();
  at_ = scanned_ = wanted_ = 0;
  expected_ = -1;
}

RespParser::Result RespParser::fail(std::string message) {
  error_ = std::move(message);
  restart();
  return Result::kError;
}

RespParser::Result RespParser::parse(std::string_view input, size_t& consumed, Arguments& out) {
  consumed = 0;
  if (input.empty()) return Result::kNeedMore;
  const bool is_array = input[0] == '*';
  if (is_array && expected_ < 0 && parse_whole(input, consumed, out)) return Result::kRequest;
  const Result result =
      is_array ? parse_array(input, consumed, out) : parse_inline(input, consumed, out);
  if (result == Result::kRequest) restart();
  return result;
}

// What nearly all requests are: a few arguments, all there. Of any other one nothing is kept.
bool RespParser::parse_whole(std::string_view input, size_t& consumed, Arguments& out) const {
  constexpr size_t kArgumentsMax = 64;
  const char* at = input.data() + 1;
  const char* const end = input.data() + input.size();
  size_t count = 0;
  if (!read_short(at, end, count) || count > std::min(kArgumentsMax, limits_->arguments_max)) {
    return false;
  }
  const size_t before = out.size();
  for (; count > 0; --count) {
    size_t bytes = 0;
    if (at == end || *at != '$') break;
    ++at;
    if (!read_short(at, end, bytes) || bytes > limits_->bulk_bytes_max ||
        static_cast<size_t>(end - at) < bytes + 2 || at[bytes] != '\r' || at[bytes + 1] != '\n') {
      break;
    }
    out.emplace_back(at, bytes);
    at += bytes + 2;
  }
  consumed = static_cast<size_t>(at - input.data());
  if (count == 0 && consumed <= limits_->request_bytes_max) return true;
  consumed = 0;
  out.resize(before);
  return false;
}

int RespParser::read_number(std::string_view input, size_t& at, long long& value) {
  size_t i = at;
  const bool negative = i < input.size() && input[i] == '-';
  if (negative) ++i;
  long long sum = 0;
  const size_t first = i;
  while (i < input.size() && input[i] >= '0' && input[i] <= '9') {
    if (i - first >= kNumberBytesMax - 2) return -1;
    sum = sum * 10 + (input[i++] - '0');
  }
  if (i + 1 < input.size()) {
    if (i == first || input[i] != '\r' || input[i + 1] != '\n') return -1;
    value = negative ? -sum : sum;
    at = i + 2;
    return 1;
  }
  return i < input.size() && input[i] != '\r' ? -1 : 0;
}

RespParser::Result RespParser::parse_array(std::string_view input, size_t& consumed,
                                           Arguments& out) {
  if (expected_ < 0) {
    size_t at = 1;
    long long count = 0;
    const int read = read_number(input, at, count);
    if (read == 0) return Result::kNeedMore;
    if (read < 0 || count > static_cast<long long>(limits_->arguments_max)) {
      return fail("Protocol error: invalid multibulk length");
    }
    at_ = at;
    expected_ = count < 0 ? 0 : count;
  }
  while (begins_.size() < static_cast<size_t>(expected_)) {
    if (at_ >= input.size()) return Result::kNeedMore;
    if (input[at_] != '$') {
      const char c = input[at_];
      return fail(
          fmt::format("Protocol error: expected '$', got '{}'", c >= ' ' && c < 127 ? c : '?'));
    }
    size_t at = at_ + 1;
    long long bytes = 0;
    const int read = read_number(input, at, bytes);
    if (read == 0) return Result::kNeedMore;
    if (read < 0 || bytes < 0 || bytes > static_cast<long long>(limits_->bulk_bytes_max)) {
      return fail("Protocol error: invalid bulk length");
    }
    const auto length = static_cast<size_t>(bytes);
    if (at + length + 2 > limits_->request_bytes_max) {
      return fail("Protocol error: too big request");
    }
    if (input.size() < at + length + 2) {
      wanted_ = at + length + 2;
      return Result::kNeedMore;
    }
    if (input[at + length] != '\r' || input[at + length + 1] != '\n') {
      return fail("Protocol error: a bulk string has no end");
    }
    begins_.push_back(at);
    sizes_.push_back(length);
    at_ = at + length + 2;
  }
  for (size_t i = 0; i < begins_.size(); ++i) out.push_back(input.substr(begins_[i], sizes_[i]));
  consumed = at_;
  return Result::kRequest;
}

RespParser::Result RespParser::parse_inline(std::string_view input, size_t& consumed,
                                            Arguments& out) {
  const size_t end = input.find('\n', scanned_);
  if (end == std::string_view::npos ? input.size() > limits_->inline_bytes_max
                                    : end > limits_->inline_bytes_max) {
    return fail("Protocol error: too big inline request");
  }
  if (end == std::string_view::npos) {
    scanned_ = input.size();
    return Result::kNeedMore;
  }
  if (!split_words(input.substr(0, end), out)) {
    return fail("Protocol error: unbalanced quotes in request");
  }
  consumed = end + 1;
  return Result::kRequest;
}

bool RespParser::split_words(std::string_view line, Arguments& out) {
  begins_.clear();
  sizes_.clear();
  words_.clear();
  for (size_t at = 0;;) {
    while (at < line.size() && is_space(line[at])) ++at;
    if (at >= line.size()) break;
    begins_.push_back(words_.size());
    while (at < line.size() && !is_space(line[at])) {
      const char c = line[at++];
      if (c == '"' || c == '\'') {
        if (!read_quoted(line, c, at, words_)) return false;
      } else {
        words_ += c;
      }
    }
    sizes_.push_back(words_.size() - begins_.back());
  }
  for (size_t i = 0; i < begins_.size(); ++i) {
    out.push_back(std::string_view(words_).substr(begins_[i], sizes_[i]));
  }
  return true;
}

}  // namespace perdure::server
