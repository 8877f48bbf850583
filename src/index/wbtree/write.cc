// Making, opening, and writing single records.
#include <fmt/core.h>

#include <algorithm>
#include <mutex>

#include "index/wbtree/core.h"

namespace perdure::index::wbtree {

namespace {

uint32_t or_default(uint64_t option, uint32_t otherwise) {
  return option != 0 ? static_cast<uint32_t>(option) : otherwise;
}

}  // namespace

LockSet::~LockSet() {
  while (count_ > 0) locks_[--count_]->unlock();
}

bool LockSet::add(StripeLock& lock) {
  for (uint32_t i = 0; i < count_; ++i) {
    if (locks_[i] == &lock) return true;
  }
  if (!lock.try_lock()) return false;
  locks_[count_++] = &lock;
  if (pool_.failed()) [[unlikely]]
    pool_.require_writable();
  return true;
}

void LockSet::begin_change() {
  for (uint32_t i = 0; i < count_; ++i) locks_[i]->begin_change();
}

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      records_(pool, epochs_),
      leaf_{static_cast<uint32_t>(root.leaf_records)},
      inner_{static_cast<uint32_t>(root.inner_records)} {
  load_top();
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require_range("leaf_records", options.leaf_records, kRecordsMin, kRecordsMax);
  require_range("inner_records", options.inner_records, kRecordsMin, kRecordsMax);
  Root image{};
  image.seal.magic = kRootMagic;
  image.leaf_records = or_default(options.leaf_records, kLeafRecords);
  image.inner_records = or_default(options.inner_records, kInnerRecords);
  const Shape leaf{static_cast<uint32_t>(image.leaf_records)};
  const NewBlock first{leaf.bytes(), offsetof(Root, top), [&](char* block) {
                         auto* node = reinterpret_cast<Node*>(block);
                         node->separator = 0;
                         node->bitmap = kOrderValid;
                         store_order(*node, Order());
                         pool.memory().flush(node, offsetof(Node, high));
                       }};
  const uint64_t root = make_structure(pool, name, "wbtree", key, value, &image, sizeof image,
                                       kSealedBytes, {&first, 1});
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  const uint64_t at =
      find_structure(pool, name, "wbtree", key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "leaf_records", options.leaf_records, root.leaf_records);
  require_same(pool, name, "inner_records", options.inner_records, root.inner_records);
  if (root.leaf_records < kRecordsMin || root.leaf_records > kRecordsMax ||
      root.inner_records < kRecordsMin || root.inner_records > kRecordsMax) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  const auto records =
      static_cast<uint32_t>(root.depth == 0 ? root.leaf_records : root.inner_records);
  if (root.depth > kDepthMax || root.top % pm::kLineBytes != 0 ||
      !pool.heap().is_allocated(root.top, Shape{records}.bytes())) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the topmost node of '{}' is damaged; restore the file from a "
                          "backup",
                          pool.mapping().path(), name)));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

template <typename Content>
void Core<Content>::throw_damaged(uint64_t offset, uint32_t level, const char* what) const {
  pool_.throw_corrupt(
      fmt::format("'{}': what should be a node of level {} at {} {}", name_, level, offset, what));
}

// ---- finding

// Locks the leaf that the key belongs to. That the parent is what it was when it led to the leaf
// suffices: no change of shape does without locking both.
template <typename Content>
Node& Core<Content>::lock_leaf(const Key& key, StripeLock*& lock) const {
  for (Backoff backoff;; backoff.pause()) {
    Path path;
    descend(key, 0, path);
    lock = &lock_of(*path[0].node, 0);
    lock->lock();
    if (pool_.failed()) [[unlikely]] {
      lock->unlock();
      pool_.require_writable();  // throws: what a failed thread could not finish is not built upon
    }
    if (lock_above(path, 0).validate(stamp_above(path, 0))) return *path[0].node;
    lock->unlock();
  }
}

template <typename Content>
typename Core<Content>::Key Core<Content>::key_of(const Slot& slot) const {
  if constexpr (Content::kOutOfPlace) {
    return Key(records_.key(slot.value));
  } else {
    return slot.key;
  }
}

