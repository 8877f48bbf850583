#include "lab/bench/client.h"

#include <algorithm>
#include <cstring>

namespace perdure::lab {

BenchClient::BenchClient(AnyIndex& index, const OperationPlan& plan, uint64_t key_bytes,
                         uint64_t value_bytes)
    : index_(index),
      plan_(plan),
      word_keys_(index.key_kind() == Kind::kU64),
      word_values_(index.value_kind() == Kind::kU64),
      key_(std::max<uint64_t>(key_bytes, sizeof(uint64_t)), '\0'),
      value_(value_bytes, 'v') {}

Datum BenchClient::make_key_bytes(uint64_t word) {
  // Big-endian, so that byte strings sort as the words do; padding that depends on the word, so
  // that no part of the key is the same in all.
  uint64_t part = __builtin_bswap64(word);
  for (size_t at = 0; at < key_.size(); at += sizeof part) {
    std::memcpy(key_.data() + at, &part, std::min(sizeof part, key_.size() - at));
    part = mix_word(part);
  }
  return std::string_view(key_);
}

Datum BenchClient::make_value_bytes(uint64_t word) {
  std::memcpy(value_.data(), &word, std::min(sizeof word, value_.size()));
  return std::string_view(value_);
}

}  // namespace perdure::lab
