#include "pm/segments.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <ranges>

#include "pm/heap.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

Segments::Segments(PoolImpl& pool)
    : pool_(pool),
      map_(pool.map()),
      descriptors_(&pool.descriptor(0)),
      first_segments_(map_.first_segments()),
      data_offset_(pool.header().data_offset) {
  // What is mapped may be about to become the capacity.
  const uint64_t segments = pool.mapping().mapped_bytes() / kSegmentBytes;
  infos_bytes_ = (segments * sizeof(Info) + 4095) & ~uint64_t{4095};
  void* mapped = ::mmap(nullptr, infos_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  infos_ = static_cast<Info*>(mapped);
}

Segments::~Segments() {
  for (uint64_t i = 0; i < pool_.segments(); ++i) delete[] infos_[i].taken;
  ::munmap(infos_, infos_bytes_);
}

uint64_t Segments::count() const { return pool_.segments(); }

SegmentDescriptor& Segments::extension(uint64_t segment) const { return pool_.descriptor(segment); }

// ---- descriptors

uint64_t Segments::word_of(SegmentKind kind, int size_class, uint64_t segments, uint64_t number) {
  const uint64_t value =
      static_cast<uint64_t>(kind) | static_cast<uint64_t>(size_class & 0xff) << 8 | segments << 16;
  return seal_word(value, kDescriptorSalt + (number << 16));
}

bool Segments::read(uint64_t segment, Content& out) const {
  const uint64_t end = std::min(count(), map_.extent_of(segment).end);
  return parse(load_relaxed(descriptor(segment).word), segment, end, out);
}

bool Segments::parse(uint64_t word, uint64_t segment, uint64_t end, Content& out) {
  out = {};
  uint64_t value = 0;
  if (word == 0 || !unseal_word(word, kDescriptorSalt + (segment << 16), value)) return false;
  const Content found{.kind = static_cast<SegmentKind>(value & 0xff),
                      .size_class = static_cast<int>(value >> 8 & 0xff),
                      .segments = value >> 16};
  const bool sound = found.kind == SegmentKind::kRun
                         ? found.segments >= 1 && found.segments <= end - segment
                         : found.kind <= SegmentKind::kSlab &&
                               found.size_class < HeapBlocks::kClasses && found.segments == 1;
  if (sound) out = found;
  return sound;
}

void Segments::note_run(uint64_t block, uint64_t segments) {
  Info& info = infos_[number_of(block)];
  info.kind = SegmentKind::kRun;
  info.run_segments = static_cast<uint32_t>(segments);
}

// ---- free segments

bool Segments::take(uint64_t count, uint32_t keep, uint64_t& first) {
  const std::lock_guard lock(mutex_);
  const uint64_t promised = promising == this ? 0 : promised_.load(std::memory_order_relaxed);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool enough = free_segments_ >= count + keep + promised;
    for (auto run = free_runs_.begin(); enough && run != free_runs_.end(); ++run) {
      if (run->second < count) continue;
      first = run->first;
      const uint64_t rest = run->second - count;
      free_runs_.erase(run);
      if (rest > 0) free_runs_.emplace(first + count, rest);
      free_segments_ -= count;
      high_water_ = std::max(high_water_, first + count);
      pool_.note_use(this->count() - free_segments_);
      return true;
    }
    if (!grow(count + kReserve + promised, count)) return false;
  }
  return false;
}

bool Segments::promise(uint64_t segments) {
  if (segments == 0) return true;
  const std::lock_guard lock(mutex_);
  const uint64_t wanted = segments + kReserve + promised_.load(std::memory_order_relaxed);
  if (free_segments_ < wanted) grow(wanted, 1);
  if (free_segments_ < wanted) return false;
  promised_ += segments;
  return true;
}

void Segments::end_promise(uint64_t segments) { promised_ -= segments; }

void Segments::release(uint64_t first, uint64_t count) noexcept try {
  const std::lock_guard lock(mutex_);
  const auto next = free_runs_.lower_bound(first);
  const auto previous = next == free_runs_.begin() ? free_runs_.end() : std::prev(next);
  const bool joins_next = next != free_runs_.end() && first + count == next->first;
  const bool joins_previous =
      previous != free_runs_.end() && previous->first + previous->second == first;
  if (joins_previous) {
    previous->second += count + (joins_next ? next->second : 0);
    if (joins_next) free_runs_.erase(next);
  } else if (joins_next) {
    auto run = free_runs_.extract(next);  // needs no memory
    run.key() = first;
    run.mapped() += count;
    free_runs_.insert(std::move(run));
  } else {
    free_runs_.emplace(first, count);  // throws before anything has changed, if at all
  }
  free_segments_ += count;
  pool_.note_use(this->count() - free_segments_);
} catch (const std::bad_alloc&) {  // the segments stay unused until the next open
}

