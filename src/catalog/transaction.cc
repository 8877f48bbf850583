#include "perdure/transaction.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "index/participant.h"
#include "perdure/catalog.h"
#include "pm/pause.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure {

namespace index {

// What a transaction has read and written so far, and its commit.
class TransactionState {
 public:
  explicit TransactionState(pm::PoolImpl& pool) : pool_(pool) {}

  bool read(Participant& from, Datum key, Value& out);
  void write(Participant& into, Datum key, const Datum* value);
  void commit();
  void clear() {
    targets_.clear();
    writes_ = 0;
  }

 private:
  // A key that the transaction has to do with.
  struct Entry {
    Value key;
    bool was_read = false;
    std::optional<Value> seen;  // by the read
    bool is_written = false;
    std::optional<Value> wanted;  // nothing: it goes
    std::optional<Value> before;  // while it commits, of a written one
  };
  struct Target {
    Participant* participant;
    uint64_t key_bytes_max;
    uint64_t value_bytes_max;
    std::deque<Entry> entries;  // in the order in which they were first used; do not move
    std::unordered_map<std::string, Entry*> by_key;
    bool is_written = false;
  };
  class Latches;
  static constexpr uint64_t kRoomSegments =
      4;  // that are kept free, besides those for twice the bytes

  Target& target_of(Participant& participant);
  static Entry& entry_of(Target& target, const Datum& key);
  static void set(Value& out, const Datum& datum);
  static bool fetch(const Participant& from, const Datum& key, std::optional<Value>& out);
  uint64_t segments_wanted() const;
  void require_as_read() const;
  std::vector<char> operations(std::vector<uint64_t>& roots);
  template <typename Use>
  void for_each_write(Use use);
  void apply();
  void take_back();
  void apply_or_take_back(pm::TransactionLog::Record& record);
  static uint64_t bytes_of(const Datum& datum) {
    return datum.kind() == Kind::kU64 ? 8 : datum.bytes().size();
  }

  pm::PoolImpl& pool_;
  std::deque<Target> targets_;
  uint64_t writes_ = 0;
};

// The latches of all keys, in one order.
class TransactionState::Latches {
 public:
  explicit Latches(std::deque<Target>& targets) {
    for (Target& target : targets) {
      pm::WriteGate& gate = target.participant->gate();
      gate.latch_writers();
      for (const Entry& entry : target.entries) {
        const Datum key = entry.key.datum();
        latches_.push_back(&gate.latch_of(key.kind() == Kind::kU64
                                              ? pm::WriteGate::hash_of(key.word())
                                              : pm::WriteGate::hash_of(key.bytes())));
      }
    }
    std::sort(latches_.begin(), latches_.end());
    latches_.erase(std::unique(latches_.begin(), latches_.end()), latches_.end());
    for (pm::Latch* latch : latches_) latch->lock();
  }
  ~Latches() {
    for (pm::Latch* latch : latches_) latch->unlock();
  }
  Latches(const Latches&) = delete;
  Latches& operator=(const Latches&) = delete;

 private:
  std::vector<pm::Latch*> latches_;
};

void TransactionState::set(Value& out, const Datum& datum) {
  if (datum.kind() == Kind::kU64) {
    out.set(datum.word());
  } else {
    out.set_bytes().assign(datum.bytes());
  }
}

bool TransactionState::fetch(const Participant& from, const Datum& key, std::optional<Value>& out) {
  if (from.lookup(key, out.emplace())) return true;
  out.reset();
  return false;
}

TransactionState::Target& TransactionState::target_of(Participant& participant) {
  for (Target& target : targets_) {
    if (target.participant == &participant) return target;
  }
  const pm::WriteGate& gate = participant.gate();
  if (&gate.pool() != &pool_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is a structure of {}; the transaction is one of {}", gate.name(),
                            gate.pool().mapping().path(), pool_.mapping().path()));
  }
  if (targets_.size() == pm::TransactionLog::kStructuresMax) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("{}: a transaction has at most {} structures", pool_.mapping().path(),
                            pm::TransactionLog::kStructuresMax));
  }
  const Traits& traits = catalog_entry(gate.type()).traits;
  return targets_.emplace_back(
      Target{&participant, traits.key_bytes_max, traits.value_bytes_max, {}, {}});
}

TransactionState::Entry& TransactionState::entry_of(Target& target, const Datum& key) {
  const Participant& own = *target.participant;
  if (key.kind() != own.key_kind()) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("a key of kind {} was given for an index that has kind {}",
                            to_string(key.kind()), to_string(own.key_kind())));
  }
  const uint64_t word = key.word();
  std::string bytes(key.kind() == Kind::kU64
                        ? std::string_view(reinterpret_cast<const char*>(&word), sizeof word)
                        : key.bytes());
  const auto found = target.by_key.find(bytes);
  if (found != target.by_key.end()) return *found->second;
  Entry& made = target.entries.emplace_back();
  set(made.key, key);
  target.by_key.emplace(std::move(bytes), &made);
  return made;
}

