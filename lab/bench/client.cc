#include "lab/bench/client.h"

namespace perdure::lab {

BenchClient::BenchClient(AnyIndex& index, const OperationPlan& plan, const RecordForm& form,
                         Compare compare)
    : index_(index),
      plan_(plan),
      word_keys_(index.key_kind() == Kind::kU64),
      word_values_(index.value_kind() == Kind::kU64),
      words_(word_keys_ && word_values_),
      compare_(compare),
      bytes_(form) {}

bool BenchClient::has_effect(const Operation& operation) {
  const bool removed = operation.type == OperationType::kRemove;
  const bool inserted = operation.type == OperationType::kInsert;
  const bool read = operation.type == OperationType::kLookup || is_scan(operation.type);
  if (read || compare_ == Compare::kNothing) return true;
  const uint64_t word = plan_.key_of(operation.record);
  if (!index_.lookup(make_key(word), found_)) return removed;
  if (removed || !is_of(word, found_)) return false;
  // What was inserted may have been updated; what was updated never goes back.
  return inserted ||
         (word_values_ ? found_.word() == word + 1 : bytes_.is_updated(word, found_.bytes()));
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
