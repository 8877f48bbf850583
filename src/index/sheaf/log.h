// The log of a Sheaf: what was written and is not yet in a leaf.
//
//   if (!log.append(record)) ...          // no room: merge what the oldest chunk holds, then again
//
// A record is three words of 63 bits of payload and a flag bit, as in pm::TornBitLog: it is valid
// if its three flags are those of its chunk, so that one persist writes it and a torn one is none.
// Chunks are blocks of the heap that a table leads to. Threads write to lanes; each lane fills a
// chunk of its own.
//
// No order is needed among the records of different chunks, and none between chunks and leaves: the
// number in each record says which of those of one key is newest, and the leaf says up to which
// number it has them all (`merged`). So a chunk is free, without any note of that in PM, once all
// its records are in leaves: who replays it finds nothing new.
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
//
// Byte strings are written on whole lines, with a checksum over the use of the chunk, the record's
// place and a salt (LogEntry). A torn record has none that holds, whatever earlier uses left beside
// it; nobody writes behind it before the chunk's next use, under which it has another one. So
// nothing need be filled or settled. A chunk's records follow one another, each durable before the
// next one: where one is invalid and a later one is not, it is damage.
//   Buffers in DRAM lead to these records, so readers look at them: a chunk is written again when its leaves have
//   been merged and, by the epochs, who may still read it has gone.
//   A value with a block of its own: the link's place leads to what the write supersedes, or nowhere, fence; the block,
//   the heap's intents and all of the record but its link, fence; the link, and the heap's bitmap, fence; the intents' end, fence. The block of a value that is superseded goes by the
//   same link. From then on no leaf and no older record that says otherwise is believed, as theirs is the lower number.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "index/sheaf/layout.h"
#include "index/sheaf/promises.h"
#include "index/stripes.h"
#include "pm/epoch.h"
#include "pm/lock.h"
#include "pm/pool_impl.h"

namespace perdure::index::sheaf {

template <typename Content>
struct LogRecordOf;

template <>
struct LogRecordOf<tree::Words> {
  uint64_t key;
  uint64_t value;
  uint64_t number;  // from 1, below 2^60; greater than those of all earlier records of the key
  bool removal;
};

// To be written.
template <>
struct LogRecordOf<tree::Bytes> {
  std::string_view key;
  std::string_view value;
  uint64_t number;
  bool removal;
  bool external;        // the value gets a block of its own
  uint64_t superseded;  // block of the value that goes with this write, or 0
  uint64_t hash;        // of the key
  uint64_t word = 0;    // by append(): what leads to it
};

// A record of byte strings in the log, on whole lines. One store makes it valid: of those with a
// link the last one is of that, with all others durable before. So a link leads to the block of the
// value, or away from that of the value before, at the instant that the write happens, and the
// heap's intents can judge both by it.
struct LogEntry {
  uint32_t checksum;  // over what follows, seeded with seed()
  uint16_t key_bytes;
  uint16_t value_bytes : 10;  // in here
  uint16_t removal : 1;
  uint16_t external : 1;  // the link leads to the value
  uint16_t linked : 1;
  uint16_t reserved : 3;
  uint64_t number;  // 0: nothing follows in the chunk

