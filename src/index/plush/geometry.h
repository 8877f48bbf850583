// Which row and which entries a hash belongs to, of which partition.
//
// All levels are indexed by the leading bits of the hash, so everything that a key can meet belongs
// to one partition. A partition's first level in PM is the one that its rows are flushed to; it
// changes when the partition grows.
//
// Promises
//   - Rows are numbered like the nodes of a heap: a row of level k, whose records go to entry i of
//     it, is 2^level_bits(k) + i. So the rows that a partition has before it grows and those after
//     it are others.
//   - A partition's first level only ever gets deeper. Under the partition's lock it stands still;
//     without it, what is found by it counts if the row's version says so (rows.h).
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>

#include "index/plush/layout.h"

namespace perdure::index::plush {

// The rows of a partition, from the first on.
struct RowRange {
  uint64_t begin;
  uint64_t end;
};

class Geometry {
 public:
  // `top_max`: the first level that partitions grow to. Before set_top() each has the first of all.
  Geometry(const Root& root, uint32_t top_max);

  uint32_t partitions() const { return 1U << partition_bits_; }
  uint32_t partition_bits() const { return partition_bits_; }
  uint32_t directory_bits() const { return directory_bits_; }
  uint32_t fanout_bits() const { return fanout_bits_; }
  uint32_t fanout() const { return 1U << fanout_bits_; }
  uint32_t top_max() const { return top_max_; }
  uint32_t deepest() const { return deepest_; }  // of the levels in PM

  // ---- levels
  uint32_t level_bits(uint32_t level) const { return directory_bits_ + (level - 1) * fanout_bits_; }
  uint8_t index_shift(uint32_t level) const { return index_shifts_[level]; }
  uint64_t index_at(uint32_t level, uint64_t hash) const { return hash >> index_shifts_[level]; }
  // A tag has all bits of the hash but the highest, which the entry's index has.
  uint64_t full_hash(uint64_t tag, uint64_t index, uint32_t level) const {
    return tag >> 1 | index >> (level_bits(level) - 1) << 63;
  }
  // Of the index of an entry, whatever its level.
  static constexpr uint32_t kDeepestBits = 56;

  // ---- partitions
  uint32_t partition_of(uint64_t hash) const {
    return partition_bits_ == 0 ? 0 : static_cast<uint32_t>(hash >> (64 - partition_bits_));
  }
  // The first level in PM of a partition, which its rows are flushed to.
  uint32_t top_of(uint32_t partition) const {
    return tops_[partition].load(std::memory_order_acquire);
  }
  uint32_t top_for(uint64_t hash) const { return top_of(partition_of(hash)); }
  const std::atomic<uint8_t>* tops() const { return tops_.get(); }  // by partition
  // The same for all partitions, as it is but while they grow; 0 if they differ.
  const std::atomic<uint8_t>& common_top() const { return common_top_; }
  void set_top(uint32_t partition, uint32_t top);
  // Of the partition that an entry belongs to.
  uint32_t partition_above(uint32_t level, uint64_t index) const {
    return static_cast<uint32_t>(index >> (level_bits(level) - partition_bits_));
  }
  uint32_t top_above(uint32_t level, uint64_t index) const {
    return top_of(partition_above(level, index));
  }

  // ---- rows
  uint64_t row_of(uint32_t level, uint64_t index) const {
    return uint64_t{1} << level_bits(level) | index;
  }
  uint64_t row_for(uint64_t hash) const {
    const uint32_t top = top_for(hash);
    return row_of(top, index_at(top, hash));
  }
  static uint64_t index_of_row(uint64_t row) { return row ^ std::bit_floor(row); }
  uint32_t level_of_row(uint64_t row) const {
    return 1 + (static_cast<uint32_t>(std::bit_width(row)) - 1 - directory_bits_) / fanout_bits_;
  }
  // The row that an entry is below.
  uint64_t row_above(uint32_t level, uint64_t index) const {
    const uint32_t top = top_above(level, index);
    return row_of(top, index >> (level_bits(level) - level_bits(top)));
  }
  uint64_t rows_below(uint32_t top) const {
    return uint64_t{1} << (level_bits(top) - partition_bits_);
  }
  // Under the partition's lock.
  RowRange rows_in(uint32_t partition) const {
    const uint32_t top = top_of(partition);
    const uint64_t begin = row_of(top, partition * rows_below(top));
    return {begin, begin + rows_below(top)};
  }
  // The first hash of the next row; 0 after the last.
  uint64_t next_row(uint64_t hash, uint32_t top) const {
    return (index_at(top, hash) + 1) << index_shifts_[top];
  }
  // The first hash of its row.
  uint64_t row_begin(uint64_t hash, uint32_t top) const {
    return index_at(top, hash) << index_shifts_[top];
  }

 private:
  uint32_t directory_bits_;
  uint32_t fanout_bits_;
  uint32_t partition_bits_;
  uint32_t top_max_;
  uint32_t deepest_;
  uint8_t index_shifts_[kLevelsMax + 1];          // by level; of hashes
  std::unique_ptr<std::atomic<uint8_t>[]> tops_;  // by partition
  std::atomic<uint8_t> common_top_ = 1;
  std::mutex setting_top_;
};

}  // namespace perdure::index::plush
