#include "pm/heap.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <bit>
#include <cassert>
#include <cstring>

#include "pm/checksum.h"
#include "pm/observe.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

constexpr std::array<uint32_t, 17> kClassBytes = {64,   128,  192,   256,   384,  512,
                                                  768,  1024, 1536,  2048,  3072, 4096,
                                                  6144, 8192, 12288, 16384, 32768};

// Blocks that one trip to a size class's lock brings into a lane's cache.
constexpr size_t refill_blocks(uint32_t block_bytes) {
  const size_t fit = 8192 / block_bytes;
  return fit < 1 ? 1 : fit > 32 ? 32 : fit;
}

// Whether a block of the class will do for what would get one of class `wanted`: as large, and as well
// aligned, since units of 256 bytes and nodes rely on that.
constexpr bool serves(int size_class, int wanted) {
  return wanted >= 0 && size_class >= wanted &&
         std::countr_zero(kClassBytes[static_cast<size_t>(size_class)]) >=
             std::countr_zero(kClassBytes[static_cast<size_t>(wanted)]);
}

// Blocks of each class that only transactions that reclaim may take.
constexpr uint64_t reserve_blocks(int size_class) {
  return 16384 / kClassBytes[static_cast<size_t>(size_class)];
}

uint64_t seal_of(const SegmentDescriptor& entry, const char* content, uint64_t generation) {
  const uint64_t of_content = checksum64(content, kSegmentBytes, generation);
  return checksum64(&entry, offsetof(SegmentDescriptor, seal), of_content);
}

thread_local uint32_t preferred_lane = ~0U;
// The heap in which this thread has an unfinished transaction.
thread_local const Heap* heap_in_use = nullptr;
std::atomic<uint32_t> next_lane{0};

}  // namespace

Heap::Heap(PoolImpl& pool) : pool_(pool), lanes_(std::make_unique<LaneState[]>(kLanes)) {
  infos_bytes_ = (pool.segments_max() * sizeof(SegmentInfo) + 4095) & ~uint64_t{4095};
  void* mapped = ::mmap(nullptr, infos_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  infos_ = static_cast<SegmentInfo*>(mapped);
}

Heap::~Heap() {
  for (uint64_t i = 0; i < pool_.segments(); ++i) delete[] infos_[i].taken;
  ::munmap(infos_, infos_bytes_);
}

int Heap::class_of(uint64_t bytes) {
  for (int i = 0; i < kClasses; ++i) {
    if (bytes <= kClassBytes[static_cast<size_t>(i)]) return i;
  }
  return -1;
}

uint64_t Heap::block_bytes(uint64_t bytes) {
  const int size_class = class_of(bytes);
  if (size_class >= 0) return kClassBytes[static_cast<size_t>(size_class)];
  return (bytes + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes;
}

uint32_t Heap::blocks_in(int size_class) const {
  return static_cast<uint32_t>(kSegmentBytes / kClassBytes[static_cast<size_t>(size_class)]);
}

SegmentDescriptor& Heap::descriptor(uint64_t segment) const { return pool_.descriptors()[segment]; }

uint64_t Heap::segment_of(uint64_t offset) const {
  return (offset - pool_.header().data_offset) / kSegmentBytes;
}

uint64_t Heap::offset_of_segment(uint64_t segment) const {
  return pool_.header().data_offset + segment * kSegmentBytes;
}

uint64_t Heap::descriptor_word(SegmentKind kind, int size_class, uint64_t segments,
                               uint64_t index) {
  const uint64_t value =
      static_cast<uint64_t>(kind) | static_cast<uint64_t>(size_class & 0xff) << 8 | segments << 16;
  return seal_word(value, kDescriptorSalt + (index << 16));
}

bool Heap::parse_word(uint64_t index, SegmentKind& kind, int& size_class,
                      uint64_t& segments) const {
  return parse_word(load_relaxed(descriptor(index).word), index, kind, size_class, segments);
}

bool Heap::parse_word(uint64_t word, uint64_t index, SegmentKind& kind, int& size_class,
                      uint64_t& segments) const {
  kind = SegmentKind::kFree;
  size_class = 0;
  segments = 1;
  uint64_t value = 0;
  if (word == 0 || !unseal_word(word, kDescriptorSalt + (index << 16), value)) return false;
  const auto found = static_cast<SegmentKind>(value & 0xff);
  const auto found_class = static_cast<int>(value >> 8 & 0xff);
  const uint64_t found_segments = value >> 16;
  const bool sound =
      found == SegmentKind::kRun
          ? found_segments >= 1 && found_segments <= pool_.segments() - index
          : found <= SegmentKind::kSlab && found_class < kClasses && found_segments == 1;
  if (!sound) return false;
  kind = found;
  size_class = found_class;
  segments = found_segments;
  return true;
}

void Heap::write_free(const PoolImpl& pool, uint64_t segment) {
  SegmentDescriptor& entry = pool.descriptors()[segment];
  store_release(entry.word, free_word(segment));
  pool.memory().flush(&entry.word, sizeof entry.word);
}

Lane& Heap::lane(uint32_t index) const { return pool_.lanes()[index]; }

uint32_t Heap::acquire_lane() {
  // Who waits for a second lane while others do the same waits for ever.
  if (heap_in_use == this) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a thread begins a second transaction in a heap");
  if (preferred_lane == ~0U) preferred_lane = next_lane.fetch_add(1) % kLanes;
  for (uint32_t i = 0;; ++i) {
    const uint32_t index = (preferred_lane + i) % kLanes;
    if (pool_.failed()) [[unlikely]]
      pool_.require_writable();  // throws: lanes that a failing medium interrupted stay taken
    if (!lanes_[index].busy.test_and_set(std::memory_order_acquire)) return index;
    if (i % kLanes == kLanes - 1) pool_.pause();
  }
}

void Heap::release_lane(uint32_t index) { lanes_[index].busy.clear(std::memory_order_release); }

void Heap::throw_full() const {
  if (medium_full_.load(std::memory_order_relaxed)) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: the pool must grow, but its medium has no space left; nothing was "
                            "changed: free space there, or delete records",
                            pool_.mapping().path()));
  }
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: the pool is full at its capacity of {} bytes; nothing was changed: "
                          "delete records, or load them into a pool made with a larger capacity",
                          pool_.mapping().path(), pool_.header().capacity_bytes));
}

