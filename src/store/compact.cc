// Compaction: what counts is copied out of the block that has the least of it, and the block is
// unused.
#include <algorithm>
#include <array>
#include <new>

#include "store/hash.h"
#include "store/partition.h"

namespace perdure::store {

namespace {

// Garbage, in percent of what counts, if nobody has said how much.
constexpr uint64_t kGarbagePercentMin = 5;
constexpr uint64_t kGarbagePercentMost = 25;
// Of a block, to guess what is needed of it: some 30 records of 20 + 100 bytes.
constexpr uint64_t kGuessedFromBytes = 4096;

}  // namespace

// Sees to it that the head has room for `bytes`. Returns whether it compacted or evicted for that:
// then records may have moved, and no entry of the index is valid. Throws kPoolFull, kNoSpace.
bool Partition::make_room(Head& head, uint64_t bytes, Purpose purpose) {
  // Asked anew after compaction, which may close a head.
  const auto fits = [&] {
    return head.slot != kNoSlot && head.position + bytes <= config_.block_bytes;
  };
  // What stays: a block for compaction, which cannot make room without; one more for removals, and
  // other writes do not even use the block that a removal has opened until it is replaced.
  const uint64_t keep = purpose == Purpose::kWrite ? 2 : purpose == Purpose::kRemoval ? 1 : 0;
  if (fits() && (purpose != Purpose::kWrite || spares_.size() >= keep)) return false;
  // Removals get room as long as anything at all is garbage; other writes are refused before each
  // of them must compact many blocks for the sake of a few bytes. Blocks end where the next record
  // does not fit, so that what seems to be gained may be lost again: hence the bounds.
  const bool removal = purpose == Purpose::kRemoval;
  const uint64_t gain = removal ? 8 : payload_bytes() / 8;
  if (removal && !fits()) close_block(head);  // it may be what can be compacted
  uint64_t attempts = removal ? 2 * closed_blocks_ + 4 : 16;
  bool compacted = false;
  Search search;
  while (spares_.size() < keep + (fits() ? 0 : 1)) {
    if (purpose != Purpose::kCompaction && is_beyond(config_.block_bytes)) {
      compacted = true;
      if (make_cache_room(config_.block_bytes, search)) continue;
      if (!removal) throw_bound();
    }
    try {
      // Compaction gives back more than it takes: it may use what the heap keeps for such.
      add_spare(purpose == Purpose::kCompaction);
    } catch (const Error& error) {
      if (pm::is_full(error) && give_up_snapshots()) continue;
      if (!pm::is_full(error) || purpose == Purpose::kCompaction) throw;
      compacted = true;
      if (settle()) continue;
      if (attempts > 0 && compact_now(gain)) {
        --attempts;
      } else if (give_up_log()) {
        attempts += 2;
      } else if (!evict(config_.block_bytes)) {
        throw;
      }
    }
  }
  if (fits()) return compacted;
  close_block(head);
  open_block(head);
  return compacted;
}

// The index entry that leads to the record, or kNone: then it does not count.
uint64_t Partition::entry_of_record(const RecordView& record, Location location, uint64_t hash,
                                    const Sought* ahead) const {
  if (!record.is_put()) return PartitionIndex::kNone;
  return index_.find_place(hash, key_of(record), location, ahead);
}

// Whether the record is the one that its key has. Tells its index entry.
bool Partition::counts(const RecordView& record, Location location, uint64_t* entry) const {
  if (!record.is_put() || (record.has(kOverflow) && !has_overflow(record))) return false;
  *entry = entry_of_record(record, location, hash_of(key_of(record)));
  return *entry != PartitionIndex::kNone;
}

// What compaction of the block would write, as far as its first `look_at` bytes tell.
uint64_t Partition::bytes_after_compaction(uint32_t slot, uint64_t look_at) const {
  const Block& block = blocks_[slot];
  uint64_t bytes = 0;
  uint64_t at = sizeof(BlockHeader);
  const uint64_t end = at + std::min(look_at, block.bytes);
  while (at < end) {
    const RecordView record = view_at({slot, at});
    uint64_t entry = 0;
    const bool invalidates = still_invalidates(record, block.incarnation);
    if (find_saved(record, {slot, at}) != nullptr || prefix_is_needed(record, {slot, at})) {
      bytes += record.bytes;
    } else if (counts(record, {slot, at}, &entry)) {
      if (may_expire(record, invalidates)) {
        bytes += kMarkBytes * (invalidates ? 2 : 1);
      } else {
        bytes += record.bytes - (record.has(kSupersedes) && !invalidates ? sizeof(Superseded) : 0);
      }
    } else if (invalidates) {
      bytes += kMarkBytes;
    }
    at += record.bytes;
  }
  const uint64_t looked_at = at - sizeof(BlockHeader);
  return looked_at < block.bytes ? bytes * block.bytes / looked_at : bytes;
}

// What compaction of a block gains that leaves `needed` bytes. The end of a block that is too short
// for a record is no gain: the block to which the records move has one, too.
uint64_t Partition::gain_of(const Block& block, uint64_t needed) const {
  const uint64_t longest =
      record_bytes(kSupersedes | kExpires, inline_bytes_max(), inline_bytes_max());
  const uint64_t end = payload_bytes() - block.bytes;
  const uint64_t before = end >= longest ? payload_bytes() : block.bytes;
  return before - std::min(needed, before);
}

// The closed block whose compaction seems to gain most, at least `gain_bytes_min`.
// Of very many blocks looks at a part, another one each time, unless it must be thorough.
uint32_t Partition::fewest_live(uint64_t gain_bytes_min, bool thorough) {
  constexpr uint64_t kBlocksAtATime = 4096;
  const uint64_t count =
      thorough ? blocks_.size() : std::min<uint64_t>(blocks_.size(), kBlocksAtATime);
  uint32_t best = kNoSlot;
  uint64_t most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (++search_from_ >= blocks_.size()) search_from_ = 0;
    const Block& block = blocks_[search_from_];
    if (block.state != State::kClosed || block.damaged || block.kept || search_from_ == emptied_) {
      continue;
    }
    const uint64_t needed = block.live - block.expired(now_ms_) + block.pinned;
    const uint64_t gain = gain_of(block, needed);
    if (gain > most) {
      most = gain;
      best = search_from_;
    }
  }
  return best != kNoSlot && most >= gain_bytes_min ? best : kNoSlot;
}

