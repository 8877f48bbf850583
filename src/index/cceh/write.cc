// Making, opening, and writing single records.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "index/cceh/core.h"

namespace perdure::index::cceh {

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name, const Variant& variant)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      variant_(variant),
      records_(pool, epochs_),
      geometry_{Geometry::of(root)},
      stripe_bits_(std::min(static_cast<uint32_t>(root.initial_depth), kStripeBitsMax)),
      stripes_(uint64_t{groups()} << stripe_bits_),
      directory_(pool.at<Directory>(root.directory)) {
  if (!Content::kOutOfPlace && pool.may_be_unflushed()) {
    // Of a large pool this is memory that nobody has touched.
    void* bits = std::calloc(settled_words(), sizeof(uint64_t));
    if (bits == nullptr) throw std::bad_alloc();
    settled_.reset(static_cast<std::atomic<uint64_t>*>(bits));
  }
  recover();
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require_range("initial_depth", options.initial_depth, 1, kInitialDepthMax);
  require_range("segment_buckets", options.segment_buckets, kBucketsMin, kBuckets);
  require_range("probe_buckets", options.probe_buckets, kProbeMin, kProbeMax);
  if (options.segment_buckets != 0 && !std::has_single_bit(options.segment_buckets)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("segment_buckets is {}; it must be a power of two", options.segment_buckets));
  }
  // Segments for a two hundred and fifty-sixth of the capacity, 16 MiB at most; each is made when
  // its first key comes.
  const uint64_t segments = pool.capacity_bytes() / 256 / sizeof(Segment);
  Root image{};
  image.seal.magic = kRootMagic;
  image.initial_depth = options.initial_depth != 0
                            ? options.initial_depth
                            : std::clamp<uint64_t>(std::bit_width(segments), 2, 11) - 1;
  image.buckets = options.segment_buckets != 0 ? options.segment_buckets : kBuckets;
  image.probe = options.probe_buckets != kProbe ? options.probe_buckets : 0;
  if (!Geometry::of(image).is_sound()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("probe_buckets is {}; it must be a power of two, and half of "
                            "segment_buckets at most",
                            options.probe_buckets));
  }
  const auto depth = static_cast<uint32_t>(image.initial_depth);
  const NewBlock directory{directory_bytes(depth), offsetof(Root, directory), [&](char* block) {
                             std::memset(block, 0, directory_bytes(depth));
                             *reinterpret_cast<Directory*>(block) = {depth, ~depth, {}};
                             pool.memory().flush(block, directory_bytes(depth));
                           }};
  const uint64_t root = make_structure(pool, name, options.variant->name, key, value, &image,
                                       sizeof image, kSealedBytes, {&directory, 1});
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name, *options.variant));
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  const uint64_t at = find_structure(pool, name, options.variant->name, key, value, kRootMagic,
                                     sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "initial_depth", options.initial_depth, root.initial_depth);
  require_same(pool, name, "segment_buckets", options.segment_buckets, root.buckets);
  require_same(pool, name, "probe_buckets", options.probe_buckets, Geometry::of(root).probe);
  if (root.initial_depth < 1 || root.initial_depth > kInitialDepthMax ||
      !Geometry::of(root).is_sound()) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  const auto* directory = pool.at<Directory>(root.directory);
  if (root.directory == 0 || root.directory >= pool.end_offset() ||
      directory->inverse != ~directory->depth || directory->depth < root.initial_depth ||
      directory->depth > kDepthMax ||
      !pool.heap().is_allocated(root.directory, directory_bytes(directory->depth))) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: the directory of '{}' is damaged; restore the file from a backup",
                          pool.mapping().path(), name)));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name, *options.variant));
}

template <typename Content>
void Core<Content>::require_sound(Entry entry) const {
  if (entry.depth() >= root_.initial_depth && entry.depth() <= directory().depth) [[likely]]
    return;
  pool_.throw_corrupt(
      fmt::format("'{}': a directory entry has no depth that it could have", name_));
}

// ---- locks

template <typename Content>
Core<Content>::Held::Held(const Core& core, uint64_t hash) {
  const uint32_t group = core.first_group(hash);
  const uint32_t last = core.last_group(hash);
  first_ = &core.stripes_[core.stripe_of(hash, std::min(group, last))];
  second_ = group == last ? nullptr : &core.stripes_[core.stripe_of(hash, std::max(group, last))];
  first_->lock();
  if (second_ != nullptr) second_->lock();
  if (core.pool_.failed()) [[unlikely]] {
    release();
    core.pool_
        .require_writable();  // throws: what a failed thread could not finish is not built upon
  }
}

template <typename Content>
void Core<Content>::Held::release() const {
  if (second_ != nullptr) second_->unlock();
  first_->unlock();
}

template <typename Content>
void Core<Content>::Held::begin_change() const {
  first_->begin_change();
  if (second_ != nullptr) second_->begin_change();
}

// ---- slots

template <typename Content>
bool Core<Content>::is_empty(const HashSlot& slot, uint32_t bucket, uint64_t prefix,
                             uint32_t depth) const {
  const uint64_t hash = pm::load_relaxed(slot.hash);
  if constexpr (Content::kOutOfPlace) {
    return (void)bucket, pm::load_relaxed(slot.value) == 0 || !same_prefix(hash, prefix, depth);
  } else {
    return !geometry_.may_live_in(hash, bucket) || !same_prefix(hash, prefix, depth);
  }
}

template <typename Content>
HashSlot* Core<Content>::empty_slot(Segment& segment, uint32_t bucket, uint64_t prefix,
                                    uint32_t depth) const {
  for (HashSlot& slot : segment.buckets[bucket].slots) {
    if (is_empty(slot, bucket, prefix, depth)) return &slot;
  }
  return nullptr;
}

