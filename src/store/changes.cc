// The log as a stream of writes.
//
// A partition's writes stand in blocks of their own (kLog), in the order of their versions, and
// each block names the one before. So how far back the log goes is told by the blocks themselves:
// from the newest one back to the first whose predecessor is gone. Compaction takes blocks in any
// order; those that are kept it leaves alone, and no long value goes that they refer to. What is
// kept gives way, the oldest first, before a write is refused.
//
// What a stream tells is durable: the partition is looked at by its owner, between writes that have
// been fenced. So nothing that was told is taken back by a crash; and since a version is never
// given to another write once its record was durable, a position means the same before and after.
// Positions count the records of the log alone: compaction gives versions, too, which a crash may
// take back.
#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <vector>

#include "store/partition.h"

namespace perdure::store {

// A head for writes is about to be opened. May throw, having changed nothing.
void Partition::begin_log_block(BlockHeader& header, uint32_t slot) {
  header.previous = last_log_block_;
  header.content = next_change();
  log_.push_back({next_change(), header.incarnation, slot});
  if (log_.size() == 1) log_from_ = next_change();
  last_log_block_ = header.incarnation;
}

uint64_t Partition::kept_bytes() const {
  return kept_closed_blocks() * config_.block_bytes + held_bytes_;
}

// Lets go of what needs not be kept any more: of closed blocks, the oldest first.
void Partition::trim_log() {
  if (pool_.read_only()) return;
  while (kept_closed_blocks() > 0) {
    if (is_wanted(log_.size() > 1 ? log_[1].from : next_change(), kept_bytes())) return;
    release_log();
  }
}

// The head for writes is closed before it is full: so the log can let go of the long values that it
// refers to.
void Partition::close_log() {
  if (head_.slot != kNoSlot && blocks_[head_.slot].bytes != 0) close_block(head_);
}

// After writes, and when consumers have read on. Long values count, too, that the open block refers
// to: beyond some blocks' worth of them, so that what is left empty of a block that is closed early
// stays a small part. Not after a fence that failed: closing a block stores to it.
void Partition::bound_log() {
  constexpr uint64_t kBlocksOpen = 8;
  if (held_bytes_ <= kBlocksOpen * config_.block_bytes || pool_.failed()) return;
  trim_log();
  if (held_bytes_ > kBlocksOpen * config_.block_bytes && kept_closed_blocks() == 0 &&
      !is_wanted(next_change(), kept_bytes())) {
    close_log();
  }
}

// The oldest block that is kept may be compacted from now on, and long values that it alone refers
// to are garbage. Returns false if there is none that is closed.
bool Partition::release_log() {
  if (kept_closed_blocks() == 0) return false;
  Block& block = blocks_[log_.front().slot];
  block.kept = false;
  kept_live_ -= block.live;
  log_.pop_front();
  log_from_ = std::max(log_from_, log_.empty() ? next_change() : log_.front().from);
  try {
    dead_overflow_.reserve(dead_overflow_.size() + held_.size());
  } catch (const std::bad_alloc&) {
    return true;  // they go with the next block
  }
  // What made them garbage stands in blocks that are closed, so it is durable.
  std::erase_if(held_, [&](const HeldOverflow& held) {
    if (held.until >= log_from_) return false;
    held_bytes_ -= blocks_[held.slot].bytes;
    add_dead_overflow(held.slot);
    return true;
  });
  return true;
}

// For want of room. Returns whether there was something to give up. A fence: before what was
// written since the last one, long values may be garbage that a crash would bring back.
bool Partition::give_up_log() {
  // Of closed blocks there may be none, when all that is kept are long values that the open one
  // refers to.
  const size_t held = held_.size();
  if (kept_closed_blocks() == 0 && held != 0) close_log();
  if (held_.size() == held) {
    if (!release_log()) return false;
    ++log_given_up_;
  }
  fence();
  if (!settle()) free_dead_overflow();
  return true;
}

// The block after this one is closed, and may be compacted: recovery must not take this one for the
// last. Durable with the next fence, which comes before that one is unused; after a crash in
// between it is still there.
void Partition::mark_succeeded(uint64_t incarnation) {
  const auto found = slots_.find(incarnation);
  if (found == slots_.end()) return;
  const Block& block = blocks_[found->second];
  auto* header = pool_.at<BlockHeader>(block.offset);
  const bool closed = block.state == State::kClosed || block.state == State::kEmptied;
  if (header->kind != BlockKind::kLog || !closed) return;
  pm::store_release(header->end,
                    pm::seal_word((sizeof(BlockHeader) + block.bytes) | kSucceeded, incarnation));
  memory_.flush(header, sizeof *header);
  unfenced_ = true;
}

// After a recovery: how far back the log goes, as far as it is wanted.
void Partition::find_log() {
  const auto log_of = [&](uint64_t incarnation, uint32_t slot) {
    return LogBlock{pool_.at<BlockHeader>(blocks_[slot].offset)->content, incarnation, slot};
  };
  const auto is_log = [&](uint32_t slot) {
    return pool_.at<BlockHeader>(blocks_[slot].offset)->kind == BlockKind::kLog;
  };
  LogBlock newest{0, 0, kNoSlot};
  for (const auto& [incarnation, slot] : slots_) {
    if (is_log(slot) && incarnation > newest.incarnation) newest = log_of(incarnation, slot);
  }
  log_from_ = next_change();
  if (newest.slot == kNoSlot) return;
  // If another one came after it, and has been compacted, the log is broken there.
  uint64_t end = 0;
  pm::unseal_word(pool_.at<BlockHeader>(blocks_[newest.slot].offset)->end, newest.incarnation, end);
  if ((end & kSucceeded) != 0) return;
  last_log_block_ = newest.incarnation;
  for (LogBlock log = newest;;) {
    // What a crash left half compacted must go. A block without the word is of no use, either.
    if (log.from == 0 || blocks_[log.slot].state == State::kEmptied ||
        std::ranges::find(stale_, log.slot) != stale_.end()) {
      break;
    }
    log_.push_front(log);
    Block& block = blocks_[log.slot];
    block.kept = true;
    kept_live_ += block.live;
    if (!is_wanted(log.from, log_.size() * config_.block_bytes)) break;
    const uint64_t previous = pool_.at<BlockHeader>(block.offset)->previous;
    const auto found = slots_.find(previous);
    if (found == slots_.end() || previous >= log.incarnation || !is_log(found->second)) break;
    log = log_of(previous, found->second);
  }
  if (log_.empty()) return;
  if (!keeps_log()) {
    log_from_ = next_change();
    return trim_log();
  }
  log_from_ = log_.front().from;
  std::unordered_map<uint32_t, uint64_t> held;
  for (size_t i = 0; i < log_.size(); ++i) {
    find_held(log_[i], i + 1 < log_.size() ? log_[i + 1].from : next_change(), held);
  }
  for (const auto& [slot, until] : held) {
    held_.push_back({until, slot});
    held_bytes_ += blocks_[slot].bytes;
  }
  trim_log();
}

// Long values that the block refers to, and no record that counts: with the last version that does.
// If one is gone, the log begins behind; with the next block, at `next`, if a record is damaged.
void Partition::find_held(const LogBlock& log, uint64_t next,
                          std::unordered_map<uint32_t, uint64_t>& held) {
  const uint64_t end = sizeof(BlockHeader) + blocks_[log.slot].bytes;
  for (uint64_t at = sizeof(BlockHeader); at < end;) {
    RecordView record;
    if (!is_record(blocks_[log.slot], at, end, record)) {
      log_from_ = std::max(log_from_, next);
      return;
    }
    at += record.bytes;
    constexpr uint16_t kKeyless = kRemoval | kTombstone | kSupersedes;
    if ((record.flags & kKeyless) == kKeyless || (record.has(kOverflow) && !has_overflow(record))) {
      log_from_ = std::max(log_from_, record.version + 1);
    } else if (record.has(kOverflow) && blocks_[record.overflow.slot].live == 0) {
      held[static_cast<uint32_t>(record.overflow.slot)] = record.version;
    }
  }
}

// Of the records at `at` that count together, from the version `from` on. Moves `at` behind them;
// returns the version of the last one.
uint64_t Partition::read_changes(uint32_t slot, uint64_t end, uint64_t& at, uint64_t from,
                                 bool with_ends, std::vector<LoggedChange>& group) const {
  RecordView record;
  BatchPart batch{0, 0};
  uint64_t next = at;
  do {
    const Location here(slot, next);
    record = view_at(here);
    require_intact(here, record);
    next += record.bytes;
    if (record.has(kBatch)) std::memcpy(&batch, record.value.data(), sizeof batch);
    if (with_ends && record.has(kBatch) && record.version >= from) {
      group.push_back(
          {.version = record.version, .value = record.value, .goes_on = true, .ends_batch = true});
    }
    // The end of a batch, and what removed nothing.
    if (record.version < from || record.has(kTombstone)) continue;
    LoggedChange change{.version = record.version,
                        .key = key_of(record),
                        .expiry_ms = record.expiry_ms,
                        .removal = record.has(kRemoval),
                        .prefix = record.has(kPrefix),
                        .goes_on = true};
    if (!change.removal) change.value = value_of(record);
    group.push_back(change);
  } while (record.has(kGroupGoesOn) && next < end);
  if (!group.empty()) group.back().goes_on = false;
  for (LoggedChange& change : group) change.batch = batch;
  at = next;
  return record.version;
}

uint64_t Partition::change_bytes(uint64_t from) const {
  uint64_t bytes = 0;
  for (auto log = log_.rbegin(); log != log_.rend() && from < next_change(); ++log) {
    bytes += blocks_[log->slot].bytes;
    if (log->from <= from) break;
  }
  return bytes;
}

uint64_t Partition::changes(uint64_t from, LogPlace& hint, const VisitChange& visit,
                            bool with_ends) const {
  require_usable();
  if (from < first_change() || from > next_change()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "'{}', partition {}: changes from version {} on are not kept, but from {} on, and the "
            "next is {}; take a snapshot and go on from there",
            config_.name, number_, from, first_change(), next_change()));
  }
  // Through the blocks from the last that begins at `from` or before.
  auto log = std::ranges::upper_bound(log_, from, {}, &LogBlock::from);
  if (log != log_.begin()) --log;
  std::vector<LoggedChange> group;
  bool visited = false;
  for (; log != log_.end(); ++log) {
    const uint64_t end = sizeof(BlockHeader) + blocks_[log->slot].bytes;
    uint64_t at = sizeof(BlockHeader);
    if (hint.incarnation == log->incarnation && hint.version <= from) at = hint.at;
    while (at < end) {
      group.clear();
      uint64_t last = 0;
      try {
        last = read_changes(log->slot, end, at, from, with_ends, group);
      } catch (const Error&) {
        if (!visited) throw;
        return from;  // whoever goes on there is told
      }
      bool goes_on = true;
      for (const LoggedChange& change : group) {
        goes_on = visit(change);
        visited = true;
      }
      if (last < from) continue;
      from = last + 1;
      hint = {log->incarnation, at, from};
      if (!goes_on) return from;
    }
  }
  return from;
}

}  // namespace perdure::store
