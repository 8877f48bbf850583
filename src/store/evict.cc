// The store as a cache. Eviction empties a block as compaction does, but what may go, and has not
// been read since it was written or moved there, is not copied: its keys are gone.
//
// Nothing is written for a record that goes. That is safe since it goes in one step with its block:
// between the moment when the index forgets it and the moment when the block is unused, durably,
// nothing else is written to the partition. So a crash finds all of the block or nothing of it.
// Were a newer record of an evicted key written while the block is still there, it would not name
// the old one, and recovery would find two. For the same reason nothing is evicted while another
// block is half compacted: that could have the origin of a copy that goes.
//
// What a record that goes has superseded stays superseded: marks are left as compaction leaves
// them, before the block is unused. So no older value of a key comes back, be the record one of a
// batch or not; a crash finds of a batch what a reader could have found, each record or nothing in
// its place.
#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <vector>

#include "store/hash.h"
#include "store/partition.h"

namespace perdure::store {

// What becomes of the records of a block.
struct Partition::Eviction {
  std::vector<Location> go;
  std::vector<Location> stay;
  uint64_t overflow_bytes = 0;  // of what goes
  bool was_read = false;
  bool is_hot = false;  // more than half of the block has been read
};

void Partition::note_use(Location location) const {
  ++hits_;
  const uint64_t bit = location.offset() / kUseBytes;
  uint64_t& word = used_[location.slot() * use_words() + bit / 64];
  const uint64_t mask = uint64_t{1} << bit % 64;
  if ((word & mask) == 0) word |= mask;
}

bool Partition::was_used(Location location) const {
  const uint64_t bit = location.offset() / kUseBytes;
  return (used_[location.slot() * use_words() + bit / 64] >> bit % 64 & 1) != 0;
}

void Partition::throw_bound() const {
  throw Error(
      ErrorCode::kPoolFull,
      fmt::format("{}: partition {} of '{}' takes {} bytes, and may take {} (bytes_max): {}",
                  pool_.mapping().path(), number_, config_.name, taken_bytes(), config_.bytes_max,
                  config_.evicts ? "there is nothing in it that may be evicted"
                                 : "remove records, or allow more"));
}

// The partition takes as much as it may. Returns whether something has gone, or was moved together.
// Compaction is not believed for ever that it gains: it goes on as long as that shows in what the
// partition takes.
bool Partition::make_cache_room(uint64_t bytes, Search& search) {
  if (taken_bytes() < search.least_bytes) search = {taken_bytes(), 2 * closed_blocks_ + 16};
  // Garbage and what has expired, before what counts.
  if (search.compactions > 0 && compact_now(payload_bytes() / 4)) {
    --search.compactions;
    free_surplus();
    return true;
  }
  return give_up_log() || evict(bytes);
}

// Blocks that may be evicted from, the oldest first.
std::vector<uint32_t> Partition::oldest_blocks() const {
  constexpr size_t kMany = 16;
  std::vector<uint32_t> slots;
  const auto is_older = [&](uint32_t a, uint32_t b) { return blocks_[a].age < blocks_[b].age; };
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if (block.state != State::kClosed || block.damaged || block.kept || block.stuck) continue;
    if (slots.size() == kMany) {
      if (!is_older(slot, slots.front())) continue;
      std::ranges::pop_heap(slots, is_older);
      slots.pop_back();
    }
    slots.push_back(slot);
    std::ranges::push_heap(slots, is_older);
  }
  std::ranges::sort_heap(slots, is_older);
  return slots;
}

