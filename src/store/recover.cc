// What a partition knows is rebuilt from its blocks: from their headers and an index snapshot, if a
// clean close has left one (index_snapshot.cc), else from all records.
//
// A damaged record in a block that was closed is left out, and with it the certainty about all
// older records of the partition: see find_uncertain().
//
// A record counts unless another one supersedes it; both are known by version. Compaction that a
// crash or a close interrupted leaves copies: a record of one version in two blocks. The copy
// stands in a block of moved records, and if both do, in the one that was opened later; it is the
// one that later records name. The other block is stale, and is compacted before any other: what
// supersedes one of its records may name the copy's block alone, and must not be dropped for that
// one before the stale block is unused.
//
// A block that was open has its end at the first record that does not fit its checksum: what
// follows was not acknowledged. If the partition was not closed, the rest of the block is made
// zeros before it is used again: whole records behind a torn one would otherwise count once the
// torn one is overwritten.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/huge_allocator.h"
#include "store/partition.h"
#include "store/recovery_scan.h"

namespace perdure::store {

void Partition::read_header(uint32_t slot, uint64_t offset) {
  const auto damaged = [&](const char* what) {
    throw_damaged(fmt::format("block {} at {:#x} {}", slot, offset, what));
  };
  if (offset % pm::kLineBytes != 0 || !pool_.leads_inside(offset, sizeof(BlockHeader))) {
    damaged("is outside of the pool");
  }
  const auto& header = *pool_.at<BlockHeader>(offset);
  if (header.incarnation == 0) {
    if (!pool_.heap().is_allocated(offset, config_.block_bytes)) damaged("is not allocated");
    blocks_[slot] = {.offset = offset, .state = State::kSpare};
    spares_.push_back(slot);
    return;
  }
  if (header.checksum != header_checksum(header) || header.partition != number_) {
    damaged("has a damaged header");
  }
  next_incarnation_ = std::max(next_incarnation_, header.incarnation + 1);
  next_version_ = std::max(next_version_, header.first_version);
  if (header.kind == BlockKind::kOverflow) {
    if (!pool_.leads_inside(offset, sizeof(BlockHeader) + header.bytes) ||
        !pool_.heap().is_allocated(offset, sizeof(BlockHeader) + header.bytes)) {
      damaged("is not allocated");
    }
    blocks_[slot] = {.offset = offset,
                     .incarnation = header.incarnation,
                     .bytes = header.bytes,
                     .state = State::kOverflow};
    overflow_bytes_ += header.bytes;
    overflow_taken_ += pm::Heap::block_bytes(sizeof(BlockHeader) + header.bytes);
    return;
  }
  if ((header.kind != BlockKind::kLog && header.kind != BlockKind::kMoved) ||
      header.bytes != config_.block_bytes ||
      !pool_.heap().is_allocated(offset, config_.block_bytes)) {
    damaged("is not one of records");
  }
  Block block{.offset = offset,
              .incarnation = header.incarnation,
              .age = header.incarnation,
              .state = State::kOpen};
  if (header.end != 0) {
    uint64_t end = 0;
    const bool intact = pm::unseal_word(header.end, header.incarnation, end);
    end &= ~kSucceeded;
    if (!intact || end < sizeof(BlockHeader) || end > config_.block_bytes) {
      damaged("has a damaged header");
    }
    block.bytes = end - sizeof(BlockHeader);
    block.state = State::kClosed;
    ++closed_blocks_;
  }
  blocks_[slot] = block;
  if (!slots_.emplace(header.incarnation, slot).second) damaged("is there twice");
}

void Partition::read_table() {
  std::unordered_set<uint64_t> met;
  for (uint64_t page = root_.table; page != 0; page = pool_.at<TablePage>(page)->next) {
    if (!pool_.leads_inside(page, sizeof(TablePage)) ||
        !pool_.heap().is_allocated(page, sizeof(TablePage)) || !met.insert(page).second) {
      throw_damaged(fmt::format("its table leads to {:#x}, which is no page of it", page));
    }
    pages_.push_back(page);
  }
  const uint64_t slots = pages_.size() * TablePage::kEntries;
  if (slots > Location::kSlotsMax) throw_damaged("its table is too long");
  blocks_.resize(slots);
  sites_.resize(slots);
  slots_.reserve(slots);
  free_slots_.reserve(slots);  // as add_page() does: to give a block back needs no memory
  if (config_.evicts) used_.resize(slots * use_words());
  if (index_.pm() != nullptr) emptied_blocks_.reserve(slots);
  for (auto slot = static_cast<uint32_t>(slots); slot-- > 0;) {
    constexpr uint32_t kAhead = 16;  // headers lie in no order
    if (slot >= kAhead) {
      const uint64_t ahead = pm::load_acquire(*entry_of(slot - kAhead));
      if (ahead != 0 && pool_.leads_inside(ahead, sizeof(BlockHeader))) {
        pm::prefetch(pool_.at<char>(ahead));
      }
    }
    const uint64_t offset = pm::load_acquire(*entry_of(slot));
    if (offset == 0) {
      free_slots_.push_back(slot);
      continue;
    }
    read_header(slot, offset);
    // Of a block of records its incarnation would have been met.
    const State state = blocks_[slot].state;
    if ((state == State::kSpare || state == State::kOverflow) && !met.insert(offset).second) {
      throw_damaged(fmt::format("block {} is there twice", slot));
    }
    sites_[slot] = {.offset = offset, .seed = seed_of(blocks_[slot].incarnation)};
  }
  uint64_t floor = 0;
  if (!pm::unseal_word(root_.version_floor, kVersionSalt, floor)) {
    throw_damaged("its root is damaged");
  }
  next_version_ = std::max(next_version_, floor);
  if (!pm::unseal_word(root_.incarnation_floor, kIncarnationSalt, floor)) {
    throw_damaged("its root is damaged");
  }
  next_incarnation_ = std::max(next_incarnation_, floor);
}

// Reads the group of records at `at` that count together, mostly a single one. Returns false if
// they are not all there; else moves `at` behind them, and gives the last one.
bool Partition::read_group(const Block& block, uint64_t end, uint64_t& at, RecordView& last) const {
  const uint64_t seed = seed_of(block.incarnation);
  const char* base = pool_.at<char>(block.offset);
  uint64_t next = at;
  do {
    if (next >= end || !parse(base + next, end - next, last) ||
        !is_intact(base + next, last, seed)) {
      return false;
    }
    next += last.bytes;
  } while (last.has(kGroupGoesOn));
  at = next;
  return true;
}

std::optional<Partition::LastBatch> Partition::look() {
  read_table();
  if (index_.pm() != nullptr && root_.checkpoint == 0 && !pool_.read_only()) {
    config_.pm->will_forget(number_);
  }
  // The last write stands in the block of writes that was opened last; or, if that is gone, the
  // floors tell what has been given, since they are noted by a later fence than that of a batch.
  uint32_t newest = kNoSlot;
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if ((block.state != State::kOpen && block.state != State::kClosed) ||
        pool_.at<BlockHeader>(block.offset)->kind != BlockKind::kLog) {
      continue;
    }
    if (newest == kNoSlot || block.incarnation > blocks_[newest].incarnation) newest = slot;
  }
  if (newest == kNoSlot) return {};
  const Block& block = blocks_[newest];
  const bool open = block.state == State::kOpen;
  const uint64_t end = open ? config_.block_bytes : sizeof(BlockHeader) + block.bytes;
  uint64_t begin = sizeof(BlockHeader);
  RecordView last;
  RecordView record;
  uint64_t at = begin;
  for (uint64_t before = at; read_group(block, end, at, record); before = at) {
    begin = before;
    last = record;
    reached_ = std::max(reached_, record.version + 1);
  }
  ends_damaged_ = !open && at != end;
  if (!open || !last.has(kBatch)) return {};
  LastBatch batch{.parts = std::vector<BatchPart>(last.value.size() / sizeof(BatchPart)),
                  .version = last.version};
  if (batch.parts.empty()) throw_damaged("the record of a batch names no partition");
  std::memcpy(batch.parts.data(), last.value.data(), batch.parts.size() * sizeof(BatchPart));
  batch_slot_ = newest;
  batch_begin_ = begin;
  batch_end_ = at;
  return batch;
}

