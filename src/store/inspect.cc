// Looking at a whole partition: verification, statistics.
#include <fmt/core.h>

#include <algorithm>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/partition.h"

namespace perdure::store {

uint64_t Partition::check(const std::function<void(const std::string&)>& report) const {
  uint64_t violations = 0;
  const auto fail = [&](const std::string& what) {
    ++violations;
    report(fmt::format("'{}', partition {}: {}", config_.name, number_, what));
  };
  index::BlockOwners owners(pool_, config_.name, [&](const std::string& sentence) {
    ++violations;
    report(sentence);
  });
  for (const uint64_t page : pages_) owners.meet(page, sizeof(TablePage));
  if (snapshot_bytes_ != 0) owners.meet(root_.snapshot, snapshot_bytes_);
  if (has_checkpoint()) owners.meet(root_.checkpoint, checkpoint_bytes_);
  uint64_t live = 0;
  uint64_t records = 0;
  std::vector<uint32_t> owned(blocks_.size());  // overflow blocks: how many records refer to them
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if (block.state == State::kAbsent) continue;
    if (*entry_of(slot) != block.offset) fail(fmt::format("block {} is not in the table", slot));
    const bool overflow = block.state == State::kOverflow;
    owners.meet(block.offset, overflow ? sizeof(BlockHeader) + block.bytes : config_.block_bytes);
    const auto& header = *pool_.at<BlockHeader>(block.offset);
    if (block.state == State::kSpare) {
      if (header.incarnation != 0)
        fail(fmt::format("block {} is unused, and bears a number", slot));
      continue;
    }
    if (header.incarnation != block.incarnation || header.checksum != header_checksum(header)) {
      fail(fmt::format("block {} at {:#x} has a damaged header", slot, block.offset));
      continue;
    }
    if (overflow) {
      const char* text = pool_.at<char>(block.offset + sizeof(BlockHeader));
      if (header.content != pm::checksum64(text, block.bytes, seed_of(block.incarnation))) {
        fail(fmt::format("the checksum of the value at {:#x} does not hold", block.offset));
      }
      continue;
    }
    uint64_t block_live = 0;
    try {
      for (uint64_t at = sizeof(BlockHeader); at < sizeof(BlockHeader) + block.bytes;) {
        const Location here(slot, at);
        const RecordView record = view_at(here);
        require_intact(here, record);
        at += record.bytes;
        uint64_t entry = 0;
        if (find_saved(record, here) != nullptr) {
          block_live += record.bytes;
          if (record.has(kOverflow)) ++owned[record.overflow.slot];
          continue;
        }
        if (!counts(record, here, &entry)) continue;
        ++records;
        block_live += record.bytes;
        if (record.has(kOverflow)) ++owned[record.overflow.slot];
        RecordView found;
        const uint64_t hash = hash_of(key_of(record));
        if (find(hash, key_of(record), found) != entry) {
          fail(fmt::format("a key has two records, of versions {} and {}", record.version,
                           found.version));
        }
      }
    } catch (const Error& error) {
      ++violations;
      report(error.what());
      continue;
    }
    if (block_live != block.live) {
      fail(fmt::format("block {} has {} bytes that count, not {}", slot, block_live, block.live));
    }
    live += block_live;
  }
  for (const HeldOverflow& held : held_) ++owned[held.slot];
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    if (blocks_[slot].state == State::kOverflow && owned[slot] != 1 &&
        std::ranges::find(dead_overflow_, slot) == dead_overflow_.end() && !pool_.read_only() &&
        uncertain_below_ == 0) {
      fail(fmt::format("block {} of a long value has {} owners", slot, owned[slot]));
    }
  }
  if (violations == 0 && (records != index_.size() || live != live_bytes_)) {
    fail(fmt::format("{} records of {} bytes count; the index has {} of {}", records, live,
                     index_.size(), live_bytes_));
  }
  return violations;
}

void Partition::visit_blocks(const index::VisitOwned& visit) const {
  const index::VisitBlock meet(pool_, visit);
  for (const uint64_t page : pages_) meet(page, sizeof(TablePage));
  if (snapshot_bytes_ != 0) meet(root_.snapshot, snapshot_bytes_);
  if (has_checkpoint()) meet(root_.checkpoint, checkpoint_bytes_);
  for (const Block& block : blocks_) {
    if (block.state == State::kAbsent) continue;
    const bool overflow = block.state == State::kOverflow;
    meet(block.offset, overflow ? sizeof(BlockHeader) + block.bytes : config_.block_bytes);
  }
}

PartitionFigures Partition::statistics() const {
  PartitionFigures out;
  out.records = index_.size();
  out.live_bytes = live_bytes_ + overflow_bytes_;
  out.blocks = slots_.size();
  out.spare_blocks = spares_.size();
  visit_blocks([&](uint64_t, uint64_t bytes) { out.pool_bytes += bytes; });
  out.dram_bytes = index_.dram_bytes() + blocks_.capacity() * (sizeof(Block) + sizeof(uint64_t)) +
                   free_slots_.capacity() * sizeof(uint32_t) + slots_.size() * 32;
  out.compactions = compactions_;
  out.moved_bytes = moved_bytes_;
  out.recovered_records = recovered_;
  out.snapshots_read = snapshots_read_;
  out.checkpoints_read = checkpoints_read_;
  out.checkpoints = checkpoints_;
  out.log_kept_bytes = kept_bytes();
  out.log_given_up_blocks = log_given_up_;
  out.hits = hits_;
  out.misses = misses_;
  out.evicted_records = evicted_;
  out.dram_bytes += used_.capacity() * sizeof(uint64_t);
  for (const Block& block : blocks_) out.damaged_blocks += block.damaged ? 1 : 0;
  return out;
}

}  // namespace perdure::store
