// Finding pages, loading them, moving them, and what is done first after opening.
#include "buffer/pool.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "perdure/error.h"
#include "pm/layout.h"
#include "pm/pause.h"

namespace perdure::buffer {

namespace {

// A page that this thread works on, beside its frame.
char* scratch_page() {
  thread_local const auto page = aligned_bytes(kPageBytesMax);
  return page.get();
}

void (*pm_frame_used)() = nullptr;

uint64_t table_salt(uint64_t frame) { return kTableSalt + (frame << 24); }

}  // namespace

RootWords words_of(const Root& root) {
  RootWords words{};
  if (!pm::unseal_word(root.head, kHeadSalt, words.head) ||
      !pm::unseal_word(root.batch, kBatchSalt, words.staged) || words.staged > kStagedMax) {
    throw Error(ErrorCode::kCorrupt, "the root of the database is damaged");
  }
  words.head *= Log::kAlign;
  return words;
}

void tell_of_pm_frames(void (*used)()) { pm_frame_used = used; }

AlignedBytes aligned_bytes(uint64_t bytes) {
  // Whole pages: sanitizers refuse others.
  bytes = (bytes + pm::kPageBytes - 1) / pm::kPageBytes * pm::kPageBytes;
  auto* memory = static_cast<char*>(std::aligned_alloc(pm::kPageBytes, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, std::free};
}

void* map_zeros(uint64_t bytes) {
  if (bytes == 0) return nullptr;
  void* const zeros =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (zeros == MAP_FAILED) throw std::bad_alloc();
  ::madvise(zeros, bytes, MADV_HUGEPAGE);
  return zeros;
}

void unmap_zeros(void* zeros, uint64_t bytes) {
  if (zeros != nullptr) ::munmap(zeros, bytes);
}

BufferPool::BufferPool(const PageFormat& format, const pm::Memory& memory, Log& log,
                       PageStore& store, const Areas& areas, uint64_t dram_frames,
                       uint64_t pm_frames, uint32_t checksum_every)
    : format_(format),
      memory_(memory),
      log_(log),
      store_(store),
      areas_(areas),
      recovery_(format, log, store),
      dram_frames_(dram_frames),
      frame_count_(dram_frames + pm_frames),
      checksum_every_(checksum_every),
      dram_(dram_frames * format.page_bytes()),
      frame_memory_(frame_count_),
      frames_(frame_memory_.data()),
      recovery_lsns_(frame_count_),
      chain_mask_(std::bit_ceil(std::max(frame_count_, kShards)) - 1),
      chains_(chain_mask_ + 1),
      shards_(std::make_unique<Shard[]>(kShards)),
      hint_count_(areas.hints == nullptr ? 0 : pm_frames),
      placement_(std::make_unique<TwoQueuePlacement>(std::max<uint64_t>(16, dram_frames / 2))),
      pm_hand_(dram_frames),
      free_dram_(dram_frames),
      moving_(aligned_bytes(format.page_bytes())),
      batch_(aligned_bytes(uint64_t{format.page_bytes()} * kStagedMax)) {}

void BufferPool::require_sound() const {
  if (!broken_.load(std::memory_order_relaxed)) return;
  throw Error(ErrorCode::kIo,
              "the database stopped when its medium refused a write; close the pool, mend the "
              "medium and open it again");
}

void BufferPool::recover(bool may_be_unflushed) {
  const auto [head, staged] = words_of(*areas_.root);
  // A process that died may have left these words in the caches only. What follows rests on them:
  // were they lost to a power failure later, the log would be read from entries that have been
  // overwritten.
  memory_.persist(&areas_.root->head, sizeof(Root) - offsetof(Root, head));
  batch_open_ = staged != 0;
  // The frames need neither the log nor what is staged. A thread is worth it for many in PM.
  std::future<std::vector<Frame*>> frames;
  if (pm_frames() >= kManyFrames) {
    try {
      frames = std::async(std::launch::async, [this] { return find_frames(); });
    } catch (const std::system_error&) {
      // There is no thread to be had: one after the other.
    }
  }
  // A log in a file may be refused: then nothing has been changed, and the right file, or a
  // salvage, finds what there was.
  recovery_.analyse(head);
  if (may_be_unflushed) log_.make_durable();
  finish_batch();
  log_.mark();
  const std::vector<Frame*> astray = frames.valid() ? frames.get() : find_frames();
  // Before any page is used: a word for a page that is in another frame, too, could lead to an old
  // version later.
  for (const Frame* frame : astray) set_table(*frame, kNoPage);
}

// Makes the frames, and finds what those in PM hold. Nobody else uses them yet. Changes nothing in
// PM. Returns those whose words lead to no page, or to one that is in another frame: they have
// none.
std::vector<Frame*> BufferPool::find_frames() {
  std::vector<Frame*> astray;
  // As the words of the root, and before any page is used: else one could be found later by a word
  // that was cleared.
  if (areas_.table != nullptr) memory_.persist(areas_.table, pm_frames() * sizeof(uint64_t));
  for (uint64_t i = 0; i < dram_frames_; ++i) {
    Frame& frame = *new (&frames_[i]) Frame;
    frame.data = dram_.data() + i * format_.page_bytes();
  }
  for (uint64_t i = dram_frames_; i < frame_count_; ++i) {
    Frame& frame = *new (&frames_[i]) Frame;
    frame.pm = true;
    frame.data = areas_.frames + (i - dram_frames_) * format_.page_bytes();
    const uint64_t word = areas_.table[i - dram_frames_];
    if (word == 0) continue;
    uint64_t id = 0;
    const bool sound = pm::unseal_word(word, table_salt(i - dram_frames_), id) && id != 0;
    if (!sound || find_linked(id - 1) != nullptr) {
      astray.push_back(&frame);
      continue;
    }
    put_in(frame, id - 1);
    frame.unjudged.store(true, std::memory_order_relaxed);
    frame.latch.open();
  }
  return astray;
}

// Frames that nobody has judged lose their words: they may hold what an unfinished commit has left,
// which looks right once the log's head is beyond it. They stay in use; judging one gives it its
// word again. Pages that the log names keep theirs, as the head stays before their records: until
// one of them is judged it is pending, and then it needs no second look. So once does for all.
// miss_mutex_ is held.
void BufferPool::forget_unjudged() {
  if (forgotten_) return;
  uint64_t* first = nullptr;
  uint64_t* last = nullptr;
  Recovery::Expected expected{};
  for (uint64_t i = dram_frames_; i < frame_count_; ++i) {
    const Frame& frame = frames_[i];
    if (!pm::acquire(frame.unjudged)) continue;
    const uint64_t id = pm::acquire(frame.page);
    if (id == kNoPage || recovery_.find(id, expected)) continue;
    last = &areas_.table[i - dram_frames_];
    if (first == nullptr) first = last;
    pm::store_release(*last, uint64_t{0});
  }
  if (first != nullptr) {
    memory_.flush(first, static_cast<uint64_t>(last + 1 - first) * sizeof *first);
    // Before the log's head moves.
    memory_.fence();
  }
  forgotten_ = true;
}

// Durable on return.
void BufferPool::set_table(const Frame& frame, uint64_t id) {
  const uint64_t i = number_of(frame) - dram_frames_;
  const uint64_t word = id == kNoPage ? 0 : pm::seal_word(id + 1, table_salt(i));
  pm::store_release(areas_.table[i], word);
  // Cleared: before the page is changed elsewhere. Set: before the page counts as being in PM.
  memory_.persist(&areas_.table[i], sizeof word);
}

Frame* BufferPool::find_linked(uint64_t id) {
  for (uint32_t number = chain_of(id); number != 0; number = frames_[number - 1].next) {
    Frame& frame = frames_[number - 1];
    if (frame.page.load(std::memory_order_relaxed) == id) return &frame;
  }
  return nullptr;
}

// The page is in no frame then.
void BufferPool::take_out(Frame& frame, uint64_t id) {
  uint32_t* at = &chain_of(id);
  while (*at != number_of(frame) + 1) at = &frames_[*at - 1].next;
  *at = frame.next;
  pm::publish(frame.page, uint64_t{kNoPage});
}

Frame* BufferPool::pin_if_here(uint64_t id) {
  const std::lock_guard lock(mutex_of(id));
  Frame* frame = find_linked(id);
  if (frame == nullptr) return nullptr;
  frame->pins.fetch_add(1, std::memory_order_acquire);
  pm::may_pause();
  return frame;
}

bool BufferPool::try_look_at(uint64_t id, Unlatched& page) const {
  const uint32_t number = map_->find(id);
  if (number >= frame_count_ || broken_.load(std::memory_order_relaxed)) return false;
  Frame& frame = frames_[number];
  page.frame = &frame;
  if (!frame.latch.try_begin_read(page.version)) return false;
  const bool here = frame.page.load(std::memory_order_relaxed) == id &&
                    !frame.unjudged.load(std::memory_order_relaxed);
  // Pages in PM that are used often move to DRAM: pin() counts that.
  if (!here || (frame.pm && dram_frames_ > 0)) return false;
  if (frame.pm && pm_frame_used != nullptr) [[unlikely]]
    pm_frame_used();
  if (!frame.referenced.load(std::memory_order_relaxed)) {
    frame.referenced.store(true, std::memory_order_relaxed);
  }
  return true;
}

Frame& BufferPool::pin(uint64_t id, bool read, const char* ahead) {
  for (bool moved = false;;) {
    require_sound();
    Frame* frame = pin_if_here(id);
    if (frame == nullptr) frame = load(id, read, ahead);
    if (frame == nullptr) continue;
    while (pm::acquire(frame->loading)) std::this_thread::yield();
    if (pm::acquire(frame->page) != id) {  // loading it has failed
      unpin(*frame);
      continue;
    }
    if (pm::acquire(frame->unjudged)) {
      try {
        judge(*frame, id, read);
      } catch (...) {
        unpin(*frame);
        throw;
      }
    }
    if (!frame->referenced.load(std::memory_order_relaxed)) {
      frame->referenced.store(true, std::memory_order_relaxed);
    }
    const bool hot =
        frame->pm && !moved && dram_frames_ > 0 && (has_spare_dram() || placement_->wants(id));
    if (!hot) {
      if (frame->pm && pm_frame_used != nullptr) [[unlikely]]
        pm_frame_used();
      return *frame;
    }
    unpin(*frame);
    moved = true;
    promote(id);
  }
}

void BufferPool::judge(Frame& frame, uint64_t id, bool read) {
  // A reader comes here while it holds the parent, which a commit may wait for that holds this
  // page: by then judged.
  while (!frame.latch.try_lock()) {
    if (!pm::acquire(frame.unjudged)) return;
    std::this_thread::yield();
  }
  const std::unique_ptr<Latch, void (*)(Latch*)> held(&frame.latch,
                                                      [](Latch* latch) { latch->unlock(); });
  if (!frame.unjudged.load(std::memory_order_relaxed)) return;
  if (!read) {
    // What an unfinished commit has left of a page that never was.
    std::memset(frame.data, 0, format_.page_bytes());
    header_of(frame.data).id = id;
    pm::publish(frame.unjudged, false);
    return;
  }
  Recovery::Expected expected{};
  const bool pending = recovery_.find(id, expected);
  const PartMask touched = recovery_.judge(id, frame.data, scratch_page());
  format_.seal(frame.data, touched);
  const bool has_word = pm::load_relaxed(areas_.table[number_of(frame) - dram_frames_]) != 0;
  if (!pending || !has_word) {
    memory_.flush(frame.data, format_.page_bytes());
    // Before the page counts as clean, and the log's head may move: what an unfinished commit has
    // left in PM would look right after a second crash. And before the word that leads to the
    // frame.
    memory_.fence();
  }
  if (!has_word) set_table(frame, id);
  if (pending) pm::publish(recovery_lsn(frame), uint64_t{expected.entry});
  recovery_.settle(id);
  pm::publish(frame.unjudged, false);
}

uint64_t BufferPool::mend_some(uint64_t limit) {
  mending_.fetch_add(1, std::memory_order_acquire);
  const std::unique_ptr<std::atomic<uint64_t>, void (*)(std::atomic<uint64_t>*)> counted(
      &mending_, [](auto* mending) { mending->fetch_sub(1, std::memory_order_release); });
  std::vector<uint64_t> ids;
  ids.reserve(kStagedMax);
  while (ids.size() < std::min<uint64_t>(limit, kStagedMax)) {
    const uint64_t id = recovery_.take_next();
    if (id == kNoPage) break;
    ids.push_back(id);
  }
  try {
    const ReadAhead ahead = read_ahead(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      try {
        unpin(pin(ids[i], true, ahead.pages[i]));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        recovery_.give_up(ids[i]);
      }
    }
  } catch (...) {
    recovery_.put_back();
    throw;
  }
  return ids.size();
}

// What is read of a page that the log names is good for as long as the page is pending: it gets
// into the page store only from a frame, and coming into a frame settles it.
BufferPool::ReadAhead BufferPool::read_ahead(const std::vector<uint64_t>& ids) {
  ReadAhead ahead{aligned_bytes(std::max<uint64_t>(1, ids.size()) * format_.page_bytes()), {}};
  std::vector<PageStore::PageRead> reads;
  for (size_t i = 0; i < ids.size(); ++i) {
    Frame* here = pin_if_here(ids[i]);
    if (here != nullptr) {
      unpin(*here);
      continue;
    }
    char* page = ahead.memory.get() + i * format_.page_bytes();
    reads.push_back({ids[i], page});
    ahead.pages[i] = page;
  }
  try {
    if (reads.size() > 1) {
      store_.read_all(reads);
      return ahead;
    }
  } catch (
      const Error&) {  // NOLINT(bugprone-empty-catch): reading the one that cannot be read tells
  }
  ahead.pages = {};
  return ahead;
}

void BufferPool::await_mending() const {
  while (pm::acquire(mending_) != 0) std::this_thread::yield();
}

uint64_t BufferPool::judge_next(std::mutex& turn) {
  const std::lock_guard lock(turn);
  if (const uint64_t mended = mend_some(kStagedMax); mended > 0) return mended;
  for (; judge_hand_ < frame_count_; ++judge_hand_) {
    Frame& frame = frames_[judge_hand_];
    const uint64_t id = pm::acquire(frame.page);
    if (id == kNoPage || !pm::acquire(frame.unjudged)) continue;
    try {
      unpin(pin(id));
    } catch (const Error& error) {
      // Told to who asks for the page. It may be one that an unfinished commit was to make.
      if (error.code() != ErrorCode::kCorrupt) throw;  // to be tried again
    }
    ++judge_hand_;
    return 1;
  }
  // What others were at and could not do is tried again here.
  await_mending();
  return mend_some(kStagedMax);
}

Frame* BufferPool::load(uint64_t id, bool read, const char* ahead) {
  std::unique_lock miss(miss_mutex_);
  Frame* frame = nullptr;
  for (int attempts = 0;; ++attempts) {
    frame = pin_if_here(id);
    if (frame != nullptr) return frame;
    frame = take_frame();
    if (frame != nullptr) break;
    miss.unlock();
    // Those that are to go must be in the page store first.
    if (clean(kStagedMax) == 0) {
      if (attempts > 2000) {
        throw Error(ErrorCode::kPoolFull,
                    "the buffer pool has too few pages for what is done with it; open the database "
                    "with more DRAM or PM, or make transactions smaller");
      }
      std::this_thread::yield();
    }
    miss.lock();
  }
  begin_load(*frame, id);
  miss.unlock();
  finish_load(*frame, id, read, ahead);
  return frame;
}

// Into a frame that has no page; who asks for it waits from here on. It is pinned. miss_mutex_ is
// held.
void BufferPool::begin_load(Frame& frame, uint64_t id) {
  if (!frame.pm) free_dram_.fetch_sub(1, std::memory_order_relaxed);
  counters_.misses.fetch_add(1, std::memory_order_relaxed);
  frame.loading.store(true, std::memory_order_relaxed);
  frame.pins.fetch_add(1, std::memory_order_relaxed);
  link(frame, id);
}

// If it throws, the frame has no page, and is not pinned.
void BufferPool::finish_load(Frame& frame, uint64_t id, bool read, const char* ahead) {
  try {
    fill(frame, id, read, ahead);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_of(id));
      take_out(frame, id);
    }
    if (!frame.pm) free_dram_.fetch_add(1, std::memory_order_relaxed);
    recovery_lsn(frame).store(0, std::memory_order_relaxed);
    pm::publish(frame.loading, false);
    unpin(frame);
    throw;
  }
  frame.latch.open();
  pm::publish(frame.loading, false);
}

