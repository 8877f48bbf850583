#include <atomic>
#include <cstdint>
#include <type_traits>

#include "seam/observed/accesses.h"

namespace seam_test {
namespace {

__extension__ typedef unsigned __int128 Word16;

constexpr uint64_t kOffset = 256;
constexpr int kBefore = 12;

template <typename T>
T* word(unsigned char* base) {
  return reinterpret_cast<T*>(base + kOffset);
}

// Unseen: by assembly, byte by byte.
template <typename T>
void set_unseen(unsigned char* base, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    const auto byte = static_cast<unsigned char>(value >> (8 * i));
    asm volatile("movb %1, %0" : "=m"(base[kOffset + i]) : "q"(byte));
  }
}
template <typename T>
bool holds_unseen(unsigned char* base, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    unsigned char byte = 0;
    asm volatile("movb %1, %0" : "=q"(byte) : "m"(base[kOffset + i]));
    if (byte != static_cast<unsigned char>(value >> (8 * i))) return false;
  }
  return true;
}

template <typename T, int kOrder>
bool load(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_load_n(word<T>(base), kOrder) == T{kBefore};
}
template <typename T, int kOrder>
bool store(unsigned char* base) {
  __atomic_store_n(word<T>(base), T{5}, kOrder);
  return holds_unseen<T>(base, 5);
}
template <typename T, int kOrder>
bool exchange(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_exchange_n(word<T>(base), T{5}, kOrder) == T{kBefore} && holds_unseen<T>(base, 5);
}
template <typename T>
bool fetch_add(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_add(word<T>(base), T{3}, __ATOMIC_RELAXED) == T{kBefore} &&
         holds_unseen<T>(base, kBefore + 3);
}
template <typename T>
bool fetch_sub(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_sub(word<T>(base), T{3}, __ATOMIC_SEQ_CST) == T{kBefore} &&
         holds_unseen<T>(base, kBefore - 3);
}
template <typename T>
bool fetch_and(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_and(word<T>(base), T{10}, __ATOMIC_ACQ_REL) == T{kBefore} &&
         holds_unseen<T>(base, kBefore & 10);
}
template <typename T>
bool fetch_or(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_or(word<T>(base), T{3}, __ATOMIC_RELEASE) == T{kBefore} &&
         holds_unseen<T>(base, kBefore | 3);
}
template <typename T>
bool fetch_xor(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_xor(word<T>(base), T{10}, __ATOMIC_ACQUIRE) == T{kBefore} &&
         holds_unseen<T>(base, kBefore ^ 10);
}
template <typename T>
bool fetch_nand(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  return __atomic_fetch_nand(word<T>(base), T{10}, __ATOMIC_SEQ_CST) == T{kBefore} &&
         holds_unseen<T>(base, static_cast<T>(~(T{kBefore} & T{10})));
}
template <typename T, bool kWeak, bool kSucceeds>
bool compare_exchange(unsigned char* base) {
  set_unseen<T>(base, kBefore);
  T expected = kSucceeds ? T{kBefore} : T{1};
  const bool done = __atomic_compare_exchange_n(word<T>(base), &expected, T{5}, kWeak,
                                                __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
  return done == kSucceeds && expected == T{kBefore} &&
         holds_unseen<T>(base, kSucceeds ? T{5} : T{kBefore});
}

template <typename T>
void add(std::vector<Case>& cases, const std::string& type) {
  constexpr uint64_t kSize = sizeof(T);
  const auto told = [&](const char* name, bool (*run)(unsigned char*), EventKind kind) {
    cases.push_back({std::string(name) + ", " + type, run, {{kind, kOffset, kSize}}});
  };
  told("load relaxed", load<T, __ATOMIC_RELAXED>, EventKind::kLoad);
  told("load acquire", load<T, __ATOMIC_ACQUIRE>, EventKind::kLoad);
  told("load sequential", load<T, __ATOMIC_SEQ_CST>, EventKind::kLoad);
  // A store of 16 bytes is a locked instruction whatever its order.
  constexpr EventKind kStored = kSize == 16 ? EventKind::kUpdate : EventKind::kStore;
  told("store relaxed", store<T, __ATOMIC_RELAXED>, kStored);
  told("store release", store<T, __ATOMIC_RELEASE>, kStored);
  told("store sequential", store<T, __ATOMIC_SEQ_CST>, kStored);
  if (kSize < 16) cases.back().expected.push_back({EventKind::kLocked});
  told("exchange relaxed", exchange<T, __ATOMIC_RELAXED>, EventKind::kUpdate);
  told("exchange sequential", exchange<T, __ATOMIC_SEQ_CST>, EventKind::kUpdate);
  told("fetch_add", fetch_add<T>, EventKind::kUpdate);
  told("fetch_sub", fetch_sub<T>, EventKind::kUpdate);
  told("fetch_and", fetch_and<T>, EventKind::kUpdate);
  told("fetch_or", fetch_or<T>, EventKind::kUpdate);
  told("fetch_xor", fetch_xor<T>, EventKind::kUpdate);
  told("fetch_nand", fetch_nand<T>, EventKind::kUpdate);
  told("compare_exchange", compare_exchange<T, false, true>, EventKind::kUpdate);
  told("compare_exchange that fails", compare_exchange<T, false, false>, EventKind::kUpdate);
  told("compare_exchange weak", compare_exchange<T, true, true>, EventKind::kUpdate);
  told("compare_exchange weak that fails", compare_exchange<T, true, false>, EventKind::kUpdate);
}

bool full_fence(unsigned char*) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}
// No instruction on this processor.
bool light_fences(unsigned char*) {
  std::atomic_thread_fence(std::memory_order_acquire);
  std::atomic_thread_fence(std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}
bool through_std_atomic(unsigned char* base) {
  std::atomic_ref<uint64_t> shared(*word<uint64_t>(base));
  shared.store(kBefore, std::memory_order_relaxed);
  return ++shared == kBefore + 1 && shared.load(std::memory_order_acquire) == kBefore + 1;
}

}  // namespace

std::vector<Case> atomic_cases() {
  std::vector<Case> cases;
  add<uint8_t>(cases, "1 byte");
  add<uint16_t>(cases, "2 bytes");
  add<uint32_t>(cases, "4 bytes");
  add<uint64_t>(cases, "8 bytes");
  add<Word16>(cases, "16 bytes");
  cases.push_back({"full fence", full_fence, {{EventKind::kLocked}}});
  cases.push_back({"light fences", light_fences, {}});
  cases.push_back({"std::atomic_ref",
                   through_std_atomic,
                   {{EventKind::kStore, kOffset, 8},
                    {EventKind::kUpdate, kOffset, 8},
                    {EventKind::kLoad, kOffset, 8}}});
  return cases;
}

}  // namespace seam_test
