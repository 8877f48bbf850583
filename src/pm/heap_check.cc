// What a heap holds: figures, questions about blocks, verification, and the seals of a clean close.
#include <fmt/core.h>

#include <bit>
#include <cstddef>

#include "pm/checksum.h"
#include "pm/heap.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

uint64_t seal_of(const SegmentDescriptor& entry, const char* content, uint64_t generation) {
  const uint64_t of_content = checksum64(content, kSegmentBytes, generation);
  return checksum64(&entry, offsetof(SegmentDescriptor, seal), of_content);
}

}  // namespace

Heap::Usage Heap::usage() const {
  Usage usage;
  const uint64_t total = pool_.map().count(0, pool_.segments()) * kSegmentBytes;
  segments_.for_each([&](uint64_t i, const Segments::Content& content, bool) {
    if (content.kind == SegmentKind::kRun)
      usage.allocated_bytes += content.segments * kSegmentBytes;
    if (content.kind != SegmentKind::kSlab) return;
    uint64_t blocks = 0;
    for (const uint64_t& word : segments_.descriptor(i).bitmap) {
      blocks += static_cast<uint64_t>(std::popcount(load_relaxed(word)));
    }
    usage.allocated_bytes += blocks * HeapBlocks::class_bytes(content.size_class);
  });
  usage.free_bytes = total - usage.allocated_bytes;
  usage.high_water_segments = segments_.high_water();
  return usage;
}

uint64_t Heap::block_bytes_at(uint64_t offset, uint64_t bytes) const {
  if (is_in_segments(offset)) {
    const Segments::Content content = segments_.content_of(segments_.number_of(offset));
    if (content.kind == SegmentKind::kSlab &&
        HeapBlocks::serves(content.size_class, HeapBlocks::class_of(bytes))) {
      return HeapBlocks::class_bytes(content.size_class);
    }
  }
  return block_bytes(bytes);
}

bool Heap::is_in_segments(uint64_t offset) const {
  return offset >= segments_.offset_of(0) && offset < segments_.offset_of(pool_.segments()) &&
         !pool_.map().is_table(segments_.number_of(offset));
}

bool Heap::is_allocated(uint64_t offset, uint64_t bytes) const {
  if (!is_in_segments(offset)) return false;
  const uint64_t segment = segments_.number_of(offset);
  const Segments::Content content = segments_.content_of(segment);
  const uint64_t within = offset - segments_.offset_of(segment);
  if (content.kind == SegmentKind::kRun) {
    return within == 0 && block_bytes(bytes) == content.segments * kSegmentBytes;
  }
  if (content.kind != SegmentKind::kSlab) return false;
  const uint64_t size = HeapBlocks::class_bytes(content.size_class);
  if (within % size != 0 || !HeapBlocks::serves(content.size_class, HeapBlocks::class_of(bytes)))
    return false;
  const uint64_t index = within / size;
  return (load_relaxed(segments_.descriptor(segment).bitmap[index / 64]) >> (index % 64) & 1) != 0;
}

uint64_t Heap::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  segments_.for_each([&](uint64_t i, const Segments::Content& content, bool sound) {
    if (!sound) {
      fail(fmt::format("heap: the descriptor of segment {} is damaged", i));
    } else if (content.kind == SegmentKind::kSlab) {
      const uint32_t blocks = HeapBlocks::blocks_in(content.size_class);
      for (uint32_t bit = blocks; bit < 1024; ++bit) {
        if ((segments_.descriptor(i).bitmap[bit / 64] >> (bit % 64) & 1) == 0) continue;
        fail(fmt::format("heap: segment {} marks block {} of {} as allocated", i, bit, blocks));
        break;
      }
    } else if (content.kind == SegmentKind::kRun) {
      for (uint64_t tail = i + 1; tail < i + content.segments; ++tail) {
        if (segments_.descriptor(tail).word == Segments::free_word(tail)) continue;
        fail(fmt::format("heap: segment {} is inside the run at segment {}, but in use itself",
                         tail, i));
      }
    }
  });
  return found;
}

// ---- seals

void Heap::seal(uint64_t generation) const {
  // All that the seals cover is flushed: there are words that nobody needs to be durable, and so
  // nobody has flushed. In two passes, so that neighbours are together where pages are remembered.
  segments_.for_each_used([&](uint64_t segment) {
    SegmentDescriptor& entry = segments_.descriptor(segment);
    const auto* content = pool_.at<char>(segments_.offset_of(segment));
    store_relaxed(entry.seal, seal_of(entry, content, generation));
    pool_.memory().flush(content, kSegmentBytes);
  });
  segments_.for_each_used([&](uint64_t segment) {
    pool_.memory().flush(&segments_.descriptor(segment), sizeof(SegmentDescriptor));
  });
}

uint64_t Heap::check_seals(uint64_t generation,
                           const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  std::vector<char> content(kSegmentBytes);
  segments_.for_each_used([&](uint64_t segment) {
    SegmentDescriptor entry{};
    pool_.mapping().read_at(pool_.offset_of(&segments_.descriptor(segment)), &entry, sizeof entry);
    pool_.mapping().read_at(segments_.offset_of(segment), content.data(), content.size());
    if (entry.seal == seal_of(entry, content.data(), generation)) return;
    ++found;
    report(fmt::format("segment {} is not as the last clean close left it (bytes {:#x} to {:#x})",
                       segment, segments_.offset_of(segment), segments_.offset_of(segment + 1)));
  });
  return found;
}

}  // namespace perdure::pm
