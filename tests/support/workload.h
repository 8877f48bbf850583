// Writers in a child process that is killed, and what its parent knows of them.
//
// Each thread writes to keys of its own, an operation stream that follows from a seed. Before each
// operation the thread says in the pipe how its last one ended and that the next one starts. So the
// parent knows, from the same seed, every operation that returned, what it returned, and for each
// thread the one that was in flight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/child.h"
#include "support/data.h"
#include "support/random.h"
#include "support/typed_index.h"

namespace perdure::test {

enum class Verb : uint32_t { kInsert, kUpdate, kUpsert, kRemove };

struct Operation {
  Verb verb;
  uint64_t key;
  uint64_t value;
};

// How an operation ended: with false or true (upsert: true), or with "pool full" and no effect.
enum class Outcome : uint32_t { kFalse, kTrue, kFull };

// What all writers of one child do.
struct Workload {
  uint64_t seed;
  uint32_t threads;
  uint64_t keys;         // keys are below this; thread t has those with remainder t
  uint64_t value_first;  // values are from here on, each used once
  uint64_t operations_max = ~uint64_t{0};  // of each thread
};

// The operations of one thread of a workload, in order.
class OperationStream {
 public:
  OperationStream(const Workload& workload, uint32_t thread);
  Operation next();

 private:
  Random random_;
  uint32_t thread_;
  uint32_t threads_;
  uint64_t keys_;
  uint64_t value_;
};

// Performs an operation on an index.
Outcome perform(TypedIndex index, const Operation& operation);

// What the key of an operation has after it, from what it had before, if it has an effect.
std::optional<uint64_t> after(const Operation& operation, std::optional<uint64_t> before);

// For the child: runs the workload's threads, telling each step in `out`. Returns when all
// operations have been performed.
void write_and_tell(TypedIndex index, const Workload& workload, int out);

// For the parent: follows what the writers tell, and brings a model up to date with it.
class Witness {
 public:
  // A `model` of what the pool held when the writers began; the witness changes it.
  Witness(const Workload& workload, Model& model);

  // Receives one message. False at the end of the pipe.
  bool receive(Child& child);

  // The operations that started and did not end, at most one for each thread.
  std::vector<Operation> in_flight() const;
  // Operations whose outcome the model does not explain, in words; empty if there are none.
  const std::string& lies() const { return lies_; }
  uint64_t acknowledged() const { return acknowledged_; }

 private:
  void end(const Operation& operation, Outcome outcome);

  Model& model_;
  std::vector<OperationStream> streams_;
  std::vector<std::optional<Operation>> current_;  // of each thread
  std::string lies_;
  uint64_t acknowledged_ = 0;
};

// What became of operations in flight, one letter for each: 'b' the key is as before, 'a' as after,
// 'x' anything else.
std::string fates(TypedIndex index, const Model& model, const std::vector<Operation>& in_flight);

// Brings the model up to date with fates(). Returns what is wrong, in words.
std::string settle(Model& model, const std::vector<Operation>& in_flight, const std::string& fates);

}  // namespace perdure::test
