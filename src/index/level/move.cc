// Moving records from node to node: to make room for one, and to empty a level.
#include "index/level/core.h"

namespace perdure::index::level {

// A few moves that happen together or not at all.
template <typename Policy, typename Content>
class Core<Policy, Content>::Mover {
 public:
  explicit Mover(Core& core) : core_(core), txn_(core.pool_.heap(), true) {}

  bool empty() const { return count_ == 0; }

  // A slot of the node that nobody has, and that no move planned here will take.
  Place empty_slot(Node& node) const {
    for (uint32_t s = 0; s < kSlots; ++s) {
      if (!is_live(node, s) && !is_planned(node, s)) return {&node, s};
    }
    return {};
  }

  void plan(const Place& from, const Place& to) {
    const HashSlot record{pm::load_relaxed(from.node->slots[from.slot].hash),
                          pm::load_relaxed(from.node->slots[from.slot].value)};
    txn_.redo(&to.node->slots[to.slot], &record, sizeof record);
    if constexpr (Content::kOutOfPlace) {
      const uint64_t none = 0;
      txn_.redo(&from.node->slots[from.slot].value, &none, sizeof none);
    } else {
      token_of(*from.node).image &= ~(uint64_t{1} << from.slot);
      token_of(*to.node).image |= uint64_t{1} << to.slot;
    }
    planned_[count_++] = to;
  }

  // The locks of all nodes concerned are held and keep readers out. Durable on return.
  void commit() {
    for (uint32_t i = 0; i < token_count_; ++i) {
      txn_.redo(&tokens_[i].node->token, &tokens_[i].image, sizeof(uint64_t));
    }
    txn_.commit_redo([] {});
  }

 private:
  static constexpr uint32_t kMovesMax = kMigrateTogether * kSlots;
  struct Token {
    Node* node;
    uint64_t image;
  };

  bool is_planned(const Node& node, uint32_t slot) const {
    for (uint32_t i = 0; i < count_; ++i) {
      if (planned_[i].node == &node && planned_[i].slot == slot) return true;
    }
    return false;
  }
  Token& token_of(Node& node) {
    for (uint32_t i = 0; i < token_count_; ++i) {
      if (tokens_[i].node == &node) return tokens_[i];
    }
    tokens_[token_count_] = {&node, pm::load_relaxed(node.token)};
    return tokens_[token_count_++];
  }

