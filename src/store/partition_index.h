// The index of a partition, as the store was opened: by hash, in the order of keys, or in PM.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/hash_index.h"
#include "store/ordered_index.h"
#include "store/pm_index.h"

namespace perdure::store {

// A key that will be looked for soon.
struct Sought {
  uint64_t hash = 0;
  std::string_view key = {};
  uint64_t way = 0;      // the index's
  uint64_t changes = 0;  // of an ordered one, when it was asked
};

// Is told of each entry of an index in DRAM that is about to lead elsewhere, or to go.
class IndexWatcher {
 public:
  virtual void will_change(uint64_t entry) noexcept = 0;

 protected:
  ~IndexWatcher() = default;
};

class PartitionIndex {
 public:
  static constexpr uint64_t kNone = HashIndex::kNone;

  // By hash, unless one of them is given.
  PartitionIndex(std::unique_ptr<OrderedIndex> ordered, std::unique_ptr<PmPartitionIndex> pm)
      : ordered_(std::move(ordered)), pm_(std::move(pm)) {}

  // Calls `is_it(Location)` for entries that may be the key's until it returns true. Returns that
  // entry, or kNone. Entries are valid until the next reserve(), insert() or erase().
  // `ahead`: what prefetch() has come to for this key, if it is known; then an ordered index need
  // not be gone through again.
  template <typename IsIt>
  uint64_t find(uint64_t hash, std::string_view key, IsIt is_it,
                const Sought* ahead = nullptr) const {
    if (ordered_ != nullptr) {
      return ahead != nullptr ? ordered_->find(key, ahead->way, ahead->changes, is_it)
                              : ordered_->find(key, is_it);
    }
    return pm_ != nullptr ? pm_->find(hash, is_it) : hash_.find(hash, is_it);
  }
  // The entry of the key that leads to this place, or kNone. No record is read: only an index in PM
  // may throw.
  uint64_t find_place(uint64_t hash, std::string_view key, Location place,
                      const Sought* ahead = nullptr) const {
    if (ordered_ != nullptr) {
      return ahead != nullptr ? ordered_->find_place(key, place, ahead->way, ahead->changes)
                              : ordered_->find_place(key, place);
    }
    return find(hash, key, [&](Location found) { return found == place; });
  }
  Location at(uint64_t entry) const {
    if (ordered_ != nullptr) return ordered_->at(entry);
    return pm_ != nullptr ? pm_->at(entry) : hash_.at(entry);
  }
  void move(uint64_t entry, Location to) {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->will_change(entry);
    if (ordered_ != nullptr) return ordered_->move(entry, to);
    pm_ != nullptr ? pm_->move(entry, to) : hash_.move(entry, to);
  }
  // An index in PM of which something is known to be damaged: an entry, or that entries have been
  // lost. Nothing must rely on its word that a record does not count, so nothing is compacted;
  // where entries are lost, nobody is told that a key is absent. Nothing else is.
  bool is_damaged() const { return pm_ != nullptr && pm_->is_damaged(); }
  bool has_lost() const { return pm_ != nullptr && pm_->has_lost(); }
  // Before an insert on behalf of a caller: throws kPoolFull if the index is in PM, and has no room
  // there.
  void require_room() {
    if (pm_ != nullptr) pm_->require_room();
  }
  // Makes room for `count` inserts, one of which is the key's. May throw, having changed nothing.
  void reserve(std::string_view key, uint64_t count) {
    if (ordered_ != nullptr) return ordered_->reserve(key, count);
    pm_ != nullptr ? pm_->reserve(count) : hash_.reserve(count);
  }
  void insert(uint64_t hash, std::string_view key, Location location) {
    if (ordered_ != nullptr) return ordered_->insert(key, location);
    pm_ != nullptr ? pm_->insert(hash, location) : hash_.insert(hash, location);
  }
  void erase(uint64_t entry) {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->will_change(entry);
    if (ordered_ != nullptr) return ordered_->erase(entry);
    pm_ != nullptr ? pm_->erase(entry) : hash_.erase(entry);
  }
  // Once before an erase() that no reserve() comes before. May throw, having changed nothing.
  void tidy() {
    if (ordered_ != nullptr) return ordered_->tidy();
    reserve_changes(1);
  }
  // Before so many moves and erasures that no reserve() comes before. May throw, having changed
  // nothing.
  void reserve_changes(uint64_t count) {
    if (pm_ != nullptr) pm_->reserve(count);
  }
  uint64_t size() const {
    if (ordered_ != nullptr) return ordered_->size();
    return pm_ != nullptr ? pm_->size() : hash_.size();
  }
  uint64_t dram_bytes() const {
    if (ordered_ != nullptr) return ordered_->dram_bytes();
    return pm_ != nullptr ? pm_->dram_bytes() : hash_.dram_bytes();
  }

