#include "lab/bench/operation_batch.h"

#include <span>

namespace perdure::lab {

OperationBatch::OperationBatch(AnyIndex& index, OperationType type, uint64_t size)
    : index_(index),
      type_(type),
      size_(size),
      copies_(2 * size),
      found_(size),
      flags_(std::make_unique<bool[]>(size)) {
  records_.reserve(size);
  keys_.reserve(size);
  words_.reserve(size);
}

Datum OperationBatch::keep(const Datum& datum, Value& copy) {
  if (datum.kind() == Kind::kU64) return datum;
  copy.set_bytes().assign(datum.bytes());
  return copy.datum();
}

void OperationBatch::add(const BenchClient::Prepared& prepared, uint64_t word) {
  const uint64_t at = 2 * count();
  const Datum key = keep(prepared.key, copies_[at]);
  keys_.push_back(key);
  words_.push_back(word);
  records_.push_back({key, keep(prepared.value, copies_[at + 1])});
}

uint64_t OperationBatch::carry_out(const BenchClient& client) {
  const uint64_t all = count();
  const std::span flags(flags_.get(), all);
  uint64_t succeeded = all;
  if (type_ == OperationType::kInsert) {
    succeeded = index_.multi_insert(records_, flags);
  } else if (type_ == OperationType::kLookup) {
    succeeded = index_.multi_lookup(keys_, found_, flags);
    for (uint64_t i = 0; i < all; ++i) {
      if (flags[i] && !client.is_of(words_[i], found_[i])) --succeeded;
    }
  } else {
    index_.multi_upsert(records_);
  }
  records_.clear();
  keys_.clear();
  words_.clear();
  return all - succeeded;
}

}  // namespace perdure::lab
