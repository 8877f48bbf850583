// Groups of lookups and of writes: their cache misses side by side, and one fence for all records.
//
// Why a crash in the middle of a group is harmless. Recovery can judge only the last record of a
// log: whether its condition held, and whether its payload is whole. So whatever a group appends
// before its fence must need no judgement:
//   - conditions are judged before a record is appended, under the locks, and it is logged as an
//     upsert. There is nothing to cancel, and no record that was never wanted can be taken for one;
//   - when a partition gets more than one payload, all payloads are fenced before any record that
//     leads to one of them is appended: a record that is not the last of its log, and a payload
//     that lies behind another, then have nothing torn before them.
// Records of one log may reach PM in any order, but replay ends at the first that is not whole:
// what it replays is a prefix, so the order of one key's records holds. Which records of a group
// are there is any combination of such prefixes; no call of the group has returned.
//
// A record that completes its row goes down with the row. Its bucket shares the fence of the log
// records; then the directory lines of all such rows share a second one. So do the appends to
// children that are the next step of a migration in one of the partitions. What needs more (another
// step of a migration, a chunk of the log, a reclaimed payload) is left for after the others, and
// so is what comes after it for the same row: one key's records keep their order.
#include <algorithm>
#include <array>
#include <cassert>
#include <optional>

#include "index/plush/core.h"

namespace perdure::index::plush {

// Records on their way in, sorted by partition. Partitions that others are writing to are left for
// a second round: two threads with groups would else wait for each other all the time.
class Core::Group {
 public:
  Group(Core& core, LogKind kind, std::span<const NewRecord> records, std::span<bool> written);
  void write();

 private:
  enum class Fate : uint8_t {
    kRefused,    // to insert, but present
    kLogged,     // goes to the log under the group's fence
    kCompletes,  // completes its row, which goes down under the group's fences
    kSingly,     // by itself, after the others
  };
  struct Item {
    const NewRecord* wanted;
    bool* written;
    Partition* partition;
    uint64_t row;
    Record record;
    Fate fate;
    bool in_row;   // the row has a record of the key, or will have when this one's turn comes
    bool present;  // and it is alive
    uint32_t levels;
    Probe probes[kLevelsMax];  // of an insert whose key is not in the row
  };
  using Items = std::span<Item* const>;

  // Taken one after the other, released together.
  class Locks {
   public:
    Locks() = default;
    ~Locks() {
      for (size_t i = 0; i < count_; ++i) locks_[i]->unlock();
    }
    Locks(const Locks&) = delete;
    Locks& operator=(const Locks&) = delete;
    bool take(pm::SpinLock& lock, bool wait) {
      if (wait) {
        lock.lock();
      } else if (!lock.try_lock()) {
        return false;
      }
      locks_[count_++] = &lock;
      return true;
    }

   private:
    std::array<pm::SpinLock*, kGroup> locks_;
    size_t count_ = 0;
  };

  size_t write_round(Items items, bool wait, std::span<Item*> busy);
  void write_held(Items items);
  void look(Item& item) const;
  static bool same_key(const Item& a, const Item& b) {
    const Key& left = a.wanted->key;
    const Key& right = b.wanted->key;
    return left.hash == right.hash && left.bytes == right.bytes;
  }
  Fate judge(Item& item, Items earlier) const;
  Fate judge_sound(Item& item, Items earlier) const;
  bool is_present(const Item& item) const;
  bool can_complete(const Item& item) const;
  void store_payloads(Items items) const;
  void append_record(const Item& item) const;
  void plan_appends(Items items, pm::Heap::TxnIfNeeded& txn);
  void plan_completions(Items items, pm::Heap::TxnIfNeeded& txn);
  void plan_steps(Items items, pm::Heap::TxnIfNeeded& txn);
  void change_rows(Items items) const;
  void reveal_appends(Items items, pm::Heap::Txn* txn);
  bool has_step(const Partition* partition) const {
    return std::ranges::count(std::span(steps_).first(step_count_), partition) > 0;
  }