void Partition::drop_batch() {
  if (root_.close.generation != 0) throw_damaged("its last batch is not whole, and it was closed");
  char* group = pool_.at<char>(blocks_[batch_slot_].offset + batch_begin_);
  std::memset(group, 0, batch_end_ - batch_begin_);
  memory_.flush(group, batch_end_ - batch_begin_);
  fence();  // before any partition is written to
}

void Partition::flush_batch() const {
  // And what lies before it in the block: if that were lost to a power failure, the batch would be,
  // too.
  memory_.flush(pool_.at<char>(blocks_[batch_slot_].offset), batch_end_);
}

// Reads the block's records, from `begin` on. Of an open block finds the end.
void Partition::scan_block(uint32_t slot, Scan& scan, uint64_t begin) {
  Block& block = blocks_[slot];
  const bool open = block.state == State::kOpen;
  uint64_t end = open ? config_.block_bytes : sizeof(BlockHeader) + block.bytes;
  if (slot == batch_slot_) end = batch_begin_;  // the batch does not count
  const char* base = pool_.at<char>(block.offset);
  uint64_t at = begin;
  RecordView record;
  while (at < end) {
    uint64_t member = at;
    if (read_group(block, end, at, record)) {
      if (at == member + record.bytes) scan_record({slot, member}, record, scan), member = at;
      for (; member < at; member += record.bytes) {
        parse(base + member, end - member, record);
        scan_record({slot, member}, record, scan);
      }
    } else if (open) {
      break;
    } else if (is_record(block, at, end, record)) {
      // Of a group that is damaged further on. It was whole when the block was closed, so what is
      // left of it counts.
      scan_record({slot, at}, record, scan);
      at += record.bytes;
    } else {
      at = skip_damage(slot, at, end);
    }
  }
  block.bytes = at - sizeof(BlockHeader);
}