// ---- blocks of slabs

bool Heap::take_block(uint32_t lane, int size_class, Reach reach, uint64_t& block) {
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

// With no segment left for its class, a larger one may still have room. Which class a block has stands
// in its segment's descriptor, so that who frees it need not know. Of the reserves, whole segments go
// last: a run can be had from nothing else.
int Heap::take_block_for(uint32_t lane, int wanted, bool reclaim, uint64_t& block) {
  const auto take = [&](int size_class, Reach reach) {
    return serves(size_class, wanted) && take_block(lane, size_class, reach, block);
  };
  if (take(wanted, reclaim ? Reach::kBlockReserve : Reach::kCommon)) return wanted;
  for (int larger = wanted + 1; larger < kClasses; ++larger) {
    if (take(larger, Reach::kCommon)) return larger;
  }
  if (!reclaim) throw_full();
  if (take(wanted, Reach::kSegmentReserve)) return wanted;
  for (int larger = wanted + 1; larger < kClasses; ++larger) {
    if (take(larger, Reach::kBlockReserve)) return larger;
  }
  throw_full();
}

bool Heap::refill(uint32_t lane, int size_class, Reach reach) {
  SizeClass& state = classes_[static_cast<size_t>(size_class)];
  auto& cache = lanes_[lane].cache[static_cast<size_t>(size_class)];
  const size_t wanted = refill_blocks(kClassBytes[static_cast<size_t>(size_class)]);
  const std::lock_guard lock(state.mutex);
  find_free_blocks(state, size_class, wanted, reach);
  uint64_t allowed = state.free_blocks;
  const uint64_t reserve = reserve_blocks(size_class);
  if (reach == Reach::kCommon) allowed = allowed > reserve ? allowed - reserve : 0;
  size_t count = wanted < allowed ? wanted : static_cast<size_t>(allowed);
  while (count > 0 && !state.partial.empty()) {
    const uint32_t segment = state.partial.back();
    const size_t before = cache.size();
    take_from_segment(segment, size_class, count, cache);
    count -= cache.size() - before;
    if (infos_[segment].free_blocks == 0) {
      infos_[segment].listed = false;
      state.partial.pop_back();
    }
  }
  return !cache.empty();
}

void Heap::find_free_blocks(SizeClass& state, int size_class, size_t wanted, Reach reach) {
  const uint64_t enough = wanted + reserve_blocks(size_class);
  while (state.free_blocks < enough && !state.unscanned.empty()) {
    const uint32_t segment = state.unscanned.back();
    state.unscanned.pop_back();
    scan_segment(segment);
  }
  uint64_t segment = 0;
  const uint32_t keep = reach == Reach::kSegmentReserve ? kReserveForRuns : kReserveSegments;
  if (state.free_blocks >= enough || !take_segments(1, keep, segment)) return;
  SegmentDescriptor& fresh = descriptor(segment);
  std::memset(fresh.bitmap, 0, sizeof fresh.bitmap);
  pool_.memory().persist(fresh.bitmap, sizeof fresh.bitmap);  // before the word that reveals it
  store_release(fresh.word, descriptor_word(SegmentKind::kSlab, size_class, 1, segment));
  pool_.memory().persist(&fresh.word, sizeof fresh.word);
  infos_[segment].kind = SegmentKind::kSlab;
  infos_[segment].size_class = static_cast<uint8_t>(size_class);
  scan_segment(static_cast<uint32_t>(segment));
}

void Heap::scan_segment(uint32_t segment) {
  SegmentInfo& info = infos_[segment];
  SizeClass& state = classes_[info.size_class];
  if (info.taken != nullptr) return;
  const uint32_t blocks = blocks_in(info.size_class);
  const uint32_t words = (blocks + 63) / 64;
  info.taken = new uint64_t[words];
  info.free_blocks = 0;
  for (uint32_t i = 0; i < words; ++i) {
    info.taken[i] = load_relaxed(descriptor(segment).bitmap[i]);
    if (i == words - 1 && blocks % 64 != 0) info.taken[i] |= ~uint64_t{0} << (blocks % 64);
    info.free_blocks += static_cast<uint32_t>(std::popcount(~info.taken[i]));
  }
  state.free_blocks += info.free_blocks;
  if (info.free_blocks > 0 && !info.listed) {
    info.listed = true;
    state.partial.push_back(segment);
  }
}

// Of a block that goes. Throws kCorrupt if it cannot be one.
void Heap::know_segment_of(uint64_t block) {
  if (block % kLineBytes != 0 || !pool_.leads_inside(block, 1)) [[unlikely]]
    pool_.throw_outside(block);
  const auto segment = static_cast<uint32_t>(segment_of(block));
  const SegmentInfo& info = infos_[segment];
  if (info.kind == SegmentKind::kSlab) {
    const uint64_t bytes = kClassBytes[info.size_class];
    const uint64_t within = block - offset_of_segment(segment);
    const uint64_t number = within / bytes;
    const std::lock_guard lock(classes_[info.size_class].mutex);
    scan_segment(segment);
    if (within % bytes != 0 || number >= blocks_in(info.size_class) ||
        (info.taken[number / 64] >> number % 64 & 1) == 0) [[unlikely]] {
      pool_.throw_corrupt(fmt::format("what leads to {:#x} leads to no block in use", block));
    }
  } else if (info.kind != SegmentKind::kRun || block != offset_of_segment(segment)) [[unlikely]] {
    pool_.throw_corrupt(fmt::format("what leads to {:#x} leads to no block", block));
  }
}

void Heap::take_from_segment(uint32_t segment, int size_class, size_t wanted,
                             std::vector<uint64_t>& out) {
  SegmentInfo& info = infos_[segment];
  const uint64_t block_bytes = kClassBytes[static_cast<size_t>(size_class)];
  const uint32_t words = (blocks_in(size_class) + 63) / 64;
  for (uint32_t i = 0; i < words && wanted > 0; ++i) {
    while (~info.taken[i] != 0 && wanted > 0) {
      const int bit = std::countr_zero(~info.taken[i]);
      info.taken[i] |= uint64_t{1} << bit;
      --info.free_blocks;
      --classes_[static_cast<size_t>(size_class)].free_blocks;
      --wanted;
      out.push_back(offset_of_segment(segment) +
                    (i * 64 + static_cast<uint32_t>(bit)) * block_bytes);
    }
  }
}

void Heap::release_block(uint64_t offset, int size_class) noexcept try {
  SizeClass& state = classes_[static_cast<size_t>(size_class)];
  const auto segment = static_cast<uint32_t>(segment_of(offset));
  const std::lock_guard lock(state.mutex);
  SegmentInfo& info = infos_[segment];
  const uint64_t block =
      (offset - offset_of_segment(segment)) / kClassBytes[static_cast<size_t>(size_class)];
  const uint64_t bit = uint64_t{1} << (block % 64);
  // Of a damaged pool: a block that two places lead to is freed twice, or is none.
  if (info.taken == nullptr || (info.taken[block / 64] & bit) == 0) [[unlikely]]
    return;
  info.taken[block / 64] &= ~bit;
  ++info.free_blocks;
  ++state.free_blocks;
  if (info.free_blocks == blocks_in(size_class) &&
      state.free_blocks >= info.free_blocks + 2 * reserve_blocks(size_class)) {
    // Empty, and not needed here: any other class may have it.
    std::erase(state.partial, segment);
    std::erase(state.unscanned, segment);
    state.free_blocks -= info.free_blocks;
    delete[] info.taken;
    info = SegmentInfo{};
    // Before the segment can be within a run, where the word of a slab would contradict the run's own.
    store_release(descriptor(segment).word, free_word(segment));
    pool_.memory().persist(&descriptor(segment).word, sizeof(uint64_t));
    release_segments(segment, 1);
  } else if (!info.listed) {
    state.partial.push_back(segment);
    info.listed = true;
  }
} catch (...) {  // the medium fails, or memory is short: the block stays unused until the next open
}

void Heap::release(uint64_t block) noexcept {
  if (pool_.failed()) return;  // nothing is written any more
  const uint64_t segment = segment_of(block);
  SegmentInfo& info = infos_[segment];
  if (info.kind == SegmentKind::kSlab) {
    release_block(block, info.size_class);
  } else if (info.kind == SegmentKind::kRun) {
    const uint32_t count = info.run_segments;
    info = SegmentInfo{};
    release_segments(segment, count);
  }  // else the pool is damaged: what leads here is no block
}

void Heap::note_run(uint64_t block, uint64_t segments) {
  SegmentInfo& info = infos_[segment_of(block)];
  info.kind = SegmentKind::kRun;
  info.run_segments = static_cast<uint32_t>(segments);
}

void Heap::return_caches(uint32_t own_lane, int size_class) {
  for (uint32_t i = 0; i < kLanes; ++i) {
    if (i == own_lane || lanes_[i].busy.test_and_set(std::memory_order_acquire)) continue;
    auto& cache = lanes_[i].cache[static_cast<size_t>(size_class)];
    for (const uint64_t block : cache) release_block(block, size_class);
    cache.clear();
    release_lane(i);
  }
}

// ---- segments

bool Heap::take_segments(uint64_t count, uint32_t keep, uint64_t& first) {
  const std::lock_guard lock(segments_mutex_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool enough = free_segments_ >= count + keep;
    for (auto run = free_runs_.begin(); enough && run != free_runs_.end(); ++run) {
      if (run->second < count) continue;
      first = run->first;
      const uint64_t rest = run->second - count;
      free_runs_.erase(run);
      if (rest > 0) free_runs_.emplace(first + count, rest);
      free_segments_ -= count;
      high_water_segments_ = std::max(high_water_segments_, first + count);
      return true;
    }
    if (!grow(count + kReserveSegments)) return false;
  }
  return false;
}

void Heap::release_segments(uint64_t first, uint64_t count) noexcept try {
  const std::lock_guard lock(segments_mutex_);
  free_segments_ += count;
  auto next = free_runs_.lower_bound(first);
  if (next != free_runs_.end() && first + count == next->first) {
    count += next->second;
    next = free_runs_.erase(next);
  }
  if (next != free_runs_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      previous->second += count;
      return;
    }
  }
  free_runs_.emplace(first, count);
} catch (...) {  // memory is short: the segments stay unused until the next open
}

