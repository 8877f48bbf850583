// Making and opening a tree, and what appends to a leaf.
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "index/nvtree/core.h"

namespace perdure::index::nvtree {

namespace {

constexpr char kType[] = "nv-tree";

// A lock for each 64 KiB of capacity, so that two leaves under change seldom share one.
uint32_t stripe_bits(const pm::PoolImpl& pool) {
  const uint64_t wanted = pool.capacity_bytes() >> 16;
  return static_cast<uint32_t>(std::bit_width(std::clamp<uint64_t>(wanted, 64, uint64_t{1} << 16)) -
                               1);
}

}  // namespace

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      records_(pool, epochs_),
      leaf_records_(static_cast<uint32_t>(root.leaf_records)),
      stripe_shift_(64 - stripe_bits(pool)),
      stripes_(uint64_t{1} << stripe_bits(pool)),
      inner_(epochs_, static_cast<uint32_t>(root.inner_records)),
      retired_(
          epochs_,
          [&heap = pool.heap()](const std::vector<RetiredLeaf>& leaves) {
            for (const RetiredLeaf& one : leaves) {
              heap.release(one.leaf);
              delete one.text;
            }
          },
          kRetireTogether) {}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require_range("leaf_records", options.leaf_records, kLeafRecordsMin, kLeafRecords);
  require_range("inner_records", options.inner_records, kInnerRecordsMin, kInnerRecordsMax);
  Root image{};
  image.seal.magic = kRootMagic;
  image.leaf_records = options.leaf_records != 0 ? options.leaf_records : kLeafRecords;
  image.inner_records = options.inner_records != 0 ? options.inner_records : kInnerRecords;
  const NewBlock leaf{leaf_bytes(image.leaf_records), offsetof(Root, head), [&](char* block) {
                        auto* empty = reinterpret_cast<Leaf*>(block);
                        *empty = Leaf{};
                        pool.memory().flush(empty, sizeof(Leaf));
                      }};
  const uint64_t root =
      make_structure(pool, name, kType, key, value, &image, sizeof image, kSealedBytes, {&leaf, 1});
  std::unique_ptr<Core> core(new Core(pool, *pool.at<Root>(root), name));
  core->recover(options.recovery_threads);
  return core;
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  const uint64_t at =
      find_structure(pool, name, kType, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "leaf_records", options.leaf_records, root.leaf_records);
  require_same(pool, name, "inner_records", options.inner_records, root.inner_records);
  if (root.leaf_records < kLeafRecordsMin || root.leaf_records > kLeafRecords ||
      root.inner_records < kInnerRecordsMin || root.inner_records > kInnerRecordsMax) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  std::unique_ptr<Core> core(new Core(pool, root, name));
  core->recover(options.recovery_threads);
  return core;
}

template <typename Content>
Core<Content>::~Core() {
  if (recovered_ && !pool_.read_only() && !pool_.is_dropped(&root_)) {
    try {
      pool_.require_writable();  // else PM may not be what DRAM says
      if (!has_image_ && !inner_.has_one_leaf()) write_image();
    } catch (const std::exception&) {
      // No room, in the pool or in DRAM, or a medium that has failed: the next opening reads the
      // leaves.
    }
  }
}

// ---- locks

template <typename Content>
uint64_t Core<Content>::lock_leaf(const Key& key, LeafLock& lock) const {
  for (;;) {
    const auto place = inner_.find(key);
    lock = LeafLock(lock_of(place.leaf));
    // Who replaces the leaf does so under this lock, and changes the parent before letting go.
    if (place.parent->lock.validate(place.stamp)) [[likely]]
      return place.leaf;
    lock.unlock();
  }
}

// ---- room

template <typename Content>
void Core<Content>::reclaim() {
  drop_image();
  retired_.flush();
  records_.reclaim();  // all that wait in epochs_
}

// ---- writes

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (Content::kOutOfPlace) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return with_reclaim([&] { return write_once(condition, key, value); });
}

template <typename Content>
bool Core<Content>::write_once(const Condition& condition, const Key& key, const Value& value) {
  for (;;) {
    const pm::EpochManager::Guard guard(epochs_);
    LeafLock lock;
    const uint64_t at = lock_leaf(key, lock);
    Leaf& leaf = leaf_at(at);
    const uint32_t count = count_of(leaf);
    uint64_t old_value = 0;
    const int entry = find(leaf, count, key, old_value);
    const bool goes_on =
        entry >= 0 ? condition.holds_for(records_, old_value) : condition.holds_if_absent();
    if (!goes_on) return false;
    if (count < leaf_records_) [[likely]] {
      append(lock, leaf, count, key, &value, entry);
      return true;
    }
    try {
      make_room(key, at);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (entry < 0) throw;
      replace_value(lock, leaf, static_cast<uint32_t>(entry), value);
      return true;
    }
  }
}