  Core& core_;
  LogKind kind_;
  std::array<Item, kGroup> items_;
  std::array<Item*, kGroup> sorted_;
  size_t count_;
  // Of rows that are complete, then those of migrations.
  std::array<Append, 2 * kGroup> appends_;
  size_t append_count_ = 0;
  std::array<Partition*, kGroup> steps_;  // whose migrations these are
  size_t step_count_ = 0;
};

Core::Group::Group(Core& core, LogKind kind, std::span<const NewRecord> records,
                   std::span<bool> written)
    : core_(core), kind_(kind), count_(records.size()) {
  assert(count_ <= kGroup && (kind == LogKind::kInsert || kind == LogKind::kUpsert));
  for (size_t i = 0; i < count_; ++i) {
    Item& item = items_[i];
    const uint64_t hash = records[i].key.hash;
    core_.lookup_.prefetch_write(hash, reach_of(kind));
    written[i] = false;
    item.wanted = &records[i];
    item.written = &written[i];
    item.partition = &core_.partitions_.of(hash);
    item.record = {hash << 1, records[i].value};
    // Insertion keeps records of one partition in their order.
    size_t at = i;
    for (; at > 0 && sorted_[at - 1]->partition > item.partition; --at)
      sorted_[at] = sorted_[at - 1];
    sorted_[at] = &item;
  }
}

void Core::Group::write() {
  std::array<Item*, kGroup> busy;
  const size_t left = write_round({sorted_.data(), count_}, false, busy);
  if (left > 0) write_round({busy.data(), left}, true, {});
}

// Waits, if at all, for one lock after the other in ascending order; who holds one lock only waits
// for none. Puts the items of partitions that are not free into `busy` and returns how many there
// are.
size_t Core::Group::write_round(Items items, bool wait, std::span<Item*> busy) {
  Locks locks;
  std::array<Item*, kGroup> held;
  size_t held_count = 0;
  size_t busy_count = 0;
  const Partition* last = nullptr;
  bool taken = false;
  for (Item* item : items) {
    if (item->partition != last) {
      last = item->partition;
      taken = locks.take(item->partition->lock, wait);
    }
    if (taken) {
      held[held_count++] = item;
    } else {
      busy[busy_count++] = item;
    }
  }
  if (held_count > 0) write_held({held.data(), held_count});
  return busy_count;
}

void Core::Group::write_held(Items items) {
  core_.require_writable();
  // Before any payload is stored: what no record leads to yet would be taken for garbage. It may
  // also move rows down, so before these are looked at.
  if (core_.payload_.is_used()) {
    for (Item* item : items) core_.collector_.collect_if_grown(*item->partition);
  }
  for (Item* item : items) look(*item);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i]->fate = judge(*items[i], items.first(i));
    // On its way to PM while the next one is judged.
    if (items[i]->fate == Fate::kLogged && !core_.payload_.is_used()) append_record(*items[i]);
  }
  if (core_.payload_.is_used()) store_payloads(items);
  pm::Heap::TxnIfNeeded txn;
  plan_appends(items, txn);
  const auto logged = [](const Item* item) { return item->fate == Fate::kLogged; };
  if (append_count_ > 0 || std::ranges::any_of(items, logged)) {
    // Log records, payloads, and buckets, before anyone can see any of them.
    core_.levels_.stage_and_fence({appends_.data(), append_count_}, txn.get());
  }
  change_rows(items);
  if (append_count_ > 0) reveal_appends(items, txn.get());
  txn.finish();
  for (Item* item : items) {
    if (item->fate != Fate::kSingly) continue;
    const NewRecord& wanted = *item->wanted;
    *item->written =
        core_.write_locked(*item->partition, kind_, wanted.key, wanted.value, wanted.payload);
  }
  for (Item* item : items) {
    if (item->fate == Fate::kLogged && !has_step(item->partition))
      core_.migrator_.migrate_some(*item->partition);
  }
}

