// Which heap blocks an index of a pool owns: for checks of whole pools, and for the laboratory.
#pragma once

#include <cstdint>
#include <functional>

#include "perdure/index.h"

namespace perdure::index {

using VisitOwned = std::function<void(uint64_t offset, uint64_t bytes)>;

class OwnsBlocks {
 public:
  virtual ~OwnsBlocks() = default;
  // Calls `visit` for every heap block that the structure owns. Nobody writes meanwhile.
  virtual void visit_blocks(const VisitOwned& visit) const = 0;
};

// Of an index that lies in a pool; others own none.
inline void visit_blocks_of(const AnyIndex& index, const VisitOwned& visit) {
  if (const auto* owner = dynamic_cast<const OwnsBlocks*>(&index)) owner->visit_blocks(visit);
}

}  // namespace perdure::index
