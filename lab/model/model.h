// The memory model: what becomes of loads, stores, flushes and fences on their way to the media.
//
//   MemoryModel model(builtin_profile("optane-100"));
//   model.store({.address = 4096, .bytes = 8, .pm = true});
//   model.flush({.address = 4096, .bytes = 8, .pm = true}, FlushKind::kClwb);
//   model.fence(0, 0, 0);
//   model.operation_done(0, 8);
//   print(to_json(model.total()));
//
// CPU cache (set-associative, write-back, true LRU) -> write pending queue, which passes lines on
// in order -> DIMMs (dimm.h) with a write-combining buffer, a read buffer, and the media. Streaming
// stores go around the cache through per-thread buffers. Deterministic: equal calls give equal
// counts. It knows nothing of how the calls come about.
//
// Thread safety: none; the caller serialises all calls. `Access::thread` only names the buffers
// that a non-temporal store goes through and that a fence drains.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lab/flush_kind.h"
#include "lab/model/counters.h"
#include "lab/model/profile.h"

namespace perdure::lab {

// One access. PM addresses are physical-like (the region's base plus the offset), DRAM addresses
// the program's own; they are two address spaces, and `pm` says which. An access may straddle
// lines; it is split. `operation` is below kOperations. Sites are numbered densely from 0 by the
// caller.
struct Access {
  uint64_t address = 0;
  uint32_t bytes = 0;
  bool pm = false;
  uint16_t thread = 0;
  uint16_t operation = 0;
  uint32_t site = 0;
};

// What has been written by the program and has not reached the media: it costs later, and belongs
// to whoever wrote it.
struct Pending {
  uint64_t cache_lines = 0;       // dirty lines of PM in the CPU cache
  uint64_t streaming_lines = 0;   // incomplete lines in the threads' buffers
  uint64_t media_units = 0;       // incomplete units in the DIMMs' buffers
  uint64_t media_unit_lines = 0;  // lines in these
};

class MemoryModel {
 public:
  static constexpr uint16_t kOperations = 16;

  // Throws Error(kInvalidArgument) if the profile does not validate.
  explicit MemoryModel(const Profile& profile);
  ~MemoryModel();
  MemoryModel(MemoryModel&&) noexcept;
  MemoryModel& operator=(MemoryModel&&) noexcept;

  void load(const Access& access);
  void store(const Access& access);
  // An atomic read-modify-write: a load and a store that drains the thread's streaming buffers.
  void locked(const Access& access);
  // A non-temporal store.
  void stream(const Access& access);
  // Every line that the range touches. A dirty one makes a WPQ insert; a clean or absent one is a
  // wasted flush. kClwb keeps the line or evicts it, as the profile says; the others evict it.
  // Flushes of DRAM act on the cache and are not counted.
  void flush(const Access& access, FlushKind kind);
  // Drains the thread's streaming buffers.
  void fence(uint16_t thread, uint16_t operation, uint32_t site);
  // What an atomic instruction does to the streaming buffers, without its access to memory.
  void locked_fence(uint16_t thread, uint16_t operation);

  void allocation(uint16_t operation, uint64_t bytes);
  void operation_done(uint16_t operation, uint64_t payload_bytes);

  // Counters restart at 0; what is in caches and buffers stays, so that a phase starts warm. What
  // an earlier phase left there and leaves it later is then charged to the operation that wrote it.
  void reset_counters();
  // Writes everything back: streaming buffers, cache, DIMM buffers, in this order; it all counts.
  void drain();

  const Counters& counters(uint16_t operation) const;
  Counters total() const;
  // By site number; sites that never appeared at the end are left out.
  const std::vector<SiteCounters>& sites() const;
  Pending pending() const;
  const Profile& profile() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace perdure::lab
