// Making, opening, and writing single records.
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "index/level/core.h"

namespace perdure::index::level {

namespace {

// Stripes must not be finer than the nodes of any level.
uint32_t stripe_bits_for(pm::PoolImpl& pool, const Root& root) {
  uint32_t bits = pool.at<LevelHeader>(root.bottom)->bits - 3;
  for (const uint64_t extra : root.extras) {
    if (extra != 0) bits = std::min(bits, pool.at<LevelHeader>(extra)->bits);
  }
  return std::clamp(bits, 1U, 12U);
}

}  // namespace

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      records_(pool, epochs_),
      state_([this] {
        auto state = std::make_unique<State>();
        read_state(*state);
        return state.release();
      }()),
      stripe_bits_(stripe_bits_for(pool, root)),
      stripes_(uint64_t{1} << stripe_bits_) {
  if (root.next != 0) recovered_operations_ = 1;  // it was growing, and will go on
}

template <typename Policy, typename Content>
Core<Policy, Content>::~Core() {
  delete state_.load();
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options& options) {
  require_range("initial_bits", options.initial_bits, kBitsMin, 24);
  // A sixty-fourth of the capacity, 16 MiB at most.
  const uint64_t nodes = std::min<uint64_t>(pool.capacity_bytes() / 64, 16 << 20) / 64;
  const uint32_t bits = options.initial_bits != 0
                            ? options.initial_bits
                            : std::max(kBitsMin, static_cast<uint32_t>(std::bit_width(nodes)) - 1);
  const auto fill = [&pool](uint32_t of_level) {
    return [&pool, of_level](char* block) { format_level(pool, block, of_level); };
  };
  Root image{};
  image.seal.magic = kRootMagic;
  image.node_bytes = sizeof(Node);
  const NewBlock levels[2] = {{bytes_for(bits), offsetof(Root, top), fill(bits)},
                              {bytes_for(bits - 1), offsetof(Root, bottom), fill(bits - 1)}};
  const uint64_t root = make_structure(pool, name, Policy::kName, key, value, &image, sizeof image,
                                       kSealedBytes, levels);
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options& options) {
  require_range("initial_bits", options.initial_bits, kBitsMin, 24);
  const uint64_t at =
      find_structure(pool, name, Policy::kName, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  const auto sound = [&](uint64_t offset) {
    if (offset < pool.header().data_offset || offset >= pool.end_offset()) return false;
    const auto* header = pool.at<LevelHeader>(offset);
    const uint32_t bits = header->bits;
    return header->inverse == ~bits && bits >= kExtraBitsMin && bits <= kBitsMax &&
           pool.heap().is_allocated(offset, bytes_for(bits));
  };
  const auto bits_of = [&](uint64_t level) { return pool.at<LevelHeader>(level)->bits; };
  // Each is twice as large as the one below, so that node numbers and stripes fit.
  bool all_sound = root.node_bytes == sizeof(Node) && sound(root.top) && sound(root.bottom) &&
                   bits_of(root.bottom) >= kBitsMin - 1 &&
                   bits_of(root.top) == bits_of(root.bottom) + 1;
  if (all_sound && root.next != 0) {
    all_sound = sound(root.next) && bits_of(root.next) == bits_of(root.top) + 1;
  }
  for (uint32_t i = 0; i < kExtras && all_sound; ++i) {
    if (root.extras[i] == 0) continue;
    // There is none behind the last.
    all_sound = sound(root.extras[i]) && (i == 0 || root.extras[i - 1] != 0);
  }
  if (!all_sound) {
    throw pool.damaged(
        Error(ErrorCode::kCorrupt,
              fmt::format("{}: a level of '{}' is damaged; restore the file from a backup",
                          pool.mapping().path(), name)));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

// ---- locks

template <typename Policy, typename Content>
Core<Policy, Content>::Held::Held(const Core& core, uint64_t hash) {
  locks_[0] = &core.stripe_of(hash, 0);
  locks_[1] = &core.stripe_of(hash, 1);
  if (locks_[1] < locks_[0]) std::swap(locks_[0], locks_[1]);
  if (locks_[0] == locks_[1]) locks_[1] = nullptr;
  locks_[0]->lock();
  if (locks_[1] != nullptr) locks_[1]->lock();
  if (core.pool_.failed()) [[unlikely]] {
    release();
    core.pool_
        .require_writable();  // throws: what a failed thread could not finish is not built upon
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::Held::release() {
  for (StripeLock* lock : locks_) {
    if (lock != nullptr) lock->unlock();
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::Held::begin_change() const {
  for (StripeLock* lock : locks_) {
    if (lock != nullptr) lock->begin_change();
  }
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::Held::try_also(StripeLock& lock) {
  if (locks_[0] == &lock || locks_[1] == &lock || locks_[2] == &lock) return true;
  if (locks_[2] != nullptr) locks_[2]->unlock();  // nothing was changed under it
  locks_[2] = lock.try_lock() ? &lock : nullptr;
  return locks_[2] != nullptr;
}

// ---- slots

template <typename Policy, typename Content>
typename Core<Policy, Content>::Place Core<Policy, Content>::find_empty(
    std::span<const Level> levels, uint64_t hash) {
  for (const Level& level : levels) {
    Node* node = &level.of(hash, 0);
    Node* other = &level.of(hash, 1);
    if (live_slots(*other) < live_slots(*node)) node = other;
    for (uint32_t s = 0; s < kSlots; ++s) {
      if (!is_live(*node, s)) return {node, s};
    }
  }
  return {};
}

// Before a key is written: makes the nodes where it may be durable, each once in a generation. A
// process that died may have left the removal of the key from one of them in the caches only, and a
// power failure would bring it back beside the record that is added to another; or the token by
// which the record counts whose value is replaced in another line. (Byte strings have
// intents, by which recovery does that.) The caller holds the stripes of the hash.
template <typename Policy, typename Content>
void Core<Policy, Content>::settle(const State& state, uint64_t hash) const {
  if (Content::kOutOfPlace || !pool_.may_be_unflushed()) [[likely]]
    return;
  std::array<Node*, size_t{2} * kLevels> nodes;
  uint32_t count = 0;
  for (const Level& level : state.all()) {
    for (uint32_t side = 0; side < 2; ++side) {
      Node& node = level.of(hash, side);
      if (pm::load_relaxed(node.settled) == pool_.generation()) continue;
      memory_.flush(&node, sizeof node);
      nodes[count++] = &node;
    }
  }
  if (count == 0) return;
  memory_.fence();  // what the nodes have, before the key comes to one of them
  for (uint32_t i = 0; i < count; ++i) pm::store_relaxed(nodes[i]->settled, pool_.generation());
}

template <typename Policy, typename Content>
void Core<Policy, Content>::put(const Held& held, const Place& place, const Key& key,
                                const Value& value) {
  HashSlot& slot = place.node->slots[place.slot];
  if constexpr (Content::kOutOfPlace) {
    records_.link(slot.hash, slot.value, key.hash, key.bytes, value, [&] { held.begin_change(); });
  } else {
    uint64_t& token = place.node->token;
    held.begin_change();
    pm::store_release(slot.value, value);
    pm::store_release(slot.hash, key.hash);
    if constexpr (!Policy::kOneLine) {
      memory_.persist(&slot, sizeof slot);  // the record, before the token that reveals it
    }
    // After the record; in the same line that is enough: commits.
    pm::store_release(token, pm::load_relaxed(token) | uint64_t{1} << place.slot);
    memory_.persist(&token, sizeof token);  // before anybody can see it
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::replace(const Held& held, const Place& place, const Key& key,
                                    const Value& value) {
  replace_value<Content>(memory_, records_, place.node->slots[place.slot].value, key, value,
                         [&] { held.begin_change(); });
}

// ---- single records

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::try_write(const Condition& condition,
                                                                         const Key& key,
                                                                         const Value& value,
                                                                         const State*& seen) {
  prefetch(state(), key.hash);
  Held held(*this, key.hash);
  seen = &state();  // after the locks: who migrates a level takes them, too
  Place place;
  uint64_t before = 0;
  if (find(*seen, key, place, before)) {
    if (!condition.holds_for(records_, before)) return Outcome::kNot;
    settle(*seen, key.hash);
    replace(held, place, key, value);
    return Outcome::kDone;
  }
  if (!condition.holds_if_absent()) return Outcome::kNot;
  if (is_ahead(*seen)) return Outcome::kAhead;
  settle(*seen, key.hash);
  place = find_empty(seen->targets(), key.hash);
  if (place.node == nullptr) {
    const Outcome outcome = displace(held, *seen, key.hash, place);
    if (outcome != Outcome::kDone) return outcome;
  }
  put(held, place, key, value);
  return Outcome::kDone;
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::write_once(const Condition& condition, const Key& key,
                                       const Value& value) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    const State* seen = nullptr;
    const Outcome outcome = try_write(condition, key, value, seen);
    if (outcome == Outcome::kRetry) {
      wait_for_movement();
      continue;
    }
    if (outcome == Outcome::kNoRoom) {
      make_room(seen);
      continue;
    }
    if (outcome == Outcome::kAhead) {
      help_to_migrate(seen);
      continue;
    }
    if (seen->growing) migrate_some(seen);
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
  prefetch(state(), key.hash);
  const Held held(*this, key.hash);
  Place place;
  uint64_t value = 0;
  if (!find(state(), key, place, value)) return false;
  if (!condition.holds_for(records_, value)) return false;
  if constexpr (Content::kOutOfPlace) {
    records_.unlink(place.node->slots[place.slot].value, [&] { held.begin_change(); });
  } else {
    uint64_t& token = place.node->token;
    held.begin_change();
    pm::store_release(token, pm::load_relaxed(token) & ~(uint64_t{1} << place.slot));
    memory_.persist(&token, sizeof token);  // before anybody can miss it
  }
  return true;
}

PERDURE_LEVEL_INSTANTIATE()

}  // namespace perdure::index::level
