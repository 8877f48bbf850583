// Persistent multi-word compare-and-swap: several 8-byte words of a pool change together, or none
// does, for other threads and across a crash. Lock-free.
//
//   EpochManager::Guard guard(epochs);              // outlives the operation
//   Mwcas::Operation transfer(mwcas);
//   if (!transfer) ...                              // no descriptor is free: let the guard go, wait()
//   transfer.add(from, a, a - 1);
//   transfer.add(to, b, b + 1);
//   if (!transfer.execute()) ...                    // one of them had another value: nothing changed
//   uint64_t now = mwcas.read(from);                // never plainly: the word may hold a mark
//
// A word has 61 bits for its user. The others mark what the word holds instead of a value, or that
// the value may not be durable yet:
//
//   63  operation   a reference to a descriptor, 14 bits, and the number of its use, 47 bits
//   62  condition   an install under way: entry 4, descriptor 14, use 24, nonce 19 bits
//   61  dirty       a value not known to be durable
//
// The protocol, of the owner and of everybody who meets a mark and helps:
//   1. The descriptor (words, expected and new values, "undecided") is made durable. fence.
//   2. In the order of addresses each word gets the operation's mark, if it has the expected value
//      and the operation is still undecided: first the RDCSS mark by one CAS, then, after a look
//      at the status, the operation mark or the old value in its place. All are flushed. fence.
//   3. The status becomes succeeded or failed, dirty; it is flushed; fence; no longer dirty.
//   4. Each mark is replaced by the new (or the old) value, dirty. All are flushed. fence. They are
//      no longer dirty.
// Who reads a dirty word makes it durable before using it, so that no durable state ever depends on
// one that is not.
//
// What a crash leaves. Before the status is durable some words may hold marks: recovery puts the
// expected values back. After it all marks are durable: recovery puts the new values in. The
// decision is the status word in PM and nothing else, so that a crash in recovery changes nothing.
// An RDCSS mark that reached PM stands for the expected value: nobody acts on it before it is
// replaced. Dirty values that reached PM are right; the first who reads one clears the bit.
//
// Memory. Blocks may belong to an operation: keep() those that exist only if it succeeds, drop()
// those that do not exist then. Their heap intents name a bit of the descriptor's status: until the
// decision is durable recovery frees the new blocks and keeps the old ones, afterwards the other
// way round. New blocks are marked as allocated before anybody can decide. This is the same word
// that decides about the words that lead to the blocks, so that heap and structure always agree.
//
// Descriptors are used again when no thread that may help with them is left (EpochManager). What
// their entries point to stays true words until forget().
//
// Cost of n words on n lines: 1 (of 2 words; else more) + n + 1 + n lines flushed, 4 fences.
// Source: Wang et al., "Easy Lock-Free Indexing in Non-Volatile Memory", ICDE 2018; docs/mwcas.md.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pm/epoch.h"
#include "pm/heap.h"
#include "pm/memory.h"

namespace perdure::pm {

// One word of an operation.
struct MwcasEntry {
  uint64_t word;  // offset from the base
  uint64_t expected;
  uint64_t desired;
};

//   status | reserved | entries ...
// Operations of two words are one line, in which stores become durable in order.
struct alignas(64) MwcasDescriptor {
  uint64_t status;  // bits 0 to 3 say what is decided, 4 to 7 count the words, 8 to 54 the uses
  uint64_t reserved;
  std::array<MwcasEntry, 12> entries;
};
static_assert(sizeof(MwcasDescriptor) == 320 && offsetof(MwcasDescriptor, entries) == 16);

class Mwcas {
 public:
  class Operation;

  static constexpr uint32_t kWordsMax = 12;
  static constexpr uint32_t kDescriptorsMin = 16;
  static constexpr uint32_t kDescriptorsMax = 1 << 14;
  static constexpr uint64_t kValueMask = (uint64_t{1} << 61) - 1;

  static constexpr uint64_t bytes_for(uint32_t descriptors) {
    return descriptors * sizeof(MwcasDescriptor);
  }
  // Writes `descriptors` free ones to a block of bytes_for() bytes, past the caches: durable after
  // a fence.
  static void format(const Memory& memory, void* block, uint32_t descriptors);

  // Over descriptors that format() made, in memory that is mapped at `base`. Call recover() before
  // anything else.
  Mwcas(const Memory& memory, char* base, EpochManager& epochs, uint64_t descriptors_at,
        uint32_t descriptors);
  // Marks all descriptors as free, durably: the words may be used for something else from now on.
  // Needs that no operation is left. Writes nothing if there has been none, nor if an operation was
  // interrupted by a failing medium: its descriptor is what recovery goes by.
  ~Mwcas();
  Mwcas(const Mwcas&) = delete;
  Mwcas& operator=(const Mwcas&) = delete;

  // Finishes what a crash interrupted, or undoes it. Returns how many operations that were. Words
  // are in [begin, end) from the base; `where` begins the error's message. Cost: a line read for
  // each descriptor. Throws kCorrupt, having changed nothing, if one makes no sense.
  uint64_t recover(uint64_t begin, uint64_t end, const std::string& where);