// Sets victim_. Returns false if no block would give as much. Unless it must be thorough it looks
// at a part of a block for what is needed of it, which a write waits for: a wrong guess costs work.
bool Partition::choose_victim(uint64_t gain_bytes_min, bool thorough) {
  victim_is_stale_ = false;
  while (!stale_.empty()) {  // before any other: see recover()
    const uint32_t slot = stale_.back();
    stale_.pop_back();
    for (Head* head : {&head_, &moved_head_}) {
      if (head->slot == slot) close_block(*head);
    }
    if (blocks_[slot].state != State::kClosed) continue;  // it has become unused
    victim_ = slot;
    victim_is_stale_ = true;
    cursor_ = sizeof(BlockHeader);
    return true;
  }
  if (freed_since_reset_ > closed_blocks_ / 4) {
    // Tombstones that were needed may not be any more.
    freed_since_reset_ = 0;
    for (Block& block : blocks_) block.pinned = 0;
  }
  for (;;) {
    const uint32_t slot = fewest_live(gain_bytes_min, thorough);
    if (slot == kNoSlot) return false;
    Block& block = blocks_[slot];
    const uint64_t expired = block.expired(now_ms_);
    const uint64_t at_most = block.live - expired + block.marks * kMarkBytes;
    const bool is_sure = expired == 0 || snapshots_ == nullptr;  // else some of that may stay
    if (is_sure && gain_of(block, at_most) >= gain_bytes_min) {
      victim_ = slot;
      cursor_ = sizeof(BlockHeader);
      return true;
    }
    try {
      const uint64_t needed =
          bytes_after_compaction(slot, thorough ? block.bytes : kGuessedFromBytes);
      if (gain_of(block, needed) >= gain_bytes_min) {
        victim_ = slot;
        cursor_ = sizeof(BlockHeader);
        return true;
      }
      const uint64_t seemed = block.live - expired;
      block.pinned = static_cast<uint32_t>(needed - std::min<uint64_t>(needed, seemed));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt || index_.is_damaged()) throw;
      block.damaged = true;  // it stays as it is: reading its records says what is wrong
    }
  }
}