bool Heap::is_scarce(uint64_t segments) const {
  const bool grows = !medium_full_.load(std::memory_order_relaxed);
  const uint64_t growth = grows ? pool_.segments_max() - pool_.segments() : 0;
  return free_segments_.load(std::memory_order_relaxed) + growth < segments;
}

bool Heap::grow(uint64_t segments) {
  const uint64_t before = pool_.segments();
  // Free space at the end counts: a run may begin there.
  uint64_t tail = 0;
  if (!free_runs_.empty()) {
    const auto last = std::prev(free_runs_.end());
    if (last->first + last->second == before) tail = last->second;
  }
  const uint64_t needed = segments > tail ? segments - tail : 1;
  try {
    pool_.grow(needed);
  } catch (const Error& error) {
    if (!is_full(error)) throw;
    medium_full_.store(error.code() == ErrorCode::kNoSpace, std::memory_order_relaxed);
    return false;
  }
  medium_full_.store(false, std::memory_order_relaxed);
  const uint64_t added = pool_.segments() - before;
  free_segments_ += added;
  if (tail > 0) {
    std::prev(free_runs_.end())->second += added;
  } else {
    free_runs_.emplace(before, added);
  }
  return true;
}

// ---- what a crash left

bool Heap::link_leads_to(const Intent& intent) const {
  const uint64_t block = intent.block & ~uint64_t{kIntentMask};
  const uint64_t number = intent.link >> kLinkNumberShift;
  const uint64_t at = intent.link & kLinkOffsetMask;
  if ((intent.block & kLinkMask) == kLinkIsUnit) {
    return uint64_t{load_acquire(*pool_.at<uint32_t>(at))} * kBlockBytes == block;
  }
  const uint64_t word = load_acquire(*pool_.at<uint64_t>(at));
  switch (intent.block & kLinkMask) {
    case kLinkIsBit:
      return (word >> number & 1) != 0;
    case kLinkAbove:
      return word > number;
    case kLinkUpTo:
      return word <= number;
    case kLinkTagged:
      return (word & kTaggedOffsetMask) == block;
    case kAsPrevious: {
      // The one before stands in the same line, so it is as new as this one; and who forgets intents
      // leaves their blocks, so it is still readable when its own link is cleared already.
      const uint64_t previous = (&intent)[-1].block;
      const bool tagged = (previous & kLinkMask) == kLinkTagged;
      return (tagged ? word & kTaggedOffsetMask : word) == (previous & ~uint64_t{kIntentMask});
    }
    default:
      return word == block;
  }
}