template <typename Content>
HashSlot* Core<Content>::find_empty(Segment& segment, uint64_t hash, uint32_t depth) const {
  for (uint32_t i = 0; i < geometry_.probe; ++i) {
    const uint32_t bucket = geometry_.wrap(geometry_.home_of(hash) + i);
    if (HashSlot* slot = empty_slot(segment, bucket, hash, depth)) return slot;
  }
  return nullptr;
}

// Before a key comes to a slot: makes the groups of its buckets durable, each once since the
// opening. A process that died may have left the removal of the key in the caches only; the slot
// that it frees is not always the first one that is empty, and a power failure would bring the key
// back beside the record that is added elsewhere. (Byte strings have intents, by which recovery
// makes the slot durable.) What others store to the groups meanwhile may be flushed as well: that
// can happen at any time. The caller holds the stripes of the hash, and with them these groups'.
template <typename Content>
void Core<Content>::settle(const Segment& segment, uint64_t hash) const {
  if (settled_ == nullptr) [[likely]]
    return;
  const uint32_t first = first_group(hash);
  const uint32_t last = last_group(hash);
  bool any = false;
  const auto each = [&](const auto& visit) {
    for (const uint32_t group : {first, last}) {
      const Bucket& bucket = segment.buckets[size_t{group} * kGroupBuckets];
      const uint64_t number = pool_.offset_of(&bucket) / kGroupBytes;
      visit(bucket, settled_.get()[number / 64], uint64_t{1} << number % 64);
    }
  };
  each([&](const Bucket& bucket, const std::atomic<uint64_t>& word, uint64_t bit) {
    if ((word.load(std::memory_order_relaxed) & bit) != 0) return;
    memory_.flush(&bucket, kGroupBytes);
    any = true;
  });
  if (!any) return;
  memory_.fence();  // what the buckets have, before the key comes to one of them
  each([](const Bucket&, std::atomic<uint64_t>& word, uint64_t bit) {
    word.fetch_or(bit, std::memory_order_relaxed);
  });
}

template <typename Content>
void Core<Content>::put(const Held& held, HashSlot& slot, const Key& key, const Value& value) {
  if constexpr (Content::kOutOfPlace) {
    records_.link(slot.hash, slot.value, key.hash, key.bytes, value, [&] { held.begin_change(); });
  } else {
    held.begin_change();
    pm::store_release(slot.value, value);
    pm::store_release(slot.hash, key.hash);  // after the value, in the same line: commits
    memory_.persist(&slot, sizeof slot);     // before anybody can see it
  }
}

template <typename Content>
void Core<Content>::replace(const Held& held, HashSlot& slot, const Key& key, const Value& value) {
  replace_value<Content>(memory_, records_, slot.value, key, value, [&] { held.begin_change(); });
}

// ---- single records

template <typename Content>
typename Core<Content>::Outcome Core<Content>::try_write(const Condition& condition, const Key& key,
                                                         const Value& value, Entry& seen) {
  if (const Entry entry = entry_of(key.hash))
    prefetch(segment_of(entry), key.hash, geometry_.probe);
  const Held held(*this, key.hash);
  seen = entry_of(key.hash);
  if (!seen) return condition.holds_if_absent() ? Outcome::kNoRoom : Outcome::kNot;
  require_sound(seen);
  Segment& segment = segment_of(seen);
  uint64_t before = 0;
  if (HashSlot* slot = find(segment, key, before); slot != nullptr) {
    if (!condition.holds_for(records_, before)) return Outcome::kNot;
    replace(held, *slot, key, value);
    return Outcome::kDone;
  }
  if (!condition.holds_if_absent()) return Outcome::kNot;
  HashSlot* slot = find_empty(segment, key.hash, seen.depth());
  if (slot == nullptr) return Outcome::kNoRoom;
  settle(segment, key.hash);
  put(held, *slot, key, value);
  return Outcome::kDone;
}

template <typename Content>
bool Core<Content>::write_once(const Condition& condition, const Key& key, const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    Entry seen;
    const Outcome outcome = try_write(condition, key, value, seen);
    if (outcome != Outcome::kNoRoom) return outcome == Outcome::kDone;
    make_room(key.hash, seen);
  }
}

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, const Value& value) {
  return write_with_reclaim<Content>(pool_, records_, key, value,
                                     [&] { return write_once(condition, key, value); });
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  pool_.require_writable();
  const pm::EpochManager::Guard guard(epochs_);
  if (const Entry entry = entry_of(key.hash))
    prefetch(segment_of(entry), key.hash, geometry_.probe);
  const Held held(*this, key.hash);
  const Entry entry = entry_of(key.hash);
  if (!entry) return false;
  uint64_t value = 0;
  HashSlot* slot = find(segment_of(entry), key, value);
  if (slot == nullptr || !condition.holds_for(records_, value)) return false;
  if constexpr (Content::kOutOfPlace) {
    records_.unlink(slot->value, [&] { held.begin_change(); });
  } else {
    const auto* bucket = reinterpret_cast<const Bucket*>(reinterpret_cast<uintptr_t>(slot) &
                                                         ~uintptr_t{sizeof(Bucket) - 1});
    const auto number = static_cast<uint32_t>(bucket - segment_of(entry).buckets);
    held.begin_change();
    pm::store_release(slot->hash, geometry_.vacant_hash(number));
    memory_.persist(&slot->hash, sizeof slot->hash);  // before anybody can miss it
  }
  return true;
}

PERDURE_CCEH_INSTANTIATE()

}  // namespace perdure::index::cceh
