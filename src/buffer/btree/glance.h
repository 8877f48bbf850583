// Reading nodes that others may be changing: what is found may make no sense, and nothing outside
// of the page is read. Who has looked then asks whether the page is still what it was (latch.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "buffer/page.h"

namespace perdure::buffer {

struct Glance {
  uint16_t level = 0;
  uint64_t child = 0;        // of an inner node: where the key belongs
  bool found = false;        // of a leaf
  bool overflow = false;     // its value has pages of its own
  uint32_t value_bytes = 0;  // of a value in the leaf: they were copied
};

// Looks for a key in the node in `page`; a value is copied to `value`, which has room for a page.
// False: it is no node, or the key is longer than any.
bool glance_at_node(const PageFormat& format, const char* page, std::string_view key, char* value,
                    Glance& seen);

}  // namespace perdure::buffer
