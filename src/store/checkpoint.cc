// With an index in PM: what lets an opening do without a look at all records.
//
// A checkpoint is what a partition knows at one moment (an IndexSnapshot): of each block what
// counts in it, and of the index what the structure in PM has not been told, its changes. It is
// durable before the structure is told any of them, or before any block is freed that is empty of
// what counts since the checkpoint before. So at any time, after any crash:
//
//   - the structure is as it was at the last checkpoint but for that one's changes, of which it may
//     have some. Told all of them once more it is as it was at that moment exactly; until it is,
//     they are looked at first. No entry leads astray, since
//   - each block that held a record which counted then is still there, unchanged: blocks that have
//     been emptied since wait (kEmptied), and so do long values that nothing refers to any more;
//   - what has come since stands in the log, behind where the log ended then: in blocks that have
//     been opened since, and at the ends of those that were open.
//
// So recovery takes the checkpoint, and replays the end of the log onto it as a full recovery does
// with all of it. What has been told to the structure since is only what the checkpoint says, and
// what recovery adds is only in DRAM until its own checkpoint: any number of crashes on the way
// finds the same.
//
// Replay needs of a record that is superseded where it stood, and finds that by its key. It is
// still there, by the second point. A mark without a key names version and block: there the record
// is looked for.
//
// Without a checkpoint (a new partition, no room for one, damage) the structure may be told
// whatever is durable in the log, and blocks are freed as with an index in DRAM. Then the next
// opening reads all records, and the structure forgets what it has of the partition before it is
// asked again. The link to the checkpoint goes, durably, before either begins.
//
// Blocks that wait become unused in the order in which they were emptied, each mark fenced before
// the next is stored: argument 5 of docs/store.md is that of the full recovery, which may come
// after that.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/partition.h"
#include "store/recovery_scan.h"

