// Growing: a new table, bucket by bucket.
#include <fmt/core.h>

#include <algorithm>

#include "index/clht/core.h"

namespace perdure::index::clht {

namespace {

// The records of a bucket that moves.
std::vector<HashSlot>& moving_slots() {
  thread_local std::vector<HashSlot> slots;
  return slots;
}
// Of a chain that is not very long.
constexpr size_t kMovingSlots = 128;

}  // namespace

template <typename Policy, typename Content>
void Core<Policy, Content>::make_room(const State* seen, const Table* full) {
  if (full == seen->table) {
    if (seen->next == nullptr) begin_growing(seen);
    return;
  }
  // The new table is full before all have moved there; only a hash gone wrong can come to this.
  for (Backoff backoff; state_.load(std::memory_order_acquire) == seen; backoff.pause()) {
    pool_.require_writable();
    if (seen->stuck.load(std::memory_order_relaxed)) throw_stuck(pool_, name_);
    move_some(seen);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::publish(std::unique_ptr<const State> state) {
  pm::may_pause();
  const State* before = state_.exchange(state.release(), std::memory_order_acq_rel);
  pm::come_to_place("p-clht: state");
  epochs_.retire([before] { delete before; });
}

template <typename Policy, typename Content>
void Core<Policy, Content>::begin_growing(const State* seen) {
  Table& table = *seen->table;
  const uint64_t overflow = table.overflow_count();
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != seen) return;  // somebody else has begun
  if (table.overflow_count() != overflow) return;              // or has added an extent
  const uint32_t grow_at = root_.grow_at == 0 ? kPublishedGrowAt : root_.grow_at;
  if (overflow * 100 < table.size() * grow_at) return add_extent(table);
  for (uint32_t by = grow_at == kPublishedGrowAt ? 2 : 1; by >= 1; --by) {
    try {
      if (table.bits() + by <= kBitsMax) return begin_table(table, table.bits() + by);
      if (table.extent_count() < kExtents) continue;
      throw Error(ErrorCode::kPoolFull,
                  fmt::format("{}: '{}' has 2^{} buckets, the most there may be",
                              pool_.mapping().path(), name_, table.bits()));
    } catch (const Error& error) {
      const bool last = by == 1 && table.extent_count() == kExtents;
      if (!pm::is_full(error) || last) throw;
    }
  }
  add_extent(table);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::begin_table(Table& table, uint32_t bits) {
  const uint64_t overflow = std::max(Table::overflow_for(bits), 2 * table.overflow_count());
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(Table::bytes_for(bits, overflow));
  Table::format(memory_, pool_.at<char>(at), bits, overflow);
  // All that may lack memory, before the link: what follows it must happen.
  table.begin_moving();
  auto next = std::make_unique<Table>(pool_, at);
  auto state = std::make_unique<const State>(&table, next.get());
  link_block(txn, at, root_.next);
  next.release();  // the state's
  publish(std::move(state));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::add_extent(Table& table) {
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t bytes = Table::extent_bytes_for(table.bits());
  const uint64_t at = txn.allocate(bytes);
  write_zeros(memory_, pool_.at<char>(at), bytes);
  link_block(txn, at, root_.extents[table.extent_count()]);
  table.add_extent(pool_.at<Bucket>(at));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::link_block(pm::Heap::Txn& txn, uint64_t block, uint64_t& link) {
  // The block, its overflow buckets unclaimed, and the intent, before the link.
  txn.publish(block, link);
}

// Moves the next few buckets that nobody has begun with; who moves the last ones ends it.
template <typename Policy, typename Content>
void Core<Policy, Content>::move_some(const State* state) {
  Table& table = *state->table;
  if (table.begun.load(std::memory_order_relaxed) >= table.size()) {
    // Who moved the last ones may have lacked the memory to end it.
    if (table.done.load(std::memory_order_acquire) >= table.size()) end_growing(state);
    return;
  }
  // What may lack memory, before anything is begun that nobody else would go on with.
  moving_slots().reserve(kMovingSlots);
  const uint64_t first = table.begun.fetch_add(kMoveTogether, std::memory_order_relaxed);
  if (first >= table.size()) return;
  try {
    move_chunk(*state, first);
  } catch (...) {
    state->stuck.store(true, std::memory_order_relaxed);  // nobody else begins with these buckets
    throw;
  }
  const uint64_t done = table.done.fetch_add(kMoveTogether, std::memory_order_acq_rel);
  if (done + kMoveTogether == table.size()) end_growing(state);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::move_chunk(const State& state, uint64_t first) {
  Table& table = *state.table;
  Locks locks(*this);
  bool moves[kMoveTogether];
  for (uint64_t i = 0; i < kMoveTogether; ++i) {
    locks.take(table, first + i);
    table.settle(first + i);
    moves[i] = (pm::load_relaxed(table.main(first + i).next) & kMoved) == 0;
    if (moves[i]) copy_bucket(state, first + i);
  }
  memory_.fence();  // the new buckets, before the marks that make them count
  for (uint64_t i = 0; i < kMoveTogether; ++i) {
    if (moves[i]) mark_moved(table.main(first + i));
  }
  memory_.fence();  // the marks, before anybody writes to the new buckets
  table.note_moved(first);
}

// Moves one bucket, whose lock the caller holds.
template <typename Policy, typename Content>
void Core<Policy, Content>::move_one(const State& state, uint64_t home) {
  copy_bucket(state, home);
  memory_.fence();  // the new buckets, before the mark that makes them count
  mark_moved(state.table->main(home));
  memory_.fence();  // the mark, before anybody writes to the new buckets
}

template <typename Policy, typename Content>
void Core<Policy, Content>::mark_moved(Bucket& bucket) {
  pm::store_release(bucket.next, pm::load_relaxed(bucket.next) | kMoved);
  memory_.flush(&bucket.next, sizeof bucket.next);
}

// Writes the buckets of the new table that take the records of an old one, whole: whatever an
// interrupted attempt left in them is gone. Needs a fence.
template <typename Policy, typename Content>
void Core<Policy, Content>::copy_bucket(const State& state, uint64_t home) {
  constexpr uint32_t kTargetsMax = 4;
  std::vector<HashSlot>& slots = moving_slots();
  slots.clear();
  collect_chain(*state.table, home, slots);
  const uint32_t shift = state.next->bits() - state.table->bits();
  const uint64_t first = home << shift;
  std::sort(slots.begin(), slots.end(),
            [](const HashSlot& a, const HashSlot& b) { return a.hash < b.hash; });
  Bucket images[kTargetsMax];
  const HashSlot* from = slots.data();
  const HashSlot* end = from + slots.size();
  for (uint64_t i = 0; i < uint64_t{1} << shift; ++i) {
    const HashSlot* to = from;
    while (to != end && state.next->home_of(to->hash) == first + i) ++to;
    fill_chain(*state.next, state.table, first + i, from, static_cast<uint64_t>(to - from),
               images[i]);
    from = to;
  }
  memory_.copy_nontemporal(&state.next->main(first), images, sizeof(Bucket) << shift);
}

// The image of a main bucket with these records; writes the overflow buckets that they need.
template <typename Policy, typename Content>
void Core<Policy, Content>::fill_chain(Table& to, Table* from, uint64_t home, const HashSlot* slots,
                                       uint64_t count, Bucket& image) {
  image = Bucket{};
  const uint64_t here = std::min<uint64_t>(count, kSlots);
  for (uint32_t s = 0; s < kSlots; ++s) image.hash(s) = to.vacant_hash(home);
  uint32_t taken = 0;
  for (uint64_t i = 0; i < here; ++i) {
    uint32_t s = Bucket::first_slot(slots[i].hash);
    while ((taken >> s & 1) != 0) s = (s + 1) % kSlots;
    taken |= uint32_t{1} << s;
    image.hash(s) = slots[i].hash;
    image.value(s) = slots[i].value;
  }
  if (count == here) return;
  const uint64_t number = to.claim(home, from, true);
  if (number == Table::kNone) {
    // Cannot be: there are as many overflow buckets for this as the old table has.
    throw pool_.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: '{}' has more chained buckets than its table has room for; "
                          "restore the file from a backup",
                          pool_.mapping().path(), name_)));
  }
  Bucket overflow;
  fill_chain(to, from, home, slots + here, count - here, overflow);
  overflow.lock = pm::load_relaxed(to.overflow(number).lock);  // who has claimed it
  memory_.copy_nontemporal(&to.overflow(number), &overflow, sizeof overflow);
  image.next = number + 1;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::end_growing(const State* state) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != state) return;  // another thread has
  Table* old = state->table;
  Table* table = state->next;
  auto after = std::make_unique<const State>(
      table, nullptr);  // before the change, so that publishing it cannot fail
  pm::Heap::Txn txn(pool_.heap(), true);
  const uint64_t image[2 + kExtents] = {table->offset()};
  static_assert(offsetof(Root, extents) == offsetof(Root, table) + 2 * sizeof(uint64_t));
  constexpr auto kLater = pm::Heap::Txn::Release::kLater;
  txn.will_unlink(old->offset(), &root_.table, pm::Link::kOffset, kLater);
  std::vector<uint64_t> blocks = {old->offset()};
  for (uint32_t i = 0; i < old->extent_count(); ++i) {
    blocks.push_back(old->extent_offset(i));
    txn.will_unlink(old->extent_offset(i), &root_.extents[i], pm::Link::kOffset, kLater);
  }
  txn.redo(&root_.table, image, sizeof image);
  // The intent and the redo record, before it is armed.
  txn.commit([&] { txn.apply(); });
  publish(std::move(after));
  epochs_.retire([this, old, blocks = std::move(blocks)] {
    for (const uint64_t offset : blocks) pool_.heap().release(offset);
    delete old;
  });
}

PERDURE_INSTANTIATE_PART(PERDURE_CLHT_INSTANTIATE)

}  // namespace perdure::index::clht
