// Carries out the operations of a workload on an index: makes keys and values from record numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lab/bench/record_bytes.h"
#include "lab/bench/workload.h"
#include "perdure/index.h"

namespace perdure::lab {

// One for each thread.
class BenchClient {
 public:
  // With kNothing what is read is not compared: for an index that keeps nothing.
  enum class Compare : uint8_t { kNothing, kValues };
  BenchClient(AnyIndex& index, const OperationPlan& plan, const RecordForm& form,
              Compare compare = Compare::kValues);

  // An operation with its key and value, valid until the next is prepared.
  struct Prepared {
    OperationType type;
    uint32_t length;
    Datum key;
    Datum value;
  };
  Prepared prepare(Operation operation) {
    return prepare(operation, plan_.key_of(operation.record));
  }
  // `word`: the record's key, where it is known already.
  Prepared prepare(Operation operation, uint64_t word) {
    switch (operation.type) {
      case OperationType::kInsert:
        return {operation.type, 0, make_key(word), make_value(word)};
      case OperationType::kUpdate:
      case OperationType::kUpsert:
      case OperationType::kReadModifyWrite:
        return {operation.type, 0, make_key(word), make_value(word + 1)};
      default:
        return {operation.type, operation.length, make_key(word), uint64_t{0}};
    }
  }

  // False if the index says that the operation was not possible, or reads a value that nobody wrote
  // for the key: both are wrong of it. `word`: the record's key.
  bool carry_out(const Prepared& prepared, uint64_t word) {
    switch (prepared.type) {
      case OperationType::kInsert:
        return index_.insert(prepared.key, prepared.value);
      case OperationType::kLookup:
        return index_.lookup(prepared.key, found_) && is_of(word, found_);
      case OperationType::kUpdate:
        return index_.update(prepared.key, prepared.value);
      case OperationType::kUpsert:
        index_.upsert(prepared.key, prepared.value);
        return true;
      case OperationType::kRemove:
        return index_.remove(prepared.key);
      case OperationType::kScan:
      case OperationType::kScanBack:
        return scan(prepared);
      case OperationType::kReadModifyWrite:
        return index_.lookup(prepared.key, found_) && is_of(word, found_) &&
               index_.update(prepared.key, prepared.value);
    }
    return false;
  }

  bool execute(Operation operation) { return execute(operation, plan_.key_of(operation.record)); }
  // `word`: the record's key. In few instructions where keys and values are words.
  [[gnu::always_inline]] bool execute(const Operation& operation, uint64_t word) {
    if (words_) [[likely]] {
      if (operation.type == OperationType::kLookup)
        return index_.lookup(word, found_) && is_of(word, found_);
      if (operation.type == OperationType::kInsert) return index_.insert(word, word);
      if (operation.type == OperationType::kUpdate) return index_.update(word, word + 1);
    }
    return carry_out(prepare(operation, word), word);
  }

  // Whether this is what an insert stores for the record with this key, or what an update does.
  bool is_of(uint64_t word, const Value& value) const {
    if (word_values_) [[likely]]
      return value.word() - word <= 1 || compare_ == Compare::kNothing;
    return compare_ == Compare::kNothing || bytes_.is_of(word, value.bytes());
  }
  // After the phase, with nobody writing: whether the operation's effect is there. Reads of the
  // stream have none.
  bool has_effect(const Operation& operation);

  uint64_t scanned() const { return scanned_; }  // records that scans visited

 private:
  // Whether the scan began at the record it was sent to, and visited no more than it was asked for.
  bool scan(const Prepared& prepared);
  Datum make_key(uint64_t word) { return word_keys_ ? Datum(word) : Datum(bytes_.key(word)); }
  Datum make_value(uint64_t word) { return word_values_ ? Datum(word) : Datum(bytes_.value(word)); }

  AnyIndex& index_;
  const OperationPlan& plan_;
  const bool word_keys_;
  const bool word_values_;
  const bool words_;  // both
  const Compare compare_;
  RecordBytes bytes_;
  Value found_;
  uint64_t scanned_ = 0;
  uint64_t read_ = 0;  // something of every record that a scan visited
};

}  // namespace perdure::lab
