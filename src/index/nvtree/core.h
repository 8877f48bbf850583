// NV-Tree: consistent leaves in PM that are logs, and inner nodes in DRAM.
//
// The idea. A leaf is a log of entries: an insert, an update and a removal each append one, and
// then raise the leaf's count by one atomic store. Who looks up a key reads the log backwards. A
// leaf that is full is replaced by new ones that hold what is live: by one, or by two if most of it
// is. Inner nodes are in contiguous memory in DRAM (nvtree/inner.h): nothing of them is flushed,
// and they are made from the leaves again when a crash has lost them.
//
// The persist points, and what a crash leaves
//   write          entry, fence; count, fence. An entry from the count on is as if it were not there.
//   byte strings   record, entry and the heap's intents, fence; count and the heap's bitmap, fence;
//                  the intents' end, fence. The intents follow the count (pm::link_above for the new
//                  record, pm::link_up_to for the one that it supersedes), so that both blocks
//                  change hands by the store that makes the entry count.
//   full leaf      a removal clears the `present` bit of the entry itself, fence: no room is needed.
//   replacement    new leaves and intents, fence; `next` of the leaf before (or root.head), by one
//                  store, and the heap's bitmap, fence; the intents' end, fence. All blocks follow
//                  that one word: the first new leaf directly, the second one by pm::Link::kAsPrevious,
//                  as do the old ones.
//   image          the inner part, written at a clean close, and gone from root.image, durably, before
//                  the next replacement. Entries that are appended do not outdate it.
//
// Recovery: none of leaves or records. Without an image the list of leaves is walked and the least
// and greatest key of each is looked for, in parallel; with one no leaf is read. Of words, where a
// process may have died, the leaves that are read are made durable as they are, one fence for each
// 256: the separators rest on which keys are gone from them. With an image none does, for it
// outlives no replacement.
//
// Concurrency. Stripe locks in DRAM (index/stripes.h) by leaf, for who writes to it; a replacement
// takes the lock of its leaf parent, too, and of the one before if it changes that leaf's `next`.
// Lookups and scans take no lock and write nothing: entries that count do not change, and what is
// replaced stays as it was until its readers have gone (epochs). They wait while a count is being
// made durable.
//
// Source: Yang et al., "NV-Tree: Reducing Consistency Cost for NVM-based Single Level Systems",
// FAST 2015; docs/structures/nv-tree.md says where this differs.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "index/instantiate.h"
#include "index/nvtree/inner.h"
#include "index/nvtree/layout.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/stripes.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::nvtree {

// 0: the default.
struct Options {
  uint32_t leaf_records = 0;
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
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;

  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using LeafLock = std::unique_lock<StripeLock>;
  using Held = typename Inner<Content>::Held;
  static constexpr uint32_t kScanLeaves = 64;  // that one guard lasts for
  static constexpr int kTidyAttempts = 8;
  static constexpr size_t kRetireTogether = 16;

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  // Of an offset that the inner part has.
  Leaf& leaf_at(uint64_t offset) const { return *pool_.at<Leaf>(offset); }
  // The leaf that a word in PM leads to. Throws kCorrupt if that cannot be one.
  const Leaf& leaf_behind(uint64_t link) const;
  // How many entries count. Throws kCorrupt.
  uint32_t count_of(const Leaf& leaf) const {
    const uint64_t count = pm::load_acquire(leaf.count);
    if (count > leaf_records_) [[unlikely]]
      throw_damaged("a leaf");
    return static_cast<uint32_t>(count);
  }
  // More than there can be: who walks further is in a loop.
  uint64_t leaves_max() const;
  StripeLock& lock_of(uint64_t leaf) const {
    return stripes_[leaf / pm::kLineBytes * 0x9e3779b97f4a7c15 >> stripe_shift_];
  }

