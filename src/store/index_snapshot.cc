// What a clean close leaves of an index in DRAM, so that the next opening reads it in place of the
// records.
//
// It tells all only if the mark of that close counts (PartitionRoot::close, which bears the same
// generation), which recovery makes void, durably, before the partition is written to. A close
// links a new one before it leaves its mark. Without the mark it is what recovery may begin with,
// as with any other snapshot (recent_snapshot.cc); it goes when there is a newer one.
#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>
#include <vector>

#include "pm/checksum.h"
#include "store/partition.h"

namespace perdure::store {

namespace {

// In IndexSnapshot::generation: its entries are those of an ordered index.
constexpr uint64_t kIsOrdered = uint64_t{1} << 62;

// Words are what the index has; all else is a multiple of them.
uint64_t snapshot_bytes_of(const IndexSnapshot& snapshot) {
  const uint64_t words =
      uint64_t{snapshot.stale} + snapshot.prefix_words + snapshot.entries;  // each below 2^58
  return round_up(sizeof snapshot + uint64_t{snapshot.blocks} * sizeof(SnapshotBlock) +
                      words * sizeof(uint64_t),
                  pm::kLineBytes);
}

}  // namespace

uint64_t Partition::kind_of_index() const { return index_.ordered() != nullptr ? kIsOrdered : 0; }

bool is_of_ordered(const IndexSnapshot& snapshot) {
  return (snapshot.generation & kIsOrdered) != 0;
}

bool holds(const IndexSnapshot& snapshot, uint64_t bytes_max, uint64_t salt, uint32_t partition) {
  const uint64_t bytes = snapshot.bytes;
  constexpr uint64_t kWordsMax = uint64_t{1} << 58;
  return bytes >= sizeof snapshot && bytes <= bytes_max && snapshot.entries < kWordsMax &&
         snapshot.prefix_words < kWordsMax && snapshot_bytes_of(snapshot) == bytes &&
         snapshot.checksum == pm::checksum64(&snapshot.bytes, bytes - sizeof snapshot.checksum,
                                             block_seed(salt, partition, ~snapshot.generation));
}

bool is_sound(pm::PoolImpl& pool, uint64_t offset, uint64_t salt, uint32_t partition) {
  if (offset % pm::kLineBytes != 0 || !pool.leads_inside(offset, sizeof(IndexSnapshot))) {
    return false;
  }
  const auto& snapshot = *pool.at<IndexSnapshot>(offset);
  const uint64_t bytes = snapshot.bytes;
  return pool.leads_inside(offset, bytes) && pool.heap().is_allocated(offset, bytes) &&
         holds(snapshot, bytes, salt, partition);
}

// What comes before its entries, of which there will be so many. Returns the header, without a
// checksum.
IndexSnapshot Partition::compose_head(uint64_t generation, uint64_t entries,
                                      std::vector<uint64_t>& image) const {
  IndexSnapshot header{.generation = generation,
                       .next_version = next_version_,
                       .next_incarnation = next_incarnation_,
                       .entries = entries};
  // Long values that no record refers to any more, but the log, or those that snapshots read.
  std::unordered_set<uint32_t> unreferenced(dead_overflow_.begin(), dead_overflow_.end());
  for (const HeldOverflow& held : held_) unreferenced.insert(held.slot);
  if (saved_overflow_ != 0) {
    for (const auto& [place, saved] : snapshots_->saved) {
      const RecordView record = view_at(saved.location);
      if (record.has(kOverflow)) unreferenced.insert(static_cast<uint32_t>(record.overflow.slot));
    }
  }
  std::vector<SnapshotBlock> blocks;
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if (block.state <= State::kSpare || block.state == State::kEmptied) continue;
    const bool overflow = block.state == State::kOverflow;
    if (overflow && std::ranges::find(unowned_, slot) != unowned_.end()) continue;
    blocks.push_back(
        {.incarnation = block.incarnation,
         .expiry_ms_or_owner = overflow ? block.owner.word() : block.last_expiry_ms,
         .slot = slot,
         .bytes = overflow ? 0 : static_cast<uint32_t>(block.bytes),
         .live = overflow ? uint32_t{!unreferenced.contains(slot)} : block.live - block.saved,
         .expiring = block.expiring - block.saved_expiring,
         .marks = block.marks,
         .is_long_value = overflow ? 1U : 0U});
  }
  // What is half compacted has the origins of copies: it is stale, as if a crash had left it.
  std::vector<uint64_t> words(stale_.begin(), stale_.end());
  if (emptied_ != kNoSlot) words.push_back(emptied_);
  if (victim_ != kNoSlot && (victim_is_stale_ || cursor_ != sizeof(BlockHeader))) {
    words.push_back(victim_);
  }
  header.blocks = static_cast<uint32_t>(blocks.size());
  header.stale = static_cast<uint32_t>(words.size());
  for (const auto& [version, removal] : prefix_removals_) {
    words.insert(words.end(), {version, removal.location.word(), removal.blocks.size()});
    words.insert(words.end(), removal.blocks.begin(), removal.blocks.end());
  }
  header.prefix_words = words.size() - header.stale;
  header.bytes = snapshot_bytes_of(header);
  image.resize((sizeof header + blocks.size() * sizeof(SnapshotBlock)) / sizeof(uint64_t) +
               words.size());
  auto* to = reinterpret_cast<char*>(image.data());
  const auto put = [&](const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(to, data, bytes);
    to += bytes;
  };
  put(&header, sizeof header);
  put(blocks.data(), blocks.size() * sizeof(SnapshotBlock));
  put(words.data(), words.size() * sizeof(uint64_t));
  return header;
}

