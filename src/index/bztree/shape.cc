// Changes of the tree's shape: consolidation, splits, merges. Each is one operation that freezes
// what it replaces and changes one word above.
#include <fmt/core.h>

#include <cstring>

#include "index/bztree/core.h"

namespace perdure::index::bztree {

// ---- writing nodes

template <typename Content>
uint64_t Core<Content>::write_node(pm::Heap::Txn& txn, std::vector<char>& image) const {
  image.resize((image.size() + pm::kLineBytes - 1) / pm::kLineBytes * pm::kLineBytes);
  const uint64_t at = txn.allocate(std::max<uint64_t>(image.size(), node_bytes_));
  // Durable with the operation's descriptor, before any word leads to it.
  memory_.copy_nontemporal(pool_.at<char>(at), image.data(), image.size());
  return at;
}

template <typename Content>
uint64_t Core<Content>::write_leaf(pm::Heap::Txn& txn, std::span<const Item> items) const {
  std::vector<char> image(node_bytes_);
  auto* leaf = reinterpret_cast<Node*>(image.data());
  uint32_t used = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    used += item.room();
    if (sizeof(Node) + items.size() * 8 + used > node_bytes_) {
      pool_.throw_corrupt(fmt::format("'{}': a leaf holds more than fits into it", name_));
    }
    const uint32_t offset = node_bytes_ - used;
    char* to = image.data() + offset;
    if constexpr (!Content::kOutOfPlace) {
      std::memcpy(to, &item, sizeof item);
      leaf->words()[i] = Meta::make(offset, 8, 16, false).word;
    } else if (item.record != 0) {
      std::memcpy(to, &item.record, 8);
      leaf->words()[i] = Meta::make(offset, 0, 8, true).word;
    } else {
      leaf->words()[i] = Codec::write_inline(image.data(), offset, item.key, item.value).word;
    }
  }
  leaf->count = static_cast<uint32_t>(items.size());
  leaf->status = LeafStatus::make(leaf->count, used).word;
  return write_node(txn, image);
}

template <typename Content>
uint64_t Core<Content>::write_inner(pm::Heap::Txn& txn, uint32_t level,
                                    std::span<const uint64_t> children,
                                    std::span<const Text> separators) const {
  std::vector<char> image(sizeof(Node));
  const auto append = [&](const void* bytes, size_t count) {
    if (count == 0) return;
    const auto* from = static_cast<const char*>(bytes);
    image.insert(image.end(), from, from + count);
  };
  append(children.data(), children.size_bytes());
  if constexpr (!Content::kOutOfPlace) {
    append(separators.data(), separators.size_bytes());
  } else {
    uint32_t end = 0;
    for (const Text separator : separators) {
      end += static_cast<uint32_t>(separator.size());
      append(&end, sizeof end);
    }
    for (const Text separator : separators) append(separator.data(), separator.size());
  }
  const Node header{0, level, static_cast<uint32_t>(children.size())};
  std::memcpy(image.data(), &header, sizeof header);
  return write_node(txn, image);
}

template <typename Content>
typename Core<Content>::Parts Core<Content>::take_apart(const Node& inner) const {
  Parts parts;
  parts.children.reserve(inner.count + 1);
  parts.separators.reserve(inner.count);
  for (uint32_t i = 0; i < inner.count; ++i) {
    parts.children.push_back(mwcas_.read(inner.words()[i]));
    if (i + 1 < inner.count) parts.separators.push_back(separator_of(inner, i));
  }
  return parts;
}

// ---- the operations

// Makes what leads to the node at `depth` lead to another. False if that node is frozen.
template <typename Content>
bool Core<Content>::relink(pm::Mwcas::Operation& operation, Path& path, uint32_t depth,
                           uint64_t to) {
  const uint64_t from = path.steps[depth].offset;
  if (depth == 0) {
    operation.add(root_.root, from, to);
    return true;
  }
  const Step& above = path.steps[depth - 1];
  const uint64_t status = mwcas_.read(above.node->status);
  if ((status & kFrozen) != 0) return false;
  // The count keeps a copy of this node's children that somebody is making from being used.
  operation.add(above.node->status, status, status + 1);
  operation.add(above.node->words()[above.index], from, to);
  return true;
}

