// Removal by prefix: one record takes away all older ones of the partition whose keys begin so.
//
// It invalidates by version, not by naming each record. So it must stay, as a tombstone must, while
// a block is there in which it has invalidated a record: which blocks these are is known when it is
// written, and found again by recovery. Compaction carries it on until then.
#include <fmt/core.h>

#include <algorithm>
#include <new>

#include "store/partition.h"

namespace perdure::store {

PrefixMatches Partition::match_prefix(std::string_view prefix, uint64_t now_ms) const {
  require_usable();
  require_certain();
  PrefixMatches matches{.prefix = prefix};
  // Whether the record's key begins so.
  const auto meet = [&](uint64_t tag, Location location) {
    const RecordView record = view_at(location);
    require_intact(location, record);
    if (!key_of(record).starts_with(prefix)) return false;
    matches.records.emplace_back(tag, location);
    matches.blocks.push_back(blocks_[location.slot()].incarnation);
    if (!has_expired(record, now_ms)) ++matches.present;
    // Neighbours of an index mostly stand in other blocks: now and then what is there twice goes.
    constexpr size_t kMany = 4096;
    if (matches.blocks.size() % kMany == 0) {
      std::ranges::sort(matches.blocks);
      const auto twice = std::ranges::unique(matches.blocks);
      matches.blocks.erase(twice.begin(), twice.end());
    }
    return true;
  };
  if (const OrderedIndex* ordered = index_.ordered(); ordered != nullptr) {
    OrderedIndex::Position position = ordered->seek(prefix, false);
    for (Location location; ordered->next(position, &location);) {
      if (!meet(0, location)) break;
    }
  } else {
    if (index_.pm() != nullptr) {
      for_blocks(
          [&](const RecordView&, Location location, uint64_t hash) { meet(hash, location); });
    } else {
      index_.hash().for_all([&](uint64_t tag, Location location) { meet(tag, location); });
    }
  }
  std::ranges::sort(matches.blocks);
  const auto twice = std::ranges::unique(matches.blocks);
  matches.blocks.erase(twice.begin(), twice.end());
  return matches;
}

void Partition::prepare_prefix(PrefixMatches& matches, uint64_t now_ms, uint32_t named) {
  pool_.require_writable();
  now_ms_ = now_ms;
  uint64_t bytes = record_bytes(kRemoval | kPrefix, matches.prefix.size(), 0);
  if (named > 0) bytes += record_bytes(kTombstone, 0, named * sizeof(BatchPart));
  if (matches.prefix.size() > payload_bytes() / 4 || bytes > payload_bytes()) {
    throw Error(
        ErrorCode::kTooLarge,
        fmt::format("removal by a prefix of {} bytes in {} partitions takes a record of {}; the "
                    "prefix may have {}, the record {} (block_bytes less {})",
                    matches.prefix.size(), std::max(named, 1U), bytes, payload_bytes() / 4,
                    payload_bytes(), sizeof(BlockHeader)));
  }
  const uint64_t moved = moved_bytes_;
  const uint64_t there = index_.size();
  make_room(head_, bytes, Purpose::kRemoval);
  if (moved_bytes_ != moved || index_.size() != there) {  // compaction has moved records
    matches = match_prefix(matches.prefix, now_ms);
  }
  reserve_garbage(matches.records.size());
  index_.reserve_changes(matches.records.size());
  prefix_removals_[next_version_].blocks = matches.blocks;
}

void Partition::write_prefix(const PrefixMatches& matches, std::span<const BatchPart> parts) {
  RecordParts record{
      .flags = kRemoval | kPrefix, .version = logged_ = next_version_++, .key = matches.prefix};
  if (!parts.empty()) record.flags |= kGroupGoesOn;
  prefix_removals_[record.version].location = append(head_, record);
  written_since_step_ += record.bytes();
  checkpoint_now_ = wants_snapshot_ = true;  // to find again what it removes would take long
  if (!parts.empty()) append_mark(parts);
  for (const auto& [tag, location] : matches.records) {
    const RecordView old = view_at(location);
    const uint64_t entry = index_.find_place(tag, key_of(old), location);
    if (entry == PartitionIndex::kNone) continue;
    forget(old, location, record.version);
    index_.erase(entry);
    try {
      index_.tidy();
    } catch (const std::bad_alloc&) {
      // It takes more memory than it must, for a while.
    }
  }
}

bool Partition::prefix_is_needed(const RecordView& record, Location here) const {
  if (!record.has(kPrefix)) return false;
  const auto found = prefix_removals_.find(record.version);
  if (found == prefix_removals_.end() || found->second.location != here) return false;
  // What it invalidates in its own block goes with it.
  const uint64_t own = blocks_[here.slot()].incarnation;
  return std::ranges::any_of(found->second.blocks,
                             [&](uint64_t block) { return block != own && exists(block); });
}

void Partition::compact_prefix(const RecordView& record, Location here) {
  const auto found = prefix_removals_.find(record.version);
  if (!prefix_is_needed(record, here)) {
    if (found != prefix_removals_.end() && found->second.location == here) {
      prefix_removals_.erase(found);
    }
    return;
  }
  const uint64_t own = blocks_[here.slot()].incarnation;
  std::erase_if(found->second.blocks,
                [&](uint64_t block) { return block == own || !exists(block); });
  found->second.location =
      append_moved({.flags = kRemoval | kPrefix, .version = record.version, .key = record.key});
}

}  // namespace perdure::store