  const char* text() const {
    return reinterpret_cast<const char*>(this + 1) + (linked != 0 ? 8 : 0);
  }
  std::string_view key() const { return {text(), key_bytes}; }
  // The value, or the offset of its block.
  Form<tree::Bytes>::Stored value() const {
    if (external != 0) return {{reinterpret_cast<const char*>(this + 1), 8}, true};
    return {{text() + key_bytes, value_bytes}, false};
  }
  Form<tree::Bytes>::Item item() const { return {key(), value()}; }
  uint64_t bytes() const {
    return sizeof *this + (linked != 0 ? 8U : 0U) + uint64_t{key_bytes} + value_bytes;
  }
  // A buffer's word for the record at an offset.
  static uint64_t word_of(uint64_t offset, uint64_t check) {
    return offset / pm::kLineBytes | check << Form<tree::Bytes>::kCheckShift;
  }
  static uint64_t offset_of(uint64_t word) {
    return (word & ((uint64_t{1} << Form<tree::Bytes>::kCheckShift) - 1)) * pm::kLineBytes;
  }
  uint64_t line_bytes() const { return lines_for(bytes()); }
  static constexpr uint64_t lines_for(uint64_t bytes) {
    return (bytes + pm::kLineBytes - 1) / pm::kLineBytes * pm::kLineBytes;
  }
  static constexpr uint64_t kBytesMax =
      24 + Form<tree::Bytes>::kKeyBytesMax + Form<tree::Bytes>::kInlineValueBytes;
  // Without the salt, which nobody knows, a value could be written that has a valid record on a
  // line of its own.
  static uint64_t seed(uint64_t salt, uint64_t use, uint64_t offset) {
    return salt * 0xd6e8feb86659fd93 ^ use * 0x9e3779b97f4a7c15 ^ offset;
  }
  // `room` bytes may be looked at.
  bool is_valid(uint64_t room, uint64_t seed) const {
    return key_bytes <= Form<tree::Bytes>::kKeyBytesMax && bytes() <= room &&
           checksum == checksum_at(seed);
  }
  uint32_t checksum_at(uint64_t seed) const {
    return pm::checksum32(&key_bytes, bytes() - offsetof(LogEntry, key_bytes), seed);
  }
};
static_assert(sizeof(LogEntry) == 16 && offsetof(LogEntry, key_bytes) == 4);

template <typename Content>
class Log {
 public:
  using LogRecord = LogRecordOf<Content>;
  static constexpr bool kBytes = Content::kOutOfPlace;
  static constexpr uint64_t kRecordBytes = 24;
  static constexpr uint64_t kHeaderBytes = 64;
  static constexpr uint64_t kChunkBytes = kBytes ? 65536 : 16384;
  static constexpr uint64_t kChunkBytesMin = kBytes ? 2048 : 512;
  static constexpr uint64_t kChunksMin = kFirstChunks;
  static constexpr uint64_t kChunksMax = 2048;

  static constexpr uint64_t kTableBytes = (kChunksMax - kFirstChunks) * sizeof(uint64_t);

  // `make` writes the value of a key with this hash to a block of the transaction; words have no
  // such.
  using Make = std::function<uint64_t(pm::Heap::Txn& txn, uint64_t hash, std::string_view value)>;
  Log(pm::PoolImpl& pool, Root& root, const Promises& promises, Make make = {});
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Makes an empty chunk of a block. Durable with the next fence.
  static void format(const pm::Memory& memory, void* block, uint64_t chunk_bytes, uint64_t chunk);

  // When opening: makes the chunks known. Throws kCorrupt.
  void load();
  // Calls visit(record, number of the chunk) for each valid record of chunks `part` of `parts`; of
  // byte strings the record is a LogEntry. Stores nothing, but makes durable what it has read. One
  // call for each part, at once if need be.
  template <typename Visit>
  void replay(uint32_t part, uint32_t parts, Visit visit);
  // After all were replayed: makes them ready to be used again. `live[i]`: chunk i has records that
  // are in no leaf. Durable on return.
  void settle(std::span<const uint8_t> live);
  // Chunks in the order of their last use, from era 1 on.
  uint64_t era_of(uint64_t chunk) const { return states_[chunk].end_era; }
  uint64_t chunks() const { return states_.size(); }

  // Writes records, durable on return. False, having done nothing, if there is no room. Throws kIo.
  // Of byte strings one record, whose value may need a block: throws kPoolFull, kNoSpace, too,
  // having done nothing.
  bool append(std::span<LogRecord> records);

  // What is written from now on is in chunks whose last era is at least this.
  uint64_t era() const { return era_.load(std::memory_order_acquire); }

  // Whether chunks should be freed before they are needed: few are free, and no more can be made. A
  // guide.
  bool is_short() const { return short_.load(std::memory_order_relaxed); }
  // Whether append() would find room without a look at the lanes.
  bool has_free_chunk() const;
  // The chunk that was left first, of those that are not free: its last era. False if there is
  // none.
  bool oldest(uint64_t& era) const;
  // Nothing that was written up to the last era of that chunk is needed any more: it is free, or
  // will be when nobody reads it any more.
  void free_oldest(pm::EpochManager& epochs);

