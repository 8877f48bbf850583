// Finds which of a few slots holds a number: a chained hash table of fixed size.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace perdure::lab {

class SlotIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit SlotIndex(uint64_t slots)
      : heads_(std::bit_ceil(2 * slots + 1), kNone), numbers_(slots), next_(slots, kNone) {}

  // The slot that holds the number, or kNone.
  uint32_t find(uint64_t number) const {
    uint32_t slot = heads_[bucket_of(number)];
    while (slot != kNone && numbers_[slot] != number) slot = next_[slot];
    return slot;
  }

  // The slot must be unused, the number absent.
  void insert(uint32_t slot, uint64_t number) {
    uint32_t& head = heads_[bucket_of(number)];
    numbers_[slot] = number;
    next_[slot] = head;
    head = slot;
  }

  // The slot must be in use.
  void erase(uint32_t slot) {
    uint32_t* link = &heads_[bucket_of(numbers_[slot])];
    while (*link != slot) link = &next_[*link];
    *link = next_[slot];
  }

  uint64_t number(uint32_t slot) const { return numbers_[slot]; }

 private:
  size_t bucket_of(uint64_t number) const {
    return (number * 0x9E3779B97F4A7C15 >> 32) & (heads_.size() - 1);
  }

  std::vector<uint32_t> heads_;
  std::vector<uint64_t> numbers_;
  std::vector<uint32_t> next_;
};

}  // namespace perdure::lab