void Heap::set_allocated(uint64_t block, bool run, bool allocated) {
  const uint64_t segment = segment_of(block);
  SegmentDescriptor& entry = descriptor(segment);
  if (run) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 0;
    // A length with check bits stays; the other has none.
    if (allocated && parse_word(segment, kind, size_class, segments) && kind == SegmentKind::kRun) {
      pool_.memory().flush(&entry.word, sizeof entry.word);
      return;
    }
    const uint64_t word =
        allocated ? descriptor_word(SegmentKind::kRun, 0, entry.pending_run_segments, segment)
                  : free_word(segment);
    store_release(entry.word, word);
    pool_.memory().flush(&entry.word, sizeof entry.word);
    return;
  }
  SegmentKind kind = SegmentKind::kFree;
  int size_class = 0;
  uint64_t segments = 0;
  if (!parse_word(segment, kind, size_class, segments) || kind != SegmentKind::kSlab) return;
  const uint64_t index =
      (block - offset_of_segment(segment)) / kClassBytes[static_cast<size_t>(size_class)];
  uint64_t& word = entry.bitmap[index / 64];
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (allocated) {
    std::atomic_ref(word).fetch_or(bit, std::memory_order_acq_rel);
  } else {
    std::atomic_ref(word).fetch_and(~bit, std::memory_order_acq_rel);
  }
  pool_.memory().flush(&word, sizeof word);
}

std::pair<uint64_t*, uint64_t> Heap::bitmap_bit(uint64_t block) const {
  const uint64_t segment = segment_of(block);
  assert(infos_[segment].kind == SegmentKind::kSlab);
  const uint64_t index =
      (block - offset_of_segment(segment)) / kClassBytes[infos_[segment].size_class];
  return {&descriptor(segment).bitmap[index / 64], uint64_t{1} << (index % 64)};
}

