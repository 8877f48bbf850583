// How call-outs become events: the fast path, inlined into each of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lab/seam/event.h"

namespace perdure::lab::seam {

// Of each thread.
struct ThreadState {
  uint32_t quiet = 0;   // depth of what makes no events
  uint16_t number = 0;  // from 1; 0: not seen yet
  bool in_operation = false;
  bool scheduled = false;  // one of a Schedule's threads
};

// The calls that a thread is in, as return addresses; of deep ones the innermost.
struct CallStack {
  static constexpr uint32_t kKept = 64;  // a power of two
  uint32_t depth = 0;
  const void* calls[kKept] = {};
  const void* entries[kKept] = {};  // in each function, where it said that it was entered

  void enter(const void* call, const void* entry) {
    calls[depth % kKept] = call;
    entries[depth++ % kKept] = entry;
  }
  void leave() {
    if (depth > 0) --depth;  // who began before the runtime was there also leaves
  }
  // Where the function was called that is `up` calls above the innermost one; null if that is not
  // known.
  const void* call(uint32_t up) const {
    return up < depth && up < kKept ? calls[(depth - 1 - up) % kKept] : nullptr;
  }
  // In the innermost function that said so; null if there is none.
  const void* entry() const { return depth > 0 ? entries[(depth - 1) % kKept] : nullptr; }
};

// In the thread's static block, so that the very first call-out of a thread may use it.
extern thread_local ThreadState thread_state [[gnu::tls_model("initial-exec")]];
extern thread_local CallStack call_stack [[gnu::tls_model("initial-exec")]];
extern std::atomic<Sink*> installed_sink;
extern std::atomic<bool> several_threads;

void deliver(Sink& sink, Event event);
uint16_t own_thread();
// Whether this is persistent memory.
bool in_region(const void* address);

// Where a scheduled thread may have to let others run, or, with `always`, must if there are any.
void make_way(bool always);

inline void schedule_point() {
  if (thread_state.scheduled) [[unlikely]]
    make_way(false);
}

// With nobody to tell, which is the case in most recoveries of an exploration, a call-out is a load
// and a branch: what makes the event is a function of its own, lest every one of them keep a frame
// for it.
[[gnu::noinline, gnu::cold]] void make_event(EventKind kind, uint64_t address, size_t bytes,
                                             uint64_t pc, FlushKind flush);

inline void tell(EventKind kind, const volatile void* address, size_t bytes, const void* pc,
                 FlushKind flush = FlushKind::kClwb) {
  if (installed_sink.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    make_event(kind, reinterpret_cast<uint64_t>(address), bytes, reinterpret_cast<uint64_t>(pc),
               flush);
}

}  // namespace perdure::lab::seam
