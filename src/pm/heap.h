// Allocation that cannot leak across a crash.
//
//   Heap::Txn txn(heap);
//   uint64_t node = txn.allocate(256);            // volatile: a crash forgets it
//   ...write the node, flush it...
//   txn.publish(node, parent->child);             // the link leads to it; durable
//
// publish(), replace() and retire() are commit() with one link; commit() carries out a change of
// several:
//   txn.will_link(node, &parent->child, Link::kOffset);  // "allocated exactly if parent->child leads to it"
//   txn.commit([&] { store_release(parent->child, node); memory.flush(&parent->child, 8); });
// commit_contested() is commit() for links that other threads may change as soon as they are there.
//
// A block belongs to the heap until the one atomic store that links it, and again from the store
// that unlinks it. At every instant in between an intent in PM says which word decides, so that
// recovery looks at that word and at nothing else: no scan of live data, no garbage collection.
// Cost: one flush for each four intents, one for each bitmap word, and one extra fence, shared by
// all blocks of the transaction. Blocks are handed out from DRAM caches that are filled in groups.
//
// A Txn may also carry redo records: bytes that replace others atomically (a micro-log).
//
// Its parts: pm/segments.h (which segments are free), pm/heap_blocks.h (blocks of slabs),
// heap_txn.cc (transactions), heap_recover.cc (what a crash left of them), heap_check.cc
// (verification and seals).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "perdure/error.h"
#include "pm/heap_blocks.h"
#include "pm/layout.h"
#include "pm/memory.h"
#include "pm/segments.h"

namespace perdure::pm {

class PoolImpl;

// How a word in PM leads to a block.
enum class Link : uint8_t {
  kOffset = 0,  // 8 bytes: the block's offset
  kUnit = 1,    // 4 bytes: the block's offset / kLinkUnitBytes
  // 8 bytes, and offset of another block, that of the intent added just before (with kOffset or
  // kTagged and the same word): both blocks are led to by the one word, directly and by way of the
  // other block.
  kAsPrevious = 2,
  // 8 bytes: the block's offset in bits 6 to 47; what the other bits hold is the structure's
  // affair.
  kTagged = 3,
  kBit = 64,     // 8 bytes: one bit says whether the block counts; see link_bit()
  kAbove = 128,  // 8 bytes: a count; see link_above()
  kUpTo = 192,   // 8 bytes: a count; see link_up_to()
};

inline constexpr uint64_t kLinkUnitBytes = 256;

// The bit 0 to 63 of a word: what leads to the block stands elsewhere, and counts if the bit is
// set.
constexpr Link link_bit(uint32_t bit) {
  return static_cast<Link>(static_cast<uint32_t>(Link::kBit) + bit);
}

// What leads to the block is entry 0 to 63 of a log, and counts once the log's count exceeds that.
constexpr Link link_above(uint32_t entry) {
  return static_cast<Link>(static_cast<uint32_t>(Link::kAbove) + entry);
}

// What leads to the block counts until the log's count exceeds `entry`, which supersedes it.
constexpr Link link_up_to(uint32_t entry) {
  return static_cast<Link>(static_cast<uint32_t>(Link::kUpTo) + entry);
}

// Whether something failed for want of room, having changed nothing: in the pool or on its medium.
inline bool is_full(const Error& error) {
  return error.code() == ErrorCode::kPoolFull || error.code() == ErrorCode::kNoSpace;
}

class Heap {
 public:
  class Txn;
  class TxnIfNeeded;
  class Promise;

  explicit Heap(PoolImpl& pool);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Finishes or undoes what a crash interrupted, then builds the volatile state from the segment
  // descriptors: one line read for each 64 KiB of pool.
  void recover();

  // Bytes of a block that `bytes` are allocated from while there are blocks of that size; when they
  // are used up, a larger one serves.
  static uint64_t block_bytes(uint64_t bytes);

  // Bytes of the block at `offset`, which `bytes` were allocated from. Reads its descriptor.
  uint64_t block_bytes_at(uint64_t offset, uint64_t bytes) const;

  // Hands out again what a transaction freed with Release::kLater. Does not throw: for destructors
  // and actions of epochs. What it cannot hand out, because the medium fails or memory is short,
  // stays unused until the pool is opened again.
  void release(uint64_t block) noexcept;

  // Bytes in allocated blocks, and in free segments and blocks of the pool as large as it is now.
  // Cost: reads all descriptors.
  struct Usage {
    uint64_t allocated_bytes = 0;
    uint64_t free_bytes = 0;
    uint64_t high_water_segments = 0;  // the highest number in use since the pool was opened
  };
  Usage usage() const;