Location Partition::append_moved(const RecordParts& parts) {
  make_room(moved_head_, parts.bytes(), Purpose::kCompaction);
  return append(moved_head_, parts);
}

// Now and then, when a block is opened.
void Partition::count_expired() {
  if (++opened_since_count_ <= closed_blocks_ / 16) return;
  opened_since_count_ = 0;
  expired_bytes_ = 0;
  for (const Block& block : blocks_) {
    if (block.state == State::kClosed) expired_bytes_ += block.expired(now_ms_);
  }
}

void Partition::move_record(const RecordView& record, Location from, uint64_t entry,
                            bool invalidates) {
  RecordParts parts{.flags = record.flags,
                    .version = record.version,
                    .superseded = record.superseded,
                    .expiry_ms = record.expiry_ms,
                    .key = key_of(record),
                    .value = record.value,
                    .overflow = record.overflow};
  parts.flags &= ~kGroupGoesOn;
  if (!invalidates) parts.flags &= ~kSupersedes;
  const Location to = append_moved(parts);
  if (record.has(kOverflow)) blocks_[record.overflow.slot].owner = to;
  discount(record, blocks_[from.slot()]);
  moved_bytes_ += parts.bytes();
  index_.move(entry, to);
}

void Partition::compact_record(const RecordView& record, Location here, const Sought& sought) {
  if (record.has(kPrefix)) return compact_prefix(record, here);
  if (Saved* saved = find_saved(record, here); saved != nullptr) return move_saved(record, *saved);
  const uint64_t incarnation = blocks_[here.slot()].incarnation;
  RecordParts mark{.flags = kTombstone | kSupersedes,
                   .version = record.version,
                   .superseded = record.superseded};
  index_.tidy();
  const uint64_t entry = entry_of_record(record, here, sought.hash, &sought);
  const bool invalidates = still_invalidates(record, incarnation);
  const bool expired = may_expire(record, invalidates);
  if (entry != PartitionIndex::kNone && !expired) {
    return move_record(record, here, entry, invalidates);
  }
  if (invalidates) append_moved(mark);
  if (entry == PartitionIndex::kNone) return;
  // It is removed, as if by a caller: until the block is unused a newer record of the key may come,
  // which does not know of this one.
  reserve_garbage(1);
  mark.version = next_version_++;
  mark.superseded = {record.version, incarnation};
  append_moved(mark);
  forget(record, here, mark.version);
  index_.erase(entry);
}

// Of the victim's records from cursor_ up to `stop` some, with the hashes of their keys, or, of an
// ordered index, the ways to their entries, so that the misses in the index overlap. Returns how
// many. Throws kCorrupt if one of them is damaged.
size_t Partition::read_victim(uint64_t stop, VictimRecords& records) const {
  size_t count = 0;
  size_t puts = 0;
  std::array<Sought*, kTogether> all;
  for (uint64_t at = cursor_; at < stop && count < kTogether; ++count) {
    auto& [record, sought] = records[count];
    record = view_at({victim_, at});
    require_intact({victim_, at}, record);
    at += record.bytes;
    if (!record.is_put()) continue;
    if (record.has(kOverflow) && !has_overflow(record)) {
      record.flags |= kRemoval;  // it does not count, and its key may be gone
      continue;
    }
    sought.key = key_of(record);
    if (index_.ordered() == nullptr) sought.hash = hash_of(sought.key);
    all[puts++] = &sought;
  }
  // Not the steps that lead to the record: it is at hand.
  const int steps = index_.is_hash() ? 1 : PartitionIndex::kAheadSteps - 1;
  for (int step = 0; step < steps; ++step) {
    for (Sought* one : std::span(all.data(), puts)) index_.prefetch(step, *one, [](Location) {});
  }
  return count;
}

