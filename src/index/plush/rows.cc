#include "index/plush/rows.h"

namespace perdure::index::plush {

Rows::Rows(const Geometry& geometry, const Keys& keys) : keys_(keys) {
  const uint64_t rows = geometry.row_of(geometry.top_max(), 0) * 2;
  const uint64_t records_bytes = rows * sizeof(Bucket);
  arena_.emplace(records_bytes + rows * sizeof(Row));
  records_ = reinterpret_cast<Bucket*>(arena_->begin());
  rows_ = reinterpret_cast<Row*>(arena_->begin() + records_bytes);
}

void Rows::abandon(RowRange range) const {
  for (Row& row : in(range)) row.version.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

}  // namespace perdure::index::plush