  // Whether fewer than `segments` segments are free, those that the pool may still grow by
  // included. Other threads allocate meanwhile: a guide, no promise. Cost: a few loads.
  bool is_scarce(uint64_t segments) const;
  // Of what the pool has grown to. Also a guide.
  uint64_t free_segments() const { return segments_.free(); }

  // Keeps so many segments for threads that have a KeptRoom, growing the pool if need be. False:
  // there are not enough.
  bool keep(uint64_t segments) { return segments_.promise(segments); }
  void end_keeping(uint64_t segments) { segments_.end_promise(segments); }
  class KeptRoom;

  // Whether an allocated block that `bytes` may be allocated from begins at `offset`.
  bool is_allocated(uint64_t offset, uint64_t bytes) const;

  // Parts of segments: all blocks of a run, or those of a slab whose bits are set.
  struct Part {
    uint64_t segment;
    bool run;
    std::array<uint64_t, 16> bits;
    uint64_t bytes;  // of the run, or of one block
  };
  // Which part of its segment the block at `offset` is; from now on it counts as taken until
  // release_part(), whatever its bit in PM. Throws kCorrupt if it is no block in use.
  Part part_of(uint64_t offset);
  // Whether a descriptor holds what the part names, of whose bitmap there are `words`, or what is
  // left of that once the part was cleared.
  bool fits(const Part& part, uint32_t words) const;
  uint32_t bitmap_words(uint64_t segment) const;
  // Marks the blocks as free on the medium, which they may be already; nobody is given them yet.
  // Durable with the caller's fence.
  void clear_part(const Part& part);
  // Hands them out again. Does not throw, as release().
  void release_part(const Part& part) noexcept;

  uint64_t check(const std::function<void(const std::string&)>& report) const;

  // Gives the end of the pool back, where nothing is in use (PoolImpl::shrink).
  uint64_t shrink();

  // Writes the descriptor of a segment that the pool is about to grow by. Durable with the caller's
  // fence.
  static void write_free(const PoolImpl& pool, uint64_t segment);

  // Gives each segment in use its seal, a checksum over the segment, its descriptor and the
  // generation. Durable with the caller's fence, with all that they cover. Cost: reads and flushes
  // the segments in use.
  void seal(uint64_t generation) const;
  // Compares the file with its seals, past the mapping; reports and returns as check() does.
  uint64_t check_seals(uint64_t generation,
                       const std::function<void(const std::string&)>& report) const;

 private:
  friend class Txn;

  // ---- transactions (heap_txn.cc)
  uint32_t acquire_lane();
  Lane& lane(uint32_t index) const;

  // ---- what a crash left (heap_recover.cc)
  void recover_lane(Lane& lane);
  void apply_redo(Lane& lane, uint64_t bytes);
  void resolve_intent(const Intent& intent);
  bool link_leads_to(const Intent& intent) const;
  void require_sound(const Lane& lane, const Intent& intent) const;
  void require_sound_redo(const Lane& lane, uint64_t bytes) const;
  void set_allocated(uint64_t block, bool run, bool allocated);

  bool is_in_segments(uint64_t offset) const;

  PoolImpl& pool_;
  Segments segments_;
  HeapBlocks blocks_;
};

// A group of allocations and frees that a crash either completes or undoes, each by its own link.
// Use by one thread, which has one unfinished transaction in a heap at a time: threads that waited
// for a second lane while they hold one could wait for each other. Destroyed without finish(), it
// gives back what it allocated.
class Heap::Txn {
 public:
  // `reclaim`: this transaction will free more than it takes, and may use the heap's reserve. Waits
  // for a lane. Throws kIo if the medium has failed.
  explicit Txn(Heap& heap, bool reclaim = false);
  ~Txn();
  Txn(const Txn&) = delete;
  Txn& operator=(const Txn&) = delete;

  // Reserves a block of at least `bytes`; its content is undefined. Throws kPoolFull, kNoSpace.
  uint64_t allocate(uint64_t bytes);

