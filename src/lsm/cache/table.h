// Where blocks are: one part of a block cache's index, in DRAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perdure::block_cache {

// A record: a segment, its use (counted while the cache is open), a line of it; and whether it was
// asked for.
struct Where {
  static constexpr uint32_t kPlaceBits = 20;
  static constexpr uint32_t kUseBits = 23;
  static constexpr uint64_t kAskedFor = uint64_t{1} << 63;

  uint64_t word = 0;  // 0: nowhere, since a record never begins at line 0

  static Where of(uint64_t segment, uint64_t use, uint64_t line) {
    constexpr uint64_t kUses = (uint64_t{1} << kUseBits) - 1;
    return {(use & kUses) << (2 * kPlaceBits) | segment << kPlaceBits | line};
  }
  uint64_t line() const { return word & ((uint64_t{1} << kPlaceBits) - 1); }
  uint64_t segment() const { return word >> kPlaceBits & ((uint64_t{1} << kPlaceBits) - 1); }
  bool asked_for() const { return (word & kAskedFor) != 0; }
  bool same_place(Where other) const { return ((word ^ other.word) & ~kAskedFor) == 0; }
  bool is_of(uint64_t use) const { return same_place(of(segment(), use, line())); }
};

// A hash table by 64-bit hashes, which are the keys: what they stand for is verified in PM. Linear
// probing; at most three quarters of its slots are in use. Not thread-safe.
class Table {
 public:
  Where* find(uint64_t hash) {
    if (slots_.empty()) return nullptr;
    for (size_t i = home(hash); slots_[i].where.word != 0; i = next(i)) {
      if (slots_[i].hash == hash) return &slots_[i].where;
    }
    return nullptr;
  }
  // Makes room for one more, so that put() does not throw.
  void reserve_one() {
    if ((count_ + 1) * 4 > slots_.size() * 3) grow();
  }
  // After reserve_one().
  void put(uint64_t hash, Where where) noexcept {
    size_t i = home(hash);
    for (; slots_[i].where.word != 0; i = next(i)) {
      if (slots_[i].hash != hash) continue;
      slots_[i].where = where;
      return;
    }
    slots_[i] = {hash, where};
    ++count_;
  }
  void erase(uint64_t hash) noexcept {
    if (slots_.empty()) return;
    size_t hole = home(hash);
    while (slots_[hole].where.word != 0 && slots_[hole].hash != hash) hole = next(hole);
    if (slots_[hole].where.word == 0) return;
    // Whoever may stand nearer to its home comes nearer.
    for (size_t i = next(hole); slots_[i].where.word != 0; i = next(i)) {
      const size_t away = (i - home(slots_[i].hash)) & (slots_.size() - 1);
      if (away < ((i - hole) & (slots_.size() - 1))) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = {};
    --count_;
  }
  size_t count() const { return count_; }
  size_t dram_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint64_t hash = 0;
    Where where;
  };
  static_assert(sizeof(Slot) == 16);

  size_t home(uint64_t hash) const { return hash & (slots_.size() - 1); }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? 4 : slots_.size() * 2);
    before.swap(slots_);
    count_ = 0;
    for (const Slot& slot : before) {
      if (slot.where.word != 0) put(slot.hash, slot.where);
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace perdure::block_cache