void BufferPool::fill(Frame& frame, uint64_t id, bool read, const char* ahead) {
  char* page = frame.pm ? scratch_page() : frame.data;
  Recovery::Expected expected{};
  const bool pending = recovery_.find(id, expected);
  if (read) {
    recovery_.fetch(id, page, ahead);
  } else {
    std::memset(page, 0, format_.page_bytes());
    header_of(page).id = id;
  }
  frame.unsealed = pending ? format_.all_parts() : 0;
  if (frame.pm) {
    format_.seal(page, frame.unsealed);
    frame.unsealed = 0;
    memory_.copy_nontemporal(frame.data, page, format_.page_bytes());
    // The page, before the word that says that it is here.
    memory_.fence();
    set_table(frame, id);
  }
  if (pending) {
    pm::publish(recovery_lsn(frame), uint64_t{expected.entry});
    recovery_.counters().fetched.fetch_add(1, std::memory_order_relaxed);
    recovery_.settle(id);
  }
}

void BufferPool::link(Frame& frame, uint64_t id) {
  const std::lock_guard lock(mutex_of(id));
  put_in(frame, id);
}

void BufferPool::put_in(Frame& frame, uint64_t id) {
  uint32_t& chain = chain_of(id);
  frame.next = chain;
  chain = static_cast<uint32_t>(number_of(frame)) + 1;
  pm::publish(frame.page, uint64_t{id});
  frame.referenced.store(false, std::memory_order_relaxed);
  map_->set(id, static_cast<uint32_t>(number_of(frame)));
}