template <typename Content>
bool Core<Content>::execute(pm::Mwcas::Operation& operation, std::span<const uint64_t> fresh,
                            std::span<const Step> old) {
  for (const uint64_t node : fresh) operation.keep(node);
  for (const Step& step : old) operation.drop(step.offset);
  if (!operation.execute()) return false;
  for (const Step& step : old) retired_.add({step.offset, bytes_of(*step.node)});
  return true;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::make_room(Text text, uint32_t bytes) {
  const pm::EpochManager::Guard guard(epochs_);
  Path path;
  descend(text, path);
  const LeafStatus status = status_of(path.leaf());
  if (status.frozen()) return Outcome::kAgain;
  if (has_room(status, 1, bytes) && !has_leftover(path.leaf(), status)) return Outcome::kAgain;
  std::vector<Item> items;
  collect(path.leaf(), status, items);
  uint64_t live = 8 + bytes;
  for (const Item& item : items) live += 8 + item.room();
  Outcome outcome;
  if (live <= room_of(node_bytes_) * 3 / 4 || items.size() < 2) {
    outcome = consolidate(path, status, items);
  } else {
    try {
      outcome = split_leaf(path, status, items);
    } catch (const Error& error) {
      // No room in the pool for another leaf; but if anything in this one is garbage, it may do.
      if (!pm::is_full(error) || live > room_of(node_bytes_)) throw;
      outcome = consolidate(path, status, items);
    }
  }
  return outcome == Outcome::kDone ? Outcome::kAgain : outcome;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::consolidate(Path& path, LeafStatus status,
                                                           std::span<const Item> items) {
  pm::Heap::Txn txn(pool_.heap(), true);
  const uint64_t fresh = write_leaf(txn, items);
  pm::Mwcas::Operation operation(mwcas_, &txn);
  if (!operation) return Outcome::kBusy;
  operation.add(path.leaf().status, status.word, status.word | kFrozen);
  if (!relink(operation, path, path.depth, fresh)) return Outcome::kAgain;
  const bool done = execute(operation, {&fresh, 1}, {&path.steps[path.depth], 1});
  return done ? Outcome::kDone : Outcome::kAgain;
}

template <typename Content>
bool Core<Content>::is_full(const Node& inner) const {
  const uint32_t bytes = inner_bytes<Content>(inner);
  return inner.count >= kFanoutMin && bytes + 16 > node_bytes_;
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::split_leaf(Path& path, LeafStatus status,
                                                          std::span<const Item> items) {
  if (path.depth > 0 && is_full(*path.steps[path.depth - 1].node)) {
    return split_inner(path, path.depth - 1);
  }
  uint64_t total = 0;
  for (const Item& item : items) total += 8 + item.room();
  size_t cut = 0;
  for (uint64_t before = 0; cut < items.size() - 1 && (cut == 0 || before < total / 2); ++cut) {
    before += 8 + items[cut].room();
  }
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t left = write_leaf(txn, items.first(cut));
  const uint64_t right = write_leaf(txn, items.subspan(cut));
  return replace_by_two(path, path.depth, status.word, txn, left,
                        Codec::separator(items[cut - 1].key, items[cut].key), right);
}

// Splits an inner node, after its parent if that has no room either.
template <typename Content>
typename Core<Content>::Outcome Core<Content>::split_inner(Path& path, uint32_t depth) {
  while (depth > 0 && is_full(*path.steps[depth - 1].node)) --depth;
  const Node& node = *path.steps[depth].node;
  const uint64_t status = mwcas_.read(node.status);
  if ((status & kFrozen) != 0) return Outcome::kAgain;
  const Parts parts = take_apart(node);
  const std::span children(parts.children);
  const std::span separators(parts.separators);
  const size_t cut = children.size() / 2;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t left =
      write_inner(txn, node.level, children.first(cut), separators.first(cut - 1));
  const uint64_t right =
      write_inner(txn, node.level, children.subspan(cut), separators.subspan(cut));
  return replace_by_two(path, depth, status, txn, left, separators[cut - 1], right);
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::replace_by_two(Path& path, uint32_t depth,
                                                              uint64_t status, pm::Heap::Txn& txn,
                                                              uint64_t left, Text separator,
                                                              uint64_t right) {
  Node& node = *path.steps[depth].node;
  if (depth == 0) {
    const std::array children = {left, right};
    const std::array fresh = {left, right,
                              write_inner(txn, node.level + 1, children, {&separator, 1})};
    pm::Mwcas::Operation operation(mwcas_, &txn);
    if (!operation) return Outcome::kBusy;
    operation.add(node.status, status, status | kFrozen);
    relink(operation, path, 0, fresh[2]);
    return execute(operation, fresh, {&path.steps[0], 1}) ? Outcome::kDone : Outcome::kAgain;
  }
  const Step& above = path.steps[depth - 1];
  const uint64_t above_status = mwcas_.read(above.node->status);
  if ((above_status & kFrozen) != 0) return Outcome::kAgain;
  Parts parts = take_apart(*above.node);
  const auto index = static_cast<ptrdiff_t>(above.index);
  if (parts.children[above.index] != path.steps[depth].offset) return Outcome::kAgain;
  parts.children[above.index] = left;
  parts.children.insert(parts.children.begin() + index + 1, right);
  parts.separators.insert(parts.separators.begin() + index, separator);
  const std::array fresh = {left, right,
                            write_inner(txn, above.node->level, parts.children, parts.separators)};
  pm::Mwcas::Operation operation(mwcas_, &txn);
  if (!operation) return Outcome::kBusy;
  operation.add(node.status, status, status | kFrozen);
  operation.add(above.node->status, above_status, above_status | kFrozen);
  if (!relink(operation, path, depth - 1, fresh[2])) return Outcome::kAgain;
  return execute(operation, fresh, {&path.steps[depth - 1], 2}) ? Outcome::kDone : Outcome::kAgain;
}

// ---- shrinking

template <typename Content>
bool Core<Content>::is_sparse(const Node& node) const {
  if (node.level > 0) return node.count == 1 || inner_bytes<Content>(node) < node_bytes_ / 3;
  return LeafStatus{mwcas_.read(node.status)}.live_bytes() < room_of(node_bytes_) / 2;
}

// Whether two siblings make one node with some room left.
template <typename Content>
bool Core<Content>::fit_together(const Node& left, const Node& right) const {
  if (left.level > 0) {
    const uint32_t bytes = inner_bytes<Content>(left) + inner_bytes<Content>(right);
    return bytes <= node_bytes_ * 3 / 4 || left.count + right.count <= kFanoutMin;
  }
  const uint32_t first = LeafStatus{mwcas_.read(left.status)}.live_bytes();
  const uint32_t second = LeafStatus{mwcas_.read(right.status)}.live_bytes();
  const auto room = room_of(node_bytes_);
  return first + second <= (first == 0 || second == 0 ? room : room * 3 / 4);
}

// Merges what removals have made sparse on the way to a key. Does without if there is no room, or
// if damaged nodes never fit.
template <typename Content>
void Core<Content>::shrink(Text text) {
  bool reclaimed = false;
  for (uint32_t attempts = 1; attempts < kShrinksMax; ++attempts) {
    try {
      if (pool_.failed()) return;  // the removal is done
      if (attempts % kAttemptsInGoodFaith == 0) require_live(text);
      const Outcome outcome = shrink_once(text);
      if (outcome == Outcome::kNot) return;
      if (outcome == Outcome::kBusy) wait_for_descriptor();
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      if (reclaimed) return;
      reclaimed = true;
      reclaim();
    }
  }
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::shrink_once(Text text) {
  const pm::EpochManager::Guard guard(epochs_);
  Path path;
  descend(text, path);
  if (path.depth > 0 && path.steps[0].node->count == 1) return collapse_root(path);
  for (uint32_t depth = path.depth; depth > 0; --depth) {
    const Node& node = *path.steps[depth].node;
    if (!is_sparse(node)) continue;
    const Step& above = path.steps[depth - 1];
    const uint64_t* children = above.node->words();
    const auto sibling = [&](uint32_t i) { return node_at(mwcas_.read(children[i]), node.level); };
    if (above.index + 1 < above.node->count && fit_together(node, *sibling(above.index + 1))) {
      return merge(path, depth, true);
    }
    if (above.index > 0 && fit_together(*sibling(above.index - 1), node)) {
      return merge(path, depth, false);
    }
  }
  return Outcome::kNot;
}

// A root with a single child gives way to it.
template <typename Content>
typename Core<Content>::Outcome Core<Content>::collapse_root(Path& path) {
  const Step& top = path.steps[0];
  const uint64_t status = mwcas_.read(top.node->status);
  if ((status & kFrozen) != 0) return Outcome::kAgain;
  const uint64_t child = mwcas_.read(top.node->words()[0]);
  pm::Heap::Txn txn(pool_.heap(), true);
  pm::Mwcas::Operation operation(mwcas_, &txn);
  if (!operation) return Outcome::kBusy;
  operation.add(top.node->status, status, status | kFrozen);
  relink(operation, path, 0, child);
  return execute(operation, {}, {&top, 1}) ? Outcome::kDone : Outcome::kAgain;
}

// A leaf with the records of two; 0 if they do not fit.
template <typename Content>
uint64_t Core<Content>::merge_leaves(pm::Heap::Txn& txn, const Node& left, const Node& right,
                                     const uint64_t* status) const {
  std::vector<Item> items;
  std::vector<Item> more;
  collect(left, {status[0]}, items);
  collect(right, {status[1]}, more);
  items.insert(items.end(), more.begin(), more.end());
  uint64_t live = 0;
  for (const Item& item : items) live += 8 + item.room();
  return live > room_of(node_bytes_) ? 0 : write_leaf(txn, items);
}

template <typename Content>
uint64_t Core<Content>::merge_inner(pm::Heap::Txn& txn, const Node& left, Text between,
                                    const Node& right) const {
  Parts parts = take_apart(left);
  const Parts more = take_apart(right);
  parts.separators.push_back(between);
  parts.children.insert(parts.children.end(), more.children.begin(), more.children.end());
  parts.separators.insert(parts.separators.end(), more.separators.begin(), more.separators.end());
  return write_inner(txn, left.level, parts.children, parts.separators);
}

// Puts one node in the place of the one at `depth` and its sibling.
template <typename Content>
typename Core<Content>::Outcome Core<Content>::merge(Path& path, uint32_t depth, bool with_right) {
  const Step& above = path.steps[depth - 1];
  const uint64_t above_status = mwcas_.read(above.node->status);
  if ((above_status & kFrozen) != 0) return Outcome::kAgain;
  Parts parts = take_apart(*above.node);
  const uint32_t first = with_right ? above.index : above.index - 1;
  if (parts.children[above.index] != path.steps[depth].offset) return Outcome::kAgain;
  std::array<Step, 3> old;
  std::array<uint64_t, 2> status;
  for (uint32_t i = 0; i < 2; ++i) {
    old[i].offset = parts.children[first + i];
    old[i].node = node_at(old[i].offset, above.node->level - 1);
    const bool leaf = old[i].node->level == 0;
    status[i] = leaf ? status_of(*old[i].node).word : mwcas_.read(old[i].node->status);
    if ((status[i] & kFrozen) != 0) return Outcome::kAgain;
  }
  old[2] = above;

  pm::Heap::Txn txn(pool_.heap(), true);
  const Node& left = *old[0].node;
  const Node& right = *old[1].node;
  std::array<uint64_t, 2> fresh = {left.level == 0
                                       ? merge_leaves(txn, left, right, status.data())
                                       : merge_inner(txn, left, parts.separators[first], right)};
  if (fresh[0] == 0) return Outcome::kNot;
  parts.children[first] = fresh[0];
  parts.children.erase(parts.children.begin() + first + 1);
  parts.separators.erase(parts.separators.begin() + first);
  const bool lowers = depth == 1 && parts.children.size() == 1;  // the merged node is the new root
  if (!lowers) {
    fresh[1] = write_inner(txn, above.node->level, parts.children, parts.separators);
  }
  pm::Mwcas::Operation operation(mwcas_, &txn);
  if (!operation) return Outcome::kBusy;
  for (uint32_t i = 0; i < 2; ++i) {
    operation.add(old[i].node->status, status[i], status[i] | kFrozen);
  }
  operation.add(above.node->status, above_status, above_status | kFrozen);
  if (!relink(operation, path, depth - 1, lowers ? fresh[0] : fresh[1])) return Outcome::kAgain;
  return execute(operation, std::span(fresh).first(lowers ? 1 : 2), old) ? Outcome::kDone
                                                                         : Outcome::kAgain;
}

// ---- memory

// Replaced nodes that no reader can look at any more.
template <typename Content>
void Core<Content>::forget_and_release(const Blocks& blocks) {
  if (!mwcas_.forget(blocks)) return;  // before these words become something else
  for (const auto& [offset, bytes] : blocks) pool_.heap().release(offset);
}

template <typename Content>
void Core<Content>::reclaim() {
  retired_.flush();
  records_.reclaim();
}

PERDURE_INSTANTIATE_PART(PERDURE_BZTREE_INSTANTIATE)

}  // namespace perdure::index::bztree
