#include "lab/serve/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace perdure::lab::serve {
namespace {

using ReplyKind = ServerReply::Kind;

constexpr size_t kLineBytesMax = size_t{64} << 10;
constexpr int64_t kBulkBytesMax = int64_t{512} << 20;
constexpr int64_t kElementsMax = int64_t{1} << 20;
constexpr std::string_view kEnd = "\r\n";

enum class Found : uint8_t { kYes, kMore, kBroken };

// The line at the beginning of `input`, without its end.
Found find_line(std::string_view input, std::string_view& line) {
  const size_t end = input.substr(0, kLineBytesMax).find(kEnd);
  if (end == std::string_view::npos) {
    return input.size() >= kLineBytesMax ? Found::kBroken : Found::kMore;
  }
  line = input.substr(0, end);
  return Found::kYes;
}

bool read_integer(std::string_view digits, int64_t& number) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size();
}

// A bulk string of RESP, whole: "$3\r\nabc\r\n". `bytes` is -1 if it is null.
Found find_bulk(std::string_view input, std::string_view& text, int64_t& bytes, size_t& consumed) {
  std::string_view line;
  if (const Found found = find_line(input, line); found != Found::kYes) return found;
  if (!line.starts_with('$') || !read_integer(line.substr(1), bytes) || bytes < -1 ||
      bytes > kBulkBytesMax) {
    return Found::kBroken;
  }
  consumed = line.size() + kEnd.size();
  if (bytes < 0) return Found::kYes;
  const auto length = static_cast<size_t>(bytes);
  if (input.size() < consumed + length + kEnd.size()) return Found::kMore;
  text = input.substr(consumed, length);
  if (input.substr(consumed + length, kEnd.size()) != kEnd) return Found::kBroken;
  consumed += length + kEnd.size();
  return Found::kYes;
}

}  // namespace

void RequestWriter::bulk(std::string_view text) {
  fmt::format_to(std::back_inserter(out_), "${}\r\n", text.size());
  out_.append(text).append(kEnd);
}

void RequestWriter::command(std::initializer_list<std::string_view> words) {
  fmt::format_to(std::back_inserter(out_), "*{}\r\n", words.size());
  for (const std::string_view word : words) bulk(word);
}

void RequestWriter::get(std::string_view key) {
  switch (protocol_) {
    case Protocol::kResp:
      out_ += "*2\r\n$3\r\nGET\r\n";
      bulk(key);
      return;
    case Protocol::kMemcachedText:
      out_.append("get ").append(key).append(kEnd);
      return;
    case Protocol::kMemcachedMeta:
      out_.append("mg ").append(key).append(" v\r\n");
  }
}

void RequestWriter::set(std::string_view key, std::string_view value) {
  if (protocol_ == Protocol::kResp) {
    out_ += "*3\r\n$3\r\nSET\r\n";
    bulk(key);
    bulk(value);
    return;
  }
  const bool meta = protocol_ == Protocol::kMemcachedMeta;
  out_.append(meta ? "ms " : "set ").append(key);
  fmt::format_to(std::back_inserter(out_), "{} {}\r\n", meta ? "" : " 0 0", value.size());
  out_.append(value).append(kEnd);
}

void RequestWriter::remove(std::string_view key) {
  if (protocol_ == Protocol::kResp) {
    command({"DEL", key});
    return;
  }
  out_.append(protocol_ == Protocol::kMemcachedMeta ? "md " : "delete ").append(key).append(kEnd);
}

ReplyParser::Result ReplyParser::parse(std::string_view input, size_t& consumed) {
  consumed = 0;
  return protocol_ == Protocol::kResp ? parse_resp(input, consumed)
                                      : parse_memcached(input, consumed);
}

ReplyParser::Result ReplyParser::done(ServerReply::Kind kind, std::string_view text, size_t bytes,
                                      size_t& consumed) {
  reply_.kind = kind;
  reply_.text = text;
  consumed = bytes;
  return Result::kReply;
}

