// Transactions: writes to several keys, of several structures of one pool, that happen together or
// not at all.
//
//   auto accounts = perdure::FastFair<std::string, int64_t>::open(pool, "accounts");
//   auto audit = perdure::TypedPlush<uint64_t, std::string>::open(pool, "audit");
//   perdure::transact(pool, [&](perdure::PoolTransaction& transaction) {   // durable when it returns
//     transaction.increment(accounts, "alice", -10);
//     transaction.increment(accounts, "bob", 10);
//     transaction.upsert(audit, 4711, "10 from alice to bob");
//   });
//
// For structures of the catalogue: AnyIndex, TypedIndex and Plush. A Database has transactions of
// its own, and so has a Store, within itself (Store::Batch); a store that is open by open_index()
// takes part here.
//
// All or nothing: after any sequence of crashes either all writes of a transaction are there or
// none. What a crash interrupts after the commit point is finished when the pool is opened again
// and, of each structure, when that is opened, before it can be used.
//
// Isolation: transactions are serializable, among each other and with all single writes of other
// threads: insert, update, upsert, remove, compare_exchange, compare_remove, modify, increment and
// each record of a batch. A commit fails with kConflict if a value that the transaction has read is
// another one by then. Until then two reads of one transaction may be of different moments, so what
// is calculated from them is certain only once the commit succeeds. Plain lookups and scans outside
// of transactions take no latches: while a transaction commits they may see some of its writes and
// not yet others. To read several keys as of one moment, read them in a transaction and commit it.
// Unlogged writes (Logging::kOff, bulk_upsert) may be lost by a crash, as ever, while a transaction
// that has read them stays.
//
// Cost: reads and writes are kept in DRAM until the commit, which has its keys' latches, of 1024
// for each structure, while it lasts. Three fences besides those of the writes themselves; none
// besides for one write only, and none at all without writes. From the first transaction of a
// structure on, until it is closed, single writes to it take their key's latch, too, and batches
// are written record by record; structures without transactions pay a load of a flag and two stores
// to a line of the thread's own.
//
// Limits: 64 structures, 1 MiB of keys and values with 16 bytes and some for each write; 16 commits
// with writes at a time, more wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "perdure/index.h"
#include "perdure/plush.h"
#include "perdure/pool.h"
#include "perdure/typed.h"

namespace perdure {

namespace index {
class Participant;
class TransactionState;
}  // namespace index

// TypedIndex or Plush.
template <typename T>
concept TypedTable = requires {
  typename T::key_type;
  typename T::value_type;
};

// For one thread at a time. The structures must be of this pool (kInvalidArgument), and outlive it.
class PoolTransaction {
  template <typename T>
  using Key = typed::Coding<typename T::key_type>;
  template <typename T>
  using Stored = typed::Coding<typename T::value_type>;
  template <typename T>
  using KeyOf = typename Key<T>::In;
  template <typename T>
  using ValueOf = typename Stored<T>::In;

 public:
  explicit PoolTransaction(Pool& pool);
  // One that was moved from may be assigned to or destroyed, and nothing else.
  PoolTransaction(PoolTransaction&&) noexcept;
  PoolTransaction& operator=(PoolTransaction&&) noexcept;
  // Aborts, unless it was committed.
  ~PoolTransaction();

  // As the calls of AnyIndex; they see what the transaction has written. What the index is not read
  // for, upsert(), makes no conflicts. Errors of all: kWrongType (the kinds; an index that lies in
  // no pool), kInvalidArgument (another pool; a key that the structure does not take), kTooLarge (a
  // key or value; more than 64 structures).
  bool lookup(const AnyIndex& index, Datum key, Value& out);
  bool insert(AnyIndex& index, Datum key, Datum value);  // false, and nothing is done, if present
  bool update(AnyIndex& index, Datum key, Datum value);  // false, and nothing is done, if absent
  void upsert(AnyIndex& index, Datum key, Datum value);
  bool remove(AnyIndex& index, Datum key);  // false if absent
  // Adds to a word, 0 if the key is absent, modulo 2^64; returns the sum.
  uint64_t increment(AnyIndex& index, Datum key, int64_t by = 1);

  // The same with types.
  template <TypedTable T>
  std::optional<typename T::value_type> get(const T& table, KeyOf<T> key) {
    Value found;
    if (!read(participant_of(table), Key<T>::key(key), found)) return std::nullopt;
    return typename T::value_type(Stored<T>::value_view(found.datum()));
  }
  template <TypedTable T>
  bool insert(T& table, KeyOf<T> key, ValueOf<T> value) {
    return insert(participant_of(table), Key<T>::key(key), Stored<T>::value(value));
  }
  template <TypedTable T>
  bool update(T& table, KeyOf<T> key, ValueOf<T> value) {
    return update(participant_of(table), Key<T>::key(key), Stored<T>::value(value));
  }
  template <TypedTable T>
  void upsert(T& table, KeyOf<T> key, ValueOf<T> value) {
    const Datum stored = Stored<T>::value(value);
    write(participant_of(table), Key<T>::key(key), &stored);
  }
  template <TypedTable T>
  bool remove(T& table, KeyOf<T> key) {
    return remove(participant_of(table), Key<T>::key(key));
  }
  template <TypedTable T>
    requires(std::integral<typename T::value_type> && !std::same_as<typename T::value_type, bool>)
  typename T::value_type increment(T& table, KeyOf<T> key, int64_t by = 1) {
    using V = typename T::value_type;
    const uint64_t old = static_cast<uint64_t>(get(table, key).value_or(V{}));
    const V sum = static_cast<V>(old + static_cast<uint64_t>(by));
    upsert(table, key, sum);
    return sum;
  }

  // Durable on return. Errors: kConflict: nothing was changed, and another attempt may do.
  // kTooLarge (all writes together), kPoolFull (also with less than 256 KiB of room, unless it only
  // removes), kNoSpace, kReadOnly, bad_alloc: nothing was changed. kIo: whether it happened shows
  // when the pool is opened again. kPoolFull with the word "blocked": the pool became full after
  // the commit point and what was applied could not be taken back either; the structures refuse
  // writes, and the transaction is finished when they are opened again. After commit() or abort()
  // the transaction is empty, and may be used for another one.
  void commit();
  void abort();

 private:
  static index::Participant& participant_of(const AnyIndex& index);
  template <typename K, typename V, typename Structure>
  static index::Participant& participant_of(const TypedIndex<K, V, Structure>& table) {
    return participant_of(table.any());
  }
  template <typename K, typename V>
  static index::Participant& participant_of(const Plush<K, V>& table) {
    return table.participant();
  }
  bool read(index::Participant& from, Datum key, Value& out);
  bool insert(index::Participant& into, Datum key, Datum value);
  bool update(index::Participant& into, Datum key, Datum value);
  bool remove(index::Participant& from, Datum key);
  void write(index::Participant& into, Datum key, const Datum* value);  // null: removes

  std::unique_ptr<index::TransactionState> state_;
};

// Calls `work`, commits, and does both again after kConflict: after some attempts while other
// transactions of the pool wait. `work` may throw: then nothing has happened. It should do nothing
// but use the transaction, for it may be called several times.
void transact(Pool& pool, const std::function<void(PoolTransaction& transaction)>& work);

}  // namespace perdure
