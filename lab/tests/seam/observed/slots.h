// A durable structure so small that what it writes can be counted by hand.
#pragma once

#include <cstdint>

namespace seam_test {

// A slot is a line of its own.
struct alignas(64) Slot {
  uint64_t key;
  uint64_t value;
};

struct Slots {
  alignas(64) uint64_t used;  // a bit for each slot
  Slot slots[64];
};

// Two stores, a flush, a fence; then a store to the line of `used`, a flush, a fence.
void insert(Slots& slots, uint64_t number, uint64_t value);
// The same with a flush too many: of the slot, once more, after it was fenced.
void insert_wastefully(Slots& slots, uint64_t number, uint64_t value);
// As insert(), by functions for flush and fence that are not inlined.
void insert_out_of_line(Slots& slots, uint64_t number, uint64_t value);
// The same by one whose name says nothing.
void insert_by_own_functions(Slots& slots, uint64_t number, uint64_t value);
// A load of `used` and one of the slot.
uint64_t lookup(const Slots& slots, uint64_t number);
// Reads and writes this many words of DRAM.
void work_in_dram(uint64_t* words, uint64_t count);

}  // namespace seam_test
