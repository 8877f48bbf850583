#include "copies.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace wrap_subject {
namespace {

template <size_t N>
struct Bytes {
  char data[N];
};

// The library's own compile-time uses of the functions still work.
constexpr std::array<int, 4> kCopied = [] {
  std::array<int, 4> source = {1, 2, 3, 4};
  std::array<int, 4> target = {};
  std::copy(source.begin(), source.end(), target.begin());
  return target;
}();
static_assert(kCopied[3] == 4);
static_assert(std::char_traits<char>::compare("abc", "abd", 3) < 0);
static_assert(std::char_traits<char>::length("four") == 4);
static_assert(__builtin_strlen("four") == 4);

volatile size_t unknown = 0;  // keeps sizes from being constants
size_t unknown_size(size_t bytes) { return bytes + unknown; }

template <size_t N>
void copy_struct(char* to, const char* from) {
  *reinterpret_cast<Bytes<N>*>(to) = *reinterpret_cast<const Bytes<N>*>(from);
}
template <size_t N>
void clear_struct(char* to, const char*) {
  *reinterpret_cast<Bytes<N>*>(to) = Bytes<N>{};
}
template <size_t N>
void construct_struct(char* to, const char*) {
  new (to) Bytes<N>();
}
template <size_t N>
void construct_array(char* to, const char*) {
  new (to) uint64_t[N / 8]();
}
template <size_t N>
void copy_constant(char* to, const char* from) {
  std::memcpy(to, from, N);
}
template <size_t N>
void move_constant(char* to, const char* from) {
  memmove(to, from, N);
}
template <size_t N>
void set_constant(char* to, const char*) {
  std::memset(to, 7, N);
}
template <size_t N>
void copy_builtin(char* to, const char* from) {
  __builtin_memcpy(to, from, N);
}
template <size_t N>
void set_builtin(char* to, const char*) {
  __builtin_memset(to, 0, N);
}
template <size_t N>
void copy_variable(char* to, const char* from) {
  memcpy(to, from, unknown_size(N));
}
template <size_t N>
void set_variable(char* to, const char*) {
  memset(to, 0, unknown_size(N));
}
template <size_t N>
void std_copy(char* to, const char* from) {
  const auto* source = reinterpret_cast<const uint64_t*>(from);
  std::copy(source, source + unknown_size(N / 8), reinterpret_cast<uint64_t*>(to));
}
template <size_t N>
void std_copy_backward(char* to, const char* from) {
  std::copy_backward(from, from + N, to + N);
}
template <size_t N>
void std_fill(char* to, const char*) {
  std::fill_n(to, unknown_size(N), char{0});
}
template <size_t N>
void std_fill_words(char* to, const char*) {
  auto* words = reinterpret_cast<uint64_t*>(to);
  std::fill(words, words + N / 8, uint64_t{0});
}
template <size_t N>
void std_uninitialized(char* to, const char* from) {
  const auto* source = reinterpret_cast<const uint32_t*>(from);
  std::uninitialized_copy_n(source, N / 4, reinterpret_cast<uint32_t*>(to));
}
template <size_t N>
void array_assign(char* to, const char* from) {
  using Array = std::array<uint64_t, N / 8>;
  *reinterpret_cast<Array*>(to) = *reinterpret_cast<const Array*>(from);
}
template <size_t N>
void loop_copy(char* to, const char* from) {
  const size_t n = unknown_size(N);
  for (size_t i = 0; i < n; ++i) to[i] = from[i];
}
template <size_t N>
void loop_clear(char* to, const char*) {
  auto* words = reinterpret_cast<uint64_t*>(to);
  for (size_t i = 0; i < N / 8; ++i) words[i] = 0;
}
template <size_t N>
void char_traits(char* to, const char* from) {
  std::char_traits<char>::copy(to, from, N);
}
template <size_t N>
void string_copy(char* to, const char* from) {
  const std::string text(from, N);
  text.copy(to, N);
}
template <size_t N>
void vector_assign(char* to, const char* from) {
  const std::vector<char> bytes(from, from + N);
  std::copy(bytes.begin(), bytes.end(), to);
}
void pair_assign(char* to, const char* from) {
  using Pair = std::pair<uint64_t, uint32_t>;
  *reinterpret_cast<std::pair<uint64_t, uint64_t>*>(to) = {
      *reinterpret_cast<const uint64_t*>(from), *reinterpret_cast<const uint64_t*>(from + 8)};
  static_assert(sizeof(Pair) == 16);
}
void vector_16(char* to, const char* from) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
[[gnu::target("avx2")]] void vector_32(char* to, const char* from) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
void unaligned_word(char* to, const char* from) {
  struct [[gnu::packed]] Word {
    uint64_t value;
  };
  reinterpret_cast<Word*>(to + 0)->value = reinterpret_cast<const Word*>(from)->value;
}

#define WAY(function, n, reads) {#function "<" #n ">", n, reads, function<n>}
#define WAYS(n)                                                                              \
  WAY(copy_struct, n, true), WAY(clear_struct, n, false), WAY(construct_struct, n, false),   \
      WAY(copy_constant, n, true), WAY(move_constant, n, true), WAY(set_constant, n, false), \
      WAY(copy_builtin, n, true), WAY(set_builtin, n, false), WAY(copy_variable, n, true),   \
      WAY(set_variable, n, false), WAY(std_copy_backward, n, true), WAY(std_fill, n, false), \
      WAY(loop_copy, n, true), WAY(char_traits, n, true), WAY(string_copy, n, true),         \
      WAY(vector_assign, n, true)
#define WORD_WAYS(n)                                                                     \
  WAY(construct_array, n, false), WAY(std_copy, n, true), WAY(std_fill_words, n, false), \
      WAY(std_uninitialized, n, true), WAY(array_assign, n, true), WAY(loop_clear, n, false)

constexpr Way kWays[] = {
    WAYS(1),
    WAYS(2),
    WAYS(3),
    WAYS(5),
    WAYS(7),
    WAYS(8),
    WAYS(9),
    WAYS(12),
    WAYS(15),
    WAYS(16),
    WAYS(17),
    WAYS(24),
    WAYS(31),
    WAYS(32),
    WAYS(33),
    WAYS(40),
    WAYS(48),
    WAYS(63),
    WAYS(64),
    WAYS(65),
    WAYS(96),
    WAYS(127),
    WAYS(128),
    WAYS(129),
    WAYS(200),
    WAYS(255),
    WAYS(256),
    WAYS(257),
    WAYS(300),
    WAYS(511),
    WAYS(512),
    WAYS(600),
    WAYS(4096),
    WAYS(8191),
    WORD_WAYS(8),
    WORD_WAYS(16),
    WORD_WAYS(24),
    WORD_WAYS(64),
    WORD_WAYS(72),
    WORD_WAYS(256),
    WORD_WAYS(512),
    WORD_WAYS(4096),
    // So large that the compiler would otherwise call a function.
    WAY(copy_struct, 40000, true),
    WAY(clear_struct, 40000, false),
    {"pair_assign", 16, true, pair_assign},
    {"vector_16", 16, true, vector_16},
    {"unaligned_word", 8, true, unaligned_word},
};

}  // namespace

const Way* ways_begin() { return std::begin(kWays); }
const Way* ways_end() { return std::end(kWays); }
void vector_32_way(char* to, const char* from) { vector_32(to, from); }

}  // namespace wrap_subject