ReplyParser::Result ReplyParser::parse_resp(std::string_view input, size_t& consumed) {
  std::string_view line;
  const Found found = find_line(input, line);
  if (found == Found::kMore) return Result::kNeedMore;
  if (found == Found::kBroken || line.empty()) return Result::kBroken;
  const std::string_view rest = line.substr(1);
  const size_t line_bytes = line.size() + kEnd.size();
  switch (line[0]) {
    case '+':
      return done(ReplyKind::kDone, rest, line_bytes, consumed);
    case '-':
      return done(ReplyKind::kError, rest, line_bytes, consumed);
    case ':':
      if (!read_integer(rest, reply_.number)) return Result::kBroken;
      return done(ReplyKind::kNumber, {}, line_bytes, consumed);
    case '_':
      return done(ReplyKind::kAbsent, {}, line_bytes, consumed);
    case '$': {
      std::string_view text;
      int64_t bytes = 0;
      size_t end = 0;
      const Found bulk = find_bulk(input, text, bytes, end);
      if (bulk == Found::kMore) return Result::kNeedMore;
      if (bulk == Found::kBroken) return Result::kBroken;
      return done(bytes < 0 ? ReplyKind::kAbsent : ReplyKind::kValue, text, end, consumed);
    }
    case '*': {
      int64_t count = 0;
      if (!read_integer(rest, count) || count > kElementsMax) return Result::kBroken;
      reply_.elements.clear();
      size_t at = line_bytes;
      for (int64_t i = 0; i < count; ++i) {
        std::string_view text;
        int64_t bytes = 0;
        size_t end = 0;
        const Found bulk = find_bulk(input.substr(at), text, bytes, end);
        if (bulk == Found::kMore) return Result::kNeedMore;
        if (bulk == Found::kBroken) return Result::kBroken;
        reply_.elements.push_back(text);
        at += end;
      }
      return done(count < 0 ? ReplyKind::kAbsent : ReplyKind::kList, {}, at, consumed);
    }
    default:
      return Result::kBroken;
  }
}

// The bytes of a value and the end of its line, after a line that says how many they are. The
// classic protocol has another line then, "END".
ReplyParser::Result ReplyParser::parse_value(std::string_view input, size_t line_bytes,
                                             std::string_view length, size_t& consumed) {
  int64_t bytes = 0;
  if (!read_integer(length, bytes) || bytes < 0 || bytes > kBulkBytesMax) return Result::kBroken;
  const std::string_view end = protocol_ == Protocol::kMemcachedText ? "\r\nEND\r\n" : kEnd;
  const size_t value_end = line_bytes + static_cast<size_t>(bytes);
  if (input.size() < value_end + end.size()) return Result::kNeedMore;
  if (input.substr(value_end, end.size()) != end) return Result::kBroken;
  return done(ReplyKind::kValue, input.substr(line_bytes, value_end - line_bytes),
              value_end + end.size(), consumed);
}

ReplyParser::Result ReplyParser::parse_memcached(std::string_view input, size_t& consumed) {
  std::string_view line;
  const Found found = find_line(input, line);
  if (found == Found::kMore) return Result::kNeedMore;
  if (found == Found::kBroken) return Result::kBroken;
  const size_t line_bytes = line.size() + kEnd.size();
  const std::string_view word = line.substr(0, line.find(' '));
  const std::string_view rest = line.substr(std::min(word.size() + 1, line.size()));
  if (word == "VALUE") {  // KEY FLAGS BYTES
    const size_t flags = rest.find(' ');
    const size_t bytes = rest.find(' ', flags + 1);
    if (flags == std::string_view::npos || bytes == std::string_view::npos) return Result::kBroken;
    return parse_value(input, line_bytes, rest.substr(bytes + 1), consumed);
  }
  if (word == "VA") {  // BYTES FLAGS...
    return parse_value(input, line_bytes, rest.substr(0, rest.find(' ')), consumed);
  }
  for (const std::string_view absent : {"END", "EN", "NF", "NOT_FOUND"}) {
    if (word == absent) return done(ReplyKind::kAbsent, line, line_bytes, consumed);
  }
  for (const std::string_view good : {"STORED", "HD", "MN", "DELETED", "OK", "VERSION"}) {
    if (word == good) return done(ReplyKind::kDone, line, line_bytes, consumed);
  }
  for (const std::string_view bad : {"ERROR", "SERVER_ERROR", "CLIENT_ERROR", "NOT_STORED", "NS"}) {
    if (word == bad) return done(ReplyKind::kError, line, line_bytes, consumed);
  }
  return Result::kBroken;
}

}  // namespace perdure::lab::serve
