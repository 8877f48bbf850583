// The requests that a client of a key-value server sends, and the replies that come back: RESP, and
// memcached's classic text and meta commands.
//
// Source: redis.io, "Redis serialization protocol specification"; memcached's doc/protocol.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/serve/address.h"

namespace perdure::lab::serve {

// Appends requests to a buffer. Keys of memcached have no blanks and no control characters.
class RequestWriter {
 public:
  RequestWriter(Protocol protocol, std::string& out) : protocol_(protocol), out_(out) {}

  void get(std::string_view key);
  void set(std::string_view key, std::string_view value);
  void remove(std::string_view key);
  // Of RESP alone: any command.
  void command(std::initializer_list<std::string_view> words);

 private:
  void bulk(std::string_view text);

  Protocol protocol_;
  std::string& out_;
};

struct ServerReply {
  enum class Kind : uint8_t {
    kValue,   // `text` is what was stored
    kDone,    // a write, or a command, was carried out
    kAbsent,  // there is no such record
    kNumber,  // `number`
    kList,    // of `elements`
    kError    // `text` says which
  };
  Kind kind = Kind::kError;
  std::string_view text = {};  // within the input
  int64_t number = 0;
  std::vector<std::string_view> elements = {};
};

class ReplyParser {
 public:
  explicit ReplyParser(Protocol protocol) : protocol_(protocol) {}

  enum class Result : uint8_t {
    kReply,     // reply() has it
    kNeedMore,  // nothing was consumed
    kBroken     // these are no replies of the protocol: the connection cannot go on
  };
  // Takes the first reply off `input`; `consumed` becomes its length. Its texts lie in `input`.
  Result parse(std::string_view input, size_t& consumed);
  const ServerReply& reply() const { return reply_; }

 private:
  Result parse_resp(std::string_view input, size_t& consumed);
  Result parse_memcached(std::string_view input, size_t& consumed);
  Result parse_value(std::string_view input, size_t line_bytes, std::string_view length,
                     size_t& consumed);
  Result done(ServerReply::Kind kind, std::string_view text, size_t bytes, size_t& consumed);

  Protocol protocol_;
  ServerReply reply_;
};

}  // namespace perdure::lab::serve
