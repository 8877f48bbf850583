// Bijections that scatter numbers: of all 64-bit words (keys of records), and of the first n
// numbers (an order to visit n things in).
#pragma once

#include <bit>
#include <cstdint>

namespace perdure::lab {

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

// A pseudo-random order of 0..n-1, computed and not stored: mixes within the next power of two and
// walks the cycle until it is back inside, fewer than two steps on average.
class Permutation {
 public:
  explicit Permutation(uint64_t count, uint64_t seed = 0)
      : count_(count),
        bits_(static_cast<unsigned>(std::bit_width(count > 1 ? count - 1 : uint64_t{1}))),
        mask_(~uint64_t{0} >> (64 - bits_)),
        offset_(mix_word(seed ^ 0x5851d3c9a7e4f60bULL)) {}

  uint64_t count() const { return count_; }

  // The number at this place; `place` must be below count().
  uint64_t at(uint64_t place) const {
    do {
      place = step(place);
    } while (place >= count_);
    return place;
  }

 private:
  // Bijective within bits_: additions and odd multiplications modulo 2^bits_, and xor-shifts.
  uint64_t step(uint64_t word) const {
    const unsigned half = (bits_ + 1) / 2;
    word = (word + offset_) & mask_;
    word = (word * 0xc8a5e1f3b7d20695ULL) & mask_;
    word ^= word >> half;
    word = (word * 0xb4f27d19a3c8e653ULL) & mask_;
    word ^= word >> half;
    return word;
  }

  uint64_t count_;
  unsigned bits_;
  uint64_t mask_;
  uint64_t offset_;
};

}  // namespace perdure::lab