  // `link`, a word in the pool, is about to lead to the block, or to lead away from it.
  void will_link(uint64_t block, const void* link, Link form);
  // Throws kCorrupt, as will_unlink() and may_unlink() do, unless the block can be one that goes.
  void require_block(uint64_t block) { heap_.blocks_.require_in_use(block); }
  enum class Release : uint8_t { kNow, kLater };
  // kLater: free on the medium, but not handed out again before Heap::release(), for blocks that
  // readers may still look at.
  void will_unlink(uint64_t block, const void* link, Link form, Release release = Release::kNow);
  // For commit_contested(): links that other transactions may change as soon as they are there,
  // before this one ends; `link` belongs to this transaction alone.
  // may_link: the block counts as allocated before the change, and is freed if `link` never leads
  // to it.
  void may_link(uint64_t block, const void* link, Link form);
  // may_unlink: the block is freed, with Release::kLater, if `link` no longer leads to it, and is
  // none of this transaction's business as long as it does.
  void may_unlink(uint64_t block, const void* link, Link form);

  // `bytes` (a multiple of 8) at `target` are to be replaced by those at `image`, atomically with
  // all other redo records of the transaction. At most kRedoBytes - 16 in all.
  void redo(void* target, const void* image, uint32_t bytes);

  // ---- the ways to make the change. Each ends the transaction, and is durable on return.
  //
  // Persist points, F is a fence:
  //   intents, redo records and whatever the caller flushed before, F   before the first link: a crash
  //       that leaves a link finds what it leads to, and the intent by which the heap follows it;
  //   the links and the heap's bitmap, F                                before the intents end: without
  //       them a bitmap that lags behind its link would stay so, and a later crash would hand out a
  //       block that is linked, or lose one that is not. Others may learn of the change from here on;
  //   the intents' end, F                                               before a block is handed out again:
  //       the intent would judge it by a link that no longer speaks of it.
  // Throw kIo, as fences do: then the pool has failed, and its next opening decides.

  // `change()` stores and flushes the links that the intents name (for redo records: calls
  // apply()).
  template <typename Change>
  [[gnu::always_inline]] void commit(Change change) {
    announce();
    change();
    conclude();
  }
  // For may_link() and may_unlink(): `change()` stores the links and returns whether they lead to
  // the new blocks. Either is durable when it returns. False: the transaction takes back what it
  // allocated when it is destroyed. Persist points besides those of commit():
  //   the bitmap of the blocks of may_link(), F    before the first link: who follows it may change it, and
  //       free the block, before this transaction goes on.
  // Without blocks that go the bitmap is durable by then, and so are the links: one fence fewer at
  // the end.
  template <typename Change>
  [[gnu::always_inline]] bool commit_contested(Change change) {
    announce();
    mark();
    memory_.fence();
    if (!change()) return false;
    if (marks_.count() < intents_) {
      conclude();
    } else {
      finish();
    }
    return true;
  }
  // For redo records alone, without intents: one fence fewer. `before()` is called when the change
  // is about to happen, such as to keep readers out.
  template <typename Before>
  [[gnu::always_inline]] void commit_redo(Before before) {
    announce();  // before the records are armed
    before();
    apply();
    finish();
  }
  // `link`, a word that leads to nothing, leads to the block from now on: by its offset, or by its
  // unit if it has 4 bytes.
  template <typename Word>
  [[gnu::always_inline]] void publish(uint64_t block, Word& link) {
    will_link(block, &link, form_of<Word>());
    change_link(link, block);
  }
  // `link`, which leads to the block `old`, leads to the block `fresh` instead, and `old` is free.
  template <typename Word>
  [[gnu::always_inline]] void replace(uint64_t old, uint64_t fresh, Word& link,
                                      Release release = Release::kNow) {
    will_link(fresh, &link, form_of<Word>());
    will_unlink(old, &link, form_of<Word>(), release);
    change_link(link, fresh);
  }
  // `link`, which leads to the block `old`, leads to `next` instead, another block (not a new one)
  // or 0, and `old` is free.
  template <typename Word>
  [[gnu::always_inline]] void retire(uint64_t old, Word& link, uint64_t next,
                                     Release release = Release::kNow) {
    will_unlink(old, &link, form_of<Word>(), release);
    change_link(link, next);
  }

  // ---- their parts, for changes that do something else between them.

  // Flushes intents and redo records. A fence must follow before the first link is stored.
  void prepare();

  // With redo records: makes them certain, then applies them. Needs that prepare() was fenced.
  // Durable on return, two fences.
  void apply();
  // The same for commit(): one fence. What it applies is durable with commit()'s next one, and with
  // the bitmap: in whatever order the lines of both become durable, a crash meanwhile finds the
  // records certain, and recovery applies them before it looks at the links that decide about the
  // bitmap.
  void apply_in_commit();

  // Brings the allocation state in line with the links, which have been stored and flushed.
  void settle();