  // The value of a word, durable; helps the operation in progress there. Needs a guard. Once the
  // medium has failed, the value is that before the operation in progress, or after it if it had
  // been decided; since nothing can be written any more, nothing can depend on it. Throws kCorrupt
  // if the word holds a mark that no operation has left there.
  uint64_t read(const uint64_t& word) {
    const uint64_t seen = load_acquire(word);
    if ((seen & ~kValueMask) == 0) [[likely]]
      return seen;
    return read_slowly(const_cast<uint64_t&>(word));
  }

  // Changes one word from `expected` by a plain CAS, without making it durable: for values that a
  // crash may take back. The next operation on the word makes it durable.
  bool exchange_volatile(uint64_t& word, uint64_t expected, uint64_t desired);

  // Must be called before memory that held words becomes something else, when nobody can find these
  // words any more: from an action of the EpochManager. `blocks` are offsets and bytes. False if
  // the medium fails: then the memory must stay what it is.
  bool forget(std::span<const std::pair<uint64_t, uint64_t>> blocks) noexcept;

  // Waits for a descriptor. To be called without a guard.
  void wait();

  uint64_t dram_bytes() const { return count_ * sizeof(uint32_t); }
  // Operations that found another operation in their way and finished it first.
  uint64_t helped() const { return helped_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint32_t kRetireTogether = 64;

  MwcasDescriptor& descriptor(uint32_t index) const { return descriptors_[index]; }
  uint64_t& word_of(const MwcasEntry& entry) const;
  uint32_t acquire();
  void give_free(uint32_t index);
  void give_used(uint32_t index);
  void push_used(uint32_t index);
  void retire_used() noexcept;

  uint64_t read_slowly(uint64_t& word);
  uint64_t read_through(uint64_t& word);
  uint64_t peek(const uint64_t& word) const;
  void make_clean(uint64_t& word, uint64_t seen);
  void resolve_condition(uint64_t& word, uint64_t mark);
  void help_with(const uint64_t& word, uint64_t mark);
  // What a mark says of a word, if an operation has left it there.
  const MwcasEntry* entry_of(const uint64_t& word, uint64_t mark, uint64_t& status) const;
  void require_replaced(const uint64_t& word, uint64_t mark) const;
  // Carries out the use `use` of the descriptor from wherever it is. Whether it succeeded.
  bool complete(uint32_t index, uint64_t use);
  bool install(uint32_t index, uint64_t use, uint32_t entry, bool& undecided);
  void persist_words(const MwcasDescriptor& descriptor, uint32_t words) const;
  uint64_t persist_status(MwcasDescriptor& descriptor, uint64_t status);
  void replace_marks(MwcasDescriptor& descriptor, uint64_t mark, uint64_t status);

  bool sound(uint32_t index, uint64_t begin, uint64_t end) const;
  bool roll(uint32_t index);

  const Memory& memory_;
  char* base_;
  EpochManager& epochs_;
  MwcasDescriptor* descriptors_;
  uint32_t count_;
  uint32_t retire_together_;
  std::unique_ptr<std::atomic<uint32_t>[]> next_;  // of the two stacks
  alignas(64) std::atomic<uint64_t> free_{0};      // low half: index + 1 of the first; high: a tag
  alignas(64) std::atomic<uint32_t> used_{0};      // index + 1
  std::atomic<uint32_t> used_count_{0};
  std::atomic<uint64_t> helped_{0};
  std::atomic<bool> interrupted_{false};  // an operation ended by an exception
  std::string where_ = "persistent memory";
};

// What becomes of the blocks that a word's values are the offsets of.
enum class MwcasPolicy : uint8_t {
  kNone = 0,
  kFreeNewOnFailure = 1,  // the new value's, allocated in the operation's transaction
  kFreeOldOnSuccess = 2,  // the expected value's
  kFreeEither = 3,
};

// One attempt to change words. Use by one thread, with a guard that outlives it and, if there is
// one, the transaction.
class Mwcas::Operation {
 public:
  // `txn`, if given, is where blocks of this operation were allocated; nothing else uses it.
  explicit Operation(Mwcas& mwcas, Heap::Txn* txn = nullptr)
      : mwcas_(mwcas), txn_(txn), index_(mwcas.acquire()) {}
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Whether it got a descriptor.
  explicit operator bool() const { return index_ != kNone; }

  // `word` shall change from `expected` to `desired`. No word twice, at most kWordsMax. With a
  // policy, see there, values are offsets of blocks or 0.
  void add(uint64_t& word, uint64_t expected, uint64_t desired,
           MwcasPolicy policy = MwcasPolicy::kNone);
  // A block of the transaction: allocated exactly if the operation succeeds.
  void keep(uint64_t block);
  // An allocated block: freed if the operation succeeds. It is handed out again only after
  // Heap::release(), which is the caller's, when no reader is left.
  void drop(uint64_t block);

  // Makes the change if all words have the expected values. Durable on return. What the caller
  // flushed before is durable before the first word changes. Once only. Throws kIo if the medium
  // fails: then the next opening decides.
  bool execute();

 private:
  void describe();

  Mwcas& mwcas_;
  Heap::Txn* txn_;
  uint32_t index_;
  uint32_t words_ = 0;
  enum class State : uint8_t { kNew, kBegun, kDone } state_ = State::kNew;
  std::array<MwcasEntry, kWordsMax> entries_;
  std::vector<uint64_t> kept_;
  std::vector<uint64_t> dropped_;
};

}  // namespace perdure::pm
