// Replies in RESP, in the version that the client has asked for.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "server/buffer.h"

namespace perdure::server {

// What a command collects before it tells it: no more than can be told.
class ReplyRoom {
 public:
  explicit ReplyRoom(const Buffer& out) : out_(out) {}
  // So many bytes more are to be told. Throws BufferFull.
  void take(size_t bytes) { out_.require(bytes_ += bytes); }

 private:
  const Buffer& out_;
  size_t bytes_ = 0;
};

class RespReply {
 public:
  explicit RespReply(Buffer& out) : out_(&out) {}

  // 2 or 3.
  int version() const { return version_; }
  void set_version(int version) { version_ = version; }
  Buffer& out() { return *out_; }
  bool has_failed() const { return failed_; }
  void forget_failure() { failed_ = false; }

  void ok() { out_->append("+OK\r\n"); }
  void simple(std::string_view text) { line('+', text); }
  // "CODE message"; a line end in it becomes a blank.
  void error(std::string_view text) {
    failed_ = true;
    out_->push_back('-');
    for (const char c : text) out_->push_back(c == '\r' || c == '\n' ? ' ' : c);
    out_->append("\r\n");
  }
  void integer(int64_t value) { number(':', value); }
  void bulk(std::string_view bytes) {
    char head[24];
    head[0] = '$';
    char* end = std::to_chars(head + 1, head + 22, bytes.size()).ptr;
    *end++ = '\r';
    *end++ = '\n';
    const auto head_bytes = static_cast<size_t>(end - head);
    char* to = out_->prepare(head_bytes + bytes.size() + 2);
    to = std::copy_n(head, head_bytes, to);
    to = std::copy_n(bytes.data(), bytes.size(), to);
    to[0] = '\r';
    to[1] = '\n';
    out_->commit(head_bytes + bytes.size() + 2);
  }
  ReplyRoom room() const { return ReplyRoom(*out_); }
  void null() { out_->append(version_ >= 3 ? "_\r\n" : "$-1\r\n"); }
  void null_array() { out_->append(version_ >= 3 ? "_\r\n" : "*-1\r\n"); }
  void array(size_t count) { number('*', static_cast<int64_t>(count)); }
  // Of pairs: a flat array in version 2.
  void map(size_t pairs) {
    if (version_ >= 3) {
      number('%', static_cast<int64_t>(pairs));
    } else {
      array(2 * pairs);
    }
  }
  void set(size_t count) { number(version_ >= 3 ? '~' : '*', static_cast<int64_t>(count)); }
  void push(size_t count) { number(version_ >= 3 ? '>' : '*', static_cast<int64_t>(count)); }
  void boolean(bool value) {
    if (version_ >= 3) {
      out_->append(value ? "#t\r\n" : "#f\r\n");
    } else {
      integer(value ? 1 : 0);
    }
  }
  void real(double value) {
    char text[40];
    const std::string_view digits = format_real(value, text);
    if (version_ >= 3) {
      line(',', digits);
    } else {
      bulk(digits);
    }
  }
  void verbatim(std::string_view text) {
    if (version_ < 3) return bulk(text);
    number('=', static_cast<int64_t>(text.size() + 4));
    out_->append("txt:");
    out_->append(text);
    out_->append("\r\n");
  }

  // The shortest digits that mean the same number.
  static std::string_view format_real(double value, char (&text)[40]) {
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    if (std::isnan(value)) return "nan";
    if (value == std::floor(value) && std::abs(value) < 1e17) {
      const auto end = std::to_chars(text, text + sizeof text, static_cast<int64_t>(value)).ptr;
      return {text, static_cast<size_t>(end - text)};
    }
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return {text, static_cast<size_t>(end - text)};
  }

 private:
  void line(char kind, std::string_view text) {
    out_->push_back(kind);
    out_->append(text);
    out_->append("\r\n");
  }
  void number(char kind, int64_t value) {
    char text[24];
    text[0] = kind;
    char* end = std::to_chars(text + 1, text + 22, value).ptr;
    *end++ = '\r';
    *end++ = '\n';
    out_->append({text, static_cast<size_t>(end - text)});
  }

  Buffer* out_;
  int version_ = 2;
  bool failed_ = false;
};

}  // namespace perdure::server
