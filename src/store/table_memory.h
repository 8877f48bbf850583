// Memory of the tables that hash indexes have in DRAM, in huge pages: a table is read in no order,
// and with small pages nearly each look at it misses the TLB, too.
//
// The tables of a store's partitions are smaller than a huge page, or not a multiple of it. So they
// stand one behind the other in slabs, and share huge pages. A slab is address space, used from its
// begin to its end once; what is given back is given to the system, and a slab in which there is
// nothing any more goes as a whole. Small tables, and all of them where address space is short,
// come from the heap.
#pragma once

#include <cstdint>
#include <memory>

namespace perdure::store {

// Words, zeros to begin with.
class TableMemory {
 public:
  TableMemory() = default;
  // Throws std::bad_alloc.
  explicit TableMemory(uint64_t words);
  ~TableMemory() { release(); }
  TableMemory(TableMemory&& other) noexcept { swap(other); }
  TableMemory& operator=(TableMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  TableMemory(const TableMemory&) = delete;
  TableMemory& operator=(const TableMemory&) = delete;
  void swap(TableMemory& other) noexcept;

  uint64_t* get() const { return words_; }
  uint64_t& operator[](uint64_t i) const { return words_[i]; }

 private:
  struct Slab;
  static Slab* new_slab(uint64_t bytes);
  static Slab*& current();
  void release() noexcept;

  std::unique_ptr<uint64_t[]> of_heap_;  // unless it is in a slab
  uint64_t* words_ = nullptr;
  Slab* slab_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace perdure::store
