#include "pm/mwcas.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <random>
#include <thread>

namespace perdure::pm {

namespace {

// ---- the marks of a word

constexpr uint64_t kOperationMark = uint64_t{1} << 63;
constexpr uint64_t kConditionMark = uint64_t{1} << 62;
constexpr uint64_t kDirty = uint64_t{1} << 61;
constexpr uint64_t kMarks = kOperationMark | kConditionMark;

constexpr uint32_t kIndexBits = 14;
constexpr uint64_t kIndexMask = (1 << kIndexBits) - 1;
constexpr uint32_t kUseBits = 47;
constexpr uint64_t kUseMask = (uint64_t{1} << kUseBits) - 1;
constexpr uint32_t kShortUseBits = 24;
constexpr uint64_t kShortUseMask = (uint64_t{1} << kShortUseBits) - 1;
constexpr uint32_t kNonceBits = 19;

bool is_operation(uint64_t word) { return (word & (kMarks | kDirty)) == kOperationMark; }
bool is_condition(uint64_t word) { return (word & (kMarks | kDirty)) == kConditionMark; }

uint64_t operation_mark(uint32_t index, uint64_t use) {
  return kOperationMark | index | use << kIndexBits;
}
uint32_t index_in(uint64_t mark) { return static_cast<uint32_t>(mark & kIndexMask); }
uint64_t use_in(uint64_t mark) { return mark >> kIndexBits & kUseMask; }

// What an RDCSS mark says without its nonce.
uint64_t condition_of(uint32_t index, uint32_t entry, uint64_t use) {
  return kConditionMark | index | uint64_t{entry} << kIndexBits |
         (use & kShortUseMask) << (kIndexBits + 4);
}
uint32_t entry_in(uint64_t mark) { return static_cast<uint32_t>(mark >> kIndexBits & 15); }
constexpr uint32_t kNonceShift = kIndexBits + 4 + kShortUseBits;
constexpr uint64_t kConditionMask = ~(((uint64_t{1} << kNonceBits) - 1) << kNonceShift);
static_assert(kNonceShift + kNonceBits == 61);

// Different for every attempt to install, so that nobody takes an attempt for an earlier one of the
// same entry, whose answer from the status he may still have at hand.
uint64_t next_nonce() {
  constexpr uint64_t kBlock = 1024;
  static std::atomic<uint64_t> blocks{0};
  thread_local uint64_t next = 0;
  if (next % kBlock == 0) next = blocks.fetch_add(kBlock, std::memory_order_relaxed);
  return next++ & ((uint64_t{1} << kNonceBits) - 1);
}

// ---- the status of a descriptor

enum Status : uint64_t {
  kOldCounts = 1,  // bit 0: undecided or failed; blocks to be dropped are allocated
  kNewCounts = 2,  // bit 1: succeeded; blocks to be kept are allocated
  kUndecided = 4,
  kStatusDirty = 8,  // decided, but not known to be durably so
  kStatusMask = 15,
};
constexpr uint32_t kOldCountsBit = 0;
constexpr uint32_t kNewCountsBit = 1;

uint32_t words_in(uint64_t status) { return static_cast<uint32_t>(status >> 4 & 15); }
uint64_t use_of(uint64_t status) { return status >> 8 & kUseMask; }
uint64_t make_status(uint64_t use, uint32_t words, uint64_t state) {
  return (use & kUseMask) << 8 | uint64_t{words} << 4 | state;
}

bool exchange(uint64_t& word, uint64_t expected, uint64_t desired) {
  may_pause();
  const bool done =
      std::atomic_ref(word).compare_exchange_strong(expected, desired, std::memory_order_seq_cst);
  may_pause();
  return done;
}

// Of the entries of a descriptor, the bytes on lines of their own.
constexpr uint32_t kEntriesInFirstLine = 2;

}  // namespace

void Mwcas::format(const Memory& memory, void* block, uint32_t descriptors) {
  // Uses begin anywhere, so that no other data looks like a mark of a descriptor by chance.
  std::random_device random;
  auto* to = static_cast<MwcasDescriptor*>(block);
  for (uint32_t i = 0; i < descriptors; ++i) {
    MwcasDescriptor fresh{};
    const uint64_t use = (uint64_t{random()} << 32 | random()) & kUseMask;
    fresh.status = make_status(use, 0, 0);
    memory.copy_nontemporal(to + i, &fresh, sizeof fresh);
  }
}

Mwcas::Mwcas(const Memory& memory, char* base, EpochManager& epochs, uint64_t descriptors_at,
             uint32_t descriptors)
    : memory_(memory),
      base_(base),
      epochs_(epochs),
      descriptors_(reinterpret_cast<MwcasDescriptor*>(base + descriptors_at)),
      count_(descriptors),
      retire_together_(std::min(kRetireTogether, descriptors / 4)),
      next_(std::make_unique<std::atomic<uint32_t>[]>(descriptors)) {
  assert(descriptors >= kDescriptorsMin && descriptors <= kDescriptorsMax);
  for (uint32_t i = count_; i > 0; --i) give_free(i - 1);
}

Mwcas::~Mwcas() {
  // Words that no longer agree with their descriptors are recovered at the next opening.
  if (interrupted_.load(std::memory_order_relaxed) || memory_.failed()) return;
  bool any = false;
  for (uint32_t i = 0; i < count_; ++i) {
    uint64_t& status = descriptor(i).status;
    if ((status & kStatusMask) == 0) continue;
    store_release(status, status & ~uint64_t{kStatusMask});
    memory_.flush(&status, sizeof status);
    any = true;
  }
  try {
    if (any) memory_.fence();  // before the words' memory is used for something else
  } catch (const Error&) {     // the medium fails; opening the pool again decides
  }
}

uint64_t& Mwcas::word_of(const MwcasEntry& entry) const {
  return *reinterpret_cast<uint64_t*>(base_ + load_relaxed(entry.word));
}

// ---- descriptors

uint32_t Mwcas::acquire() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    uint64_t head = free_.load(std::memory_order_acquire);
    while ((head & 0xffffffff) != 0) {
      const auto first = static_cast<uint32_t>(head & 0xffffffff) - 1;
      const uint64_t tag = (head >> 32) + 1;
      const uint64_t rest = next_[first].load(std::memory_order_relaxed) | tag << 32;
      if (free_.compare_exchange_weak(head, rest, std::memory_order_acq_rel)) return first;
    }
    retire_used();
    epochs_.collect();
  }
  return kNone;
}

