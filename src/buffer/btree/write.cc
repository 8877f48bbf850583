// Changes of a tree.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "buffer/btree/tree.h"
#include "perdure/error.h"

namespace perdure::buffer {

namespace {

std::string text_of(uint64_t page) { return {reinterpret_cast<const char*>(&page), sizeof page}; }

uint64_t child_of(const NodeContent::Record& record) {
  uint64_t page = 0;
  std::memcpy(&page, record.value.data(), sizeof page);
  return page;
}

}  // namespace

Node TreeWriter::node(uint64_t page, int level) const {
  return node_of(change_.format(), const_cast<char*>(change_.read(page)), page, level);
}

void TreeWriter::write_node(uint64_t page, uint16_t level, uint64_t first,
                            const std::vector<NodeContent::Record>& records, size_t from,
                            size_t to) {
  const PageFormat& format = change_.format();
  std::vector<char> image(format.page_bytes());
  Node node(format, image.data());
  node.build(level, first, records, from, to);
  change_.image(page, PageType::kNode,
                {image.data() + format.body(), node.slots_end() - format.body()},
                {image.data() + node.heap(), format.page_bytes() - node.heap()});
}

uint64_t TreeWriter::create(Change& change) {
  const uint64_t page = change.allocate();
  TreeWriter(change, page).write_node(page, 0, 0, {}, 0, 0);
  return page;
}

std::vector<TreeWriter::Step> TreeWriter::descend(std::string_view key) const {
  std::vector<Step> path;
  path.reserve(8);
  int level = kAnyLevel;
  for (uint64_t page = root_;; --level) {
    const Node here = node(page, level);
    level = here.level();
    const uint32_t child = here.level() == 0 ? 0 : here.child_index(key, false);
    path.push_back({page, child});
    if (here.level() == 0) return path;
    page = here.child(child);
  }
}

void TreeWriter::put(std::string_view key, std::string_view value) {
  std::vector<Step> path = descend(key);
  const uint64_t leaf = path.back().page;
  const bool overflows = key.size() + value.size() > inline_bytes_max(change_.format());
  const std::string reference = overflows ? write_overflow(value) : std::string();
  if (overflows) value = reference;
  const Node here = node(leaf);
  bool found = false;
  const uint32_t slot = here.lower_bound(key, found);
  if (found) {
    const bool overflowed = (here.flags(slot) & kSlotOverflow) != 0;
    const std::string old(overflowed ? here.value(slot) : "");
    const bool fits = here.free_bytes() + here.value(slot).size() >= value.size();
    if (fits) {
      change_.replace(leaf, slot, value, overflows);
    } else {
      change_.erase(leaf, slot);
    }
    if (overflowed) free_overflow(old);
    if (fits) return;
  }
  const uint16_t flags = overflows ? kSlotOverflow : 0;
  put_record(path, path.size() - 1, {std::string(key), std::string(value), flags});
}

void TreeWriter::put_record(std::vector<Step>& path, size_t depth, NodeContent::Record record) {
  const uint64_t page = path[depth].page;
  const Node here = node(page);
  bool found = false;
  const uint32_t slot = here.lower_bound(record.key, found);
  if (found) {  // put() has looked for it in the leaf; nodes above have a separator of this place
    throw Error(ErrorCode::kCorrupt,
                fmt::format("page {} of the database has a key that belongs elsewhere", page));
  }
  if (here.has_room(record.key, record.value.size())) {
    change_.insert(page, slot, record.key, record.value, record.flags != 0);
    return;
  }
  NodeContent content = here.content();
  content.records.insert(content.records.begin() + slot, std::move(record));
  const uint64_t bytes = NodeContent::bytes_of(content.records, 0, content.records.size());
  if (bytes <= change_.format().body_bytes()) {  // with a shorter prefix
    write_node(page, content.level, content.first, content.records, 0, content.records.size());
    return;
  }
  split(path, depth, content, slot);
}

namespace {

// Where to split records that do not fit one node, of which `fresh` is new.
size_t split_point(const NodeContent& content, size_t fresh, uint32_t body_bytes) {
  const auto& records = content.records;
  const size_t count = records.size();
  const size_t inner = content.level > 0 ? 1 : 0;  // the separator in the middle moves up
  const auto fits = [&](size_t at) {
    return at > 0 && at + inner < count && NodeContent::bytes_of(records, 0, at) <= body_bytes &&
           NodeContent::bytes_of(records, at + inner, count) <= body_bytes;
  };
  // Keys that grow: the new node begins with the new one, and the old one stays full.
  if (fresh + 1 == count && inner == 0 && fits(fresh)) return fresh;
  uint64_t sum = 0;
  for (const auto& record : records) sum += record.key.size() + record.value.size() + sizeof(Slot);
  uint64_t left = 0;
  size_t at = 0;
  while (at < count && left < sum / 2) {
    left += records[at].key.size() + records[at].value.size() + sizeof(Slot);
    ++at;
  }
  for (size_t away = 0; away <= count; ++away) {
    if (at >= away && fits(at - away)) return at - away;
    if (fits(at + away)) return at + away;
  }
  // Without the new key the records share a prefix and fit; it stands before or after all of them.
  return fresh == 0 ? 1 : fresh;
}

}  // namespace

void TreeWriter::split(std::vector<Step>& path, size_t depth, const NodeContent& content,
                       size_t fresh) {
  const auto& records = content.records;
  const size_t at = split_point(content, fresh, change_.format().body_bytes());
  const bool inner = content.level > 0;
  const std::string separator =
      inner ? records[at].key : separator_of(records[at - 1].key, records[at].key);
  const uint64_t first = inner ? child_of(records[at]) : 0;
  const uint64_t page = path[depth].page;
  const uint64_t right = change_.allocate();
  write_node(right, content.level, first, records, inner ? at + 1 : at, records.size());
  if (depth == 0) {
    // The root's page stays the root's.
    const uint64_t left = change_.allocate();
    write_node(left, content.level, content.first, records, 0, at);
    const std::vector<NodeContent::Record> top{{separator, text_of(right), 0}};
    write_node(page, static_cast<uint16_t>(content.level + 1), left, top, 0, 1);
    return;
  }
  // Without the new record it is as it was, but for the keys that belong to it.
  const bool appended = !inner && at == fresh && at + 1 == records.size();
  if (appended) {
    change_.touch(page);
  } else {
    write_node(page, content.level, content.first, records, 0, at);
  }
  put_record(path, depth - 1, {separator, text_of(right), 0});
}

bool TreeWriter::erase(std::string_view key) {
  std::vector<Step> path = descend(key);
  const uint64_t leaf = path.back().page;
  const Node here = node(leaf);
  bool found = false;
  const uint32_t slot = here.lower_bound(key, found);
  if (!found) return false;
  const std::string value(here.value(slot));
  const bool overflow = (here.flags(slot) & kSlotOverflow) != 0;
  change_.erase(leaf, slot);
  if (overflow) free_overflow(value);
  merge(path, path.size() - 1);
  return true;
}

// A node of the path that is less than a quarter full joins a neighbour, if both fit one node.
void TreeWriter::merge(std::vector<Step>& path, size_t depth) {
  for (; depth > 0; --depth) {
    const Node here = node(path[depth].page);
    if (here.capacity() - here.free_bytes() > here.capacity() / 4) return;
    const uint64_t parent = path[depth - 1].page;
    const uint32_t child = path[depth - 1].child;
    const bool merged = (child < node(parent).count() && merge_children(parent, child)) ||
                        (child > 0 && merge_children(parent, child - 1));
    if (!merged) return;
  }
  // A root with one child takes its place.
  for (Node top = node(root_); top.level() > 0 && top.count() == 0; top = node(root_)) {
    const uint64_t child = top.first();
    const NodeContent content = node(child, top.level() - 1).content();
    write_node(root_, content.level, content.first, content.records, 0, content.records.size());
    change_.free(child);
  }
}

// The child right of `left` joins it.
bool TreeWriter::merge_children(uint64_t parent, uint32_t left) {
  const int level = node(parent).level() - 1;
  const uint64_t left_page = node(parent).child(left);
  const uint64_t right_page = node(parent).child(left + 1);
  NodeContent content = node(left_page, level).content();
  const NodeContent right = node(right_page, level).content();
  if (content.level > 0) {
    content.records.push_back({node(parent).key(left), text_of(right.first), 0});
  }
  if (!content.records.empty() && !right.records.empty() &&
      content.records.back().key >= right.records.front().key) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("pages {} and {} of the database have keys that belong elsewhere",
                            left_page, right_page));
  }
  content.records.insert(content.records.end(), right.records.begin(), right.records.end());
  const uint64_t bytes = NodeContent::bytes_of(content.records, 0, content.records.size());
  if (bytes > uint64_t{change_.format().body_bytes()} / 4 * 3) return false;
  write_node(left_page, content.level, content.first, content.records, 0, content.records.size());
  change_.erase(parent, left);
  change_.free(right_page);
  return true;
}

