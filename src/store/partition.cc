#include "store/partition.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/recent_snapshot.h"

namespace perdure::store {

Partition::Partition(pm::PoolImpl& pool, PartitionRoot& root, uint32_t number,
                     const PartitionConfig& config)
    : pool_(pool),
      memory_(pool.memory()),
      root_(root),
      config_(config),
      number_(number),
      index_(config.ordered ? std::make_unique<OrderedIndex>(static_cast<const RecordKeys&>(*this))
                            : nullptr,
             config.pm != nullptr ? std::make_unique<PmPartitionIndex>(*config.pm, number)
                                  : nullptr) {}

void Partition::require_usable() const {
  // After a write of which nobody knows whether it is durable, the index may lead to records that a
  // crash takes back: nothing is told any more.
  if (pool_.failed()) [[unlikely]]
    pool_.require_writable();
}

void Partition::throw_damaged(const std::string& what) const {
  pool_.throw_corrupt(fmt::format("'{}', partition {}: {}", config_.name, number_, what));
}

// All records of a block have been looked for in the index: those that it leads to, of so many
// bytes, must be those that count. How many count in it the partition knows from its writes, and
// the checkpoint from there; an index in PM may have lost an entry without a trace. Before anything
// is concluded from that a record does not count.
void Partition::require_nothing_lost(uint32_t slot, uint64_t found_bytes) const {
  const Block& block = blocks_[slot];
  if (index_.pm() == nullptr || !accounts_exact_ || found_bytes == block.live) [[likely]]
    return;
  index_.pm()->note_lost();
  throw_damaged(
      fmt::format("{} bytes of records count in block {} at {:#x}, of which the index in PM has "
                  "{}; close the store and open it to "
                  "write: that makes the index anew from the records",
                  block.live, slot, block.offset, found_bytes));
}

void Partition::throw_uncertain() const {
  if (uncertain_below_ == 0) index_.pm()->require_sound("nobody knows which keys are absent");
  throw_damaged(fmt::format(
      "the record at {:#x} is damaged, and may be of any key that was not written since: "
      "only those are known",
      damage_at_));
}

void Partition::throw_damaged_at(Location location) const {
  throw_damaged(fmt::format("the record at {:#x} is damaged", pool_.offset_of(text_at(location))));
}

std::string_view Partition::key_at(Location location) const {
  const RecordView record = view_at(location);
  require_intact(location, record);
  return key_of(record);
}

void Partition::prefetch_at(Location location) const {
  const char* at = text_at(location);
  for (uint64_t line = 0; line < 3; ++line) pm::prefetch(at + line * pm::kLineBytes);
}

void Partition::require_intact(Location location, const RecordView& record) const {
  const char* at = text_at(location);
  if (!is_intact(at, record, sites_[location.slot()].seed)) {
    throw_damaged(
        fmt::format("the checksum of the record at {:#x} does not hold", pool_.offset_of(at)));
  }
}

// Of what an entry leads to, if there is one. A record that takes its place names its version: a
// damaged one would be another record's.
void Partition::require_intact(uint64_t entry, const RecordView& record) const {
  if (entry == PartitionIndex::kNone) return;
  require_intact(index_.at(entry), record);
}

// Whether the block that the record refers to is there: always, for a record that counts.
bool Partition::has_overflow(const RecordView& record) const {
  const OverflowRef& to = record.overflow;
  if (to.slot >= blocks_.size()) return false;
  const Block& block = blocks_[to.slot];
  const uint64_t outside_key = record.has(kKeyOutside) ? record.key_bytes : 0;
  return block.state == State::kOverflow && block.incarnation == to.incarnation &&
         to.value_bytes <= block.bytes && block.bytes - to.value_bytes == outside_key;
}

const char* Partition::follow_overflow(const RecordView& record) const {
  if (!has_overflow(record)) {
    throw_damaged(fmt::format("the record of version {} has lost its value", record.version));
  }
  return pool_.at<char>(blocks_[record.overflow.slot].offset + sizeof(BlockHeader));
}

std::string_view Partition::key_of(const RecordView& record) const {
  if (!record.has(kKeyOutside)) return record.key;
  return {follow_overflow(record), record.key_bytes};
}

// Of a long one the checksum is verified, if the pool does so.
std::string_view Partition::value_of(const RecordView& record) const {
  if (!record.has(kOverflow)) return record.value;
  const char* text = follow_overflow(record);
  const Block& block = blocks_[record.overflow.slot];
  if (pool_.verifies_payload()) {
    const auto* header = pool_.at<BlockHeader>(block.offset);
    if (header->content != pm::checksum64(text, block.bytes, seed_of(block.incarnation))) {
      throw_damaged(fmt::format("the checksum of the value at {:#x} does not hold", block.offset));
    }
  }
  return {text + block.bytes - record.overflow.value_bytes, record.overflow.value_bytes};
}

// The index entry of the key, or kNone. A record with the tag and another key is taken for damage
// until its checksum holds.
uint64_t Partition::find(uint64_t hash, std::string_view key, RecordView& out,
                         const Sought* ahead) const {
  const auto is_it = [&](Location location) {
    const char* at = text_at(location);
    pm::prefetch(at + pm::kLineBytes);
    pm::prefetch(at + 2 * pm::kLineBytes);
    read_at(location, out);
    if (key_of(out) == key) return true;
    require_intact(location, out);
    return false;
  };
  return index_.find(hash, key, is_it, ahead);
}

bool Partition::get(uint64_t hash, std::string_view key, uint64_t now_ms, Found& out,
                    const Sought* ahead) const {
  require_usable();
  RecordView record;
  const uint64_t entry = find(hash, key, record, ahead);
  require_certain(entry, record);
  if (entry == PartitionIndex::kNone || has_expired(record, now_ms)) {
    if (config_.evicts) ++misses_;
    return false;
  }
  if (pool_.verifies_payload()) require_intact(index_.at(entry), record);
  out = {value_of(record), record.version, record.expiry_ms};
  if (config_.evicts) note_use(index_.at(entry));
  return true;
}

// Brings lines into the caches that will be written after `bytes` more: else each record waits for
// them, a store at a time.
void Partition::prefetch_head(const Head& head, uint64_t bytes) const {
  if (head.slot == kNoSlot) return;
  constexpr uint64_t kAhead = 4 * pm::kLineBytes;
  const char* block = pool_.at<char>(blocks_[head.slot].offset);
  const uint64_t begin = head.position + bytes;
  const uint64_t end = std::min<uint64_t>(begin + kAhead, config_.block_bytes);
  for (uint64_t at = begin; at < end; at += pm::kLineBytes) pm::prefetch_to_change(block + at);
}

// Composes the record at the head, which has room for it.
Location Partition::append(Head& head, const RecordParts& parts) {
  Block& block = blocks_[head.slot];
  const uint64_t bytes = parts.bytes();
  char* at = pool_.at<char>(block.offset + head.position);
  compose(parts, at);
  finish(at, bytes, seed_of(block.incarnation));
  if (defers_flush_ && &head == &moved_head_) {
    prefetch_head(head, bytes);
  } else {
    memory_.flush(at, bytes);
  }
  unfenced_ = true;
  const Location location(head.slot, head.position);
  head.position += bytes;
  block.bytes += bytes;
  appended_bytes_ += bytes;
  block.marks += marks_of(parts.flags, bytes);
  if ((parts.flags & (kRemoval | kTombstone)) == 0) {
    RecordView record;
    record.flags = parts.flags;
    record.expiry_ms = parts.expiry_ms;
    record.bytes = static_cast<uint32_t>(bytes);
    count(record, block);
  }
  return location;
}

void Partition::count(const RecordView& record, Block& block) {
  block.live += record.bytes;
  live_bytes_ += record.bytes;
  if (block.kept) kept_live_ += record.bytes;
  if (!record.has(kExpires)) return;
  block.expiring += record.bytes;
  block.last_expiry_ms = std::max(block.last_expiry_ms, record.expiry_ms);
}

void Partition::discount(const RecordView& record, Block& block) {
  block.live -= record.bytes;
  live_bytes_ -= record.bytes;
  if (block.kept) kept_live_ -= record.bytes;
  if (record.has(kExpires)) block.expiring -= record.bytes;
}

void Partition::forget(const RecordView& record, Location location, uint64_t until) {
  if (snapshots_ != nullptr && save(record, location, until)) [[unlikely]]
    return;
  discount(record, blocks_[location.slot()]);
  if (record.has(kOverflow)) account_garbage(record, location, until);
}

// Room for so many more long values that no record needs any more. May throw, having changed
// nothing.
void Partition::reserve_garbage(uint64_t count) {
  dead_overflow_.reserve(dead_overflow_.size() + count);
  if (held_.capacity() < held_.size() + count) {
    held_.reserve(std::max(2 * held_.capacity(), held_.size() + count));
  }
}

// The long value of a record that no longer counts: garbage, unless the log that is kept refers to
// it, by the record, or by what removed it if the key is long. Needs reserve_garbage().
void Partition::account_garbage(const RecordView& record, Location location, uint64_t until) {
  const auto slot = static_cast<uint32_t>(record.overflow.slot);
  if (keeps_log() && (blocks_[location.slot()].kept || record.has(kKeyOutside))) {
    held_.push_back({record.has(kKeyOutside) ? until : record.version, slot});
    held_bytes_ += blocks_[slot].bytes;
  } else {
    if (blocks_[location.slot()].kept) log_from_ = std::max(log_from_, record.version + 1);
    add_dead_overflow(slot);
  }
}

void Partition::require_fits(std::string_view key, std::string_view value) {
  if (key.size() <= kKeyBytesMax && value.size() <= kValueBytesMax) [[likely]]
    return;
  throw Error(ErrorCode::kTooLarge,
              fmt::format("a key of {} bytes with a value of {}: a key may not exceed {} bytes, a "
                          "value {}",
                          key.size(), value.size(), kKeyBytesMax, kValueBytesMax));
}

// The record that the write asks for, but for its version and what it supersedes.
RecordParts Partition::parts_of(const WriteRequest& request) const {
  RecordParts parts{.key = request.key, .value = request.value};
  if (request.removal) {
    parts.flags = kRemoval | kSupersedes;
    // A long key is left out: the record that is superseded has it.
    if (request.key.size() > inline_bytes_max()) parts.flags |= kTombstone, parts.key = {};
    return parts;
  }
  if (request.expiry_ms != kNoExpiry) parts.flags |= kExpires, parts.expiry_ms = request.expiry_ms;
  if (request.key.size() > inline_bytes_max()) parts.flags |= kKeyOutside | kOverflow;
  if (request.value.size() > inline_bytes_max()) parts.flags |= kOverflow;
  return parts;
}

void Partition::write(uint64_t hash, RecordParts& parts) {
  RecordView old;
  const uint64_t entry = index_.find(hash, parts.whole_key, [&](Location location) {
    read_at(location, old);
    return key_of(old) == parts.whole_key;
  });
  write_at(entry, old, hash, parts);
}

// Appends the record, for which there is room, and lets the index lead to it: by the entry of its
// key, whose record is `old`, or kNone. Throws nothing.
void Partition::write_at(uint64_t entry, const RecordView& old, uint64_t hash, RecordParts& parts) {
  if (entry != PartitionIndex::kNone) {
    parts.flags |= kSupersedes;
    parts.superseded = {old.version, blocks_[index_.at(entry).slot()].incarnation};
  }
  const bool removal = (parts.flags & kRemoval) != 0;
  if (removal && entry != PartitionIndex::kNone && old.has(kKeyOutside)) {
    if (keeps_log()) {
      // The log tells whom it removes: the key stands where the record's does.
      parts.flags = (parts.flags & ~kTombstone) | kKeyOutside | kOverflow;
      parts.key = parts.whole_key;
      parts.overflow = old.overflow;
    } else {
      log_from_ = std::max(log_from_, next_version_ + 1);  // it does not tell
    }
  }
  if (removal && entry == PartitionIndex::kNone)
    parts.flags &= ~kSupersedes;  // a batch removed it before
  parts.version = logged_ = next_version_++;
  const Location location = append(head_, parts);
  if (!removal && (parts.flags & kOverflow) != 0) blocks_[parts.overflow.slot].owner = location;
  if (!unowned_.empty()) std::erase(unowned_, static_cast<uint32_t>(parts.overflow.slot));
  written_since_step_ += parts.bytes();
  if (entry != PartitionIndex::kNone) {
    forget(old, index_.at(entry), parts.version);
    if (removal) {
      index_.erase(entry);
    } else {
      index_.move(entry, location);
    }
  } else if (!removal) {
    index_.insert(hash, parts.whole_key, location);
  }
}

bool Partition::put(uint64_t hash, const WriteRequest& request, uint64_t now_ms, uint64_t* version,
                    const Sought* ahead) {
  pool_.require_writable();
  now_ms_ = now_ms;
  using Condition = WriteRequest::Condition;
  require_fits(request.key, request.value);
  prefetch_head(head_, 0);
  RecordView old;
  const uint64_t entry = find(hash, request.key, old, ahead);
  require_intact(entry, old);
  if (request.condition != Condition::kNone) require_certain(entry, old);
  const bool present = entry != PartitionIndex::kNone && !has_expired(old, now_ms);
  if (request.condition == Condition::kIfAbsent && present) return false;
  if (request.condition == Condition::kIfPresent && !present) return false;
  if (request.condition == Condition::kIfVersion && (!present || old.version != request.version)) {
    return false;
  }
  RecordParts parts = parts_of(request);
  if (entry == PartitionIndex::kNone) index_.require_room();
  // An entry that stays needs no room in the index.
  const bool moved = make_room(head_, parts.bytes() + sizeof(Superseded), Purpose::kWrite);
  if (moved || entry == PartitionIndex::kNone) {
    index_.reserve(request.key, 1);
  } else {
    index_.reserve_changes(1);
  }
  reserve_garbage(1);
  if ((parts.flags & kOverflow) != 0) {
    store_overflow(request, parts);
    try {
      // Anew: what gave way for its sake may have closed the head, and changed the index.
      make_room(head_, parts.bytes() + sizeof(Superseded), Purpose::kWrite);
      index_.reserve(request.key, 1);
      reserve_garbage(1);
    } catch (...) {
      abandon({&parts, 1});
      throw;
    }
  }
  parts.whole_key = request.key;
  if (moved || (parts.flags & kOverflow) != 0) {
    write(hash, parts);
  } else {
    write_at(entry, old, hash, parts);
  }
  if (version != nullptr) *version = parts.version;
  return true;
}

bool Partition::remove(uint64_t hash, std::string_view key, uint64_t now_ms) {
  pool_.require_writable();
  now_ms_ = now_ms;
  index_.tidy();
  RecordView old;
  const uint64_t entry = find(hash, key, old);
  require_certain(entry, old);
  if (entry == PartitionIndex::kNone) return false;
  require_intact(entry, old);
  const bool present = !has_expired(old, now_ms);
  RecordParts parts = parts_of({.key = key, .removal = true});
  make_room(head_, parts.bytes() + removal_extra(parts), Purpose::kRemoval);
  reserve_garbage(1);
  parts.whole_key = key;
  write(hash, parts);
  return present;
}

void Partition::store_overflow(const WriteRequest& request, RecordParts& parts) {
  const bool outside = (parts.flags & kKeyOutside) != 0;
  const std::string_view key = outside ? request.key : std::string_view();
  const uint64_t bytes = sizeof(BlockHeader) + key.size() + request.value.size();
  if (config_.evicts && bytes > config_.bytes_max / 4) {
    throw Error(
        ErrorCode::kTooLarge,
        fmt::format(
            "a value of {} bytes in a cache whose partitions may take {} each: the quarter of that "
            "is the most (bytes_max, or fewer partitions)",
            request.value.size(), config_.bytes_max));
  }
  for (Search search; is_beyond(bytes);) {
    if (!make_cache_room(bytes, search)) throw_bound();
  }
  // What is evicted lies here and there, and may not make room for it however much it is.
  uint64_t evictable_bytes = 4 * bytes + 16 * uint64_t{config_.block_bytes};
  const auto evict_for_it = [&] {
    const uint64_t before = taken_bytes();
    if (evictable_bytes == 0 || !evict(bytes)) return false;
    evictable_bytes -= std::min(evictable_bytes, before - std::min(before, taken_bytes()));
    return true;
  };
  uint32_t slot = kNoSlot;
  while (slot == kNoSlot) {
    try {
      slot = add_overflow(key, request.value);
    } catch (const Error& error) {
      if (!pm::is_full(error) ||
          (!give_up_snapshots() && !settle() && !give_up_log() && !evict_for_it())) {
        throw;
      }
    }
  }
  unowned_.push_back(slot);  // add_overflow() has made room
  parts.overflow = {slot, blocks_[slot].incarnation, request.value.size()};
}

Partition::Group Partition::prepare(std::span<const GroupWrite> writes, uint64_t now_ms,
                                    uint32_t named) {
  pool_.require_writable();
  now_ms_ = now_ms;
  Group group;
  group.reserve(writes.size());
  uint64_t bytes = named > 0 ? record_bytes(kTombstone, 0, named * sizeof(BatchPart)) : 0;
  RecordView old;
  bool adds = false;
  for (const auto& [hash, request] : writes) {
    require_fits(request.key, request.value);
    const uint64_t entry = find(hash, request.key, old);
    require_intact(entry, old);  // throws now if it is damaged
    if (entry == PartitionIndex::kNone && (!request.removal || index_.has_lost()))
      index_.require_room();
    group.push_back(parts_of(request));
    group.back().whole_key = request.key;
    bytes += group.back().bytes() + sizeof(Superseded) + removal_extra(group.back());
    adds = adds || (!request.removal && !request.frees);
  }
  if (bytes > payload_bytes()) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("a batch has {} bytes of records in one partition; they may not exceed "
                            "{} (block_bytes less {})",
                            bytes, payload_bytes(), sizeof(BlockHeader)));
  }
  make_room(head_, bytes, adds ? Purpose::kWrite : Purpose::kRemoval);
  for (const auto& [hash, request] : writes) index_.reserve(request.key, writes.size());
  reserve_garbage(2 * writes.size());
  try {
    for (size_t i = 0; i < writes.size(); ++i) {
      if ((group[i].flags & kOverflow) != 0) store_overflow(writes[i].second, group[i]);
    }
    // As in put().
    make_room(head_, bytes, adds ? Purpose::kWrite : Purpose::kRemoval);
    for (const auto& [hash, request] : writes) index_.reserve(request.key, writes.size());
    reserve_garbage(2 * writes.size());
  } catch (...) {
    abandon(group);
    throw;
  }
  return group;
}