void Heap::resolve_intent(const Intent& intent) {
  if ((intent.block & kOnlyFrees) != 0 && link_leads_to(intent)) return;
  set_allocated(intent.block & ~uint64_t{kIntentMask}, (intent.block & kBlockIsRun) != 0,
                link_leads_to(intent));
}

void Heap::apply_redo(Lane& lane, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes;) {
    uint64_t target = 0;
    uint64_t length = 0;
    std::memcpy(&target, lane.redo + at, 8);
    std::memcpy(&length, lane.redo + at + 8, 8);
    at += 16;
    auto* to = pool_.at<uint64_t>(target);
    // Word by word and forwards: readers in other threads see whole words.
    for (uint64_t i = 0; i < length / 8; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, lane.redo + at + i * 8, 8);
      store_release(to[i], word);
    }
    pool_.memory().flush(to, length);
    at += length;
  }
}

void Heap::require_sound(const Lane& lane, const Intent& intent) const {
  const uint64_t block = intent.block & ~uint64_t{kIntentMask};
  const uint64_t link = intent.link & kLinkOffsetMask;
  const uint64_t form = intent.block & kLinkMask;
  // Of structures, or the word `root` of an entry of the root directory.
  const bool reads_word = form == kLinkIsUnit ? link % 4 == 0 : link % 8 == 0;
  const bool inside = link >= pool_.header().directory_offset && link < pool_.end_offset();
  const bool has_previous = form != kAsPrevious || &intent != lane.intents;
  bool sound = reads_word && inside && has_previous && form <= kLinkTagged &&
               pool_.leads_inside(block, kLineBytes);
  if (sound && (intent.block & kBlockIsRun) != 0) {
    const uint64_t segment = segment_of(block);
    const uint64_t length = descriptor(segment).pending_run_segments;
    // The length is durable before the link is stored; an intent may reach PM before either.
    sound = block == offset_of_segment(segment) &&
            (!link_leads_to(intent) || (length >= 1 && length <= pool_.segments() - segment));
  }
  if (!sound) pool_.throw_corrupt("an allocation intent points outside the pool");
}

void Heap::require_sound_redo(const Lane& lane, uint64_t bytes) const {
  for (uint64_t at = 0; at < bytes;) {
    uint64_t target = 0;
    uint64_t length = 0;
    bool sound = bytes - at >= 16;
    if (sound) {
      std::memcpy(&target, lane.redo + at, 8);
      std::memcpy(&length, lane.redo + at + 8, 8);
      at += 16;
      // In the root directory or in blocks: lanes, this one's too, and descriptors are nobody's target.
      const PoolHeader& header = pool_.header();
      const bool in_blocks = target >= header.data_offset;
      const uint64_t end = in_blocks ? pool_.end_offset() : header.lanes_offset;
      sound = target % 8 == 0 && length % 8 == 0 && length <= bytes - at &&
              target >= header.directory_offset && target < end && length <= end - target;
      at += length;
    }
    if (!sound)
      pool_.throw_corrupt("the micro-log of an interrupted change leads outside the pool");
  }
}

void Heap::recover_lane(Lane& lane) {
  const Memory& memory = pool_.memory();
  if (lane.armed != 0) {
    const uint64_t bytes = lane.armed & 0xffffffff;
    if (bytes > kRedoBytes || checksum32(lane.redo, bytes) != lane.armed >> 32) {
      pool_.throw_corrupt("the micro-log of an interrupted change is damaged");
    }
    require_sound_redo(lane, bytes);
    apply_redo(lane, bytes);
    memory.fence();  // the bytes, before the record that could replace them again
    lane.armed = 0;
    memory.persist(&lane.armed, sizeof lane.armed);
  }
  bool any = false;
  for (const Intent& intent : lane.intents) {
    if (intent.link == 0) continue;
    require_sound(lane, intent);
    resolve_intent(intent);
    // A process that died may have left the link in the caches: it must not be lost to a power failure
    // once the intent is.
    memory.flush(pool_.at<char>(intent.link & kLinkOffsetMask), sizeof(uint64_t));
    any = true;
  }
  if (!any) return;
  memory.fence();  // allocation state, before the intents that would decide it again
  for (Intent& intent : lane.intents) intent.link = 0;
  memory.persist(lane.intents, sizeof lane.intents);
}

void Heap::recover() {
  for (uint32_t i = 0; i < kLanes; ++i) {
    uint64_t number = 0;
    if (!unseal_word(lane(i).mark, kLaneSalt, number) || number != i + 1) {
      pool_.throw_corrupt(fmt::format("lane {} of the transactions is damaged", i));
    }
  }
  for (uint32_t i = 0; i < kLanes; ++i) recover_lane(lane(i));
  uint64_t free_from = 0;
  uint64_t free_length = 0;
  const auto close_run = [&] {
    if (free_length > 0) free_runs_.emplace(free_from, free_length);
    free_segments_ += free_length;
    free_length = 0;
  };
  for (uint64_t i = 0; i < pool_.segments();) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 1;
    if (!parse_word(i, kind, size_class, segments)) {
      pool_.throw_corrupt(fmt::format("the descriptor of segment {} is damaged", i));
    }
    infos_[i].kind = kind;
    infos_[i].size_class = static_cast<uint8_t>(size_class);
    if (kind == SegmentKind::kRun) note_run(offset_of_segment(i), segments);
    if (kind == SegmentKind::kFree) {
      if (free_length++ == 0) free_from = i;
    } else {
      close_run();
      high_water_segments_ = i + segments;
    }
    if (kind == SegmentKind::kSlab) {
      classes_[static_cast<size_t>(size_class)].unscanned.push_back(static_cast<uint32_t>(i));
    }
    i += segments;
  }
  close_run();
}