// Takes the page out of the table of pages, unless somebody uses it. The frame keeps its content.
bool BufferPool::unlink(Frame& frame, bool even_changed) {
  const uint64_t id = pm::acquire(frame.page);
  if (id == kNoPage) return false;
  const std::lock_guard lock(mutex_of(id));
  if (frame.page.load(std::memory_order_relaxed) != id || pm::acquire(frame.pins) != 0 ||
      pm::acquire(frame.loading)) {
    return false;
  }
  if (!even_changed && recovery_lsn(frame).load(std::memory_order_relaxed) != 0) return false;
  // Before the frame or the page is changed, which nobody else has pinned.
  frame.latch.close();
  take_out(frame, id);
  return true;
}

// An empty frame, or one whose page goes. Null: all pages are in use, or changed. miss_mutex_ is
// held.
Frame* BufferPool::take_frame() {
  Frame* frame = nullptr;
  const bool dram_first = free_dram_.load(std::memory_order_relaxed) > 0;
  if (dram_first) frame = take_frame(0, dram_frames_, dram_hand_);
  if (frame == nullptr) frame = take_frame(dram_frames_, frame_count_, pm_hand_);
  if (frame == nullptr && !dram_first) frame = take_frame(0, dram_frames_, dram_hand_);
  return frame;
}

