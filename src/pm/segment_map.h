// Where segments lie in a pool's file, and where their descriptors do.
//
//   header ... descriptors | segments | table | segments | table | segments ...
//                          data       C               2C              4C
//
// Up to C, the capacity that the pool was made with, one table before the segments describes them
// all. A pool whose capacity was raised goes on behind it in extents, each as long as all that lies
// before it: [C, 2C), [2C, 4C), and so on. An extent begins with a table of its own, with 256 bytes
// for each 64 KiB of it, that of the table included. So the place of everything follows from C
// alone: to raise the capacity is to store one word.
//
// Segments are numbered by where they lie, from `data_offset` on. The numbers of tables are
// nobody's: no run reaches over them, and a pool never ends within one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "pm/layout.h"

namespace perdure::pm {

class SegmentMap {
 public:
  // Numbers of segments: a table in [begin, data), segments in [data, end).
  struct Extent {
    uint64_t begin;
    uint64_t data;
    uint64_t end;
  };

  SegmentMap() = default;
  // Of a header whose sizes fit each other.
  explicit SegmentMap(const PoolHeader& header)
      : units_(header.capacity_bytes / kSegmentBytes),
        data_(header.data_offset / kSegmentBytes),
        first_(units_ - data_),
        descriptors_offset_(header.descriptors_offset) {}

  // How many segments the table of the fixed part describes.
  uint64_t first_segments() const { return first_; }

  Extent extent_of(uint64_t segment) const {
    if (segment < first_) return {0, 0, first_};
    const uint64_t begin = units_ * std::bit_floor((segment + data_) / units_);  // in the file
    return {begin - data_, begin - data_ + tables_of(begin), 2 * begin - data_};
  }
  bool is_table(uint64_t segment) const { return segment < extent_of(segment).data; }

  // In the file. Of a segment of a table it is a place that nobody uses.
  uint64_t descriptor_offset(uint64_t segment) const {
    if (segment < first_) return descriptors_offset_ + segment * sizeof(SegmentDescriptor);
    const uint64_t begin = extent_of(segment).begin;
    return (begin + data_) * kSegmentBytes + (segment - begin) * sizeof(SegmentDescriptor);
  }

  // How many segments that are no table's are in [from, to).
  uint64_t count(uint64_t from, uint64_t to) const {
    uint64_t sum = 0;
    for_each_piece(from, to, [&](uint64_t first, uint64_t last) { sum += last - first; });
    return sum;
  }
  // Behind so many of these, from `from` on.
  uint64_t advance(uint64_t from, uint64_t count) const {
    while (count > 0) {
      const Extent extent = extent_of(from);
      from = std::max(from, extent.data);
      const uint64_t step = std::min(count, extent.end - from);
      from += step;
      count -= step;
    }
    return from;
  }
  // Where a pool may end that would end here.
  uint64_t end_at(uint64_t end) const {
    if (end == 0) return 0;
    const Extent extent = extent_of(end - 1);
    return end <= extent.data ? extent.begin : end;
  }

  // Calls `visit(first, last)` for what of [from, to) is no table's, extent by extent.
  template <typename Visit>
  void for_each_piece(uint64_t from, uint64_t to, Visit visit) const {
    while (from < to) {
      const Extent extent = extent_of(from);
      from = std::max(from, extent.data);
      const uint64_t last = std::min(to, extent.end);
      if (from < last) visit(from, last);
      from = extent.end;
    }
  }

 private:
  static uint64_t tables_of(uint64_t segments) {
    constexpr uint64_t kDescribed = kSegmentBytes / sizeof(SegmentDescriptor);
    return (segments + kDescribed - 1) / kDescribed;
  }

  uint64_t units_ = 0;  // C, in segments
  uint64_t data_ = 0;   // where segment 0 lies, likewise
  uint64_t first_ = 0;
  uint64_t descriptors_offset_ = 0;
};

}  // namespace perdure::pm
