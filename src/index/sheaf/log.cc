#include "index/sheaf/log.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "index/structure.h"
#include "perdure/error.h"
#include "pm/layout.h"

namespace perdure::index::sheaf {

namespace {

constexpr uint64_t kWordMask = ~uint64_t{0} >> 1;
constexpr uint64_t kLineWords = pm::kLineBytes / 8;

std::atomic<uint32_t> next_lane{0};
thread_local uint32_t own_lane = ~uint32_t{0};

}  // namespace

// Of the four lines of 256 bytes three hold eight records side by side, the last one holds one.
template <typename Content>
uint64_t Log<Content>::after(uint64_t position) {
  constexpr uint64_t kLastLine = kUnitBytes - pm::kLineBytes;
  const uint64_t unit = position / kUnitBytes * kUnitBytes;
  const uint64_t within = position - unit;
  if (within >= kLastLine) return unit + kUnitBytes;
  return within + 2 * kRecordBytes <= kLastLine ? position + kRecordBytes : unit + kLastLine;
}

template <typename Content>
Log<Content>::Log(pm::PoolImpl& pool, Root& root, const Promises& promises, Make make)
    : pool_(pool),
      memory_(pool.memory()),
      root_(root),
      chunk_bytes_(root.chunk_bytes),
      chunks_max_(root.chunks_max),
      nontemporal_(memory_.domain() == Domain::kLine && pm::prefers_nontemporal_lines()),
      promises_(promises),
      make_(std::move(make)) {}

template <typename Content>
void Log<Content>::format(const pm::Memory& memory, void* block, uint64_t chunk_bytes,
                          uint64_t chunk) {
  alignas(64) Header header[kHeaderBytes / sizeof(Header)] = {};
  header[0].use = pm::seal_word(0, salt_of(chunk));
  auto* home = static_cast<char*>(block);
  memory.copy_nontemporal(home, header, kHeaderBytes);
  write_zeros(memory, home + kHeaderBytes, chunk_bytes - kHeaderBytes);
}

// ---- opening

template <typename Content>
void Log<Content>::load() {
  for (uint64_t chunk = 0; chunk < chunks_max_ && link_of(chunk) != 0; ++chunk) {
    const uint64_t offset = link_of(chunk);
    uint64_t use = 0;
    if (!pool_.heap().is_allocated(offset, chunk_bytes_) ||
        (kBytes && offset % chunk_bytes_ != 0) ||
        !pm::unseal_word(pool_.at<Header>(offset)->use, salt_of(chunk), use)) {
      pool_.throw_corrupt("a log chunk is damaged");
    }
    states_.push_back({offset, use, 0});
    use_ = std::max(use_, use >> 1);
  }
  if (states_.size() < kChunksMin) pool_.throw_corrupt("the log table is damaged");
  if constexpr (!kBytes) unsettled_.resize(states_.size());
  std::vector<uint32_t> order(states_.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [this](uint32_t chunk) { return states_[chunk].use; });
  for (const uint32_t chunk : order) states_[chunk].end_era = era_++;
  left_.assign(order.begin(), order.end());
}

template <typename Content>
void Log<Content>::settle(std::span<const uint8_t> live) {
  free_.reserve(states_.size());
  if constexpr (!kBytes) settle_places();
  std::deque<uint32_t> left;
  for (const uint32_t chunk : left_) {
    if (live[chunk] != 0) {
      left.push_back(chunk);
    } else {
      free_.push_back(chunk);
    }
  }
  left_.swap(left);
}

template <typename Content>
void Log<Content>::settle_places() {
  // Gives words `from` to `to` of the places without a record the flag.
  const auto fix = [&](uint32_t from, uint32_t to) {
    for (uint64_t chunk = 0; chunk < states_.size(); ++chunk) {
      if (unsettled_[chunk] == 0) continue;
      const uint64_t flag = states_[chunk].use & 1;
      char* begin = pool_.at<char>(states_[chunk].offset);
      for_places([&](uint64_t at) {
        auto* words = reinterpret_cast<uint64_t*>(begin + at);
        if (is_valid(words, flag)) return;
        for (uint32_t i = from; i < to; ++i) {
          if (words[i] == flag) continue;
          pm::store_relaxed(words[i], flag);
          memory_.flush(&words[i], sizeof words[i]);
        }
      });
    }
  };
  if (std::ranges::find(unsettled_, 1) == unsettled_.end()) return;
  fix(2, 3);
  // A place whose last word has no payload is invalid whatever the others say. Without this fence
  // a crash could make a record of a torn one, which the replay after that crash would believe.
  memory_.fence();
  fix(0, 2);
  // Before any of the chunks is used again, whose records these words could complete.
  memory_.fence();
}

// ---- chunks

// One more chunk, unused and free. The caller holds the mutex.
template <typename Content>
void Log<Content>::make_chunk() {
  const uint64_t chunk = states_.size();
  states_.reserve(chunk + 1);  // all that may lack memory, before the link
  free_.reserve(chunk + 1);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t offset = txn.allocate(chunk_bytes_);
  format(memory_, pool_.at<char>(offset), chunk_bytes_, chunk);
  // The empty chunk and the intent, before the table leads to it.
  txn.publish(offset, link_of(chunk));
  states_.push_back({offset, 0, 0});
  free_.push_back(static_cast<uint32_t>(chunk));
}

// The same, if the pool has room.
template <typename Content>
bool Log<Content>::try_make_chunk() {
  if (promises_.is_scarce(chunk_bytes_)) return false;
  try {
    make_chunk();
    return true;
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
}

template <typename Content>
bool Log<Content>::waits_for_readers() const {
  const std::lock_guard lock(mutex_);
  return free_.empty() && read_ > 0;
}

template <typename Content>
bool Log<Content>::grow() {
  const std::lock_guard lock(mutex_);
  return !free_.empty() || (states_.size() < chunks_max_ && try_make_chunk());
}

template <typename Content>
uint32_t Log<Content>::take_chunk() {
  const std::lock_guard lock(mutex_);
  if (free_.empty() &&
      states_.size() < std::min(chunks_max_, allowed_.load(std::memory_order_relaxed))) {
    try_make_chunk();
  }
  if (free_.empty()) return kNone;
  const uint32_t chunk = free_.back();
  State& state = states_[chunk];
  auto* header = pool_.at<Header>(state.offset);
  const uint64_t use = (use_ + 1) << 1 | ((state.use & 1) ^ 1);
  pm::store_release(header->use, pm::seal_word(use, salt_of(chunk)));
  // The flag, before any record that is valid only under it.
  memory_.persist(header, sizeof *header);
  ++use_;
  state.use = use;
  free_.pop_back();
  note_free();
  return chunk;
}

// The caller holds the mutex.
template <typename Content>
void Log<Content>::note_free() {
  const bool may_grow =
      states_.size() < std::min(chunks_max_, allowed_.load(std::memory_order_relaxed));
  const bool few = free_.size() < std::min(kSpare, states_.size() / 16);
  short_.store(few && !may_grow && !left_.empty(), std::memory_order_relaxed);
}

template <typename Content>
bool Log<Content>::has_free_chunk() const {
  const std::lock_guard lock(mutex_);
  return !free_.empty();
}

template <typename Content>
bool Log<Content>::has_left_chunk() const {
  const std::lock_guard lock(mutex_);
  return !left_.empty();
}

template <typename Content>
bool Log<Content>::oldest(uint64_t& era) const {
  const std::lock_guard lock(mutex_);
  if (left_.empty()) return false;
  era = states_[left_.front()].end_era;
  return true;
}

template <typename Content>
void Log<Content>::free_oldest(pm::EpochManager& epochs) {
  uint32_t chunk = kNone;
  {
    const std::lock_guard lock(mutex_);
    chunk = left_.front();
    left_.pop_front();
    ++read_;
  }
  if constexpr (kBytes) {
    try {
      epochs.retire([this, chunk] { free_one(chunk); });
    } catch (const std::bad_alloc&) {
      // Another time. The caller learns of it: who waited for the chunk would do so for as long as
      // memory is short.
      const std::lock_guard lock(mutex_);
      left_.push_front(chunk);
      --read_;
      throw;
    }
  } else {
    free_one(chunk);
  }
}

template <typename Content>
void Log<Content>::free_one(uint32_t chunk) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(chunk);  // has room for all
  --read_;
  note_free();
}

// ---- lanes

template <typename Content>
uint64_t Log<Content>::most_bytes(std::span<const LogRecord> records) {
  if constexpr (kBytes) {
    // One record, and a line behind it that ends the chunk.
    return LogEntry::lines_for(sizeof(LogEntry) + 8 + records[0].key.size() +
                               (records[0].external ? 0 : records[0].value.size())) +
           pm::kLineBytes;
  } else {
    return records.size() * 30 + pm::kLineBytes;
  }
}

// Behind the last record of byte strings.
template <typename Content>
void Log<Content>::end(Lane& lane) const {
  alignas(pm::kLineBytes) char line[pm::kLineBytes] = {};
  auto& last = *reinterpret_cast<LogEntry*>(line);
  const uint64_t offset = pool_.offset_of(lane.current + lane.position);
  last.checksum = last.checksum_at(LogEntry::seed(root_.salt, lane.flag, offset));
  memory_.copy_nontemporal(lane.current + lane.position, line, sizeof line);
}

// All words of the chunk's rest get the flag of its use: see the crash argument. Of byte strings a
// record says that nothing follows: damage to the last one is then told from a torn one.
template <typename Content>
void Log<Content>::leave(Lane& lane) {
  if (lane.chunk == kNone) return;
  // Nothing is written to the chunk any more, also if what follows throws: a record torn among
  // these words, which have the flag of a valid one, could seem whole.
  bool flushed = false;
  if constexpr (kBytes) {
    flushed = lane.position < chunk_bytes_;
    if (flushed) end(lane);
    lane.position = chunk_bytes_;
  } else {
    const uint64_t from = std::exchange(lane.position, chunk_bytes_);
    for (uint64_t at = from; at + kRecordBytes <= chunk_bytes_; at = after(at)) {
      auto* words = reinterpret_cast<uint64_t*>(lane.current + at);
      for (uint32_t i = 0; i < 3; ++i) pm::store_relaxed(words[i], lane.flag);
      memory_.flush(words, kRecordBytes);
      flushed = true;
    }
  }
  // Before the chunk is used again, whose records could else be completed by these words.
  if (flushed) memory_.fence();
  const std::lock_guard lock(mutex_);
  left_.push_back(lane.chunk);
  states_[lane.chunk].end_era = era_.fetch_add(1, std::memory_order_acq_rel);
  lane.chunk = kNone;
}

template <typename Content>
bool Log<Content>::provide(Lane& lane) {
  leave(lane);
  const uint32_t chunk = take_chunk();
  if (chunk == kNone) return false;
  {
    const std::lock_guard lock(mutex_);
    lane.current = pool_.at<char>(states_[chunk].offset);
    lane.flag = kBytes ? states_[chunk].use : states_[chunk].use & 1;
  }
  lane.position = kHeaderBytes;
  lane.chunk = chunk;
  if constexpr (!kBytes) std::ranges::fill(lane.lines, lane.flag ^ 1);
  return true;
}

template <typename Content>
void Log<Content>::write(Lane& lane, LogRecord& record) const
  requires(!Content::kOutOfPlace)
{
  const uint64_t c = record.number << 1 | (record.removal ? 1 : 0);
  const uint64_t encoded[3] = {
      (record.key & kWordMask) << 1 | lane.flag, (record.value & kWordMask) << 1 | lane.flag,
      c << 3 | record.key >> 63 << 2 | record.value >> 63 << 1 | lane.flag};
  char* target = lane.current + lane.position;
  const uint64_t at = lane.position % pm::kLineBytes / 8;
  lane.position = after(lane.position);
  if (!nontemporal_) {
    auto* words = reinterpret_cast<uint64_t*>(target);
    for (int i = 0; i < 3; ++i) pm::store_relaxed(words[i], encoded[i]);
    memory_.flush(words, kRecordBytes);
    return;
  }
  // Whole lines: words of earlier records are written again as they are, so a torn line harms none.
  target -= at * 8;
  for (uint64_t i = 0; i < std::size(encoded); ++i) lane.lines[at + i] = encoded[i];
  memory_.copy_nontemporal(target, lane.lines, pm::kLineBytes);
  const uint64_t end = at + std::size(encoded);
  if (end > kLineWords)
    memory_.copy_nontemporal(target + pm::kLineBytes, lane.lines + kLineWords, pm::kLineBytes);
  if (end >= kLineWords) {
    std::copy_n(lane.lines + kLineWords, kLineWords, lane.lines);
    std::fill_n(lane.lines + kLineWords, kLineWords, lane.flag ^ 1);
  }
  if (lane.position % pm::kLineBytes / 8 != end % kLineWords) {
    std::ranges::fill(lane.lines, lane.flag ^ 1);  // the rest of the line stays unused
  }
}

template <typename Content>
void Log<Content>::write(Lane& lane, LogRecord& record) const
  requires(Content::kOutOfPlace)
{
  const bool external = record.external;
  const bool linked = external || record.superseded != 0;
  alignas(pm::kLineBytes) char lines[LogEntry::lines_for(LogEntry::kBytesMax)];
  auto& entry = *new (lines) LogEntry{};
  entry.key_bytes = static_cast<uint16_t>(record.key.size());
  entry.value_bytes = external ? 0 : static_cast<uint16_t>(record.value.size() & 0x3ff);
  entry.removal = record.removal ? 1 : 0;
  entry.external = external ? 1 : 0;
  entry.linked = linked ? 1 : 0;
  entry.number = record.number;
  char* to = lines + (entry.text() - lines);
  if (!record.key.empty()) std::memcpy(to, record.key.data(), record.key.size());
  if (entry.value_bytes != 0)
    std::memcpy(to + entry.key_bytes, record.value.data(), entry.value_bytes);
  const uint64_t bytes = entry.bytes();
  const uint64_t line_bytes = entry.line_bytes();
  std::memset(lines + bytes, 0, line_bytes - bytes);
  char* target = lane.current + lane.position;
  const uint64_t offset = pool_.offset_of(target);
  const uint64_t seed = LogEntry::seed(root_.salt, lane.flag, offset);
  if (!linked) [[likely]] {
    record.word =
        LogEntry::word_of(offset, Form<tree::Bytes>::check_of(record.hash, entry.value()));
    entry.checksum = entry.checksum_at(seed);
    memory_.copy_nontemporal(target, lines, line_bytes);
    // The record, before it is acknowledged, or the next one begun.
    memory_.fence();
  } else {
    char* link = lines + sizeof(LogEntry);
    auto& link_at = *reinterpret_cast<uint64_t*>(target + sizeof(LogEntry));
    // What frees a block may take from the heap's reserve, as it gives back.
    pm::Heap::Txn txn(pool_.heap(), !external);
    const uint64_t block = external ? make_(txn, record.hash, record.value) : 0;
    std::memcpy(link, &block, sizeof block);
    record.word =
        LogEntry::word_of(offset, Form<tree::Bytes>::check_of(record.hash, entry.value()));
    entry.checksum = entry.checksum_at(seed);
    // Before the rest of the record, which would be valid, and before the intents, which would
    // believe it, if what an earlier use of the chunk left here were the link that is to come.
    pm::store_relaxed(link_at, record.superseded);
    memory_.persist(&link_at, sizeof link_at);
    std::memcpy(link, &record.superseded, sizeof record.superseded);
    memory_.copy_nontemporal(target, lines, line_bytes);
    if (block != 0) txn.will_link(block, &link_at, pm::Link::kOffset);
    if (record.superseded != 0) {
      txn.will_unlink(record.superseded, &link_at, pm::Link::kOffset,
                      pm::Heap::Txn::Release::kLater);
    }
    // The value, the intents and the rest of the record, before the link, which makes it valid.
    txn.commit([&] {
      pm::store_release(link_at, block);
      memory_.flush(&link_at, sizeof link_at);
    });
  }
  lane.position += line_bytes;
}

template <typename Content>
bool Log<Content>::append_to(Lane& lane, std::span<LogRecord> records, bool may_provide) {
  // Who wrote before may have been interrupted by a failing medium.
  if (pool_.failed()) [[unlikely]]
    pool_.require_writable();
  const uint64_t bytes = most_bytes(records);
  if (!has_room(lane, bytes)) {
    // No chunk is left for more records than any can hold.
    if (!may_provide || kHeaderBytes + bytes > chunk_bytes_) return false;
    if (!provide(lane)) return false;
  }
  for (LogRecord& record : records) write(lane, record);
  // The records, before they are acknowledged. Under the lock: another thread that writes the same
  // line past the caches of another processor could have its words undone by ours.
  if constexpr (!kBytes) memory_.fence();
  return true;
}

template <typename Content>
bool Log<Content>::append(std::span<LogRecord> records) {
  if (own_lane == ~uint32_t{0}) own_lane = next_lane.fetch_add(1, std::memory_order_relaxed);
  Lane& own = lanes_[own_lane % kLanes];
  if (own.lock.try_lock()) {
    const std::lock_guard lock(own.lock, std::adopt_lock);
    if (append_to(own, records, true)) return true;
    // The caller frees a chunk, which is better than two threads that wait for each other's fences.
    if (has_left_chunk()) return false;
  }
  for (uint32_t i = 1; i < kLanes; ++i) {
    Lane& lane = lanes_[(own_lane + i) % kLanes];
    if (!lane.lock.try_lock()) continue;
    const std::lock_guard lock(lane.lock, std::adopt_lock);
    if (append_to(lane, records, false)) return true;
    // Of a thread that may never write again: nobody could have the chunk back.
    if (!has_room(lane, most_bytes(records.first(1)))) leave(lane);
  }
  // No chunk is free. Lanes that others are writing to may have room, but need not be looked at
  // again: the caller provides a chunk.
  const std::lock_guard lock(own.lock);
  return append_to(own, records, true);
}

template class Log<tree::Words>;
template class Log<tree::Bytes>;

}  // namespace perdure::index::sheaf