// Whether there may be so much garbage. If nobody has said how much: as long as all partitions
// together, each with so much, leave free a quarter of the room that garbage and free room make. So
// a store that gets full compacts earlier, little by little, and not in the write that finds no
// block. No more partitions are like this one than the pool has room for: where the keys are in few
// ranges the others are nearly empty.
bool Partition::may_lie(uint64_t garbage_bytes) const {
  const auto is_within = [&](uint64_t percent) {
    return garbage_bytes <= live_bytes_ / 100 * percent + 2 * payload_bytes();
  };
  if (config_.garbage_percent != 0) return is_within(config_.garbage_percent);
  if (is_within(kGarbagePercentMin)) return true;
  if (!is_within(kGarbagePercentMost)) return false;
  const uint64_t free_bytes = garbage_bytes / 3;
  const uint64_t alike =
      std::clamp<uint64_t>(pool_.capacity_bytes() / taken_bytes(), 1, config_.partitions);
  const bool is_short = pool_.heap().is_scarce(free_bytes * alike / pm::kSegmentBytes);
  return !is_short && (config_.evicts || !is_beyond(free_bytes));
}

// The copies that one step appends share lines, which a flush may throw out of the caches: so they
// are flushed at its end, at once, or before a fence within it. Nothing relies on them sooner: they
// have to be durable before anything else is appended, and the block that they come from goes a
// step later.
class Partition::FlushOfMoved {
 public:
  explicit FlushOfMoved(Partition& partition) : partition_(partition) {
    partition_.flushed_to_ = partition_.moved_head_.position;
    partition_.defers_flush_ = true;
    partition_.prefetch_head(partition_.moved_head_, 0);
  }
  ~FlushOfMoved() {
    try {
      partition_.flush_moved();
    } catch (const std::exception&) {
      // In the domain `page`: the pool has failed, and the next fence says so.
    }
    partition_.defers_flush_ = false;
  }
  FlushOfMoved(const FlushOfMoved&) = delete;
  FlushOfMoved& operator=(const FlushOfMoved&) = delete;

 private:
  Partition& partition_;
};

void Partition::flush_moved() {
  if (moved_head_.slot == kNoSlot) return;
  const uint64_t from = std::exchange(flushed_to_, moved_head_.position);
  const char* at = pool_.at<char>(blocks_[moved_head_.slot].offset);
  if (from < flushed_to_) memory_.flush(at + from, flushed_to_ - from);
}

// How much of a block one step compacts for what was written. A block gives back what is garbage in
// it: where that is little there is more to move until it does, and steps that were too small for
// it would leave whole blocks to the write that finds no room.
uint64_t Partition::pace(const Block& block, uint64_t written_bytes) const {
  const uint64_t gain = std::max(gain_of(block, block.live), payload_bytes() / 32);
  const uint64_t written = std::min(written_bytes, payload_bytes());
  return std::max(4 * written + 256, written * payload_bytes() / gain * 3 / 2);
}