std::string TreeWriter::write_overflow(std::string_view value) {
  const PageFormat& format = change_.format();
  const uint64_t piece = format.body_bytes() - sizeof(OverflowBody);
  OverflowRef reference{0, value.size()};
  // From the last page to the first.
  for (uint64_t at = (value.size() + piece - 1) / piece * piece; at > 0;) {
    at -= piece;
    const std::string_view part = value.substr(at, piece);
    const uint64_t page = change_.allocate();
    const OverflowBody body{reference.page, part.size()};
    std::string begin(reinterpret_cast<const char*>(&body), sizeof body);
    begin.append(part);
    change_.image(page, PageType::kOverflow, begin, {});
    reference.page = page;
  }
  return {reinterpret_cast<const char*>(&reference), sizeof reference};
}

void TreeWriter::free_overflow(std::string_view reference) {
  OverflowRef at;
  std::memcpy(&at, reference.data(), sizeof at);
  for (uint64_t page = at.page; page != 0;) {
    OverflowBody body;
    const char* data = change_.read(page);
    std::memcpy(&body, data + change_.format().body(), sizeof body);
    if (header_of(data).type !=
        PageType::kOverflow) {  // a page of the circle that is free by now, too
      throw Error(ErrorCode::kCorrupt, fmt::format("page {} of the database is damaged", page));
    }
    change_.free(page);
    page = body.next;
  }
}

}  // namespace perdure::buffer