  // Needs that links and settle() are fenced. Durable on return; one fence. Ends the transaction:
  // the thread may begin another one while this object lives.
  void finish();

 private:
  // After prepare() was fenced: marks the blocks of may_link(). A fence must follow before the
  // first link is stored.
  void mark();
  // What stands before the links and behind them. Inlined, so that the instruments see the place
  // that calls commit().
  [[gnu::always_inline]] void announce() {
    prepare();
    memory_.fence();
  }
  [[gnu::always_inline]] void conclude() {
    settle();
    memory_.fence();
    finish();
  }
  template <typename Word>
  [[gnu::always_inline]] void change_link(Word& link, uint64_t block) {
    commit([&] {
      const uint64_t value = form_of<Word>() == Link::kUnit ? block / kLinkUnitBytes : block;
      store_release(link, static_cast<Word>(value));
      memory_.flush(&link, sizeof link);
    });
  }
  template <typename Word>
  static constexpr Link form_of() {
    static_assert(std::is_same_v<Word, uint64_t> || std::is_same_v<Word, uint32_t>);
    return sizeof(Word) == sizeof(uint64_t) ? Link::kOffset : Link::kUnit;
  }

  struct Allocation {
    uint64_t block;
    uint64_t segments;  // of a run; 0 for a block of a slab
    int size_class;
  };

  void add_intent(uint64_t block, const void* link, Link form, uint64_t flags = 0);
  void release_lane();
  bool is_run(uint64_t block) const;
  void note_run_length(uint64_t block);

  Heap& heap_;
  const Memory& memory_;
  const Heap* outer_;  // in which this thread had an unfinished transaction before
  uint32_t lane_;
  bool reclaim_;
  bool prepared_ = false;
  bool finished_ = false;
  uint32_t intents_ = 0;
  uint32_t allocations_ = 0;
  uint32_t frees_ = 0;
  uint32_t redo_bytes_ = 0;
  std::bitset<kIntentsPerLane> links_;  // by intent: it is about linking
  std::bitset<kIntentsPerLane> marks_;  // by intent: mark() does what settle() does for others
  std::array<Allocation, kIntentsPerLane> allocated_;
  std::array<uint64_t, kIntentsPerLane> freed_;
  std::array<uint64_t, kIntentsPerLane> blocks_;  // by intent, with its flags
};

// While one lives its thread may take segments that are kept.
class Heap::KeptRoom {
 public:
  explicit KeptRoom(const Heap& heap) : outer_(Segments::promising) {
    Segments::promising = &heap.segments_;
  }
  ~KeptRoom() { Segments::promising = outer_; }
  KeptRoom(const KeptRoom&) = delete;
  KeptRoom& operator=(const KeptRoom&) = delete;

 private:
  const Segments* outer_;
};

// Segments that no other thread may take while it lives: for a change that must not fail half-way,
// whose transactions begin in this thread. In DRAM only: a crash forgets it.
class Heap::Promise {
 public:
  // Throws kPoolFull or kNoSpace.
  Promise(Heap& heap, uint64_t segments) : heap_(heap), room_(heap), promised_(segments) {
    if (!heap.keep(segments)) heap.segments_.throw_full();
  }
  ~Promise() { heap_.end_keeping(promised_); }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

 private:
  Heap& heap_;
  KeptRoom room_;
  uint64_t promised_;
};

// A transaction that begins when it is first needed. Costs nothing until then: a std::optional
// would be cleared by some compilers, all two KiB of it.
class Heap::TxnIfNeeded {
 public:
  TxnIfNeeded() {}  // NOLINT(modernize-use-equals-default): of a union
  ~TxnIfNeeded() { reset(); }
  TxnIfNeeded(const TxnIfNeeded&) = delete;
  TxnIfNeeded& operator=(const TxnIfNeeded&) = delete;

  // Arguments as of Txn; they count when it begins.
  Txn& begin(Heap& heap, bool reclaim = false) {
    if (!begun_) new (&txn_) Txn(heap, reclaim);
    begun_ = true;
    return txn_;
  }
  // Null if it has not begun.
  Txn* get() { return begun_ ? &txn_ : nullptr; }
  void finish() {
    if (begun_) txn_.finish();
  }
  void reset() {
    if (begun_) txn_.~Txn();
    begun_ = false;
  }

 private:
  union {
    Txn txn_;  // NOLINT(readability-identifier-naming): clang-tidy takes it for public
  };
  bool begun_ = false;
};

}  // namespace perdure::pm