void Mwcas::give_free(uint32_t index) {
  uint64_t head = free_.load(std::memory_order_relaxed);
  do {
    next_[index].store(static_cast<uint32_t>(head), std::memory_order_relaxed);
  } while (!free_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | (index + 1),
                                        std::memory_order_acq_rel));
}

// A descriptor whose operation is over; others may still look at it.
void Mwcas::give_used(uint32_t index) {
  push_used(index);
  if (used_count_.fetch_add(1, std::memory_order_relaxed) + 1 >= retire_together_) retire_used();
}

void Mwcas::push_used(uint32_t index) {
  uint32_t head = used_.load(std::memory_order_relaxed);
  do {
    next_[index].store(head, std::memory_order_relaxed);
  } while (!used_.compare_exchange_weak(head, index + 1, std::memory_order_acq_rel));
}

void Mwcas::retire_used() noexcept {
  used_count_.store(0, std::memory_order_relaxed);
  const uint32_t first = used_.exchange(0, std::memory_order_acq_rel);
  if (first == 0) return;
  const auto for_each = [this, first](auto give) {
    for (uint32_t at = first; at != 0;) {
      const uint32_t index = at - 1;
      at = next_[index].load(std::memory_order_relaxed);
      give(index);
    }
  };
  try {
    epochs_.retire([this, for_each] { for_each([this](uint32_t index) { give_free(index); }); });
  } catch (const std::bad_alloc&) {  // another time
    for_each([this](uint32_t index) { push_used(index); });
  }
}

void Mwcas::wait() {
  retire_used();
  epochs_.collect();
  std::this_thread::yield();
}

