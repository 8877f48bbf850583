// Levels: which there are, beginning with a new one, and being done with old ones.
#include <fmt/core.h>

#include <algorithm>

#include "index/level/core.h"

namespace perdure::index::level {

template <typename Policy, typename Content>
typename Core<Policy, Content>::Level Core<Policy, Content>::level_at(uint64_t offset) const {
  return {offset, reinterpret_cast<Node*>(pool_.at<LevelHeader>(offset) + 1),
          pool_.at<LevelHeader>(offset)->bits};
}

template <typename Policy, typename Content>
void Core<Policy, Content>::read_state(State& state) const {
  state.growing = root_.next != 0;
  if (root_.next != 0) state.levels[state.count++] = level_at(root_.next);
  state.levels[state.count++] = level_at(root_.top);
  state.levels[state.count++] = level_at(root_.bottom);
  for (const uint64_t extra : root_.extras) {
    if (extra != 0) state.levels[state.count++] = level_at(extra);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::publish(std::unique_ptr<State> state) {
  pm::may_pause();
  const State* before = state_.exchange(state.release(), std::memory_order_acq_rel);
  pm::come_to_place("level: state");
  epochs_.retire([before] { delete before; });
}

template <typename Policy, typename Content>
void Core<Policy, Content>::make_room(const State* seen) {
  if (!seen->growing) return begin_growing(seen);
  for (Backoff backoff; state_.load(std::memory_order_acquire) == seen; backoff.pause()) {
    pool_.require_writable();
    if (seen->stuck.load(std::memory_order_relaxed)) throw_stuck(pool_, name_);
    migrate_some(seen);
    if (!seen->is_migrated()) continue;
    if (!end_growing(seen)) grow_further(seen);
    return;
  }
}

// Whether an insert must wait until more is migrated. Writers help, so that the old levels are
// empty long before the new one is full; but a thread that migrates a part of them may be stopped
// by the system, or there are more threads than nodes. With more than one insert for each new node
// the records of that part might not fit any more.
template <typename Policy, typename Content>
bool Core<Policy, Content>::is_ahead(const State& state) {
  return state.growing &&
         state.inserts.fetch_add(1, std::memory_order_relaxed) >= state.levels[0].size() &&
         !state.is_migrated() && !state.stuck.load(std::memory_order_relaxed);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::help_to_migrate(const State* seen) {
  for (Backoff backoff; state_.load(std::memory_order_acquire) == seen; backoff.pause()) {
    pool_.require_writable();
    if (seen->is_migrated() || seen->stuck.load(std::memory_order_relaxed)) return;
    migrate_some(seen);
  }
}

// The bits of a level above the top one. Throws kPoolFull.
template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::larger(const State& state) const {
  if (state.levels[0].bits < kBitsMax) [[likely]]
    return state.levels[0].bits + 1;
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: '{}' has a level of 2^{} nodes, the largest there may be",
                          pool_.mapping().path(), name_, kBitsMax));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::begin_growing(const State* seen) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != seen) return;  // somebody else has begun
  auto state = std::make_unique<State>();  // before the change, so that publishing it cannot fail
  try {
    new_level(larger(*seen), root_.next);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    if (seen->count == 2 + kExtras - 1) throw;  // the last place is for grow_further()
    const uint32_t bits = std::max(seen->levels[0].bits - 3, stripe_bits_);
    new_level(bits, root_.extras[seen->count - 2]);
  }
  read_state(*state);
  publish(std::move(state));
}

// When the levels that the old ones are migrated into are full: the larger of them becomes the top
// one, below a new one, and the smaller one is migrated, too.
template <typename Policy, typename Content>
void Core<Policy, Content>::grow_further(const State* seen) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != seen) return;  // somebody else has
  if (seen->count == kLevels) {
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: '{}' cannot grow: it has as many levels as there may be; nothing "
                            "was changed",
                            pool_.mapping().path(), name_));
  }
  auto state = std::make_unique<State>();  // before the change, so that publishing it cannot fail
  pm::Heap::Txn txn(pool_.heap());
  const uint32_t bits = larger(*seen);
  const uint64_t at = txn.allocate(bytes_for(bits));
  format_level(pool_, pool_.at<char>(at), bits);
  uint64_t image[kLevels] = {root_.next, root_.top, at, root_.bottom};
  std::copy_n(root_.extras, kExtras - 1, image + 4);
  txn.will_link(at, &root_.next, pm::Link::kOffset);
  txn.redo(&root_.top, image, sizeof image);
  // The empty level, the intent and the redo record, before that is armed.
  txn.commit([&] { txn.apply(); });
  {
    const std::lock_guard hold(left_mutex_);
    left_.clear();  // the nodes are migrated again, with the others
  }
  read_state(*state);
  publish(std::move(state));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::new_level(uint32_t bits, uint64_t& link) {
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(bytes_for(bits));
  format_level(pool_, pool_.at<char>(at), bits);
  // The empty level and the intent, before the link.
  txn.publish(at, link);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::format_level(const pm::PoolImpl& pool, char* block, uint32_t bits) {
  write_zeros(pool.memory(), block, (bytes_for(bits) + 63) & ~uint64_t{63});
  alignas(pm::kLineBytes) const LevelHeader header{bits, ~bits, {}};
  pool.memory().copy_nontemporal(block, &header, sizeof header);
}

// When all nodes have been migrated. Returns false if records are left that fit nowhere now.
template <typename Policy, typename Content>
bool Core<Policy, Content>::end_growing(const State* state) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != state) return true;  // somebody else has
  {
    const std::lock_guard hold(left_mutex_);
    std::erase_if(left_,
                  [&](const auto& one) { return migrate_slowly(*state, *one.first, one.second); });
    if (!left_.empty()) return false;
  }
  constexpr auto kLater = pm::Heap::Txn::Release::kLater;
  auto after = std::make_unique<State>();  // before the change, so that publishing it cannot fail
  std::vector<uint64_t> blocks;
  pm::Heap::Txn txn(pool_.heap(), true);
  uint64_t* link = &root_.bottom;
  for (const Level& level : state->sources()) {
    txn.will_unlink(level.offset, link, pm::Link::kOffset, kLater);
    blocks.push_back(level.offset);
    link = link == &root_.bottom ? root_.extras : link + 1;
  }
  const uint64_t image[kLevels] = {root_.next, root_.top};
  txn.redo(&root_.top, image, sizeof image);
  // The intents and the redo record, before it is armed.
  txn.commit([&] { txn.apply(); });
  read_state(*after);
  publish(std::move(after));
  epochs_.retire([this, blocks = std::move(blocks)] {
    for (const uint64_t offset : blocks) pool_.heap().release(offset);
  });
  return true;
}

PERDURE_INSTANTIATE_PART(PERDURE_LEVEL_INSTANTIATE)

}  // namespace perdure::index::level
