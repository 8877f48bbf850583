// Scans downwards: border nodes are linked to the right only, so each node is found in the node
// above or, if that has changed or has none before, by a descent for the greatest slice below the
// least one of the node that was read last. A node's least slice never changes, and merges make
// nodes grow to the right only: as long as its version holds, all slices from there to where the
// search aimed are the node's.
#pragma once

#include "index/masstree/core.h"

namespace perdure::index::masstree {

// Whether the entries are those of one moment.
template <typename Policy, typename Content>
bool Core<Policy, Content>::copy_under(const Node& node, const Seen& seen, const Under& under,
                                       Part& part) const {
  const Permutation permutation = permutation_of(node);
  part.count = 0;
  for (uint32_t rank = 0; rank < permutation.count(); ++rank) {
    const uint32_t slot = permutation.slot(rank);
    const Slice slice = slice_in(node, slot);
    if (!under.admits(slice)) break;
    part.entries[part.count++] = {slice, pm::load_acquire(node.values[slot])};
  }
  if (!seen.holds()) return false;
  // So no way through the layer is endless.
  if (!permutation.sound() || (!part.lowest && !under.admits(part.low))) [[unlikely]]
    throw_damaged(node);
  return true;
}

// The node before the one that the part is of, by way of the node above, as long as that is what it
// was.
template <typename Policy, typename Content>
bool Core<Policy, Content>::try_read_before(const Under& under, Part& part) const {
  if (part.parent_rank < 2) return false;
  const Node& parent = *part.parent;
  const uint32_t rank = part.parent_rank - 1;
  const uint32_t slot = permutation_of(parent).slot(rank - 1);
  const Slice low = slice_in(parent, slot);
  const uint64_t child = pm::load_acquire(parent.values[slot]);
  if (!part.parent_seen.holds()) return false;
  Node& node = require_child(parent, node_at(child));
  const Seen seen = see(node);
  // It was the parent's child when its version was noted.
  if (!part.parent_seen.holds()) return false;
  part.low = low;
  part.parent_rank = rank;
  return copy_under(node, seen, under, part);
}

template <typename Policy, typename Content>
bool Core<Policy, Content>::try_read_under(Layer& layer, const Under& under, Part& part) const {
  Node* node = nullptr;
  Seen seen;
  part.lowest = true;
  part.parent_rank = 0;
  const auto choose = [&](const Node& at, const Seen& here) {
    const Permutation permutation = permutation_of(at);
    uint32_t rank = permutation.count();
    if (under.kind != Under::Kind::kAll) {
      const Position position = find(at, permutation, under.slice);
      rank = position.rank;
      if (position.found && under.kind == Under::Kind::kUpTo) ++rank;
    }
    if (at.level == 1) {
      part.parent = &at;
      part.parent_seen = here;
      part.parent_rank = rank;
    }
    if (rank == 0) return pm::load_acquire(at.leftmost);
    const uint32_t slot = permutation.slot(rank - 1);
    part.lowest = false;
    part.low = slice_in(at, slot);
    return pm::load_acquire(at.values[slot]);
  };
  return try_reach_by(layer, {}, choose, node, seen) && copy_under(*node, seen, under, part);
}

// False if the layer has gone: it was empty.
template <typename Policy, typename Content>
bool Core<Policy, Content>::read_under(Layer& layer, const Under& under, Part& part) const {
  if (try_read_before(under, part)) return true;
  for (uint32_t attempts = 0; !try_read_under(layer, under, part); ++attempts) {
    if (is_obsolete(layer)) return false;
    if (attempts > kAttemptsMax) throw_damaged(node_at(layer.top));
  }
  return true;
}

// Whether the scan goes on before the layer. Null: from the layer's last key on.
template <typename Policy, typename Content>
template <typename Visit>
bool Core<Policy, Content>::scan_layer_back(Layer& layer, uint32_t depth, const Text* from,
                                            uint64_t& limit, Visit& visit) const {
  if (depth > kDepthMax) throw_damaged(node_at(layer.top));
  Under under;
  if (from != nullptr) under = {Under::Kind::kUpTo, slice_of(*from)};
  Part part;
  while (read_under(layer, under, part)) {
    for (uint32_t i = part.count; i-- > 0;) prefetch_entry(part.entries[i].value);
    for (uint32_t i = part.count; i-- > 0;) {
      const auto& [slice, value] = part.entries[i];
      const bool on_path = from != nullptr && slice == slice_of(*from);
      if constexpr (kWords) {
        (void)on_path;
        if (!visit(slice.word, value) || --limit == 0) return false;
      } else {
        if (is_layer(value)) {
          const Text below = on_path ? rest_of(*from, 1) : Text();
          if (!scan_layer_back(layer_at(value), depth + 1, on_path ? &below : nullptr, limit,
                               visit)) {
            return false;
          }
          continue;
        }
        const std::string_view key = records_.key(value);
        if (on_path && rest_of(key, depth) > *from) continue;
        if (!visit(key, records_.value(value)) || --limit == 0) return false;
      }
    }
    if (part.lowest) break;
    under = {Under::Kind::kBelow, part.low};
  }
  return true;
}

template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  if (limit == 0) return;
  const pm::EpochManager::Guard guard(epochs_);
  if (from == nullptr) {
    scan_layer_back(root_.first, 0, nullptr, limit, visit);
  } else {
    const Text text = text_of(*from);
    scan_layer_back(root_.first, 0, &text, limit, visit);
  }
}

}  // namespace perdure::index::masstree
