// Writing single records.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "index/bwtree/core.h"

namespace perdure::index::bwtree {

template <typename Content>
void Core<Content>::require_going(uint32_t attempts) const {
  if (pool_.failed()) [[unlikely]]
    pool_.require_writable();
  if (attempts > kAttemptsMax) throw_damaged(kRootId, "takes no change");
}

// A place for a delta that nobody else has had, or 0. The count belongs to a generation of the
// pool: at the first time in a new one it begins behind the places of the chain, which nobody has
// added to since it was opened.
template <typename Content>
uint32_t Core<Content>::reserve(const Seen& at) const {
  constexpr uint32_t kBits = 8;
  constexpr uint64_t kMask = (1U << kBits) - 1;
  uint64_t& word = const_cast<Node*>(at.node)->reserved;
  for (;;) {
    const uint64_t seen = pm::load_acquire(word);
    uint64_t places = seen & kMask;
    if (seen >> kBits != pool_.generation()) {
      places = 0;
      walk(*at.node, at.head, [&](const Delta&, uint32_t place) {
        places = std::max<uint64_t>(places, place);
        return true;
      });
    }
    if (places >= at.node->slots) return 0;
    ++places;
    if (swap(word, seen, pool_.generation() << kBits | places))
      return static_cast<uint32_t>(places);
  }
}

// The delta becomes the newest one, unless the entry has changed. Durable on return, and so is that
// it has.
template <typename Content>
bool Core<Content>::link(const Seen& at, uint32_t place) const {
  uint64_t& word = entry(at.id);
  const uint64_t now = (at.word & ~kHeadMask) | place | kDirty;
  if (!swap(word, at.word, now)) return false;
  complete({now, at.id, place, at.node});
  return true;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::append(const Seen& at, DeltaKind kind,
                                                      const Key& key, const Value& value,
                                                      Found found) {
  const uint32_t place = reserve(at);
  if (place == 0) return Outcome::kFull;
  Delta delta{};
  delta.key = Content::word_of(key);
  delta.kind = kind;
  delta.next = static_cast<uint8_t>(at.head);
  delta.length = static_cast<uint16_t>(at.head == 0 ? 1 : delta_of(*at.node, at.head).length + 1);
  delta.live = live_of(at);
  if (kind == DeltaKind::kPut && !found.present) ++delta.live;
  if (kind == DeltaKind::kRemove) --delta.live;
  Delta& home = at.node->delta(place);
  const auto put = [&](uint64_t stored) {
    delta.value = stored;
    home = delta;
    memory_.flush(&home, sizeof home);
  };
  if constexpr (!kWords) {
    if (found.present) has_garbage_.store(true, std::memory_order_relaxed);
    if (kind == DeltaKind::kPut) {
      pm::Heap::Txn txn(pool_.heap());
      const uint64_t record = records_.make(txn, key.bytes, value);
      txn.may_link(record, &at.node->committed, pm::link_bit(place - 1));
      put(record);  // durable with the intent, before the entry leads to the delta
      return txn.commit_contested([&] { return link(at, place); }) ? Outcome::kDone
                                                                   : Outcome::kAgain;
    }
    put(found.value);
  } else {
    put(value);
  }
  memory_.fence();  // the delta, before the entry leads to it
  return link(at, place) ? Outcome::kDone : Outcome::kAgain;
}

template <typename Content>
bool Core<Content>::write_once(const Condition& condition, const Key& key, const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (uint32_t attempts = 0;; ++attempts) {
    require_going(attempts);
    const Seen at = descend(up_to(key), 0, Mode::kWrite);
    const Found found = find(at, key);
    if (found.present ? !condition.holds_for(records_, found.value)
                      : !condition.holds_if_absent()) {
      return false;
    }
    const Outcome outcome = append(at, DeltaKind::kPut, key, value, found);
    if (outcome == Outcome::kDone) return true;
    if (outcome == Outcome::kFull) consolidate(at, false);
  }
}

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (!kWords) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return retry_when_full([&] { return write_once(condition, key, value); }, [&] { reclaim(); });
}

template <typename Content>
bool Core<Content>::remove_once(const Condition& condition, const Key& key, bool& sparse) {
  const pm::EpochManager::Guard guard(epochs_);
  for (uint32_t attempts = 0;; ++attempts) {
    require_going(attempts);
    const Seen at = descend(up_to(key), 0, Mode::kWrite);
    const Found found = find(at, key);
    if (!found.present || !condition.holds_for(records_, found.value)) return false;
    const Outcome outcome = append(at, DeltaKind::kRemove, key, Value{}, found);
    if (outcome == Outcome::kDone) {
      const uint32_t live = live_of(at) - 1;
      sparse =
          at.id != kRootId && live < node_keys_ / 2 && live % std::max(1U, node_keys_ / 16) == 0;
      return true;
    }
    // Takes from what the heap keeps for those who free as much.
    if (outcome == Outcome::kFull) consolidate(at, true);
  }
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  bool sparse = false;
  std::optional<std::chrono::steady_clock::time_point> end;
  for (;;) {
    try {
      if (!remove_once(condition, key, sparse)) return false;
      break;
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (Visiting::is_in(*this)) {
        throw Error(
            error.code(),
            fmt::format("'{}': the pool is full, and what is removed while this thread visits "
                        "records is free only afterwards; nothing was changed: note the "
                        "keys, and remove them after the visit",
                        name_));
      }
      const auto now = std::chrono::steady_clock::now();
      if (!end) end = now + kWaitMax;
      if (now > *end) throw;
    }
    // The block that a consolidation takes is there as soon as those of others before are free:
    // when they have gone who looked at them.
    release_retired();
    pm::PoolImpl::pause();
  }
  if (sparse) shrink(key);
  return true;
}

// What no reader can look at any more is given back; and, as it is all that is left, what leaves
// hold that has been superseded.
template <typename Content>
void Core<Content>::reclaim() {
  release_retired();
  if (!kWords && has_garbage_.exchange(false, std::memory_order_relaxed)) compact();
  release_retired();
}

template <typename Content>
void Core<Content>::release_retired() {
  retired_.flush();
  records_.reclaim();
}

PERDURE_BWTREE_INSTANTIATE()

}  // namespace perdure::index::bwtree