template <typename Content>
void Core<Content>::store_entry(Leaf& leaf, uint32_t entry, const Slot& slot, Tag tag) {
  Line& line = leaf.lines()[entry / kLineEntries];
  const uint32_t shift = Leaf::tag_shift(entry);
  pm::store_relaxed(leaf.slot(entry).key, slot.key);
  pm::store_relaxed(leaf.slot(entry).value, slot.value);
  const uint64_t others = pm::load_relaxed(line.tags) & ~(uint64_t{0xffff} << shift);
  pm::store_relaxed(line.tags, others | tag.bits << shift);
  memory_.flush(&line, sizeof line);
}

// Appends a record, or a removal if there is no value; `superseded` is the entry of the key until
// now, or -1. Durable on return. Throws kPoolFull, kNoSpace, having changed nothing; removals do
// not.
template <typename Content>
void Core<Content>::append(LeafLock& lock, Leaf& leaf, uint32_t count, const Key& key,
                           const Value* value, int superseded) {
  const Tag tag = Tag::make(value == nullptr, superseded);
  const auto commit = [&] {
    lock.mutex()->begin_change();  // nobody relies on what is not durable yet
    pm::store_release(leaf.count, uint64_t{count} + 1);
    memory_.flush(&leaf.count, sizeof leaf.count);
  };
  if constexpr (Content::kOutOfPlace) {
    pm::Heap::Txn txn(pool_.heap(), value == nullptr);
    uint64_t record = 0;
    uint64_t old_record = 0;
    if (value != nullptr) {
      record = records_.make(txn, key.bytes, *value);
      txn.will_link(record, &leaf.count, pm::link_above(count));
    }
    if (superseded >= 0) {
      old_record = pm::load_relaxed(leaf.slot(static_cast<uint32_t>(superseded)).value);
      txn.will_unlink(old_record, &leaf.count, pm::link_up_to(count),
                      pm::Heap::Txn::Release::kLater);
    }
    store_entry(leaf, count, {Content::word_of(key), record}, tag);
    // Record, entry and intents, before the count that makes them count.
    txn.commit(commit);
    if (old_record != 0) records_.retire(old_record);
  } else {
    store_entry(leaf, count, {key, value != nullptr ? *value : 0}, tag);
    memory_.fence();  // the entry, before the count that reveals it
    commit();
    memory_.fence();  // the count, before anybody is told
  }
}

// What an update does to a full leaf that cannot be replaced by another one.
template <typename Content>
void Core<Content>::replace_value(LeafLock& lock, Leaf& leaf, uint32_t entry, const Value& value) {
  uint64_t& at = leaf.slot(entry).value;
  if constexpr (Content::kOutOfPlace) {
    const std::string key(records_.key(pm::load_relaxed(at)));
    records_.relink(at, key, value, [&] { lock.mutex()->begin_change(); });
  } else {
    lock.mutex()->begin_change();
    // A process that died may have left the count that reveals the entry in the caches only.
    if (pool_.may_be_unflushed()) memory_.flush(&leaf.count, sizeof leaf.count);
    pm::store_release(at, value);
    memory_.persist(&at, sizeof at);  // the value, before anybody is told
  }
}

// ---- removals

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  uint32_t live = 0;
  {
    const pm::EpochManager::Guard guard(epochs_);
    LeafLock lock;
    Leaf& leaf = leaf_at(lock_leaf(key, lock));
    const uint32_t count = count_of(leaf);
    uint64_t value = 0;
    const int entry = find(leaf, count, key, value);
    if (entry < 0 || !condition.holds_for(records_, value)) return false;
    live = static_cast<uint32_t>(std::popcount(live_mask(leaf, count))) - 1;
    if (count < leaf_records_) {
      append(lock, leaf, count, key, nullptr, entry);
    } else {
      erase_in_place(lock, leaf, static_cast<uint32_t>(entry));
    }
  }
  // Not at each of the last removals: a neighbour that is too full today may be so for long.
  const uint32_t step = std::max(leaf_records_ / 8, 1U);
  if (live <= leaf_records_ * 3 / 8 && live % step == 0) tidy(key);
  return true;
}

template <typename Content>
void Core<Content>::erase_in_place(LeafLock& lock, Leaf& leaf, uint32_t entry) {
  uint64_t& tags = leaf.lines()[entry / kLineEntries].tags;
  const uint64_t erased = pm::load_relaxed(tags) & ~(Tag::kPresent << Leaf::tag_shift(entry));
  const auto commit = [&] {
    lock.mutex()->begin_change();
    pm::store_release(tags, erased);
    memory_.flush(&tags, sizeof tags);
  };
  if constexpr (Content::kOutOfPlace) {
    const uint64_t record = pm::load_relaxed(leaf.slot(entry).value);
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(record, &tags, pm::link_bit(Leaf::tag_shift(entry)),
                    pm::Heap::Txn::Release::kLater);
    // The intent, before the bit that it follows.
    txn.commit(commit);
    records_.retire(record);
  } else {
    commit();
    memory_.fence();  // the bit, before anybody is told
  }
}

PERDURE_NVTREE_INSTANTIATE()

}  // namespace perdure::index::nvtree