// ---- inspection

Heap::Usage Heap::usage() const {
  Usage usage;
  const uint64_t total = pool_.segments() * kSegmentBytes;
  for (uint64_t i = 0; i < pool_.segments();) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 1;
    if (!parse_word(i, kind, size_class, segments)) segments = 1;
    if (kind == SegmentKind::kRun) usage.allocated_bytes += segments * kSegmentBytes;
    if (kind == SegmentKind::kSlab) {
      uint64_t blocks = 0;
      for (const uint64_t& word : descriptor(i).bitmap) {
        blocks += static_cast<uint64_t>(std::popcount(load_relaxed(word)));
      }
      usage.allocated_bytes += blocks * kClassBytes[static_cast<size_t>(size_class)];
    }
    i += segments;
  }
  usage.free_bytes = total - usage.allocated_bytes;
  const std::lock_guard lock(segments_mutex_);
  usage.high_water_segments = high_water_segments_;
  return usage;
}

uint64_t Heap::block_bytes_at(uint64_t offset, uint64_t bytes) const {
  if (offset >= pool_.header().data_offset && offset < offset_of_segment(pool_.segments())) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 1;
    if (parse_word(segment_of(offset), kind, size_class, segments) && kind == SegmentKind::kSlab &&
        serves(size_class, class_of(bytes))) {
      return kClassBytes[static_cast<size_t>(size_class)];
    }
  }
  return block_bytes(bytes);
}

bool Heap::is_allocated(uint64_t offset, uint64_t bytes) const {
  if (offset < pool_.header().data_offset || offset >= offset_of_segment(pool_.segments())) {
    return false;
  }
  const uint64_t segment = segment_of(offset);
  SegmentKind kind = SegmentKind::kFree;
  int size_class = 0;
  uint64_t segments = 1;
  if (!parse_word(segment, kind, size_class, segments)) return false;
  const uint64_t within = offset - offset_of_segment(segment);
  if (kind == SegmentKind::kRun) {
    return within == 0 && block_bytes(bytes) == segments * kSegmentBytes;
  }
  if (kind != SegmentKind::kSlab) return false;
  const uint64_t size = kClassBytes[static_cast<size_t>(size_class)];
  if (within % size != 0 || !serves(size_class, class_of(bytes))) return false;
  const uint64_t index = within / size;
  return (load_relaxed(descriptor(segment).bitmap[index / 64]) >> (index % 64) & 1) != 0;
}

uint64_t Heap::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  for (uint64_t i = 0; i < pool_.segments();) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 1;
    if (!parse_word(i, kind, size_class, segments)) {
      fail(fmt::format("heap: the descriptor of segment {} is damaged", i));
      segments = 1;
    } else if (kind == SegmentKind::kSlab) {
      const uint32_t blocks = blocks_in(size_class);
      for (uint32_t bit = blocks; bit < 1024; ++bit) {
        if ((descriptor(i).bitmap[bit / 64] >> (bit % 64) & 1) == 0) continue;
        fail(fmt::format("heap: segment {} marks block {} of {} as allocated", i, bit, blocks));
        break;
      }
    } else if (kind == SegmentKind::kRun) {
      for (uint64_t tail = i + 1; tail < i + segments; ++tail) {
        if (descriptor(tail).word == free_word(tail)) continue;
        fail(fmt::format("heap: segment {} is inside the run at segment {}, but in use itself",
                         tail, i));
      }
    }
    i += segments;
  }
  return found;
}

// ---- seals

template <typename Visit>
void Heap::for_each_used(Visit visit) const {
  for (uint64_t i = 0; i < pool_.segments();) {
    SegmentKind kind = SegmentKind::kFree;
    int size_class = 0;
    uint64_t segments = 1;
    parse_word(i, kind, size_class, segments);
    for (uint64_t s = i; s < i + segments && kind != SegmentKind::kFree; ++s) visit(s);
    i += segments;
  }
}

void Heap::seal(uint64_t generation) const {
  // All that the seals cover is flushed: there are words that nobody needs to be durable, and so nobody has
  // flushed. In two passes, so that neighbours are together where pages are remembered.
  for_each_used([&](uint64_t segment) {
    SegmentDescriptor& entry = descriptor(segment);
    const auto* content = pool_.at<char>(offset_of_segment(segment));
    store_relaxed(entry.seal, seal_of(entry, content, generation));
    pool_.memory().flush(content, kSegmentBytes);
  });
  for_each_used([&](uint64_t segment) {
    pool_.memory().flush(&descriptor(segment), sizeof(SegmentDescriptor));
  });
}

uint64_t Heap::check_seals(uint64_t generation,
                           const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  std::vector<char> content(kSegmentBytes);
  for_each_used([&](uint64_t segment) {
    SegmentDescriptor entry{};
    pool_.mapping().read_at(pool_.offset_of(&descriptor(segment)), &entry, sizeof entry);
    pool_.mapping().read_at(offset_of_segment(segment), content.data(), content.size());
    if (entry.seal == seal_of(entry, content.data(), generation)) return;
    ++found;
    report(fmt::format("segment {} is not as the last clean close left it (bytes {:#x} to {:#x})",
                       segment, offset_of_segment(segment), offset_of_segment(segment + 1)));
  });
  return found;
}

