// 2Q: decides what is worth a place in DRAM, for readers that can also do without.
//
//   auto found = queue.find(key);                  // in DRAM?
//   if (!found && queue.wants(key, bytes)) {       // no: worth it?
//     queue.put(key, value, bytes, evicted);       // copied to DRAM
//   }                                              // else read it where it is
//
// AM holds what is in DRAM, under LRU. A1 is a bounded FIFO of references to what is not: keys
// alone. On a miss a block goes to AM if AM has room or A1 knows it; else A1 takes note of it, and
// it is read in place. What AM evicts leaves a reference in A1. So a block must be asked for twice
// within a short time to push out another one, and scans push out nothing.
// Sources: Johnson and Shasha, VLDB 1994; Lersch et al., ADBIS 2017, for blocks that can be read in
// place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace perdure::lsm {

struct TwoQueueOptions {
  uint64_t capacity_bytes = 0;     // of AM
  uint64_t block_bytes = 4096;     // about what one block has; for the bound of A1
  uint32_t reference_percent = 5;  // references of A1, in percent of the blocks that AM can hold
  uint32_t shards = 0;             // 0: up to 16, of at least 1 MiB each
};

struct TwoQueueCounters {
  uint64_t hits = 0;      // found in AM
  uint64_t admitted = 0;  // misses that went to DRAM: AM had room,
  uint64_t promoted = 0;  // or A1 knew them
  uint64_t in_place = 0;  // misses that are read where they are
  uint64_t evictions = 0;
  uint64_t bytes = 0;  // in AM now
  uint64_t blocks = 0;
  uint64_t references = 0;  // in A1 now
};

// Of keys that are bytes: they are looked up without a string of their own.
struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>{}(bytes); }
};

// One queue; not thread-safe.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class TwoQueueShard {
 public:
  TwoQueueShard(uint64_t capacity_bytes, uint64_t references_max)
      : capacity_bytes_(capacity_bytes), references_max_(std::max<uint64_t>(1, references_max)) {}

  // The value in AM, or null; counts as its use.
  template <typename Text = Key>
  Value* find(const Text& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    am_.splice(am_.begin(), am_, found->second);
    ++counters_.hits;
    return &found->second->value;
  }

  // Whether the key is in AM; no use.
  template <typename Text = Key>
  bool contains(const Text& key) const {
    return entries_.contains(key);
  }

  // Of a key that find() has not found: whether it is to be put. If not, A1 has taken note of it.
  // `bytes`: about what it will have. It counts as no smaller than those in AM are on average: if
  // blocks have more than was thought, AM would else have room for each miss, which pushed out
  // another block.
  template <typename Text = Key>
  bool wants(const Text& key, uint64_t bytes) {
    const auto known = references_.find(key);
    if (known != references_.end()) {
      a1_.erase(known->second);
      references_.erase(known);
      ++counters_.promoted;
      return true;
    }
    if (bytes_ + std::max(bytes, mean_bytes()) <= capacity_bytes_) {
      ++counters_.admitted;
      return true;
    }
    note(key);
    ++counters_.in_place;
    return false;
  }

  // Takes a value into AM, in the place of one of the same key. `evicted` gets the values that go
  // for it, that one included; a value larger than AM goes at once.
  void put(const Key& key, Value value, uint64_t bytes, std::vector<Value>& evicted) {
    erase(key, evicted);
    am_.push_front({key, std::move(value), bytes});
    entries_[key] = am_.begin();
    bytes_ += bytes;
    while (bytes_ > capacity_bytes_) {
      Entry& last = am_.back();
      note(last.key);
      evicted.push_back(std::move(last.value));
      bytes_ -= last.bytes;
      entries_.erase(last.key);
      am_.pop_back();
      ++counters_.evictions;
    }
  }

  // Forgets a key.
  void erase(const Key& key, std::vector<Value>& evicted) {
    const auto known = references_.find(key);
    if (known != references_.end()) {
      a1_.erase(known->second);
      references_.erase(known);
    }
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    evicted.push_back(std::move(found->second->value));
    bytes_ -= found->second->bytes;
    am_.erase(found->second);
    entries_.erase(found);
  }

  // Whether AM has this value under the key. Is no use of it.
  bool holds(const Key& key, const Value& value) const {
    const auto found = entries_.find(key);
    return found != entries_.end() && found->second->value == value;
  }

  // Calls `visit(value)` for all in AM.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Entry& entry : am_) visit(entry.value);
  }

  // Takes all out of AM for which `idle` holds.
  template <typename Idle>
  void prune(Idle idle, std::vector<Value>& evicted) {
    for (auto at = am_.begin(); at != am_.end();) {
      if (!idle(at->value)) {
        ++at;
        continue;
      }
      evicted.push_back(std::move(at->value));
      bytes_ -= at->bytes;
      entries_.erase(at->key);
      at = am_.erase(at);
    }
  }

  TwoQueueCounters counters() const {
    TwoQueueCounters all = counters_;
    all.bytes = bytes_;
    all.blocks = entries_.size();
    all.references = references_.size();
    return all;
  }

 private:
  struct Entry {
    Key key;
    Value value;
    uint64_t bytes;
  };

  uint64_t mean_bytes() const { return entries_.empty() ? 0 : bytes_ / entries_.size(); }

  template <typename Text>
  void note(const Text& key) {
    if (references_.contains(key)) return;
    if (references_.size() == references_max_) {
      references_.erase(a1_.back());
      a1_.pop_back();
    }
    a1_.emplace_front(key);
    try {
      references_[a1_.front()] = a1_.begin();
    } catch (...) {
      a1_.pop_front();
      throw;
    }
  }

  uint64_t capacity_bytes_;
  uint64_t references_max_;
  uint64_t bytes_ = 0;
  std::list<Entry> am_;  // newest use first
  std::unordered_map<Key, typename std::list<Entry>::iterator, Hash, std::equal_to<>> entries_;
  std::list<Key> a1_;  // newest first
  std::unordered_map<Key, typename std::list<Key>::iterator, Hash, std::equal_to<>> references_;
  TwoQueueCounters counters_;
};

