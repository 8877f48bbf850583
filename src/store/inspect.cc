// Looking at a whole partition: verification, statistics.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "pm/checksum.h"
#include "store/hash.h"
#include "store/partition.h"
#include "store/recovery_scan.h"

namespace perdure::store {

uint64_t Partition::check(const Report& report) const {
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
  for (size_t place = 0; place < std::size(root_.snapshots); ++place) {
    if (recent_bytes_[place] != 0) owners.meet(root_.snapshots[place], recent_bytes_[place]);
  }
  if (has_checkpoint()) owners.meet(root_.checkpoint, checkpoint_bytes_);
  uint64_t live = 0;
  uint64_t records = 0;
  bool missing = false;                         // fewer count than should
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
    uint64_t expiring = 0;  // of that, what expires some time
    bool all_read = true;
    try {
      for (uint64_t at = sizeof(BlockHeader); at < sizeof(BlockHeader) + block.bytes;) {
        const Location here(slot, at);
        const RecordView record = view_at(here);
        require_intact(here, record);
        at += record.bytes;
        uint64_t entry = 0;
        if (find_saved(record, here) != nullptr) {
          block_live += record.bytes;
          if (record.has(kExpires)) expiring += record.bytes;
          if (record.has(kOverflow)) ++owned[record.overflow.slot];
          continue;
        }
        RecordView found;
        try {
          if (!counts(record, here, &entry)) continue;
          ++records;
          block_live += record.bytes;
          if (record.has(kExpires)) expiring += record.bytes;
          if (record.has(kOverflow)) {
            ++owned[record.overflow.slot];
            if (blocks_[record.overflow.slot].owner != here) {
              fail(
                  fmt::format("block {} of a long value names another record than the one at {:#x}",
                              record.overflow.slot, pool_.offset_of(text_at(here))));
            }
          }
          const std::string_view key = key_of(record);
          if (find(hash_of(key), key, found) == entry) continue;
        } catch (const Error& error) {
          if (index_.pm() == nullptr) throw;
          all_read = false;
          fail(fmt::format(
              "whether the record of {} at {:#x} counts the index in PM does not tell: {}",
              in_words(key_of(record)), pool_.offset_of(text_at(here)), error.what()));
          continue;
        }
        fail(fmt::format("a key has two records, of versions {} and {}", record.version,
                         found.version));
      }
    } catch (const Error& error) {
      ++violations;
      report(error.what());
      continue;
    }
    missing = missing || block_live != block.live;
    if (block_live != block.live && all_read) {
      if (index_.pm() != nullptr && accounts_exact_) index_.pm()->note_lost();
      fail(fmt::format("block {} has {} bytes that count, not {}", slot, block_live, block.live));
    }
    if (block_live == block.live && all_read && expiring != block.expiring) {
      fail(fmt::format("of block {} {} bytes expire, not {}", slot, expiring, block.expiring));
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
  if (index_.pm() != nullptr && missing) violations += name_lost(report);
  if (violations == 0 && (records != index_.size() || live != live_bytes_)) {
    fail(fmt::format("{} records of {} bytes count; the index has {} of {}", records, live,
                     index_.size(), live_bytes_));
  }
  return violations;
}

// The index in PM has fewer records than the log: tells which. A record counts unless another one
// says that it does not, or it is the origin of a copy. Returns how many it named.
uint64_t Partition::name_lost(const Report& report) const {
  Scan scan;
  std::vector<Location> puts;
  const auto visit = [&](Location here, const RecordView& record) {
    if (record.has(kSupersedes)) scan.supersede(record.superseded.version, 0);
    if (record.has(kPrefix)) {
      uint64_t& last = scan.prefixes[record.key.size()][record.key];
      last = std::max(last, record.version);
    }
    if (record.is_put() && (!record.has(kOverflow) || has_overflow(record))) puts.push_back(here);
  };
  for (uint32_t slot = 0; slot < blocks_.size(); ++slot) {
    const Block& block = blocks_[slot];
    if (block.state != State::kOpen && block.state != State::kClosed) continue;
    RecordView record;
    const uint64_t end = sizeof(BlockHeader) + block.bytes;
    for (uint64_t at = sizeof(BlockHeader); is_record(block, at, end, record); at += record.bytes) {
      visit({slot, at}, record);
    }
  }
  uint64_t named = 0;
  for (const Location here : puts) {
    const RecordView record = view_at(here);
    const std::string_view key = key_of(record);
    if (scan.is_superseded(record.version) || scan.removal_of(key, record.version) != 0) continue;
    const auto is_it = [&](Location other) { return view_at(other).version == record.version; };
    try {
      if (index_.find(hash_of(key), key, is_it) != PartitionIndex::kNone) continue;
    } catch (const Error&) {
      continue;  // it is damaged, not lost
    }
    report(fmt::format(
        "'{}', partition {}: the index in PM does not lead to the record of {} at {:#x}",
        config_.name, number_, in_words(key), pool_.offset_of(text_at(here))));
    ++named;
  }
  return named;
}

// What is wrong with an entry of the structure, or nothing.
std::string Partition::wrong_of_entry(uint64_t place, uint64_t word) const {
  if (!PmPartitionIndex::is_sound(place, word)) return "is damaged";
  const Location to = Location::of_word(word);
  if (to == Location()) return {};
  const bool is_there = to.slot() < blocks_.size() && to.offset() >= sizeof(BlockHeader) &&
                        to.offset() < sizeof(BlockHeader) + blocks_[to.slot()].bytes;
  if (!is_there ||
      (blocks_[to.slot()].state != State::kOpen && blocks_[to.slot()].state != State::kClosed)) {
    return "leads to no record";
  }
  const RecordView record = view_at(to);
  require_intact(to, record);
  uint64_t entry = PartitionIndex::kNone;
  if (counts(record, to, &entry) && entry == place) return {};
  return fmt::format("leads to the record at {:#x}, which it does not belong to",
                     pool_.offset_of(text_at(to)));
}

uint64_t Partition::check_entries(std::span<const std::pair<uint64_t, uint64_t>> entries,
                                  const Report& report) const {
  const PmPartitionIndex& index = *index_.pm();
  uint64_t violations = 0;
  const auto fail = [&](uint64_t place, const std::string& what) {
    ++violations;
    report(fmt::format("'{}', partition {}: the entry {:#x} of the index in PM {}", config_.name,
                       number_, place, what));
  };
  for (const auto& [place, word] : entries) {
    try {
      // Whom nobody finds leads nobody astray: it is what is left of an entry whose record is named
      // as missing.
      if (index.is_overruled(place) || !index.is_found(place)) continue;
      const std::string wrong = wrong_of_entry(place, word);
      if (!wrong.empty()) fail(place, wrong);
    } catch (const Error& error) {
      ++violations;
      report(error.what());
    }
  }
  try {
    index.for_untrue([&](uint64_t place) { fail(place, "is not what it was told"); });
  } catch (const Error& error) {
    ++violations;
    report(error.what());
  }
  return violations;
}

void Partition::visit_blocks(const index::VisitOwned& visit) const {
  const index::VisitBlock meet(pool_, visit);
  for (const uint64_t page : pages_) meet(page, sizeof(TablePage));
  if (snapshot_bytes_ != 0) meet(root_.snapshot, snapshot_bytes_);
  for (size_t place = 0; place < std::size(root_.snapshots); ++place) {
    if (recent_bytes_[place] != 0) meet(root_.snapshots[place], recent_bytes_[place]);
  }
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
  out.snapshots_written = snapshots_written_;
  out.snapshot_bytes = snapshot_bytes_ + recent_bytes_[0] + recent_bytes_[1];
  out.checkpoints_read = checkpoints_read_;
  out.checkpoints = checkpoints_;
  out.log_kept_bytes = kept_bytes();
  out.log_given_up_blocks = log_given_up_;
  out.hits = hits_;
  out.misses = misses_;
  out.evicted_records = evicted_;
  out.dram_bytes += used_.capacity() * sizeof(uint64_t);
  for (const Block& block : blocks_) out.damaged_blocks += block.damaged ? 1 : 0;
  out.damaged_indexes = index_.is_damaged() ? 1 : 0;
  return out;
}

}  // namespace perdure::store