bool Partition::is_record(const Block& block, uint64_t at, uint64_t end, RecordView& out) const {
  const char* base = pool_.at<char>(block.offset);
  return at < end && parse(base + at, end - at, out) &&
         is_intact(base + at, out, seed_of(block.incarnation));
}

// Where records go on behind a damaged one, whose length may be wrong: at the next place where one
// is sound, and the one after it, too. What lies in between is lost.
uint64_t Partition::skip_damage(uint32_t slot, uint64_t at, uint64_t end) {
  Block& block = blocks_[slot];
  block.damaged = true;
  if (damage_at_ == 0) damage_at_ = block.offset + at;
  RecordView record;
  RecordView following;
  for (uint64_t next = at + 8; next < end; next += 8) {
    if (!is_record(block, next, end, record)) continue;
    const uint64_t after = next + record.bytes;
    if (after == end || is_record(block, after, end, following)) {
      lost_bytes_ += next - at;
      return next;
    }
  }
  lost_bytes_ += end - at;
  return end;
}

void Partition::scan_record(Location location, const RecordView& record, Scan& scan) {
  next_version_ = std::max(next_version_, record.version + 1);
  blocks_[location.slot()].marks += marks_of(record.flags, record.bytes);
  if (record.has(kPrefix)) {
    uint64_t& last = scan.prefixes[record.key.size()][record.key];
    last = std::max(last, record.version);
    prefix_removals_[record.version].location = location;  // of copies the last one
  }
  if (record.has(kSupersedes)) {
    scan.supersede(record.superseded.version, record.superseded.incarnation);
    if (scan.is_tail) scan.superseding.push_back(location);
    next_version_ = std::max(next_version_, record.superseded.version + 1);
  }
  if (!record.is_put()) return;
  if (record.has(kKeyOutside) && !has_overflow(record)) return;  // then it is superseded
  scan.puts.emplace_back(location, hash_of(key_of(record)), record);
}

