#include "pm/heap_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <iterator>
#include <new>

#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

thread_local uint32_t preferred_lane = ~0U;
std::atomic<uint32_t> next_lane{0};

// Blocks that one trip to a size class's lock brings into a lane's cache.
constexpr size_t refill_blocks(uint32_t block_bytes) {
  const size_t fit = 8192 / block_bytes;
  return fit < 1 ? 1 : fit > 32 ? 32 : fit;
}

}  // namespace

HeapBlocks::HeapBlocks(PoolImpl& pool, Segments& segments)
    : pool_(pool), segments_(segments), lanes_(std::make_unique<LaneState[]>(kLanes)) {}

int HeapBlocks::class_of(uint64_t bytes) {
  for (int i = 0; i < kClasses; ++i) {
    if (bytes <= class_bytes(i)) return i;
  }
  return -1;
}

bool HeapBlocks::serves(int size_class, int wanted) {
  return wanted >= 0 && size_class >= wanted &&
         std::countr_zero(class_bytes(size_class)) >= std::countr_zero(class_bytes(wanted));
}

uint32_t HeapBlocks::acquire_lane() {
  if (preferred_lane == ~0U) preferred_lane = next_lane.fetch_add(1) % kLanes;
  for (uint32_t i = 0;; ++i) {
    const uint32_t index = (preferred_lane + i) % kLanes;
    if (pool_.failed()) [[unlikely]]
      pool_.require_writable();  // throws: lanes that a failing medium interrupted stay taken
    if (!lanes_[index].busy.test_and_set(std::memory_order_acquire)) return index;
    if (i % kLanes == kLanes - 1) pool_.pause();
  }
}

bool HeapBlocks::take_from_class(uint32_t lane, int size_class, Reach reach, uint64_t& block) {
  auto& cache = lanes_[lane].cache[static_cast<size_t>(size_class)];
  if (cache.empty() && !refill(lane, size_class, reach)) {
    // Blocks that idle lanes hold may be all there is.
    return_caches(lane, size_class);
    if (!refill(lane, size_class, reach)) return false;
  }
  block = cache.back();
  cache.pop_back();
  return true;
}

// With no segment left for its class, a larger one may still have room. Which class a block has
// stands in its segment's descriptor, so that who frees it need not know. Of the reserves, whole
// segments go last: a run can be had from nothing else.
int HeapBlocks::take(uint32_t lane, int wanted, bool reclaim, uint64_t& block) {
  const auto take = [&](int size_class, Reach reach) {
    return serves(size_class, wanted) && take_from_class(lane, size_class, reach, block);
  };
  if (take(wanted, reclaim ? Reach::kBlockReserve : Reach::kCommon)) return wanted;
  for (int larger = wanted + 1; larger < kClasses; ++larger) {
    if (take(larger, Reach::kCommon)) return larger;
  }
  if (!reclaim) segments_.throw_full();
  if (take(wanted, Reach::kSegmentReserve)) return wanted;
  for (int larger = wanted + 1; larger < kClasses; ++larger) {
    if (take(larger, Reach::kBlockReserve)) return larger;
  }
  segments_.throw_full();
}

bool HeapBlocks::refill(uint32_t lane, int size_class, Reach reach) {
  SizeClass& state = classes_[static_cast<size_t>(size_class)];
  auto& cache = lanes_[lane].cache[static_cast<size_t>(size_class)];
  const size_t wanted = refill_blocks(class_bytes(size_class));
  const std::lock_guard lock(state.mutex);
  find_free_blocks(state, size_class, wanted, reach);
  const uint64_t reserve = reserve_blocks(size_class);
  uint64_t allowed = state.free_blocks > reserve ? state.free_blocks - reserve : 0;
  // Of the reserve one block, which is taken at once: in the cache any transaction would find it.
  if (allowed == 0 && reach != Reach::kCommon && state.free_blocks > 0) allowed = 1;
  size_t count = wanted < allowed ? wanted : static_cast<size_t>(allowed);
  while (count > 0 && !state.partial.empty()) {
    const uint32_t segment = state.partial.back();
    const size_t before = cache.size();
    take_from_segment(segment, size_class, count, cache);
    count -= cache.size() - before;
    if (segments_.info(segment).free_blocks == 0) {
      segments_.info(segment).listed = false;
      state.partial.pop_back();
    }
  }
  return !cache.empty();
}

void HeapBlocks::find_free_blocks(SizeClass& state, int size_class, size_t wanted, Reach reach) {
  const uint64_t enough = wanted + reserve_blocks(size_class);
  while (state.free_blocks < enough && !state.unscanned.empty()) {
    const uint32_t segment = state.unscanned.back();
    state.unscanned.pop_back();
    scan_segment(segment);
  }
  uint64_t segment = 0;
  const uint32_t keep =
      reach == Reach::kSegmentReserve ? Segments::kReserveForRuns : Segments::kReserve;
  if (state.free_blocks >= enough || !segments_.take(1, keep, segment)) return;
  make_slab(static_cast<uint32_t>(segment), size_class);
}