bool Mwcas::forget(std::span<const std::pair<uint64_t, uint64_t>> blocks) noexcept {
  // A descriptor whose words are not known to be durable must not be forgotten.
  if (memory_.failed()) return false;
  bool any = false;
  for (uint32_t i = 0; i < count_; ++i) {
    MwcasDescriptor& one = descriptor(i);
    const uint64_t status = load_acquire(one.status);
    if ((status & kStatusMask) == 0 || (status & kUndecided) != 0) continue;
    for (uint32_t e = 0; e < words_in(status); ++e) {
      const uint64_t word = load_relaxed(one.entries[e].word);
      const bool inside = std::ranges::any_of(blocks, [&](const auto& block) {
        return word >= block.first && word < block.first + block.second;
      });
      // It may be in use again for something else by now; then this fails.
      if (!inside || !exchange(one.status, status, status & ~uint64_t{kStatusMask})) continue;
      memory_.flush(&one.status, sizeof one.status);
      any = true;
      break;
    }
  }
  try {
    if (any) memory_.fence();  // before the memory becomes what recovery could mistake for a mark
  } catch (const Error&) {
    return false;
  }
  return true;
}

// ---- reading

uint64_t Mwcas::read_slowly(uint64_t& word) {
  if (!memory_.failed()) [[likely]] {
    try {
      return read_through(word);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) throw;
    }
  }
  return peek(word);
}

uint64_t Mwcas::read_through(uint64_t& word) {
  for (;;) {
    const uint64_t seen = load_acquire(word);
    if (is_condition(seen)) {
      resolve_condition(word, seen);
    } else if (is_operation(seen)) {
      help_with(word, seen);
    } else if ((seen & kDirty) != 0) {
      make_clean(word, seen);
      return seen & kValueMask;
    } else {
      return seen;
    }
  }
}

void Mwcas::make_clean(uint64_t& word, uint64_t seen) {
  memory_.persist(&word, sizeof word);  // before anybody builds on the value
  exchange(word, seen, seen & ~kDirty);
}

bool Mwcas::exchange_volatile(uint64_t& word, uint64_t expected, uint64_t desired) {
  return exchange(word, expected, desired);
}

// Null: the descriptor is in use for something else by now, and the mark is gone; or the mark was
// never that of an operation.
const MwcasEntry* Mwcas::entry_of(const uint64_t& word, uint64_t mark, uint64_t& status) const {
  const uint32_t index = index_in(mark);
  if (index >= count_) return nullptr;
  const MwcasDescriptor& one = descriptor(index);
  status = load_acquire(one.status);
  const uint32_t words = std::min(words_in(status), kWordsMax);
  const auto at = static_cast<uint64_t>(reinterpret_cast<const char*>(&word) - base_);
  const auto is_of = [&](uint32_t i) { return load_relaxed(one.entries[i].word) == at; };
  if (is_condition(mark)) {
    const uint32_t i = entry_in(mark);
    const bool same_use = (mark & kConditionMask) == condition_of(index, i, use_of(status));
    return same_use && i < words && is_of(i) ? &one.entries[i] : nullptr;
  }
  if (use_in(mark) != use_of(status)) return nullptr;
  uint32_t i = 0;
  while (i < words && !is_of(i)) ++i;
  return i < words ? &one.entries[i] : nullptr;
}

// A mark whose operation is over is gone before its descriptor is used again, and never returns.
void Mwcas::require_replaced(const uint64_t& word, uint64_t mark) const {
  if (load_acquire(word) != mark) [[likely]]
    return;
  throw Error(
      ErrorCode::kCorrupt,
      fmt::format("{}: a word holds the mark of a multi-word change that there never was; the "
                  "file was altered from outside: restore it from a backup",
                  where_));
}

// What a word holds apart from marks, without changing or waiting for anything.
uint64_t Mwcas::peek(const uint64_t& word) const {
  for (;;) {
    const uint64_t seen = load_acquire(word);
    if (!is_condition(seen) && !is_operation(seen)) return seen & kValueMask;
    uint64_t status = 0;
    if (const MwcasEntry* entry = entry_of(word, seen, status); entry != nullptr) {
      const bool succeeded = is_operation(seen) && (status & kNewCounts) != 0;
      const uint64_t value = load_relaxed(succeeded ? entry->desired : entry->expected);
      if (load_acquire(word) == seen) return value;
    } else {
      require_replaced(word, seen);
    }
  }
}

