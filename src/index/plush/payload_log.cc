#include "index/plush/payload_log.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "index/plush/root.h"
#include "pm/checksum.h"

namespace perdure::index::plush {

namespace {

constexpr uint64_t kChunkBytes = pm::kSegmentBytes;

// A pointer: epoch of the chunk (27 bits), offset of the entry / 8 (37 bits).
constexpr uint32_t kOffsetBits = 37;
constexpr uint64_t kPlaceSalt = 0x91ace;
// How many pages of these there may be.
constexpr uint64_t kPlacesSalt = 0x91ace5;
// The end of a chunk, in its header: a multiple of 8, and bit 0 if nothing may be appended to it.
constexpr uint64_t kEndSalt = 0xe4d;
constexpr uint64_t kEnded = 1;

uint64_t make_pointer(uint64_t offset, uint64_t epoch) { return epoch << kOffsetBits | offset / 8; }
uint64_t offset_of(uint64_t pointer) { return (pointer & ((uint64_t{1} << kOffsetBits) - 1)) * 8; }
uint64_t epoch_of_pointer(uint64_t pointer) { return pointer >> kOffsetBits; }

}  // namespace

PayloadLog::PayloadLog(pm::PoolImpl& pool, Root& root, uint32_t partitions)
    : pool_(pool),
      root_(root),
      partitions_(partitions),
      segments_bytes_((pool.segments_max() + 1) * sizeof(SegmentState)) {
  void* mapped = ::mmap(nullptr, segments_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  segments_ = static_cast<SegmentState*>(mapped);
}

PayloadLog::~PayloadLog() { ::munmap(segments_, segments_bytes_); }

PayloadHead& PayloadLog::head(uint32_t partition) const {
  return pool_.at<PayloadHead>(root_.payload_heads)[partition];
}

uint64_t PayloadLog::segment_of(uint64_t offset) const {
  return (offset - pool_.header().data_offset) / pm::kSegmentBytes;
}

uint64_t PayloadLog::entry_bytes(uint64_t key_bytes, uint64_t value_bytes) {
  return (sizeof(PayloadEntry) + key_bytes + value_bytes + 7) & ~uint64_t{7};
}

// Of one entry in one use of its place by one table: neither a changed bit nor another pointer
// passes, nor what another table left in the place, whose epochs are its own.
uint64_t PayloadLog::checksum(const View& view, uint64_t pointer) const {
  const uint64_t words[2] = {view.key.size() << 32 | view.value.size(), pool_.offset_of(&root_)};
  return pm::checksum64(view.key.data(), view.key.size() + view.value.size(),
                        pointer ^ pm::checksum64(words, sizeof words));
}

// ---- epochs

uint64_t PayloadLog::place_word(uint64_t segment, uint64_t epoch) {
  return pm::seal_word(epoch, kPlaceSalt + (segment << 20));
}

uint64_t PayloadLog::places_word(uint64_t pages) { return pm::seal_word(pages, kPlacesSalt); }

uint64_t PayloadLog::places_word(const pm::PoolImpl& pool) {
  const uint64_t pages = place_pages(pool);
  return pages == pages_for(pool.map().first_segments()) ? 0 : places_word(pages);
}

uint64_t PayloadLog::place_pages(const pm::PoolImpl& pool, const Root& root) {
  const uint64_t word = pm::load_acquire(root.places_word);
  uint64_t pages = 0;
  if (word == 0) return pages_for(pool.map().first_segments());
  // Of a damaged pool the capacity may not be known.
  if (!pm::unseal_word(word, kPlacesSalt, pages) ||
      (pages > place_pages(pool) && !pool.lenient())) {
    pool.throw_corrupt("a table's count of its pages of places is damaged");
  }
  return pages;
}

uint64_t* PayloadLog::place(uint64_t segment) const {
  const auto held = hold_places();
  if (segment / PlacePage::kSegments >= place_pages(pool_, root_)) [[unlikely]]
    return nullptr;
  const uint64_t page = pm::load_acquire(page_link(segment));
  if (page == 0) return nullptr;
  return &pool_.follow<PlacePage>(page)->words[segment % PlacePage::kSegments];
}

void PayloadLog::extend_places() {
  const std::lock_guard lock(pages_mutex_);
  plush::extend_places(pool_, root_, places_mutex_);
}

// A crash leaves an empty page that is linked, or none, by the intent. No word in it counts before
// that.
void PayloadLog::make_page(uint64_t segment, bool reclaim) {
  const std::lock_guard lock(pages_mutex_);
  // When the table was opened in the raised pool there may have been no room yet.
  const auto is_short = [&] { return segment / PlacePage::kSegments >= place_pages(pool_, root_); };
  if (is_short()) plush::extend_places(pool_, root_, places_mutex_);
  if (is_short()) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: the pool's capacity was raised, and it has no room for what this "
                            "table keeps of each segment; nothing was changed: delete records",
                            pool_.mapping().path()));
  }
  uint64_t& link = page_link(segment);
  if (link != 0) return;
  pm::Heap::Txn txn(pool_.heap(), reclaim);
  const uint64_t page = txn.allocate(sizeof(PlacePage));
  std::memset(pool_.at<char>(page), 0, sizeof(PlacePage));
  pool_.memory().flush(pool_.at<char>(page), sizeof(PlacePage));
  // The empty page and the intent, before the link.
  txn.publish(page, link);
}