Frame* BufferPool::take_frame(uint64_t begin, uint64_t end, uint64_t& hand) {
  for (uint64_t step = 0; step < 2 * (end - begin); ++step) {
    Frame& frame = frames_[hand];
    hand = hand + 1 == end ? begin : hand + 1;
    if (pm::acquire(frame.pins) != 0) continue;
    if (frame.page.load(std::memory_order_relaxed) == kNoPage) return &frame;
    if (recovery_lsn(frame).load(std::memory_order_relaxed) != 0) continue;
    if (frame.referenced.exchange(false, std::memory_order_relaxed)) continue;
    if (!unlink(frame, false)) continue;
    frame.unjudged.store(false, std::memory_order_relaxed);
    counters_.evictions.fetch_add(1, std::memory_order_relaxed);
    if (frame.pm) {
      set_table(frame, kNoPage);
    } else {
      free_dram_.fetch_add(1, std::memory_order_relaxed);
    }
    return &frame;
  }
  return nullptr;
}

// From PM to DRAM; a page that goes for it takes its place in PM.
void BufferPool::promote(uint64_t id) {
  const std::unique_lock miss(miss_mutex_, std::try_to_lock);
  if (!miss.owns_lock()) return;
  Frame* from = pin_if_here(id);
  if (from == nullptr) return;
  unpin(*from);
  if (!from->pm || pm::acquire(from->unjudged)) return;
  if (!unlink(*from, true)) return;
  Frame* to = nullptr;
  uint64_t other = kNoPage;
  for (uint64_t step = 0; step < 2 * dram_frames_ && to == nullptr; ++step) {
    Frame& frame = frames_[dram_hand_];
    dram_hand_ = dram_hand_ + 1 == dram_frames_ ? 0 : dram_hand_ + 1;
    other = pm::acquire(frame.page);
    if (pm::acquire(frame.pins) != 0) continue;
    if (other == kNoPage) {
      free_dram_.fetch_sub(1, std::memory_order_relaxed);
      to = &frame;
    } else if (!frame.referenced.exchange(false, std::memory_order_relaxed) &&
               unlink(frame, true)) {
      to = &frame;
    }
  }
  // A page that is linked can be locked at once: its latch is open before, so that both do not
  // write its version at the same time.
  if (to == nullptr) {
    from->latch.open();
    link(*from, id);
    return;
  }
  try {
    exchange(*from, *to, other);
  } catch (...) {
    broken_.store(true, std::memory_order_relaxed);
    throw;
  }
  to->latch.open();
  link(*to, id);
  pm::come_to_place("buffer: moved");
  if (other != kNoPage) {
    from->latch.open();
    link(*from, other);
  }
  counters_.promotions.fetch_add(1, std::memory_order_relaxed);
}