// A record that is lost had some version below what was given when its block was closed, as has
// each record in its block, be it a copy, or the origin of copies. It may have been the last one of
// any key, or the end of any older record. So of all that is older nobody knows whether it counts;
// a newer record of a key counts, whatever is lost. The next block of the same kind was opened
// after that one was closed.
void Partition::find_uncertain(std::span<const uint32_t> order) {
  const auto header_of = [&](uint32_t slot) { return pool_.at<BlockHeader>(blocks_[slot].offset); };
  for (size_t i = 0; i < order.size(); ++i) {
    if (!blocks_[order[i]].damaged) continue;
    const bool is_last =
        i + 1 == order.size() || header_of(order[i + 1])->kind != header_of(order[i])->kind;
    if (is_last)
      (header_of(order[i])->kind == BlockKind::kLog ? log_end_lost_ : moved_end_lost_) = true;
    const uint64_t below = is_last ? next_version_ : header_of(order[i + 1])->first_version;
    uncertain_below_ = std::max(uncertain_below_, below);
  }
}

// Whether a record that was read has superseded the one of this version there; if it names another
// block, a crash has left this one half compacted.
bool Partition::note_superseded(const Scan& scan, uint64_t version, Location location) {
  const auto found = scan.find_superseded(version);
  if (found == scan.superseded.end()) return false;
  if (found->second != blocks_[location.slot()].incarnation) mark_stale(location.slot());
  return true;
}

// Whether it does, as far as other records tell. Reads the record again only where more of it is
// needed than the scan kept: gives what count() needs of it.
bool Partition::counts(const Scan& scan, const ScannedPut& put, RecordView& record) {
  const Location location = put.location();
  if (note_superseded(scan, put.version(), location)) return false;
  record = {.bytes = put.bytes()};  // nothing of the one before: count() goes by the flags, too
  if (!scan.prefixes.empty() || put.has(kExpires)) record = view_at(location);
  if (scan.prefixes.empty()) return true;
  if (const uint64_t removal = scan.removal_of(key_of(record), put.version()); removal != 0) {
    const uint64_t incarnation = blocks_[location.slot()].incarnation;
    std::vector<uint64_t>& blocks = prefix_removals_[removal].blocks;
    if (blocks.empty() || blocks.back() != incarnation) blocks.push_back(incarnation);
    return false;
  }
  return true;
}

void Partition::index_record(const Scan& scan, const ScannedPut& put) {
  RecordView record;
  if (!counts(scan, put, record)) return;
  const Location location = put.location();
  std::string_view key;
  if (config_.ordered) {
    record = view_at(location);
    key = key_of(record);
  }
  // At one place of an index in PM mostly nothing stands: then nothing is read.
  const auto is_any = [](Location) { return true; };
  const bool may_be_there =
      index_.pm() == nullptr || index_.find(put.hash, key, is_any) != PartitionIndex::kNone;
  const bool may_be_twice = uncertain_below_ != 0 || index_.pm() != nullptr;
  if (may_be_there && may_be_twice && index_newer(put)) return;
  const auto is_copy = [&](Location other) { return has_version(other, put.version()); };
  const uint64_t copy = may_be_there ? index_.find(put.hash, key, is_copy) : PartitionIndex::kNone;
  if (copy != PartitionIndex::kNone) {
    give_way(index_.at(copy));
    index_.move(copy, location);
  } else {
    index_.reserve(key, 1);
    index_.insert(put.hash, key, location);
  }
  count(record, blocks_[location.slot()]);
}

// Whether a record that the index leads to is the one of this version. One that seems to be another
// one must be sound: if its version is damaged it may be the one that is looked for, and would go
// on to count beside what has superseded it, or in its place. Throws kCorrupt; then the records are
// read.
bool Partition::has_version(Location location, uint64_t version) const {
  const RecordView record = view_at(location);
  if (record.version == version) return true;
  require_intact(location, record);
  return false;
}

// To a copy.
void Partition::give_way(Location origin) {
  mark_stale(origin.slot());
  discount(view_at(origin), blocks_[origin.slot()]);
}

// What a snapshot has of the key of a record that has come since: whether that, or another one of
// the tail, supersedes it, which takes effect here. The one that counts does not say so if it is a
// copy: compaction has left that out where both stood in the block that it emptied, and a crash may
// have left the block.
bool Partition::replaces(const Scan& scan, Location location) {
  if (!note_superseded(scan, view_at(location).version, location)) return false;
  end_record(location);
  return true;
}

