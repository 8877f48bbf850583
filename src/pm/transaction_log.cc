#include "pm/transaction_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <utility>

#include "pm/checksum.h"
#include "pm/pool_impl.h"

namespace perdure::pm {

namespace {

constexpr uint64_t kTransactionLogMagic = 0x31676f6c6e7874;  // "txnlog1"
// A slot begins with a buffer of this size, and gives one back that is larger than the other.
constexpr uint64_t kLeastBufferBytes = 2048;
constexpr uint64_t kKeptBufferBytes = uint64_t{32} << 10;
constexpr uint64_t kCheckSalt = 0xa991ed;
// For each record that is to be finished, besides those for twice its bytes: each size of block may
// need a segment.
constexpr uint64_t kRoomSegments = 4;

}  // namespace

uint64_t TransactionSlot::check_with(uint64_t applied_bits) const {
  const uint64_t words[] = {bytes, applied_bits, checksum};
  return checksum64(words, sizeof words, kCheckSalt);
}

TransactionLogRoot* TransactionLog::root() const {
  uint64_t offset = 0;
  unseal_word(load_acquire(pool_.header().transactions_word), kTransactionsSalt, offset);
  return offset == 0 ? nullptr : pool_.at<TransactionLogRoot>(offset);
}

void TransactionLog::open() {
  const uint64_t word = pool_.header().transactions_word;
  uint64_t offset = 0;
  if (word == 0) return;
  if (!unseal_word(word, kTransactionsSalt, offset) ||
      !pool_.heap().is_allocated(offset, sizeof(TransactionLogRoot)) ||
      root()->magic != kTransactionLogMagic || root()->slots != kSlots) {
    pool_.throw_corrupt("the log of transactions is damaged");
  }
  // Before any structure is changed because of a `bytes`, or written to because there is none:
  // after a power failure the slots must not be as they were before stores that a dead process left
  // in the caches.
  pool_.memory().flush(root(), sizeof(TransactionLogRoot));
  pool_.memory().fence();
  for (uint32_t i = 0; i < kSlots; ++i) {
    require_sound(i);
    if (slot(i).bytes == 0) continue;
    settle_applied(i);
    taken_ |= 1U << i;
    pending_.fetch_or(1U << i);
    keep_room(i);
  }
  pool_.memory().fence();  // what was settled, before a structure is opened that goes by it
}

// What of a slot's record is applied is what its check was made of: the word itself, or one that
// differs in one bit.
void TransactionLog::settle_applied(uint32_t number) {
  TransactionSlot& own = slot(number);
  if (!own.has_check() || own.check == own.check_with(own.applied)) return;
  for (uint32_t bit = 0; bit < kStructuresMax; ++bit) {
    const uint64_t other = own.applied ^ uint64_t { 1 } << bit;
    if (own.check != own.check_with(other)) continue;
    store_release(own.applied, other);
    return pool_.memory().flush(&own, sizeof own);
  }
  pool_.throw_corrupt(fmt::format("record {} of the transactions is damaged", number));
}

void TransactionLog::keep_room(uint32_t number) {
  const uint64_t wanted = kRoomSegments + 2 * slot(number).length() / kSegmentBytes;
  try {
    if (room_[number] == 0 && pool_.heap().keep(wanted)) room_[number] = wanted;
  } catch (
      const std::exception&) {  // a medium that fails while the pool grows: the next write tells
  }
}

void TransactionLog::end_room(uint32_t number) {
  pool_.heap().end_keeping(std::exchange(room_[number], 0));
}

void TransactionLog::forget_dropped() {
  for (uint32_t i = 0; i < kSlots; ++i) {
    if ((pending_.load() >> i & 1) == 0) continue;
    // From what is applied on, so that a record of which a crash has left `bytes` alone ends, too.
    uint64_t gone = slot(i).applied;
    const View record = view(i);
    for (size_t n = 0; n < record.roots.size(); ++n) {
      if (!pool_.names_root(record.roots[n])) gone |= uint64_t{1} << n;
    }
    note_applied(i, gone);
  }
}

void TransactionLog::require_sound(uint32_t number) const {
  const TransactionSlot& own = slot(number);
  bool sound = ((own.bytes & 7) == 0 || own.has_check()) && own.length() <= own.buffer_bytes &&
               (own.buffer == 0 ? own.buffer_bytes == 0
                                : pool_.heap().is_allocated(own.buffer, own.buffer_bytes));
  if (sound && own.bytes != 0) {
    uint64_t structures = 0;
    sound = own.length() >= sizeof structures &&
            checksum64(pool_.at<char>(own.buffer), own.length(), own.bytes) == own.checksum;
    if (sound) {
      std::memcpy(&structures, pool_.at<char>(own.buffer), sizeof structures);
      sound = structures >= 1 && structures <= kStructuresMax &&
              record_bytes(structures, 0) <= own.length() &&
              static_cast<uint64_t>(std::bit_width(own.applied)) <= structures;
    }
  }
  if (!sound) pool_.throw_corrupt(fmt::format("record {} of the transactions is damaged", number));
}

TransactionLog::View TransactionLog::view(uint32_t number) const {
  const TransactionSlot& own = slot(number);
  const auto* words = pool_.at<uint64_t>(own.buffer);
  const uint64_t structures = words[0];
  const uint64_t before = record_bytes(structures, 0);
  return {{words + 1, structures}, {pool_.at<char>(own.buffer + before), own.length() - before}};
}

// ---- transactions

TransactionLog::Record TransactionLog::begin(uint64_t record_bytes) {
  if (record_bytes > kRecordBytesMax) {
    throw Error(
        ErrorCode::kTooLarge,
        fmt::format("{}: the keys and values of the transaction take {} bytes; it may have {}: "
                    "divide it",
                    pool_.mapping().path(), record_bytes, kRecordBytesMax));
  }
  pool_.require_writable();
  Record record(*this, take_slot());
  if (slot(record.number_).buffer_bytes < record_bytes) {
    set_buffer(record.number_, std::max(std::bit_ceil(record_bytes), kLeastBufferBytes));
  }
  return record;
}

uint32_t TransactionLog::take_slot() {
  constexpr uint32_t kAll = (uint32_t{1} << kSlots) - 1;
  std::unique_lock lock(mutex_);
  if (root() == nullptr) make_log();
  while (taken_ == kAll) {
    pool_.require_writable();  // slots are kept by what the failure of a medium has interrupted
    if (pending_.load() == kAll) {
      throw Error(
          ErrorCode::kPoolFull,
          fmt::format("{}: {} transactions that were interrupted wait until their structures "
                      "are opened; open all structures once",
                      pool_.mapping().path(), kSlots));
    }
    freed_.wait(lock);
  }
  const auto number = static_cast<uint32_t>(std::countr_one(taken_));
  taken_ |= 1U << number;
  return number;
}

void TransactionLog::give_back(uint32_t number) {
  {
    const std::lock_guard lock(mutex_);
    taken_ &= ~(1U << number);
  }
  freed_.notify_one();
}

void TransactionLog::leave(uint32_t number, bool committed) {
  {
    const std::lock_guard lock(mutex_);
    // Not one whose end the medium has refused: the next opening of the pool decides.
    if (committed && slot(number).bytes != 0) {
      pending_.fetch_or(1U << number);
      if (!pool_.failed()) keep_room(number);
    }
  }
  freed_.notify_all();  // this slot may be the last that others waited for
}

// The caller holds mutex_.
void TransactionLog::make_log() {
  const Memory& memory = pool_.memory();
  auto* header = pool_.at<PoolHeader>(0);
  Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(sizeof(TransactionLogRoot));
  TransactionLogRoot fresh{};
  fresh.magic = kTransactionLogMagic;
  fresh.slots = kSlots;
  std::memcpy(pool_.at<char>(at), &fresh, sizeof fresh);
  memory.flush(pool_.at<char>(at),
               sizeof fresh);  // with the intent, before the word that leads to it
  txn.will_link(at, &header->transactions_word, Link::kTagged);
  txn.commit([&] {
    store_release(header->transactions_word, seal_word(at, kTransactionsSalt));
    memory.flush(&header->transactions_word, sizeof(uint64_t));
  });
}

// The slot is the caller's, and holds no record. 0: none.
void TransactionLog::set_buffer(uint32_t number, uint64_t bytes) {
  TransactionSlot& own = slot(number);
  Heap::Txn txn(pool_.heap());
  const uint64_t fresh = bytes == 0 ? 0 : txn.allocate(bytes);
  if (fresh != 0) txn.will_link(fresh, &own.buffer, Link::kOffset);
  if (own.buffer != 0) txn.will_unlink(own.buffer, &own.buffer, Link::kOffset);
  const uint64_t image[2] = {fresh, bytes};
  txn.redo(&own.buffer, image, sizeof image);
  txn.commit([&] { txn.apply(); });
}

TransactionLog::Record::~Record() {
  if (log_ == nullptr) return;
  if (state_ == State::kEmpty && !log_->pool_.failed()) {
    log_->give_back(number_);
  } else {
    log_->leave(number_, state_ == State::kCommitted);
  }
}

void TransactionLog::Record::commit(std::span<const uint64_t> roots,
                                    std::span<const char> operations) {
  const Memory& memory = log_->pool_.memory();
  TransactionSlot& own = log_->slot(number_);
  const uint64_t bytes = record_bytes(roots.size(), operations.size());
  auto* words = log_->pool_.at<uint64_t>(own.buffer);
  words[0] = roots.size();
  std::memcpy(words + 1, roots.data(), roots.size_bytes());
  std::memcpy(words + 1 + roots.size(), operations.data(), operations.size());
  // Before the slot that makes it count: a crash would find part of it.
  memory.persist(words, bytes);
  state_ = State::kCommitted;  // whatever the medium says from here on
  TransactionSlot image{};
  image.bytes = bytes | TransactionSlot::kMark;
  image.checksum = checksum64(words, bytes, image.bytes);
  store_relaxed(own.applied, uint64_t{0});
  store_relaxed(own.checksum, image.checksum);
  store_relaxed(own.check, image.check_with(0));
  store_release(own.bytes, image.bytes);
  // The commit point: before any structure is changed. Else a crash would leave some of the
  // operations, and no record by which to do the others.
  memory.persist(&own, sizeof own);
}

void TransactionLog::Record::retire() {
  TransactionSlot& own = log_->slot(number_);
  store_release(own.bytes, uint64_t{0});
  // Before others write to its keys, over which a crash would have it applied again; and before the
  // buffer is written over, which `bytes` would take for a record.
  log_->pool_.memory().persist(&own, sizeof own);
  state_ = State::kEmpty;
  if (own.buffer_bytes <= kKeptBufferBytes) return;
  try {
    log_->set_buffer(number_, 0);
  } catch (
      const std::exception&) {  // it is kept; or the pool has failed, which the next write tells
  }
}

// ---- whose turn it is

namespace {
// In which log this thread is alone.
thread_local const TransactionLog* alone_in = nullptr;
}  // namespace

TransactionLog::Commit::Commit(TransactionLog& log) : log_(log), within_(alone_in == &log) {
  if (within_) return;
  std::unique_lock lock(log.turn_mutex_);
  log.turn_.wait(lock, [&] { return !log.alone_; });
  ++log.commits_;
}

TransactionLog::Commit::~Commit() {
  if (within_) return;
  const std::lock_guard lock(log_.turn_mutex_);
  if (--log_.commits_ == 0) log_.turn_.notify_all();
}

TransactionLog::Alone::Alone(TransactionLog& log) : log_(log), outer_(alone_in) {
  if (outer_ == &log) return;
  std::unique_lock lock(log.turn_mutex_);
  log.turn_.wait(lock, [&] { return !log.alone_; });
  log.alone_ = true;
  log.turn_.wait(lock, [&] { return log.commits_ == 0; });
  alone_in = &log;
}

TransactionLog::Alone::~Alone() {
  if (outer_ == &log_) return;
  alone_in = outer_;
  const std::lock_guard lock(log_.turn_mutex_);
  log_.alone_ = false;
  log_.turn_.notify_all();
}

// ---- what a crash left

template <typename Use>
void TransactionLog::for_each_pending(uint64_t root, Use use) const {
  for (uint32_t i = 0; i < kSlots; ++i) {
    if ((pending_.load() >> i & 1) == 0) continue;
    const View record = view(i);
    for (uint32_t n = 0; n < record.roots.size(); ++n) {
      if (record.roots[n] != root) continue;
      if ((slot(i).applied >> n & 1) == 0) use(i, n);
      break;  // a record names a structure once; and another record may be in the slot by now
    }
  }
}

bool TransactionLog::is_pending(uint64_t root) const {
  if (pending_.load() == 0) return false;
  const std::lock_guard lock(pending_mutex_);
  bool found = false;
  for_each_pending(root, [&](uint32_t, uint32_t) { found = true; });
  return found;
}

void TransactionLog::finish(
    uint64_t root,
    const std::function<void(std::span<const char> operations, uint32_t number)>& apply) {
  if (pending_.load() == 0) return;
  const std::lock_guard lock(pending_mutex_);
  for_each_pending(root, [&](uint32_t i, uint32_t number) {
    const FinishingScope scope;
    const Heap::KeptRoom room(pool_.heap());
    apply(view(i).operations, number);
    note_applied(i, uint64_t{1} << number);
  });
}

void TransactionLog::forget(uint64_t root) {
  if (pending_.load() == 0) return;
  const std::lock_guard lock(pending_mutex_);
  for_each_pending(root,
                   [&](uint32_t i, uint32_t number) { note_applied(i, uint64_t{1} << number); });
}

void TransactionLog::note_applied(uint32_t number, uint64_t bits) {
  if (bits == 0) return;
  TransactionSlot& own = slot(number);
  const uint64_t structures = view(number).roots.size();
  for (uint64_t left = bits & ~own.applied; left != 0; left &= left - 1) {
    store_release(own.applied, own.applied | (left & -left));
    store_release(own.check,
                  own.check_with(own.applied));  // of the same line, so durable no earlier
  }
  const bool all = static_cast<uint64_t>(std::popcount(own.applied)) == structures;
  if (all) store_release(own.bytes, uint64_t{0});
  // Before anybody writes to the structure: a crash would have the record applied over that.
  pool_.memory().persist(&own, sizeof own);
  if (!all) return;
  pending_.fetch_and(~(1U << number));
  end_room(number);
  give_back(number);
}

void TransactionLog::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const TransactionLogRoot* own = root();
  if (own == nullptr) return;
  const auto block = [&](uint64_t offset, uint64_t bytes) {
    visit(offset, pool_.heap().block_bytes_at(offset, bytes));
  };
  block(pool_.offset_of(own), sizeof *own);
  for (const TransactionSlot& one : own->slot) {
    if (one.buffer != 0) block(one.buffer, one.buffer_bytes);
  }
}

}  // namespace perdure::pm