bool TransactionState::read(Participant& from, Datum key, Value& out) {
  Entry& entry = entry_of(target_of(from), key);
  if (!entry.is_written && !entry.was_read) {
    fetch(from, key, entry.seen);
    entry.was_read = true;
  }
  const std::optional<Value>& value = entry.is_written ? entry.wanted : entry.seen;
  if (!value) return false;
  set(out, value->datum());
  return true;
}

void TransactionState::write(Participant& into, Datum key, const Datum* value) {
  Target& target = target_of(into);
  if (value != nullptr) {
    // All that would keep the write from being applied after the commit point.
    if (value->kind() != into.value_kind()) {
      throw Error(ErrorCode::kWrongType,
                  fmt::format("a value of kind {} was given for an index that has kind {}",
                              to_string(value->kind()), to_string(into.value_kind())));
    }
    if (key.bytes().size() > target.key_bytes_max ||
        value->bytes().size() > target.value_bytes_max) {
      throw Error(ErrorCode::kTooLarge,
                  fmt::format("a key of {} bytes with a value of {}: '{}' takes {} and {}",
                              key.bytes().size(), value->bytes().size(), into.gate().name(),
                              target.key_bytes_max, target.value_bytes_max));
    }
  }
  Entry& entry = entry_of(target, key);
  std::optional<Value> wanted;
  if (value != nullptr) {
    into.require_takes(key);
    set(wanted.emplace(), *value);
  }
  entry.wanted.swap(wanted);  // all of it, or what was there
  if (!entry.is_written) ++writes_;
  entry.is_written = target.is_written = true;
}

template <typename Use>
void TransactionState::for_each_write(Use use) {
  for (Target& target : targets_) {
    for (Entry& entry : target.entries) {
      if (entry.is_written) use(target, entry);
    }
  }
}

// That must be there for the writes, and to take them back: each size of block may need a segment.
uint64_t TransactionState::segments_wanted() const {
  uint64_t bytes = 0;
  bool adds = false;
  for (const Target& target : targets_) {
    for (const Entry& entry : target.entries) {
      if (!entry.is_written) continue;
      adds = adds || entry.wanted;
      for (const auto& value : {&entry.wanted, &entry.before}) {
        if (*value) bytes += bytes_of(entry.key.datum()) + bytes_of((*value)->datum());
      }
    }
  }
  return adds ? kRoomSegments + 2 * bytes / pm::kSegmentBytes : 0;
}

void TransactionState::require_as_read() const {
  std::optional<Value> now;
  for (const Target& target : targets_) {
    target.participant->gate().require_open();
    for (const Entry& entry : target.entries) {
      if (!entry.was_read) continue;
      fetch(*target.participant, entry.key.datum(), now);
      const bool same = now.has_value() == entry.seen.has_value() &&
                        (!now || now->datum() == entry.seen->datum());
      if (same) continue;
      throw Error(
          ErrorCode::kConflict,
          fmt::format("{}: a key of '{}' that the transaction has read was changed; try again",
                      pool_.mapping().path(), target.participant->gate().name()));
    }
  }
}

std::vector<char> TransactionState::operations(std::vector<uint64_t>& roots) {
  std::vector<char> all;
  for (const Target& target : targets_) {
    if (!target.is_written) continue;
    const auto number = static_cast<uint32_t>(roots.size());
    roots.push_back(target.participant->gate().root());
    for (const Entry& entry : target.entries) {
      if (!entry.is_written) continue;
      std::optional<Datum> value;
      if (entry.wanted) value = entry.wanted->datum();
      append_operation(all, number, entry.key.datum(), value ? &*value : nullptr);
    }
  }
  return all;
}

void TransactionState::apply() {
  for_each_write([](const Target& target, const Entry& entry) {
    pm::come_to_place("transaction: applies");
    if (entry.wanted) {
      target.participant->upsert(entry.key.datum(), entry.wanted->datum());
    } else {
      target.participant->remove(entry.key.datum());
    }
  });
}

// There is room, see segments_wanted().
void TransactionState::take_back() {
  pm::come_to_place("transaction: takes back");
  for_each_write([](const Target& target, const Entry& entry) {
    if (entry.before) {
      target.participant->upsert(entry.key.datum(), entry.before->datum());
    } else {
      target.participant->remove(entry.key.datum());
    }
  });
}

// After the commit point. A crash on the way leaves the record, and so all of the transaction, also
// if it was being taken back: that nothing of it happened has not been said yet. If an error cannot
// be helped the record stays, and nobody writes to the structures until they are opened again,
// which applies it.
void TransactionState::apply_or_take_back(pm::TransactionLog::Record& record) {
  const pm::WriteGate::Pass pass(pool_);
  try {
    apply();
  } catch (...) {
    if (pool_.failed()) pool_.require_writable();  // throws kIo: the next opening decides
    try {
      take_back();
    } catch (const std::exception& error) {
      for (Target& target : targets_) {
        if (target.is_written) target.participant->gate().block();
      }
      if (pool_.failed()) pool_.require_writable();
      throw Error(
          ErrorCode::kPoolFull,
          fmt::format("{}: a transaction is blocked between its commit and its end: {}; close its "
                      "structures or the pool and open them again, which finishes it",
                      pool_.mapping().path(), error.what()));
    }
    record.retire();
    throw;
  }
  record.retire();
}

