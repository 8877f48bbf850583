// The buffer pool: frames in DRAM and in PM side by side, over a page store.
//
// A page in a PM frame is changed in place, and its lines are not flushed: what a crash leaves of
// it is judged by its checksums and its LSN (recovery.h). What must be durable, and when:
//   loading into a PM frame   the page, fence, then its word in the allocation table, fence. A word that is
//                             durable leads to a frame that held this very page; without the first fence it
//                             could lead to what the frame held of the page long ago, with sound checksums.
//   leaving a PM frame        the word is cleared, fence, before the page may be changed anywhere else: else a
//                             later crash would find the word, and a version that the log no longer completes.
//   moving DRAM <-> PM        leaving, then loading: never two words for a page.
//   writing to the page store the page is copied to the staging area, and if it is in a PM frame, that frame's
//                             lines are flushed: fence; `batch` says how many are staged: fence; the pages are
//                             written and synced; `batch` is 0: fence. A page that a crash tears in the page
//                             store is written again from the staging area. Without the flush of the frame, its
//                             lines could be lost after the log that would complete them is gone.
//   the log's head            moves, fenced, once all records before it are in the page store. Before that, frames
//                             not judged since the opening, of pages that the log does not name, lose their words:
//                             an unfinished commit may have left an LSN in them that the head passes.
//   mending                   a page that the log names keeps the head before the entry of its first record until it
//                             is in a frame, and that frame keeps it there until the page is in the page store.
//   judging                   a page that the log does not name is flushed, fence, before it counts as judged.
// The page store never sees a change of a commit that is not durable: commits hold their pages
// exclusively until they are.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "buffer/latch.h"
#include "buffer/layout.h"
#include "buffer/log.h"
#include "buffer/page.h"
#include "buffer/page_map.h"
#include "buffer/page_store.h"
#include "buffer/placement.h"
#include "buffer/recovery.h"
#include "pm/memory.h"

namespace perdure::buffer {

using AlignedBytes = std::unique_ptr<char, void (*)(void*)>;
// For O_DIRECT, and for whole lines. Throws std::bad_alloc.
AlignedBytes aligned_bytes(uint64_t bytes);
// Zeros, mapped when they are first touched, in huge pages where the system has them: an opening
// has little time. Null if there are none. Throws std::bad_alloc.
void* map_zeros(uint64_t bytes);
void unmap_zeros(void* zeros, uint64_t bytes);

// Items that begin as zeros.
template <typename T>
class LargeArray {
 public:
  explicit LargeArray(uint64_t count)
      : bytes_(count * sizeof(T)), items_(static_cast<T*>(map_zeros(bytes_))) {}
  ~LargeArray() { unmap_zeros(items_, bytes_); }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;

  T* data() { return items_; }
  T& operator[](uint64_t i) { return items_[i]; }
  const T& operator[](uint64_t i) const { return items_[i]; }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  uint64_t bytes_;
  T* items_;
};

struct alignas(64) Frame {
  Latch latch;
  std::atomic<uint32_t> pins{0};
  std::atomic<uint64_t> page{kNoPage};
  char* data = nullptr;
  PartMask unsealed = 0;  // parts whose checksums are out of date; under the exclusive latch
  uint32_t updates = 0;   // since the checksums were computed
  std::atomic<bool> referenced{false};
  std::atomic<bool> loading{false};
  std::atomic<bool> unjudged{false};  // found in PM at opening
  bool pm = false;
  uint32_t next = 0;  // of those whose pages' ids end alike: its number + 1; under their mutex
};
static_assert(sizeof(Frame) == 64);

// For measurements on memory that is faster than PM: called whenever a page in a PM frame is given
// to who asks for it.
// Null: nothing is. Not thread-safe.
void tell_of_pm_frames(void (*used)());

// The parts of the pool that belong to the database.
struct Areas {
  Root* root;
  uint64_t* table;
  char* frames;
  char* staging;
  uint64_t* hints;  // as many words as there are frames; null: there are none
};

// Where the log begins, and how many pages are staged. Throws kCorrupt if the root is damaged.
struct RootWords {
  uint64_t head;
  uint64_t staged;
};
RootWords words_of(const Root& root);

struct PoolCounters {
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> promotions{0};
  std::atomic<uint64_t> evictions{0};
  std::atomic<uint64_t> written{0};
  std::atomic<uint64_t> prefetched{0};
};

class BufferPool {
 public:
  // From so many frames in PM on they are looked through while the log is read.
  static constexpr uint64_t kManyFrames = 1 << 15;

  BufferPool(const PageFormat& format, const pm::Memory& memory, Log& log, PageStore& store,
             const Areas& areas, uint64_t dram_frames, uint64_t pm_frames, uint32_t checksum_every);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Before first use: reads the log, finishes a batch that a crash interrupted, and finds the pages
  // in PM. `may_be_unflushed`: a process that died may have left what it stored in the caches only.
  // Throws as Log::analyse(), before anything is changed.
  void recover(bool may_be_unflushed);