void Core::Group::look(Item& item) const {
  const Key& key = item.wanted->key;
  item.row = core_.geometry_.row_for(key.hash);
  core_.levels_.load_epoch(item.row);
  Hit hit;
  item.in_row = core_.lookup_.search_row(item.row, key, hit) == Found::kHit;
  item.present = item.in_row && hit.live();
  const uint32_t count = core_.rows_.count(item.row);
  pm::prefetch_to_change(&core_.rows_.records(item.row).tags[count]);
  pm::prefetch_to_change(&core_.rows_.records(item.row).values[count]);
  if (count >= kRowFull) {
    const uint32_t top = core_.geometry_.level_of_row(item.row);
    core_.levels_.prefetch_end(top, Geometry::index_of_row(item.row));
    core_.levels_.prefetch_copy(top, Geometry::index_of_row(item.row));
  }
  item.levels = 0;
  if (kind_ != LogKind::kInsert || item.in_row) return;
  if (core_.lookup_.is_surely_absent(key.hash)) return;
  core_.levels_.populate_path(key.hash);
  item.levels = core_.lookup_.probe_all(core_.geometry_.level_of_row(item.row), key, item.probes);
}

bool Core::Group::is_present(const Item& item) const {
  if (item.in_row) return item.present;
  if (item.levels == 0) return false;
  Hit hit;
  const std::span probes(item.probes, item.levels);
  return core_.lookup_.search_probed(core_.geometry_.level_of_row(item.row), probes,
                                     item.wanted->key, hit) == Found::kHit &&
         hit.live();
}

Core::Group::Fate Core::Group::judge(Item& item, Items earlier) const {
  // Earlier records of the group are in the log by now, so that nothing here may throw.
  try {
    return judge_sound(item, earlier);
  } catch (const Error&) {
    return Fate::kSingly;  // its damage is told when the others are done
  }
}

Core::Group::Fate Core::Group::judge_sound(Item& item, Items earlier) const {
  const bool inserts = kind_ == LogKind::kInsert;
  if (inserts && is_present(item)) return Fate::kRefused;
  uint64_t waiting = 0;  // records that go to the log before this one
  uint32_t added = 0;    // records that come into the row before
  bool changed = false;  // the row, before
  for (size_t i = earlier.size(); i > 0 && earlier[i - 1]->partition == item.partition; --i) {
    const Item& other = *earlier[i - 1];
    if (core_.payload_.is_used() && other.fate == Fate::kLogged) ++waiting;
    if (other.row != item.row || other.fate == Fate::kRefused) continue;
    if (other.fate == Fate::kSingly) return Fate::kSingly;
    if (same_key(item, other)) {
      if (inserts) return Fate::kRefused;
      item.in_row = true;
    }
    if (other.fate == Fate::kCompletes) return Fate::kSingly;
    changed = true;
    if (!other.in_row) ++added;
  }
  // What unlogged writes left must be settled first.
  if (item.partition->unlogged) return Fate::kSingly;
  // And room for what recovery may have to append: a cancel record.
  if (!item.partition->log.has_room(waiting + 2)) return Fate::kSingly;
  if (item.in_row) return Fate::kLogged;
  const uint32_t count = core_.rows_.count(item.row);
  if (count + added < kRowFull) return Fate::kLogged;
  return !changed && can_complete(item) ? Fate::kCompletes : Fate::kSingly;
}

// Whether the row goes down as one whole bucket, into an entry that has room for it.
bool Core::Group::can_complete(const Item& item) const {
  const uint32_t level = core_.geometry_.level_of_row(item.row);
  const uint64_t index = Geometry::index_of_row(item.row);
  const uint32_t start = core_.levels_.records_in(level, index);
  return start % kSlots == 0 && start + kSlots <= kEntryRecords &&
         !Migrator::is_migrating(*item.partition, level, index);
}

void Core::Group::append_record(const Item& item) const {
  const uint64_t word = log_word(LogKind::kUpsert, core_.rows_[item.row].epoch);
  item.partition->log.append({item.wanted->key.hash, item.record.value, word});
}

