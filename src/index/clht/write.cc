// Making, opening, and writing single records.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "index/clht/core.h"

namespace perdure::index::clht {

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      records_(pool, epochs_),
      state_(new State{new Table(pool, root.table),
                       root.next == 0 ? nullptr : new Table(pool, root.next)}) {
  for (uint32_t i = 0; i < kExtents && root.extents[i] != 0; ++i) {
    state_.load()->table->add_extent(pool.at<Bucket>(root.extents[i]));
  }
  if (root.next == 0) return;
  state_.load()->table->begin_moving();
  recovered_operations_ = 1;  // it was growing, and will go on
}

// 0 is always good.
void require_valid(const Options& options) {
  require_range("initial_bits", options.initial_bits, kBitsMin, 24);
  require_range("grow_at", options.grow_at, 1, kPublishedGrowAt);
}

template <typename Policy, typename Content>
Core<Policy, Content>::~Core() {
  const State* state = state_.load();
  delete state->table;
  delete state->next;
  delete state;
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options& options) {
  require_valid(options);
  // A sixty-fourth of the capacity, 16 MiB at most.
  const uint64_t buckets =
      std::min<uint64_t>(pool.capacity_bytes() / 64, uint64_t{16} << 20) / sizeof(Bucket);
  const uint32_t bits =
      options.initial_bits != 0
          ? options.initial_bits
          : std::max(kBitsMin, static_cast<uint32_t>(std::bit_width(buckets)) - 1);
  Root image{};
  image.seal.magic = kRootMagic;
  image.bucket_bytes = sizeof(Bucket);
  image.grow_at = options.grow_at != 0 ? options.grow_at : Policy::kGrowAt;
  const uint64_t overflow = Table::overflow_for(bits);
  const NewBlock table{Table::bytes_for(bits, overflow), offsetof(Root, table), [&](char* block) {
                         Table::format(pool.memory(), block, bits, overflow);
                         auto* main = reinterpret_cast<Bucket*>(block) + 1;
                         write_zeros(pool.memory(), main, sizeof(Bucket) << bits);
                         // Zeros belong to bucket 0: there they would not be empty slots.
                         Bucket first{};
                         for (uint32_t s = 0; s < kSlots; ++s) {
                           first.hash(s) = uint64_t{1} << (64 - bits);
                         }
                         pool.memory().copy_nontemporal(main, &first, sizeof first);
                       }};
  const uint64_t root = make_structure(pool, name, Policy::kName, key, value, &image, sizeof image,
                                       kSealedBytes, {&table, 1});
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options& options) {
  require_valid(options);
  const uint64_t at =
      find_structure(pool, name, Policy::kName, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  const auto sound = [&](uint64_t offset) {
    if (offset < pool.header().data_offset || offset >= pool.end_offset()) return false;
    const auto* header = pool.at<TableHeader>(offset);
    return header->check == TableHeader::make(header->bits, header->overflow).check &&
           header->bits >= kBitsMin && header->bits <= kBitsMax &&
           header->overflow >= Table::overflow_for(header->bits) &&
           header->overflow < pool.end_offset() / sizeof(Bucket) &&
           pool.heap().is_allocated(offset, Table::bytes_for(header->bits, header->overflow));
  };
  bool all_sound = root.bucket_bytes == sizeof(Bucket) && sound(root.table);
  for (uint32_t i = 0; i < kExtents && all_sound; ++i) {
    if (root.extents[i] == 0) continue;
    const uint64_t bytes = Table::extent_bytes_for(pool.at<TableHeader>(root.table)->bits);
    all_sound = (i == 0 || root.extents[i - 1] != 0) &&  // there is none behind the last
                pool.heap().is_allocated(root.extents[i], bytes);
  }
  if (all_sound && root.next != 0) {
    const auto bits_of = [&](uint64_t table) { return pool.at<TableHeader>(table)->bits; };
    all_sound = sound(root.next) && bits_of(root.next) - bits_of(root.table) - 1 < kGrowBitsMax;
  }
  if (!all_sound) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the table of '{}' is damaged; restore the file from a backup",
                          pool.mapping().path(), name)));
  }
  if (options.grow_at != 0 && root.grow_at != 0 && options.grow_at != root.grow_at) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' was made with grow_at {}, which is fixed at creation",
                            pool.mapping().path(), name, root.grow_at));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

