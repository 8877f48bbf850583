#include "buffer/btree/glance.h"

#include <cstddef>

#include "buffer/btree/node.h"

namespace perdure::buffer {

namespace {

// All reads of the page are here: each happens once, whatever the compiler thinks of memory that
// does not change, and the thread sanitizer, which cannot know that what was read meanwhile is
// thrown away, does not look at them.
using Packed [[gnu::aligned(1), gnu::may_alias]] = uint64_t;
using Half [[gnu::may_alias]] = uint16_t;
using Word [[gnu::may_alias]] = uint32_t;

[[gnu::no_sanitize_thread]] inline uint16_t half_at(const char* at) {
  return *reinterpret_cast<const volatile Half*>(at);
}
[[gnu::no_sanitize_thread]] inline uint32_t word_at(const char* at) {
  return *reinterpret_cast<const volatile Word*>(at);
}
[[gnu::no_sanitize_thread]] inline uint64_t packed_at(const char* at) {
  return *reinterpret_cast<const volatile Packed*>(at);
}
[[gnu::no_sanitize_thread]] inline uint8_t byte_at(const char* at) {
  return static_cast<uint8_t>(*static_cast<const volatile char*>(at));
}

[[gnu::no_sanitize_thread]] int compare(const char* page_bytes, uint32_t bytes, const char* key,
                                        uint32_t key_bytes) {
  const uint32_t both = bytes < key_bytes ? bytes : key_bytes;
  for (uint32_t i = 0; i < both; ++i) {
    const int order = int{byte_at(page_bytes + i)} - int{static_cast<uint8_t>(key[i])};
    if (order != 0) return order;
  }
  return bytes == key_bytes ? 0 : bytes < key_bytes ? -1 : 1;
}

[[gnu::no_sanitize_thread]] void copy(char* to, const char* from, uint32_t bytes) {
  uint32_t i = 0;
  for (; i + 8 <= bytes; i += 8) *reinterpret_cast<Packed*>(to + i) = packed_at(from + i);
  for (; i < bytes; ++i) to[i] = static_cast<char>(byte_at(from + i));
}

struct Cell {
  uint32_t offset;
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint16_t flags;
};

// A node at a glance.
struct Sketch {
  const char* page;
  uint32_t page_bytes;
  const char* slots;
  uint32_t count;
};

// False: it is not in the page.
[[gnu::no_sanitize_thread]] inline bool cell_of(const Sketch& node, uint32_t slot, Cell& cell) {
  const char* at = node.slots + slot * sizeof(Slot);
  cell = {half_at(at + offsetof(Slot, offset)), half_at(at + offsetof(Slot, key_bytes)),
          half_at(at + offsetof(Slot, value_bytes)), half_at(at + offsetof(Slot, flags))};
  return cell.offset + cell.key_bytes + cell.value_bytes <= node.page_bytes;
}

// As Node::lower_bound(). False: something is not in the page.
[[gnu::no_sanitize_thread]] bool lower_bound(const Sketch& node, const char* rest,
                                             uint32_t rest_bytes, uint32_t& slot, bool& found) {
  uint32_t head = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    head = head << 8 | (i < rest_bytes ? static_cast<uint8_t>(rest[i]) : 0U);
  }
  uint32_t low = 0;
  uint32_t high = node.count;
  found = false;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const uint32_t other = word_at(node.slots + middle * sizeof(Slot) + offsetof(Slot, head));
    int order = other < head ? -1 : 1;
    if (other == head) {
      Cell cell;
      if (!cell_of(node, middle, cell)) return false;
      order = compare(node.page + cell.offset, cell.key_bytes, rest, rest_bytes);
    }
    if (order < 0) {
      low = middle + 1;
    } else {
      found |= order == 0;  // keys differ: no other one is the same, and `low` comes here
      high = middle;
    }
  }
  slot = low;
  return true;
}

}  // namespace

[[gnu::no_sanitize_thread]] bool glance_at_node(const PageFormat& format, const char* page,
                                                std::string_view key, char* value, Glance& seen) {
  const char* const body = page + format.body();
  const uint32_t body_bytes = format.body_bytes();
  const char* const key_begin = key.data();
  const auto key_bytes = static_cast<uint32_t>(key.size());
  if (key.size() > body_bytes) return false;
  if (half_at(page + offsetof(PageHeader, type)) != static_cast<uint16_t>(PageType::kNode)) {
    return false;
  }
  seen.level = half_at(body + offsetof(NodeHeader, level));
  const Sketch node{page, format.page_bytes(), body + sizeof(NodeHeader),
                    half_at(body + offsetof(NodeHeader, count))};
  const uint32_t prefix_bytes = half_at(body + offsetof(NodeHeader, prefix_bytes));
  if (sizeof(NodeHeader) + node.count * sizeof(Slot) + prefix_bytes > body_bytes) return false;
  const uint32_t in_prefix = prefix_bytes < key_bytes ? prefix_bytes : key_bytes;
  const int order =
      -compare(page + node.page_bytes - prefix_bytes, prefix_bytes, key_begin, in_prefix);
  uint32_t slot = order < 0 ? 0 : node.count;
  bool found = false;
  if (order == 0 &&
      !lower_bound(node, key_begin + prefix_bytes, key_bytes - prefix_bytes, slot, found)) {
    return false;
  }
  Cell cell;
  if (seen.level > 0) {
    const uint32_t child = found ? slot + 1 : slot;
    if (child == 0) {
      seen.child = packed_at(body + offsetof(NodeHeader, first));
      return true;
    }
    if (!cell_of(node, child - 1, cell) || cell.value_bytes != sizeof(uint64_t)) return false;
    seen.child = packed_at(page + cell.offset + cell.key_bytes);
    return true;
  }
  seen.found = found;
  if (!found) return true;
  if (!cell_of(node, slot, cell)) return false;
  seen.overflow = (cell.flags & kSlotOverflow) != 0;
  seen.value_bytes = cell.value_bytes;
  if (!seen.overflow) copy(value, page + cell.offset + cell.key_bytes, cell.value_bytes);
  return true;
}

}  // namespace perdure::buffer