  // ---- search.cc
  // The live entry of a key among the first `count`, and its value; -1 if there is none. Needs a
  // guard.
  int find(const Leaf& leaf, uint32_t count, const Key& key, uint64_t& value) const;
  template <typename Use>
  bool lookup_from(uint64_t at, const Key& key, Use use) const;
  // The live entries, one bit each.
  uint64_t live_mask(const Leaf& leaf, uint32_t count) const;
  // The live entries in the order of their keys. Returns how many.
  uint32_t live_slots(const Leaf& leaf, uint32_t count, Slot* out) const;
  bool before(const Slot& a, const Slot& b) const;
  // What a leaf, of any origin, held at one instant, and which leaf came next. Throws kCorrupt.
  uint32_t snapshot(uint64_t leaf, Slot* out, uint64_t& next) const;

  // ---- write.cc
  bool write_once(const Condition& condition, const Key& key, const Value& value);
  // Locks the key's leaf.
  uint64_t lock_leaf(const Key& key, LeafLock& lock) const;
  void append(LeafLock& lock, Leaf& leaf, uint32_t count, const Key& key, const Value* value,
              int superseded);
  void store_entry(Leaf& leaf, uint32_t entry, const Slot& slot, Tag tag);
  void erase_in_place(LeafLock& lock, Leaf& leaf, uint32_t entry);
  void replace_value(LeafLock& lock, Leaf& leaf, uint32_t entry, const Value& value);
  // Once more if there was no room: blocks that wait for readers which have gone, or the image of
  // the inner part, may be all that is missing. To be called without a guard.
  template <typename Write>
  bool with_reclaim(Write write);
  void reclaim();

  // ---- replace.cc
  void make_room(const Key& key, uint64_t leaf);
  void split(const Key& key, uint64_t leaf, std::span<const Slot> live);
  void tidy(const Key& key);
  bool tidy_once(const Key& key);
  bool merge(Held& held, uint32_t slot, std::span<const Slot> live);
  void replace(Held& held, uint32_t slot, uint32_t count, std::span<const Slot> lower,
               std::span<const Slot> upper);
  void require_linked(const typename Inner<Content>::Parent& parent, uint32_t slot, uint32_t count,
                      uint64_t link, uint64_t next) const;
  Child child_of(std::span<const Slot> lower, std::span<const Slot> upper, uint64_t leaf) const;
  void write_leaf(uint64_t at, std::span<const Slot> slots, uint64_t next) const;
  // Replaced leaves, with separators in DRAM that go with them.
  struct RetiredLeaf {
    uint64_t leaf;
    const std::string* text;
  };

  // ---- recover.cc
  // The least and the greatest of the live slots.
  struct Extremes {
    bool any = false;
    Slot least{};
    Slot greatest{};
  };
  void recover(uint32_t threads);
  bool is_leaf(uint64_t at) const;
  ChildList read_leaves(uint32_t threads);
  std::vector<uint64_t> list_leaves() const;
  Extremes extremes(uint64_t leaf) const;
  void unlink_empty(uint64_t& link, uint64_t leaf);
  // kCorrupt; kIo if the medium has failed, for then PM and DRAM may differ.
  [[noreturn]] void throw_damaged(const char* what) const;

  // ---- image.cc
  const Image& image() const;
  ChildList read_image() const;
  void write_image();
  void drop_image();

  // ---- inspect.cc
  void check_leaf(const Child& child, const Child* next,
                  const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  mutable pm::EpochManager epochs_;
  Records records_;
  const uint32_t leaf_records_;
  uint32_t stripe_shift_;
  Stripes stripes_;
  Inner<Content> inner_;
  std::atomic<bool> has_image_{false};
  mutable std::mutex image_mutex_;  // of who drops it
  Retired<RetiredLeaf> retired_;
  bool recovered_ = false;
  uint64_t recovered_operations_ = 0;
  std::atomic<uint64_t> replacements_{0};
};

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const pm::EpochManager::Guard guard(epochs_);
  return lookup_from(inner_.find(key).leaf, key, use);
}