  Core& core_;
  pm::Heap::Txn txn_;
  uint32_t count_ = 0;
  uint32_t token_count_ = 0;
  std::array<Place, kMovesMax> planned_;
  std::array<Token, size_t{2} * kMovesMax> tokens_;
};

// ---- making room for one record

template <typename Policy, typename Content>
void Core<Policy, Content>::wait_for_movement() const {
  std::this_thread::yield();
  const std::shared_lock movement(movement_mutex_);
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::displace(Held& held,
                                                                        const State& state,
                                                                        uint64_t hash,
                                                                        Place& place) {
  const std::shared_lock movement(movement_mutex_, std::try_to_lock);
  return movement.owns_lock() ? displace_now(held, state, hash, place) : Outcome::kRetry;
}

// Moves one of the records in a hash's nodes to another of its own. `place` is the slot it had.
template <typename Policy, typename Content>
typename Core<Policy, Content>::Outcome Core<Policy, Content>::displace_now(Held& held,
                                                                            const State& state,
                                                                            uint64_t hash,
                                                                            Place& place) {
  bool contended = false;
  Mover mover(*this);
  for (uint32_t i = 0; i < state.targets().size() * 2 * kSlots; ++i) {
    Node& node = state.targets()[i / (2 * kSlots)].of(hash, i / kSlots % 2);
    const uint64_t other_hash = pm::load_relaxed(node.slots[i % kSlots].hash);
    for (uint32_t j = 0; j < state.targets().size() * 2; ++j) {
      Node& refuge = state.targets()[j / 2].of(other_hash, j % 2);
      if (&refuge == &node || mover.empty_slot(refuge).node == nullptr) continue;
      if (!held.try_also(stripe_of(other_hash, j % 2))) {
        contended = true;
        continue;
      }
      // Until now somebody could fill the refuge, or begin to migrate its level.
      if (&this->state() != &state) return Outcome::kRetry;
      const Place to = mover.empty_slot(refuge);
      if (to.node == nullptr) continue;
      place = {&node, i % kSlots};
      mover.plan(place, to);
      held.begin_change();
      mover.commit();
      return Outcome::kDone;
    }
  }
  return contended ? Outcome::kRetry : Outcome::kNoRoom;
}

// ---- emptying a level

// Migrates the next few nodes that nobody has begun with; who migrates the last ones ends it.
template <typename Policy, typename Content>
void Core<Policy, Content>::migrate_some(const State* state) {
  const uint64_t total = state->source_nodes();
  if (state->begun.load(std::memory_order_relaxed) >= total) return;
  const uint64_t first = state->begun.fetch_add(kMigrateTogether, std::memory_order_relaxed);
  if (first >= total) return;
  try {
    migrate_chunk(*state, first);
  } catch (...) {
    state->stuck.store(true, std::memory_order_relaxed);  // nobody else begins with these nodes
    throw;
  }
  const uint64_t done = state->done.fetch_add(kMigrateTogether, std::memory_order_acq_rel);
  if (done + kMigrateTogether == total) end_growing(state);
}

template <typename Policy, typename Content>
void Core<Policy, Content>::migrate_chunk(const State& state, uint64_t first) {
  const Level* level = state.sources().data();
  for (; first >= level->size(); ++level) first -= level->size();
  // Nodes of one stripe together.
  const uint64_t together = std::min(kMigrateTogether, uint64_t{1} << (level->bits - stripe_bits_));
  for (uint64_t i = 0; i < kMigrateTogether; i += together) {
    migrate_nodes(state, *level, first + i, together);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::migrate_nodes(const State& state, const Level& level, uint64_t first,
                                          uint64_t count) {
  std::array<bool, kMigrateTogether> left = {};
  {
    const std::shared_lock movement(movement_mutex_);
    StripeLock& lock = stripes_[first >> (level.bits - stripe_bits_)];
    const std::lock_guard hold(lock);
    pool_.require_writable();  // what a failed thread could not finish is not built upon
    Mover mover(*this);
    for (uint64_t i = 0; i < count * kSlots; ++i) {
      Node& node = level.nodes[first + i / kSlots];
      const auto slot = static_cast<uint32_t>(i % kSlots);
      if (!is_live(node, slot)) continue;
      const uint64_t hash = pm::load_relaxed(node.slots[slot].hash);
      Place to;
      for (uint32_t j = 0; j < 4 && to.node == nullptr; ++j) {
        if (&stripe_of(hash, j % 2) != &lock) continue;
        to = mover.empty_slot(state.targets()[j / 2].of(hash, j % 2));
      }
      if (to.node != nullptr) {
        mover.plan({&node, slot}, to);
      } else {
        left[i / kSlots] = true;
      }
    }
    if (!mover.empty()) {
      lock.begin_change();
      mover.commit();
    }
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (!left[i] || migrate_slowly(state, level, first + i)) continue;
    const std::lock_guard hold(left_mutex_);
    left_.emplace_back(&level, first + i);
  }
}

// Migrates a node whose records need both of their stripes, or even that others move.
template <typename Policy, typename Content>
bool Core<Policy, Content>::migrate_slowly(const State& state, const Level& level,
                                           uint64_t number) {
  Node& node = level.nodes[number];
  for (uint32_t slot = 0; slot < kSlots;) {
    if (!is_live(node, slot)) {
      ++slot;
      continue;
    }
    const uint64_t hash = pm::load_relaxed(node.slots[slot].hash);
    const std::shared_lock movement(movement_mutex_);
    Held held(*this, hash);
    if (!is_live(node, slot) || pm::load_relaxed(node.slots[slot].hash) != hash) continue;
    Place to = find_empty(state.targets(), hash);
    if (to.node == nullptr) {
      const Outcome outcome = displace_now(held, state, hash, to);
      if (outcome == Outcome::kNoRoom) return false;
      if (outcome == Outcome::kRetry) continue;
    }
    Mover mover(*this);
    mover.plan({&node, slot}, to);
    held.begin_change();
    mover.commit();
  }
  return true;
}

PERDURE_INSTANTIATE_PART(PERDURE_LEVEL_INSTANTIATE)

}  // namespace perdure::index::level
