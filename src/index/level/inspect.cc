// Looking at a whole table: iteration, statistics, verification.
#include <fmt/core.h>

#include "index/level/core.h"
#include "index/structure.h"

namespace perdure::index::level {

// All live slots. Records do not change their nodes meanwhile.
template <typename Policy, typename Content>
void Core<Policy, Content>::collect(std::vector<HashSlot>& out) const {
  const std::lock_guard movement(movement_mutex_);
  for (const Level& level : state().all()) {
    const uint64_t together = uint64_t{1} << (level.bits - stripe_bits_);
    for (uint64_t first = 0; first < level.size(); first += together) {
      const std::lock_guard hold(stripes_[first / together]);
      for (uint64_t i = first; i < first + together; ++i) {
        const Node& node = level.nodes[i];
        for (uint32_t s = 0; s < kSlots; ++s) {
          if (is_live(node, s)) out.push_back(node.slots[s]);
        }
      }
    }
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  for (const Level& level : state().all()) {
    meet(level.offset, bytes_for(level.bits));
  }
  if constexpr (Content::kOutOfPlace) {
    std::vector<HashSlot> slots;
    collect(slots);
    for (const HashSlot& slot : slots) meet(slot.value, records_.bytes(slot.value));
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::check_node(const State& state, const Level& level, uint64_t number,
                                       const std::function<void(const std::string&)>& fail) const {
  const auto where = [&] {
    return fmt::format("'{}', level of 2^{}, node {}", name_, level.bits, number);
  };
  Node& node = level.nodes[number];
  for (uint32_t s = 0; s < kSlots; ++s) {
    if (!is_live(node, s)) continue;
    const HashSlot& slot = node.slots[s];
    if (&level.of(slot.hash, 0) != &node && &level.of(slot.hash, 1) != &node) {
      fail(where() + ": a record belongs to other nodes");
      continue;
    }
    Key key{};
    key.hash = slot.hash;
    if constexpr (Content::kOutOfPlace) {
      const auto tell = [&](const char* what) { fail(where() + ": " + what); };
      if (!records_.check(slot, tell)) continue;
      key.bytes = records_.key(slot.value);
    }
    // The search finds the first copy; this must be it, and within the node the only one.
    Place place;
    uint64_t value = 0;
    if (!find(state, key, place, value) || place.node != &node || place.slot != s) {
      fail(where() + ": a key is there twice");
    }
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const pm::EpochManager::Guard guard(epochs_);
  const State& now = state();
  if (!now.growing && now.levels[0].bits != now.levels[1].bits + 1) {
    fail(fmt::format("'{}': the top level is not twice as large as the bottom", name_));
  }
  for (const Level& level : now.all()) {
    for (uint64_t i = 0; i < level.size(); ++i) check_node(now, level, i, fail);
  }
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Policy, typename Content>
std::vector<Statistic> Core<Policy, Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  std::vector<HashSlot> slots;
  collect(slots);
  const State& now = state();
  uint64_t nodes = 0;
  for (const Level& level : now.all()) nodes += level.size();
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", stripes_.dram_bytes() + sizeof(State) + pm::EpochManager::kDramBytes,
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", slots.size(), "records");
  list.add("nodes", nodes, "nodes");
  list.add("levels", now.count, "levels");
  list.add("growing", now.growing ? 1 : 0, "");
  list.add_ratio("load_factor", slots.size(), nodes * kSlots, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, slots.size(), "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_LEVEL_INSTANTIATE)

}  // namespace perdure::index::level
