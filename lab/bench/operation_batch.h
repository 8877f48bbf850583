// Operations of one type, gathered for one batched call of the index.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lab/bench/client.h"
#include "lab/bench/workload.h"
#include "perdure/index.h"

namespace perdure::lab {

class OperationBatch {
 public:
  OperationBatch(AnyIndex& index, OperationType type, uint64_t size);

  // Whether there are batched calls for the type.
  static bool takes(OperationType type) {
    return type == OperationType::kInsert || type == OperationType::kLookup ||
           type == OperationType::kUpsert;
  }

  // Copies the operation, which is of the batch's type, on the record with this key. The batch must
  // not be full.
  void add(const BenchClient::Prepared& prepared, uint64_t word);
  uint64_t count() const { return records_.size(); }
  bool full() const { return count() == size_; }

  // Carries out what was added, and forgets it. Returns how many operations the index says were not
  // possible, or read a value that nobody wrote for the key.
  uint64_t carry_out(const BenchClient& client);

 private:
  static Datum keep(const Datum& datum, Value& copy);

  AnyIndex& index_;
  const OperationType type_;
  const uint64_t size_;
  std::vector<Value> copies_;  // of byte strings: key and value of each operation
  std::vector<AnyRecord> records_;
  std::vector<Datum> keys_;
  std::vector<uint64_t> words_;  // the records' keys
  std::vector<Value> found_;
  std::unique_ptr<bool[]> flags_;
};

}  // namespace perdure::lab
