#include "server/memcached_binary_parser.h"

#include <algorithm>

namespace perdure::server {

namespace {

constexpr size_t kOthersBytesMax = 1024;  // of extras and key, beside the value

}  // namespace

uint64_t read_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

MemcachedBinaryParser::Result MemcachedBinaryParser::parse(std::string_view input,
                                                           size_t& consumed) {
  consumed = 0;
  wanted_ = 0;
  if (dropping_ > 0) {
    consumed = static_cast<size_t>(std::min<uint64_t>(dropping_, input.size()));
    dropping_ -= consumed;
    return dropping_ > 0 ? Result::kNeedMore : Result::kTooLarge;
  }
  if (!input.empty() && static_cast<unsigned char>(input[0]) != kMagic) return Result::kError;
  if (input.size() < kHeaderBytes) {
    wanted_ = kHeaderBytes;
    return Result::kNeedMore;
  }
  const auto number = [&](size_t at, size_t bytes) {
    return read_big_endian(input.substr(at, bytes));
  };
  const size_t key_bytes = number(2, 2);
  const size_t extras_bytes = number(4, 1);
  const size_t body_bytes = number(8, 4);
  request_ = {.opcode = static_cast<uint8_t>(number(1, 1)),
              .opaque = static_cast<uint32_t>(number(12, 4)),
              .cas = number(16, 8)};
  if (body_bytes > value_bytes_max_ + kOthersBytesMax) {
    consumed = kHeaderBytes;
    dropping_ = body_bytes;
    return Result::kNeedMore;
  }
  const size_t total = kHeaderBytes + body_bytes;
  if (input.size() < total) {
    wanted_ = total;
    return Result::kNeedMore;
  }
  consumed = total;
  if (extras_bytes + key_bytes > body_bytes) return Result::kInvalid;
  request_.extras = input.substr(kHeaderBytes, extras_bytes);
  request_.key = input.substr(kHeaderBytes + extras_bytes, key_bytes);
  request_.value =
      input.substr(kHeaderBytes + extras_bytes + key_bytes, body_bytes - extras_bytes - key_bytes);
  return request_.value.size() > value_bytes_max_ ? Result::kTooLarge : Result::kRequest;
}

void MemcachedBinaryParser::look_ahead(std::string_view input, size_t most,
                                       std::vector<std::string_view>& keys) const {
  if (dropping_ > 0) return;
  for (; most > 0 && input.size() >= kHeaderBytes; --most) {
    if (static_cast<unsigned char>(input[0]) != kMagic) return;
    const uint64_t total = kHeaderBytes + read_big_endian(input.substr(8, 4));
    if (input.size() < total) return;
    const uint64_t at = kHeaderBytes + read_big_endian(input.substr(4, 1));
    const uint64_t bytes = read_big_endian(input.substr(2, 2));
    if (bytes > 0 && at + bytes <= total) keys.push_back(input.substr(at, bytes));
    input.remove_prefix(total);
  }
}

}  // namespace perdure::server
