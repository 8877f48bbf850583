// Which pages were in DRAM, told to the next opening by words in PM behind the allocation table.
//
// They are hints, nothing more: a page that they name is read and judged as any other that is asked
// for. What a crash leaves of them, each word says of itself. So nothing needs to be durable before
// them, nor they before anything.
#include <array>
#include <span>

#include "buffer/pool.h"
#include "perdure/error.h"
#include "pm/layout.h"
#include "pm/pause.h"

namespace perdure::buffer {

void BufferPool::note_dram_pages() {
  // What the last opening noted, first: a second crash would find half of it.
  if (next_hint_ < hint_count_) return;
  const uint64_t moves = counters_.misses.load(std::memory_order_relaxed) +
                         counters_.promotions.load(std::memory_order_relaxed);
  if (areas_.hints == nullptr || moves == noted_moves_) return;
  noted_moves_ = moves;
  uint64_t count = 0;
  for (const bool lately : {true, false}) {
    for (uint64_t i = 0; i < dram_frames_ && count < pm_frames(); ++i) {
      const Frame& frame = frames_[i];
      const uint64_t id = pm::acquire(frame.page);
      if (id == kNoPage || frame.referenced.load(std::memory_order_relaxed) != lately) continue;
      pm::store_release(areas_.hints[count++], pm::seal_word(id + 1, kHintSalt));
    }
  }
  if (count < pm_frames()) pm::store_release(areas_.hints[count++], uint64_t{0});  // the end
  // For a loss of power: they outlive the process in any case.
  memory_.persist(areas_.hints, count * sizeof(uint64_t));
}

// A frame in DRAM that the page noted next comes into. Null: there is none, or no page more.
Frame* BufferPool::begin_next_hint(uint64_t page_count) {
  while (next_hint_ < hint_count_) {
    const uint64_t word = areas_.hints[next_hint_++];
    const std::lock_guard miss(miss_mutex_);
    if (word == 0 || free_dram_.load(std::memory_order_relaxed) == 0) break;
    uint64_t id = 0;
    // A page that never was, as an unfinished commit leaves one, would be looked for in the
    // archive.
    if (!pm::unseal_word(word, kHintSalt, id) || id == 0 || id > page_count) continue;
    if (Frame* const here = pin_if_here(id - 1)) {
      unpin(*here);
      continue;
    }
    for (uint64_t step = 0; step < dram_frames_; ++step) {
      Frame& frame = frames_[dram_hand_];
      dram_hand_ = dram_hand_ + 1 == dram_frames_ ? 0 : dram_hand_ + 1;
      if (pm::acquire(frame.pins) != 0) continue;
      if (frame.page.load(std::memory_order_relaxed) != kNoPage) continue;
      begin_load(frame, id - 1);
      return &frame;
    }
    break;
  }
  give_up_prefetch();
  return nullptr;
}

uint64_t BufferPool::prefetch_some(uint64_t page_count) {
  // Who asks for one of them meanwhile waits for it: nobody else can read it, change it and write
  // it before it is here.
  std::array<Frame*, kStagedMax> frames{};
  std::array<PageStore::PageRead, kStagedMax> reads{};
  uint64_t count = 0;
  while (count < kStagedMax) {
    Frame* const frame = begin_next_hint(page_count);
    if (frame == nullptr) break;
    frames[count] = frame;
    reads[count++] = {frame->page.load(std::memory_order_relaxed), frame->data};
  }
  bool read = count > 0;
  try {
    if (read) store_.read_all(std::span(reads.data(), count));
  } catch (const std::exception&) {
    read = false;  // one by one
  }
  for (uint64_t i = 0; i < count; ++i) {
    try {
      finish_load(*frames[i], reads[i].id, true, read ? frames[i]->data : nullptr);
      counters_.prefetched.fetch_add(1, std::memory_order_relaxed);
      unpin(*frames[i]);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): told to who asks for it
    }
  }
  return count;
}

}  // namespace perdure::buffer
