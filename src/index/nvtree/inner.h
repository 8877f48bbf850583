// The inner part of an NV-Tree, in DRAM: from a key to its leaf.
//
//   top       separators and groups, sorted; replaced as a whole
//   group     an inner node: first separators of its leaf parents, sorted, fixed; and
//             the leaf parents themselves, in contiguous memory: no pointers between the two
//   parent    up to inner_records separators and leaves, sorted, changed in place under a lock
//
// A parent that is full makes its group be rebuilt sparsely, and a group that has too many parents
// then becomes two. So a rebuild costs one group, not the tree, and at least half of inner_records
// leaves are added to a parent before the next one.
//
// Concurrency. Groups and tops do not change but for the parents in them; a new top is published by
// one pointer, and the old one goes when its readers have gone (epochs). Parents have version
// locks: readers take none, and come back if the version has changed. A parent that was rebuilt is
// retired, and its version changed, before the new top is published: who still finds it looks again
// from the top, and who found it before does not validate. So no two parents of a key are valid at
// a time. Several parents are locked from the greatest keys to the least, and no other lock is
// waited for meanwhile.
//
// The least key of a leaf's range is its separator; the first one of a parent is that of the
// parent.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "index/nvtree/layout.h"
#include "index/stripes.h"
#include "index/tree/back.h"
#include "pm/epoch.h"

namespace perdure::index::nvtree {

// A separator and its leaf. `text` is the separator itself if keys are byte strings (`word` is then
// what it begins with); it belongs to the parent that holds it.
struct Child {
  uint64_t word = 0;
  const std::string* text = nullptr;
  uint64_t leaf = 0;
};

// Children whose separators belong to nobody else yet.
struct ChildList : std::vector<Child> {
  ChildList() = default;
  ChildList(ChildList&&) = default;
  ~ChildList() {
    for (const Child& child : *this) delete child.text;
  }
};

// The shortest byte string above the one and not above the other.
inline const std::string* separator(std::string_view below, std::string_view above) {
  const auto differ = std::mismatch(below.begin(), below.end(), above.begin(), above.end());
  const auto common = static_cast<size_t>(differ.second - above.begin());
  return new std::string(above.substr(0, common + 1));
}

template <typename Content>
class Inner {
  struct Group;

 public:
  using Key = typename Content::Key;

  class alignas(64) Parent {
   public:
    StripeLock lock;
    // By who holds the lock, but for retired() and count(), which anyone may read.
    bool retired() const { return retired_.load(std::memory_order_relaxed); }
    uint32_t count() const { return pm::acquire(count_); }
    uint64_t leaf(uint32_t slot) const { return pm::load_relaxed(leaves()[slot]); }
    Child child(uint32_t slot) const;
    // The header, and where a search looks first.
    void prefetch() const {
      pm::prefetch(this);
      for (uint32_t part = 1; part < 8; ++part)
        pm::prefetch(words() + uint64_t{records_} * part / 8);
    }
    // The slot of a key that is not less than the first separator.
    uint32_t slot_of(const Key& key) const;
    // The last slot whose separator is under the ceiling; 0 if none is.
    uint32_t slot_under(const tree::Ceiling<Content>& ceiling) const;
    void read_separator(uint32_t slot, tree::Floor<Content>& floor) const;

    // Between lock.begin_change() and lock.unlock().
    void append(const Child& child);
    void insert(uint32_t slot, const Child& child);
    void set_leaf(uint32_t slot, uint64_t leaf);
    // The separator that goes with the leaf: its own, or of the first leaf the next one's.
    const std::string* remove(uint32_t slot);
    void retire() { retired_.store(true, std::memory_order_relaxed); }

    static uint64_t bytes(uint32_t records) {
      const uint64_t each = sizeof(uint64_t) * (Content::kOutOfPlace ? 3 : 2);
      return (sizeof(Parent) + each * records + 63) / 64 * 64;
    }
    explicit Parent(uint32_t records) : records_(records) {}

   private:
    uint64_t* words() const { return reinterpret_cast<uint64_t*>(const_cast<Parent*>(this) + 1); }
    uint64_t* leaves() const { return words() + records_; }
    const std::string** texts() const {
      return reinterpret_cast<const std::string**>(leaves() + records_);
    }
    void put(uint32_t slot, const Child& child);