// ---- transactions

Heap::Txn::Txn(Heap& heap, bool reclaim)
    : heap_(heap),
      memory_(heap.pool_.memory()),
      outer_(heap_in_use),
      lane_(heap.acquire_lane()),
      reclaim_(reclaim) {
  heap_in_use = &heap;
}

void Heap::Txn::release_lane() {
  heap_.release_lane(lane_);
  heap_in_use = outer_;
}

Heap::Txn::~Txn() {
  if (!finished_) {
    if (heap_.pool_.failed()) {
      // Opening the pool again decides, by this lane: it stays taken, so that nobody writes over its
      // intents. Nor are redo records applied here, whose `armed` may not have become durable: the
      // targets might, and only some of them.
      heap_in_use = outer_;
      return;
    }
    try {
      Lane& own = heap_.lane(lane_);
      if (prepared_) {
        // An error between prepare() and finish(): decide as recovery would, by links that may have been
        // stored and not flushed.
        for (uint32_t i = 0; i < intents_; ++i) {
          const uint64_t link = own.intents[i].link & kLinkOffsetMask & ~uint64_t{7};
          if (link != 0) heap_.pool_.memory().flush(heap_.pool_.at<char>(link), sizeof(uint64_t));
        }
        heap_.recover_lane(own);
      } else if (intents_ > 0) {
        // Nothing was linked, but eviction may have carried intents to PM: they must not decide
        // about what happens to these blocks later.
        for (uint32_t i = 0; i < intents_; ++i) own.intents[i].link = 0;
        heap_.pool_.memory().persist(own.intents, intents_ * sizeof(Intent));
      }
    } catch (...) {  // the medium fails now: as above
      heap_in_use = outer_;
      return;
    }
    for (uint32_t i = 0; i < allocations_; ++i) {
      const Allocation& one = allocated_[i];
      if (heap_.is_allocated(one.block, one.size_class < 0
                                            ? one.segments * kSegmentBytes
                                            : kClassBytes[static_cast<size_t>(one.size_class)])) {
        continue;
      }
      if (one.size_class < 0) {
        heap_.release(one.block);
      } else {
        heap_.release_block(one.block, one.size_class);
      }
    }
    release_lane();
  }
}

uint64_t Heap::Txn::allocate(uint64_t bytes) {
  if (allocations_ >= kIntentsPerLane) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a transaction allocates more than a lane has intents for");
  Allocation one{};
  one.size_class = class_of(bytes);
  if (one.size_class >= 0) {
    one.size_class = heap_.take_block_for(lane_, one.size_class, reclaim_, one.block);
  } else {
    one.segments = block_bytes(bytes) / kSegmentBytes;
    uint64_t first = 0;
    if (!heap_.take_segments(one.segments, reclaim_ ? 0 : kReserveSegments, first))
      heap_.throw_full();
    one.block = heap_.offset_of_segment(first);
    heap_.note_run(one.block, one.segments);  // before anybody can find it, and free it
  }
  allocated_[allocations_++] = one;
  observe::allocate(bytes);
  return one.block;
}

bool Heap::Txn::is_run(uint64_t block) const {
  for (uint32_t i = 0; i < allocations_; ++i) {
    if (allocated_[i].block == block) return allocated_[i].size_class < 0;
  }
  SegmentKind kind = SegmentKind::kFree;
  int size_class = 0;
  uint64_t segments = 0;
  return heap_.parse_word(heap_.segment_of(block), kind, size_class, segments) &&
         kind == SegmentKind::kRun;
}

void Heap::Txn::add_intent(uint64_t block, const void* link, Link form, uint64_t flags) {
  assert(!prepared_);
  if (intents_ >= kIntentsPerLane) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a transaction has more intents than a lane holds");
  Intent& intent = heap_.lane(lane_).intents[intents_++];
  // In one line stores persist in order: never a new link beside an old block.
  intent.block = block | flags;
  uint64_t at = heap_.pool_.offset_of(link);
  if (form == Link::kUnit) intent.block |= kLinkIsUnit;
  if (form == Link::kTagged) intent.block |= kLinkTagged;
  if (form == Link::kAsPrevious) {
    assert((intents_ - 1) % (kLineBytes / sizeof(Intent)) != 0);
    intent.block |= kAsPrevious;
  }
  if (form >= Link::kBit) {
    const auto number = static_cast<uint64_t>(form);
    intent.block |= form >= Link::kUpTo    ? kLinkUpTo
                    : form >= Link::kAbove ? kLinkAbove
                                           : kLinkIsBit;
    at |= number % 64 << kLinkNumberShift;
  }
  if (is_run(block)) {
    intent.block |= kBlockIsRun;
  } else {
    // What settle() changes was flushed the last time, and may have left the caches.
    prefetch_to_change(heap_.bitmap_bit(block).first);
  }
  blocks_[intents_ - 1] = intent.block;
  store_release(intent.link, at);
}

