#include "store/runs.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "perdure/error.h"
#include "pm/checksum.h"
#include "pm/unfinished_file.h"
#include "store/layout.h"

namespace perdure::store {

namespace {

constexpr uint64_t kListBytesMax = uint64_t{128} << 10;

uint64_t slot_bytes(uint32_t partitions) { return sizeof(RunSlot) + partitions * sizeof(uint64_t); }
uint64_t list_checksum(const RunList& list, uint64_t salt) {
  return pm::checksum64(&list.slots, sizeof list - sizeof list.checksum, salt);
}

}  // namespace

Runs::Runs(pm::PoolImpl& pool, uint64_t& link, uint64_t& seen, uint64_t salt, uint32_t partitions)
    : pool_(pool),
      link_(link),
      seen_(seen),
      salt_(salt),
      partitions_(partitions),
      read_only_(pool.read_only()) {
  if (link_ == 0 || pool_.lenient()) return;  // the latter for who reads what there still is
  if (!pool_.heap().is_allocated(link_, sizeof(RunList))) return;
  const auto& list = *pool_.at<RunList>(link_);
  if (list.checksum != list_checksum(list, salt_) || list.slots == 0 || list.slots > kRunsMax) {
    return;
  }
  slots_ = list.slots;
  if (!pool_.heap().is_allocated(link_, bytes())) slots_ = 0;
}

Runs::Block Runs::block() const {
  const std::lock_guard lock(mutex_);
  return slots_ != 0 ? Block{link_, bytes()} : Block{};
}

uint64_t Runs::bytes() const { return sizeof(RunList) + slots_ * slot_bytes(partitions_); }

RunSlot* Runs::slot(uint64_t number) const {
  return pool_.at<RunSlot>(link_ + sizeof(RunList) + number * slot_bytes(partitions_));
}

uint64_t* Runs::ends_of(RunSlot& of) const { return reinterpret_cast<uint64_t*>(&of + 1); }

uint64_t Runs::checksum_of(const RunSlot& one) const {
  const uint64_t words[] = {one.number, one.order};
  return pm::checksum64(words, sizeof words, salt_);
}

bool Runs::is_noted(const RunSlot& one) const {
  return one.number != 0 && one.checksum == checksum_of(one);
}

void Runs::flush(const RunSlot& one) const { pool_.memory().flush(&one, slot_bytes(partitions_)); }

void Runs::forget_ends(RunSlot& of) const {
  pm::store_release(of.generation, uint64_t{0});
  for (uint32_t i = 0; i < partitions_; ++i) pm::store_release(ends_of(of)[i], uint64_t{0});
  flush(of);
}

void Runs::begin(const std::function<bool(uint64_t generation)>& nobody_wrote_since, bool evicts,
                 bool serves_early) {
  evicts_ = evicts;
  uint64_t seen = 0;
  has_gap_ = !pm::unseal_word(seen_, kRunSalt, seen) || !nobody_wrote_since(seen);
  const bool drops = evicts || has_gap_;
  for (uint64_t i = 0; i < slots_; ++i) {
    RunSlot& one = *slot(i);
    if (!is_noted(one)) continue;
    uint64_t generation = 0;
    const bool goes_on = one.generation != 0 &&
                         pm::unseal_word(one.generation, kRunSalt, generation) &&
                         nobody_wrote_since(generation);
    if (read_only_) {
      if (goes_on) current_ = one.number;
      continue;
    }
    if (!drops && one.generation == 0) continue;
    if (!drops && goes_on) ending_.push_back(i);
    if (!drops && goes_on && !serves_early) continue;
    forget_ends(one);
  }
  if (!read_only_ && slots_ != 0) {
    // All of it: a process that died may have left an end that it took back, or one that it noted,
    // in the caches only, and this one would find nothing to do. Before this run writes, or evicts,
    // anything; and before it is noted that somebody was there who has seen to that, after which no
    // other opening would.
    pool_.memory().flush(slot(0), slots_ * slot_bytes(partitions_));
    pool_.memory().fence();
  }
  // Before anything is written by which the store would seem to have been closed by somebody else.
  if (!read_only_ && slots_ != 0 && note_seen()) pool_.memory().fence();
}

// Returns whether it was not noted yet.
bool Runs::note_seen() {
  const uint64_t word = pm::seal_word(pool_.generation(), kRunSalt);
  if (seen_ == word) return false;
  pm::store_release(seen_, word);
  pool_.memory().flush(&seen_, sizeof seen_);
  return true;
}

void Runs::begin_partition(uint32_t number, uint64_t position) {
  const std::lock_guard lock(mutex_);
  if (read_only_) return;
  bool stored = false;
  for (uint64_t i = 0; i < slots_; ++i) {
    RunSlot& one = *slot(i);
    uint64_t end = 0;
    if (!is_noted(one) || !pm::unseal_word(ends_of(one)[number], kPositionSalt + number, end) ||
        end <= position) {
      continue;
    }
    forget_ends(one);
    stored = true;
  }
  // The end is gone before the first write behind this position: a crash after that would find a
  // position again that the run seems to have come to.
  if (stored) pool_.memory().fence();
}

void Runs::end_last(std::span<const uint64_t> positions) {
  const std::lock_guard lock(mutex_);
  if (read_only_ || begun_) return;
  bool stored = false;
  for (const uint64_t number : ending_) {
    RunSlot& one = *slot(number);
    for (uint32_t i = 0; i < partitions_; ++i) {
      pm::store_release(ends_of(one)[i], pm::seal_word(positions[i], kPositionSalt + i));
    }
    pm::store_release(one.generation, uint64_t{0});
    flush(one);
    stored = true;
  }
  // Before this run writes: of a crash in between each word is there or not, and a run that lacks
  // one has no end.
  if (stored) pool_.memory().fence();
  ending_.clear();
  begun_ = true;
}

bool Runs::make_list() {
  const uint64_t slots = std::clamp<uint64_t>(kListBytesMax / slot_bytes(partitions_), 8, kRunsMax);
  const uint64_t list_bytes = sizeof(RunList) + slots * slot_bytes(partitions_);
  try {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t at = txn.allocate(list_bytes);
    auto* list = pool_.at<RunList>(at);
    std::memset(static_cast<void*>(list), 0, list_bytes);
    list->slots = slots;
    list->checksum = list_checksum(*list, salt_);
    pool_.memory().flush(list, list_bytes);
    txn.publish(at, link_);  // the list and the intent, before the link
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
  slots_ = slots;
  return true;
}

uint64_t Runs::tell() {
  const std::lock_guard lock(mutex_);
  if (current_ != 0 || read_only_ || evicts_) return current_;
  pool_.require_writable();
  if (link_ != 0 ? slots_ == 0 : !make_list()) return 0;
  note_seen();  // durable with what follows, of a list that is new
  uint64_t place = 0;
  uint64_t newest = 0;
  uint64_t oldest = ~uint64_t{0};
  for (uint64_t i = 0; i < slots_; ++i) {
    const RunSlot& one = *slot(i);
    const uint64_t order = is_noted(one) ? one.order : 0;
    newest = std::max(newest, order);
    if (std::ranges::find(ending_, i) != ending_.end() || order >= oldest) continue;
    oldest = order;
    place = i;
  }
  RunSlot& one = *slot(place);
  pm::store_release(one.number, uint64_t{0});
  forget_ends(one);
  pool_.memory().fence();  // what stood there, before another number makes it count
  const uint64_t number = pm::random_number("the number of a run") | 1;
  pm::store_release(one.order, newest + 1);
  pm::store_release(one.generation, pm::seal_word(pool_.generation(), kRunSalt));
  pm::store_release(one.number, number);
  pm::store_release(one.checksum, checksum_of(one));
  flush(one);
  pool_.memory().fence();  // before anybody is told
  current_ = number;
  return number;
}

Runs::Verdict Runs::judge(uint64_t run, std::span<const uint64_t> positions,
                          std::span<const uint64_t> next) const {
  const std::lock_guard lock(mutex_);
  if (run == 0) return Verdict::kUnknown;
  RunSlot* found = nullptr;
  for (uint64_t i = 0; i < slots_ && found == nullptr; ++i) {
    if (slot(i)->number == run && is_noted(*slot(i))) found = slot(i);
  }
  if (found == nullptr) return Verdict::kLost;
  for (uint32_t i = 0; i < partitions_; ++i) {
    if (positions[i] > next[i]) return Verdict::kLost;
  }
  if (run == current_) return Verdict::kGoesOn;
  if (read_only_ && has_gap_) return Verdict::kUnknown;
  bool is_ahead = false;
  for (uint32_t i = 0; i < partitions_; ++i) {
    const uint64_t word = ends_of(*found)[i];
    uint64_t end = 0;
    if (word == 0 || !pm::unseal_word(word, kPositionSalt + i, end)) return Verdict::kUnknown;
    is_ahead = is_ahead || positions[i] > end;
  }
  return is_ahead ? Verdict::kLost : Verdict::kGoesOn;
}

}  // namespace perdure::store