namespace perdure::store {

namespace {

// In IndexSnapshot::generation: it is no snapshot of a close.
constexpr uint64_t kIsCheckpoint = uint64_t{1} << 63;

// Of few sizes, that the heap has fewer kinds of blocks to keep.
uint64_t room_for(uint64_t bytes) {
  constexpr uint64_t kLeast = 4096;
  constexpr uint64_t kMost = 32 << 10;
  return bytes > kMost ? bytes : std::bit_ceil(std::max(bytes, kLeast));
}

}  // namespace

bool Partition::wants_checkpoint() const {
  constexpr size_t kEmptiedMax = 16;
  const uint64_t changes_max = std::max<uint64_t>(1000, 2 * slots_.size());
  return checkpoint_now_ || appended_bytes_ >= checkpoint_interval() ||
         emptied_blocks_.size() >= kEmptiedMax ||
         dead_overflow_bytes_ >= 8 * uint64_t{config_.block_bytes} ||
         index_.pm()->changes() >= changes_max;
}

// After a fence. What fails for want of memory comes again.
void Partition::work_on_index() {
  PmPartitionIndex& index = *index_.pm();
  try {
    const bool wanted = wants_checkpoint() || (has_checkpoint() && index.is_damaged());
    if (wanted && !write_checkpoint() && has_checkpoint()) drop_checkpoint();
    if (!has_checkpoint()) {
      if (!dead_overflow_.empty()) free_dead_overflow();
      if (index.is_in_dram()) return;
      constexpr uint64_t kMany = 256;
      if (index.changes() >= kMany) {
        index.gather();
        index.cover();
      }
    }
    index.tell_some();
  } catch (const std::bad_alloc&) {
  }
}

// Returns false if there is no room for it, or must not be one. Durable on return, and what waited
// for it is free.
bool Partition::write_checkpoint() {
  checkpoint_now_ = false;
  appended_bytes_ = 0;
  PmPartitionIndex& index = *index_.pm();
  if (pool_.read_only() || uncertain_below_ != 0 || !accounts_exact_ || index.is_damaged() ||
      index.is_in_dram()) {
    return false;
  }
  // What is left is for records: each size of block may take a segment of its own.
  constexpr uint64_t kSegmentsLeft = 4;
  if (pool_.heap().is_scarce(kSegmentsLeft)) {
    if (has_checkpoint()) drop_checkpoint();
    return false;
  }
  // What it tells of: the records of the log.
  if (unfenced_) fence();
  if (emptied_ != kNoSlot) {
    free_emptied();
    if (unfenced_) fence();  // before another block is
  }
  // Kept by each thread: fresh memory costs more than all else here.
  thread_local std::vector<uint64_t> words;
  thread_local std::vector<uint64_t> image;
  for (;;) {
    try {
      index.gather();
      const PlaceTable& changes = index.gathered();
      words.assign({index.size(), changes.size()});
      words.reserve(words.size() + 2 * changes.size());
      for (uint64_t i = 0; i < changes.positions(); ++i) {
        const PlaceTable::Item* item = changes.item_at(i);
        if (item == nullptr) continue;
        words.push_back(item->place);
        words.push_back(item->word);
      }
      compose_snapshot(pool_.generation() | kIsCheckpoint, words, image);
      link_checkpoint(image);
      index.cover();
      break;
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (!has_checkpoint()) return false;
      drop_checkpoint();  // its room, and that of what waits, may do
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  ++checkpoints_;
  free_deferred();
  return true;
}

// In place of the one before, if there is one.
void Partition::link_checkpoint(const std::vector<uint64_t>& image) {
  const uint64_t bytes = image.size() * sizeof(uint64_t);
  // What it replaces is about as large.
  pm::Heap::Txn txn(pool_.heap(), has_checkpoint());
  const uint64_t offset = txn.allocate(room_for(bytes));
  memory_.copy_nontemporal(pool_.at<char>(offset), image.data(), bytes);
  // It and the intents, before the link; the link, before the structure gets to know it, or a block
  // is freed.
  if (has_checkpoint()) {
    txn.replace(root_.checkpoint, offset, root_.checkpoint);
  } else {
    txn.publish(offset, root_.checkpoint);
  }
  checkpoint_bytes_ = bytes;
}

// From here on the next opening reads all records. Durable on return, and what waited for one is
// free.
void Partition::drop_checkpoint() {
  if (unfenced_) fence();  // what made blocks empty, and long values garbage, before they are freed
  {
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.retire(root_.checkpoint, root_.checkpoint, 0);
  }
  checkpoint_bytes_ = 0;
  free_deferred();
}

// What the checkpoint that was linked before this one names, or named.
void Partition::free_deferred() {
  // None is freed twice, though memory may be short for one.
  while (!emptied_blocks_.empty()) {
    free_block(emptied_blocks_.front());
    emptied_blocks_.erase(emptied_blocks_.begin());
    fence();  // before the next one: an origin, before its copy
  }
  if (!dead_overflow_.empty()) free_dead_overflow();
}

// Frees what waits for a checkpoint, by one, or by doing without. Returns whether there was
// anything.
bool Partition::settle() {
  if (!has_checkpoint() || (emptied_blocks_.empty() && dead_overflow_.empty())) return false;
  if (!write_checkpoint() && has_checkpoint()) drop_checkpoint();
  return true;
}

void Partition::mark_stale(uint32_t slot) {
  if (std::ranges::find(stale_, slot) == stale_.end()) stale_.push_back(slot);
}

// What a checkpoint has been taken for, before it was found not to do.
void Partition::forget_checkpoint() {
  for (Block& block : blocks_) {
    if (block.state == State::kEmptied) {
      block.state = State::kClosed;
      ++closed_blocks_;
    }
    block.live = block.expiring = block.marks = 0;
    block.last_expiry_ms = 0;
    block.damaged = false;
  }
  emptied_blocks_.clear();
  stale_.clear();
  prefix_removals_.clear();
  live_bytes_ = 0;
  damage_at_ = 0;
  lost_bytes_ = 0;
}

void Partition::give_up_checkpoint() {
  config_.pm->will_forget(number_);
  if (root_.checkpoint == 0) return;
  if (is_sound(pool_, root_.checkpoint, config_.salt, number_)) {
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.retire(root_.checkpoint, root_.checkpoint, 0);
    return;
  }
  unlink_checkpoint();
}

// What it leads to may be another's block: that stays allocated.
void Partition::unlink_checkpoint() {
  pm::store_release(root_.checkpoint, uint64_t{0});
  memory_.flush(&root_.checkpoint, sizeof root_.checkpoint);
  fence();  // before the structure has less than it says
}

// Before all records are read: the structure forgets the partition. In a pool that is open to read
// it is not asked.
void Partition::begin_index_anew() {
  PmPartitionIndex& index = *index_.pm();
  index.begin_anew();
  if (pool_.read_only()) return;
  if (root_.checkpoint != 0) {
    if (has_checkpoint()) {
      drop_checkpoint();
    } else {
      unlink_checkpoint();
    }
  }
  index.clear_structure();
}

// Takes what the checkpoint tells, and what has come since. Returns false, having changed nothing,
// if there is none that does.
bool Partition::load_checkpoint(std::span<const uint32_t> order) {
  if (config_.pm->get() == nullptr) return false;
  if (root_.checkpoint == 0 || !is_sound(pool_, root_.checkpoint, config_.salt, number_))
    return false;
  checkpoint_bytes_ = pool_.at<IndexSnapshot>(root_.checkpoint)->bytes;
  try {
    if (read_checkpoint(order)) return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
  }
  forget_checkpoint();
  return false;
}

bool Partition::read_checkpoint(std::span<const uint32_t> order) {
  const auto& header = *pool_.at<IndexSnapshot>(root_.checkpoint);
  if ((header.generation & kIsCheckpoint) == 0 || header.entries < 2) return false;
  const SnapshotParts parts(header);
  const std::span<const uint64_t> entries = parts.entries;
  if (2 + 2 * entries[1] != entries.size()) return false;
  // All that it names is there still, but long values that nothing referred to.
  for (const SnapshotBlock& one : parts.blocks) {
    const bool is_there = one.slot < blocks_.size() && blocks_[one.slot].state > State::kSpare &&
                          blocks_[one.slot].incarnation == one.incarnation;
    if (is_there || (one.is_long_value != 0 && one.live == 0)) continue;
    return false;
  }
  // Where each block that it names goes on; of others, which have been opened since, all.
  std::vector<uint64_t> begins(blocks_.size());
  for (const SnapshotBlock& one : parts.blocks) {
    if (!one.is_long_value) begins[one.slot] = sizeof(BlockHeader) + one.bytes;
  }
  std::vector<std::pair<uint32_t, uint64_t>> tail;
  for (const uint32_t slot : order) {
    const bool opened_since = blocks_[slot].incarnation >= header.next_incarnation;
    if (begins[slot] != 0 || opened_since) {
      tail.emplace_back(slot, std::max(begins[slot], sizeof(BlockHeader)));
    } else if (blocks_[slot].state != State::kClosed) {
      return false;
    }
  }
  Scan scan;
  scan.is_tail = true;
  if (!scan_tail(tail, scan)) return false;
  for (const uint32_t slot : order) {
    if (begins[slot] != 0 || blocks_[slot].incarnation >= header.next_incarnation) continue;
    // All that counted had been moved from it.
    blocks_[slot].state = State::kEmptied;
    --closed_blocks_;
    emptied_blocks_.push_back(slot);
  }
  take_snapshot(header, parts);
  PlaceTable changes;
  changes.reserve(entries[1]);
  for (size_t i = 2; i < entries.size(); i += 2) changes.set(entries[i], entries[i + 1]);
  index_.pm()->load(entries[0], std::move(changes));
  replay(scan, header.next_version);
  return true;
}

// Reads what has come since. Returns false if some of it is damaged.
bool Partition::scan_tail(std::span<const std::pair<uint32_t, uint64_t>> tail, Scan& scan) {
  for (const auto& [slot, begin] : tail) {
    Block& block = blocks_[slot];
    if (block.state == State::kClosed && begin > sizeof(BlockHeader) + block.bytes) return false;
    if (slot == batch_slot_ && begin > batch_begin_) return false;
    scan_block(slot, scan, begin);
    if (block.damaged) return false;
  }
  recovered_ = scan.puts.size();
  return true;
}

// Durable, and whole, as it is: so is what was told and found.
void Partition::end_index_recovery(bool from_checkpoint) {
  index_.pm()->ask();
  if (index_.pm()->is_in_dram() || (from_checkpoint && recovered_ == 0)) return;
  try {
    PmPartitionIndex& index = *index_.pm();
    if (!from_checkpoint) {
      if (slots_.empty()) return;
      // The structure may be told all, since there is no checkpoint, which is small then.
      index.gather();
      index.cover();
      index.tell_all();
      index.forget_told();
    }
    write_checkpoint();
  } catch (const std::bad_alloc&) {
    // There is one after some writes.
  }
}

// The record that the entry leads to counts no more.
void Partition::kill(uint64_t entry) {
  end_record(index_.at(entry));
  index_.erase(entry);
}

void Partition::end_record(Location location) {
  const RecordView record = view_at(location);
  discount(record, blocks_[location.slot()]);
  if (record.has(kOverflow) && has_overflow(record)) blocks_[record.overflow.slot].live = 0;
}

// With an ordered index: asks for what the next ones of a tail's records will look at, a group at a
// time: their ways through the tree overlap. `location_of(i)`: of record i of `count`.
template <typename LocationOf>
void Partition::prefetch_ways(size_t i, size_t count, LocationOf location_of) const {
  if (index_.ordered() == nullptr || i % kTogether != 0) return;
  std::array<Sought, kTogether> sought;
  const size_t some = std::min(kTogether, count - i);
  for (size_t k = 0; k < some; ++k) sought[k].key = key_of(view_at(location_of(i + k)));
  for (int step = 0; step < PartitionIndex::kAheadSteps; ++step) {
    for (size_t k = 0; k < some; ++k) prefetch(step, sought[k]);
  }
}

// What records since the checkpoint have superseded of what counted then. Those that compaction has
// moved had done so before. `but_replaced`: not what index_in_order() meets, since a record that
// counts has superseded it.
void Partition::kill_superseded(const Scan& scan, uint64_t first_version, bool but_replaced) {
  std::map<uint64_t, std::vector<uint64_t>> without_key;  // incarnation -> versions
  const auto kill_version = [&](uint64_t hash, std::string_view key, const Superseded& superseded) {
    const uint64_t entry = index_.find(
        hash, key, [&](Location location) { return has_version(location, superseded.version); });
    if (entry == PartitionIndex::kNone) return;  // it came since, too
    const uint32_t slot = index_.at(entry).slot();
    if (blocks_[slot].incarnation != superseded.incarnation) mark_stale(slot);
    kill(entry);
  };
  std::vector<std::pair<Location, uint64_t>> with_key;  // and the hashes of their keys
  with_key.reserve(scan.superseding.size());
  for (const Location location : scan.superseding) {
    const RecordView record = view_at(location);
    if (record.version < first_version) continue;
    const bool is_keyless = record.has(kKeyOutside) && !has_overflow(record);
    if (but_replaced && record.is_put() && !is_keyless && !scan.is_superseded(record.version)) {
      continue;
    }
    if (record.has(kTombstone) || is_keyless) {
      without_key[record.superseded.incarnation].push_back(record.superseded.version);
    } else {
      with_key.emplace_back(location, hash_of(key_of(record)));
    }
  }
  // Misses in the index, and in the records that it leads to, overlap.
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < with_key.size(); ++i) {
    if (i + 2 * kAhead < with_key.size()) index_.prefetch(with_key[i + 2 * kAhead].second);
    if (index_.is_hash() && i + kAhead < with_key.size()) {
      Sought next = {.hash = with_key[i + kAhead].second};
      prefetch(1, next);
    }
    prefetch_ways(i, with_key.size(), [&](size_t k) { return with_key[k].first; });
    const auto& [location, hash] = with_key[i];
    const RecordView record = view_at(location);
    kill_version(hash, key_of(record), record.superseded);
  }
  for (auto& [incarnation, versions] : without_key) {
    const auto found = slots_.find(incarnation);
    if (found == slots_.end()) continue;
    std::ranges::sort(versions);
    const uint32_t slot = found->second;
    for (uint64_t at = sizeof(BlockHeader); at < sizeof(BlockHeader) + blocks_[slot].bytes;) {
      const RecordView record = view_at({slot, at});
      require_intact({slot, at}, record);
      at += record.bytes;
      if (!record.is_put() || !std::ranges::binary_search(versions, record.version)) continue;
      if (record.has(kKeyOutside) && !has_overflow(record)) continue;  // it came since, too
      const std::string_view key = key_of(record);
      kill_version(hash_of(key), key, {record.version, incarnation});
    }
  }
}

// What removals by prefix since the checkpoint have removed of what counted then.
void Partition::kill_by_prefixes(const Scan& scan, uint64_t first_version) {
  const bool any = std::ranges::any_of(scan.prefixes, [&](const auto& one) {
    return std::ranges::any_of(one.second,
                               [&](const auto& item) { return item.second >= first_version; });
  });
  if (!any) return;
  std::vector<std::pair<uint64_t, Location>> gone;
  for_blocks([&](const RecordView& record, Location location, uint64_t hash) {
    const uint64_t removal = scan.removal_of(key_of(record), record.version);
    if (removal == 0) return;
    std::vector<uint64_t>& blocks = prefix_removals_[removal].blocks;
    const uint64_t incarnation = blocks_[location.slot()].incarnation;
    if (blocks.empty() || blocks.back() != incarnation) blocks.push_back(incarnation);
    gone.emplace_back(hash, location);
  });
  for (const auto& [hash, location] : gone) {
    kill(index_.find_place(hash, {}, location));
  }
}

void Partition::replay(const Scan& scan, uint64_t first_version) {
  // All leaves are looked at then.
  constexpr uint64_t kLeavesEach = 8;
  const bool in_order =
      index_.ordered() != nullptr && scan.puts.size() > index_.ordered()->leaves() / kLeavesEach;
  // Each leaf is met with the records that replace some of its own. What a prefix takes away does
  // not come there.
  const bool replaces = in_order && scan.prefixes.empty();
  kill_superseded(scan, first_version, replaces);
  kill_by_prefixes(scan, first_version);
  if (in_order) {
    index_in_order(scan, replaces);
  } else {
    for (size_t i = 0; i < scan.puts.size(); ++i) {
      constexpr size_t kAhead = 16;
      if (i + kAhead < scan.puts.size()) index_.prefetch(scan.puts[i + kAhead].hash);
      prefetch_ways(i, scan.puts.size(), [&](size_t k) { return scan.puts[k].location(); });
      index_record(scan, scan.puts[i]);
    }
  }
  for (const ScannedPut& put : scan.puts) {
    if (!put.has(kOverflow)) continue;
    const RecordView record = view_at(put.location());
    if (record.has(kKeyOutside) && !has_overflow(record)) continue;
    if (entry_of_record(record, put.location(), put.hash) == PartitionIndex::kNone) continue;
    follow_overflow(record);  // throws if it is not there
    blocks_[record.overflow.slot].live = 1;
    blocks_[record.overflow.slot].owner = put.location();
  }
}

}  // namespace perdure::store
