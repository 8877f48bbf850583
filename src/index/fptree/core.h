// FPTree: a B+tree with leaves in persistent memory and inner nodes in DRAM.
//
// The idea. Only leaves are worth persisting: inner nodes are rebuilt from them. A leaf has a
// bitmap, a one-byte fingerprint (hash of the key) for each record, and unsorted records. A lookup
// compares all fingerprints at once and reads one record on average. An insert writes a record to a
// free slot, its fingerprint, and sets its bit; an update writes a free slot and flips both bits by
// the same store; a removal clears a bit. No record moves, and one 8-byte store decides.
//
// The persist points, and what a crash leaves
//   insert         record and fingerprint, fence; bitmap, fence. Without the bit the slot is free.
//   update         the same, with a bitmap in which one bit goes and another comes.
//                  In a full leaf: the value in place (an 8-byte store), fence.
//   remove         bitmap, fence.
//   byte strings   the record's block and the heap's intent go with the first fence ("allocated exactly
//                  if the bit is set"), the heap's bitmap with the second; then the intent's end, fence.
//   split          half of the records copied to a free leaf, and a redo record of both bitmaps, fence;
//                  then both bitmaps change at once (Heap::Txn::apply).
//                  Of ascending keys: a free leaf is put behind the last one; nothing is written.
//   merge          the records copied to free slots of a neighbour; the same redo record.
//   leaf groups    space.h. A leaf is in use exactly if its bitmap is not 0, so taking a leaf and
//                  giving it back writes nothing.
//   spill          written and fenced, then root.spill by one store with the block's intent. Cleared in
//                  the same way, durably, before the first change after opening.
// Each key has its bit set in exactly one leaf at any time, so what recovery finds is the tree.
//
// Recovery: after a clean close the inner nodes are built from the spill, without a look at any
// leaf. After a crash all leaves are read, in parallel, for their smallest keys, which are sorted
// and become the separators. Dead space is never left: leaves without records are free.
//
// Concurrency. Each leaf has a version lock in DRAM (index/stripes.h). A writer locks the leaf, and
// makes readers wait from the store to the bitmap until the fence after it: nobody sees a record
// that is not durable. Lookups and scans take no lock. inner.h says how they descend.
//
// Source: Oukid et al., "FPTree: A Hybrid SCM-DRAM Persistent and Concurrent B-Tree for Storage
// Class Memory", SIGMOD 2016; docs/structures/fptree.md says where this differs.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "index/fptree/fingerprints.h"
#include "index/fptree/inner.h"
#include "index/fptree/layout.h"
#include "index/fptree/space.h"
#include "index/instantiate.h"
#include "index/tree/sort.h"

namespace perdure::index::fptree {

// 0: the default.
struct Options {
  uint32_t leaf_records = 0;
  uint32_t leaf_group = 0;
  uint32_t inner_records = 0;
  uint32_t recovery_threads = 0;
};

template <typename Content>
class Core {
 public:
  using Key = typename Content::Key;
  using Value = typename Content::Value;
  using Condition = index::Condition<Value>;