void HeapBlocks::make_slab(uint32_t segment, int size_class) {
  SegmentDescriptor& fresh = segments_.descriptor(segment);
  std::memset(fresh.bitmap, 0, sizeof fresh.bitmap);
  pool_.memory().persist(fresh.bitmap, sizeof fresh.bitmap);  // before the word that reveals it
  store_release(fresh.word, Segments::word_of(SegmentKind::kSlab, size_class, 1, segment));
  pool_.memory().persist(&fresh.word, sizeof fresh.word);  // before any thread links a block of it
  segments_.info(segment).kind = SegmentKind::kSlab;
  segments_.info(segment).size_class = static_cast<uint8_t>(size_class);
  scan_segment(segment);
}

void HeapBlocks::scan_segment(uint32_t segment) {
  Segments::Info& info = segments_.info(segment);
  SizeClass& state = classes_[info.size_class];
  if (info.taken != nullptr) return;
  const uint32_t blocks = blocks_in(info.size_class);
  const uint32_t words = (blocks + 63) / 64;
  info.taken = new uint64_t[words];
  info.free_blocks = 0;
  for (uint32_t i = 0; i < words; ++i) {
    info.taken[i] = load_relaxed(segments_.descriptor(segment).bitmap[i]);
    if (i == words - 1 && blocks % 64 != 0) info.taken[i] |= ~uint64_t{0} << (blocks % 64);
    info.free_blocks += static_cast<uint32_t>(std::popcount(~info.taken[i]));
  }
  state.free_blocks += info.free_blocks;
  if (info.free_blocks > 0 && !info.listed) {
    info.listed = true;
    state.partial.push_back(segment);
  }
}

void HeapBlocks::require_in_use(uint64_t block) {
  if (block % kLineBytes != 0 || !pool_.leads_inside(block, 1)) [[unlikely]]
    pool_.throw_outside(block);
  const auto segment = static_cast<uint32_t>(segments_.number_of(block));
  const Segments::Info& info = segments_.info(segment);
  if (info.kind == SegmentKind::kSlab) {
    const uint64_t bytes = class_bytes(info.size_class);
    const uint64_t within = block - segments_.offset_of(segment);
    const uint64_t number = within / bytes;
    const std::lock_guard lock(classes_[info.size_class].mutex);
    scan_segment(segment);
    if (within % bytes != 0 || number >= blocks_in(info.size_class) ||
        (info.taken[number / 64] >> number % 64 & 1) == 0) [[unlikely]] {
      pool_.throw_corrupt(fmt::format("what leads to {:#x} leads to no block in use", block));
    }
  } else if (info.kind != SegmentKind::kRun || block != segments_.offset_of(segment)) [[unlikely]] {
    pool_.throw_corrupt(fmt::format("what leads to {:#x} leads to no block", block));
  }
}

void HeapBlocks::take_from_segment(uint32_t segment, int size_class, size_t wanted,
                                   std::vector<uint64_t>& out) {
  Segments::Info& info = segments_.info(segment);
  const uint64_t block_bytes = class_bytes(size_class);
  const uint32_t words = (blocks_in(size_class) + 63) / 64;
  for (uint32_t i = 0; i < words && wanted > 0; ++i) {
    while (~info.taken[i] != 0 && wanted > 0) {
      const int bit = std::countr_zero(~info.taken[i]);
      info.taken[i] |= uint64_t{1} << bit;
      --info.free_blocks;
      --classes_[static_cast<size_t>(size_class)].free_blocks;
      --wanted;
      out.push_back(segments_.offset_of(segment) +
                    (i * 64 + static_cast<uint32_t>(bit)) * block_bytes);
    }
  }
}

void HeapBlocks::release(uint64_t offset, int size_class) noexcept try {
  SizeClass& state = classes_[static_cast<size_t>(size_class)];
  const auto segment = static_cast<uint32_t>(segments_.number_of(offset));
  const std::lock_guard lock(state.mutex);
  Segments::Info& info = segments_.info(segment);
  const uint64_t block = (offset - segments_.offset_of(segment)) / class_bytes(size_class);
  const uint64_t bit = uint64_t{1} << (block % 64);
  // Of a damaged pool: a block that two places lead to is freed twice, or is none.
  if (info.taken == nullptr || (info.taken[block / 64] & bit) == 0) [[unlikely]]
    return;
  if (!info.listed) {
    state.partial.push_back(segment);  // throws before anything has changed, if at all
    info.listed = true;
  }
  info.taken[block / 64] &= ~bit;
  ++info.free_blocks;
  ++state.free_blocks;
  if (info.free_blocks == blocks_in(size_class) &&
      state.free_blocks >= info.free_blocks + 2 * reserve_blocks(size_class)) {
    // Empty, and not needed here: any other class may have it.
    end_slabs(state, {&segment, 1});
  }
} catch (const std::bad_alloc&) {  // the block stays unused until the next open
} catch (const Error&) {
  // A persist that failed. Nobody has to be told: Memory notes it before it throws, so the pool
  // takes no write from here on, and the next one tells. The block was free on the medium before,
  // and stays unused until the next open, which goes by what is on the medium.
  assert(pool_.failed());
}