// ---- locks

template <typename Policy, typename Content>
Core<Policy, Content>::Held::Held(Core& core, uint64_t hash) : lock_(core) {
  for (;;) {
    state = pm::acquire(core.state_);
    table = newest_for(*state, hash);
    home = table->home_of(hash);
    prefetch(table->main(home));  // all lines at once, before the lock waits for the first
    if (table == state->table) {
      lock_.take(*table, home);
      table->settle(home);
      const bool moved = (pm::load_relaxed(table->main(home).next) & kMoved) != 0;
      if (!moved && state->next == nullptr) return;
      if (!moved) core.move_one(*state, home);
      lock_.release();
      if (state->next == nullptr) {  // it has moved since `state` was loaded
        core.require_replaced(state);
        continue;
      }
      table = state->next;
      home = table->home_of(hash);
    }
    lock_.take(*table, home);
    table->settle(home);
    if ((pm::load_relaxed(table->main(home).next) & kMoved) == 0) return;
    lock_.release();  // the table has grown again
    core.require_replaced(state);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::unlock(const Table& table, uint64_t home) const {
  table.lock_of(home).unlock();
  if constexpr (Policy::kEvict) {
    // VE: so that the medium's buffer takes this together with what was written. Orders nothing.
    memory_.flush(&table.main(home).lock, sizeof(uint64_t));
  }
}

// ---- slots

template <typename Policy, typename Content>
bool Core<Policy, Content>::is_live(const Table& table, Bucket& bucket, uint32_t slot,
                                    uint64_t home) {
  if constexpr (Content::kOutOfPlace) {
    return (void)table, (void)home, pm::load_relaxed(bucket.value(slot)) != 0;
  } else {
    return table.home_of(pm::load_relaxed(bucket.hash(slot))) == home;
  }
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Place Core<Policy, Content>::find_empty(const Held& held,
                                                                        uint64_t hash,
                                                                        Bucket*& last) const {
  uint64_t steps = 0;
  for (Bucket* bucket = &held.table->main(held.home); bucket != nullptr;) {
    for (uint32_t i = 0; i < kSlots; ++i) {
      const uint32_t s = (Bucket::first_slot(hash) + i) % kSlots;
      if (!is_live(*held.table, *bucket, s, held.home)) return {bucket, nullptr, s};
    }
    last = bucket;
    bucket = held.table->next_of(*bucket);
    if (bucket != nullptr) held.table->count_step(steps);
  }
  return {};
}

template <typename Policy, typename Content>
void Core<Policy, Content>::put(const Place& place, const Key& key, const Value& value) {
  uint64_t& hash_at = place.bucket->hash(place.slot);
  uint64_t& value_at = place.bucket->value(place.slot);
  if constexpr (Content::kOutOfPlace) {
    records_.link(hash_at, value_at, key.hash, key.bytes, value, [] {});
  } else {
    pm::store_release(value_at, value);
    if constexpr (!Policy::kCoalesce) {
      memory_.persist(&value_at, sizeof value_at);  // before the hash that reveals it
    }
    pm::store_release(hash_at, key.hash);       // after the value, in the same line: commits
    memory_.persist(&hash_at, sizeof hash_at);  // before the lock is released
  }
}

// Appends an overflow bucket to a chain and puts the record there. Returns false if there is none.
template <typename Policy, typename Content>
bool Core<Policy, Content>::put_in_chain(const Held& held, Bucket& last, const Key& key,
                                         const Value& value) {
  const Table* from = held.table == held.state->next ? held.state->table : nullptr;
  const uint64_t number = held.table->claim(held.home, from, false);
  if (number == Table::kNone) return false;
  Bucket& fresh = held.table->overflow(number);
  const uint32_t slot = Bucket::first_slot(key.hash);
  for (uint32_t s = 0; s < kSlots; ++s) {
    pm::store_relaxed(fresh.value(s), uint64_t{0});
    pm::store_relaxed(fresh.hash(s), held.table->vacant_hash(held.home));
  }
  if constexpr (!Content::kOutOfPlace) {
    pm::store_relaxed(fresh.value(slot), value);
    pm::store_relaxed(fresh.hash(slot), key.hash);
  }
  pm::store_release(fresh.next, uint64_t{0});
  memory_.persist(&fresh, sizeof fresh);  // the bucket, whole, before the link that reveals it
  pm::store_release(last.next, number + 1);
  memory_.persist(&last.next, sizeof last.next);  // before the lock is released
  if constexpr (Content::kOutOfPlace) put({&fresh, &last, slot}, key, value);
  return true;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::replace(const Place& place, const Key& key, const Value& value) {
  replace_value<Content>(memory_, records_, place.bucket->value(place.slot), key, value, [] {});
}

// ---- single records

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::try_write(const Condition& condition,
                                                                         const Key& key,
                                                                         const Value& value,
                                                                         const State*& seen,
                                                                         const Table*& full) {
  const Held held(*this, key.hash);
  seen = held.state;
  full = held.table;
  Place place;
  uint64_t before = 0;
  if (find(*held.table, held.home, key, place, before)) {
    if (!condition.holds_for(records_, before)) return Outcome::kNot;
    replace(place, key, value);
    return Outcome::kDone;
  }
  if (!condition.holds_if_absent()) return Outcome::kNot;
  Bucket* last = nullptr;
  place = find_empty(held, key.hash, last);
  if (place.bucket != nullptr) {
    put(place, key, value);
    return Outcome::kDone;
  }
  return put_in_chain(held, *last, key, value) ? Outcome::kDone : Outcome::kNoRoom;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const State* seen = nullptr;
    const Table* full = nullptr;
    const Outcome outcome = try_write(condition, key, value, seen, full);
    if (outcome == Outcome::kNoRoom) {
      make_room(seen, full);
      continue;
    }
    // Whoever writes helps, so that the new table is complete long before it is full.
    if (seen->next != nullptr) move_some(seen);
    return outcome == Outcome::kDone;
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write(const Condition& condition, const Key& key, const Value& value) {
  return write_with_reclaim<Content>(pool_, records_, key, value,
                                     [&] { return write_once(condition, key, value); });
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  const Held held(*this, key.hash);
  Place place;
  uint64_t value = 0;
  if (!find(*held.table, held.home, key, place, value)) return false;
  if (!condition.holds_for(records_, value)) return false;
  if constexpr (Content::kOutOfPlace) {
    records_.unlink(place.bucket->value(place.slot), [] {});
  } else {
    uint64_t& hash_at = place.bucket->hash(place.slot);
    pm::store_release(hash_at, held.table->vacant_hash(held.home));
    memory_.persist(&hash_at, sizeof hash_at);  // before the lock is released
  }
  if (place.before != nullptr) unchain(held, place);
  return true;
}

// Takes an overflow bucket out of its chain if it has become empty.
template <typename Policy, typename Content>
void Core<Policy, Content>::unchain(const Held& held, const Place& place) {
  for (uint32_t s = 0; s < kSlots; ++s) {
    if (is_live(*held.table, *place.bucket, s, held.home)) return;
  }
  const uint64_t number = held.table->next_number(*place.before);
  pm::store_release(place.before->next, pm::load_relaxed(place.bucket->next));
  memory_.persist(&place.before->next, sizeof(uint64_t));  // before another chain may claim it
  held.table->give_back(number);
}

PERDURE_CLHT_INSTANTIATE()

}  // namespace perdure::index::clht
