// Segments: taken from the heap until there are enough, then used again, the oldest one first.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "lsm/cache/core.h"

namespace perdure::block_cache {
namespace {

// How many of the oldest segments are looked at for one that nobody has pinned, and how often if
// all of them are. A thread may meet its own pin here, or one that waits for it: lookup() calls
// code of others, which may insert.
constexpr size_t kLookedAt = 64;
constexpr int kRounds = 100;

// Of a lane for this thread; threads are dealt out to lanes as they come.
size_t number_of_thread() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

std::optional<Core::Room> Core::reserve(uint64_t bytes) {
  const size_t lanes = lanes_in_use_.load(std::memory_order_relaxed);
  const size_t first = number_of_thread() % lanes;
  for (size_t i = 0; i < lanes; ++i) {
    auto room = reserve_in(lanes_[(first + i) % lanes], bytes);
    if (room) return room;
  }
  return std::nullopt;
}

std::optional<Core::Room> Core::reserve_in(Lane& lane, uint64_t bytes) {
  const uint64_t lines = bytes / pm::kLineBytes;
  const std::lock_guard lock(lane.mutex);
  // What got a second chance leaves half of a segment at least: a large block may have to go on to
  // the next one.
  for (uint32_t tries = 0;
       lane.segment == kNone || segments_[lane.segment].lines + lines > lines_max_; ++tries) {
    if (lane.segment != kNone) {
      const std::lock_guard space(space_mutex_);
      oldest_first_.push_back(lane.segment);
      lane.segment = kNone;
    }
    lane.segment = take_segment(tries == 0 ? lines_max_ / 2 : 0);
    if (lane.segment == kNone) return std::nullopt;
  }
  Segment& segment = segments_[lane.segment];
  const Where where = Where::of(lane.segment, segment.use(), segment.lines);
  Pin pin(segment, where);  // before another thread may find it full and old
  segment.lines += static_cast<uint32_t>(lines);
  return Room{where, std::move(pin)};
}

// One to append to, in no list, with at most so many lines of what was in it. kNone: there is none
// to be had, or all that are old are pinned.
uint32_t Core::take_segment(uint64_t kept_lines_max) {
  uint32_t segment = kNone;
  for (int round = 0; round < kRounds && segment == kNone; ++round) {
    if (round != 0) pm::PoolImpl::pause();
    const std::lock_guard lock(space_mutex_);
    const bool empty = !oldest_first_.empty() && segments_[oldest_first_.front()].lines == 0;
    if (!empty && taken_ < root_.segments_max && grow()) {
      segment = taken_ - 1;
      end_use(segment);  // nobody knows it
    } else if (!oldest_first_.empty()) {
      segment = end_oldest_use();
    } else {
      return kNone;
    }
  }
  if (segment != kNone) use_again(segment, kept_lines_max);
  return segment;
}

// The oldest one that nobody has pinned, of the first few; its use is about to end, and it is in no
// list any more.
// kNone: all are pinned. The caller holds space_mutex_.
uint32_t Core::end_oldest_use() {
  const size_t looked_at = std::min(oldest_first_.size(), kLookedAt);
  for (size_t i = 0; i < looked_at; ++i) {
    const uint32_t segment = oldest_first_[i];
    if (!end_use(segment)) continue;
    oldest_first_.erase(oldest_first_.begin() + static_cast<ptrdiff_t>(i));
    return segment;
  }
  return kNone;
}

// Marks the use as ending, so that nobody begins to read in it. False if somebody does already: it
// goes on.
bool Core::end_use(uint32_t number) {
  Segment& segment = segments_[number];
  const uint64_t state = segment.state.load(std::memory_order_relaxed);
  segment.state.store(state | 1, std::memory_order_seq_cst);
  // Of a pin and this, one sees the other.
  if (segment.pins.load(std::memory_order_seq_cst) == 0) return true;
  segment.state.store(state, std::memory_order_seq_cst);
  return false;
}

// One more from the heap: the last one of those that are taken. False if the pool is full. The
// caller holds space_mutex_.
bool Core::grow() {
  uint64_t& link = pool_.at<uint64_t>(root_.table)[taken_];
  try {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t offset = txn.allocate(root_.segment_bytes);
    auto* header = pool_.at<SegmentHeader>(offset);
    std::memset(static_cast<void*>(header), 0, sizeof *header);
    // No use, durably before the link: a segment that a crash took away may come to the same place
    // again.
    memory_.flush(header, sizeof *header);
    txn.will_link(offset, &link, pm::Link::kTagged);
    txn.commit([&] {
      pm::store_release(link, pm::seal_word(offset, salt_of_link(root_, taken_)));
      memory_.flush(&link, sizeof link);
    });
    segments_[taken_].offset.store(offset, std::memory_order_relaxed);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
  ++taken_;
  lanes_in_use_.store(static_cast<uint32_t>(std::clamp<size_t>(taken_ / 4, 1, kLanes)),
                      std::memory_order_relaxed);
  return true;
}

// Durable on return: what was in the segment is no record any more.
Use Core::begin_use(uint32_t segment) {
  const Use use{last_sequence_.fetch_add(1, std::memory_order_relaxed) + 1, pool_.generation()};
  auto* header = reinterpret_cast<SegmentHeader*>(line_of(segment, 0));
  header->check = check_of(use, segment, root_.salt);
  header->use = use;
  // Before the index forgets the records, of whose keys others may be written elsewhere then: a
  // crash would bring these back. And before a record is written here, which would else be judged
  // by the header of the last use.
  memory_.persist(header, sizeof *header);
  return use;
}

// Begins another use of a segment whose last one is about to end. What was asked for since it was
// written stays, up to so many lines.
void Core::use_again(uint32_t number, uint64_t kept_lines_max) {
  Segment& segment = segments_[number];
  const uint64_t last_use = segment.use();
  Use name;
  try {
    name = begin_use(number);
  } catch (...) {
    // The medium has failed. What the segment has is read on.
    segment.state.store(last_use << 1, std::memory_order_seq_cst);
    const std::lock_guard lock(space_mutex_);
    oldest_first_.push_front(number);
    throw;
  }
  // Who erases in it may rely on that.
  segment.state.store((last_use + 1) << 1, std::memory_order_seq_cst);
  std::vector<Kept> kept;
  uint64_t kept_lines = 1;
  walk(number, last_use, segment.lines, [&](Where where, const RecordHead& head, uint64_t hash) {
    const uint64_t lines = record_bytes(head.key_bytes, head.block_bytes) / pm::kLineBytes;
    Stripe& stripe = stripe_of(hash);
    const std::lock_guard lock(stripe.mutex);
    const Where* found = stripe.table.find(hash);
    if (found == nullptr || !found->same_place(where)) return;
    const char* key = line_of(number, where.line()) + sizeof head;
    // From here on the segment must come to its next use, or it would be in no list: without memory
    // nothing stays.
    try {
      if (kept_lines + lines <= kept_lines_max &&
          (found->asked_for() || (is_wanted_ && is_wanted_({key, head.key_bytes})))) {
        kept.push_back({where, hash, head, {key, size_t{head.key_bytes} + head.block_bytes}});
        kept_lines += lines;
        return;
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): as said
    }
    stripe.table.erase(hash);
    ++stripe.evictions;
  });
  segment.name = name;
  segment.lines = 1;
  for (const Kept& each : kept) put_back(number, each);
}

void Core::put_back(uint32_t number, const Kept& kept) {
  Segment& segment = segments_[number];
  const std::string_view bytes = kept.key_and_block;
  const Block block{bytes.substr(0, kept.head.key_bytes), kept.hash,
                    bytes.substr(kept.head.key_bytes), kept.head.block_check};
  Stripe& stripe = stripe_of(kept.hash);
  const std::lock_guard lock(stripe.mutex);
  const Where* found = stripe.table.find(kept.hash);
  // It was erased or replaced since.
  if (found == nullptr || !found->same_place(kept.where)) return;
  const Where where = Where::of(number, segment.use(), segment.lines);
  // Its check goes with it: if its bytes were damaged, they still do not fit.
  try {
    write_record(block, where);
  } catch (const std::bad_alloc&) {
    stripe.table.erase(kept.hash);
    ++stripe.evictions;
    return;
  }
  stripe.table.put(kept.hash, where);
  segment.lines +=
      static_cast<uint32_t>(record_bytes(block.key.size(), block.bytes.size()) / pm::kLineBytes);
  ++stripe.reinserted;
}

}  // namespace perdure::block_cache
