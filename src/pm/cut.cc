#include "pm/cut.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <new>

#include "pm/system_error.h"

namespace perdure::pm {

namespace {

uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Not a call that sanitizers look into: writers are held up by the system, of which they know
// nothing.
void copy_bytes(void* to, const void* from, uint64_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

std::mutex one_at_a_time;

}  // namespace

// Where there was a cut. A fault in it may be one that it caused although it has ended, and
// although there is another one by now: the thread was stopped between the fault and the handler.
// Such a store succeeds when it is tried again, since the memory is writable before the cut ends.
struct CutRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<uint64_t> ended{0};  // the last cut that ended there, by number

  bool has(uintptr_t at) const { return at >= begin.load() && at < end.load(); }
};

struct CutHandler {
  static inline std::atomic<Cut*> active{nullptr};
  static inline std::atomic<uint32_t> inside{0};  // threads that may look at it
  // The last ones, each range once. Who reads one while it is written over may take a fault for a
  // late one.
  static inline std::array<CutRange, 64> ranges;
  static inline uint64_t next_range = 0;  // under the lock of cuts, as the next one
  static inline uint64_t cuts = 0;
  static inline struct sigaction previous{};
  // Handlers that call each other in a circle end there.
  [[gnu::tls_model("initial-exec")]] static inline thread_local bool passing_on = false;
  // The fault of this thread that was taken for a late one last, and of which cut: there it is none
  // a second time.
  [[gnu::tls_model("initial-exec")]] static inline thread_local uintptr_t late_at = 0;
  [[gnu::tls_model("initial-exec")]] static inline thread_local uint64_t late_of = 0;

  static void install() {
    struct sigaction present{};
    if (::sigaction(SIGSEGV, nullptr, &present) != 0) throw_errno("sigaction", "SIGSEGV", errno);
    if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_fault) return;
    previous = present;
    struct sigaction own{};
    own.sa_sigaction = on_fault;
    own.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&own.sa_mask);
    if (::sigaction(SIGSEGV, &own, nullptr) != 0) throw_errno("sigaction", "SIGSEGV", errno);
    static const int at_fork = ::pthread_atfork(nullptr, nullptr, in_child);
    static_cast<void>(at_fork);
  }

  // A child has nobody who copies, and a mapping of its own: its stores must not wait.
  static void in_child() {
    inside.store(0);
    Cut* const cut = active.load();
    if (cut == nullptr) return;
    ::mprotect(cut->base_, cut->bytes_, PROT_READ | PROT_WRITE);
    active.store(nullptr);
  }

  static CutRange& range_of(uintptr_t begin, uintptr_t end) {
    for (CutRange& range : ranges) {
      if (range.begin.load() == begin && range.end.load() == end) return range;
    }
    CutRange& range = ranges[next_range++ % ranges.size()];
    range.end.store(0);
    range.ended.store(0);
    range.begin.store(begin);
    range.end.store(end);
    return range;
  }

  // Whether a store that met this fault is to be tried again.
  static bool meet(uintptr_t at) {
    ++inside;  // from here on the cut that is active stays
    Cut* const cut = active.load();
    // The one that is active may be of another range than the one that caused the fault.
    const bool own = cut != nullptr && at >= reinterpret_cast<uintptr_t>(cut->base_) &&
                     at < reinterpret_cast<uintptr_t>(cut->base_) + cut->bytes_;
    if (own) cut->meet(reinterpret_cast<const char*>(at));
    --inside;
    if (own) return true;
    uint64_t of = 0;
    for (const CutRange& range : ranges) {
      if (range.has(at)) of = std::max(of, range.ended.load());
    }
    if (of == 0 || (late_at == at && late_of == of)) return false;
    late_at = at;
    late_of = of;
    return true;
  }

  static void on_fault(int signal, siginfo_t* info, void* context) {
    const int saved_errno = errno;
    const bool met =
        info->si_code == SEGV_ACCERR && meet(reinterpret_cast<uintptr_t>(info->si_addr));
    errno = saved_errno;
    if (met) return;
    pass_on(signal, info, context);
    errno = saved_errno;
  }

  static void pass_on(int signal, siginfo_t* info, void* context) {
    const bool ours =
        passing_on || ((previous.sa_flags & SA_SIGINFO) == 0 &&
                       (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN));
    if (ours) {
      std::signal(signal, SIG_DFL);  // the fault comes again, and ends the process
      return;
    }
    passing_on = true;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      previous.sa_sigaction(signal, info, context);
    } else {
      previous.sa_handler(signal);
    }
    passing_on = false;
  }
};