// Puts the operation's mark in the place of an RDCSS mark, or, if it is decided, the old value.
void Mwcas::resolve_condition(uint64_t& word, uint64_t mark) {
  uint64_t status = 0;
  const MwcasEntry* entry = entry_of(word, mark, status);
  if (entry == nullptr) return require_replaced(word, mark);
  const uint64_t expected = load_relaxed(entry->expected);
  const bool undecided = (status & kUndecided) != 0;
  exchange(word, mark, undecided ? operation_mark(index_in(mark), use_of(status)) : expected);
}

void Mwcas::help_with(const uint64_t& word, uint64_t mark) {
  uint64_t status = 0;
  if (entry_of(word, mark, status) == nullptr) return require_replaced(word, mark);
  helped_.fetch_add(1, std::memory_order_relaxed);
  complete(index_in(mark), use_in(mark));
}

// ---- the protocol

// Brings the operation's mark into a word. False if the word has another value than expected.
bool Mwcas::install(uint32_t index, uint64_t use, uint32_t entry, bool& undecided) {
  MwcasDescriptor& one = descriptor(index);
  uint64_t& word = word_of(one.entries[entry]);
  const uint64_t expected = load_relaxed(one.entries[entry].expected);
  const uint64_t own = operation_mark(index, use);
  for (;;) {
    const uint64_t status = load_acquire(one.status);
    undecided = use_of(status) == use && (status & kUndecided) != 0;
    if (!undecided) return true;
    const uint64_t seen = load_acquire(word);
    if (seen == own) return true;
    if (is_condition(seen)) {
      resolve_condition(word, seen);
    } else if (is_operation(seen)) {
      help_with(word, seen);
    } else if ((seen & kDirty) != 0) {
      make_clean(word, seen);
    } else if (seen != expected) {
      return false;
    } else {
      const uint64_t mark = condition_of(index, entry, use) | next_nonce() << kNonceShift;
      if (exchange(word, expected, mark)) resolve_condition(word, mark);
    }
  }
}

void Mwcas::persist_words(const MwcasDescriptor& descriptor, uint32_t words) const {
  uintptr_t last = 0;  // in the order of addresses: words of a line follow one another
  for (uint32_t i = 0; i < words; ++i) {
    const uint64_t& word = word_of(descriptor.entries[i]);
    const uintptr_t line = reinterpret_cast<uintptr_t>(&word) / kLineBytes;
    if (line != last) memory_.flush(&word, sizeof word);
    last = line;
  }
  memory_.fence();
}

// Makes a decision durable; returns the status as it is then.
uint64_t Mwcas::persist_status(MwcasDescriptor& descriptor, uint64_t status) {
  if ((status & kStatusDirty) == 0) return status;
  memory_.persist(&descriptor.status, sizeof descriptor.status);  // before any mark is replaced
  exchange(descriptor.status, status, status & ~uint64_t{kStatusDirty});
  return status & ~uint64_t{kStatusDirty};
}

void Mwcas::replace_marks(MwcasDescriptor& descriptor, uint64_t mark, uint64_t status) {
  const bool succeeded = (status & kNewCounts) != 0;
  const auto value_of = [&](const MwcasEntry& entry) {
    return succeeded ? load_relaxed(entry.desired) : load_relaxed(entry.expected);
  };
  const uint32_t words = words_in(status);
  for (uint32_t i = 0; i < words; ++i) {
    const MwcasEntry& entry = descriptor.entries[i];
    exchange(word_of(entry), mark, value_of(entry) | kDirty);
  }
  persist_words(descriptor, words);  // the values, before the operation is over
  for (uint32_t i = 0; i < words; ++i) {
    const MwcasEntry& entry = descriptor.entries[i];
    const uint64_t value = value_of(entry);
    if (load_relaxed(word_of(entry)) == (value | kDirty)) {
      exchange(word_of(entry), value | kDirty, value);
    }
  }
}

