#include "index/sheaf/log.h"

#include <algorithm>
#include <cstring>
#include <iterator>
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
uint64_t Log::after(uint64_t position) {
  constexpr uint64_t kLastLine = kUnitBytes - pm::kLineBytes;
  const uint64_t unit = position / kUnitBytes * kUnitBytes;
  const uint64_t within = position - unit;
  if (within >= kLastLine) return unit + kUnitBytes;
  return within + 2 * kRecordBytes <= kLastLine ? position + kRecordBytes : unit + kLastLine;
}

Log::Log(pm::PoolImpl& pool, Root& root, const Promises& promises)
    : pool_(pool),
      memory_(pool.memory()),
      root_(root),
      chunk_bytes_(root.chunk_bytes),
      chunks_max_(root.chunks_max),
      nontemporal_(memory_.domain() == Domain::kLine && pm::prefers_nontemporal_lines()),
      promises_(promises) {}

void Log::format(const pm::Memory& memory, void* block, uint64_t chunk_bytes, uint64_t chunk) {
  alignas(64) Header header[kHeaderBytes / sizeof(Header)] = {};
  header[0].use = pm::seal_word(0, salt_of(chunk));
  auto* home = static_cast<char*>(block);
  memory.copy_nontemporal(home, header, kHeaderBytes);
  write_zeros(memory, home + kHeaderBytes, chunk_bytes - kHeaderBytes);
}

// ---- opening

void Log::load() {
  for (uint64_t chunk = 0; chunk < chunks_max_ && link_of(chunk) != 0; ++chunk) {
    const uint64_t offset = link_of(chunk);
    uint64_t use = 0;
    if (!pool_.heap().is_allocated(offset, chunk_bytes_) ||
        !pm::unseal_word(pool_.at<Header>(offset)->use, salt_of(chunk), use)) {
      pool_.throw_corrupt("a log chunk is damaged");
    }
    states_.push_back({offset, use, 0});
    use_ = std::max(use_, use >> 1);
  }
  if (states_.size() < kChunksMin) pool_.throw_corrupt("the log table is damaged");
  unsettled_.resize(states_.size());
  std::vector<uint32_t> order(states_.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {}, [this](uint32_t chunk) { return states_[chunk].use; });
  for (const uint32_t chunk : order) states_[chunk].end_era = era_++;
  left_.assign(order.begin(), order.end());
}

void Log::settle(std::span<const uint8_t> live) {
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
  free_.reserve(states_.size());
  if (std::ranges::find(unsettled_, 1) != unsettled_.end()) {
    fix(2, 3);
    // A place whose last word has no payload is invalid whatever the others say. Without this fence
    // a crash could make a record of a torn one, which the replay after that crash would believe.
    memory_.fence();
    fix(0, 2);
    // Before any of the chunks is used again, whose records these words could complete.
    memory_.fence();
  }
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

// ---- chunks

// One more chunk, unused and free. The caller holds the mutex.
void Log::make_chunk() {
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

uint32_t Log::take_chunk() {
  const std::lock_guard lock(mutex_);
  if (free_.empty() &&
      states_.size() < std::min(chunks_max_, allowed_.load(std::memory_order_relaxed)) &&
      !promises_.is_scarce(chunk_bytes_)) {
    try {
      make_chunk();
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
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
void Log::note_free() {
  const bool may_grow =
      states_.size() < std::min(chunks_max_, allowed_.load(std::memory_order_relaxed));
  const bool few = free_.size() < std::min(kSpare, states_.size() / 16);
  short_.store(few && !may_grow && !left_.empty(), std::memory_order_relaxed);
}

bool Log::has_free_chunk() const {
  const std::lock_guard lock(mutex_);
  return !free_.empty();
}

bool Log::has_left_chunk() const {
  const std::lock_guard lock(mutex_);
  return !left_.empty();
}

bool Log::oldest(uint64_t& era) const {
  const std::lock_guard lock(mutex_);
  if (left_.empty()) return false;
  era = states_[left_.front()].end_era;
  return true;
}

void Log::free_oldest() {
  const std::lock_guard lock(mutex_);
  free_.push_back(left_.front());
  left_.pop_front();
  note_free();
}

// ---- lanes

bool Log::has_room(const Lane& lane, uint64_t records) const {
  return lane.chunk != kNone && lane.position + most_bytes(records) <= chunk_bytes_;
}

// All words of the chunk's rest get the flag of its use: see the crash argument.
void Log::leave(Lane& lane) {
  if (lane.chunk == kNone) return;
  // Nothing is written to the chunk any more, also if what follows throws: a record torn among these words, which
  // have the flag of a valid one, could seem whole.
  const uint64_t from = std::exchange(lane.position, chunk_bytes_);
  bool flushed = false;
  for (uint64_t at = from; at + kRecordBytes <= chunk_bytes_; at = after(at)) {
    auto* words = reinterpret_cast<uint64_t*>(lane.current + at);
    for (uint32_t i = 0; i < 3; ++i) pm::store_relaxed(words[i], lane.flag);
    memory_.flush(words, kRecordBytes);
    flushed = true;
  }
  // Before the chunk is used again, whose records could else be completed by these words.
  if (flushed) memory_.fence();
  const std::lock_guard lock(mutex_);
  left_.push_back(lane.chunk);
  states_[lane.chunk].end_era = era_.fetch_add(1, std::memory_order_acq_rel);
  lane.chunk = kNone;
}

bool Log::provide(Lane& lane) {
  leave(lane);
  const uint32_t chunk = take_chunk();
  if (chunk == kNone) return false;
  {
    const std::lock_guard lock(mutex_);
    lane.current = pool_.at<char>(states_[chunk].offset);
    lane.flag = states_[chunk].use & 1;
  }
  lane.position = kHeaderBytes;
  lane.chunk = chunk;
  std::ranges::fill(lane.lines, lane.flag ^ 1);
  return true;
}

void Log::write(Lane& lane, const LogRecord& record) const {
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

bool Log::append_to(Lane& lane, std::span<const LogRecord> records, bool may_provide) {
  // Who wrote before may have been interrupted by a failing medium.
  if (pool_.failed()) [[unlikely]]
    pool_.require_writable();
  if (!has_room(lane, records.size())) {
    // No chunk is left for more records than any can hold.
    if (!may_provide || kHeaderBytes + most_bytes(records.size()) > chunk_bytes_) return false;
    if (!provide(lane)) return false;
  }
  for (const LogRecord& record : records) write(lane, record);
  // The records, before they are acknowledged. Under the lock: another thread that writes the same line
  // past the caches of another processor could have its words undone by ours.
  memory_.fence();
  return true;
}

bool Log::append(std::span<const LogRecord> records) {
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
    if (!has_room(lane, 1)) leave(lane);
  }
  // No chunk is free. Lanes that others are writing to may have room, but need not be looked at again:
  // the caller provides a chunk.
  const std::lock_guard lock(own.lock);
  return append_to(own, records, true);
}

}  // namespace perdure::index::sheaf