  // The page in a frame, judged; unpin() it. Throws kCorrupt, kIo, kPoolFull (all frames are
  // pinned).
  Frame& pin(uint64_t id) { return pin(id, true); }
  // A page that begins anew: what there was of it does not count.
  Frame& pin_new(uint64_t id) { return pin(id, false); }
  void unpin(Frame& frame) { frame.pins.fetch_sub(1, std::memory_order_release); }

  // A page that is not pinned, to read optimistically.
  struct Unlatched {
    const Frame* frame;
    uint64_t version;
    bool is_still() const { return frame->latch.validate(version); }
  };
  // False: it must be pinned, as it is not here, is being changed, or is to move.
  bool try_look_at(uint64_t id, Unlatched& page) const;

  // What is to become of the checksums of the frame's page, held exclusively, when it is changed.
  Checksums checksums_of(const Frame& frame) const {
    const bool now = frame.pm && frame.unsealed == 0 && checksum_every_ == 1;
    return now ? Checksums::kNow : Checksums::kLater;
  }
  // The frame's page, held exclusively, was changed by the entry at `lsn`; the checksums of these
  // parts have to be computed.
  void changed(Frame& frame, uint64_t lsn, PartMask parts);
  // Computes checksums of a page in PM, if it is time. Held exclusively.
  void seal(Frame& frame);

  // Writes up to `limit` changed pages to the page store, those first that were changed first;
  // those before LSN `before` only. Returns how many. Throws kIo, kNoSpace; the pages stay as they
  // are then.
  uint64_t clean(uint64_t limit, uint64_t before = ~uint64_t{0});
  // Lets the log's head move as far as it can.
  void truncate();
  // Before the log's head moves: what it leaves behind.
  void on_release(std::function<void(uint64_t from, uint64_t to)> archive) {
    archive_ = std::move(archive);
  }

  Recovery& recovery() { return recovery_; }
  // Mends up to `limit` more pages that the log names and that were not asked for yet, those first
  // that keep the log longest; what is not here is read from the page store side by side. Returns
  // how many; 0 if there is none, or others are at the last ones.
  uint64_t mend_some(uint64_t limit);
  // Until no other thread is in mend_some(): what it was at is mended by then, or put back.
  void await_mending() const;
  // The same for a batch, then for one that the log does not name. 0: all are judged.
  uint64_t judge_next(std::mutex& turn);
  // Notes which pages are in DRAM, those first that were asked for lately, for the next opening.
  // Nothing, until what the last one noted was read. By one thread at a time, with
  // prefetch_some().
  void note_dram_pages();
  // Keeps empty frames in DRAM for them, until prefetch_some() has read all. Before others use the
  // pool.
  void expect_prefetch() { hints_wait_.store(hint_count_ > 0, std::memory_order_relaxed); }
  // Nobody will.
  void give_up_prefetch() {
    next_hint_ = hint_count_;
    hints_wait_.store(false, std::memory_order_relaxed);
  }
  // Until then.
  bool awaits_prefetch() const { return hints_wait_.load(std::memory_order_relaxed); }
  // Reads pages that were noted in DRAM, of those that there are, `page_count`, as long as frames
  // there are empty, side by side; returns how many. 0: all are read.
  uint64_t prefetch_some(uint64_t page_count);
  // How many pages are mended, and written, before the log's head moves: some batches, and no more
  // than a small part of the frames.
  uint64_t mended_at_once() const {
    return std::clamp<uint64_t>(frame_count_ / 8, 1, uint64_t{8} * kStagedMax);
  }

  // The first entry of the frame's page that is not in the page store; 0: clean. These words lie
  // side by side, as all of them are looked through to find changed pages.
  std::atomic<uint64_t>& recovery_lsn(const Frame& frame) {
    return recovery_lsns_[number_of(frame)];
  }

  const PageFormat& format() const { return format_; }
  const PoolCounters& counters() const { return counters_; }
  uint64_t dram_frames() const { return dram_frames_; }
  uint64_t pm_frames() const { return frame_count_ - dram_frames_; }
  // Frames in use, and changed ones: dram, pm, changed.
  struct Use {
    uint64_t dram = 0;
    uint64_t pm = 0;
    uint64_t changed = 0;
  };
  Use use() const;

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
  };
  static constexpr uint64_t kShards = 64;