// Nobody sees the two frames now. `other` is the page in `dram`, which moves to `pm`.
void BufferPool::exchange(Frame& pm, Frame& dram, uint64_t other) {
  const uint32_t bytes = format_.page_bytes();
  std::memcpy(moving_.get(), pm.data, bytes);
  set_table(pm, kNoPage);
  if (other != kNoPage) {
    format_.seal(dram.data, dram.unsealed);
    dram.unsealed = 0;
    memory_.copy_nontemporal(pm.data, dram.data, bytes);
    // The page, before the word that says that it is here.
    memory_.fence();
    set_table(pm, other);
  }
  std::memcpy(dram.data, moving_.get(), bytes);
  dram.unsealed = pm.unsealed;
  pm.unsealed = 0;
  pm.updates = 0;
  const uint64_t changed = recovery_lsn(pm).load(std::memory_order_relaxed);
  recovery_lsn(pm).store(other == kNoPage ? 0 : recovery_lsn(dram).load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
  recovery_lsn(dram).store(changed, std::memory_order_relaxed);
}

void BufferPool::changed(Frame& frame, uint64_t lsn, PartMask parts) {
  frame.unsealed |= parts;
  uint64_t clean = 0;
  recovery_lsn(frame).compare_exchange_strong(clean, lsn, std::memory_order_release,
                                              std::memory_order_relaxed);
}

void BufferPool::seal(Frame& frame) {
  if (!frame.pm || ++frame.updates < checksum_every_) return;
  frame.updates = 0;
  format_.seal(frame.data, frame.unsealed);
  frame.unsealed = 0;
}

BufferPool::Use BufferPool::use() const {
  Use use;
  for (uint64_t i = 0; i < frame_count_; ++i) {
    const Frame& frame = frames_[i];
    if (frame.page.load(std::memory_order_relaxed) == kNoPage) continue;
    (frame.pm ? use.pm : use.dram) += 1;
    if (recovery_lsns_[i].load(std::memory_order_relaxed) != 0) ++use.changed;
  }
  return use;
}

}  // namespace perdure::buffer