bool Segments::is_scarce(uint64_t segments) const {
  const bool grows = !medium_full_.load(std::memory_order_relaxed);
  const uint64_t growth = grows ? pool_.segments_left() : 0;
  return free_segments_.load(std::memory_order_relaxed) + growth <
         segments + promised_.load(std::memory_order_relaxed);
}

bool Segments::take_below(uint64_t limit, uint64_t& segment) {
  const std::lock_guard lock(mutex_);
  const auto run = free_runs_.begin();
  if (run == free_runs_.end() || run->first >= limit) return false;
  segment = run->first;
  if (run->second > 1) free_runs_.emplace_hint(std::next(run), segment + 1, run->second - 1);
  free_runs_.erase(run);
  --free_segments_;
  high_water_ = std::max(high_water_, segment + 1);
  return true;
}

uint64_t Segments::shrink() {
  const std::lock_guard lock(mutex_);
  const uint64_t before = count();
  const uint64_t used = end_of_use();
  // With a medium that is full by then, what is kept lets records be removed, as take() does by
  // growing in time.
  const uint64_t kept = used == 0 ? 0 : kReserve + promised_.load(std::memory_order_relaxed);
  const uint64_t after = std::min(before, pool_.stepped_end(map_.advance(used, kept)));
  if (after < before) pool_.count_fewer(after);
  while (!free_runs_.empty()) {
    const auto last = std::prev(free_runs_.end());
    const uint64_t end = last->first + last->second;
    if (end <= after) break;
    const uint64_t gone = end - std::max(after, last->first);
    last->second -= gone;
    free_segments_ -= gone;
    if (last->second == 0) free_runs_.erase(last);
  }
  const uint64_t bytes = pool_.give_back(before);
  medium_full_.store(false, std::memory_order_relaxed);
  return bytes;
}

uint64_t Segments::free_at_end() const {
  if (free_runs_.empty()) return 0;
  const auto last = std::prev(free_runs_.end());
  return last->first + last->second == count() ? last->second : 0;
}

uint64_t Segments::end_of_use() const {
  uint64_t end = count();
  for (const auto& [first, segments] : std::views::reverse(free_runs_)) {
    if (first + segments != end) break;
    const SegmentMap::Extent extent = map_.extent_of(first);
    end = first == extent.data ? extent.begin : first;
  }
  return end;
}

uint64_t Segments::wanted_end(uint64_t segments, uint64_t adjacent) const {
  const uint64_t before = pool_.segments();
  const uint64_t most = pool_.segments_max();
  const uint64_t tail = free_at_end();  // counts: a run may begin there
  const uint64_t more = segments > tail ? segments - tail : 1;
  // No run reaches over a table: it may have to begin behind the next one.
  uint64_t begin = before - tail;
  while (begin < most) {
    const SegmentMap::Extent extent = map_.extent_of(begin);
    begin = std::max(begin, extent.data);
    if (begin < most && std::min(extent.end, most) - begin >= adjacent) break;
    begin = extent.end;
  }
  if (begin >= most) return before;  // nor does any growth help
  return std::min(most, std::max(map_.advance(before, more), begin + adjacent));
}

bool Segments::grow(uint64_t segments, uint64_t adjacent) {
  const uint64_t before = pool_.segments();
  const uint64_t tail = free_at_end();
  const uint64_t end = wanted_end(segments, adjacent);
  if (end == before && !pool_.failed()) {
    medium_full_.store(false, std::memory_order_relaxed);
    return false;
  }
  try {
    pool_.grow_to(end);
  } catch (const Error& error) {
    if (!is_full(error)) throw;
    medium_full_.store(error.code() == ErrorCode::kNoSpace, std::memory_order_relaxed);
    return false;
  }
  medium_full_.store(false, std::memory_order_relaxed);
  map_.for_each_piece(before, pool_.segments(), [&](uint64_t first, uint64_t last) {
    free_segments_ += last - first;
    if (tail > 0 && first == before) {
      std::prev(free_runs_.end())->second += last - first;
    } else {
      free_runs_.emplace(first, last - first);
    }
  });
  pool_.note_growth();
  return true;
}

void Segments::add_free(uint64_t first, uint64_t count) {
  free_runs_.emplace(first, count);
  free_segments_ += count;
}

uint64_t Segments::high_water() const {
  const std::lock_guard lock(mutex_);
  return high_water_;
}

void Segments::throw_full() const {
  if (medium_full_.load(std::memory_order_relaxed)) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: the pool must grow, but its medium has no space left; nothing was "
                            "changed: free space there, or delete records",
                            pool_.mapping().path()));
  }
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: the pool is full at its capacity of {} bytes; nothing was changed: "
                          "delete records, or open the pool with a larger capacity",
                          pool_.mapping().path(), pool_.capacity_bytes()));
}

}  // namespace perdure::pm
