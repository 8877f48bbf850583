#include "lab/bench/client.h"

#include <algorithm>
#include <cstring>

namespace perdure::lab {

BenchClient::BenchClient(AnyIndex& index, const OperationPlan& plan, uint64_t key_bytes,
                         uint64_t value_bytes, std::string_view key_prefix, Compare compare)
    : index_(index),
      plan_(plan),
      word_keys_(index.key_kind() == Kind::kU64),
      word_values_(index.value_kind() == Kind::kU64),
      words_(word_keys_ && word_values_),
      compare_(compare),
      prefix_bytes_(key_prefix.size()),
      key_(key_prefix),
      value_(value_bytes, 'v') {
  key_.resize(std::max<uint64_t>(key_bytes, prefix_bytes_ + sizeof(uint64_t)));
}

Datum BenchClient::make_key_bytes(uint64_t word) {
  // Big-endian, so that byte strings sort as the words do; padding that depends on the word, so
  // that no part of the key is the same in all.
  uint64_t part = __builtin_bswap64(word);
  for (size_t at = prefix_bytes_; at < key_.size(); at += sizeof part) {
    std::memcpy(key_.data() + at, &part, std::min(sizeof part, key_.size() - at));
    part = mix_word(part);
  }
  return std::string_view(key_);
}

Datum BenchClient::make_value_bytes(uint64_t word) {
  std::memcpy(value_.data(), &word, std::min(sizeof word, value_.size()));
  return std::string_view(value_);
}

uint64_t BenchClient::version_of(uint64_t word, std::string_view value) const {
  const size_t bytes = std::min(sizeof word, value_.size());
  uint64_t stored = 0;
  uint64_t plain = 0;  // as much of the word as the value has room for
  std::memcpy(&stored, value.data(), bytes);
  std::memcpy(&plain, &word, bytes);
  if (stored == plain) return 0;
  ++word;
  std::memcpy(&plain, &word, bytes);
  return stored == plain ? 1 : ~uint64_t{0};
}

bool BenchClient::is_bytes_of(uint64_t word, std::string_view value) const {
  return value.size() == value_.size() && version_of(word, value) <= 1;
}

bool BenchClient::has_effect(const Operation& operation) {
  const bool removed = operation.type == OperationType::kRemove;
  const bool inserted = operation.type == OperationType::kInsert;
  const bool read = operation.type == OperationType::kLookup || is_scan(operation.type);
  if (read || compare_ == Compare::kNothing) return true;
  const uint64_t word = plan_.key_of(operation.record);
  if (!index_.lookup(make_key(word), found_)) return removed;
  if (removed || !is_of(word, found_)) return false;
  // What was inserted may have been updated; what was updated never goes back.
  return inserted || (word_values_ ? found_.word() == word + 1
                                   : value_.empty() || version_of(word, found_.bytes()) == 1);
}

bool BenchClient::scan(const Prepared& prepared) {
  uint64_t told = 0;
  bool starts_there = false;
  const auto visit = [&](Datum key, Datum value) {
    if (told == 0) starts_there = key == prepared.key;
    read_ += word_values_ ? value.word() : value.bytes().size();
    return ++told < prepared.length;
  };
  if (prepared.type == OperationType::kScan) {
    index_.scan(prepared.key, prepared.length, visit);
  } else {
    index_.scan_back(prepared.key, prepared.length, visit);
  }
  scanned_ += told;
  return starts_there && told <= prepared.length;
}

}  // namespace perdure::lab
