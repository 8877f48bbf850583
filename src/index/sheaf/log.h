// The log of a Sheaf: what was written and is not yet in a leaf.
//
//   if (!log.append(record)) ...          // no room: merge what the oldest chunk holds, then again
//
// A record is three words of 63 bits of payload and a flag bit, as in pm::TornBitLog: it is valid if its
// three flags are those of its chunk, so that one persist writes it and a torn one is none. Chunks are
// blocks of the heap that a table leads to. Threads write to lanes; each lane fills a chunk of its own.
//
// No order is needed among the records of different chunks, and none between chunks and leaves: the number
// in each record says which of those of one key is newest, and the leaf says up to which number it
// has them all (`merged`). So a chunk is free, without any note of that in PM, once all its records are in
// leaves: who replays it finds nothing new.
//
// Crash argument, for any sequence of crashes.
//   While a chunk is in use, words of records of this use bear its flag, and where no record was written all
//   words bear the other one. When it is left, all words of the places without a record get the flag too,
//   with no payload, fence; a word of its next use, which has the other flag, is then told from each of them.
//   The header of the next use is durable before the first record of that use.
//   What opening has read is flushed before anybody acts on it (replay()): a process that died may have left
//   records, headers and filled places in the caches.
//   After a crash every chunk is left in that way before anything is written (settle()): first the last
//   words of the places without a valid record, fence, which makes them invalid whatever their other words
//   say; then the others, fence. A crash in between finds the same records again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "index/sheaf/layout.h"
#include "index/sheaf/promises.h"
#include "index/stripes.h"
#include "pm/lock.h"
#include "pm/pool_impl.h"

namespace perdure::index::sheaf {

struct LogRecord {
  uint64_t key;
  uint64_t value;
  uint64_t number;  // from 1, below 2^60; greater than those of all earlier records of the key
  bool removal;
};

class Log {
 public:
  static constexpr uint64_t kRecordBytes = 24;
  static constexpr uint64_t kHeaderBytes = 64;
  static constexpr uint64_t kChunkBytes = 16384;
  static constexpr uint64_t kChunkBytesMin = 512;
  static constexpr uint64_t kChunksMin = kFirstChunks;
  static constexpr uint64_t kChunksMax = 2048;

  static constexpr uint64_t kTableBytes = (kChunksMax - kFirstChunks) * sizeof(uint64_t);

  Log(pm::PoolImpl& pool, Root& root, const Promises& promises);

  // Makes an empty chunk of a block. Durable with the next fence.
  static void format(const pm::Memory& memory, void* block, uint64_t chunk_bytes, uint64_t chunk);

  // When opening: makes the chunks known. Throws kCorrupt.
  void load();
  // Calls visit(record, number of the chunk) for each valid record of chunks `part` of `parts`. Stores
  // nothing, but makes durable what it has read. One call for each part, at once if need be.
  template <typename Visit>
  void replay(uint32_t part, uint32_t parts, Visit visit);
  // After all were replayed: makes them ready to be used again. `live[i]`: chunk i has records that are in
  // no leaf. Durable on return.
  void settle(std::span<const uint8_t> live);
  // Chunks in the order of their last use, from era 1 on.
  uint64_t era_of(uint64_t chunk) const { return states_[chunk].end_era; }
  uint64_t chunks() const { return states_.size(); }

  // Writes records, durable on return. False, having done nothing, if there is no room. Throws kIo.
  bool append(std::span<const LogRecord> records);

  // What is written from now on is in chunks whose last era is at least this.
  uint64_t era() const { return era_.load(std::memory_order_acquire); }

  // Whether chunks should be freed before they are needed: few are free, and no more can be made. A guide.
  bool is_short() const { return short_.load(std::memory_order_relaxed); }
  // Whether append() would find room without a look at the lanes.
  bool has_free_chunk() const;
  // The chunk that was left first, of those that are not free: its last era. False if there is none.
  bool oldest(uint64_t& era) const;
  // Nothing that was written up to the last era of that chunk is needed any more: it is free.
  void free_oldest();

  // How many chunks there may be now.
  void allow(uint64_t chunks) { allowed_.store(chunks, std::memory_order_relaxed); }
  uint64_t chunk_bytes() const { return chunk_bytes_; }
  template <typename Visit>
  void visit_chunks(Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (const State& state : states_) visit(state.offset);
  }
  uint64_t chunk_count() const {
    const std::lock_guard lock(mutex_);
    return states_.size();
  }
  static constexpr uint64_t kDramBytes = uint64_t{16} * 1024;