// Which records go: those that have expired and those that were not read; of records with long
// values as many as make the room that is asked for. Returns whether that gains enough.
bool Partition::plan_eviction(uint32_t slot, uint64_t bytes, uint64_t gain_bytes_min,
                              Eviction& plan) const {
  const Block& block = blocks_[slot];
  uint64_t stay_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t found_bytes = block.saved;
  for (uint64_t at = sizeof(BlockHeader); at < sizeof(BlockHeader) + block.bytes;) {
    const Location here(slot, at);
    const RecordView record = view_at(here);
    require_intact(here, record);
    at += record.bytes;
    const bool marks = still_invalidates(record, block.incarnation);
    uint64_t entry = 0;
    if (prefix_is_needed(record, here) || find_saved(record, here) != nullptr) {
      stay_bytes += record.bytes;
      continue;
    }
    if (!counts(record, here, &entry)) {
      stay_bytes += marks ? kMarkBytes : 0;
      continue;
    }
    found_bytes += record.bytes;
    const bool used = !has_expired(record, now_ms_) && was_used(here);
    const bool enough = record.has(kOverflow) && plan.overflow_bytes >= bytes;
    if (used) used_bytes += record.bytes;
    if (used || enough || snapshot_needs(record.version) ||
        (config_.may_evict && !config_.may_evict(key_of(record), value_of(record)))) {
      plan.stay.push_back(here);
      stay_bytes += record.bytes;
      continue;
    }
    plan.go.push_back(here);
    if (record.has(kOverflow)) plan.overflow_bytes += record.overflow.value_bytes;
    stay_bytes += marks ? kMarkBytes : 0;
  }
  require_nothing_lost(slot, found_bytes);
  plan.was_read = used_bytes != 0;
  plan.is_hot = used_bytes > payload_bytes() / 2;
  return plan.overflow_bytes != 0 || gain_of(block, stay_bytes) >= gain_bytes_min;
}

void Partition::forget_evicted(Location here) {
  const RecordView record = view_at(here);
  const uint64_t entry = entry_of_record(record, here, hash_of(key_of(record)));
  if (config_.evicted && !has_expired(record, now_ms_)) config_.evicted(key_of(record));
  discount(record, blocks_[here.slot()]);
  if (record.has(kOverflow)) {
    add_dead_overflow(static_cast<uint32_t>(record.overflow.slot));
  }
  index_.erase(entry);
  try {
    index_.tidy();
  } catch (const std::bad_alloc&) {
    // It takes more memory than it must, for a while.
  } catch (const Error&) {
    // The same: a record beside it is damaged.
  }
  ++evicted_;
}

// In the end the block is unused, durably.
void Partition::carry_out(uint32_t slot, const Eviction& plan) {
  // What fails in the first part leaves a block that is half compacted, to go on with.
  victim_ = slot;
  victim_is_stale_ = true;  // not to be given up for another one
  cursor_ = sizeof(BlockHeader);
  reserve_garbage(plan.go.size());
  index_.reserve_changes(plan.go.size());
  // Copies: what is appended may need a page of the table more, and then blocks_ moves.
  const uint64_t end = sizeof(BlockHeader) + blocks_[slot].bytes;
  const uint64_t incarnation = blocks_[slot].incarnation;
  size_t stays = 0;
  try {
    for (uint64_t at = sizeof(BlockHeader); at < end;) {
      const Location here(slot, at);
      const RecordView record = view_at(here);
      at += record.bytes;
      if (record.has(kPrefix)) {
        compact_prefix(record, here);
        continue;
      }
      if (Saved* saved = find_saved(record, here); saved != nullptr) {
        move_saved(record, *saved);
        continue;
      }
      if (stays < plan.stay.size() && plan.stay[stays] == here) {
        ++stays;
        index_.reserve_changes(1);
        const uint64_t entry = entry_of_record(record, here, hash_of(key_of(record)));
        move_record(record, here, entry, still_invalidates(record, incarnation));
        continue;
      }
      if (still_invalidates(record, incarnation)) {
        append_moved({.flags = kTombstone | kSupersedes,
                      .version = record.version,
                      .superseded = record.superseded});
      }
    }
  } catch (...) {
    fence();  // the copies, before anything else is appended: as in compact_now()
    throw;
  }
  size_t gone = 0;
  try {
    for (; gone < plan.go.size(); ++gone) forget_evicted(plan.go[gone]);
  } catch (const Error&) {
    // An ordered index has met a damaged record. The block stays, so what has gone from it is
    // removed as if by a caller: a newer record of its key will not know of it.
    for (size_t i = 0; i < gone; ++i) {
      append_moved({.flags = kTombstone | kSupersedes,
                    .version = next_version_++,
                    .superseded = {view_at(plan.go[i]).version, incarnation}});
    }
    fence();  // the removals, before the values go, and before anything else is written
    throw;
  }
  end_victim();
  fence();  // copies, marks and floors, before the block is unused
  free_emptied();
  settle();
  // before anything is written that does not know of the records, and before their values go
  fence();
  free_surplus();
}