void Partition::write_group(std::span<const GroupWrite> writes, Group& group,
                            std::span<const BatchPart> parts) {
  for (size_t i = 0; i < writes.size(); ++i) {
    if (i + 1 != writes.size() || !parts.empty()) group[i].flags |= kGroupGoesOn;
    write(writes[i].first, group[i]);
  }
  if (!parts.empty()) append_mark(parts);
}

// Behind a group that is part of a batch over several partitions.
void Partition::append_mark(std::span<const BatchPart> parts) {
  const RecordParts mark{
      .flags = kTombstone | kBatch,
      .version = logged_ = next_version_++,
      .value = {reinterpret_cast<const char*>(parts.data()), parts.size_bytes()}};
  append(head_, mark);
  written_since_step_ += mark.bytes();
}

void Partition::abandon(std::span<const RecordParts> group) {
  for (const RecordParts& parts : group) {
    if (parts.overflow.incarnation == 0) continue;
    const auto slot = static_cast<uint32_t>(parts.overflow.slot);
    std::erase(unowned_, slot);
    add_dead_overflow(slot);
  }
}

void Partition::before_fence() {
  if (written_since_step_ == 0) return;
  // After a fence that failed nothing more is stored: what stands in the caches may still become
  // durable, and must not say that what the fence was for is.
  if (pool_.failed()) return;
  // What it moves is made durable by the fence that follows, before a later record may supersede
  // it: recover() relies on that.
  const uint64_t written = std::exchange(written_since_step_, 0);
  if (writing_ != nullptr) write_some_snapshot();
  bound_log();
  if (index_.is_damaged()) return;  // see compact_step()
  // What was written is there, whatever hinders compaction: it is tried again later, and a write
  // that needs the room says what is wrong.
  try {
    compact_step(written);
  } catch (const Error&) {
    if (pool_.failed()) throw;
    // They may be the room that it needs.
    checkpoint_now_ = checkpoint_now_ || !emptied_blocks_.empty();
    quiet_bytes_ = kQuietBlocks * payload_bytes();
  } catch (const std::bad_alloc&) {
    quiet_bytes_ = kQuietBlocks * payload_bytes();
  }
}

