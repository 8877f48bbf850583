#include "store/latch.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "pm/barrier.h"

namespace perdure::store {

namespace {

std::atomic<uint64_t> barriers_begun{0};
std::atomic<uint64_t> last_ended{0};

// The names of threads that there are, each at its number modulo the size.
constexpr uint64_t kNames = 1024;
constinit std::array<std::atomic<uint64_t>, kNames> names_there{};
std::atomic<uint64_t> names_given{0};
// How many threads that had one have ended: a thread that found the table full looks at it again
// once that has changed.
std::atomic<uint64_t> names_back{0};
constexpr uint64_t kNotRefused = ~uint64_t{0};

}  // namespace

// At the end of a thread. Objects of it that go later may use a store: they have no name.
struct ThreadName::Leaving {
  ~Leaving() {
    const uint64_t name = std::exchange(mine_, kNone);
    has_ended = true;
    if (name == kNone) return;
    names_there[name % kNames].store(kNone, std::memory_order_release);
    names_back.fetch_add(1, std::memory_order_release);
  }
  static constinit inline thread_local bool has_ended = false;
  static constinit inline thread_local uint64_t refused_at = kNotRefused;
};

uint64_t ThreadName::take() {
  if (mine_ != kNone || Leaving::has_ended) return mine_;
  const uint64_t back = names_back.load(std::memory_order_acquire);
  if (back == Leaving::refused_at) return kNone;
  const uint64_t round = (names_given.fetch_add(1, std::memory_order_relaxed) + 1) * kNames;
  for (uint64_t place = 0; place < kNames; ++place) {
    uint64_t nobody = kNone;
    if (names_there[place].load(std::memory_order_relaxed) != kNone ||
        !names_there[place].compare_exchange_strong(nobody, round + place,
                                                    std::memory_order_acq_rel)) {
      continue;
    }
    mine_ = round + place;
    static thread_local const Leaving leaving;
    return mine_;
  }
  Leaving::refused_at = back;
  return kNone;
}

bool ThreadName::is_alive(uint64_t name) {
  return name != kNone && names_there[name % kNames].load(std::memory_order_acquire) == name;
}

uint64_t next_barrier() { return barriers_begun.load() + 1; }
uint64_t ended_barrier() { return last_ended.load(std::memory_order_acquire); }

bool has_barrier() {
  static const bool there = pm::register_for_barriers();
  return there;
}

// There is a bias only where there was a barrier before. A child of fork() registers again.
void barrier_of_all_threads() {
  const uint64_t number = barriers_begun.fetch_add(1) + 1;
  if (pm::barrier_in_all_threads() || pm::register_for_barriers()) {
    uint64_t last = last_ended.load(std::memory_order_relaxed);
    while (last < number &&
           !last_ended.compare_exchange_weak(last, number, std::memory_order_release)) {
    }
    return;
  }
  // Somebody forbade the call meanwhile: two threads at a time would be worse.
  std::fputs(
      "perdure: membarrier(2) is refused, which the system allowed when the store was first "
      "used; allow it, or forbid it from the start\n",
      stderr);
  std::abort();
}

}  // namespace perdure::store
