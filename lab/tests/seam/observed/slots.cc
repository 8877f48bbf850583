#include "seam/observed/slots.h"

#include "pm/memory.h"

namespace seam_test {
namespace {

const perdure::pm::Memory kMemory(perdure::Domain::kLine);

void reveal(Slots& slots, uint64_t number) {
  slots.used |= uint64_t{1} << number;
  kMemory.persist(&slots.used, sizeof slots.used);
}

// Primitives as functions of their own, one of which calls the other.
[[gnu::noinline]] void flush_range(const void* begin, size_t bytes) {
  kMemory.persist(begin, bytes);
}
[[gnu::noinline]] void persist_range(const void* begin, size_t bytes) {
  flush_range(begin, bytes);
  asm volatile("");  // no tail call
}

// The same with a name that says nothing.
[[gnu::noinline]] void make_safe(const void* begin, size_t bytes) {
  kMemory.persist(begin, bytes);
  asm volatile("");  // no tail call
}

}  // namespace

void insert(Slots& slots, uint64_t number, uint64_t value) {
  Slot& slot = slots.slots[number];
  slot.key = number;
  slot.value = value;
  kMemory.persist(&slot, 16);
  reveal(slots, number);
}

void insert_wastefully(Slots& slots, uint64_t number, uint64_t value) {
  Slot& slot = slots.slots[number];
  slot.key = number;
  slot.value = value;
  kMemory.persist(&slot, 16);
  kMemory.flush(&slot, 16);
  reveal(slots, number);
}

void insert_out_of_line(Slots& slots, uint64_t number, uint64_t value) {
  Slot& slot = slots.slots[number];
  slot.key = number;
  slot.value = value;
  flush_range(&slot, 16);
  slots.used |= uint64_t{1} << number;
  persist_range(&slots.used, sizeof slots.used);
}

void insert_by_own_functions(Slots& slots, uint64_t number, uint64_t value) {
  Slot& slot = slots.slots[number];
  slot.key = number;
  slot.value = value;
  make_safe(&slot, 16);
  slots.used |= uint64_t{1} << number;
  make_safe(&slots.used, sizeof slots.used);
}

uint64_t lookup(const Slots& slots, uint64_t number) {
  if ((slots.used >> number & 1) == 0) return 0;
  return slots.slots[number].value;
}

void work_in_dram(uint64_t* words, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) words[i * 7919 % count] += i;
}

}  // namespace seam_test
