// Room in the pool that pending merges may need.
//
// A buffer may take records that its leaf's block has no room for: the merge that follows needs a
// larger block, or several. Each such leaf is promised that room when it takes the first of these
// records. Who would use up what promises count on asks here before.
//
// Free segments back the promises, not what the pool may still grow by: its medium may turn out to
// be full. A guide and no reservation: other structures of the pool do not ask.
#pragma once

#include <atomic>
#include <cstdint>

#include "pm/heap.h"
#include "pm/layout.h"
#include "pm/pool_impl.h"

namespace perdure::index::sheaf {

class Promises {
 public:
  explicit Promises(pm::PoolImpl& pool) : pool_(pool) {}

  // Whether there may be no room for so many bytes beside those that are promised. May let the pool
  // grow. Throws kIo. The thread has no transaction.
  bool is_scarce(uint64_t bytes) const {
    const uint64_t segments =
        (bytes_.load(std::memory_order_relaxed) + bytes) / pm::kSegmentBytes + kSpareSegments;
    const uint64_t growth = pool_.segments_left();
    if (!pool_.heap().is_scarce(segments + growth)) [[likely]]
      return false;
    return pool_.heap().is_scarce(segments) || !provide(segments);
  }
  bool any() const { return bytes_.load(std::memory_order_relaxed) != 0; }
  void give(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void end(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  // Blocks come by the segment, for each of the sizes that leaves have.
  static constexpr uint64_t kSpareSegments = 8;

  bool provide(uint64_t segments) const {
    try {
      pm::Heap::Txn txn(pool_.heap());
      txn.allocate(segments * pm::kSegmentBytes);  // given back at once: the pool stays as large
      return true;
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      return false;
    }
  }

  pm::PoolImpl& pool_;
  alignas(pm::kLineBytes) std::atomic<uint64_t> bytes_{
      0};  // merges change it, all operations read what is beside
};

}  // namespace perdure::index::sheaf
