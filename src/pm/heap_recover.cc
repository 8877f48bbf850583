// What a crash left of transactions: finished or undone, lane by lane, before anything is
// allocated.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "pm/checksum.h"
#include "pm/drop.h"
#include "pm/heap.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

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
      // The one before stands in the same line, so it is as new as this one; and who forgets
      // intents leaves their blocks, so it is still readable when its own link is cleared already.
      const uint64_t previous = (&intent)[-1].block;
      const bool tagged = (previous & kLinkMask) == kLinkTagged;
      return (tagged ? word & kTaggedOffsetMask : word) == (previous & ~uint64_t{kIntentMask});
    }
    default:
      return word == block;
  }
}

void Heap::set_allocated(uint64_t block, bool run, bool allocated) {
  const uint64_t segment = segments_.number_of(block);
  SegmentDescriptor& entry = segments_.descriptor(segment);
  if (run) {
    // A length with check bits stays; the other has none.
    if (allocated && segments_.content_of(segment).kind == SegmentKind::kRun) {
      pool_.memory().flush(&entry.word, sizeof entry.word);
      return;
    }
    const uint64_t word =
        allocated ? Segments::word_of(SegmentKind::kRun, 0, entry.pending_run_segments, segment)
                  : Segments::free_word(segment);
    store_release(entry.word, word);
    pool_.memory().flush(&entry.word, sizeof entry.word);
    return;
  }
  const Segments::Content content = segments_.content_of(segment);
  if (content.kind != SegmentKind::kSlab) return;
  const uint64_t index =
      (block - segments_.offset_of(segment)) / HeapBlocks::class_bytes(content.size_class);
  uint64_t& word = entry.bitmap[index / 64];
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (allocated) {
    std::atomic_ref(word).fetch_or(bit, std::memory_order_acq_rel);
  } else {
    std::atomic_ref(word).fetch_and(~bit, std::memory_order_acq_rel);
  }
  pool_.memory().flush(&word, sizeof word);
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
  // Of structures, the word `root` of an entry of the root directory, or one of the header's two
  // that lead to blocks.
  const bool reads_word = form == kLinkIsUnit ? link % 4 == 0 : link % 8 == 0;
  const bool inside = link == offsetof(PoolHeader, transactions_word) ||
                      link == offsetof(PoolHeader, directory_word) ||
                      (link >= pool_.header().directory_offset && link < pool_.end_offset());
  const bool has_previous = form != kAsPrevious || &intent != lane.intents;
  bool sound = reads_word && inside && has_previous && form <= kLinkTagged &&
               pool_.leads_inside(block, kLineBytes) &&
               !pool_.map().is_table(segments_.number_of(block));
  if (sound && (intent.block & kBlockIsRun) != 0) {
    const uint64_t segment = segments_.number_of(block);
    const uint64_t length = segments_.descriptor(segment).pending_run_segments;
    // The length is durable before the link is stored; an intent may reach PM before either.
    sound = block == segments_.offset_of(segment) &&
            (!link_leads_to(intent) ||
             (length >= 1 &&
              length <= std::min(pool_.segments(), pool_.map().extent_of(segment).end) - segment));
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
      // In the root directory or in blocks: lanes, this one's too, and descriptors are nobody's
      // target. A record is shorter than a table, so that one which lies in none at either end lies
      // in none.
      const PoolHeader& header = pool_.header();
      const bool in_blocks = target >= header.data_offset;
      const uint64_t end = in_blocks ? pool_.end_offset() : header.lanes_offset;
      sound = target % 8 == 0 && length % 8 == 0 && length <= bytes - at &&
              target >= header.directory_offset && target < end && length <= end - target;
      const auto in_table = [&](uint64_t offset) {
        return pool_.map().is_table(segments_.number_of(offset));
      };
      sound = sound &&
              !(in_blocks && length > 0 && (in_table(target) || in_table(target + length - 1)));
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
    // A process that died may have left it in the caches: before any of the bytes, so that after a
    // power failure the next recovery replaces all of them.
    memory.persist(&lane.armed, sizeof lane.armed);
    apply_redo(lane, bytes);
    memory.fence();  // the bytes, before the record that could replace them again
    lane.armed = 0;
    memory.persist(&lane.armed,
                   sizeof lane.armed);  // before the lane's next transaction writes here
  }
  bool any = false;
  bool only_frees = false;
  for (const Intent& intent : lane.intents) {
    if (intent.link == 0) continue;
    require_sound(lane, intent);
    // A process that died may have left the link in the caches: it must not be lost to a power
    // failure once the intent is.
    memory.flush(pool_.at<char>(intent.link & kLinkOffsetMask), sizeof(uint64_t));
    any = true;
    only_frees = only_frees || (intent.block & kOnlyFrees) != 0;
  }
  if (!any) return;
  // The links, before what they lead away from is free: an intent that only frees would not take
  // that back after a power failure in which the free block is durable, and the link is not.
  if (only_frees) memory.fence();
  for (const Intent& intent : lane.intents) {
    if (intent.link != 0) resolve_intent(intent);
  }
  memory.fence();  // allocation state, before the intents that would decide it again
  for (Intent& intent : lane.intents) intent.link = 0;
  memory.persist(lane.intents,
                 sizeof lane.intents);  // before the lane's next transaction writes here
}

