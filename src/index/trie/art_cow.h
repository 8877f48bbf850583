// The nodes of ART+CoW, the variant of ART that the authors of WORT compare theirs with.
#pragma once

#include <cstdint>

#include "index/trie/shapes.h"

namespace perdure::index::trie {

// ART+CoW: ART's nodes with up to 16 children are sorted, and replaced by a copy for each new
// child. Larger ones have one word that commits, and are changed in place.
struct ArtCow : Art {
  // Only the place of a child with the same symbol that was removed.
  static bool has_room(Node& node, uint64_t tag, uint32_t symbol) {
    if (!has_keys(tag)) return Art::has_room(node, tag, symbol);
    for (uint32_t i = 0; i < room_of(tag); ++i) {
      if (keys_of(node, tag)[i] != symbol || pm::load_relaxed(slots_of(node, tag)[i]) != 0)
        continue;
      // Not behind the last one, where keys are 0.
      for (uint32_t after = i + 1; after < room_of(tag); ++after) {
        if (pm::load_relaxed(slots_of(node, tag)[after]) != 0) return true;
      }
    }
    return false;
  }
};

}  // namespace perdure::index::trie
