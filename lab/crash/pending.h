// What may and what must be in persistent memory at a moment of a trace.
//
//   PendingMemory memory(trace, Domain::kLine);
//   while (memory.position() < trace.events.size()) {
//     for (const PendingLine* line : memory.pending()) ... // each in any state of options(*line)
//     memory.step();
//   }
//
// `durable()` holds what no crash can take away. Beyond it, each line may have taken in any prefix
// of its unguaranteed stores; a store of more than one word may be torn, aligned words may not;
// words of non-temporal stores arrive in any order until their thread's fence. Lines are
// independent. In domain `page` the same holds for sectors of 512 bytes between msyncs; in domain
// `byte` a store counts once it is carried out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "lab/crash/trace.h"
#include "perdure/pool.h"

namespace perdure::lab::crash {

// An aligned word of the region and its value.
struct Word {
  uint64_t offset;
  uint64_t value;
  bool operator==(const Word&) const = default;
};

// One store to one line, as far as it changed something.
struct PendingStore {
  uint32_t event;
  uint16_t thread;
  bool stream;
  bool merged = false;  // of several: taken in wholly or not at all
  std::vector<Word> words;
};

struct PendingLine {
  uint64_t number;  // offset / unit
  std::vector<PendingStore> stores;
};

// One of the states a line may be in: words to put over the durable image.
struct LineOption {
  std::vector<Word> words;
  uint64_t hash_delta = 0;  // to the hash of the whole image
};

// What a process that died had stored, and what no flush and fence had made durable by then: it
// lives on in the caches. Whatever flushes such a line from now on takes it along. The dead
// process's own flushes and streams that no fence followed count for nothing, and its streams are
// stores: the kernel, which ended it, has hardly kept them waiting, but nobody promises that.
struct Inherited {
  uint32_t events = 0;  // the trace begins with so many, one for each of the stores
  std::map<uint64_t, PendingLine> lines;
};

class PendingMemory {
 public:
  using Drops = std::function<bool(const TraceEvent&)>;
  // `drops(event)` tells which flushes and fences are to be taken for nothing; may be empty.
  // `image`, of region_bytes, is filled with the trace's base and kept as durable().
  // `inherited` is pending at once, and the memory stands behind its events.
  PendingMemory(const Trace& trace, Domain domain, unsigned char* image, Drops drops = {},
                const Inherited& inherited = {});

  // The next event to be taken in.
  uint32_t position() const { return position_; }
  void step();
  // Whether the next event makes something durable, or reports it: where states are worth a look.
  bool next_is_crash_point() const;

  const unsigned char* durable() const { return durable_; }
  uint64_t durable_hash() const { return hash_; }
  // By thread: the event that began its operation in flight; ~0 if there is none.
  const std::vector<uint32_t>& in_flight() const { return begun_; }
  // Lines that are not wholly durable, by number.
  const std::map<uint64_t, PendingLine>& pending() const { return lines_; }

  // The states a line may be in other than the durable one, the complete one first; at most `max`,
  // of those left out the finest tearing goes first.
  std::vector<LineOption> options(const PendingLine& line, size_t max) const;

  // The line with everything that is pending: the state without a crash.
  LineOption complete(const PendingLine& line) const;
  // The line with what had been stored before an event.
  LineOption as_of(const PendingLine& line, uint32_t event) const;
  uint64_t word(uint64_t offset) const;

 private:
  struct FlushMark {
    uint64_t line;
    uint32_t event;  // stores before it are on their way
  };

  void take_store(const TraceEvent& event);
  bool waits(uint64_t offset) const;  // whether a store to this word is not guaranteed yet
  void take_flush(const TraceEvent& event);
  void take_fence(uint16_t thread);
  void take_sync(const TraceEvent& event);
  void guarantee(PendingLine& line, const std::function<bool(const PendingStore&)>& which);
  bool is_in_flight(const PendingStore& store) const;
  void merge_oldest(PendingLine& line) const;
  void put(const Word& word);
  uint64_t visible(uint64_t offset) const;
  LineOption option_of(std::vector<Word> words) const;

  const Trace& trace_;
  Domain domain_;
  uint64_t unit_;
  unsigned char* durable_;
  Drops drops_;
  uint32_t position_ = 0;
  uint64_t hash_ = 0;
  std::map<uint64_t, PendingLine> lines_;
  // By thread: the event that began the operation in flight, and kNever if there is none.
  static constexpr uint32_t kNever = ~uint32_t{0};
  std::vector<uint32_t> begun_;
  std::vector<std::vector<FlushMark>> flushed_;  // by thread
  std::vector<std::vector<uint64_t>> streamed_;  // lines, by thread
};

// What a word contributes to the hash of an image.
uint64_t word_hash(uint64_t offset, uint64_t value);

}  // namespace perdure::lab::crash