void Heap::recover() {
  const bool lenient = pool_.lenient();
  for (uint32_t i = 0; i < kLanes && !lenient; ++i) {
    uint64_t number = 0;
    if (!unseal_word(lane(i).mark, kLaneSalt, number) || number != i + 1) {
      pool_.throw_corrupt(fmt::format("lane {} of the transactions is damaged", i));
    }
  }
  for (uint32_t i = 0; i < kLanes; ++i) {
    try {
      recover_lane(lane(i));
    } catch (const Error& error) {
      if (!lenient || error.code() != ErrorCode::kCorrupt) throw;
    }
  }
  // The end of a transaction may be in the caches only, if a process died before its last fence.
  // Before any block is handed out: after a power failure its intents would be back, and judge that
  // block by links that no longer speak of it, and so would its redo records. Lanes of fewer
  // intents do not write over all of them.
  for (uint32_t i = 0; i < kLanes; ++i) {
    const Lane& own = lane(i);
    pool_.memory().flush(&own.armed, sizeof own.armed);
    pool_.memory().flush(own.intents, sizeof own.intents);
  }
  // Likewise what each segment is, a free one too: nothing flushes that again before blocks of it
  // are linked.
  if (pool_.memory().domain() == Domain::kLine) {
    pool_.map().for_each_piece(0, pool_.segments(), [&](uint64_t first, uint64_t last) {
      for (uint64_t i = first; i < last; ++i)
        pool_.memory().flush(&segments_.descriptor(i).word, sizeof(uint64_t));
    });
  }
  pool_.memory().fence();
  pool_.load_directory();
  if (!lenient)
    Drop::clear_interrupted(pool_);  // before anybody can be given what a dropped structure leaves
  uint64_t free_from = 0;
  uint64_t free_length = 0;
  const auto close_run = [&] {
    if (free_length > 0) segments_.add_free(free_from, free_length);
    free_length = 0;
  };
  segments_.for_each([&](uint64_t i, const Segments::Content& content, bool sound) {
    if (!sound && !lenient)
      pool_.throw_corrupt(fmt::format("the descriptor of segment {} is damaged", i));
    segments_.info(i).kind = content.kind;
    segments_.info(i).size_class = static_cast<uint8_t>(content.size_class);
    if (content.kind == SegmentKind::kFree) {
      if (free_from + free_length != i) close_run();  // a table lies before it
      if (free_length++ == 0) free_from = i;
      return;
    }
    close_run();
    segments_.note_used(i + content.segments);
    if (content.kind == SegmentKind::kRun) {
      segments_.note_run(segments_.offset_of(i), content.segments);
    } else {
      blocks_.adopt(i, content.size_class);
    }
  });
  close_run();
}

}  // namespace perdure::pm