void Partition::after_fence() {
  unfenced_ = false;
  if (index_.pm() != nullptr) return work_on_index();
  // What was written is there, whatever memory there is for this: it is tried again later.
  try {
    if (!dead_overflow_.empty()) free_dead_overflow();
    if (appended_bytes_ >= next_look_) [[unlikely]]
      work_on_snapshots();
  } catch (const std::bad_alloc&) {
  }
}

void Partition::for_tags(uint64_t first, uint64_t end, uint64_t now_ms, const Visit& visit) const {
  require_usable();
  require_certain();
  for_tags(first, end, [&](Location location) {
    const RecordView record = view_at(location);
    if (has_expired(record, now_ms)) return;
    if (pool_.verifies_payload()) require_intact(location, record);
    visit(key_of(record), {value_of(record), record.version, record.expiry_ms});
  });
}

bool Partition::for_some(uint64_t random, uint64_t now_ms, const VisitUntil& visit) const {
  require_usable();
  require_certain();
  bool any = false;
  if (index_.size() == 0) return any;
  for (size_t i = 0; i < blocks_.size() && !any; ++i) {
    const auto slot = static_cast<uint32_t>((random + i) % blocks_.size());
    if (!has_records(slot) || blocks_[slot].live == 0) continue;
    for_block(slot, [&](const RecordView& record, Location, uint64_t) {
      if (has_expired(record, now_ms)) return;
      any |= visit(key_of(record), {value_of(record), record.version, record.expiry_ms});
    });
  }
  return any;
}

