// What transactions over several structures (perdure/transaction.h) need of one: its gate, and
// reads and writes of keys of either kind.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"
#include "pm/write_gate.h"

namespace perdure::index {

class Participant {
 public:
  Participant(pm::PoolImpl& pool, std::string_view name) : gate_(pool, name) {}
  virtual ~Participant() = default;
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  pm::WriteGate& gate() { return gate_; }

  virtual Kind key_kind() const = 0;
  virtual Kind value_kind() const = 0;
  virtual bool lookup(Datum key, Value& out) const = 0;
  // Whoever calls them has a pass of the gate, or the structure to itself.
  virtual void upsert(Datum key, Datum value) = 0;
  virtual bool remove(Datum key) = 0;
  // Throws what keeps upsert() from ever taking this key, apart from its kind and size.
  virtual void require_takes([[maybe_unused]] Datum key) const {}

 private:
  pm::WriteGate gate_;
};

// An index that can take part.
class Participates {
 public:
  virtual ~Participates() = default;
  virtual Participant* participant() = 0;  // null: not this one
};

// Of an index as it is.
class IndexParticipant final : public Participant {
 public:
  IndexParticipant(AnyIndex& index, pm::PoolImpl& pool, std::string_view name)
      : Participant(pool, name), index_(index) {}
  Kind key_kind() const override { return index_.key_kind(); }
  Kind value_kind() const override { return index_.value_kind(); }
  bool lookup(Datum key, Value& out) const override { return index_.lookup(key, out); }
  void upsert(Datum key, Datum value) override { index_.upsert(key, value); }
  bool remove(Datum key) override { return index_.remove(key); }

 private:
  AnyIndex& index_;
};

// Operations as a record of pm::TransactionLog has them, one after the other, each
//   structure   4 bytes, its number in the record
//   form        4 bytes: OperationForm
//   key bytes   4
//   value bytes 4, 0 for a removal
//   key, value  filled up with zeros to a multiple of 8 in all
// of words their 8 bytes.
enum OperationForm : uint32_t { kRemoves = 1, kKeyIsWord = 2, kValueIsWord = 4 };

void append_operation(std::vector<char>& out, uint32_t structure, Datum key, const Datum* value);

// Applies what committed transactions hold for a structure that has just been opened. Throws
// kCorrupt, and what writes throw: the structure is not to be used then.
void finish_transactions(Participant& participant);

}  // namespace perdure::index