// All of it, ready to be copied.
void Partition::compose_snapshot(uint64_t generation, std::span<const uint64_t> entries,
                                 std::vector<uint64_t>& image) const {
  IndexSnapshot header = compose_head(generation, entries.size(), image);
  image.insert(image.end(), entries.begin(), entries.end());
  image.resize(header.bytes / sizeof(uint64_t));
  header.checksum = pm::checksum64(
      reinterpret_cast<const char*>(image.data()) + sizeof header.checksum,
      header.bytes - sizeof header.checksum, block_seed(config_.salt, number_, ~header.generation));
  image[0] = header.checksum;
}

// At a close. Without it the next opening reads the records: when the pool is full, or memory is.
void Partition::write_snapshot() {
  // Nor where what is live is not exactly known: the next opening counts it.
  if (!accounts_exact_ || snapshots_ != nullptr) return;
  try {
    std::vector<uint64_t> words;
    const uint64_t generation = pool_.generation() | kind_of_index();
    if (index_.ordered() != nullptr) {
      index_.ordered()->save(words);
    } else {
      words.reserve(index_.size());
      index_.hash().for_words([&](uint64_t word) { words.push_back(word); });
    }
    std::vector<uint64_t> image;
    compose_snapshot(generation, words, image);
    const uint64_t bytes = image.size() * sizeof(uint64_t);
    if (root_.snapshot != 0 && snapshot_bytes_ == 0) drop_snapshot();
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t offset = txn.allocate(bytes);
    memory_.copy_nontemporal(pool_.at<char>(offset), image.data(), bytes);
    // The snapshot and the intent, before the link; all of that before the mark of the close,
    // without which it is none of that close.
    if (root_.snapshot != 0) {
      txn.replace(root_.snapshot, offset, root_.snapshot);
    } else {
      txn.publish(offset, root_.snapshot);
    }
    snapshot_bytes_ = bytes;
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  } catch (const std::bad_alloc&) {
    // As with a full pool.
  }
}

// After the mark of the close has become void, durably, and before anything is written. Durable on
// return.
void Partition::drop_snapshot() {
  if (root_.snapshot == 0) return;
  if (snapshot_bytes_ != 0) {
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.retire(root_.snapshot, root_.snapshot, 0);
  } else {
    // What it leads to may be another's block: that stays allocated.
    pm::store_release(root_.snapshot, uint64_t{0});
    memory_.flush(&root_.snapshot, sizeof root_.snapshot);
    fence();
  }
  snapshot_bytes_ = 0;
}

// What counted in blocks that are there.
void Partition::take_blocks(std::span<const SnapshotBlock> blocks) {
  for (const SnapshotBlock& one : blocks) {
    if (one.slot >= blocks_.size() || blocks_[one.slot].incarnation != one.incarnation) continue;
    Block& block = blocks_[one.slot];
    block.live = one.live;
    if (block.state == State::kOverflow) {
      block.owner = Location::of_word(one.expiry_ms_or_owner);
      continue;
    }
    block.expiring = one.expiring;
    block.last_expiry_ms = one.expiry_ms_or_owner;
    block.marks += one.marks;
    live_bytes_ += one.live;
  }
}

// Removals by prefix. Where one has been moved since, that is known already.
void Partition::take_prefixes(std::span<const uint64_t> words) {
  for (size_t i = 0; i + 3 <= words.size();) {
    const bool moved = prefix_removals_.contains(words[i]);
    PrefixRemoval& removal = prefix_removals_[words[i]];
    if (!moved) removal.location = Location::of_word(words[i + 1]);
    const auto names = words.subspan(i + 3, words[i + 2]);
    removal.blocks.assign(names.begin(), names.end());
    i += 3 + names.size();
  }
}

void Partition::take_snapshot(const IndexSnapshot& header, const SnapshotParts& parts) {
  take_blocks(parts.blocks);
  stale_.assign(parts.stale.begin(), parts.stale.end());
  take_prefixes(parts.prefixes);
  next_version_ = std::max(next_version_, header.next_version);
  next_incarnation_ = std::max(next_incarnation_, header.next_incarnation);
}

// Takes the index and what the blocks hold from the snapshot. Returns false, having changed
// nothing, if it does not tell of what is there.
bool Partition::load_snapshot(const CloseRecord& close) {
  if (snapshot_bytes_ == 0 || index_.pm() != nullptr) return false;
  const bool ordered = index_.ordered() != nullptr;
  const auto& header = *pool_.at<IndexSnapshot>(root_.snapshot);
  if (header.generation != (close.generation | kind_of_index()) ||
      (!ordered && header.entries != close.records) || header.blocks != close.blocks) {
    return false;
  }
  const SnapshotParts parts(header);
  uint64_t there = 0;
  for (const Block& block : blocks_) there += block.state > State::kSpare ? 1 : 0;
  if (there != parts.blocks.size()) return false;
  uint64_t bytes = 0;
  for (const SnapshotBlock& one : parts.blocks) {
    if (one.slot >= blocks_.size()) return false;
    const Block& block = blocks_[one.slot];
    if (block.state <= State::kSpare || block.incarnation != one.incarnation ||
        (block.state == State::kClosed && block.bytes != one.bytes) ||
        one.bytes > payload_bytes()) {
      return false;
    }
    bytes += one.bytes;
  }
  if (bytes != close.bytes) return false;
  if (!index_.assign(parts.entries)) return false;
  for (const SnapshotBlock& one : parts.blocks) {
    if (blocks_[one.slot].state != State::kOverflow) blocks_[one.slot].bytes = one.bytes;
  }
  take_snapshot(header, parts);
  return true;
}

}  // namespace perdure::store