// The cells that count, of a leaf whose slot array a crash left invalid.
template <typename Content>
void Core<Content>::sort_cells(const Node& leaf, Order& order) const {
  Seen certain;
  for (uint64_t rest = live_cells(leaf) & leaf_.cells(); rest != 0; rest &= rest - 1) {
    const auto cell = static_cast<uint32_t>(std::countr_zero(rest));
    const Key key = key_of(leaf.cell(cell));
    order.insert(search(leaf, 0, order, 0, key, Side::kAt, certain), cell);
  }
}

// The cells that count, in order, for the holder of the node's lock: as many as the bitmap has, so
// that what is added to them fits. Throws kCorrupt if bitmap and slot array cannot be of one node.
template <typename Content>
void Core<Content>::sorted_cells(const Node& node, uint32_t level, Order& order) const {
  const uint64_t bitmap = pm::load_relaxed(node.bitmap);
  if ((bitmap & kOrderValid) != 0 || level > 0) [[likely]] {
    load_live_order(node, bitmap, order);
  } else {
    sort_cells(node, order);
  }
  const auto live = static_cast<uint32_t>(std::popcount(bitmap & ~kOrderValid));
  if ((bitmap & ~(shape(level).cells() | kOrderValid)) != 0 || order.count() != live) [[unlikely]]
    throw_damaged(offset_of(node), level, "has a slot array that does not fit its bitmap");
}

// The same for a change of shape: each cell that counts, and no other, once.
template <typename Content>
void Core<Content>::exact_cells(const Node& node, uint32_t level, Order& order) const {
  sorted_cells(node, level, order);
  uint64_t listed = 0;
  for (uint32_t i = 0; i < order.count(); ++i) listed |= bit(order[i]);
  if (listed != live_cells(node) || (level > 0 && listed == 0)) {
    throw_damaged(offset_of(node), level, "has a slot array that does not fit its bitmap");
  }
}

// For the holder of the leaf's lock.
template <typename Content>
typename Core<Content>::Place Core<Content>::locate(const Node& leaf, const Key& key,
                                                    Order& order) const {
  sorted_cells(leaf, 0, order);
  Seen certain;
  const uint32_t position = search(leaf, 0, order, 0, key, Side::kAt, certain);
  const bool there =
      position < order.count() && compare(leaf, 0, order[position], key, certain) == 0;
  return {there ? order[position] : 0, position};
}

// ---- changing a leaf

template <typename Content>
void Core<Content>::fill_cell(Node& leaf, uint32_t cell, const Slot& slot,
                              const Order& order) const {
  store_cell(leaf, cell, slot);
  memory_.flush(&leaf.cell(cell), sizeof(Slot));
  store_order(leaf, order);
  memory_.flush(leaf.order, sizeof leaf.order);
  memory_.fence();  // the record and the slot array, before the bitmap lets them count
}

// Adds a record at a position of the order. The cell that it takes may still be listed by the slot
// array, which until then passes over it; that one is declared invalid before it is written to.
template <typename Content>
void Core<Content>::put(StripeLock& lock, Node& leaf, Order& order, uint32_t position,
                        const Key& key, const Value& value) {
  const uint64_t live = live_cells(leaf);
  const bool valid = live != pm::load_relaxed(leaf.bitmap);
  const auto cell = static_cast<uint32_t>(std::countr_zero(leaf_.cells() & ~live));
  order.insert(position, cell);
  const auto declare_invalid = [&] {
    lock.begin_change();
    if (!valid) rebuilt_.fetch_add(1, std::memory_order_relaxed);
    // Also if it is invalid: a process that died may have left the bitmap in the caches only.
    pm::store_release(leaf.bitmap, live);
    memory_.flush(&leaf.bitmap, sizeof leaf.bitmap);
  };
  const auto let_count = [&] {
    pm::store_release(leaf.bitmap, live | bit(cell) | kOrderValid);
    memory_.flush(&leaf.bitmap, sizeof leaf.bitmap);
  };
  if constexpr (Content::kOutOfPlace) {
    pm::Heap::Txn txn(pool_.heap());
    const uint64_t record = records_.make(txn, key.bytes, value);
    txn.will_link(record, &leaf.bitmap, pm::link_bit(cell));
    declare_invalid();
    // The record and its intent, before its bit; the bitmap, before the slot array.
    txn.commit([&] {
      fill_cell(leaf, cell, {key.prefix, record}, order);
      let_count();
    });
  } else {
    declare_invalid();
    memory_.fence();  // before the slot array changes
    fill_cell(leaf, cell, {key, value}, order);
    let_count();
    memory_.fence();  // before anybody can see it
  }
}