// The length of a run that this transaction took, for whoever finds the link.
void Heap::Txn::note_run_length(uint64_t block) {
  for (uint32_t i = 0; i < allocations_; ++i) {
    if (allocated_[i].block != block || allocated_[i].size_class >= 0) continue;
    SegmentDescriptor& entry = heap_.descriptor(heap_.segment_of(block));
    entry.pending_run_segments = allocated_[i].segments;
    // Durable with the intent, by the fence after prepare(), and the link is stored after that fence: who
    // finds a link that this transaction stored finds the length, after any number of crashes. An intent
    // alone may be durable before the length: its link does not lead to the block then, so the run is
    // freed, for which no length is read.
    heap_.pool_.memory().flush(&entry.pending_run_segments, sizeof(uint64_t));
  }
}

void Heap::Txn::will_link(uint64_t block, const void* link, Link form) {
  note_run_length(block);
  add_intent(block, link, form);
  links_.set(intents_ - 1);
}

void Heap::Txn::may_link(uint64_t block, const void* link, Link form) {
  note_run_length(block);
  add_intent(block, link, form, kOnlyFrees);
  marks_.set(intents_ - 1);
}

void Heap::Txn::mark() {
  for (uint32_t i = 0; i < intents_; ++i) {
    if (!marks_[i]) continue;
    heap_.set_allocated(blocks_[i] & ~uint64_t{kIntentMask}, (blocks_[i] & kBlockIsRun) != 0, true);
  }
}

void Heap::Txn::will_unlink(uint64_t block, const void* link, Link form, Release release) {
  // From now until it is released the block counts as taken; a later scan would see its cleared bit
  // and hand it out too early.
  heap_.know_segment_of(block);
  add_intent(block, link, form);
  if (release == Release::kNow) freed_[frees_++] = block;
}

void Heap::Txn::may_unlink(uint64_t block, const void* link, Link form) {
  heap_.know_segment_of(block);
  add_intent(block, link, form, kOnlyFrees);
}

void Heap::Txn::redo(void* target, const void* image, uint32_t bytes) {
  assert(bytes % 8 == 0 && !prepared_);
  if (redo_bytes_ + 16 + bytes > kRedoBytes) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a transaction changes more than a lane's redo area holds");
  uint8_t* to = heap_.lane(lane_).redo + redo_bytes_;
  const uint64_t offset = heap_.pool_.offset_of(target);
  const uint64_t length = bytes;
  std::memcpy(to, &offset, 8);
  std::memcpy(to + 8, &length, 8);
  std::memcpy(to + 16, image, bytes);
  redo_bytes_ += 16 + bytes;
}

void Heap::Txn::prepare() {
  prepared_ = true;
  const Lane& own = heap_.lane(lane_);
  const Memory& memory = heap_.pool_.memory();
  if (intents_ > 0) memory.flush(own.intents, intents_ * sizeof(Intent));
  if (redo_bytes_ > 0) memory.flush(own.redo, redo_bytes_);
}

void Heap::Txn::apply() {
  assert(prepared_ && redo_bytes_ > 0);
  Lane& own = heap_.lane(lane_);
  const Memory& memory = heap_.pool_.memory();
  own.armed = uint64_t{checksum32(own.redo, redo_bytes_)} << 32 | redo_bytes_;
  memory.persist(&own.armed, sizeof own.armed);  // from here on the change happens
  heap_.apply_redo(own, redo_bytes_);
  memory.fence();
}

void Heap::Txn::settle() {
  // Not by looking at the links, as recovery does, nor at the intents: their lines have just been
  // flushed, and coming back to them is expensive. Blocks of a group share a bitmap word, which is changed
  // once.
  struct Change {
    uint64_t* word;
    uint64_t set;
    uint64_t clear;
  };
  std::array<Change, kIntentsPerLane> changes;
  uint32_t count = 0;
  for (uint32_t i = 0; i < intents_; ++i) {
    if (marks_[i]) continue;
    const uint64_t block = blocks_[i] & ~uint64_t{kIntentMask};
    if ((blocks_[i] & kBlockIsRun) != 0) {
      heap_.set_allocated(block, true, links_[i]);
      continue;
    }
    const auto [word, bit] = heap_.bitmap_bit(block);
    uint32_t at = 0;
    while (at < count && changes[at].word != word) ++at;
    if (at == count) changes[count++] = {word, 0, 0};
    (links_[i] ? changes[at].set : changes[at].clear) |= bit;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const std::atomic_ref word(*changes[i].word);
    if (changes[i].set != 0) word.fetch_or(changes[i].set, std::memory_order_acq_rel);
    if (changes[i].clear != 0) word.fetch_and(~changes[i].clear, std::memory_order_acq_rel);
    heap_.pool_.memory().flush(changes[i].word, sizeof(uint64_t));
  }
}

void Heap::Txn::finish() {
  Lane& own = heap_.lane(lane_);
  const Memory& memory = heap_.pool_.memory();
  for (uint32_t i = 0; i < intents_; ++i) own.intents[i].link = 0;
  if (intents_ > 0) memory.flush(own.intents, intents_ * sizeof(Intent));
  if (own.armed != 0) {
    own.armed = 0;
    memory.flush(&own.armed, sizeof own.armed);
  }
  // Before a block is handed out again, whose new owner this intent would not know.
  memory.fence();
  finished_ = true;
  release_lane();
  for (uint32_t i = 0; i < frees_; ++i) heap_.release(freed_[i]);
}

}  // namespace perdure::pm