Cut::Cut(char* base, uint64_t bytes, uint64_t unit_bytes, const std::string& name)
    : lock_(one_at_a_time),
      base_(base),
      bytes_(bytes),
      unit_bytes_(unit_bytes),
      units_((bytes + unit_bytes - 1) / unit_bytes),
      name_(name),
      states_(std::make_unique<std::atomic<uint8_t>[]>(units_)) {
  void* const aside = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (aside == MAP_FAILED) throw std::bad_alloc();
  aside_ = static_cast<char*>(aside);
  try {
    CutHandler::install();
  } catch (...) {
    ::munmap(aside_, bytes_);
    throw;
  }
  range_ = &CutHandler::range_of(reinterpret_cast<uintptr_t>(base_),
                                 reinterpret_cast<uintptr_t>(base_) + bytes_);
  CutHandler::active.store(this);
  const uint64_t begin = monotonic_ns();
  const int result = ::mprotect(base_, bytes_, PROT_READ);
  const int reason = errno;
  protect_ns_ = monotonic_ns() - begin;
  if (result != 0) {
    release_all();
    throw_errno("mprotect", name_, reason);
  }
  complete_.store(true);
}

Cut::~Cut() { release_all(); }

void Cut::release_all() {
  ::mprotect(base_, bytes_, PROT_READ | PROT_WRITE);
  for (uint64_t u = 0; u < units_; ++u) {
    uint8_t held = kHeld;
    states_[u].compare_exchange_strong(held, kLetGo);
  }
  void_.store(true);
  complete_.store(true);
  range_->ended.store(++CutHandler::cuts);
  CutHandler::active.store(nullptr);
  while (CutHandler::inside.load() != 0) ::sched_yield();
  ::munmap(aside_, bytes_);
}

uint64_t Cut::bytes_of(uint64_t unit) const {
  return std::min(unit_bytes_, bytes_ - unit * unit_bytes_);
}

bool Cut::let_go(uint64_t unit) {
  if (::mprotect(base_ + unit * unit_bytes_, bytes_of(unit), PROT_READ | PROT_WRITE) == 0)
    return true;
  // No room for another mapping: all at once needs none.
  void_.store(true);
  ::mprotect(base_, bytes_, PROT_READ | PROT_WRITE);
  return false;
}

void Cut::meet(const char* address) {
  const uint64_t begin = monotonic_ns();
  while (!complete_.load()) ::sched_yield();
  const uint64_t unit = static_cast<uint64_t>(address - base_) / unit_bytes_;
  std::atomic<uint8_t>& state = states_[unit];
  uint8_t seen = kHeld;
  if (state.compare_exchange_strong(seen, kBusy)) {
    const uint64_t at = unit * unit_bytes_;
    if (!void_.load()) copy_bytes(aside_ + at, base_ + at, bytes_of(unit));
    let_go(unit);
    state.store(kCopied);
  } else {
    while (state.load() == kBusy) ::sched_yield();
  }
  const uint64_t ns = monotonic_ns() - begin;
  pauses_.fetch_add(1);
  uint64_t most = pause_ns_max_.load();
  while (ns > most && !pause_ns_max_.compare_exchange_weak(most, ns)) {
  }
}

void Cut::take(uint64_t unit, char* to) {
  const uint64_t at = unit * unit_bytes_;
  std::atomic<uint8_t>& state = states_[unit];
  uint8_t seen = kHeld;
  if (state.compare_exchange_strong(seen, kBusy)) {
    copy_bytes(to, base_ + at, bytes_of(unit));
    let_go(unit);
    state.store(kLetGo);
  } else {
    while (state.load() == kBusy) ::sched_yield();
    copy_bytes(to, aside_ + at, bytes_of(unit));
    ::madvise(aside_ + at, bytes_of(unit), MADV_DONTNEED);
  }
  if (void_.load()) throw_refused();
}

void Cut::skip(uint64_t unit) {
  uint8_t seen = kHeld;
  if (states_[unit].compare_exchange_strong(seen, kBusy)) {
    let_go(unit);
    states_[unit].store(kLetGo);
  } else {
    while (states_[unit].load() == kBusy) ::sched_yield();
    ::madvise(aside_ + unit * unit_bytes_, bytes_of(unit), MADV_DONTNEED);
  }
  if (void_.load()) throw_refused();
}

void Cut::throw_refused() const {
  throw Error(ErrorCode::kIo,
              name_ +
                  ": the system refuses to split the pool's mapping for a backup; raise "
                  "/proc/sys/vm/max_map_count, or make the backup when nobody writes");
}

Cut::Figures Cut::figures() const { return {protect_ns_, pause_ns_max_.load(), pauses_.load()}; }

}  // namespace perdure::pm
