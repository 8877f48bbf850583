// Making, opening, finding the way.
#include "index/trie/core.h"

#include <fmt/core.h>

namespace perdure::index::trie {

template <typename Policy, typename Content>
Core<Policy, Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      obsolete_mark_(obsolete_mark(pool.generation())),
      records_(pool, epochs_),
      stripes_(kLocksInNodes ? 0 : uint64_t{1} << kStripeBits),
      leaf_stripes_(uint64_t{1} << kStripeBits),
      retired_(epochs_, pool.heap()) {}

template <typename Policy, typename Content>
Core<Policy, Content>::~Core() = default;

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::create(pm::PoolImpl& pool,
                                                                     const std::string& name,
                                                                     Kind key, Kind value,
                                                                     const Options&) {
  Root image{};
  image.seal.magic = Policy::kMagic;
  image.symbol_bits = Shape::kBits;
  const uint64_t root =
      make_structure(pool, name, Policy::kName, key, value, &image, sizeof image, kSealedBytes, {});
  return std::unique_ptr<Core>(new Core(pool, *pool.at<Root>(root), name));
}

template <typename Policy, typename Content>
std::unique_ptr<Core<Policy, Content>> Core<Policy, Content>::open(pm::PoolImpl& pool,
                                                                   const std::string& name,
                                                                   Kind key, Kind value,
                                                                   const Options&) {
  const uint64_t at = find_structure(pool, name, Policy::kName, key, value, Policy::kMagic,
                                     sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  if (root.symbol_bits != Shape::kBits)
    pool.throw_corrupt(
        fmt::format("the root of '{}' has symbols of {} bits", name, root.symbol_bits));
  const uint64_t top = root.top;
  const bool leaf = is_leaf(top);
  const uint64_t bytes = leaf ? sizeof(Leaf) : Shape::bytes_of(tag_of(top));
  if (top != 0 && (bytes == 0 || !pool.leads_inside(offset_of(top), bytes) ||
                   !pool.heap().is_allocated(offset_of(top), leaf && !kWords ? 1 : bytes))) {
    pool.throw_corrupt(fmt::format("the top of '{}' is damaged", name));
  }
  return std::unique_ptr<Core>(new Core(pool, root, name));
}

template <typename Policy, typename Content>
void Core<Policy, Content>::throw_damaged(uint64_t word) const {
  pool_.throw_corrupt(
      fmt::format("'{}': the node at {} is not one that its place is for", name_, offset_of(word)));
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::child_at(const Owner& owner, uint32_t symbol) const {
  const Lock lock = lock_of(owner);
  for (;;) {
    const auto stamp = lock.begin_read();
    const uint64_t* slot = slot_of(owner, symbol);
    const uint64_t word = slot == nullptr ? 0 : pm::load_acquire(*slot);
    if (lock.validate(stamp)) return word;
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::child_from(const Owner& owner, uint32_t& position) {
  if (position == 0) {
    const uint64_t end = pm::load_acquire(owner.node->end);
    if (end != 0) return end;
    position = 1;
  }
  uint32_t symbol = symbol_of_position(position);
  const uint64_t* slot = Shape::next(*owner.node, tag_of(owner.word), symbol);
  position = symbol + 1;
  return slot == nullptr ? 0 : pm::load_acquire(*slot);
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::child_before(const Owner& owner, uint32_t& position) {
  if (position == 0) return 0;
  if (position > 1) {
    uint32_t symbol = symbol_of_position(position - 1);
    const uint64_t* slot = Shape::previous(*owner.node, tag_of(owner.word), symbol);
    position = symbol + 1;
    if (slot != nullptr) return pm::load_acquire(*slot);
  }
  position = 0;
  return pm::load_acquire(owner.node->end);
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::next_child(const Owner& owner, uint32_t& position) const {
  const Lock lock = lock_of(owner);
  for (const uint32_t begin = position;;) {
    const auto stamp = lock.begin_read();
    position = begin;
    const uint64_t word = child_from(owner, position);
    if (lock.validate(stamp)) return word;
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::first_leaf(const Hollow& from, Hollow& gap) const {
  for (gap = from;;) {
    uint32_t position = 0;
    const uint64_t word = next_child(gap.node, position);
    if (word == 0 || is_leaf(word)) return word;
    Node& child = enter(word, branch_of(gap.node.word) + 1);
    gap = {gap.node, symbol_of_position(position), {&child, word}};
  }
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Prefix Core<Policy, Content>::compare_prefix(const Hollow& at,
                                                                             uint32_t depth,
                                                                             Text text) const {
  const Node& node = *at.node.node;
  const uint32_t branch = branch_of(at.node.word);
  if (node.branch != branch) throw_damaged(at.node.word);
  Prefix prefix;
  prefix.differs = depth;
  const bool in_window = depth >= Symbol::window_begin(branch);
  Text theirs{};
  if (!in_window) {
    const uint64_t leaf = first_leaf(at, prefix.gap);
    if (leaf == 0) {
      prefix.hollow = true;
      return prefix;
    }
    theirs = text_of_leaf(leaf);
    if (Symbol::length(theirs) < branch) throw_damaged(at.node.word);
  }
  for (; prefix.differs < branch; ++prefix.differs) {
    prefix.theirs = in_window ? Symbol::window_symbol(node, branch, prefix.differs)
                              : Symbol::at(theirs, prefix.differs);
    if (symbol_or_end(text, prefix.differs) != prefix.theirs) return prefix;
  }
  return prefix;
}

template <typename Policy, typename Content>
typename Core<Policy, Content>::Spot Core<Policy, Content>::locate(Text text) const {
  Spot spot;
  for (uint32_t depth = 0;;) {
    spot.word = child_at(spot.node, spot.symbol);
    if (spot.word == 0) return spot;
    if (is_leaf(spot.word)) {
      const Text theirs = text_of_leaf(spot.word);
      spot.differs = Symbol::first_difference(text, theirs);
      spot.same = spot.differs == Symbol::kNowhere;
      if (spot.differs < depth) throw_damaged(spot.word);
      if (!spot.same) spot.theirs = symbol_or_end(theirs, spot.differs);
      return spot;
    }
    Node& node = enter(spot.word, depth);
    const uint32_t branch = branch_of(spot.word);
    const Hollow at = {spot.node, spot.symbol, {&node, spot.word}};
    const Prefix prefix = compare_prefix(at, depth, text);
    spot.hollow = prefix.hollow;
    spot.gap = prefix.gap;
    spot.differs = prefix.differs;
    spot.theirs = prefix.theirs;
    if (prefix.hollow || prefix.differs < branch) return spot;
    spot.parent = spot.node;
    spot.parent_symbol = spot.symbol;
    spot.node = at.node;
    spot.symbol = symbol_or_end(text, branch);
    depth = branch + 1;  // what is in `end` has the whole key
  }
}

// Where a scan begins: the nodes on the way, each with the place after the one that was taken, and
// what comes first, which may still be below `from`.
template <typename Policy, typename Content>
void Core<Policy, Content>::seek(Text from, std::vector<Frame>& frames, uint64_t& first) const {
  Owner owner;
  uint32_t symbol = 0;
  for (uint32_t depth = 0;;) {
    const uint64_t word = child_at(owner, symbol);
    first = word;
    if (word == 0 || is_leaf(word)) return;
    const Hollow at = {owner, symbol, {&enter(word, depth), word}};
    const uint32_t branch = branch_of(word);
    const Prefix prefix = compare_prefix(at, depth, from);
    if (prefix.hollow) return;
    if (prefix.differs < branch) {
      const uint32_t ours = symbol_or_end(from, prefix.differs);
      if (ours != kEnd && prefix.theirs < ours) first = 0;  // all of it is below
      return;
    }
    symbol = symbol_or_end(from, branch);
    if (symbol == kEnd) return;  // all of it counts
    owner = at.node;
    frames.emplace_back(owner, symbol + 2);
    depth = branch + 1;
  }
}

// The same downwards: each node with the place that was taken, and what comes first, which may
// still be above `from`.
template <typename Policy, typename Content>
void Core<Policy, Content>::seek_back(Text from, std::vector<Frame>& frames,
                                      uint64_t& first) const {
  Owner owner;
  uint32_t symbol = 0;
  for (uint32_t depth = 0;;) {
    const uint64_t word = child_at(owner, symbol);
    first = word;
    if (word == 0 || is_leaf(word)) return;
    const Hollow at = {owner, symbol, {&enter(word, depth), word}};
    const uint32_t branch = branch_of(word);
    const Prefix prefix = compare_prefix(at, depth, from);
    if (prefix.hollow) return;
    if (prefix.differs < branch) {
      const uint32_t ours = symbol_or_end(from, prefix.differs);
      if (ours == kEnd || prefix.theirs > ours) first = 0;  // all of it is above
      return;
    }
    symbol = symbol_or_end(from, branch);
    owner = at.node;
    frames.emplace_back(owner, symbol + 1);  // of `end` nothing comes before
    depth = branch + 1;
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_TRIE_INSTANTIATE)

}  // namespace perdure::index::trie