void TransactionState::commit() {
  if (targets_.empty()) return;
  pm::TransactionLog& log = pool_.transactions();
  const pm::TransactionLog::Commit turn(log);
  if (writes_ <= 1) {
    if (writes_ == 1) pool_.require_writable();
    const Latches latches(targets_);
    require_as_read();
    const pm::WriteGate::Pass pass(pool_);
    apply();  // atomic by itself
    return;
  }
  std::vector<uint64_t> roots;
  const std::vector<char> redo = operations(roots);
  pm::TransactionLog::Record record =
      log.begin(pm::TransactionLog::record_bytes(roots.size(), redo.size()));
  const Latches latches(targets_);  // goes before the record does, whose slot counts for less
  require_as_read();
  for_each_write([](const Target& target, Entry& entry) {
    fetch(*target.participant, entry.key.datum(), entry.before);
  });
  // Before the commit point: after it there must be room. Removing needs none.
  const pm::Heap::Promise room(pool_.heap(), segments_wanted());
  record.commit(roots, redo);
  pm::come_to_place("transaction: committed");
  apply_or_take_back(record);
}

}  // namespace index

PoolTransaction::PoolTransaction(Pool& pool)
    : state_(std::make_unique<index::TransactionState>(pm::impl_of(pool))) {}
PoolTransaction::PoolTransaction(PoolTransaction&&) noexcept = default;
PoolTransaction& PoolTransaction::operator=(PoolTransaction&&) noexcept = default;
PoolTransaction::~PoolTransaction() = default;

index::Participant& PoolTransaction::participant_of(const AnyIndex& index) {
  auto* participates = dynamic_cast<index::Participates*>(&const_cast<AnyIndex&>(index));
  if (participates == nullptr || participates->participant() == nullptr) {
    throw Error(ErrorCode::kWrongType,
                "this index lies in no pool, and takes no part in transactions");
  }
  return *participates->participant();
}

bool PoolTransaction::read(index::Participant& from, Datum key, Value& out) {
  return state_->read(from, key, out);
}
bool PoolTransaction::insert(index::Participant& into, Datum key, Datum value) {
  Value found;
  if (read(into, key, found)) return false;
  write(into, key, &value);
  return true;
}
bool PoolTransaction::update(index::Participant& into, Datum key, Datum value) {
  Value found;
  if (!read(into, key, found)) return false;
  write(into, key, &value);
  return true;
}
bool PoolTransaction::remove(index::Participant& from, Datum key) {
  Value found;
  if (!read(from, key, found)) return false;
  write(from, key, nullptr);
  return true;
}
void PoolTransaction::write(index::Participant& into, Datum key, const Datum* value) {
  state_->write(into, key, value);
}

bool PoolTransaction::lookup(const AnyIndex& index, Datum key, Value& out) {
  return read(participant_of(index), key, out);
}
bool PoolTransaction::insert(AnyIndex& index, Datum key, Datum value) {
  return insert(participant_of(index), key, value);
}
bool PoolTransaction::update(AnyIndex& index, Datum key, Datum value) {
  return update(participant_of(index), key, value);
}
void PoolTransaction::upsert(AnyIndex& index, Datum key, Datum value) {
  write(participant_of(index), key, &value);
}
bool PoolTransaction::remove(AnyIndex& index, Datum key) {
  return remove(participant_of(index), key);
}
uint64_t PoolTransaction::increment(AnyIndex& index, Datum key, int64_t by) {
  index::Participant& own = participant_of(index);
  Value found;
  const uint64_t before = read(own, key, found) ? found.word() : 0;
  const uint64_t sum = before + static_cast<uint64_t>(by);
  const Datum value(sum);
  write(own, key, &value);  // throws kWrongType where values are byte strings
  return sum;
}

void PoolTransaction::commit() {
  // It ends, however that goes: what was read is of no use to another attempt.
  const struct Clear {
    index::TransactionState& state;
    ~Clear() { state.clear(); }
  } clear{*state_};
  state_->commit();
}
void PoolTransaction::abort() { state_->clear(); }

void transact(Pool& pool, const std::function<void(PoolTransaction& transaction)>& work) {
  constexpr int kAttemptsBesideOthers = 8;
  const auto attempt = [&] {
    PoolTransaction transaction(pool);
    try {
      work(transaction);
      transaction.commit();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConflict) throw;
      return false;
    }
    return true;
  };
  for (int i = 0; i < kAttemptsBesideOthers; ++i) {
    if (attempt()) return;
  }
  const pm::TransactionLog::Alone alone(pm::impl_of(pool).transactions());
  while (!attempt()) {
  }
}

}  // namespace perdure