uint64_t PayloadLog::last_epoch(uint64_t offset) const {
  const uint64_t segment = segment_of(offset);
  const uint64_t* place = this->place(segment);
  const uint64_t word = place == nullptr ? 0 : *place;
  uint64_t epoch = 0;
  if (word != 0 && (!pm::unseal_word(word, kPlaceSalt + (segment << 20), epoch) || epoch == 0 ||
                    epoch > kEpochMax)) {
    pool_.throw_corrupt("a table's count of the uses of a place is damaged");
  }
  return epoch;
}

// Nobody else uses the place: its block has just been allocated. Flushed; durable before the chunk
// is linked, and so before anything points to it.
uint64_t PayloadLog::next_epoch(uint64_t offset) const {
  // The largest one is given out again only if a crash came before the link: remove_chunk() keeps
  // it.
  const uint64_t epoch = std::min(last_epoch(offset) + 1, kEpochMax);
  const uint64_t segment = segment_of(offset);
  uint64_t& word = *place(segment);
  pm::store_release(word, place_word(segment, epoch));
  pool_.memory().flush(&word, sizeof word);
  return epoch;
}

// ---- ends

void PayloadLog::note_end(Chunk& chunk, bool to_be_continued) const {
  auto* header = pool_.at<PayloadChunk>(chunk.offset);
  const uint64_t end = chunk.used | (to_be_continued ? 0 : kEnded);
  pm::store_release(header->end, pm::seal_word(end, kEndSalt + (header->epoch << 12)));
  pool_.memory().flush(&header->end, sizeof header->end);
  chunk.noted = true;
}

// Each chunk that is added comes after this, so only the last one and the open one may lack the
// note.
void PayloadLog::note_ends(uint32_t partition, bool open_too, bool to_be_continued) {
  auto& [chunks, open, unflushed] = partitions_[partition];
  const auto lacks = [&](size_t i) {
    return i < chunks.size() && !chunks[i].noted && (i != open || open_too);
  };
  const size_t last = chunks.size() - 1;
  if (!lacks(last) && !lacks(open)) return;
  pool_.memory().fence();  // the entries, before the word that says that they are whole
  for (const size_t i : {last, open}) {
    if (lacks(i)) note_end(chunks[i], to_be_continued && i == open);
  }
}

void PayloadLog::close(uint32_t partition) {
  settle(partition);
  note_ends(partition, true, true);
}

