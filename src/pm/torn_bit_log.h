// A log that needs one persist for each record: the torn-bit log.
//
//   log.append({key, value, epoch});  // flushed
//   memory.fence();                   // durable
//
// A record is three 8-byte words. Each word carries 63 bits of payload and one flag bit; a record
// is valid when its three flags equal the flag of its chunk, so a write that a crash tore is
// recognised without a checksum and without a second persist that says "complete". A chunk's flag
// changes each time the chunk is used again: all it held before is invalid at once.
//
// Chunks form a ring and carry rising sequence numbers. The owner says from which on they are live;
// before a chunk is used again, the owner must have made what it holds durable elsewhere.
//
// Crash argument, for any sequence of crashes. Of the words of the chunk with the newest header,
// those of records of its present use bear its flag, and all others where a record may come to
// stand bear the other one. This holds when its header becomes durable: advance() gives the flag of
// the *last* use to all words of a chunk that it leaves, and fences that before the next header, so
// it is true of each chunk that was left, and a chunk is used again only after it was left. It
// holds after a crash once replay() has given the other flag to what follows the last valid record,
// whole records behind a torn one included, and fenced that before the first append. A second crash
// within either finds the same last record. Not thread-safe: the owner serialises calls. Source:
// RAWL of Mnemosyne (Volos et al., ASPLOS'11).
#pragma once

#include <cstdint>
#include <functional>

#include "pm/memory.h"

namespace perdure::pm {

struct RedoRecord {
  uint64_t a;
  uint64_t b;
  uint64_t c;  // below 2^61, and not 0: 0 is padding
};

class TornBitLog {
 public:
  static constexpr uint64_t kRecordBytes = 24;
  static constexpr uint64_t kChunkHeaderBytes = 64;
  // Chunks are whole units of the medium. Of each unit's four lines, three hold 8 records side by
  // side, and the last one holds one: a medium that gathers writes writes the unit when its last
  // line arrives, and once more for every time that this line changes afterwards.
  static constexpr uint64_t kUnitBytes = 256;

  // Bytes of a chunk that holds at least `records`.
  static uint64_t chunk_bytes_for(uint64_t records);

  // Over `chunks` >= 3 adjacent chunks at `area`, which is 64-byte aligned and zero-filled before
  // the first use. Call format() or replay() before anything else.
  TornBitLog(const Memory& memory, char* area, uint64_t chunk_bytes, uint32_t chunks);

  // Makes an empty log. Durable with the caller's next fence, before which nothing durable may lead
  // to the log: until then its memory is unreachable after any crash, and is zeroed again by its
  // next owner.
  void format();

  // Calls `apply` for every valid record of every live chunk, oldest first, and makes the log ready
  // for appending. Returns false if a chunk header is damaged. Idempotent. Cost: reads the live
  // chunks, and flushes them; stores only over what a crash left behind the last valid record.
  bool replay(const std::function<void(const RedoRecord&, uint64_t sequence)>& apply);

  // Whether `records` more fit into the current chunk.
  bool has_room(uint64_t records) const { return position_ + most_bytes(records) <= chunk_bytes_; }

  // Writes and flushes; durable after the next fence. Needs room, else kInternal.
  void append(const RedoRecord& record);

  // Moves on to the next chunk, which must be free, else kInternal. Durable on return; two fences.
  void advance();
  bool next_is_free() const { return sequence_ - oldest_ + 1 < chunks_; }

  // The chunk being appended to, and the oldest one whose records still count.
  uint64_t sequence() const { return sequence_; }
  uint64_t oldest() const { return oldest_; }
  // What chunks before `sequence` hold is durable elsewhere. Noted in PM for the sake of a shorter
  // replay, but not fenced: a replay of released chunks is harmless.
  void release_before(uint64_t sequence);

  // Of what append() reads and writes in DRAM.
  void prefetch() const {
    prefetch_to_change(this);
    prefetch_to_change(lines_);
  }

  // Bytes in use by live chunks.
  uint64_t live_bytes() const { return (sequence_ - oldest_) * chunk_bytes_ + position_; }

 private:
  // `records` records take no more, wherever they begin: 9 take a unit.
  static constexpr uint64_t most_bytes(uint64_t records) { return records * 30 + 64; }
  // Where the record after the one at `position` begins.
  static uint64_t after(uint64_t position);
  char* chunk(uint64_t sequence) const { return area_ + sequence % chunks_ * chunk_bytes_; }
  // A chunk begins with its sequence number, and the oldest live one when that was last noted.
  struct ChunkHeader {
    uint64_t sequence;
    uint64_t oldest;
  };
  ChunkHeader& header(uint64_t sequence) const {
    return *reinterpret_cast<ChunkHeader*>(chunk(sequence));
  }
  // Flags alternate between passes over the ring; the first pass has 1.
  uint64_t flag_of(uint64_t sequence) const { return (sequence / chunks_ + 1) & 1; }
  bool read(uint64_t sequence, uint64_t position, RedoRecord& record) const;
  // Gives each word after the position the flag. Whether it had to flush any.
  bool fill_rest(uint64_t flag);
  void move_to(uint64_t sequence);
  void begin_line();
  void load_line();

  // What append() needs, in one line, and another two:
  alignas(64) uint64_t position_ = kChunkHeaderBytes;
  uint64_t flag_ = 1;
  char* current_;  // the chunk being appended to
  uint64_t sequence_ = 0;
  uint64_t chunk_bytes_;
  const Memory* memory_;
  // Where lines are written past the caches: the line being filled, as it is or will be in PM, and
  // the one after it, empty.
  bool nontemporal_ = false;
  alignas(64) uint64_t lines_[16] = {};

  char* area_;
  uint64_t chunks_;
  uint64_t oldest_ = 0;
};

}  // namespace perdure::pm
