// Carries out the operations of a workload on an index: makes keys and values from record numbers.
#pragma once

#include <cstdint>
#include <string>

#include "lab/bench/workload.h"
#include "perdure/index.h"

namespace perdure::lab {

// One for each thread.
class BenchClient {
 public:
  // Byte-string keys have at least 8 bytes, so that all can differ.
  BenchClient(AnyIndex& index, const OperationPlan& plan, uint64_t key_bytes, uint64_t value_bytes);

  // An operation with its key and value, valid until the next is prepared.
  struct Prepared {
    OperationType type;
    Datum key;
    Datum value;
  };
  Prepared prepare(Operation operation) {
    const uint64_t word = plan_.key_of(operation.record);
    switch (operation.type) {
      case OperationType::kInsert:
        return {operation.type, make_key(word), make_value(word)};
      case OperationType::kUpdate:
      case OperationType::kUpsert:
        return {operation.type, make_key(word), make_value(word + 1)};
      default:
        return {operation.type, make_key(word), uint64_t{0}};
    }
  }

  // False if the index says that the operation was not possible, which is wrong of it.
  bool carry_out(const Prepared& prepared) {
    switch (prepared.type) {
      case OperationType::kInsert:
        return index_.insert(prepared.key, prepared.value);
      case OperationType::kLookup:
        return index_.lookup(prepared.key, found_);
      case OperationType::kUpdate:
        return index_.update(prepared.key, prepared.value);
      case OperationType::kUpsert:
        index_.upsert(prepared.key, prepared.value);
        return true;
      case OperationType::kRemove:
        return index_.remove(prepared.key);
    }
    return false;
  }

  bool execute(Operation operation) { return carry_out(prepare(operation)); }

 private:
  Datum make_key(uint64_t word) { return word_keys_ ? Datum(word) : make_key_bytes(word); }
  Datum make_value(uint64_t word) { return word_values_ ? Datum(word) : make_value_bytes(word); }
  Datum make_key_bytes(uint64_t word);
  Datum make_value_bytes(uint64_t word);

  AnyIndex& index_;
  const OperationPlan& plan_;
  const bool word_keys_;
  const bool word_values_;
  std::string key_;
  std::string value_;
  Value found_;
};

}  // namespace perdure::lab