bool Mwcas::complete(uint32_t index, uint64_t use) {
  MwcasDescriptor& one = descriptor(index);
  uint64_t status = load_acquire(one.status);
  if (use_of(status) != use) return false;  // a helper who comes too late
  if ((status & kUndecided) != 0) {
    const uint32_t words = words_in(status);
    bool succeeds = true;
    bool undecided = true;
    for (uint32_t i = 0; i < words && succeeds && undecided; ++i) {
      succeeds = install(index, use, i, undecided);
    }
    if (undecided) {
      if (succeeds)
        persist_words(one, words);  // the marks, before the decision that needs them all
      const uint64_t decision = make_status(use, words, (succeeds ? kNewCounts : kOldCounts));
      exchange(one.status, status, decision | kStatusDirty);
    }
    status = load_acquire(one.status);
    if (use_of(status) != use) return false;
  }
  status = persist_status(one, status);
  replace_marks(one, operation_mark(index, use), status);
  return (status & kNewCounts) != 0;
}

// ---- operations

Mwcas::Operation::~Operation() {
  if (index_ == kNone) return;
  if (state_ == State::kNew) {
    mwcas_.give_free(index_);
  } else if (state_ == State::kDone) {
    mwcas_.give_used(index_);
  } else {
    // A fence has failed. Words may hold marks of it, now or on the medium, which this descriptor
    // must explain to readers and to recovery: it is not used again before the next opening.
    mwcas_.interrupted_.store(true, std::memory_order_relaxed);
  }
}

void Mwcas::Operation::add(uint64_t& word, uint64_t expected, uint64_t desired,
                           MwcasPolicy policy) {
  assert(words_ < kWordsMax && state_ == State::kNew);
  assert((expected | desired) <= kValueMask);
  entries_[words_++] = {static_cast<uint64_t>(reinterpret_cast<char*>(&word) - mwcas_.base_),
                        expected, desired};
  const auto bits = static_cast<uint8_t>(policy);
  if ((bits & static_cast<uint8_t>(MwcasPolicy::kFreeNewOnFailure)) != 0 && desired != 0) {
    keep(desired);
  }
  if ((bits & static_cast<uint8_t>(MwcasPolicy::kFreeOldOnSuccess)) != 0 && expected != 0) {
    drop(expected);
  }
}

void Mwcas::Operation::keep(uint64_t block) {
  assert(txn_ != nullptr);
  kept_.push_back(block);
}

void Mwcas::Operation::drop(uint64_t block) {
  assert(txn_ != nullptr);
  txn_->require_block(block);  // now: in execute() an error would cost the descriptor
  dropped_.push_back(block);
}

// Writes the descriptor, and flushes it.
void Mwcas::Operation::describe() {
  // One order for all, so that two operations never wait for each other's help in a circle.
  std::sort(entries_.begin(), entries_.begin() + words_,
            [](const MwcasEntry& a, const MwcasEntry& b) { return a.word < b.word; });
  MwcasDescriptor& one = mwcas_.descriptor(index_);
  const uint64_t use = use_of(load_relaxed(one.status)) + 1;
  store_release(one.status, make_status(use, 0, 0));
  for (uint32_t i = 0; i < words_; ++i) {
    store_relaxed(one.entries[i].word, entries_[i].word);
    store_relaxed(one.entries[i].expected, entries_[i].expected);
    store_relaxed(one.entries[i].desired, entries_[i].desired);
  }
  if (words_ > kEntriesInFirstLine) {
    // What is on other lines, before the status that makes it count.
    mwcas_.memory_.persist(&one.entries[kEntriesInFirstLine],
                           (words_ - kEntriesInFirstLine) * sizeof(MwcasEntry));
  }
  store_release(one.status, make_status(use, words_, kUndecided | kOldCounts));
  mwcas_.memory_.flush(&one, kLineBytes);
}

