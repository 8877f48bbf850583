#include "index/plush/payload_log.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "pm/checksum.h"

namespace perdure::index::plush {

namespace {

constexpr uint64_t kChunkBytes = pm::kSegmentBytes;

// A pointer: epoch of the chunk (27 bits), offset of the entry / 8 (37 bits).
constexpr uint32_t kOffsetBits = 37;
constexpr uint64_t kEpochLimitMask = (uint64_t{1} << 27) - 1;
constexpr uint64_t kEpochBatch = 1024;

uint64_t make_pointer(uint64_t offset, uint64_t epoch) { return epoch << kOffsetBits | offset / 8; }
uint64_t offset_of(uint64_t pointer) { return (pointer & ((uint64_t{1} << kOffsetBits) - 1)) * 8; }
uint64_t epoch_of_pointer(uint64_t pointer) { return pointer >> kOffsetBits; }

}  // namespace

PayloadLog::PayloadLog(pm::PoolImpl& pool, Root& root, uint32_t partitions)
    : pool_(pool),
      root_(root),
      partitions_(partitions),
      segments_bytes_((pool.segments_max() + 1) * sizeof(SegmentState)),
      epoch_next_(root.payload_epoch_limit + 1),
      epoch_limit_(root.payload_epoch_limit) {
  void* mapped = ::mmap(nullptr, segments_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  segments_ = static_cast<SegmentState*>(mapped);
}

PayloadLog::~PayloadLog() { ::munmap(segments_, segments_bytes_); }

PayloadHead& PayloadLog::head(uint32_t partition) const {
  return pool_.at<PayloadHead>(root_.payload_heads)[partition];
}

PayloadLog::SegmentState& PayloadLog::state_of(uint64_t offset) const {
  return segments_[(offset - pool_.header().data_offset) / pm::kSegmentBytes];
}

uint64_t PayloadLog::entry_bytes(uint64_t key_bytes, uint64_t value_bytes) {
  return (sizeof(PayloadEntry) + key_bytes + value_bytes + 7) & ~uint64_t{7};
}

uint64_t PayloadLog::checksum(const PayloadEntry& entry, uint64_t epoch) const {
  const uint64_t sizes = uint64_t{entry.key_bytes} << 32 | entry.value_bytes;
  return pm::checksum64(&entry + 1, uint64_t{entry.key_bytes} + entry.value_bytes,
                        epoch ^ pm::checksum64(&sizes, sizeof sizes));
}

uint64_t PayloadLog::next_epoch() {
  const std::lock_guard lock(epoch_mutex_);
  if (epoch_next_ > epoch_limit_) {
    epoch_limit_ = epoch_next_ + kEpochBatch;
    if (epoch_limit_ > kEpochLimitMask) {
      throw Error(
          ErrorCode::kPoolFull,
          fmt::format("{}: the payload log has used up its chunk epochs; dump the table and "
                      "load it into a new pool",
                      pool_.mapping().path()));
    }
    root_.payload_epoch_limit = epoch_limit_;
    // Before a chunk with one of these epochs: none may ever be given out twice.
    pool_.memory().persist(&root_.payload_epoch_limit, sizeof(uint64_t));
  }
  return epoch_next_++;
}

void PayloadLog::add_chunk(uint32_t partition, uint64_t bytes, bool reclaim) {
  const pm::Memory& memory = pool_.memory();
  settle(partition);  // the open chunk may be left for the new one
  pm::Heap::Txn txn(pool_.heap(), reclaim);
  const uint64_t offset = txn.allocate(bytes);
  const uint64_t epoch = next_epoch();
  auto* chunk = pool_.at<PayloadChunk>(offset);
  *chunk = PayloadChunk{};
  chunk->next = head(partition).chunk;
  chunk->epoch = epoch;
  chunk->bytes = pm::Heap::block_bytes(bytes);
  // Recovery walks the entries until one is not whole; an old one must not be taken for new.
  std::memset(chunk + 1, 0, sizeof(PayloadEntry));
  memory.flush(chunk, sizeof(PayloadChunk) + sizeof(PayloadEntry));
  txn.will_link(offset, &head(partition).chunk, pm::Link::kOffset);
  txn.prepare();
  memory.fence();  // the chunk and the intent, before the link
  pm::store_release(head(partition).chunk, offset);
  memory.flush(&head(partition).chunk, sizeof(uint64_t));
  txn.settle();
  memory.fence();
  txn.finish();
  state_of(offset).dead.store(0, std::memory_order_relaxed);
  state_of(offset).epoch.store(static_cast<uint32_t>(epoch), std::memory_order_release);
  partitions_[partition].chunks.push_back({offset, chunk->bytes, sizeof(PayloadChunk), true});
}

uint64_t PayloadLog::append(uint32_t partition, std::string_view key, std::string_view value,
                            Flush flush) {
  const uint64_t bytes = entry_bytes(key.size(), value.size());
  const bool reclaim = flush == Flush::kReclaim;
  auto& [chunks, open, unflushed] = partitions_[partition];
  size_t target_index = open;
  if (bytes > kChunkBytes - sizeof(PayloadChunk)) {
    add_chunk(partition, sizeof(PayloadChunk) + bytes, reclaim);
    target_index = chunks.size() - 1;
    if (open == target_index) open = chunks.size();
  } else if (open >= chunks.size() || chunks[open].used + bytes > chunks[open].bytes) {
    add_chunk(partition, kChunkBytes, reclaim);
    target_index = open = chunks.size() - 1;
  }
  Chunk& chunk = chunks[target_index];
  const bool later = flush == Flush::kLater && target_index == open;
  if (later) make_loose(chunk);
  const uint64_t offset = chunk.offset + chunk.used;
  const uint64_t epoch = pool_.at<PayloadChunk>(chunk.offset)->epoch;
  auto* entry = pool_.at<PayloadEntry>(offset);
  auto* target = reinterpret_cast<char*>(entry + 1);
  std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), target));
  const uint64_t end = sizeof(PayloadEntry) + key.size() + value.size();
  std::memset(reinterpret_cast<char*>(entry) + end, 0, bytes - end);
  entry->key_bytes = static_cast<uint32_t>(key.size());
  entry->value_bytes = static_cast<uint32_t>(value.size());
  entry->checksum = checksum(*entry, epoch);
  if (later) {
    if (unflushed == 0) unflushed = chunk.used;
  } else {
    pool_.memory().flush(entry, bytes);
    // A chunk of its own is none that settle() knows.
    if (flush == Flush::kLater) pool_.memory().fence();
  }
  chunk.used += bytes;
  return make_pointer(offset, epoch);
}