// Moves on with compaction, by as much of a block as pace() says. What it copies is durable with
// the next fence, which must come before anything else is appended.
//
// What damage leaves. A block that stays half moved has origins of copies, and what supersedes a
// copy names the copy's block alone: once that one has been moved on and is gone, and the end of
// the copy with it, a recovery that reads the records would take the origin for the key's. So:
//   - If a record of the block itself is damaged the block stays, and others are compacted. Each
//     recovery that reads records meets that damage, and tells nothing that is older than the next
//     block of its kind, which all records of this block are (find_uncertain()). A recovery that
//     reads a checkpoint or an index snapshot believes the index.
//   - No other damage hinders an index in DRAM: records are found by their place, and no other
//     record is read.
//   - If an index in PM is damaged, be it that an entry says so or that it has fewer of this
//     block's records than count, nothing is compacted or evicted any more in this partition, and
//     the victim stays the victim. No block becomes unused but those that had been emptied before
//     the victim was begun. So each crash finds what the interruption of one compaction leaves:
//     this block, its copies, and what supersedes them, by which a recovery knows the block for
//     stale. The last checkpoint goes and no other is written (work_on_index(), close()): the next
//     opening to write reads the records, makes the index anew and compacts this block before any
//     other. A crash before the checkpoint has gone finds in it that the block is half compacted,
//     or else all copies in the end of the log that is replayed, which finds the origin of each;
//     where it meets the damage it reads the records, too. Then compaction is stopped again, at the
//     same place.
void Partition::compact_step(uint64_t written_bytes) {
  if (emptied_ != kNoSlot) free_emptied();
  if (victim_ == kNoSlot) {
    const uint64_t garbage = garbage_bytes();
    uint64_t percent = config_.garbage_percent;
    if (percent == 0) {
      const uint64_t there = garbage / (live_bytes_ / 100 + 1);
      percent = std::clamp<uint64_t>(there, kGarbagePercentMin, kGarbagePercentMost);
    }
    const uint64_t gain = payload_bytes() / 100 * percent / 2 + 1;
    if (stale_.empty()) {
      if (may_lie(garbage)) return;
      if (quiet_bytes_ > written_bytes) {
        quiet_bytes_ -= written_bytes;
        return;
      }
    }
    if (!choose_victim(gain, false)) {
      quiet_bytes_ = kQuietBlocks * payload_bytes();
      return;
    }
  }
  const Block& block = blocks_[victim_];
  const uint64_t end = sizeof(BlockHeader) + block.bytes;
  const uint64_t begun = cursor_;
  const uint64_t stop = std::min(end, cursor_ + pace(block, written_bytes));
  const FlushOfMoved flush(*this);
  while (cursor_ < stop) {
    VictimRecords records;
    size_t count = 0;
    try {
      count = read_victim(stop, records);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      blocks_[victim_].damaged = true;
      victim_ = kNoSlot;
      // They say of the block what it was before it was begun: see recent_snapshot.cc.
      give_up_snapshots();
      return;
    }
    for (size_t i = 0; i < count; ++i) {
      compact_record(records[i].first, {victim_, cursor_}, records[i].second);
      cursor_ += records[i].first.bytes;
    }
  }
  if (cursor_ >= end) {
    end_victim();
  } else {
    prefetch_victim(stop - begun);
  }
}

// What the next step will look at, and the lines of the one after that: they are there when the
// partition is written to again.
void Partition::prefetch_victim(uint64_t step_bytes) const {
  const Block& block = blocks_[victim_];
  const uint64_t end = sizeof(BlockHeader) + block.bytes;
  const uint64_t next = std::min(end, cursor_ + step_bytes);
  const char* base = pool_.at<char>(block.offset);
  for (uint64_t at = cursor_; at < next;) {
    RecordView record;
    if (!parse(base + at, config_.block_bytes - at, record)) return;  // the step says so
    at += record.bytes;
    if (index_.is_hash() && record.is_put() && !record.has(kKeyOutside)) {
      index_.hash().prefetch(hash_of(record.key));
    }
  }
  for (uint64_t at = next; at < std::min(end, next + step_bytes); at += pm::kLineBytes) {
    pm::prefetch(base + at);
  }
}