  std::mutex& mutex_of(uint64_t id) { return shards_[id % kShards].mutex; }
  // The table of pages: chains of frames, which take no memory and no time to make. Under the
  // page's mutex.
  uint32_t& chain_of(uint64_t id) { return chains_[id & chain_mask_]; }
  Frame* find_linked(uint64_t id);
  void take_out(Frame& frame, uint64_t id);
  // `ahead`: what the page store has of it, if that was read (recovery.h); null: not yet.
  Frame& pin(uint64_t id, bool read, const char* ahead = nullptr);
  Frame* pin_if_here(uint64_t id);
  Frame* load(uint64_t id, bool read, const char* ahead);
  void begin_load(Frame& frame, uint64_t id);
  void finish_load(Frame& frame, uint64_t id, bool read, const char* ahead);
  Frame* begin_next_hint(uint64_t page_count);
  // Whether a page in PM that is asked for has a frame in DRAM for nothing.
  bool has_spare_dram() const {
    return free_dram_.load(std::memory_order_relaxed) > 0 &&
           !hints_wait_.load(std::memory_order_relaxed);
  }
  void fill(Frame& frame, uint64_t id, bool read, const char* ahead);
  void judge(Frame& frame, uint64_t id, bool read);
  struct ReadAhead {
    AlignedBytes memory;
    std::array<const char*, kStagedMax> pages;  // null: it is in a frame, or could not be read
  };
  ReadAhead read_ahead(const std::vector<uint64_t>& ids);
  Frame* take_frame();
  Frame* take_frame(uint64_t begin, uint64_t end, uint64_t& hand);
  bool unlink(Frame& frame, bool even_changed);
  void link(Frame& frame, uint64_t id);
  void put_in(Frame& frame, uint64_t id);  // under the page's mutex
  void promote(uint64_t id);
  void exchange(Frame& pm, Frame& dram, uint64_t other);
  void set_table(const Frame& frame, uint64_t id);
  uint64_t number_of(const Frame& frame) const { return static_cast<uint64_t>(&frame - frames_); }

  std::vector<Frame*> find_frames();
  void forget_unjudged();
  void finish_batch();
  bool stage(Frame& frame, uint64_t id, uint64_t slot);
  void write_batch(const std::vector<uint64_t>& frames, uint64_t& done);
  void require_sound() const;

  const PageFormat& format_;
  const pm::Memory& memory_;
  Log& log_;
  PageStore& store_;
  Areas areas_;
  Recovery recovery_;
  uint64_t dram_frames_;
  uint64_t frame_count_;
  uint32_t checksum_every_;
  LargeArray<char> dram_;
  LargeArray<Frame> frame_memory_;
  Frame* frames_;
  LargeArray<std::atomic<uint64_t>> recovery_lsns_;
  uint64_t chain_mask_;
  LargeArray<uint32_t> chains_;  // a frame's number + 1; 0: none
  std::unique_ptr<Shard[]> shards_;
  std::unique_ptr<PageMap> map_ = std::make_unique<PageMap>();
  uint64_t hint_count_;
  uint64_t next_hint_ = 0;
  std::atomic<bool> hints_wait_{false};
  uint64_t noted_moves_ = 0;  // of pages into DRAM, when they were noted last
  std::unique_ptr<Placement> placement_;
  std::mutex miss_mutex_;  // who takes frames, and moves pages
  uint64_t dram_hand_ = 0;
  uint64_t pm_hand_ = 0;
  std::atomic<uint64_t> free_dram_{0};
  AlignedBytes moving_;
  std::mutex clean_mutex_;  // the staging area
  bool batch_open_ = false;
  AlignedBytes batch_;
  std::atomic<bool> broken_{false};
  uint64_t judge_hand_ = 0;
  std::atomic<uint64_t> mending_{0};  // threads in mend_some()
  bool forgotten_ = false;            // forget_unjudged() is done
  std::function<void(uint64_t, uint64_t)> archive_;
  PoolCounters counters_;
};

// A pinned page, held shared or exclusively or not at all.
class PageGuard {
 public:
  PageGuard() = default;
  PageGuard(BufferPool& pool, Frame& frame) : pool_(&pool), frame_(&frame) {}
  PageGuard(PageGuard&& other) noexcept { swap(other); }
  PageGuard& operator=(PageGuard&& other) noexcept {
    PageGuard old(std::move(*this));
    swap(other);
    return *this;
  }
  ~PageGuard() {
    if (frame_ == nullptr) return;
    if (shared_) frame_->latch.unlock_shared();
    pool_->unpin(*frame_);
  }

  void lock_shared() {
    frame_->latch.lock_shared();
    shared_ = true;
  }
  bool try_lock_shared() { return shared_ = frame_->latch.try_lock_shared(); }
  explicit operator bool() const { return frame_ != nullptr; }
  Frame& frame() const { return *frame_; }
  char* data() const { return frame_->data; }
  uint64_t page() const { return frame_->page.load(std::memory_order_relaxed); }

 private:
  void swap(PageGuard& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(frame_, other.frame_);
    std::swap(shared_, other.shared_);
  }

  BufferPool* pool_ = nullptr;
  Frame* frame_ = nullptr;
  bool shared_ = false;
};

}  // namespace perdure::buffer