void PayloadLog::settle(uint32_t partition) {
  auto& [chunks, open, unflushed] = partitions_[partition];
  if (unflushed == 0) return;
  const Chunk& chunk = chunks[open];
  // All of it, in whatever order its entries are needed: a chunk is read up to the first entry that
  // is not whole, so no entry may be durable and needed before those in front of it are.
  pool_.memory().flush(pool_.at<char>(chunk.offset + unflushed), chunk.used - unflushed);
  pool_.memory().fence();  // payload, before whatever will lead to it
  unflushed = 0;
}

void PayloadLog::make_loose(const Chunk& chunk) const {
  auto* header = pool_.at<PayloadChunk>(chunk.offset);
  if (header->loose != 0) return;
  header->loose = 1;
  pool_.memory().persist(&header->loose, sizeof header->loose);  // before the first loose entry
}

bool PayloadLog::alive(uint64_t pointer) const {
  const uint64_t offset = offset_of(pointer);
  if (offset < pool_.header().data_offset || offset >= pool_.end_offset()) return false;
  return state_of(offset).epoch.load(std::memory_order_acquire) == epoch_of_pointer(pointer);
}

bool PayloadLog::read(uint64_t pointer, View& view) const {
  if (!alive(pointer)) return false;
  const uint64_t offset = offset_of(pointer);
  const uint64_t start = offset / pm::kSegmentBytes * pm::kSegmentBytes;  // segments are aligned
  const auto* chunk = pool_.at<PayloadChunk>(start);
  const auto* entry = pool_.at<PayloadEntry>(offset);
  const uint64_t end = offset - start + sizeof(PayloadEntry);
  const uint64_t bytes = uint64_t{entry->key_bytes} + entry->value_bytes;
  if (end + bytes > chunk->bytes) return false;
  view = read_pinned(pointer);
  return true;
}

PayloadLog::View PayloadLog::read_pinned(uint64_t pointer) const {
  const auto* entry = pool_.at<PayloadEntry>(offset_of(pointer));
  const auto* data = reinterpret_cast<const char*>(entry + 1);
  return {{data, entry->key_bytes}, {data + entry->key_bytes, entry->value_bytes}};
}

bool PayloadLog::verify(uint64_t pointer) const {
  View view;
  if (!read(pointer, view)) return false;
  const auto* entry = pool_.at<PayloadEntry>(offset_of(pointer));
  return entry->checksum == checksum(*entry, epoch_of_pointer(pointer));
}

uint64_t PayloadLog::bytes_of(uint64_t pointer) const {
  View view;
  return read(pointer, view) ? entry_bytes(view.key.size(), view.value.size()) : 0;
}

