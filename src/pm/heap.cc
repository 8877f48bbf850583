#include "pm/heap.h"

#include "pm/pool_impl.h"

namespace perdure::pm {

Heap::Heap(PoolImpl& pool) : pool_(pool), segments_(pool), blocks_(pool, segments_) {}

Heap::~Heap() = default;

uint64_t Heap::block_bytes(uint64_t bytes) {
  const int size_class = HeapBlocks::class_of(bytes);
  if (size_class >= 0) return HeapBlocks::class_bytes(size_class);
  return (bytes + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
}

void Heap::write_free(const PoolImpl& pool, uint64_t segment) {
  SegmentDescriptor& entry = pool.descriptors()[segment];
  store_release(entry.word, Segments::free_word(segment));
  pool.memory().flush(&entry.word, sizeof entry.word);
}

Lane& Heap::lane(uint32_t index) const { return pool_.lanes()[index]; }

bool Heap::is_scarce(uint64_t segments) const { return segments_.is_scarce(segments); }

void Heap::release(uint64_t block) noexcept {
  if (pool_.failed()) return;  // nothing is written any more
  const uint64_t segment = segments_.number_of(block);
  Segments::Info& info = segments_.info(segment);
  if (info.kind == SegmentKind::kSlab) {
    blocks_.release(block, info.size_class);
  } else if (info.kind == SegmentKind::kRun) {
    const uint32_t count = info.run_segments;
    info = Segments::Info{};
    segments_.release(segment, count);
  }  // else the pool is damaged: what leads here is no block
}

}  // namespace perdure::pm