    std::atomic<uint32_t> count_{0};
    const uint32_t records_;
    std::atomic<bool> retired_{false};
  };

  // Where a key's leaf was found; still there if parent->lock validates the stamp.
  struct Place {
    Parent* parent;
    uint32_t stamp;
    uint64_t leaf;
  };

  // Parents whose locks are held.
  struct Held {
    Parent* parent = nullptr;  // of the key
    uint32_t slot = 0;         // of the key
    std::unique_lock<StripeLock> lock;
    std::unique_lock<StripeLock> previous_lock;  // of the parent before, if previous() needed it
    const Group* group = nullptr;
    uint32_t index = 0;
  };

  Inner(pm::EpochManager& epochs, uint32_t records) : epochs_(epochs), records_(records) {}
  ~Inner();
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

  // Sorted, the first with the least key there is.
  void build(ChildList children);

  // All of these need a guard.
  Place find(const Key& key) const;
  // The same step by step, for batches. Asks memory for what comes next; returns the leaf when it
  // has come there, before that 0. `gone`: it is changing just now.
  struct Steps {
    const Group* group = nullptr;
    bool searched = false;  // the group's separators are on their way
    const Parent* parent = nullptr;
    bool gone = false;
  };
  uint64_t step(const Key& key, Steps& at) const;
  // The leaf of the greatest key under the ceiling, and the least key of its range.
  uint64_t find_under(const tree::Ceiling<Content>& ceiling, tree::Floor<Content>& floor) const;
  Held lock(const Key& key) const;
  // The leaf before that of a slot, 0 if there is none. It stays the one, and is not replaced,
  // while `held` is.
  uint64_t previous(Held& held, uint32_t slot) const;
  // Makes room in the key's parent if it is full, and others in it if it is the only one there.
  void rebuild(const Key& key);
  bool has_one_leaf() const;
  std::vector<Child> children() const;

  uint32_t records() const { return records_; }
  struct Size {
    uint64_t groups = 0;
    uint64_t parents = 0;
    uint64_t dram_bytes = 0;
  };
  Size size() const;
  uint64_t rebuilds() const { return rebuilds_.load(std::memory_order_relaxed); }

 private:
  struct Separators {
    std::vector<uint64_t> words;
    std::vector<std::string> texts;
    void add(const Child& child);
    uint32_t index_of(const Key& key) const;
    uint32_t index_under(const tree::Ceiling<Content>& ceiling) const;
    Key key(uint32_t index) const;
  };

  struct Group {
    // Parents `first` to `end` of `all` that the children are spread over evenly.
    Group(const std::vector<Child>& children, uint64_t first, uint64_t end, uint64_t all,
          uint32_t records);
    ~Group();
    Parent& parent(uint32_t index) const {
      return *reinterpret_cast<Parent*>(memory + index * Parent::bytes(records));
    }
    uint32_t parents;
    uint32_t records;
    Separators separators;
    char* memory;
  };

  struct Top {
    Separators separators;
    std::vector<Group*> groups;
    void add(Group* group);
  };

  const Top& top() const { return *pm::acquire(top_); }
  void make_groups(const std::vector<Child>& children, Top& top) const;
  static void collect(const Group& group, std::vector<Child>& out);