  static std::unique_ptr<Core> create(pm::PoolImpl& pool, const std::string& name, Kind key,
                                      Kind value, const Options& options);
  static std::unique_ptr<Core> open(pm::PoolImpl& pool, const std::string& name, Kind key,
                                    Kind value, const Options& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  bool write(const Condition& condition, const Key& key, const Value& value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  // Calls `use` with the value, which is valid during the call.
  template <typename Use>
  bool lookup(const Key& key, Use use) const;
  // For batches (index/batch.h).
  struct Approach;
  bool approach(const Key& key, Approach& at) const;
  template <typename Use>
  bool lookup_at(const Approach& at, const Key& key, Use use) const;
  pm::EpochManager& epochs() const { return epochs_; }
  // Calls visit(key, value), of words or byte strings, until it returns false.
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;

  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  friend struct Steps;  // of tests, which let others in between two of them

  using InnerNodes = Inner<Content>;
  using Position = typename InnerNodes::Position;
  using Separator = typename InnerNodes::Separator;
  using Item = typename InnerNodes::Item;

  static constexpr int kNone = -1;

  // The lock of a leaf, held by a writer. Throws kIo once the medium has failed: a redo record that
  // another thread could not finish may still make records of free slots count, so none of these
  // may be written again.
  class Held {
   public:
    Held(const Core& core, LeafRef& leaf) : leaf_(&leaf) {
      leaf.lock.lock();
      require_sound(core);
    }
    Held(const Core& core, LeafRef& leaf, std::adopt_lock_t) : leaf_(&leaf) { require_sound(core); }
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void begin_change() const { leaf_->lock.begin_change(); }
    void release() {
      if (leaf_ != nullptr) leaf_->lock.unlock();
      leaf_ = nullptr;
    }

   private:
    void require_sound(const Core& core) {
      if (!core.pool_.failed()) [[likely]]
        return;
      release();
      core.pool_.require_writable();
    }
    LeafRef* leaf_;
  };

  // What a reader copies of a leaf.
  struct Copied {
    std::array<Slot, 64> slots;
    uint32_t count;
  };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // ---- search
  // Which records count. Throws kCorrupt.
  uint64_t bitmap_of(const Leaf& leaf) const {
    const uint64_t bitmap = pm::load_acquire(leaf.bitmap);
    if ((bitmap & ~geometry_.full()) != 0) [[unlikely]]
      throw_damaged("the bitmap of a leaf");
    return bitmap;
  }
  static uint64_t bit(int slot) { return uint64_t{1} << slot; }
  // The fingerprints, or all lines.
  void prefetch(const Leaf& leaf) const { prefetch(leaf, geometry_.slots_at()); }
  void prefetch_all(const Leaf& leaf) const { prefetch(leaf, geometry_.leaf_bytes()); }
  static void prefetch(const Leaf& leaf, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) {
      pm::prefetch(reinterpret_cast<const char*>(&leaf) + at);
    }
  }
  bool before(const Slot& a, const Slot& b) const;
  // The slot that holds the key, among those of the bitmap; its value.
  int find_slot(const Leaf& leaf, uint64_t bitmap, const Key& key, uint8_t fingerprint,
                uint64_t& value) const;
  template <typename Use>
  bool lookup_from(Position at, const Key& key, Use use) const;
  Slot* copy_slots(const Position& at, Slot* out) const;
  bool copy_leaf(const Position& at, const Key& from, Copied& out) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  void put(const Held& held, Leaf& leaf, uint64_t bitmap, int replaced, const Key& key,
           uint8_t fingerprint, const Value& value);
  void replace_in_place(const Held& held, Slot& slot, const Key& key, const Value& value);
  void fill_slot(Leaf& leaf, int slot, uint64_t key, uint64_t value, uint8_t fingerprint);
  void change_bitmap(const Held& held, Leaf& leaf, uint64_t bitmap);
  void clear_bit(const Held& held, Leaf& leaf, uint64_t bitmap, int slot);

  // ---- split.cc
  void make_room(const Held& held, LeafRef& full, bool last, const Key& key);
  void split(const Held& held, LeafRef& full);
  uint64_t copy_records(Leaf& from, uint64_t which, Leaf& to, uint64_t taken);
  template <typename Moved>
  void change_both(Leaf& first, uint64_t first_bitmap, Leaf& second, uint64_t second_bitmap,
                   const Held& one, const Held& other, Moved moved);
  void shrink(Held& held, LeafRef& leaf, const Key& key, uint32_t left);
  LeafRef* merge_with(const Held& held, LeafRef& leaf, LeafRef* neighbour, bool on_right,
                      const Key& key, uint32_t most);
  bool compact();

  // ---- recover.cc
  void rebuild(uint32_t threads);
  void read_group(Group& group, std::vector<Item>& found, std::vector<LeafRef*>& empty) const;
  void adopt(std::vector<Item> items, const std::vector<LeafRef*>& empty);
  struct Spilled;
  const Spill& spill() const;
  Spilled read_spill() const;
  void load_spill();
  void write_spill();
  void drop_spill();
  // kCorrupt; kIo if the medium has failed, for then PM and DRAM may differ.
  [[noreturn]] void throw_damaged(const char* what) const;

  // ---- inspect.cc
  void check_leaf(const LeafRef& leaf, const Separator* low, const Separator* high,
                  const std::function<void(const std::string&)>& fail) const;
  void check_space(const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  mutable pm::EpochManager epochs_;
  Records records_;
  LeafSpace space_;
  const Geometry geometry_;
  InnerNodes inner_;
  mutable std::mutex spill_mutex_;
  std::atomic<bool> spilled_{false};     // root.spill describes the tree
  std::atomic<bool> compactable_{true};  // records were removed since compact() found nothing
  bool opened_ = false;
  uint64_t recovered_leaves_ = 0;
};

template <typename Content>
bool Core<Content>::before(const Slot& a, const Slot& b) const {
  if constexpr (Content::kOutOfPlace) {
    if (a.key == b.key) return records_.key(a.value) < records_.key(b.value);
  }
  return a.key < b.key;
}

template <typename Content>
int Core<Content>::find_slot(const Leaf& leaf, uint64_t bitmap, const Key& key, uint8_t fingerprint,
                             uint64_t& value) const {
  const Slot* slots = geometry_.slots(leaf);
  for (uint64_t hits = match(leaf, geometry_.records, fingerprint) & bitmap; hits != 0;
       hits &= hits - 1) {
    const int i = std::countr_zero(hits);
    if (pm::load_relaxed(slots[i].key) != Content::word_of(key)) continue;
    value = pm::load_acquire(slots[i].value);
    // A slot whose bit was set while this reader has had a guard leads to a whole record.
    if constexpr (Content::kOutOfPlace) {
      if (!records_.has_key(value, key.bytes)) continue;
    }
    return i;
  }
  return kNone;
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  return lookup_from(inner_.find(key), key, use);
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup_from(Position at, const Key& key, Use use) const {
  const uint8_t fingerprint = fingerprint_of(key);
  for (;; at = inner_.find(key)) {
    const LeafRef& ref = *at.leaf;
    prefetch(*ref.leaf);
    const uint32_t stamp = ref.lock.begin_read();
    // The version before the way to the leaf: what has changed since is sure to be noticed.
    if (!at.holds()) continue;
    uint64_t value = 0;
    const uint64_t bitmap = bitmap_of(*ref.leaf);
    const bool found = find_slot(*ref.leaf, bitmap, key, fingerprint, value) != kNone;
    if (!ref.lock.validate(stamp)) continue;
    if (!found) return false;
    if constexpr (Content::kOutOfPlace) {
      use(records_.value(value));
    } else {
      use(value);
    }
    return true;
  }
}

template <typename Content>
struct Core<Content>::Approach {
  typename InnerNodes::Steps steps;
  Position position{};
  const Leaf* leaf = nullptr;
  const Slot* slot = nullptr;
};

template <typename Content>
template <typename Use>
bool Core<Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  return lookup_from(at.position.leaf != nullptr ? at.position : inner_.find(key), key, use);
}

// The inner nodes; what DRAM knows of the leaf; its fingerprints; the slot, of an insert an empty
// one; of byte strings the record.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  if (at.position.leaf == nullptr) return inner_.step(key, at.steps, at.position);
  if (at.leaf == nullptr) {
    at.leaf = at.position.leaf->leaf;
    prefetch(*at.leaf);
    return true;
  }
  if (at.slot == nullptr) {
    const uint64_t bitmap = pm::load_acquire(at.leaf->bitmap) & geometry_.full();
    const uint64_t hits = match(*at.leaf, geometry_.records, fingerprint_of(key)) & bitmap;
    const uint64_t choice = hits != 0 ? hits : ~bitmap & geometry_.full();
    if (choice == 0) return false;
    at.slot = geometry_.slots(*at.leaf) + std::countr_zero(choice);
    pm::prefetch(at.slot);
    return Content::kOutOfPlace && hits != 0;
  }
  records_.prefetch(pm::load_relaxed(at.slot->value));
  return false;
}

// Copies the leaf's records, in no order; returns their end. Null if the leaf or the way to it has
// changed meanwhile.
template <typename Content>
Slot* Core<Content>::copy_slots(const Position& at, Slot* out) const {
  const LeafRef& ref = *at.leaf;
  const uint32_t stamp = ref.lock.begin_read();
  if (!at.holds()) return nullptr;
  const Slot* slots = geometry_.slots(*ref.leaf);
  for (uint64_t left = bitmap_of(*ref.leaf); left != 0; left &= left - 1) {
    const Slot& slot = slots[std::countr_zero(left)];
    *out++ = {pm::load_relaxed(slot.key), pm::load_acquire(slot.value)};
  }
  return ref.lock.validate(stamp) ? out : nullptr;
}

// Copies the leaf's records that are not below `from`, sorted. Returns false if the leaf or the way
// to it has changed meanwhile.
template <typename Content>
bool Core<Content>::copy_leaf(const Position& at, const Key& from, Copied& out) const {
  Slot* const begin = out.slots.data();
  Slot* end = copy_slots(at, begin);
  if (end == nullptr) return false;
  // The bound may stand in a node above the parent, which alone was validated. The range may have
  // grown since, up to a later bound; what lies beyond the bound that is known is the next leaf's
  // to tell.
  const auto out_of_range = [&](const Slot& slot) {
    return tree::compare<Content>(records_, slot, from) < 0 ||
           (at.bounded &&
            tree::compare<Content>(records_, slot, InnerNodes::key_of(at.bound)) >= 0);
  };
  end = std::remove_if(begin, end, out_of_range);
  out.count = static_cast<uint32_t>(end - begin);
  if constexpr (Content::kOutOfPlace) {
    std::sort(begin, end, [&](const Slot& a, const Slot& b) { return before(a, b); });
  } else {
    tree::sort_words(begin, out.count);
  }
  return true;
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  Copied copied;
  Key cursor = from;
  std::string text;  // of the cursor, beyond the life of what it was copied from
  for (;;) {
    const pm::EpochManager::Guard guard(epochs_);
    const Position at = inner_.find(cursor);
    prefetch_all(*at.leaf->leaf);
    if (at.next != nullptr && limit > geometry_.records / 2) prefetch_all(*at.next->leaf);
    if (!copy_leaf(at, cursor, copied)) continue;
    for (uint32_t i = 0; i < copied.count; ++i) {
      const Slot& slot = copied.slots[i];
      if (limit-- == 0) return;
      if constexpr (Content::kOutOfPlace) {
        if (!visit(records_.key(slot.value), records_.value(slot.value))) return;
      } else {
        if (!visit(slot.key, slot.value)) return;
      }
    }
    if (!at.bounded || limit == 0) return;
    // Where this leaf ended; wherever splits and merges have moved what follows, it is from there
    // on.
    if constexpr (Content::kOutOfPlace) {
      text = *at.bound.text;
      cursor = Key(text);
    } else {
      cursor = at.bound.word;
    }
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  std::array<Slot, 64> copied;
  tree::scan_back<Content>(
      {epochs_, records_, pool_, name_}, from, limit,
      [&](const auto& ceiling, auto& floor, std::vector<Slot>& out) {
        const Slot* end = nullptr;
        while (end == nullptr) {
          const Position at = inner_.find_under(ceiling, floor);
          prefetch_all(*at.leaf->leaf);
          end = copy_slots(at, copied.data());
        }
        out.assign(static_cast<const Slot*>(copied.data()), end);
      },
      visit);
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_FPTREE_INSTANTIATE(prefix) \
  prefix template class Core<tree::Words>; \
  prefix template class Core<tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_FPTREE_INSTANTIATE(extern)

}  // namespace perdure::index::fptree
