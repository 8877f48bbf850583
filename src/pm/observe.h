// The seam towards the instruments. In the ordinary build everything here is empty and costs
// nothing. In the observed build (PERDURE_OBSERVED: see docs/lab.md) loads, stores and atomics
// report themselves through compiler call-outs, and what no compiler can see is told here: flushes,
// fences, non-temporal stores, mappings and allocations. The functions are the runtime's
// (lab/seam); nothing in pm or index includes its headers.
#pragma once

#include <cstddef>
#include <cstdint>

// A persistence primitive: in observed code a part of its caller, which the event is attributed to.
#ifdef PERDURE_OBSERVED
#define PERDURE_VERB [[gnu::always_inline]]
#else
#define PERDURE_VERB
#endif

#ifdef PERDURE_OBSERVED
extern "C" {
// Each takes its site from its return address, so that it is the line that calls the primitive.
void perdure_lab_flush(const void* address, size_t bytes, int kind);
void perdure_lab_fence();
void perdure_lab_stream(const void* address, size_t bytes);
void perdure_lab_allocate(size_t bytes);
void perdure_lab_region(void* base, size_t bytes, const char* name);
void perdure_lab_region_end(void* base);
}
#endif

namespace perdure::pm::observe {

#ifdef PERDURE_OBSERVED
inline constexpr bool kEnabled = true;

// The lines of [address, address + bytes) are written back; `kind` is a FlushKind.
[[gnu::always_inline]] inline void flush(const void* address, size_t bytes, int kind) {
  perdure_lab_flush(address, bytes, kind);
}
[[gnu::always_inline]] inline void fence() { perdure_lab_fence(); }
// [address, address + bytes) is about to be written past the caches.
[[gnu::always_inline]] inline void stream(const void* address, size_t bytes) {
  perdure_lab_stream(address, bytes);
}
inline void allocate(size_t bytes) { perdure_lab_allocate(bytes); }
inline void map(void* base, size_t bytes, const char* name) {
  perdure_lab_region(base, bytes, name);
}
inline void unmap(void* base) { perdure_lab_region_end(base); }
#else
inline constexpr bool kEnabled = false;
inline void flush(const void*, size_t, int) {}
inline void fence() {}
inline void stream(const void*, size_t) {}
inline void allocate(size_t) {}
inline void map(void*, size_t, const char*) {}
inline void unmap(void*) {}
#endif

}  // namespace perdure::pm::observe