bool Mwcas::Operation::execute() {
  assert(index_ != kNone && words_ > 0 && state_ == State::kNew);
  const Memory& memory = mwcas_.memory_;
  const MwcasDescriptor& one = mwcas_.descriptor(index_);
  state_ = State::kBegun;
  describe();
  memory.fence();  // the descriptor, and what the caller flushed, before a word leads to it
  // On return the status is durable, and with it the decision.
  const auto complete = [&] { return mwcas_.complete(index_, use_of(load_relaxed(one.status))); };
  bool succeeded;
  if (kept_.empty() && dropped_.empty()) {
    succeeded = complete();
  } else {
    // After the descriptor: an intent that came first would take the decision of its last use.
    // Others may find the new blocks, and drop them, before this thread goes on; and may try to
    // drop the old.
    for (const uint64_t block : kept_) txn_->may_link(block, &one.status, link_bit(kNewCountsBit));
    for (const uint64_t block : dropped_) {
      txn_->may_unlink(block, &one.status, link_bit(kOldCountsBit));
    }
    succeeded = txn_->commit_contested(complete);
  }
  state_ = State::kDone;
  return succeeded;
}

// ---- recovery

bool Mwcas::sound(uint32_t index, uint64_t begin, uint64_t end) const {
  const MwcasDescriptor& one = descriptor(index);
  const uint64_t state = one.status & (kOldCounts | kNewCounts | kUndecided);
  if (state != kOldCounts && state != kNewCounts && state != (kOldCounts | kUndecided))
    return false;
  const uint32_t words = words_in(one.status);
  if (words == 0 || words > kWordsMax) return false;
  return std::all_of(one.entries.begin(), one.entries.begin() + words, [&](const auto& entry) {
    return entry.word % sizeof(uint64_t) == 0 && entry.word >= begin && entry.word < end &&
           (entry.expected | entry.desired) <= kValueMask;
  });
}

// Takes the marks of a descriptor out of its words. Whether there was one.
bool Mwcas::roll(uint32_t index) {
  const MwcasDescriptor& one = descriptor(index);
  const uint64_t use = use_of(one.status);
  bool any = false;
  for (uint32_t i = 0; i < words_in(one.status); ++i) {
    const MwcasEntry& entry = one.entries[i];
    uint64_t& word = word_of(entry);
    const uint64_t seen = load_relaxed(word);
    if (seen == operation_mark(index, use)) {
      store_release(word, (one.status & kNewCounts) != 0 ? entry.desired : entry.expected);
    } else if ((seen & kConditionMask) == condition_of(index, i, use)) {
      store_release(word, entry.expected);
    }
    any = any || load_relaxed(word) != seen;
    // One that has its value, too: of a process that died, that may be in the caches only, and the
    // mark that the medium still has is explained by this descriptor alone.
    memory_.flush(&word, sizeof word);
  }
  return any;
}

uint64_t Mwcas::recover(uint64_t begin, uint64_t end, const std::string& where) {
  where_ = where;
  std::vector<uint32_t> busy;
  for (uint32_t i = 0; i < count_; ++i) {
    if ((descriptor(i).status & kStatusMask) == 0) continue;
    if (!sound(i, begin, end)) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: descriptor {} of a multi-word change is damaged; the file was "
                              "altered from outside: restore it from a backup",
                              where, i));
    }
    busy.push_back(i);
  }
  if (busy.empty()) return 0;
  // A process that died may have left a decision in the caches only: durable before any word
  // follows it, else a power failure could take it back after some did. What its entries have on
  // other lines was durable before the status counted them.
  for (const uint32_t index : busy) memory_.flush(&descriptor(index).status, sizeof(uint64_t));
  memory_.fence();
  uint64_t rolled = 0;
  for (const uint32_t index : busy) rolled += roll(index) ? 1 : 0;
  memory_.fence();  // the words, before the descriptors that know what they are
  for (const uint32_t index : busy) {
    uint64_t& status = descriptor(index).status;
    store_release(status, status & ~uint64_t{kStatusMask});
    memory_.flush(&status, sizeof status);
  }
  memory_.fence();  // before they are used again
  return rolled;
}

}  // namespace perdure::pm
