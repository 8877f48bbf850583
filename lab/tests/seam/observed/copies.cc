#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "seam/observed/accesses.h"

namespace seam_test {
namespace {

template <size_t N>
struct Bytes {
  unsigned char data[N];
};
template <size_t N>
using Vector [[gnu::vector_size(N), gnu::aligned(N)]] = unsigned char;

// Source and target of copies, and a length that the compiler does not know.
constexpr uint64_t kFrom = 1024;
constexpr uint64_t kTo = 2048;
volatile size_t unknown = 0;

bool equal(const unsigned char* base, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    unsigned char from = 0;
    unsigned char to = 0;
    // Seen by nobody: assembly is not called out.
    asm volatile("movb %1, %0" : "=q"(from) : "m"(base[kFrom + i]));
    asm volatile("movb %1, %0" : "=q"(to) : "m"(base[kTo + i]));
    if (from != to) return false;
  }
  return true;
}

template <size_t N>
bool copy_vector(unsigned char* base) {
  *reinterpret_cast<Vector<N>*>(base + kTo) = *reinterpret_cast<const Vector<N>*>(base + kFrom);
  return equal(base, N);
}
bool copy_by_intrinsics(unsigned char* base) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(base + kTo),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + kFrom)));
  return equal(base, 16);
}
template <size_t N>
bool copy_struct(unsigned char* base) {
  *reinterpret_cast<Bytes<N>*>(base + kTo) = *reinterpret_cast<const Bytes<N>*>(base + kFrom);
  return equal(base, N);
}
template <size_t N>
bool clear_struct(unsigned char* base) {
  *reinterpret_cast<Bytes<N>*>(base + kTo) = Bytes<N>{};
  return true;
}
template <size_t N>
bool construct_struct(unsigned char* base) {
  new (base + kTo) Bytes<N>();
  return true;
}
template <size_t N>
bool copy_memory(unsigned char* base) {
  std::memcpy(base + kTo, base + kFrom, N);
  return equal(base, N);
}
template <size_t N>
bool copy_unknown(unsigned char* base) {
  std::memcpy(base + kTo, base + kFrom, N + unknown);
  return equal(base, N);
}
template <size_t N>
bool move_memory(unsigned char* base) {
  std::memmove(base + kTo, base + kFrom, N + unknown);
  return equal(base, N);
}
template <size_t N>
bool set_memory(unsigned char* base) {
  std::memset(base + kTo, 3, N);
  return true;
}
template <size_t N>
bool set_unknown(unsigned char* base) {
  std::memset(base + kTo, 3, N + unknown);
  return true;
}
template <size_t N>
bool fill_by_algorithm(unsigned char* base) {
  std::fill(base + kTo, base + kTo + N, static_cast<unsigned char>(4));
  return true;
}
template <size_t N>
bool copy_by_algorithm(unsigned char* base) {
  std::copy(base + kFrom, base + kFrom + N, base + kTo);
  return equal(base, N);
}

// Overlapping, towards higher and towards lower addresses.
bool move_up(unsigned char* base) {
  std::memmove(base + kTo + 40, base + kTo, 100 + unknown);
  return true;
}
bool move_down(unsigned char* base) {
  std::memmove(base + kTo, base + kTo + 40, 100 + unknown);
  return true;
}
bool compare_memory(unsigned char* base) {
  return std::memcmp(base + kFrom, base + kFrom, 48 + unknown) == 0;
}
bool store_string(unsigned char* base) {
  std::strcpy(reinterpret_cast<char*>(base + kTo), "nineteen characters");
  return true;
}

template <size_t N>
void add_copies(std::vector<Case>& cases) {
  const std::string bytes = std::to_string(N) + " bytes";
  const std::vector<Access> copied = {{EventKind::kLoad, kFrom, N}, {EventKind::kStore, kTo, N}};
  const std::vector<Access> stored = {{EventKind::kStore, kTo, N}};
  cases.push_back({"struct copy of " + bytes, copy_struct<N>, copied, true});
  cases.push_back({"struct cleared, " + bytes, clear_struct<N>, stored, true});
  cases.push_back({"struct constructed, " + bytes, construct_struct<N>, stored, true});
  cases.push_back({"memcpy of " + bytes, copy_memory<N>, copied, true});
  cases.push_back({"memcpy of unknown length, " + bytes, copy_unknown<N>, copied, true});
  cases.push_back({"memmove of " + bytes, move_memory<N>, copied, true});
  cases.push_back({"memset of " + bytes, set_memory<N>, stored, true});
  cases.push_back({"memset of unknown length, " + bytes, set_unknown<N>, stored, true});
  cases.push_back({"std::fill of " + bytes, fill_by_algorithm<N>, stored, true});
  cases.push_back({"std::copy of " + bytes, copy_by_algorithm<N>, copied, true});
}

template <size_t N>
void add_vector(std::vector<Case>& cases) {
  cases.push_back({"vector copy of " + std::to_string(N) + " bytes",
                   copy_vector<N>,
                   {{EventKind::kLoad, kFrom, N}, {EventKind::kStore, kTo, N}},
                   true});
}

}  // namespace

std::vector<Case> copy_cases() {
  std::vector<Case> cases;
  add_vector<16>(cases);
  add_vector<32>(cases);
  add_vector<64>(cases);
  cases.push_back({"copy by intrinsics",
                   copy_by_intrinsics,
                   {{EventKind::kLoad, kFrom, 16}, {EventKind::kStore, kTo, 16}},
                   true});
  add_copies<1>(cases);
  add_copies<3>(cases);
  add_copies<8>(cases);
  add_copies<12>(cases);
  add_copies<16>(cases);
  add_copies<24>(cases);
  add_copies<40>(cases);
  add_copies<64>(cases);
  add_copies<100>(cases);
  add_copies<256>(cases);
  add_copies<1000>(cases);
  cases.push_back({"memmove up",
                   move_up,
                   {{EventKind::kLoad, kTo, 100}, {EventKind::kStore, kTo + 40, 100}},
                   true});
  cases.push_back({"memmove down",
                   move_down,
                   {{EventKind::kLoad, kTo + 40, 100}, {EventKind::kStore, kTo, 100}},
                   true});
  cases.push_back(
      {"memcmp", compare_memory, {{EventKind::kLoad, kFrom, 48}, {EventKind::kLoad, kFrom, 48}}});
  cases.push_back({"strcpy", store_string, {{EventKind::kStore, kTo, 20}}, true});
  return cases;
}

}  // namespace seam_test