  // With a hash index; they do nothing else.
  void expect(uint64_t records) {
    if (is_hash()) hash_.reserve(records);
  }
  void prefetch(uint64_t hash) const {
    if (is_hash()) hash_.prefetch(hash);
  }
  // With an index in DRAM: asks the cache for what find() will look at, and in the last steps for
  // the record, as OrderedIndex::prefetch() does; the steps, in their order, are to be taken for
  // many keys at once. Throws nothing.
  static constexpr int kAheadSteps = OrderedIndex::kAheadSteps;
  template <typename PrefetchAt>
  void prefetch(int step, Sought& sought, PrefetchAt prefetch_at) const {
    if (ordered_ != nullptr) {
      sought.changes = ordered_->changes();
      return ordered_->prefetch(step, sought.key, sought.way);
    }
    if (pm_ != nullptr || step > 1) return;
    if (step == 0) return hash_.prefetch(sought.hash);
    hash_.find(sought.hash, [&](Location location) {
      prefetch_at(location);
      return true;
    });
  }
  // With an index in DRAM: what a snapshot has of it. Returns false, having changed nothing, if it
  // is none of this kind.
  bool assign(std::span<const uint64_t> words) {
    if (ordered_ != nullptr) return ordered_->load(words);
    hash_.assign(words);
    return true;
  }
  // The same of entries that were changed since, which stand behind the others, and without those
  // that lead to places that are not there any more.
  bool assign(std::span<const uint64_t> words, const std::function<bool(Location)>& is_there) {
    if (ordered_ != nullptr) return ordered_->load(words, is_there);
    std::vector<uint64_t> kept;
    kept.reserve(words.size());
    for (const uint64_t word : words) {
      if (is_there(Location::of_word(word))) kept.push_back(word);
    }
    const auto middle = std::ranges::is_sorted_until(kept, {}, HashIndex::tag_of_word);
    if (middle != kept.end()) {
      std::ranges::sort(middle, kept.end(), {}, HashIndex::tag_of_word);
      std::vector<uint64_t> merged(kept.size());
      std::merge(kept.begin(), middle, middle, kept.end(), merged.begin(),
                 [](uint64_t a, uint64_t b) {
                   return HashIndex::tag_of_word(a) < HashIndex::tag_of_word(b);
                 });
      kept.swap(merged);
    }
    hash_.assign(kept);
    return true;
  }
  // With an index in DRAM: has nothing from here on.
  void clear() {
    if (ordered_ != nullptr) return ordered_->clear();
    hash_.assign({});
  }
  // With an index in DRAM: null ends it.
  void watch(IndexWatcher* watcher) { watcher_ = watcher; }
  // With an ordered index: OrderedIndex::fill().
  void fill(std::span<const Location> records, const OrderedIndex::KeptOf& kept_of) {
    ordered_->fill(records, kept_of);
  }
  // The same besides what is there: OrderedIndex::add().
  void add(std::span<const Location> records, const OrderedIndex::KeptOf& kept_of, bool replaces) {
    ordered_->add(records, kept_of, replaces);
  }
  const HashIndex& hash() const { return hash_; }
  bool is_hash() const { return ordered_ == nullptr && pm_ == nullptr; }
  // Null with another index.
  const OrderedIndex* ordered() const { return ordered_.get(); }
  OrderedIndex* ordered() { return ordered_.get(); }
  PmPartitionIndex* pm() { return pm_.get(); }
  const PmPartitionIndex* pm() const { return pm_.get(); }

 private:
  IndexWatcher* watcher_ = nullptr;
  HashIndex hash_;
  std::unique_ptr<OrderedIndex> ordered_;
  std::unique_ptr<PmPartitionIndex> pm_;
};

}  // namespace perdure::store