void PayloadLog::note_dead(uint64_t pointer, Part part) {
  View view;
  if (!read(pointer, view)) return;
  const uint64_t all = entry_bytes(view.key.size(), view.value.size());
  const uint64_t value = view.value.size();
  const uint64_t bytes = part == Part::kAll ? all : part == Part::kValue ? value : all - value;
  state_of(offset_of(pointer)).dead.fetch_add(static_cast<uint32_t>(bytes));
}

uint64_t PayloadLog::dead_bytes(const Chunk& chunk) const {
  return uint64_t{state_of(chunk.offset).dead.load(std::memory_order_relaxed)};
}

void PayloadLog::set_dead(Chunk& chunk, uint64_t bytes) {
  chunk.counted = true;
  state_of(chunk.offset).dead.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
}

void PayloadLog::recover(uint32_t partition) {
  auto& [chunks, open, unflushed] = partitions_[partition];
  for (uint64_t offset = head(partition).chunk; offset != 0;) {
    const bool inside = offset % pm::kSegmentBytes == 0 && offset >= pool_.header().data_offset &&
                        offset < pool_.end_offset();
    const auto* chunk = pool_.at<PayloadChunk>(inside ? offset : 0);
    if (!inside || !pool_.heap().is_allocated(offset, chunk->bytes) || chunk->epoch == 0 ||
        chunk->epoch > epoch_limit_ || chunks.size() > pool_.segments()) {
      throw Error(
          ErrorCode::kCorrupt,
          fmt::format("{}: the payload log of partition {} is damaged at offset {}; restore "
                      "the file from a backup",
                      pool_.mapping().path(), partition, offset));
    }
    state_of(offset).epoch.store(static_cast<uint32_t>(chunk->epoch), std::memory_order_release);
    chunks.push_back({offset, chunk->bytes, chunk->bytes, false});
    offset = chunk->next;
  }
  std::reverse(chunks.begin(), chunks.end());
  for (open = chunks.size(); open > 0 && chunks[open - 1].bytes != kChunkBytes;) --open;
  if (open-- == 0) {
    open = chunks.size();
    return;
  }
  Chunk& newest = chunks[open];
  if (pool_.at<PayloadChunk>(newest.offset)->loose != 0) {
    // Behind an entry that a crash tore there may be whole ones that nothing leads to. No new entry
    // may come to stand before them, or in their place and be taken for them.
    open = chunks.size();
    return;
  }
  newest.used = sizeof(PayloadChunk);
  const uint64_t epoch = pool_.at<PayloadChunk>(newest.offset)->epoch;
  while (newest.used + sizeof(PayloadEntry) <= newest.bytes) {
    const auto* entry = pool_.at<PayloadEntry>(newest.offset + newest.used);
    const uint64_t bytes = entry_bytes(entry->key_bytes, entry->value_bytes);
    if (newest.used + bytes > newest.bytes || entry->checksum != checksum(*entry, epoch)) break;
    newest.used += bytes;
  }
}

void PayloadLog::visit_entries(
    const Chunk& chunk, const std::function<void(uint64_t pointer, const View&)>& visit) const {
  const uint64_t epoch = pool_.at<PayloadChunk>(chunk.offset)->epoch;
  for (uint64_t at = sizeof(PayloadChunk); at + sizeof(PayloadEntry) <= chunk.used;) {
    const uint64_t pointer = make_pointer(chunk.offset + at, epoch);
    View view;
    if (!read(pointer, view)) return;
    const auto* entry = pool_.at<PayloadEntry>(chunk.offset + at);
    // A chunk that was full before this process is walked by checksums: its end was not noted.
    if (entry->checksum != checksum(*entry, epoch)) return;
    visit(pointer, view);
    at += entry_bytes(view.key.size(), view.value.size());
  }
}

void PayloadLog::remove_chunk(uint32_t partition, size_t index) {
  const pm::Memory& memory = pool_.memory();
  auto& [chunks, open, unflushed] = partitions_[partition];
  const Chunk victim = chunks[index];
  const bool newest = index + 1 == chunks.size();
  uint64_t& link =
      newest ? head(partition).chunk : pool_.at<PayloadChunk>(chunks[index + 1].offset)->next;
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(victim.offset, &link, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  txn.prepare();
  memory.fence();  // the intent, before the unlink
  pm::store_release(link, pool_.at<PayloadChunk>(victim.offset)->next);
  memory.flush(&link, sizeof link);
  txn.settle();
  memory.fence();
  txn.finish();
  state_of(victim.offset).epoch.store(0, std::memory_order_release);
  chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(index));
  if (open == index) {
    open = chunks.size();
  } else if (open > index) {
    --open;
  }
  pm::Heap& heap = pool_.heap();
  epochs_.retire([&heap, victim] { heap.release(victim.offset, victim.bytes); });
}

}  // namespace perdure::index::plush
