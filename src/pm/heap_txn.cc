// Transactions: intents, redo records, and the steps that make a change.
#include <cassert>
#include <cstring>

#include "pm/checksum.h"
#include "pm/heap.h"
#include "pm/observe.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::pm {

namespace {

// The heap in which this thread has an unfinished transaction.
thread_local const Heap* heap_in_use = nullptr;

}  // namespace

uint32_t Heap::acquire_lane() {
  // Who waits for a second lane while others do the same waits for ever.
  if (heap_in_use == this) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a thread begins a second transaction in a heap");
  return blocks_.acquire_lane();
}

Heap::Txn::Txn(Heap& heap, bool reclaim)
    : heap_(heap),
      memory_(heap.pool_.memory()),
      outer_(heap_in_use),
      lane_(heap.acquire_lane()),
      reclaim_(reclaim || FinishingScope::is_active()) {
  heap_in_use = &heap;
}

void Heap::Txn::release_lane() {
  heap_.blocks_.release_lane(lane_);
  heap_in_use = outer_;
}

Heap::Txn::~Txn() {
  if (!finished_) {
    if (heap_.pool_.failed()) {
      // Opening the pool again decides, by this lane: it stays taken, so that nobody writes over
      // its intents. Nor are redo records applied here, whose `armed` may not have become durable:
      // the targets might, and only some of them.
      heap_in_use = outer_;
      return;
    }
    try {
      Lane& own = heap_.lane(lane_);
      if (prepared_) {
        // An error between prepare() and finish(): decide as recovery would, by links that may have
        // been stored and not flushed.
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
                                            : HeapBlocks::class_bytes(one.size_class))) {
        continue;
      }
      if (one.size_class < 0) {
        heap_.release(one.block);
      } else {
        heap_.blocks_.release(one.block, one.size_class);
      }
    }
    release_lane();
  }
}

uint64_t Heap::Txn::allocate(uint64_t bytes) {
  if (allocations_ >= kIntentsPerLane) [[unlikely]]
    throw Error(ErrorCode::kInternal, "a transaction allocates more than a lane has intents for");
  Allocation one{};
  one.size_class = HeapBlocks::class_of(bytes);
  if (one.size_class >= 0) {
    one.size_class = heap_.blocks_.take(lane_, one.size_class, reclaim_, one.block);
  } else {
    one.segments = block_bytes(bytes) / kSegmentBytes;
    uint64_t first = 0;
    if (!heap_.segments_.take(one.segments, reclaim_ ? 0 : Segments::kReserve, first))
      heap_.segments_.throw_full();
    one.block = heap_.segments_.offset_of(first);
    heap_.segments_.note_run(one.block, one.segments);  // before anybody can find it, and free it
  }
  allocated_[allocations_++] = one;
  observe::allocate(bytes);
  return one.block;
}

bool Heap::Txn::is_run(uint64_t block) const {
  for (uint32_t i = 0; i < allocations_; ++i) {
    if (allocated_[i].block == block) return allocated_[i].size_class < 0;
  }
  const Segments& segments = heap_.segments_;
  return segments.content_of(segments.number_of(block)).kind == SegmentKind::kRun;
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
    prefetch_to_change(heap_.blocks_.bitmap_bit(block).first);
  }
  blocks_[intents_ - 1] = intent.block;
  store_release(intent.link, at);
}

// The length of a run that this transaction took, for whoever finds the link.
void Heap::Txn::note_run_length(uint64_t block) {
  for (uint32_t i = 0; i < allocations_; ++i) {
    if (allocated_[i].block != block || allocated_[i].size_class >= 0) continue;
    SegmentDescriptor& entry = heap_.segments_.descriptor(heap_.segments_.number_of(block));
    entry.pending_run_segments = allocated_[i].segments;
    // Durable with the intent, by the fence after prepare(), and the link is stored after that
    // fence: who finds a link that this transaction stored finds the length, after any number of
    // crashes. An intent alone may be durable before the length: its link does not lead to the
    // block then, so the run is freed, for which no length is read. (A link that held the same
    // offset before is made 0, durably, by who reuses it: Records::link, make_structure.)
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
  heap_.blocks_.require_in_use(block);
  add_intent(block, link, form);
  if (release == Release::kNow) freed_[frees_++] = block;
}

void Heap::Txn::may_unlink(uint64_t block, const void* link, Link form) {
  heap_.blocks_.require_in_use(block);
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
  apply_in_commit();
  memory_.fence();  // the bytes, before finish() disarms
}

void Heap::Txn::apply_in_commit() {
  assert(prepared_ && redo_bytes_ > 0);
  Lane& own = heap_.lane(lane_);
  const Memory& memory = heap_.pool_.memory();
  own.armed = uint64_t{checksum32(own.redo, redo_bytes_)} << 32 | redo_bytes_;
  memory.persist(&own.armed, sizeof own.armed);  // from here on the change happens
  heap_.apply_redo(own, redo_bytes_);
}

void Heap::Txn::settle() {
  // Not by looking at the links, as recovery does, nor at the intents: their lines have just been
  // flushed, and coming back to them is expensive. Blocks of a group share a bitmap word, which is
  // changed once.
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
    const auto [word, bit] = heap_.blocks_.bitmap_bit(block);
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
