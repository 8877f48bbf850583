// Memory as it is at one instant, read while other threads go on writing to it.
//
//   Cut cut(base, bytes, 64 << 10);                        // the instant
//   for (uint64_t u = 0; u < cut.units(); ++u) cut.take(u, buffer);
//
// The range is made read-only with one call. Who writes to a unit of it then takes SIGSEGV; the
// handler copies the unit aside and makes it writable again. Nobody is let go on before the whole
// range is read-only, so whoever writes after he has seen another's write that was held up cannot
// be in the copy without it: what is read is what the memory held when the call returned.
//
// That works on every medium. What a handler does here is what may be done in one: plain stores to
// memory that is mapped already, mprotect, clock_gettime, sched_yield.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace perdure::pm {

struct CutRange;

class Cut {
 public:
  struct Figures {
    uint64_t protect_ns = 0;    // the call that makes the range read-only
    uint64_t pause_ns_max = 0;  // the longest that a write waited after it
    uint64_t pauses = 0;
  };

  // `unit_bytes` is a power of two and a multiple of the pages that the range is mapped with; so is
  // `bytes`, but for the power. Waits for an earlier Cut to end. Throws kIo, std::bad_alloc.
  Cut(char* base, uint64_t bytes, uint64_t unit_bytes, const std::string& name);
  ~Cut();
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  uint64_t units() const { return units_; }
  uint64_t bytes_of(uint64_t unit) const;

  // Copies a unit, as it was at the instant, and lets writers to it go on. Each unit is taken once.
  // Throws kIo if the system refuses to let them, in which case all go on and the copy is void.
  void take(uint64_t unit, char* to);
  // Lets writers to it go on.
  void skip(uint64_t unit);

  Figures figures() const;

 private:
  friend struct CutHandler;
  enum State : uint8_t { kHeld, kBusy, kLetGo, kCopied };

  // In the handler: a write to this address was held up.
  void meet(const char* address);
  bool let_go(uint64_t unit);
  void release_all();
  void throw_refused() const;

  std::unique_lock<std::mutex> lock_;
  CutRange* range_ = nullptr;
  char* base_;
  uint64_t bytes_;
  uint64_t unit_bytes_;
  uint64_t units_;
  std::string name_;
  char* aside_ = nullptr;  // as long as the range; pages appear where the handler copies
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  std::atomic<bool> complete_{false};  // the whole range is read-only
  std::atomic<bool> void_{false};
  std::atomic<uint64_t> pause_ns_max_{0};
  std::atomic<uint64_t> pauses_{0};
  uint64_t protect_ns_ = 0;
};

}  // namespace perdure::pm