void HeapBlocks::end_slabs(SizeClass& state, std::span<const uint32_t> segments) {
  const auto ends = [&](uint32_t segment) {
    return std::binary_search(segments.begin(), segments.end(), segment);
  };
  std::erase_if(state.partial, ends);
  std::erase_if(state.unscanned, ends);
  for (const uint32_t segment : segments) {
    Segments::Info& info = segments_.info(segment);
    if (info.taken != nullptr) state.free_blocks -= info.free_blocks;
    delete[] info.taken;
    info = Segments::Info{};
    store_release(segments_.descriptor(segment).word, Segments::free_word(segment));
    pool_.memory().flush(&segments_.descriptor(segment).word, sizeof(uint64_t));
  }
  // Before a segment can be within a run, where the word of a slab would contradict the run's own.
  pool_.memory().fence();
  for (const uint32_t segment : segments) segments_.release(segment, 1);
}

bool HeapBlocks::is_empty_slab(uint32_t segment, int size_class) const {
  const Segments::Info& info = segments_.info(segment);
  if (info.kind != SegmentKind::kSlab || info.size_class != size_class) return false;
  if (info.taken != nullptr) return info.free_blocks == blocks_in(size_class);
  // Nobody has looked inside: no block of it is taken that is not allocated.
  return std::ranges::all_of(segments_.descriptor(segment).bitmap,
                             [](const uint64_t& word) { return load_relaxed(word) == 0; });
}

void HeapBlocks::end_empty_slabs() {
  std::array<std::vector<uint32_t>, kClasses> slabs;  // in ascending order
  segments_.for_each([&](uint64_t first, const Segments::Content& content, bool) {
    if (content.kind != SegmentKind::kSlab) return;
    slabs[static_cast<size_t>(content.size_class)].push_back(static_cast<uint32_t>(first));
  });
  std::array<std::vector<uint32_t>, kClasses> kept;
  for (int size_class = 0; size_class < kClasses; ++size_class) {
    return_caches(kLanes, size_class);
    SizeClass& state = classes_[static_cast<size_t>(size_class)];
    const std::lock_guard lock(state.mutex);
    std::vector<uint32_t> empty;
    std::vector<uint32_t> others;
    std::ranges::partition_copy(slabs[static_cast<size_t>(size_class)], std::back_inserter(empty),
                                std::back_inserter(others), [&](uint32_t segment) {
                                  return is_empty_slab(segment, size_class);
                                });
    // Removals rely on some free blocks beside those that are in use.
    uint64_t missing = others.empty() ? 0 : reserve_blocks(size_class);
    for (auto segment = others.begin(); segment != others.end() && missing > 0; ++segment) {
      if (segments_.info(*segment).kind != SegmentKind::kSlab) continue;
      scan_segment(*segment);
      missing -= std::min<uint64_t>(missing, segments_.info(*segment).free_blocks);
    }
    if (missing > 0 && !empty.empty()) {
      kept[static_cast<size_t>(size_class)].push_back(empty.front());
      empty.erase(empty.begin());
    }
    if (!empty.empty()) end_slabs(state, empty);
  }
  // One that is kept need not be the last segment of the pool.
  for (int size_class = 0; size_class < kClasses; ++size_class) {
    SizeClass& state = classes_[static_cast<size_t>(size_class)];
    const std::lock_guard lock(state.mutex);
    for (const uint32_t segment : kept[static_cast<size_t>(size_class)]) {
      uint64_t lower = 0;
      if (!is_empty_slab(segment, size_class) || !segments_.take_below(segment, lower)) continue;
      make_slab(static_cast<uint32_t>(lower), size_class);
      end_slabs(state, {&segment, 1});
    }
  }
}

void HeapBlocks::return_caches(uint32_t own_lane, int size_class) {
  for (uint32_t i = 0; i < kLanes; ++i) {
    if (i == own_lane || lanes_[i].busy.test_and_set(std::memory_order_acquire)) continue;
    auto& cache = lanes_[i].cache[static_cast<size_t>(size_class)];
    for (const uint64_t block : cache) release(block, size_class);
    cache.clear();
    release_lane(i);
  }
}

std::pair<uint64_t*, uint64_t> HeapBlocks::bitmap_bit(uint64_t block) const {
  const uint64_t segment = segments_.number_of(block);
  assert(segments_.info(segment).kind == SegmentKind::kSlab);
  const uint64_t index =
      (block - segments_.offset_of(segment)) / class_bytes(segments_.info(segment).size_class);
  return {&segments_.descriptor(segment).bitmap[index / 64], uint64_t{1} << (index % 64)};
}

void HeapBlocks::adopt(uint64_t segment, int size_class) {
  classes_[static_cast<size_t>(size_class)].unscanned.push_back(static_cast<uint32_t>(segment));
}

}  // namespace perdure::pm
