// Scans in descending order, for trees whose leaves are linked to the next one at most.
//
//   scan_back<Content>({epochs_, records_, pool_, name_}, from, limit,
//                      [&](const Ceiling<Content>& ceiling, Floor<Content>& floor, std::vector<Slot>& slots) {
//                        ...the leaf of the greatest key under the ceiling, and where its range begins...
//                      }, visit);
//
// Leaf by leaf: of each the tree says what it held at one instant, and the least key of its range.
// The next leaf is the one with the greatest key below that, found by a descent from the top: so
// nothing in PM leads back, and nothing more is stored there. Of the tree's shape nothing is relied
// on but that key: what splits and merges do in between neither hides nor repeats a record. Cost: a
// descent for each leaf; for each record what a scan upwards costs.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "index/records.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::tree {

// A copy of a key.
template <typename Content>
class KeptKey {
 public:
  using Key = typename Content::Key;

  KeptKey() = default;
  KeptKey(const KeptKey&) = delete;
  KeptKey& operator=(const KeptKey&) = delete;

  void keep(const Key& key) {
    if constexpr (Content::kOutOfPlace) {
      text_.assign(key.bytes);
      key_ = Key(text_);
    } else {
      key_ = key;
    }
  }
  const Key& get() const { return key_; }

 private:
  std::conditional_t<Content::kOutOfPlace, std::string, uint64_t> text_{};
  Key key_ = Content::lowest_key();
};

// Where the range of a leaf begins.
template <typename Content>
class Floor {
 public:
  using Key = typename Content::Key;

  // Where all keys begin.
  void set_lowest() { lowest_ = true; }
  void set(const Key& key) {
    lowest_ = false;
    key_.keep(key);
  }
  bool lowest() const { return lowest_; }
  const Key& key() const { return key_.get(); }

 private:
  bool lowest_ = true;
  KeptKey<Content> key_;
};

// What the keys that are still to come lie under.
template <typename Content>
class Ceiling {
 public:
  using Key = typename Content::Key;

  // From this key on down; null: from the last one.
  explicit Ceiling(const Key* from) : kind_(from == nullptr ? Kind::kNone : Kind::kAt) {
    if (from != nullptr) key_.keep(*from);
  }
  // Whether a key lies under it: `compare(key)` says how it compares with another one, and is not
  // asked without need.
  template <typename Compare>
  bool admits(Compare compare) const {
    if (kind_ == Kind::kNone) return true;
    const std::strong_ordering order = compare(key_.get());
    return order < 0 || (order == 0 && kind_ == Kind::kAt);
  }
  void lower_to_below(const Key& key) {
    kind_ = Kind::kBelow;
    key_.keep(key);
  }

 private:
  enum class Kind : uint8_t { kNone, kAt, kBelow };
  Kind kind_;
  KeptKey<Content> key_;
};

inline std::strong_ordering compare_keys(uint64_t a, uint64_t b) { return a <=> b; }
inline std::strong_ordering compare_keys(const Bytes::Key& a, const Bytes::Key& b) {
  return a.prefix != b.prefix ? a.prefix <=> b.prefix : a.bytes <=> b.bytes;
}

// What the tree is, for as long as the scan lasts.
struct Scanned {
  pm::EpochManager& epochs;
  const Records& records;
  const pm::PoolImpl& pool;
  const std::string& name;
};

// Leaves the slots between floor and ceiling, in ascending order. The caller has a guard, and knows
// that all of them were in one leaf.
template <typename Content>
void arrange(const Records& records, const Floor<Content>& floor, const Ceiling<Content>& ceiling,
             std::vector<Slot>& slots) {
  using Key = typename Content::Key;
  std::erase_if(slots, [&](const Slot& slot) {
    if (!floor.lowest() && compare<Content>(records, slot, floor.key()) < 0) return true;
    return !ceiling.admits([&](const Key& key) { return compare<Content>(records, slot, key); });
  });
  const auto before = [&](const Slot& a, const Slot& b) {
    if constexpr (Content::kOutOfPlace) {
      if (a.key == b.key) return records.key(a.value) < records.key(b.value);
    }
    return a.key < b.key;
  };
  if (!std::is_sorted(slots.begin(), slots.end(), before)) {
    std::sort(slots.begin(), slots.end(), before);
  }
}

// `read(ceiling, floor, slots)`, under a guard: finds the leaf whose range has the greatest key
// under the ceiling, puts all its records into the empty `slots`, in any order, as they were at one
// instant, and where the range began then. A range that has since grown below the floor is the next
// leaf's to tell.
template <typename Content, typename Read, typename Visit>
void scan_back(const Scanned& tree, const typename Content::Key* from, uint64_t limit, Read read,
               Visit visit) {
  using Key = typename Content::Key;
  Ceiling<Content> ceiling(from);
  Floor<Content> floor;
  std::vector<Slot> slots;
  while (limit > 0) {
    const pm::EpochManager::Guard guard(tree.epochs);
    slots.clear();
    read(ceiling, floor, slots);
    // So no way through the tree is endless.
    if (!floor.lowest() &&
        !ceiling.admits([&](const Key& key) { return compare_keys(floor.key(), key); })) {
      tree.pool.throw_corrupt(
          fmt::format("'{}': its leaves are not in the order of their keys", tree.name));
    }
    arrange(tree.records, floor, ceiling, slots);
    for (const Slot& slot : slots | std::views::reverse) {
      bool go_on = true;
      if constexpr (Content::kOutOfPlace) {
        const std::string_view key = tree.records.key(slot.value);
        // Another record is not the one that belongs here, intact as it may be.
        if (prefix_of(key) != slot.key) [[unlikely]] {
          tree.pool.throw_corrupt(
              fmt::format("'{}': a record has another key than its place says", tree.name));
        }
        go_on = visit(key, tree.records.value(slot.value));
      } else {
        go_on = visit(slot.key, slot.value);
      }
      if (!go_on || --limit == 0) return;
    }
    if (floor.lowest()) return;
    ceiling.lower_to_below(floor.key());
  }
}

}  // namespace perdure::index::tree
