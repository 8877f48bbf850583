#include "buffer/btree/node.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "perdure/error.h"

namespace perdure::buffer {

namespace {

uint32_t head_of(std::string_view suffix) {
  uint32_t head = 0;
  for (size_t i = 0; i < 4; ++i) {
    head = head << 8 | (i < suffix.size() ? static_cast<uint8_t>(suffix[i]) : 0U);
  }
  return head;
}

size_t common_bytes(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
      a.begin());
}

}  // namespace

uint64_t NodeContent::bytes_of(const std::vector<Record>& records, size_t from, size_t to) {
  uint64_t bytes = sizeof(NodeHeader);
  if (from == to) return bytes;
  const uint64_t prefix = common_bytes(records[from].key, records[to - 1].key);
  for (size_t i = from; i < to; ++i) {
    bytes += sizeof(Slot) + records[i].key.size() - prefix + records[i].value.size();
  }
  return bytes + prefix;
}

bool Node::is_well_formed() const {
  const NodeHeader& node = header();
  const uint32_t end = format_->page_bytes() - std::min<uint32_t>(node.prefix_bytes, capacity());
  const uint64_t slots = uint64_t{node.count} * sizeof(Slot);
  if (node.prefix_bytes > capacity() || slots > capacity() || node.level > kLevelMax) return false;
  if (node.heap < slots_end() || node.heap > end) return false;
  uint64_t cells = node.garbage;
  for (uint32_t i = 0; i < node.count; ++i) {
    const Slot& at = slot(i);
    const uint32_t bytes = uint32_t{at.key_bytes} + at.value_bytes;
    if (bytes != 0 && (at.offset < node.heap || at.offset + bytes > end)) return false;
    const bool overflow = (at.flags & kSlotOverflow) != 0;
    if (node.level > 0 && at.value_bytes != sizeof(uint64_t)) return false;
    if (overflow && (node.level > 0 || at.value_bytes != sizeof(OverflowRef))) return false;
    cells += bytes;
    if (at.head != head_of(suffix(i)) || (i > 0 && suffix(i - 1) >= suffix(i))) return false;
  }
  return node.heap + cells == end;
}

uint64_t Node::child(uint32_t i) const {
  if (i == 0) return first();
  uint64_t page = 0;
  std::memcpy(&page, value(i - 1).data(), sizeof page);
  return page;
}

uint32_t Node::free_bytes() const { return heap() - slots_end() + header().garbage; }