void PayloadLog::add_chunk(uint32_t partition, uint64_t bytes, bool reclaim) {
  const pm::Memory& memory = pool_.memory();
  settle(partition);  // the open chunk may be left for the new one
  // All that may lack memory, before the link: a chunk that nobody here knows would be lost with
  // the one before it.
  std::vector<Chunk>& chunks = partitions_[partition].chunks;
  if (chunks.size() == chunks.capacity()) chunks.reserve(2 * chunks.size() + 1);
  note_ends(partition, bytes == kChunkBytes, false);
  pm::Heap::TxnIfNeeded begun;
  uint64_t offset = begun.begin(pool_.heap(), reclaim).allocate(bytes);
  while (place(segment_of(offset)) == nullptr) {
    begun.reset();  // who waits for the page must not hold a lane of the heap
    make_page(segment_of(offset), reclaim);
    offset = begun.begin(pool_.heap(), reclaim).allocate(bytes);
  }
  pm::Heap::Txn& txn = *begun.get();
  const uint64_t epoch = next_epoch(offset);
  auto* chunk = pool_.at<PayloadChunk>(offset);
  *chunk = PayloadChunk{};
  chunk->next = head(partition).chunk;
  chunk->epoch = epoch;
  chunk->bytes = pm::Heap::block_bytes(bytes);
  // Recovery walks the entries until one is not whole; an old one must not be taken for new.
  std::memset(chunk + 1, 0, sizeof(PayloadEntry));
  memory.flush(chunk, sizeof(PayloadChunk) + sizeof(PayloadEntry));
  // The chunk, its epoch and the intent, before the link.
  txn.publish(offset, head(partition).chunk);
  state_of(offset).garbage.store(0, std::memory_order_relaxed);
  pm::publish(state_of(offset).epoch, static_cast<uint32_t>(epoch));
  chunks.push_back({.offset = offset,
                    .bytes = chunk->bytes,
                    .used = sizeof(PayloadChunk),
                    .counted = true,
                    .noted = false});
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
  if (chunk.noted) [[unlikely]] {
    auto* header = pool_.at<PayloadChunk>(chunk.offset);
    pm::store_release(header->end, uint64_t{0});
    pool_.memory().persist(&header->end, sizeof header->end);  // before what is behind that end
    chunk.noted = false;
  }
  const uint64_t offset = chunk.offset + chunk.used;
  const uint64_t epoch = pool_.at<PayloadChunk>(chunk.offset)->epoch;
  auto* entry = pool_.at<PayloadEntry>(offset);
  auto* target = reinterpret_cast<char*>(entry + 1);
  std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), target));
  const uint64_t end = sizeof(PayloadEntry) + key.size() + value.size();
  std::memset(reinterpret_cast<char*>(entry) + end, 0, bytes - end);
  entry->key_bytes = static_cast<uint32_t>(key.size());
  entry->value_bytes = static_cast<uint32_t>(value.size());
  const uint64_t pointer = make_pointer(offset, epoch);
  entry->checksum = checksum({{target, key.size()}, {target + key.size(), value.size()}}, pointer);
  if (later) {
    if (unflushed == 0) unflushed = chunk.used;
  } else {
    pool_.memory().flush(entry, bytes);
    // A chunk of its own is none that settle() knows.
    if (flush == Flush::kLater) pool_.memory().fence();
  }
  chunk.used += bytes;
  return pointer;
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

bool PayloadLog::alive(uint64_t pointer) const {
  const uint64_t offset = offset_of(pointer);
  if (offset < pool_.header().data_offset || offset >= pool_.end_offset()) return false;
  const uint64_t epoch = epoch_of_pointer(pointer);
  return epoch != 0 && pm::acquire(state_of(offset).epoch) == epoch;
}

// The entry, if it is inside the pool, and inside its segment unless it has a chunk of its own.
bool PayloadLog::view_at(uint64_t pointer, View& view) const {
  const uint64_t offset = offset_of(pointer);
  const uint64_t within = offset % pm::kSegmentBytes;  // segments are aligned
  const uint64_t left =
      within == sizeof(PayloadChunk) ? pool_.end_offset() - offset : pm::kSegmentBytes - within;
  if (within < sizeof(PayloadChunk) || left < sizeof(PayloadEntry)) return false;
  const auto* entry = pool_.at<PayloadEntry>(offset);
  const uint64_t key_bytes = entry->key_bytes;
  const uint64_t value_bytes = entry->value_bytes;
  if (key_bytes + value_bytes > left - sizeof(PayloadEntry)) return false;
  const auto* data = reinterpret_cast<const char*>(entry + 1);
  view = {{data, key_bytes}, {data + key_bytes, value_bytes}};
  return true;
}

bool PayloadLog::is_whole(uint64_t pointer, const View& view) const {
  return pool_.at<PayloadEntry>(offset_of(pointer))->checksum == checksum(view, pointer);
}

bool PayloadLog::read(uint64_t pointer, View& view) const {
  return alive(pointer) && view_at(pointer, view);
}