template <typename Content>
template <typename Use>
bool Core<Content>::lookup_from(uint64_t at, const Key& key, Use use) const {
  for (;; at = inner_.find(key).leaf) {
    const StripeLock& lock = lock_of(at);
    const uint32_t stamp = lock.begin_read();
    const Leaf& leaf = leaf_at(at);
    uint64_t value = 0;
    const int entry = find(leaf, count_of(leaf), key, value);
    if (!lock.validate(stamp)) continue;
    if (entry < 0) return false;
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
  typename Inner<Content>::Steps steps;
  uint64_t leaf = 0;
};

// A leaf that has been replaced meanwhile shows what was there when it was.
template <typename Content>
template <typename Use>
bool Core<Content>::lookup_at(const Approach& at, const Key& key, Use use) const {
  return lookup_from(at.leaf != 0 ? at.leaf : inner_.find(key).leaf, key, use);
}

// The inner part; the leaf's count; the newest lines, where a search begins and an insert writes.
template <typename Content>
bool Core<Content>::approach(const Key& key, Approach& at) const {
  constexpr uint32_t kLines = 8;
  if (at.leaf == 0) {
    at.leaf = inner_.step(key, at.steps);
    if (at.leaf != 0) pm::prefetch(&leaf_at(at.leaf));
    return !at.steps.gone;
  }
  const Leaf& leaf = leaf_at(at.leaf);
  const uint64_t count = std::min<uint64_t>(pm::load_relaxed(leaf.count), leaf_records_);
  const uint64_t newest = std::min(count, uint64_t{leaf_records_} - 1) / kLineEntries;
  const uint64_t oldest = newest - std::min<uint64_t>(newest, kLines - 1);
  for (uint64_t line = newest + 1; line > oldest; --line) pm::prefetch(leaf.lines() + line - 1);
  return false;
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  Slot slots[kLeafRecords];
  Key begin = from;
  bool beyond = false;  // records must be above `begin`, not only not below
  std::string text;     // what `begin` stands in, in its second and later lives
  for (bool more = limit > 0; more;) {
    const pm::EpochManager::Guard guard(epochs_);
    // By the leaves' own links: each leads to where the range of its leaf ends, even if both have
    // been replaced meanwhile, and shows what was there at some instant since the guard began.
    uint64_t leaf = inner_.find(begin).leaf;
    Slot last{};
    bool any = false;
    for (uint64_t leaves = 0; leaf != 0 && (leaves < kScanLeaves || !any); ++leaves) {
      if (leaves > leaves_max()) throw_damaged("the list of leaves");
      const uint32_t count = snapshot(leaf, slots, leaf);
      for (uint32_t i = 0; i < count; ++i) {
        if (!any) {
          const auto order = tree::compare<Content>(records_, slots[i], begin);
          if (order < 0 || (beyond && order == 0)) continue;
        } else if (!before(last, slots[i])) {
          continue;  // it was removed and came back, further on
        }
        last = slots[i];
        any = true;
        if constexpr (Content::kOutOfPlace) {
          const std::string_view key = records_.key(last.value);
          // Another record is not the one that belongs here, intact as it may be; nor would its key
          // lead on.
          if (tree::prefix_of(key) != last.key) [[unlikely]]
            throw_damaged("a leaf");
          more = visit(key, records_.value(last.value));
        } else {
          more = visit(last.key, last.value);
        }
        if (!more || --limit == 0) return;
      }
    }
    if (leaf == 0) return;
    beyond = true;
    if constexpr (Content::kOutOfPlace) {
      text = records_.key(last.value);
      begin = Key(text);
    } else {
      begin = last.key;
    }
  }
}

// A leaf that has been replaced meanwhile shows what was there when it was, which is since the
// guard began.
template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  tree::scan_back<Content>(
      {epochs_, records_, pool_, name_}, from, limit,
      [&](const auto& ceiling, auto& floor, std::vector<Slot>& out) {
        uint64_t next = 0;
        out.resize(kLeafRecords);
        out.resize(snapshot(inner_.find_under(ceiling, floor), out.data(), next));
      },
      visit);
}

template <typename Content>
template <typename Write>
bool Core<Content>::with_reclaim(Write write) {
  return retry_when_full(write, [&] { reclaim(); });
}

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_NVTREE_INSTANTIATE(prefix) \
  prefix template class Core<tree::Words>; \
  prefix template class Core<tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_NVTREE_INSTANTIATE(extern)

}  // namespace perdure::index::nvtree