  // Whether none is free, and some wait for readers.
  bool waits_for_readers() const;
  // One more chunk, even if there may be no more of them now; not if there are all that the
  // structure was made for, or the pool has no room. Returns whether a chunk is free.
  bool grow();

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
  static uint64_t most_bytes(std::span<const LogRecord> records);
  static uint64_t salt_of(uint64_t chunk) { return 0x5ea1 + (chunk << 16); }
  // What leads to a chunk.
  uint64_t& link_of(uint64_t chunk) const {
    return chunk < kFirstChunks ? root_.chunks[chunk]
                                : pool_.at<uint64_t>(root_.log)[chunk - kFirstChunks];
  }
  void settle_places();
  void write(Lane& lane, LogRecord& record) const
    requires(!Content::kOutOfPlace);
  void write(Lane& lane, LogRecord& record) const
    requires(Content::kOutOfPlace);
  void end(Lane& lane) const;
  bool has_room(const Lane& lane, uint64_t bytes) const {
    return lane.chunk != kNone && lane.position + bytes <= chunk_bytes_;
  }
  void free_one(uint32_t chunk) noexcept;
  bool provide(Lane& lane);
  void leave(Lane& lane);
  bool has_left_chunk() const;
  bool append_to(Lane& lane, std::span<LogRecord> records, bool may_provide);
  uint32_t take_chunk();
  void note_free();
  void make_chunk();
  bool try_make_chunk();
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
  const Make make_;
  alignas(pm::kLineBytes) std::atomic<bool> short_{false};
  std::array<Lane, kLanes> lanes_;
  std::atomic<uint64_t> allowed_{kChunksMin};
  std::atomic<uint64_t> era_{1};
  mutable std::mutex mutex_;  // of what follows
  std::vector<State> states_;
  std::vector<uint32_t> free_;
  std::deque<uint32_t> left_;  // in the order of their last eras
  uint64_t read_ = 0;          // chunks that are free when their readers have gone
  uint64_t use_ = 0;           // the last one given
  // While opening, by chunk: places without a record are not as leave() makes them.
  std::vector<uint8_t> unsettled_;
};

template <typename Content>
template <typename Visit>
void Log<Content>::replay(uint32_t part, uint32_t parts, Visit visit) {
  for (uint64_t chunk = part; chunk < states_.size(); chunk += parts) {
    const char* begin = pool_.at<char>(states_[chunk].offset);
    if constexpr (kBytes) {
      const auto entry_at = [&](uint64_t at) -> const LogEntry* {
        const auto* entry = reinterpret_cast<const LogEntry*>(begin + at);
        const uint64_t seed =
            LogEntry::seed(root_.salt, states_[chunk].use, states_[chunk].offset + at);
        return entry->is_valid(chunk_bytes_ - at, seed) ? entry : nullptr;
      };
      uint64_t at = kHeaderBytes;
      for (; at < chunk_bytes_;
           at += pool_.at<LogEntry>(states_[chunk].offset + at)->line_bytes()) {
        const LogEntry* entry = entry_at(at);
        if (entry == nullptr) break;
        if (entry->number == 0) at = chunk_bytes_;
        if (at == chunk_bytes_) break;
        visit(*entry, chunk);
      }
      // Each record was durable before the next one was begun: what is not the last one is damaged.
      for (; at < chunk_bytes_; at += pm::kLineBytes) {
        if (entry_at(at) != nullptr) pool_.throw_corrupt("a log chunk is damaged");
      }
    } else {
      const uint64_t flag = states_[chunk].use & 1;
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
    }
    // A process that died may have left all of it in the caches only: the header, records, and what
    // fills the rest.
    memory_.flush(begin, chunk_bytes_);
  }
  // What was read, before anybody acts on it: a record that a reader has seen must not be gone
  // after a power failure, and words that fill a place without a record must not turn back into
  // those of an earlier use, which a later use would take for its own.
  memory_.fence();
}

extern template class Log<tree::Words>;
extern template class Log<tree::Bytes>;

}  // namespace perdure::index::sheaf
