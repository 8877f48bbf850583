// The persistence primitives: the only way that stores to PM become durable and ordered.
//
//   memory.flush(&record, sizeof record);   // start writing back
//   memory.fence();                         // everything flushed by this thread is durable now
//   memory.persist(&bitmap, sizeof bitmap); // both
//
// What a store costs and means, per domain:
//   page  flush remembers the pages, fence calls msync on them; nothing reaches the medium in order
//         before that, and only what was fenced is sure to be there after a power failure.
//   line  flush is clwb (or clflushopt, clflush: picked at run time), fence is sfence. Within one
//         cache line stores persist in program order; across lines only after flush and fence.
//   byte  a store is durable once visible, and x86 makes stores visible in program order; flush is
//         nothing, fence drains the store buffer and the write-combining buffers.
// Aligned 8-byte stores are atomic in every domain.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "perdure/pool.h"
#include "pm/observe.h"
#include "pm/pause.h"

namespace perdure::pm {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kBlockBytes = 256;  // the media's unit of write on Optane
inline constexpr size_t kPageBytes = 4096;

enum class FlushKind : uint8_t { kClwb, kClflushopt, kClflush };

// The best flush instruction of this processor, or what PERDURE_FLUSH names (clwb, clflushopt,
// clflush) if the processor has it.
FlushKind detect_flush_kind();

// Whether this processor persists one line sooner by writing it past the caches than by storing and
// flushing it: timed once, on DRAM, in a fraction of a millisecond. PERDURE_FLUSH, if set, says no.
bool prefers_nontemporal_lines();

// The persistence primitives of one mapping. Copyable. Thread-safe.
class Memory {
 public:
  Memory() = default;
  // `failed`, if given, is set when the medium refuses a write: what was written since the last
  // good fence may be lost, so nothing more may be promised, and each later fence throws.
  explicit Memory(Domain domain, std::atomic<bool>* failed = nullptr)
      : failed_(failed),
        primitives_(primitives_of(domain)),
        domain_(domain),
        flush_kind_(detect_flush_kind()) {}

  Domain domain() const { return domain_; }
  // Whether the medium has refused a write.
  bool failed() const { return failed_ != nullptr && failed_->load(std::memory_order_relaxed); }

  // Starts writing back the cache lines of [address, address + bytes). Durable after fence().
  PERDURE_VERB void flush(const void* address, size_t bytes) const {
    if (primitives_ == Primitives::kLine) [[likely]] {
      flush_lines(address, bytes);
    } else if (primitives_ != Primitives::kByte) {
      flush_slowly(address, bytes);
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);  // keep program order in the compiler
  }

  // Waits until everything that this thread flushed or copied non-temporally by this object (or
  // another of the same pool) is durable. Throws Error(kIo) if the medium refuses a write, or has
  // refused one before: a kernel that failed to write a page forgets that it is dirty, so a second
  // attempt that succeeds would mean nothing.
  PERDURE_VERB void fence() const {
    may_pause();
    observe::fence();
    _mm_sfence();
    if (primitives_ >= Primitives::kPage) [[unlikely]]
      fence_slowly();
    may_pause();
  }

  PERDURE_VERB void persist(const void* address, size_t bytes) const {
    flush(address, bytes);
    fence();
  }

  // Copies whole 64-byte lines past the caches: durable after fence(), no flush needed. `target` is
  // 64-byte aligned and `bytes` a multiple of 64. Prefer it for blocks that are not read soon.
  PERDURE_VERB void copy_nontemporal(void* target, const void* source, size_t bytes) const {
    if (primitives_ == Primitives::kLine) [[likely]] {
      stream_lines(target, source, bytes);
    } else if (primitives_ == Primitives::kEmulated) {
      stream_slowly(target, source, bytes);
    } else {
      copy_words(target, source, bytes);
      flush(target, bytes);
    }
  }

 private:
  friend bool prefers_nontemporal_lines();

  // What the primitives do: as the domain says, or with an emulated medium (emulated_media.h) on
  // top of `line`. From kPage on, a fence is more than an instruction.
  enum class Primitives : uint8_t { kByte, kLine, kPage, kEmulated };
  static Primitives primitives_of(Domain domain);

  PERDURE_VERB void flush_lines(const void* address, size_t bytes) const {
    if constexpr (observe::kEnabled) {  // told instead of done: a model needs no real flush
      observe::flush(address, bytes, static_cast<int>(flush_kind_));
      return;
    }
    const auto begin = reinterpret_cast<uintptr_t>(address) & ~(kLineBytes - 1);
    const auto end = reinterpret_cast<uintptr_t>(address) + bytes;
    for (uintptr_t line = begin; line < end; line += kLineBytes) {
      // Inline assembly, so that a baseline x86-64 build may use them behind the run-time check.
      auto* target = reinterpret_cast<volatile char*>(line);
      switch (flush_kind_) {
        case FlushKind::kClwb:
          asm volatile("clwb %0" : "+m"(*target)::"memory");
          break;
        case FlushKind::kClflushopt:
          asm volatile("clflushopt %0" : "+m"(*target)::"memory");
          break;
        case FlushKind::kClflush:
          asm volatile("clflush %0" : "+m"(*target)::"memory");
          break;
      }
    }
  }

  PERDURE_VERB static void stream_lines(void* target, const void* source, size_t bytes) {
    observe::stream(target, bytes);
    // By words: what was stored by words just now is loaded again before it has left the store
    // buffer.
    auto* to = static_cast<long long*>(target);
    const auto* from = static_cast<const long long*>(source);
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes / sizeof(long long); ++i) _mm_stream_si64(to + i, from[i]);
  }

  static void copy_words(void* target, const void* source, size_t bytes) {
    auto* to = static_cast<uint64_t*>(target);
    const auto* from = static_cast<const uint64_t*>(source);
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
      std::atomic_ref<uint64_t>(to[i]).store(from[i], std::memory_order_relaxed);
    }
  }

  void flush_slowly(const void* address, size_t bytes) const;
  void stream_slowly(void* target, const void* source, size_t bytes) const;
  void fence_slowly() const;
  void remember_pages(const void* address, size_t bytes) const;
  void sync_pages() const;
  void sync_range(uintptr_t begin, uintptr_t end) const;

  std::atomic<bool>* failed_ = nullptr;
  Primitives primitives_ = Primitives::kByte;
  Domain domain_ = Domain::kByte;
  FlushKind flush_kind_ = FlushKind::kClflush;
};

// Fetches the line of an address into the caches, to be read or changed soon. Not the compiler's
// builtin: GCC 12 takes a function that does nothing else for one without effect, and drops calls
// of it.
[[gnu::always_inline]] inline void prefetch(const void* address) {
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(address)));
}
// To be changed: also takes it from other processors, which a store would else have to wait for.
// Does nothing on processors that do not know it.
[[gnu::always_inline]] inline void prefetch_to_change(const void* address) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
}

// Loads and stores of words that other threads may read or write at the same time. Plain members of
// persistent structs keep standard layout; these give them defined concurrent behaviour.
template <typename T>
T load_relaxed(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_relaxed);
}
template <typename T>
T load_acquire(const T& word) {
  const T value = std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
  may_pause();
  return value;
}
template <typename T>
void store_relaxed(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}
template <typename T>
void store_release(T& word, T value) {
  may_pause();
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
  may_pause();
}

}  // namespace perdure::pm