// Several, chosen by the key's hash, each under a mutex of its own. Thread-safe.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class TwoQueue {
 public:
  using Shard = TwoQueueShard<Key, Value, Hash>;

  explicit TwoQueue(const TwoQueueOptions& options) {
    uint64_t shards = options.shards;
    if (shards == 0) {
      shards = std::clamp<uint64_t>(options.capacity_bytes >> 20, 1, 16);
    }
    const uint64_t blocks = options.capacity_bytes / std::max<uint64_t>(1, options.block_bytes);
    const uint64_t references = blocks * options.reference_percent / 100;
    for (uint64_t i = 0; i < shards; ++i) {
      // What does not divide goes to the first ones, so that the sum is what was asked for.
      shards_.push_back(std::make_unique<Locked>(share(options.capacity_bytes, shards, i),
                                                 share(references, shards, i)));
    }
  }

  // Calls `work(shard)` with the key's shard, locked.
  template <typename Text, typename Work>
  auto with(const Text& key, Work work) {
    // The low bits choose the bucket.
    Locked& locked = *shards_[(Hash{}(key) * 0x9fb21c651e98df25 >> 32) % shards_.size()];
    const std::lock_guard lock(locked.mutex);
    return work(locked.shard);
  }
  template <typename Work>
  void with_each(Work work) {
    for (const std::unique_ptr<Locked>& locked : shards_) {
      const std::lock_guard lock(locked->mutex);
      work(locked->shard);
    }
  }

  TwoQueueCounters counters() const {
    TwoQueueCounters sum;
    for (const std::unique_ptr<Locked>& locked : shards_) {
      const std::lock_guard lock(locked->mutex);
      const TwoQueueCounters one = locked->shard.counters();
      sum.hits += one.hits;
      sum.admitted += one.admitted;
      sum.promoted += one.promoted;
      sum.in_place += one.in_place;
      sum.evictions += one.evictions;
      sum.bytes += one.bytes;
      sum.blocks += one.blocks;
      sum.references += one.references;
    }
    return sum;
  }

 private:
  struct alignas(64) Locked {
    Locked(uint64_t capacity_bytes, uint64_t references) : shard(capacity_bytes, references) {}
    mutable std::mutex mutex;
    Shard shard;
  };

  static uint64_t share(uint64_t sum, uint64_t parts, uint64_t i) {
    return sum / parts + (i < sum % parts ? 1 : 0);
  }

  std::vector<std::unique_ptr<Locked>> shards_;
};

}  // namespace perdure::lsm