void Core::Group::store_payloads(Items items) const {
  const Partition* last = nullptr;
  uint32_t stored = 0;  // in the partition
  bool full = false;    // the partition's payload log
  bool several = false;
  for (Item* item : items) {
    if (item->fate != Fate::kLogged && item->fate != Fate::kCompletes) continue;
    if (item->partition != last) {
      last = item->partition;
      stored = 0;
      full = false;
    }
    try {
      if (!full) {
        item->record.value = core_.payload_.log().append(
            core_.partitions_.number_of(*item->partition), item->wanted->key.bytes,
            item->wanted->payload, PayloadLog::Flush::kNow);
      }
    } catch (const Error& error) {
      if (!pm::is_full(error)) {
        core_.memory_
            .fence();  // those stored before, before another is stored behind them that is used
        throw;
      }
      full = true;  // only write_locked() can make room
    }
    if (full) {
      item->fate = Fate::kSingly;
      continue;
    }
    several = several || ++stored > 1;
    if (kind_ == LogKind::kUpsert) {
      core_.collector_.note_written(*item->partition, item->record.value);
    }
  }
  // Payloads before the records that lead to them, and to those behind them in the payload log.
  if (several) core_.memory_.fence();
  for (const Item* item : items) {
    if (item->fate == Fate::kLogged) append_record(*item);
  }
}

void Core::Group::change_rows(Items items) const {
  for (const Item* item : items) {
    if (item->fate != Fate::kLogged) continue;
    Hit now;
    if (item->in_row &&
        core_.lookup_.search_row(item->row, item->wanted->key, now) == Found::kHit) {
      core_.replace_in_row(*item->partition, now, item->record);
    } else {
      core_.rows_.add(item->row, item->record, item->partition->log.sequence());
    }
    *item->written = true;
  }
}

void Core::Group::plan_appends(Items items, pm::Heap::TxnIfNeeded& txn) {
  append_count_ = 0;
  step_count_ = 0;
  try {
    plan_completions(items, txn);
    plan_steps(items, txn);
  } catch (const Error& error) {
    if (!pm::is_full(error) && error.code() != ErrorCode::kCorrupt) throw;
    txn.reset();
    append_count_ = 0;
    step_count_ = 0;
    // What was stored for these is garbage now, and must be whole before something is stored behind
    // it.
    if (core_.payload_.is_used()) core_.memory_.fence();
    for (Item* item : items) {
      if (item->fate != Fate::kCompletes) continue;
      item->fate = Fate::kSingly;
      if (core_.payload_.is_used()) {
        core_.payload_.log().note_garbage(item->record.value, PayloadLog::Part::kAll);
      }
    }
  }
}

void Core::Group::plan_completions(Items items, pm::Heap::TxnIfNeeded& txn) {
  for (const Item* item : items) {
    if (item->fate != Fate::kCompletes) continue;
    core_.rows_.put_last(item->row, item->record);
    Append& append = appends_[append_count_++];
    append = core_.migrator_.append_of_row(item->row, kSlots);
    core_.levels_.plan(append, txn);
  }
}

// One step for each partition that has a record logged and a migration at this point.
void Core::Group::plan_steps(Items items, pm::Heap::TxnIfNeeded& txn) {
  // Each row takes one block; a child takes, at worst, as many as a full entry has and one.
  size_t blocks = append_count_;
  for (const Item* item : items) {
    if (blocks + kEntryBuckets + 1 > pm::kIntentsPerLane) return;
    if (item->fate != Fate::kLogged || has_step(item->partition)) continue;
    if (!core_.migrator_.plan_next_child(*item->partition, appends_[append_count_], txn)) continue;
    blocks += appends_[append_count_++].count / kSlots + 2;
    steps_[step_count_++] = item->partition;
  }
}

void Core::Group::reveal_appends(Items items, pm::Heap::Txn* txn) {
  // The records that complete rows are seen by nobody before they are durable.
  std::array<std::optional<SequenceWrite>, kGroup> guards;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i]->fate == Fate::kCompletes) guards[i].emplace(core_.rows_[items[i]->row]);
  }
  core_.levels_.reveal({appends_.data(), append_count_}, txn);
  size_t next = 0;
  for (Item* item : items) {
    if (item->fate != Fate::kCompletes) continue;
    core_.migrator_.row_moved(*item->partition, appends_[next++]);
    *item->written = true;
  }
  for (size_t i = 0; i < step_count_; ++i) core_.migrator_.child_done(*steps_[i], appends_[next++]);
}

void Core::write_group(LogKind kind, std::span<const NewRecord> records, std::span<bool> written) {
  Group(*this, kind, records, written).write();
}

}  // namespace perdure::index::plush
