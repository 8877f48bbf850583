// What a running program tells: each access to memory, each persistence instruction, the bounds of
// operations. The runtime (runtime.h) makes these from compiler call-outs and gives them, one at a
// time, to the sink that is installed: the memory model or the recorder of the crash explorer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lab/flush_kind.h"

namespace perdure::lab {

enum class EventKind : uint8_t {
  kLoad,
  kStore,     // about to be carried out: its bytes can be read when the thread's next event comes
  kUpdate,    // an atomic read-modify-write: a load, a store and a full fence
  kStream,    // a non-temporal store, about to be carried out
  kFlush,     // of the lines of [address, address + bytes)
  kFence,     // sfence or mfence
  kLocked,    // a full fence that an atomic instruction brings along
  kSync,      // msync of [address, address + bytes)
  kAllocate,  // of `bytes`
  kBegin,     // an operation begins; `address` is its type, `bytes` its payload
  kEnd,
};

struct Event {
  EventKind kind;
  FlushKind flush = FlushKind::kClwb;
  uint16_t thread = 0;  // in the order in which threads were first seen, from 0
  uint32_t region = 0;  // of persistent memory, from 1; 0: DRAM
  uint64_t bytes = 0;
  uint64_t address = 0;  // as the program sees it
  uint64_t offset = 0;   // within the region
  uint64_t pc = 0;       // where in the program
};

// Takes events. Called by one thread at a time; what it does itself makes no events.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void on(const Event& event) = 0;
  // Whether accesses to DRAM inside operations are wanted as well.
  virtual bool wants_dram() const { return false; }
  virtual bool wants_loads() const { return true; }
  // The calling thread lets others run: what it stored so far can be read now.
  virtual void on_pause() {}
  // A region begins to be persistent memory, or is about to end.
  virtual void on_region(void* base, uint64_t bytes, const char* name) {
    static_cast<void>(base), static_cast<void>(bytes), static_cast<void>(name);
  }
  virtual void on_region_end(void* base) { static_cast<void>(base); }
};

}  // namespace perdure::lab