PayloadLog::View PayloadLog::read_pinned(uint64_t pointer) const {
  View view;
  if (!view_at(pointer, view) || (pool_.verifies_payload() && !is_whole(pointer, view)))
      [[unlikely]] {
    pool_.throw_corrupt(fmt::format(
        "the payload at offset {} is damaged: its checksum does not hold", offset_of(pointer)));
  }
  return view;
}

bool PayloadLog::verify(uint64_t pointer) const {
  View view;
  return read(pointer, view) && is_whole(pointer, view);
}

bool PayloadLog::may_be_torn(uint32_t partition, uint64_t pointer) const {
  if (!alive(pointer)) return false;
  const uint64_t start = offset_of(pointer) / pm::kSegmentBytes * pm::kSegmentBytes;
  return std::ranges::any_of(chunks(partition), [&](const Chunk& chunk) {
    // Noted or found just now: nothing that was acknowledged is behind an end.
    return chunk.offset == start && offset_of(pointer) >= start + chunk.used;
  });
}

void PayloadLog::write_back(uint64_t pointer) const {
  if (const uint64_t bytes = bytes_of(pointer); bytes != 0)
    pool_.memory().flush(pool_.at<char>(offset_of(pointer)), bytes);
}

uint64_t PayloadLog::bytes_of(uint64_t pointer) const {
  View view;
  return read(pointer, view) ? entry_bytes(view.key.size(), view.value.size()) : 0;
}

void PayloadLog::note_garbage(uint64_t pointer, Part part) {
  View view;
  if (!read(pointer, view)) return;
  const uint64_t all = entry_bytes(view.key.size(), view.value.size());
  const uint64_t value = view.value.size();
  const uint64_t bytes = part == Part::kAll ? all : part == Part::kValue ? value : all - value;
  state_of(offset_of(pointer)).garbage.fetch_add(static_cast<uint32_t>(bytes));
}

uint64_t PayloadLog::garbage_bytes_of(const Chunk& chunk) const {
  return uint64_t{state_of(chunk.offset).garbage.load(std::memory_order_relaxed)};
}

void PayloadLog::set_garbage(Chunk& chunk, uint64_t bytes) {
  chunk.counted = true;
  state_of(chunk.offset).garbage.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
}

void PayloadLog::throw_damaged(uint32_t partition, uint64_t offset) const {
  throw pool_.damaged(
      Error(ErrorCode::kCorrupt,
            fmt::format("{}: the payload log of partition {} is damaged at offset {}; restore "
                        "the file from a backup",
                        pool_.mapping().path(), partition, offset)));
}

void PayloadLog::recover(uint32_t partition) {
  auto& [chunks, open, unflushed] = partitions_[partition];
  for (uint64_t offset = head(partition).chunk; offset != 0;) {
    const bool inside = offset % pm::kSegmentBytes == 0 && offset >= pool_.header().data_offset &&
                        offset < pool_.end_offset();
    const auto* chunk = pool_.at<PayloadChunk>(inside ? offset : 0);
    if (!inside || !pool_.heap().is_allocated(offset, chunk->bytes) ||
        chunk->bytes != pm::Heap::block_bytes(chunk->bytes) ||
        chunk->bytes > pool_.end_offset() - offset || chunk->epoch == 0 ||
        chunk->epoch != last_epoch(offset)) {
      throw_damaged(partition, offset);
    }
    // A place can have one chunk only: this ends a walk in circles, too.
    if (state_of(offset).epoch.exchange(static_cast<uint32_t>(chunk->epoch),
                                        std::memory_order_acq_rel) != 0) {
      throw_damaged(partition, offset);
    }
    chunks.push_back({.offset = offset,
                      .bytes = chunk->bytes,
                      .used = chunk->bytes,
                      .counted = false,
                      .noted = false});
    offset = chunk->next;
  }
  std::reverse(chunks.begin(), chunks.end());
  open = chunks.size();
  bool found = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    bool continues = false;
    find_end(chunks[i], continues);
    if (continues && chunks[i].bytes == kChunkBytes) open = i;
    found = found || chunks[i].found;
  }
  if (!found || pool_.read_only()) return;
  // What was found whole, before the word that says so. A process that died may have left the last
  // entries in the caches only: a power failure between their note and them would make damage of
  // what is torn.
  pool_.memory().fence();
  for (Chunk& chunk : chunks) {
    // Behind this end there may be whole entries that nothing leads to. No new one may come to
    // stand before them, or in their place and be taken for them.
    if (chunk.found) note_end(chunk, false);
  }
  pool_.memory().fence();  // the notes, before entries elsewhere that need none of this again
}

