// Requests of memcached's binary protocol.
//
//   header (24 bytes, big-endian)          body
//   0x80 opcode key-length extras-length   extras key value
//   type vbucket body-length opaque cas
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace perdure::server {

struct BinaryRequest {
  uint8_t opcode = 0;
  uint32_t opaque = 0;  // goes back as it came
  uint64_t cas = 0;
  std::string_view extras = {};
  std::string_view key = {};
  std::string_view value = {};
};

class MemcachedBinaryParser {
 public:
  static constexpr size_t kHeaderBytes = 24;
  static constexpr uint8_t kMagic = 0x80;

  enum class Result : uint8_t {
    kRequest,
    kNeedMore,
    kTooLarge,  // request() has the header; the body is dropped as it comes
    kInvalid,  // the same of a header whose lengths do not fit each other; the request is taken off
    kError     // no request: the connection cannot go on
  };

  explicit MemcachedBinaryParser(size_t value_bytes_max) : value_bytes_max_(value_bytes_max) {}
  void set_value_bytes_max(size_t bytes) { value_bytes_max_ = bytes; }

  // Takes the first request off `input`; `consumed` becomes its length, also with kNeedMore. What
  // request() has lies in `input`.
  Result parse(std::string_view input, size_t& consumed);
  // Adds the keys of the requests, up to `most`, that are whole in `input`, where the next one
  // begins.
  void look_ahead(std::string_view input, size_t most, std::vector<std::string_view>& keys) const;
  const BinaryRequest& request() const { return request_; }
  // So many bytes in all are needed for the request that has begun; 0: unknown.
  size_t bytes_wanted() const { return wanted_; }

 private:
  size_t value_bytes_max_;
  BinaryRequest request_;
  size_t wanted_ = 0;
  uint64_t dropping_ = 0;  // bytes of a body
};

// Numbers as the network has them.
uint64_t read_big_endian(std::string_view bytes);

}  // namespace perdure::server
