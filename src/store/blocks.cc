// The blocks of a partition: from the pool's heap, by way of the partition's table, and back.
#include <fmt/core.h>

#include <cstring>
#include <new>

#include "pm/checksum.h"
#include "store/partition.h"
#include "store/recent_snapshot.h"

namespace perdure::store {

uint64_t Partition::seed_of(uint64_t incarnation) const {
  return block_seed(config_.salt, number_, incarnation);
}

uint64_t Partition::header_checksum(const BlockHeader& header) const {
  return checksum_of(header, seed_of(header.incarnation));
}

uint64_t* Partition::entry_of(uint32_t slot) const {
  const uint64_t page = pages_[slot / TablePage::kEntries];
  return &pool_.at<TablePage>(page)->entries[slot % TablePage::kEntries];
}

uint32_t Partition::take_slot() {
  if (free_slots_.empty()) add_page();
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void Partition::add_page() {
  const uint64_t slots = (pages_.size() + 1) * TablePage::kEntries;
  if (slots > Location::kSlotsMax) {
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: partition {} of '{}' has all the blocks that it can have; make a "
                            "store of more partitions",
                            pool_.mapping().path(), number_, config_.name));
  }
  pages_.reserve(pages_.size() + 1);
  free_slots_.reserve(slots);
  blocks_.reserve(slots);
  sites_.reserve(slots);
  if (config_.evicts) used_.reserve(slots * use_words());
  if (index_.pm() != nullptr) emptied_blocks_.reserve(slots);
  uint64_t* link = pages_.empty() ? &root_.table : &pool_.at<TablePage>(pages_.back())->next;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t page = txn.allocate(sizeof(TablePage));
  std::memset(pool_.at<char>(page), 0, sizeof(TablePage));
  memory_.flush(pool_.at<char>(page), sizeof(TablePage));
  // An empty page and the intent, before the link.
  txn.publish(page, *link);
  pages_.push_back(page);
  blocks_.resize(slots);
  sites_.resize(slots);
  if (config_.evicts) used_.resize(slots * use_words());
  for (auto slot = static_cast<uint32_t>(slots); slot > slots - TablePage::kEntries; --slot) {
    free_slots_.push_back(slot - 1);
  }
}

// The block, whose header has been written, becomes the slot's. Durable on return.
void Partition::link_block(pm::Heap::Txn& txn, uint32_t slot, uint64_t offset) {
  uint64_t* entry = entry_of(slot);
  // The header, which says what the block is, and the intent, before the table leads to it.
  txn.publish(offset, *entry);
  sites_[slot].offset = offset;
}

// Versions and incarnations that have been given. Not flushed.
void Partition::store_floors() {
  pm::store_release(root_.version_floor, pm::seal_word(next_version_, kVersionSalt));
  pm::store_release(root_.incarnation_floor, pm::seal_word(next_incarnation_, kIncarnationSalt));
}

// Durable with the next fence.
void Partition::note_floors() {
  store_floors();
  memory_.flush(&root_, pm::kLineBytes);
  unfenced_ = true;
}

// The slot's block, in which nothing counts (durably), goes back to the heap. Durable on return.
void Partition::unlink_block(uint32_t slot) {
  uint64_t* entry = entry_of(slot);
  free_slots_.reserve(free_slots_.size() + 1);
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(*entry, entry, pm::Link::kOffset);
  note_floors();  // the block may be the only one that shows its incarnation
  txn.commit([&] {
    pm::store_release(*entry, uint64_t{0});
    memory_.flush(entry, sizeof *entry);
  });
  blocks_[slot] = {};
  sites_[slot] = {};
  free_slots_.push_back(slot);
}

// One block more that is unused. Throws kPoolFull, kNoSpace.
void Partition::add_spare(bool reclaim) {
  spares_.reserve(spares_.size() + 1);
  const uint32_t slot = take_slot();
  try {
    pm::Heap::Txn txn(pool_.heap(), reclaim);
    const uint64_t offset = txn.allocate(config_.block_bytes);
    auto* header = pool_.at<BlockHeader>(offset);
    header->incarnation = 0;
    memory_.flush(header, sizeof *header);
    link_block(txn, slot, offset);
    blocks_[slot] = {.offset = offset, .state = State::kSpare};
  } catch (...) {
    free_slots_.push_back(slot);  // in a pool that failed it matters no more
    throw;
  }
  spares_.push_back(slot);
}