template <typename Content>
void Core<Content>::replace(StripeLock& lock, Node& leaf, Slot& slot, const Key& key,
                            const Value& value) {
  if constexpr (Content::kOutOfPlace) {
    records_.relink(slot.value, key.bytes, value, [&] { lock.begin_change(); });
  } else {
    (void)key;
    lock.begin_change();
    // A process that died may have left the bit by which the record counts in the caches only.
    // (Byte strings have intents, by which recovery makes it durable.)
    if (pool_.may_be_unflushed()) [[unlikely]]
      memory_.flush(&leaf.bitmap, sizeof leaf.bitmap);
    pm::store_release(slot.value, value);
    memory_.persist(&slot.value, sizeof slot.value);  // before anybody can see it
  }
}

template <typename Content>
void Core<Content>::take_out(StripeLock& lock, Node& leaf, uint32_t cell) {
  const auto clear_bit = [&] {
    lock.begin_change();
    pm::store_release(leaf.bitmap, pm::load_relaxed(leaf.bitmap) & ~bit(cell));
    memory_.flush(&leaf.bitmap, sizeof leaf.bitmap);
  };
  if constexpr (Content::kOutOfPlace) {
    const uint64_t record = leaf.cell(cell).value;
    pm::Heap::Txn txn(pool_.heap(), true);
    txn.will_unlink(record, &leaf.bitmap, pm::link_bit(cell), pm::Heap::Txn::Release::kLater);
    // The intent, before the bit is clear.
    txn.commit([&] { clear_bit(); });
    records_.retire(record);
  } else {
    clear_bit();
    memory_.fence();  // before anybody can miss it
  }
}

// ---- operations

template <typename Content>
typename Core<Content>::Outcome Core<Content>::try_write(const Condition& condition, const Key& key,
                                                         const Value& value) {
  StripeLock* lock = nullptr;
  Node& leaf = lock_leaf(key, lock);
  const std::unique_lock held(*lock, std::adopt_lock);
  Order order;
  const Place place = locate(leaf, key, order);
  if (place.cell != 0) {
    Slot& cell = leaf.cell(place.cell);
    if (!condition.holds_for(records_, cell.value)) return Outcome::kNot;
    replace(*lock, leaf, cell, key, value);
    return Outcome::kDone;
  }
  if (!condition.holds_if_absent()) return Outcome::kNot;
  if (is_full(leaf, 0)) return Outcome::kNoRoom;
  put(*lock, leaf, order, place.position, key, value);
  return Outcome::kDone;
}

template <typename Content>
bool Core<Content>::write_once(const Condition& condition, const Key& key, const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (Backoff backoff;; backoff.pause()) {
    const Outcome outcome = try_write(condition, key, value);
    if (outcome != Outcome::kNoRoom) return outcome == Outcome::kDone;
    make_room(key);
  }
}

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  pool_.require_writable();
  if constexpr (Content::kOutOfPlace) {
    records_.require_fits(key.bytes, value, tree::RangeTrees::kKeyBytesMax);
  }
  return records_.with_reclaim([&] { return write_once(condition, key, value); });
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  uint32_t left = 0;
  {
    StripeLock* lock = nullptr;
    Node& leaf = lock_leaf(key, lock);
    const std::unique_lock held(*lock, std::adopt_lock);
    Seen certain;
    const uint32_t cell = find(leaf, key, certain);
    if (cell == 0 || !condition.holds_for(records_, leaf.cell(cell).value)) return false;
    take_out(*lock, leaf, cell);
    left = live_count(leaf);
  }
  // Not after every removal: the neighbours would have no room most of the time.
  const uint32_t step = std::max(leaf_.records / 16, 1U);
  if (is_sparse(left, 0) && left % step == 0) tidy(key);
  return true;
}

PERDURE_WBTREE_INSTANTIATE()

}  // namespace perdure::index::wbtree
