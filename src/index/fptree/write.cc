// Making a tree, and writing single records.
#include <fmt/core.h>

#include <exception>

#include "index/fptree/core.h"

namespace perdure::index::fptree {

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      records_(pool, epochs_),
      space_(pool, epochs_, root),
      geometry_(space_.geometry()),
      inner_(epochs_, static_cast<uint32_t>(root.inner_records)) {}

template <typename Content>
Core<Content>::~Core() {
  if (!opened_ || pool_.read_only() || pool_.is_dropped(&root_)) return;
  try {
    pool_.require_writable();  // else PM may not be what DRAM says
    write_spill();
  } catch (const std::exception&) {
    // No room, in the pool or in DRAM, or a medium that has failed: the next opening reads the
    // leaves.
  }
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require_range("leaf_records", options.leaf_records, kLeafRecordsMin, kLeafRecords);
  require_range("leaf_group", options.leaf_group, 1, kLeafGroupMax);
  require_range("inner_records", options.inner_records, kInnerRecordsMin, kInnerRecordsMax);
  const auto chosen = [](uint32_t wanted, uint32_t otherwise) {
    return wanted != 0 ? wanted : otherwise;
  };
  Root image{};
  image.seal.magic = kRootMagic;
  image.leaf_records = chosen(options.leaf_records, kLeafRecords);
  image.leaf_group = chosen(options.leaf_group, kLeafGroup);
  image.inner_records = chosen(options.inner_records, kInnerRecords);
  const Geometry geometry{static_cast<uint32_t>(image.leaf_records),
                          static_cast<uint32_t>(image.leaf_group)};
  const NewBlock group{geometry.group_bytes(), offsetof(Root, groups),
                       [&](char* block) { LeafSpace::format(pool.memory(), geometry, block, 0); }};
  const uint64_t at = make_structure(pool, name, "fptree", key, value, &image, sizeof image,
                                     kSealedBytes, {&group, 1});
  std::unique_ptr<Core> core(new Core(pool, *pool.at<Root>(at), name));
  core->rebuild(1);
  return core;
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  const uint64_t at =
      find_structure(pool, name, "fptree", key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "leaf_records", options.leaf_records, root.leaf_records);
  require_same(pool, name, "leaf_group", options.leaf_group, root.leaf_group);
  require_same(pool, name, "inner_records", options.inner_records, root.inner_records);
  if (root.leaf_records < kLeafRecordsMin || root.leaf_records > kLeafRecords ||
      root.leaf_group < 1 || root.leaf_group > kLeafGroupMax ||
      root.inner_records < kInnerRecordsMin || root.inner_records > kInnerRecordsMax) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  std::unique_ptr<Core> core(new Core(pool, root, name));
  if (root.spill != 0) {
    core->load_spill();
  } else {
    core->rebuild(options.recovery_threads);
  }
  return core;
}

// ---- slots

// Nobody looks at the slot before its bit is set.
template <typename Content>
void Core<Content>::fill_slot(Leaf& leaf, int at, uint64_t key, uint64_t value,
                              uint8_t fingerprint) {
  Slot& slot = geometry_.slots(leaf)[at];
  pm::store_release(slot.key, key);
  pm::store_release(slot.value, value);
  pm::store_release(Geometry::fingerprints(leaf)[at], fingerprint);
}

template <typename Content>
void Core<Content>::change_bitmap(const Held& held, Leaf& leaf, uint64_t bitmap) {
  held.begin_change();
  pm::store_release(leaf.bitmap, bitmap);
  memory_.flush(&leaf.bitmap, sizeof leaf.bitmap);
}

// Puts a record in a free slot and sets its bit; that of the slot `replaced`, if there is one, goes
// by the same store.
template <typename Content>
void Core<Content>::put(const Held& held, Leaf& leaf, uint64_t bitmap, int replaced, const Key& key,
                        uint8_t fingerprint, const Value& value) {
  const int at = std::countr_zero(~bitmap);
  const uint64_t after = (replaced == kNone ? bitmap : bitmap & ~bit(replaced)) | bit(at);
  Slot& slot = geometry_.slots(leaf)[at];
  const auto flush_slot = [&] {
    memory_.flush(&slot, sizeof slot);
    memory_.flush(Geometry::fingerprints(leaf) + at, 1);
  };
  if constexpr (Content::kOutOfPlace) {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    const uint64_t old = replaced == kNone ? 0 : geometry_.slots(leaf)[replaced].value;
    fill_slot(leaf, at, Content::word_of(key), record, fingerprint);
    flush_slot();
    txn.will_link(record, &leaf.bitmap, pm::link_bit(static_cast<uint32_t>(at)));
    if (old != 0) {
      txn.will_unlink(old, &leaf.bitmap, pm::link_bit(static_cast<uint32_t>(replaced)),
                      pm::Heap::Txn::Release::kLater);
    }
    // Block, slot, fingerprint and intents, before the bit that reveals them.
    txn.commit([&] { change_bitmap(held, leaf, after); });
    if (old != 0) records_.retire(old);
  } else {
    fill_slot(leaf, at, key, value, fingerprint);
    flush_slot();
    memory_.fence();  // record and fingerprint, before the bit that reveals them
    change_bitmap(held, leaf, after);
    memory_.fence();  // before readers may look
  }
}

// For leaves without a free slot.
template <typename Content>
void Core<Content>::replace_in_place(const Held& held, Slot& slot, const Key& key,
                                     const Value& value) {
  if constexpr (Content::kOutOfPlace) {
    records_.relink(slot.value, key.bytes, value, [&] { held.begin_change(); });
  } else {
    (void)key;
    held.begin_change();
    pm::store_release(slot.value, value);
    memory_.persist(&slot.value, sizeof slot.value);  // before readers may look
  }
}

template <typename Content>
void Core<Content>::clear_bit(const Held& held, Leaf& leaf, uint64_t bitmap, int slot) {
  if constexpr (Content::kOutOfPlace) {
    const uint64_t old = geometry_.slots(leaf)[slot].value;
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(old, &leaf.bitmap, pm::link_bit(static_cast<uint32_t>(slot)),
                    pm::Heap::Txn::Release::kLater);
    // The intent, before the bit goes.
    txn.commit([&] { change_bitmap(held, leaf, bitmap & ~bit(slot)); });
    records_.retire(old);
  } else {
    change_bitmap(held, leaf, bitmap & ~bit(slot));
    memory_.fence();  // before readers may look
  }
}

// ---- operations

template <typename Content>
bool Core<Content>::write_once(const Condition& condition, const Key& key, const Value& value) {
  const uint8_t fingerprint = fingerprint_of(key);
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const Position at = inner_.find(key);
    prefetch(*at.leaf->leaf);
    const Held held(*this, *at.leaf);
    if (!at.holds()) continue;
    // The leaf is the key's, and stays so while it is locked.
    Leaf& leaf = *at.leaf->leaf;
    const uint64_t bitmap = bitmap_of(leaf);
    const bool full = bitmap == geometry_.full();
    uint64_t before = 0;
    const int slot = find_slot(leaf, bitmap, key, fingerprint, before);
    const bool goes_on =
        slot != kNone ? condition.holds_for(records_, before) : condition.holds_if_absent();
    if (!goes_on) return false;
    if (slot != kNone && full) {
      replace_in_place(held, geometry_.slots(leaf)[slot], key, value);
      return true;
    }
    if (full) {
      make_room(held, *at.leaf, !at.bounded, key);
      continue;
    }
    put(held, leaf, bitmap, slot, key, fingerprint, value);
    return true;
  }
}

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (Content::kOutOfPlace) records_.require_fits(key.bytes, value);
  if (pm::acquire(spilled_)) [[unlikely]]
    drop_spill();
  const auto once = [&] { return write_once(condition, key, value); };
  try {
    return records_.with_reclaim(once);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    if (!compact()) throw;
  }
  return records_.with_reclaim(once);
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  if (pm::acquire(spilled_)) [[unlikely]]
    drop_spill();
  const uint8_t fingerprint = fingerprint_of(key);
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const Position at = inner_.find(key);
    prefetch(*at.leaf->leaf);
    Held held(*this, *at.leaf);
    if (!at.holds()) continue;
    Leaf& leaf = *at.leaf->leaf;
    const uint64_t bitmap = bitmap_of(leaf);
    uint64_t value = 0;
    const int slot = find_slot(leaf, bitmap, key, fingerprint, value);
    if (slot == kNone || !condition.holds_for(records_, value)) return false;
    clear_bit(held, leaf, bitmap, slot);
    const auto left = static_cast<uint32_t>(std::popcount(bitmap)) - 1;
    // At a few fill levels only, not after each removal: the neighbours may be full for long.
    if (left * 8 % geometry_.records == 0) {
      if (!compactable_.load(std::memory_order_relaxed)) {
        compactable_.store(true, std::memory_order_relaxed);
      }
      if (left <= geometry_.records / 4) shrink(held, *at.leaf, key, left);
    }
    return true;
  }
}

PERDURE_FPTREE_INSTANTIATE()

}  // namespace perdure::index::fptree
