#include "pm/heap.h"

#include <fmt/core.h>

#include <bit>

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
  SegmentDescriptor& entry = pool.descriptor(segment);
  store_release(entry.word, Segments::free_word(segment));
  pool.memory().flush(&entry.word, sizeof entry.word);
}

Lane& Heap::lane(uint32_t index) const { return pool_.lanes()[index]; }

bool Heap::is_scarce(uint64_t segments) const { return segments_.is_scarce(segments); }

uint64_t Heap::shrink() {
  blocks_.end_empty_slabs();
  return segments_.shrink();
}

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

// ---- parts of segments

Heap::Part Heap::part_of(uint64_t offset) {
  blocks_.require_in_use(offset);
  Part part{segments_.number_of(offset), false, {}, 0};
  const Segments::Info& info = segments_.info(part.segment);
  part.run = info.kind == SegmentKind::kRun;
  part.bytes =
      part.run ? info.run_segments * kSegmentBytes : HeapBlocks::class_bytes(info.size_class);
  if (part.run) return part;
  const uint64_t number = (offset - segments_.offset_of(part.segment)) / part.bytes;
  part.bits[number / 64] = uint64_t{1} << (number % 64);
  const auto [word, bit] = blocks_.bitmap_bit(offset);
  if ((load_relaxed(*word) & bit) == 0) {
    pool_.throw_corrupt(fmt::format("the block at {:#x} is in use, but not allocated", offset));
  }
  return part;
}

uint32_t Heap::bitmap_words(uint64_t segment) const {
  const Segments::Content content = segments_.content_of(segment);
  return content.kind == SegmentKind::kSlab ? (HeapBlocks::blocks_in(content.size_class) + 63) / 64
                                            : 0;
}

// What is cleared already is no run any more. It is the same slab still, or a free segment: a crash
// may have come after an opening had cleared the bits and begun to let go of the list, and a page
// of the list may have been the last block of a slab that a later page names, which then went back.
// It is nothing else: nothing is allocated between the clearing and the end of the list.
bool Heap::fits(const Part& part, uint32_t words) const {
  const Segments::Content content = segments_.content_of(part.segment);
  if (content.kind == SegmentKind::kFree) return true;
  if (part.run) return content.kind == SegmentKind::kRun;
  return content.kind == SegmentKind::kSlab && words == bitmap_words(part.segment);
}

void Heap::clear_part(const Part& part) {
  SegmentDescriptor& entry = segments_.descriptor(part.segment);
  if (part.run) {
    store_release(entry.word, Segments::free_word(part.segment));
    pool_.memory().flush(&entry.word, sizeof entry.word);
    return;
  }
  // Of a segment that is free by now the bitmap says nothing, and may hold anything:
  // HeapBlocks::find_free_blocks() makes all of it zeros, durably, before the word that makes it a
  // slab again.
  for (size_t i = 0; i < part.bits.size(); ++i) {
    if (part.bits[i] == 0) continue;
    std::atomic_ref(entry.bitmap[i]).fetch_and(~part.bits[i], std::memory_order_acq_rel);
    pool_.memory().flush(&entry.bitmap[i], sizeof entry.bitmap[i]);
  }
}

void Heap::release_part(const Part& part) noexcept {
  const uint64_t begin = segments_.offset_of(part.segment);
  if (part.run) return release(begin);
  for (uint64_t i = 0; i < part.bits.size(); ++i) {
    for (uint64_t left = part.bits[i]; left != 0; left &= left - 1) {
      release(begin + (i * 64 + static_cast<uint64_t>(std::countr_zero(left))) * part.bytes);
    }
  }
}

}  // namespace perdure::pm