// A block of its own for a long value, and the key if it is given. Durable on return; belongs to
// nobody until a record refers to it, and recovery frees such.
uint32_t Partition::add_overflow(std::string_view key, std::string_view value) {
  const uint32_t slot = take_slot();
  const uint64_t bytes = key.size() + value.size();
  try {
    slots_.reserve(slots_.size() + 1);
    unowned_.reserve(unowned_.size() + 1);
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t offset = txn.allocate(sizeof(BlockHeader) + bytes);
    char* text = pool_.at<char>(offset + sizeof(BlockHeader));
    if (!key.empty()) std::memcpy(text, key.data(), key.size());
    if (!value.empty()) std::memcpy(text + key.size(), value.data(), value.size());
    BlockHeader header{};
    header.incarnation = next_incarnation_++;
    header.partition = number_;
    header.kind = BlockKind::kOverflow;
    header.bytes = bytes;
    header.content = pm::checksum64(text, bytes, seed_of(header.incarnation));
    write_header(offset, header);
    memory_.flush(text, bytes);
    link_block(txn, slot, offset);
    blocks_[slot] = {.offset = offset,
                     .incarnation = header.incarnation,
                     .bytes = bytes,
                     .state = State::kOverflow};
  } catch (...) {
    free_slots_.push_back(slot);
    throw;
  }
  overflow_bytes_ += bytes;
  overflow_taken_ += pm::Heap::block_bytes(sizeof(BlockHeader) + bytes);
  return slot;
}

// Overflow blocks whose records no longer count, durably.
void Partition::free_dead_overflow() {
  dead_overflow_bytes_ = 0;
  while (!dead_overflow_.empty()) {
    const uint32_t slot = dead_overflow_.back();
    const uint64_t bytes = blocks_[slot].bytes;
    dead_overflow_.pop_back();
    try {
      unlink_block(slot);
    } catch (const std::bad_alloc&) {
      add_dead_overflow(slot);  // there is room for it; it is tried again
      throw;
    }
    overflow_bytes_ -= bytes;
    overflow_taken_ -= pm::Heap::block_bytes(sizeof(BlockHeader) + bytes);
  }
}

// Flushes. Within its line the incarnation comes last: before it is there, the rest does not count.
void Partition::write_header(uint64_t offset, const BlockHeader& header) const {
  auto* to = pool_.at<BlockHeader>(offset);
  to->end = 0;
  to->first_version = header.first_version;
  to->bytes = header.bytes;
  to->partition = header.partition;
  to->kind = header.kind;
  to->content = header.content;
  to->previous = header.previous;
  to->checksum = header_checksum(header);
  pm::store_release(to->incarnation, header.incarnation);
  memory_.flush(to, sizeof *to);
}

// Makes a spare block the head. Durable on return.
void Partition::open_block(Head& head) {
  count_expired();
  const uint32_t slot = spares_.back();
  BlockHeader header{};
  header.incarnation = next_incarnation_;
  header.first_version = next_version_;
  header.bytes = config_.block_bytes;
  header.partition = number_;
  header.kind = head.kind;
  slots_[header.incarnation] = slot;
  try {
    if (head.kind == BlockKind::kLog) begin_log_block(header, slot);
  } catch (...) {
    slots_.erase(header.incarnation);
    throw;
  }
  spares_.pop_back();
  ++next_incarnation_;
  Block& block = blocks_[slot];
  block = {.offset = block.offset,
           .incarnation = header.incarnation,
           .age = header.incarnation,
           .state = State::kOpen,
           .kept = head.kind == BlockKind::kLog};
  sites_[slot].seed = seed_of(header.incarnation);
  if (writing_ != nullptr) writing_->replace(slot);
  if (config_.evicts) std::fill_n(&used_[slot * use_words()], use_words(), 0);
  write_header(block.offset, header);
  // Before the first record: what the block held before is not to be read as this use's, nor may
  // new records stand under the header of the last use, whose end they would cross. And the end of
  // the block that was closed before.
  fence();
  head.slot = slot;
  head.position = sizeof(BlockHeader);
  if (&head == &moved_head_) flushed_to_ = head.position;
}

// Says where the head's records end. Durable with the next fence; until then, after a crash,
// recovery finds the same end, since all records are durable by then.
void Partition::close_block(Head& head) {
  if (head.slot == kNoSlot) return;
  if (unfenced_) fence();  // the records, before an end that says that they are all there
  Block& block = blocks_[head.slot];
  auto* header = pool_.at<BlockHeader>(block.offset);
  pm::store_release(header->end, pm::seal_word(head.position, block.incarnation));
  memory_.flush(header, sizeof *header);
  unfenced_ = true;
  block.state = State::kClosed;
  block.bytes = head.position - sizeof(BlockHeader);
  ++closed_blocks_;
  head.slot = kNoSlot;
  if (head.kind == BlockKind::kLog) mark_succeeded(header->previous);
  trim_log();
}

}  // namespace perdure::store