// All that counts has been copied. The block waits for the fence that makes the copies durable.
void Partition::end_victim() {
  require_nothing_lost(victim_, 0);  // what is left in it
  emptied_ = victim_;
  victim_ = kNoSlot;
  // with the copies, so before the block is unused: it may be the only one that tells
  note_floors();
}

// The copies are durable. The mark is durable with the next fence; before that nothing is made
// unused that relies on it: what a record in this block invalidates, or is invalidated by, is
// judged by `slots_`, and the next block is made unused after that fence.
void Partition::free_emptied() {
  const uint32_t slot = emptied_;
  emptied_ = kNoSlot;
  --closed_blocks_;
  ++compactions_;
  ++freed_since_reset_;
  if (!has_checkpoint()) return free_block(slot);
  blocks_[slot].state = State::kEmptied;
  emptied_blocks_.push_back(slot);
}

void Partition::free_block(uint32_t slot) {
  spares_.reserve(spares_.size() + 1);  // before anything changes
  Block& block = blocks_[slot];
  auto* header = pool_.at<BlockHeader>(block.offset);
  pm::store_release(header->incarnation, uint64_t{0});
  memory_.flush(header, sizeof *header);
  unfenced_ = true;
  slots_.erase(block.incarnation);
  block = {.offset = block.offset, .state = State::kSpare};
  sites_[slot].seed = seed_of(0);  // of no block with records: nothing in it is sound any more
  spares_.push_back(slot);
  constexpr size_t kSparesMax = 4;
  if (spares_.size() > kSparesMax) {
    // The Txn's first fence makes the mark durable, too, before the block is somebody else's.
    const uint32_t given = spares_.back();
    spares_.pop_back();
    try {
      unlink_block(given);
    } catch (const std::bad_alloc&) {
      spares_.push_back(given);  // there is room for it; it goes with another one
    }
  }
}

// With no block to spare: the closed block of which all that is needed fits into the rest of the
// moved head. Interrupted compactions may have used up the spares.
bool Partition::choose_fitting_victim() {
  if (moved_head_.slot == kNoSlot) return false;
  const uint64_t rest = config_.block_bytes - moved_head_.position;
  uint64_t most = 0;
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if (block.state != State::kClosed || block.damaged || block.kept || slot == emptied_ ||
        block.live > rest) {
      continue;
    }
    try {
      const uint64_t needed = bytes_after_compaction(slot, block.bytes);
      if (needed > rest || gain_of(block, needed) <= most) continue;
      most = gain_of(block, needed);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt || index_.is_damaged()) throw;
      blocks_[slot].damaged = true;
      continue;
    }
    victim_ = slot;
    cursor_ = sizeof(BlockHeader);
  }
  return victim_ != kNoSlot;
}

// Compacts a block wholly, at once. Returns whether that gained anything.
bool Partition::compact_now(uint64_t gain_bytes_min) {
  if (!emptied_blocks_.empty() && settle()) return true;
  require_compactible();
  if (emptied_ == kNoSlot) {
    const bool begun = victim_ != kNoSlot && (victim_is_stale_ || cursor_ != sizeof(BlockHeader));
    if (spares_.empty() && !begun && stale_.empty()) {
      victim_ = kNoSlot;
      choose_fitting_victim();
    }
    if (victim_ == kNoSlot && !choose_victim(gain_bytes_min, true)) {
      for (Block& block : blocks_) block.pinned = 0;
      if (!choose_victim(gain_bytes_min, true)) return false;
    }
    // Copies of a block that stays are durable before anything else is appended, too: the caller's
    // batch may go on to write without a fence.
    try {
      while (victim_ != kNoSlot) compact_step(payload_bytes());
    } catch (...) {
      fence();
      throw;
    }
    if (emptied_ == kNoSlot) {  // it was damaged: another one is next
      fence();
      return true;
    }
  }
  fence();  // copies and floors, before the block is unused
  free_emptied();
  settle();
  fence();  // that, before another block is
  return true;
}

}  // namespace perdure::store