// All of them at once into an index in the order of keys, beside what a snapshot has if they are a
// tail; but one by one where lost records leave room for two of a key. `replaces_some`: they
// take the places of what has been superseded since.
void Partition::index_in_order(const Scan& scan, bool replaces_some) {
  std::vector<Location, HugeAllocator<Location>> places;
  places.reserve(scan.puts.size() - std::min(scan.puts.size(), scan.superseded.size()));
  RecordView record;
  for (const ScannedPut& put : scan.puts) {
    if (!counts(scan, put, record)) continue;
    places.push_back(put.location());
    count(record, blocks_[put.location().slot()]);
  }
  const auto is_before = [&](Location a, Location b) {
    return order_of(a.slot()) < order_of(b.slot());
  };
  const auto kept_of = [&](Location a, Location b) -> std::optional<Location> {
    if (!has_version(a, view_at(b).version)) {
      if (replaces_some && replaces(scan, a)) return b;
      return {};
    }
    give_way(is_before(a, b) ? a : b);
    return is_before(a, b) ? b : a;
  };
  if (!scan.is_tail) return index_.fill(places, kept_of);
  index_.add(places, kept_of, replaces_some && !scan.superseded.empty());
}

// Where what led to it is lost, be it a record or an entry of an index in PM, so that the next
// write of the key did not find the one before, two records of a key may seem to count: the newer
// one does. Returns whether there was another one.
bool Partition::index_newer(const ScannedPut& put) {
  const RecordView record = view_at(put.location());
  RecordView other;
  const uint64_t entry = find(put.hash, key_of(record), other);
  if (entry == PartitionIndex::kNone || other.version == put.version()) return false;
  require_intact(entry, other);
  if (other.version > put.version()) return true;
  discount(other, blocks_[index_.at(entry).slot()]);
  // A checkpoint has counted it; where all records are read nothing has, yet.
  if (other.has(kOverflow) && has_overflow(other)) blocks_[other.overflow.slot].live = 0;
  index_.move(entry, put.location());
  count(record, blocks_[put.location().slot()]);
  return true;
}

// An open block goes on as head.
void Partition::resume(Head& head, uint32_t slot, bool torn) {
  const Block& block = blocks_[slot];
  head.slot = slot;
  head.position = sizeof(BlockHeader) + block.bytes;
  if (!torn) return;
  char* text = pool_.at<char>(block.offset);
  std::memset(text + head.position, 0, config_.block_bytes - head.position);
  // All of it: what the last process stored and did not fence may be in the caches only.
  memory_.flush(text, config_.block_bytes);
  unfenced_ = true;
}

void Partition::free_unreferenced_overflow() {
  dead_overflow_.clear();  // of what was let go of just now
  dead_overflow_bytes_ = 0;
  std::unordered_set<uint32_t> held;
  for (const HeldOverflow& one : held_) held.insert(one.slot);
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    if (blocks_[slot].state == State::kOverflow && blocks_[slot].live == 0 &&
        !held.contains(slot)) {
      add_dead_overflow(slot);
    }
  }
  if (!settle()) free_dead_overflow();
}

CloseRecord Partition::what_is_there() const {
  CloseRecord found{};
  found.generation = pool_.generation();
  found.records = index_.size();
  for (const Block& block : blocks_) {
    if (block.state <= State::kSpare) continue;
    ++found.blocks;
    if (block.state != State::kOverflow) found.bytes += block.bytes;
  }
  found.checksum = close_checksum(found);
  return found;
}