 private:
  static constexpr uint32_t kLanes = 16;
  static constexpr uint32_t kNone = ~uint32_t{0};
  // Chunks that should be free, of a log that has many more.
  static constexpr uint64_t kSpare = 4;
  static constexpr uint64_t kUnitBytes = 256;

  struct Header {
    uint64_t use;  // sealed: number of the use (high), its flag (bit 0)
  };
  struct State {
    uint64_t offset;
    uint64_t use;      // as in the header
    uint64_t end_era;  // once it was left
  };
  struct alignas(64) Lane {
    pm::SpinLock lock;
    uint32_t chunk = kNone;
    uint64_t position = 0;
    char* current = nullptr;
    uint64_t flag = 0;
    alignas(64) uint64_t lines[16] = {};
  };

  static uint64_t after(uint64_t position);
  // `records` records take no more, wherever they begin: nine of them take a unit.
  static uint64_t most_bytes(uint64_t records) { return records * 30 + pm::kLineBytes; }
  static uint64_t salt_of(uint64_t chunk) { return 0x5ea1 + (chunk << 16); }
  // What leads to a chunk.
  uint64_t& link_of(uint64_t chunk) const {
    return chunk < kFirstChunks ? root_.chunks[chunk]
                                : pool_.at<uint64_t>(root_.log)[chunk - kFirstChunks];
  }
  void write(Lane& lane, const LogRecord& record) const;
  bool has_room(const Lane& lane, uint64_t records) const;
  bool provide(Lane& lane);
  void leave(Lane& lane);
  bool has_left_chunk() const;
  bool append_to(Lane& lane, std::span<const LogRecord> records, bool may_provide);
  uint32_t take_chunk();
  void note_free();
  void make_chunk();
  bool is_valid(const uint64_t* words, uint64_t flag) const {
    return (words[0] & 1) == flag && (words[1] & 1) == flag && (words[2] & 1) == flag &&
           words[2] >> 3 != 0;
  }
  template <typename Visit>
  void for_places(Visit visit) const {
    for (uint64_t at = kHeaderBytes; at + kRecordBytes <= chunk_bytes_; at = after(at)) visit(at);
  }

  pm::PoolImpl& pool_;
  const pm::Memory& memory_;
  Root& root_;
  const uint64_t chunk_bytes_;
  const uint64_t chunks_max_;
  const bool nontemporal_;
  const Promises& promises_;
  alignas(pm::kLineBytes) std::atomic<bool> short_{false};
  std::array<Lane, kLanes> lanes_;
  std::atomic<uint64_t> allowed_{kChunksMin};
  std::atomic<uint64_t> era_{1};
  mutable std::mutex mutex_;  // of what follows
  std::vector<State> states_;
  std::vector<uint32_t> free_;
  std::deque<uint32_t> left_;  // in the order of their last eras
  uint64_t use_ = 0;           // the last one given
  // While opening, by chunk: places without a record are not as leave() makes them.
  std::vector<uint8_t> unsettled_;
};

template <typename Visit>
void Log::replay(uint32_t part, uint32_t parts, Visit visit) {
  for (uint64_t chunk = part; chunk < states_.size(); chunk += parts) {
    const uint64_t flag = states_[chunk].use & 1;
    const char* begin = pool_.at<char>(states_[chunk].offset);
    bool settled = true;
    for_places([&](uint64_t at) {
      const auto* words = reinterpret_cast<const uint64_t*>(begin + at);
      if (!is_valid(words, flag)) {
        settled &= words[0] == flag && words[1] == flag && words[2] == flag;
        return;
      }
      const uint64_t c = words[2] >> 3;
      visit(LogRecord{words[0] >> 1 | (words[2] >> 2 & 1) << 63,
                      words[1] >> 1 | (words[2] >> 1 & 1) << 63, c >> 1, (c & 1) != 0},
            chunk);
    });
    if (!settled) unsettled_[chunk] = 1;
    // A process that died may have left all of it in the caches only: the header, records, and what fills
    // the rest.
    memory_.flush(begin, chunk_bytes_);
  }
  // What was read, before anybody acts on it: a record that a reader has seen must not be gone after a power
  // failure, and words that fill a place without a record must not turn back into those of an earlier use,
  // which a later use would take for its own.
  memory_.fence();
}

}  // namespace perdure::index::sheaf
