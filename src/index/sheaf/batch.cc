// Batches: misses that overlap, and one fence for the log records of a group.
#include <algorithm>
#include <array>
#include <functional>

#include "index/sheaf/core.h"

namespace perdure::index::sheaf {

namespace {

constexpr size_t kGroup = Inner<tree::Words>::kTogether;

}  // namespace

// The leaves of keys, and what a lookup needs from memory on its way. Needs a guard.
template <typename Content>
void Core<Content>::find_all(std::span<const Key> keys, std::span<Ref*> refs) const
  requires(!Content::kOutOfPlace)
{
  inner_.find_all(keys, refs);
  for (size_t i = 0; i < keys.size(); ++i) {
    pm::prefetch(refs[i]);
    pm::prefetch(refs[i]->lines);
    pm::prefetch(refs[i]->fingerprints);
  }
  for (size_t i = 0; i < keys.size(); ++i) prefetch_record(*refs[i], keys[i]);
}

// The same, and what a change of it needs.
template <typename Content>
void Core<Content>::find_all_to_change(std::span<const Key> keys, std::span<Ref*> refs) const
  requires(!Content::kOutOfPlace)
{
  inner_.find_all(keys, refs);
  for (size_t i = 0; i < keys.size(); ++i) {
    pm::prefetch_to_change(refs[i]);
    pm::prefetch(refs[i]->filter.line_of(keys[i]));
    pm::prefetch_to_change(refs[i]->fingerprints);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const Ref& ref = *refs[i];
    const uint32_t next = std::min<uint32_t>(pm::load_relaxed(ref.buffered), buffer_records_ - 1);
    pm::prefetch_to_change(ref.buffer() + next);
    if (ref.may_be_in_leaf(keys[i], keys[i])) prefetch_record(ref, keys[i]);
  }
}

// Of no consequence if the ref changes meanwhile.
template <typename Content>
void Core<Content>::prefetch_record(const Ref& ref, uint64_t key) const
  requires(!Content::kOutOfPlace)
{
  const uint32_t part = part_of(pm::load_relaxed(ref.first), pm::load_relaxed(ref.scale), key);
  const Slot* records = pool_.at<Leaf>(pm::load_relaxed(ref.offset))->records() +
                        uint64_t{pm::load_relaxed(ref.lines[part])} * kLineRecords;
  pm::prefetch(records);
  pm::prefetch(records + kLineRecords);
}

template <typename Content>
uint64_t Core<Content>::multi_lookup(std::span<const Key> keys, std::span<Value> values,
                                     std::span<bool> found) const
  requires(!Content::kOutOfPlace)
{
  uint64_t count = 0;
  std::array<Ref*, kGroup> refs;
  for (size_t begin = 0; begin < keys.size(); begin += kGroup) {
    const auto group = keys.subspan(begin, std::min(kGroup, keys.size() - begin));
    const pm::EpochManager::Guard guard(epochs_);
    find_all(group, refs);
    for (size_t i = 0; i < group.size(); ++i) {
      Found what = Found::kNothing;
      Value value = 0;
      while (!read(*refs[i], group[i], what, value)) {
        pm::PoolImpl::pause();
        refs[i] = inner_.find(group[i]);
      }
      found[begin + i] = what == Found::kRecord;
      if (what != Found::kRecord) continue;
      values[begin + i] = value;
      ++count;
    }
  }
  return count;
}

// Carries out changes of different leaves together, as many as can be; `todo` loses their bits. One
// thread takes the locks of several leaves here, so in the order of their addresses: others that
// hold one wait for none, or do not wait.
template <typename Content>
void Core<Content>::change_together(std::span<const Change> changes, uint64_t& todo,
                                    std::span<bool> done)
  requires(!Content::kOutOfPlace)
{
  struct Place {
    Ref* ref;
    size_t change;
    int buffered;
  };
  std::array<Key, kGroup> keys;
  std::array<Ref*, kGroup> refs;
  std::array<Place, kGroup> places;
  for (size_t i = 0; i < changes.size(); ++i) keys[i] = changes[i].key;
  const pm::EpochManager::Guard guard(epochs_);
  find_all_to_change(std::span(keys).first(changes.size()), refs);
  size_t count = 0;
  for (size_t i = 0; i < changes.size(); ++i) places[i] = {refs[i], i, -1};
  std::sort(places.begin(), places.begin() + static_cast<int64_t>(changes.size()),
            [](const Place& a, const Place& b) {
              return a.ref != b.ref ? std::less<>{}(a.ref, b.ref) : a.change < b.change;
            });
  std::array<Lock, kGroup> locks;
  std::array<LogRecord, kGroup> records;
  const Ref* last = nullptr;
  for (size_t i = 0; i < changes.size(); ++i) {
    Place place = places[i];
    if (place.ref == last) continue;  // one change of each leaf: later ones must see the first
    last = place.ref;
    Ref& ref = *place.ref;
    const Change& change = changes[place.change];
    Lock lock(ref.lock);
    require_writable();
    if (ref.obsolete != 0) continue;
    if (change.condition.always_holds()) {
      place.buffered = find_buffered(ref, ref.buffered, change.key);
    } else {
      Value old = 0;
      if (find(ref, change.key, true, place.buffered, old) == Found::kRecord) {
        todo &= ~(uint64_t{1} << place.change);  // an insert of what is there
        continue;
      }
    }
    if (room_for(ref, change, place.buffered) != Room::kYes) continue;
    if (ref.buffered == 0) enlist(ref);
    records[count] = {change.key, change.value, ref.number + 1, change.removal};
    places[count] = place;
    locks[count] = std::move(lock);
    ++count;
  }
  if (count == 0 || !log_.append(std::span(records).first(count))) return;
  for (size_t i = 0; i < count; ++i) {
    locks[i].mutex()->begin_change();
    put(*places[i].ref, places[i].buffered, changes[places[i].change], records[i]);
    locks[i].unlock();
    todo &= ~(uint64_t{1} << places[i].change);
    if (!done.empty()) done[places[i].change] = true;
  }
}

template <typename Content>
uint64_t Core<Content>::multi_write(Verb verb, std::span<const std::pair<Key, Value>> records,
                                    std::span<bool> inserted)
  requires(!Content::kOutOfPlace)
{
  pool_.require_writable();
  uint64_t count = 0;
  std::array<Change, kGroup> changes;
  for (size_t begin = 0; begin < records.size(); begin += kGroup) {
    const size_t size = std::min(kGroup, records.size() - begin);
    if (log_.is_short()) [[unlikely]]
      keep_log_room();
    for (size_t i = 0; i < size; ++i) {
      changes[i] = {records[begin + i].first, records[begin + i].second, verb, false};
    }
    std::array<bool, kGroup> done{};
    uint64_t todo = (uint64_t{1} << size) - 1;
    change_together(std::span(changes).first(size), todo, done);
    if (!inserted.empty())
      std::copy_n(done.begin(), size, inserted.begin() + static_cast<int64_t>(begin));
    // What must merge first, or see an earlier one of the group.
    for (size_t i = 0; i < size; ++i) {
      if ((todo >> i & 1) == 0) continue;
      done[i] = carry_out(changes[i]);
      if (!inserted.empty()) inserted[begin + i] = done[i];
    }
    count += static_cast<uint64_t>(
        std::count(done.begin(), done.begin() + static_cast<int64_t>(size), true));
  }
  return count;
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