// Builds the index from the records of the blocks, in which copies come after what they were copied
// from.
void Partition::read_records(std::span<const uint32_t> order) {
  Scan scan;
  uint64_t left_bytes = order.size() * payload_bytes();
  for (const uint32_t slot : order) {
    const size_t before = scan.puts.size();
    scan_block(slot, scan);
    left_bytes -= payload_bytes();
    // As if all blocks were like the first one, that the list is not copied again and again as it
    // grows.
    const uint64_t bytes = blocks_[slot].bytes;
    if (before == 0 && bytes > payload_bytes() / 2) {
      scan.puts.reserve(scan.puts.size() * (left_bytes / bytes + 2));
    }
  }
  find_uncertain(order);
  if (index_.ordered() != nullptr && uncertain_below_ == 0) {
    index_in_order(scan);
  } else {
    index_.expect(scan.puts.size() - std::min(scan.puts.size(), scan.superseded.size()));
    for (size_t i = 0; i < scan.puts.size(); ++i) {
      constexpr size_t kAhead = 16;
      if (i + kAhead < scan.puts.size()) index_.prefetch(scan.puts[i + kAhead].hash);
      index_record(scan, scan.puts[i]);
    }
  }
  for (const ScannedPut& put : scan.puts) {
    if (!put.has(kOverflow)) continue;
    const RecordView record = view_at(put.location());
    const uint64_t entry = entry_of_record(record, put.location(), put.hash);
    if (entry == PartitionIndex::kNone) continue;
    if (uncertain_below_ != 0 && !has_overflow(record)) {
      // What superseded it is lost.
      discount(record, blocks_[put.location().slot()]);
      index_.erase(entry);
      continue;
    }
    follow_overflow(record);  // throws if it is not there
    if (++blocks_[record.overflow.slot].live > 1) {
      throw_damaged(fmt::format("block {} has two owners", record.overflow.slot));
    }
    blocks_[record.overflow.slot].owner = put.location();
  }
}

// Whether the block's records, as far as they go, are all sound.
bool Partition::is_whole(uint32_t slot) const {
  const Block& block = blocks_[slot];
  const uint64_t end = sizeof(BlockHeader) + block.bytes;
  RecordView record;
  uint64_t at = sizeof(BlockHeader);
  while (at < end && read_group(block, end, at, record)) continue;
  return at == end;
}

// A copy comes after what it was copied from.
std::pair<BlockKind, uint64_t> Partition::order_of(uint32_t slot) const {
  return {pool_.at<BlockHeader>(blocks_[slot].offset)->kind, blocks_[slot].incarnation};
}