void Partition::scan(const ScanFrom& from, uint64_t now_ms, const VisitUntil& visit) const {
  require_usable();
  require_certain();
  const OrderedIndex& index = *index_.ordered();
  const auto begin = [&] {
    if (from.whole) return from.downwards ? index.last() : index.first();
    // Downwards: behind the record of the key, unless that is left out.
    return index.seek(from.key, from.downwards != from.beyond);
  };
  OrderedIndex::Position position = begin();
  const auto step = [&](OrderedIndex::Position& at, Location* out) {
    return from.downwards ? index.previous(at, out) : index.next(at, out);
  };
  // Records are asked for before they are needed: they lie in no order.
  constexpr uint64_t kAhead = 8;
  OrderedIndex::Position ahead = position;
  uint64_t expected = from.expected;
  Location location;
  const auto ask = [&] {
    if (expected == 0 || !step(ahead, &location)) return;
    --expected;
    prefetch_at(location);
  };
  for (uint64_t i = 0; i < kAhead; ++i) ask();
  for (;;) {
    ask();
    if (!step(position, &location)) return;
    const RecordView record = view_at(location);
    if (has_expired(record, now_ms)) continue;
    // Its key decides where it stands.
    require_intact(location, record);
    const std::string_view value = from.keys_only ? std::string_view() : value_of(record);
    if (!visit(key_of(record), {value, record.version, record.expiry_ms})) return;
  }
}

}  // namespace perdure::store