// Long values of what does not count any more, durably; and spare blocks beyond those that must
// stay.
void Partition::free_surplus() {
  if (unfenced_) fence();  // what supersedes long values, before they go
  if (!settle()) free_dead_overflow();
  while (spares_.size() > kSparesForRemovals + 1) {
    const uint32_t slot = spares_.back();
    spares_.pop_back();
    unlink_block(slot);
  }
}

// What the heads have may be all there is, with long values.
void Partition::close_heads() {
  for (Head* head : {&head_, &moved_head_}) {
    if (head->slot == kNoSlot || blocks_[head->slot].bytes == 0) continue;
    close_block(*head);
  }
  while (release_log()) continue;
}

// Makes room, for long values of about `bytes` if it meets such. The heads may be closed
// afterwards. Returns false if nothing may go. A block from which no record goes is not for it,
// whatever garbage is there: what stays would be moved to the head, which is closed the next time,
// and be moved again. So each time there are fewer records.
bool Partition::evict(uint64_t bytes) {
  if (!config_.evicts) return false;
  if (!emptied_blocks_.empty()) return settle();  // the origins of copies that might go
  require_compactible();
  if (emptied_ != kNoSlot || victim_ != kNoSlot || !stale_.empty()) {
    // What is half compacted comes first.
    if (compact_now(1)) {
      free_surplus();
      return true;
    }
    if (emptied_ != kNoSlot || victim_ != kNoSlot || !stale_.empty()) return false;
  }
  bool some_were_read = false;  // of blocks that are stuck
  for (bool last_resort = false;;) {
    std::vector<uint32_t> slots = oldest_blocks();
    if (slots.empty()) {
      // All are looked at anew, for less. Not each time where what must stay may be all there is.
      if (last_resort && !some_were_read) {
        evict_again_ = closed_blocks_ / 4;
        return false;
      }
      if (!last_resort && config_.may_evict && evict_again_ > 0) {
        --evict_again_;
        return false;
      }
      last_resort = true;
      some_were_read = false;
      for (Block& block : blocks_) block.stuck = false;
      if (!config_.may_evict || overflow_taken_ > config_.bytes_max / 2) close_heads();
      slots = oldest_blocks();
    }
    for (const uint32_t slot : slots) {
      try {
        Eviction plan;
        const uint64_t gain_bytes_min = payload_bytes() / (last_resort ? 16 : 4);
        const bool gains = plan_eviction(slot, bytes, gain_bytes_min, plan);
        if (!plan.is_hot && gains && !plan.go.empty()) {
          carry_out(slot, plan);
          evict_again_ = 0;
          return true;
        }
        // A second chance: nothing of it counts as read. A hot block counts as new, and is not hot
        // next time round, unless it is read again. Of one with few records, all of them read, some
        // may go as a last resort.
        std::fill_n(&used_[slot * use_words()], use_words(), 0);
        if (plan.is_hot) {
          blocks_[slot].age = next_incarnation_;
        } else {
          blocks_[slot].stuck = true;
          some_were_read = some_were_read || plan.was_read;
        }
      } catch (const Error& error) {
        // If its eviction had begun it is half compacted, to go on with: compaction finds its
        // damage, too.
        if (error.code() != ErrorCode::kCorrupt || victim_ != kNoSlot || index_.is_damaged()) throw;
        blocks_[slot].damaged = true;  // it stays as it is
      }
    }
  }
}

}  // namespace perdure::store
