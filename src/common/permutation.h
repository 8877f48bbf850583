// Bijections that scatter numbers: of all 64-bit words (keys of records), and of the first n
// numbers (orders to visit n things in).
#pragma once

#include <bit>
#include <cstdint>
#include <numeric>

namespace perdure {

// A bijective 64-bit mixer: every output bit depends on every input bit. Its constants and shifts
// are this benchmark's own and must stay unlike those that structures use to hash a key (ours
// multiply by 0x9fb21c651e98df25 after a shift by 32; murmur3, splitmix and wyhash have theirs):
// were they equal, the structure would undo the mixing and see the record numbers in order.
constexpr uint64_t mix_word(uint64_t word) {
  word ^= word >> 31;
  word *= 0xd6c3a54be19f2d8bULL;
  word ^= word >> 27;
  word *= 0xa92e1b7d5f30c64dULL;
  word ^= word >> 33;
  return word;
}

// Bijective among the numbers of so many bits (1 to 64): additions and odd multiplications modulo
// 2^bits, and xor-shifts.
constexpr uint64_t mix_low_bits(uint64_t word, unsigned bits, uint64_t offset) {
  const uint64_t mask = ~uint64_t{0} >> (64 - bits);
  const unsigned half = (bits + 1) / 2;
  word = (word + offset) & mask;
  word = (word * 0xc8a5e1f3b7d20695ULL) & mask;
  word ^= word >> half;
  word = (word * 0xb4f27d19a3c8e653ULL) & mask;
  word ^= word >> half;
  return word;
}

// A bijection of all words that keeps every range [2^k, 2^(k + 1)) and scatters within it: the
// first 2^k numbers are the first 2^k numbers, in another order.
constexpr uint64_t scatter_among_as_large(uint64_t number, uint64_t offset) {
  if (number < 2) return number;
  const auto bits = static_cast<unsigned>(std::bit_width(number)) - 1;
  const uint64_t first = uint64_t{1} << bits;
  return first | mix_low_bits(number - first, bits, offset);
}

// A pseudo-random order of 0..n-1, computed and not stored: mixes within the next power of two and
// walks the cycle until it is back inside, fewer than two steps on average.
class Permutation {
 public:
  explicit Permutation(uint64_t count, uint64_t seed = 0)
      : count_(count),
        bits_(static_cast<unsigned>(std::bit_width(count > 1 ? count - 1 : uint64_t{1}))),
        offset_(mix_word(seed ^ 0x5851d3c9a7e4f60bULL)) {}

  uint64_t count() const { return count_; }

  // The number at this place; `place` must be below count().
  uint64_t at(uint64_t place) const {
    do {
      place = mix_low_bits(place, bits_, offset_);
    } while (place >= count_);
    return place;
  }

 private:
  uint64_t count_;
  unsigned bits_;
  uint64_t offset_;
};

// An order of 0..n-1 in which neighbours are far apart: multiplicative hashing modulo n. Cheaper
// than a Permutation, and less random: places at equal distances come at equal distances.
class Scatter {
 public:
  explicit Scatter(uint64_t count, uint64_t seed = 0) : count_(count), fallback_(count, seed) {
    if (count < 2 || count > kCountMax) return;
    auto factor = static_cast<uint64_t>(static_cast<double>(count) * 0.6180339887498949);
    while (std::gcd(factor, count) != 1) ++factor;
    const uint64_t offset = mix_word(seed) % count;
    // Fractions of 2^64, rounded up: after fewer than 2^31 additions the sum is less than 1 / count
    // above the true fraction, so that it is cut down to the right number.
    step_ = share_of_words(factor);
    start_ = share_of_words(offset);
  }

  // The number at this place; `place` must be below the count.
  uint64_t at(uint64_t place) const {
    if (step_ == 0) [[unlikely]]
      return fallback_.at(place);
    return static_cast<uint64_t>((Wide{place * step_ + start_} * count_) >> 64);
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr uint64_t kCountMax = uint64_t{1} << 31;

  uint64_t share_of_words(uint64_t number) const {
    return static_cast<uint64_t>(((Wide{number} << 64) + count_ - 1) / count_);
  }

  uint64_t count_;
  uint64_t step_ = 0;  // 0: as the fallback orders
  uint64_t start_ = 0;
  Permutation fallback_;
};

}  // namespace perdure