  pm::EpochManager& epochs_;
  const uint32_t records_;
  std::atomic<Top*> top_{nullptr};
  mutable std::mutex mutex_;  // of who publishes another top
  std::atomic<uint64_t> rebuilds_{0};
};

// The last of `count` sorted separators that is not above the key, 0 if all are.
template <typename NotAbove>
uint32_t last_not_above(uint32_t count, NotAbove not_above) {
  uint32_t base = 0;
  for (uint32_t left = count; left > 1;) {
    const uint32_t half = left / 2;
    base = not_above(base + half) ? base + half : base;
    left -= half;
  }
  return base;
}

template <typename Content>
uint32_t Inner<Content>::Separators::index_of(const Key& key) const {
  const uint64_t word = Content::word_of(key);
  return last_not_above(static_cast<uint32_t>(words.size()), [&](uint32_t i) {
    if constexpr (Content::kOutOfPlace) {
      if (words[i] == word) return std::string_view(texts[i]) <= key.bytes;
    }
    return words[i] <= word;
  });
}

template <typename Content>
uint32_t Inner<Content>::Parent::slot_of(const Key& key) const {
  const uint64_t word = Content::word_of(key);
  const uint64_t* const at = words();
  return last_not_above(count(), [&](uint32_t i) {
    const uint64_t own = pm::load_relaxed(at[i]);
    if constexpr (Content::kOutOfPlace) {
      if (own == word) return std::string_view(*pm::load_acquire(texts()[i])) <= key.bytes;
    }
    return own <= word;
  });
}

template <typename Content>
typename Inner<Content>::Place Inner<Content>::find(const Key& key) const {
  for (;;) {
    const Top& now = top();
    const Group& group = *now.groups[now.separators.index_of(key)];
    Parent& parent = group.parent(group.separators.index_of(key));
    const uint32_t stamp = parent.lock.begin_read();
    const uint64_t leaf = parent.leaf(parent.slot_of(key));
    if (!parent.retired() && parent.lock.validate(stamp)) [[likely]]
      return {&parent, stamp, leaf};
  }
}

template <typename Content>
uint64_t Inner<Content>::step(const Key& key, Steps& at) const {
  if (at.group == nullptr) {
    const Top& now = top();
    at.group = now.groups[now.separators.index_of(key)];
    pm::prefetch(at.group);
  } else if (!at.searched) {
    at.searched = true;
    const std::vector<uint64_t>& words = at.group->separators.words;
    for (size_t part = 1; part < 8; ++part) pm::prefetch(words.data() + words.size() * part / 8);
  } else if (at.parent == nullptr) {
    at.parent = &at.group->parent(at.group->separators.index_of(key));
    at.parent->prefetch();
  } else {
    const uint32_t stamp = at.parent->lock.begin_read();
    const uint64_t leaf = at.parent->leaf(at.parent->slot_of(key));
    if (!at.parent->retired() && at.parent->lock.validate(stamp)) return leaf;
    at.gone = true;
  }
  return 0;
}

template <typename Content>
uint32_t Inner<Content>::Separators::index_under(const tree::Ceiling<Content>& ceiling) const {
  return last_not_above(static_cast<uint32_t>(words.size()), [&](uint32_t i) {
    return ceiling.admits(
        [&](const Key& limit) { return tree::compare_keys(this->key(i), limit); });
  });
}

template <typename Content>
uint32_t Inner<Content>::Parent::slot_under(const tree::Ceiling<Content>& ceiling) const {
  return last_not_above(count(), [&](uint32_t i) {
    return ceiling.admits([&](const Key& key) -> std::strong_ordering {
      const uint64_t word = Content::word_of(key);
      const uint64_t own = pm::load_relaxed(words()[i]);
      if constexpr (Content::kOutOfPlace) {
        if (own == word) return std::string_view(*pm::load_acquire(texts()[i])) <=> key.bytes;
      }
      return own <=> word;
    });
  });
}

template <typename Content>
void Inner<Content>::Parent::read_separator(uint32_t slot, tree::Floor<Content>& floor) const {
  if constexpr (Content::kOutOfPlace) {
    floor.set(Key(*pm::load_acquire(texts()[slot])));
  } else {
    floor.set(pm::load_relaxed(words()[slot]));
  }
}

template <typename Content>
uint64_t Inner<Content>::find_under(const tree::Ceiling<Content>& ceiling,
                                    tree::Floor<Content>& floor) const {
  for (;;) {
    const Top& now = top();
    const uint32_t number = now.separators.index_under(ceiling);
    const Group& group = *now.groups[number];
    const uint32_t index = group.separators.index_under(ceiling);
    const Parent& parent = group.parent(index);
    const uint32_t stamp = parent.lock.begin_read();
    const uint32_t slot = parent.slot_under(ceiling);
    const uint64_t leaf = parent.leaf(slot);
    if (number == 0 && index == 0 && slot == 0) {
      floor.set_lowest();
    } else {
      parent.read_separator(slot, floor);
    }
    if (!parent.retired() && parent.lock.validate(stamp)) [[likely]]
      return leaf;
  }
}

extern template class Inner<tree::Words>;
extern template class Inner<tree::Bytes>;

}  // namespace perdure::index::nvtree