// `continues`: entries may be appended. Of an end that is found the entries before it are flushed.
void PayloadLog::find_end(Chunk& chunk, bool& continues) const {
  const auto* header = pool_.at<PayloadChunk>(chunk.offset);
  if (header->end != 0) {
    uint64_t end = 0;
    chunk.noted = true;
    if (!pm::unseal_word(header->end, kEndSalt + (header->epoch << 12), end) ||
        (end & ~kEnded) % 8 != 0 || end < sizeof(PayloadChunk) || end > (chunk.bytes | kEnded)) {
      chunk.kept = true;  // its entries can be read, but nobody knows which ones there are
      return;
    }
    chunk.used = end & ~kEnded;
    continues = (end & kEnded) == 0;
    if (header->epoch == kEpochMax && end == (sizeof(PayloadChunk) | kEnded)) {  // used up
      chunk.kept = true;
      state_of(chunk.offset).epoch.store(0, std::memory_order_release);
    }
    return;
  }
  chunk.found = true;
  chunk.used = sizeof(PayloadChunk);
  View view;
  while (whole_entry(chunk, header->epoch, chunk.used, chunk.bytes, view)) {
    chunk.used += entry_bytes(view.key.size(), view.value.size());
  }
  if (!pool_.read_only()) pool_.memory().flush(pool_.at<char>(chunk.offset), chunk.used);
}

bool PayloadLog::whole_entry(const Chunk& chunk, uint64_t epoch, uint64_t at, uint64_t limit,
                             View& view) const {
  if (at + sizeof(PayloadEntry) > limit) return false;
  const uint64_t pointer = make_pointer(chunk.offset + at, epoch);
  return view_at(pointer, view) && at + entry_bytes(view.key.size(), view.value.size()) <= limit &&
         is_whole(pointer, view);
}

bool PayloadLog::visit_entries(
    const Chunk& chunk, const std::function<void(uint64_t pointer, const View&)>& visit) const {
  const uint64_t epoch = pool_.at<PayloadChunk>(chunk.offset)->epoch;
  for (uint64_t at = sizeof(PayloadChunk); at < chunk.used;) {
    View view;
    if (!whole_entry(chunk, epoch, at, chunk.used, view)) return false;
    visit(make_pointer(chunk.offset + at, epoch), view);
    at += entry_bytes(view.key.size(), view.value.size());
  }
  return true;
}

void PayloadLog::remove_chunk(uint32_t partition, size_t index) {
  const pm::Memory& memory = pool_.memory();
  auto& [chunks, open, unflushed] = partitions_[partition];
  const Chunk victim = chunks[index];
  if (pool_.at<PayloadChunk>(victim.offset)->epoch == kEpochMax) {
    // Its place is used up: another chunk there would have an epoch that pointers had before.
    Chunk& spent = chunks[index];
    spent.used = sizeof(PayloadChunk);
    spent.kept = true;
    note_end(spent, false);
    memory.fence();  // the end, before readers take its pointers for dead
    state_of(spent.offset).epoch.store(0, std::memory_order_release);
    return set_garbage(spent, 0);
  }
  const bool newest = index + 1 == chunks.size();
  uint64_t& link =
      newest ? head(partition).chunk : pool_.at<PayloadChunk>(chunks[index + 1].offset)->next;
  pm::Heap::Txn txn(pool_.heap(), true);
  // The intent, before the unlink.
  txn.retire(victim.offset, link, pool_.at<PayloadChunk>(victim.offset)->next,
             pm::Heap::Txn::Release::kLater);
  pm::publish(state_of(victim.offset).epoch, 0U, "plush: chunk removed");
  chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(index));
  if (open == index) {
    open = chunks.size();
  } else if (open > index) {
    --open;
  }
  pm::Heap& heap = pool_.heap();
  epochs_.retire([&heap, at = victim.offset] { heap.release(at); });
}

}  // namespace perdure::index::plush