void Partition::recover(bool keeps_batch) {
  if (keeps_batch) batch_slot_ = kNoSlot;
  std::vector<uint32_t> order;
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    if (blocks_[slot].state == State::kOpen || blocks_[slot].state == State::kClosed) {
      order.push_back(slot);
    }
  }
  const auto in_order = [&](uint32_t slot) { return order_of(slot); };
  std::ranges::sort(order, {}, in_order);
  const auto head_of = [&](uint32_t slot) -> Head& {
    return order_of(slot).first == BlockKind::kLog ? head_ : moved_head_;
  };
  const CloseRecord close = root_.close;
  const bool closed = close.generation != 0;
  if (closed && close.checksum != close_checksum(close)) throw_damaged("its root is damaged");
  find_snapshots();
  const bool from_checkpoint = index_.pm() != nullptr && load_checkpoint(order);
  const bool from_snapshot = closed && batch_slot_ == kNoSlot && load_snapshot(close);
  if (from_snapshot) base_ = kOfClose;
  const bool from_base = !from_snapshot && load_base(order);
  if (!from_snapshot && !from_checkpoint && !from_base) {
    if (index_.pm() != nullptr) begin_index_anew();
    read_records(order);
    recovered_ = closed ? 0 : index_.size();
  }
  snapshots_read_ = from_snapshot || from_base ? 1 : 0;
  checkpoints_read_ = from_checkpoint ? 1 : 0;
  if (closed) {
    const CloseRecord now = what_is_there();
    const bool as_many = close.records == now.records || uncertain_below_ != 0;
    if (close.blocks != now.blocks || !as_many || close.bytes != now.bytes) {
      throw_damaged(fmt::format(
          "it has {} records that count, and {} bytes in {} blocks; when it was closed, {}, and {} "
          "in {}",
          now.records, now.bytes, now.blocks, close.records, close.bytes, close.blocks));
    }
  }
  // Positions are given for what counts. A batch that does not leaves nothing behind from which the
  // next recovery would know its versions: they are given to nobody in this opening, and, once the
  // floors say so, in no later one.
  logged_ = next_version_ - 1;
  opened_change_ = next_change();
  // Nor are those that lost records may have had: no record has fewer bytes.
  next_version_ = std::max(next_version_ + lost_bytes_ / record_bytes(0, 0, 0), reached_);
  if (pool_.read_only()) return find_log();
  // Behind a damaged record nothing more is written: after a crash that would be the end of the
  // block. Closed before the mark goes that vouches for what is behind it.
  for (const uint32_t slot : order) {
    const bool unread = from_snapshot || from_base || (from_checkpoint && closed);
    if (!unread || blocks_[slot].state != State::kOpen || is_whole(slot)) continue;
    resume(head_of(slot), slot, !closed);
    close_block(head_of(slot));
  }
  if (unfenced_) fence();
  note_floors();
  pm::store_release(root_.close.generation, uint64_t{0});  // the rest does not count without
  memory_.flush(&root_, pm::kLineBytes);
  unfenced_ = true;
  // Of open blocks of a kind the last one goes on; the crash kept the end of the others from PM.
  for (const uint32_t slot : order) {
    if (blocks_[slot].state != State::kOpen) continue;
    Head& head = head_of(slot);
    if (head.slot != kNoSlot) close_block(head);
    resume(head, slot, false);
  }
  // The one to be compacted first stands last: an origin before its copies.
  std::ranges::sort(stale_, std::greater(), in_order);
  if (!closed) {
    // What the last process stored may be in the caches only: that the blocks are closed, too.
    for (const uint32_t slot : order) {
      const auto* header = pool_.at<BlockHeader>(blocks_[slot].offset);
      memory_.flush(header, sizeof *header);
      // The crash may have kept it from PM that this one was closed after the one before.
      if (blocks_[slot].state == State::kClosed && header->kind == BlockKind::kLog) {
        mark_succeeded(header->previous);
      }
    }
    for (const uint32_t slot : spares_) {
      memory_.flush(pool_.at<BlockHeader>(blocks_[slot].offset), sizeof(BlockHeader));
      unfenced_ = true;
    }
    for (Head* head : {&head_, &moved_head_}) {
      if (head->slot != kNoSlot) resume(*head, head->slot, true);
    }
  }
  // before anything new is written, and before the snapshot goes that the mark of the close vouches
  // for
  fence();
  keep_base();
  find_log();
  // What is written to it would not be found in the log.
  if (head_.slot != kNoSlot && (log_.empty() || log_.back().slot != head_.slot)) close_block(head_);
  // A long value that nothing refers to may be that of a lost record, for whoever restores that.
  if (uncertain_below_ == 0) free_unreferenced_overflow();
  if (log_end_lost_ && head_.slot == kNoSlot) fix_bound(head_);
  if (moved_end_lost_ && moved_head_.slot == kNoSlot) fix_bound(moved_head_);
  if (unfenced_) fence();
  if (index_.pm() != nullptr) end_index_recovery(from_checkpoint);
}

// The next block of a kind bounds what a damaged one before it makes uncertain. Without one the
// bound would move up with each opening, past what is written from here on.
void Partition::fix_bound(Head& head) {
  try {
    if (spares_.size() <= kSparesForRemovals) add_spare(true);
    open_block(head);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
}

uint64_t Partition::close_checksum(const CloseRecord& close) const {
  return checksum_of(close, seed_of(close.generation));
}

void Partition::close() {
  if (pool_.read_only() || pool_.failed()) return;
  persist();
  const uint64_t before = root_.snapshot;
  // The mark would vouch for what is not certain: the next opening is to meet the damage again.
  if (uncertain_below_ != 0) return;
  if (index_.is_damaged()) {
    if (has_checkpoint()) drop_checkpoint();
    return;
  }
  if (index_.pm() != nullptr) {
    write_checkpoint();
  } else {
    if (writing_ != nullptr) drop_writing();
    write_snapshot();
  }
  // Within its line the generation comes last: the rest does not count without.
  const CloseRecord close = what_is_there();
  store_floors();
  root_.close.blocks = close.blocks;
  root_.close.records = close.records;
  root_.close.bytes = close.bytes;
  root_.close.checksum = close.checksum;
  pm::store_release(root_.close.generation, close.generation);
  memory_.flush(&root_, pm::kLineBytes);
  memory_.fence();
  // Now that the next opening has that of this close.
  if (root_.snapshot == 0 || root_.snapshot == before) return;
  for (uint32_t place = 0; place < std::size(root_.snapshots); ++place) drop_recent(place);
}

}  // namespace perdure::store