// 0: the key begins with the prefix; else whether it is below (-1) or above (1) all that do.
int Node::compare_prefix(std::string_view key) const {
  const std::string_view prefix = this->prefix();
  const int order = key.substr(0, prefix.size()).compare(prefix);
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

uint32_t Node::lower_bound(std::string_view key, bool& found) const {
  found = false;
  const int order = compare_prefix(key);
  if (order != 0) return order < 0 ? 0 : count();
  const std::string_view rest = key.substr(header().prefix_bytes);
  const uint32_t head = head_of(rest);
  uint32_t low = 0;
  uint32_t high = count();
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const uint32_t other = slot(middle).head;
    const bool below = other != head ? other < head : suffix(middle) < rest;
    if (below) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  found = low < count() && slot(low).head == head && suffix(low) == rest;
  return low;
}

uint32_t Node::child_index(std::string_view key, bool below) const {
  bool found = false;
  const uint32_t i = lower_bound(key, found);
  return found && !below ? i + 1 : i;
}

bool Node::has_room(std::string_view key, size_t value_bytes) const {
  if (count() > 0 && compare_prefix(key) != 0) return false;
  // The first record of an empty node comes with a prefix of its own, which is empty here.
  const size_t rest = key.size() - (count() > 0 ? header().prefix_bytes : 0);
  return free_bytes() >= sizeof(Slot) + rest + value_bytes;
}

// Cells in the order of slots, without what is garbage.
void Node::compact() {
  const NodeHeader old = header();
  std::vector<char> cells;
  cells.reserve(format_->page_bytes() - old.heap);
  std::vector<uint32_t> offsets(count());
  for (uint32_t i = 0; i < count(); ++i) {
    offsets[i] = static_cast<uint32_t>(cells.size());
    const char* cell = page_ + slot(i).offset;
    cells.insert(cells.end(), cell, cell + slot(i).key_bytes + slot(i).value_bytes);
  }
  header().heap = format_->page_bytes() - old.prefix_bytes - static_cast<uint32_t>(cells.size());
  header().garbage = 0;
  std::memcpy(page_ + header().heap, cells.data(), cells.size());
  for (uint32_t i = 0; i < count(); ++i) {
    slots()[i].offset = static_cast<uint16_t>(header().heap + offsets[i]);
  }
}

void Node::insert(PageEdit& edit, uint32_t i, std::string_view key, std::string_view value,
                  uint16_t flags) {
  const bool begins_anew = count() == 0 && header().prefix_bytes != 0;
  const std::string_view rest = key.substr(begins_anew ? 0 : header().prefix_bytes);
  const auto bytes = static_cast<uint32_t>(rest.size() + value.size());
  if (begins_anew) {
    edit.will_change(format_->body(), sizeof(NodeHeader));
    header().prefix_bytes = 0;
    header().heap = format_->page_bytes();
    header().garbage = 0;
    edit.end_step();
  }
  if (heap() - slots_end() < sizeof(Slot) + bytes) {
    edit.will_change_all();
    compact();
  }
  assert(heap() - slots_end() >= sizeof(Slot) + bytes);
  edit.will_change(format_->body(), sizeof(NodeHeader));
  edit.will_change(slot_at(i), static_cast<uint32_t>(sizeof(Slot)) * (count() + 1U - i));
  edit.will_change(heap() - bytes, bytes);
  header().heap -= bytes;
  std::memcpy(page_ + heap(), rest.data(), rest.size());
  std::memcpy(page_ + heap() + rest.size(), value.data(), value.size());
  Slot* at = slots() + i;
  std::memmove(at + 1, at, (count() - i) * sizeof(Slot));
  *at = {head_of(rest), static_cast<uint16_t>(heap()), static_cast<uint16_t>(rest.size()),
         static_cast<uint16_t>(value.size()), flags};
  ++header().count;
  edit.end_step();
}

void Node::erase(PageEdit& edit, uint32_t i) {
  edit.will_change(format_->body(), sizeof(NodeHeader));
  edit.will_change(slot_at(i), slots_end() - slot_at(i));
  header().garbage += static_cast<uint32_t>(slot(i).key_bytes + slot(i).value_bytes);
  Slot* at = slots() + i;
  std::memmove(at, at + 1, (count() - i - 1U) * sizeof(Slot));
  --header().count;
  edit.end_step();
}

void Node::replace(PageEdit& edit, uint32_t i, std::string_view value, uint16_t flags) {
  Slot& slot = slots()[i];
  if (slot.value_bytes == value.size()) {
    const uint32_t at = slot.offset + uint32_t{slot.key_bytes};
    edit.will_change(at, static_cast<uint32_t>(value.size()));
    if (slot.flags != flags) edit.will_change(slot_at(i), sizeof(Slot));
    std::memcpy(page_ + at, value.data(), value.size());
    slot.flags = flags;
    edit.end_step();
    return;
  }
  const std::string whole = key(i);
  erase(edit, i);
  insert(edit, i, whole, value, flags);
}

NodeContent Node::content() const {
  NodeContent content;
  content.level = level();
  content.first = first();
  content.records.reserve(count() + 1U);
  for (uint32_t i = 0; i < count(); ++i) {
    content.records.push_back({key(i), std::string(value(i)), flags(i)});
  }
  return content;
}

void Node::build(uint16_t level, uint64_t first, const std::vector<NodeContent::Record>& records,
                 size_t from, size_t to) {
  const size_t prefix = from == to ? 0 : common_bytes(records[from].key, records[to - 1].key);
  NodeHeader& made = header();
  made = {};
  made.level = level;
  made.first = first;
  made.count = static_cast<uint16_t>(to - from);
  made.prefix_bytes = static_cast<uint16_t>(prefix);
  made.heap = format_->page_bytes() - static_cast<uint32_t>(prefix);
  if (prefix > 0) std::memcpy(page_ + made.heap, records[from].key.data(), prefix);
  for (size_t i = from; i < to; ++i) {
    const std::string_view rest = std::string_view(records[i].key).substr(prefix);
    const std::string& value = records[i].value;
    made.heap -= static_cast<uint32_t>(rest.size() + value.size());
    std::memcpy(page_ + made.heap, rest.data(), rest.size());
    std::memcpy(page_ + made.heap + rest.size(), value.data(), value.size());
    slots()[i - from] = {head_of(rest), static_cast<uint16_t>(made.heap),
                         static_cast<uint16_t>(rest.size()), static_cast<uint16_t>(value.size()),
                         records[i].flags};
  }
}

Node node_of(const PageFormat& format, char* data, uint64_t page, int level) {
  const Node node(format, data);
  if (header_of(data).type != PageType::kNode || (level != kAnyLevel && node.level() != level)) {
    throw Error(
        ErrorCode::kCorrupt,
        fmt::format("page {} of the database is no node of a tree, or not at its level", page));
  }
  return node;
}

std::string separator_of(std::string_view low, std::string_view high) {
  return std::string(high.substr(0, common_bytes(low, high) + 1));
}

}  // namespace perdure::buffer
