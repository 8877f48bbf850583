// Blocks that replace others: consolidation, splits, and nodes that go.
#include <algorithm>

#include "index/bwtree/core.h"
#include "pm/pause.h"

namespace perdure::index::bwtree {

template <typename Content>
class Core<Content>::Claims {
 public:
  explicit Claims(Core& core) : core_(core) {}
  ~Claims() {
    for (uint32_t i = 0; i < count_ && !kept_; ++i) {
      pm::store_release(core_.entry(ids_[i]), uint64_t{0});
      core_.nodes_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  void take(uint32_t count) {
    for (; count_ < count; ++count_) ids_[count_] = core_.claim_id();
  }
  uint32_t operator[](size_t i) const { return ids_[i]; }
  void keep() { kept_ = true; }

 private:
  Core& core_;
  std::array<uint32_t, 2> ids_{};
  uint32_t count_ = 0;
  bool kept_ = false;
};

template <typename Content>
void Core<Content>::take_apart(const Seen& at, Parts& out) const {
  if (at.node->level == 0) return collect(at, out);
  for (uint32_t i = 0; i < at.node->count; ++i) {
    const Slot& item = at.node->items()[i];
    out.items.push_back({item.key, child_of(item)});
    if constexpr (!kWords) out.texts.push_back(text_in(*at.node, text_of(item)));
  }
}

template <typename Content>
bool Core<Content>::is_too_large(uint32_t level, const Parts& parts) const {
  if (parts.items.size() > node_keys_) return true;
  if (level == 0 || parts.items.size() < 4) return false;
  uint64_t bytes = 0;
  for (const std::string_view text : parts.texts) bytes += text.size();
  return bytes > kInnerTextBytes;
}

// Where the range of the items from the one at `at` on begins: of a leaf of byte strings the
// shortest text that is greater than the key before.
template <typename Content>
Bound Core<Content>::separator(uint32_t level, const Parts& parts, size_t at) const {
  if constexpr (!kWords) {
    if (level == 0) {
      const std::string_view left = records_.key(parts.items[at - 1].value);
      const std::string_view right = records_.key(parts.items[at].value);
      size_t same = 0;
      while (same < left.size() && same < right.size() && left[same] == right[same]) ++same;
      const std::string_view text = right.substr(0, same + 1);
      return {tree::prefix_of(text), text};
    }
  }
  return {parts.items[at].key, parts.text(at)};
}

// The node's entry leads to a new block that holds `parts`, or to one that holds the left half of
// them, if they are too many, and at the root to one over both halves. False if the entry has
// changed: nothing has.
template <typename Content>
bool Core<Content>::replace(const Seen& at, const Parts& parts, const Range& range, Splits splits,
                            bool reclaim, bool has_shape_lock) {
  complete_fresh(at);
  const bool split = splits == Splits::kIfLarge && is_too_large(range.level, parts);
  const bool grows = split && at.id == kRootId;
  const uint32_t kids = !split ? 0 : grows ? 2 : 1;
  Claims claims(*this);
  claims.take(kids);
  // At the right end keys often ascend: who comes next needs the room there.
  const size_t middle = parts.items.size() * (range.right == 0 ? 7 : 4) / 8;
  const std::span<const Slot> items(parts.items);
  const std::span<const std::string_view> texts(parts.texts);
  const Bound between = split ? separator(range.level, parts, middle) : Bound{};
  std::array<Image, 3> images;  // in the end the block of the node itself comes first
  images.fill({node_keys_, chain_});
  Image& own = images[0];
  own.id = at.id;
  own.range = range;
  own.items = items;
  own.texts = texts;
  std::array<Slot, 2> children{};
  std::array<std::string_view, 2> child_texts;
  if (split) {
    Image& left = grows ? images[2] : own;
    Image& right = images[1];
    right = left = own;
    right.id = claims[0];
    right.items = items.subspan(middle);
    right.texts = texts.empty() ? texts : texts.subspan(middle);
    right.range.low = between;
    left.items = items.first(middle);
    left.texts = texts.empty() ? texts : texts.first(middle);
    left.range.high = between;
    left.range.right = claims[0];
    own.fresh[0] = claims[0];
    if (grows) {
      left.id = own.fresh[1] = claims[1];
      children = {Slot{range.low.word, left.id}, Slot{between.word, right.id}};
      child_texts = {range.low.text, between.text};
      own.items = children;
      own.texts = kWords ? texts : std::span<const std::string_view>(child_texts);
      ++own.range.level;
    }
  }

  uint64_t& home = entry(at.id);
  {
    pm::Heap::Txn txn(pool_.heap(), reclaim);
    std::array<uint64_t, 3> blocks{};
    for (uint32_t i = 0; i <= kids; ++i) {
      blocks[i] = txn.allocate(images[i].bytes());
      if (i > 0) images[i].from = at.id, images[i].home = blocks[0];
      images[i].write(pool_.at<char>(blocks[i]), memory_);
      txn.may_link(blocks[i], &entry(images[i].id), pm::Link::kTagged);
    }
    // Records go with the block: an intent beside the block's in one line of four.
    const uint64_t old = at.block();
    if (kids % 2 == 0) txn.may_unlink(old, &home, pm::Link::kTagged);
    for (const uint64_t record : parts.superseded) {
      txn.may_unlink(old, &home, pm::Link::kTagged);
      txn.may_unlink(record, &home, pm::Link::kAsPrevious);
    }
    if (kids % 2 != 0 && parts.superseded.empty()) txn.may_unlink(old, &home, pm::Link::kTagged);
    const bool linked = txn.commit_contested([&] {
      for (uint32_t i = 1; i <= kids; ++i) {
        uint64_t& word = entry(images[i].id);
        pm::store_release(word, blocks[i] | kUnborn);
        memory_.flush(&word, sizeof word);
      }
      if (kids > 0) {
        memory_.fence();  // new nodes' entries, before a block leads to the nodes
        pm::come_to_place("bwtree: unborn");
      }
      if (!swap(home, at.word, blocks[0] | kDirty)) {
        for (uint32_t i = 1; i <= kids; ++i) {
          uint64_t& word = entry(images[i].id);
          pm::store_release(word, kClaimed);
          memory_.flush(&word, sizeof word);
        }
        // What leads to no block of these, before the intents are given up.
        memory_.persist(&home, sizeof home);
        return false;
      }
      claims.keep();
      complete({blocks[0] | kDirty, at.id, 0, nullptr});  // before the old block is free
      // Durable with the bitmap, before the intents end.
      complete_fresh({blocks[0], at.id, 0, pool_.at<Node>(blocks[0])});
      return true;
    });
    if (!linked) return false;
    retired_.add(old, at.node->bytes);
    for (const uint64_t record : parts.superseded) records_.retire(record);
  }
  if (split && !grows) post(between, claims[0], range.level + 1, has_shape_lock);
  return true;
}

// Once: if somebody else was faster, there is something new to see. `reclaim`: if there is no room,
// from what the heap keeps for those who free as much.
template <typename Content>
void Core<Content>::consolidate(const Seen& at, bool reclaim) {
  Parts parts;
  take_apart(at, parts);
  const Range range = range_of(*at.node);
  try {
    replace(at, parts, range, Splits::kIfLarge, false, false);
  } catch (const Error& error) {
    if (!reclaim || !pm::is_full(error)) throw;
    replace(at, parts, range, Splits::kNever, true, false);
  }
}

// ---- what nodes above know

// Tells the node above of a node at the right of another one, if there is room: all is found
// without.
template <typename Content>
void Core<Content>::post(const Bound& low, uint32_t id, uint32_t level, bool has_shape_lock) const {
  try {
    auto& self = const_cast<Core&>(*this);
    while (!self.post_once(low, id, level, has_shape_lock)) pool_.require_writable();
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
}

template <typename Content>
bool Core<Content>::post_once(const Bound& low, uint32_t id, uint32_t level, bool has_shape_lock) {
  const Key key = key_of(low);
  const Seen above = descend(up_to(key), level, Mode::kHelp);
  if (above.node->level != level) return true;  // the tree has become lower
  Parts parts;
  take_apart(above, parts);
  const uint32_t index = child_index(*above.node, up_to(key));
  const Slot& before = above.node->items()[index];
  if (order(*above.node, before.key, text_of(before), key) == 0) return true;
  // After the node above was seen: a node that goes is frozen before that one forgets it.
  Seen child;
  if (!see(id, child) || child.frozen() ||
      order(*child.node, child.node->low, child.node->low_text, key) != 0) {
    return true;
  }
  parts.items.insert(parts.items.begin() + index + 1, {low.word, id});
  if constexpr (!kWords) parts.texts.insert(parts.texts.begin() + index + 1, low.text);
  std::unique_lock<std::mutex> lock;
  if (is_too_large(level, parts) && !has_shape_lock) {
    lock = std::unique_lock(shape_mutex_, std::try_to_lock);
    if (!lock) return true;  // another time
    if (pending_.load(std::memory_order_acquire) != 0) {
      finish_pending();  // else no inner node would ever be split, if nobody removes anything
      return false;
    }
    has_shape_lock = true;
  }
  return replace(above, parts, range_of(*above.node), Splits::kIfLarge, false, has_shape_lock);
}

// ---- nodes that go

// The node that is to take a frozen one in; false if one has.
template <typename Content>
bool Core<Content>::absorber_of(const Seen& gone, Seen& absorber) const {
  uint32_t id = pm::load_acquire(gone.node->into);
  for (uint32_t moves = 0; moves < kAttemptsMax; ++moves) {
    if (!see(id, absorber)) return false;
    const Node& node = *absorber.node;
    // The root, if it is to take its only child's place, until it has: whatever it grows to
    // afterwards, the node's number stands nowhere any more.
    if (node.level > gone.node->level) {
      return node.level == gone.node->level + 1U && node.count == 1 &&
             child_of(node.items()[0]) == gone.id;
    }
    if (node.right == gone.id) return true;
    if (node.level < gone.node->level || node.right == 0) return false;
    const Key low = key_of(low_of(*gone.node));
    if (order(node, node.high, node.high_text, low) > 0) return false;
    id = node.right;
  }
  throw_damaged(gone.block(), "stands at the right of no node");
}

// Whoever wants to write to a frozen node sees to it that its neighbour takes it in, and writes
// there.
template <typename Content>
void Core<Content>::absorb(const Seen& gone) {
  uint64_t& word = entry(gone.id);
  complete_fresh(gone);  // since nothing will lead to its block
  memory_.persist(&word,
                  sizeof word);  // that it is frozen, before another node holds what it holds
  Seen to;
  while (absorber_of(gone, to)) {
    pool_.require_writable();
    if (!to.firm()) {
      complete(to);
      continue;
    }
    Range range = range_of(*to.node);
    Parts parts;
    if (to.node->level > gone.node->level) {
      // The only child takes the root's place.
      if (gone.node->right != 0) throw_damaged(gone.block(), "is not the only node of its level");
      range.level = gone.node->level;
    } else {
      take_apart(to, parts);
    }
    const size_t own_superseded = parts.superseded.size();
    take_apart(gone, parts);
    parts.superseded.resize(own_superseded);  // the frozen node's go with it
    range.right = gone.node->right;
    range.high = range_of(*gone.node).high;
    if (replace(to, parts, range, Splits::kNever, true, false)) {
      pm::come_to_place("bwtree: absorbed");
    }
  }
}

// The node above forgets the node, which holds nothing any more. The caller has shape_mutex_.
template <typename Content>
void Core<Content>::forget_child(const Seen& gone) {
  const Key low = key_of(low_of(*gone.node));
  for (;;) {
    pool_.require_writable();
    const Seen above = descend(up_to(low), gone.node->level + 1U, Mode::kHelp);
    if (above.node->level <= gone.node->level) return;  // the root was above it
    const uint32_t index = child_index(*above.node, up_to(low));
    if (child_of(above.node->items()[index]) != gone.id) return;
    if (index == 0) throw_damaged(above.block(), "has lost its first child");
    Parts parts;
    take_apart(above, parts);
    parts.items.erase(parts.items.begin() + index);
    if constexpr (!kWords) parts.texts.erase(parts.texts.begin() + index);
    if (replace(above, parts, range_of(*above.node), Splits::kNever, true, true)) return;
  }
}

// Nothing leads to the node any more, which is pending until it has gone.
template <typename Content>
void Core<Content>::drop(const Seen& gone) {
  uint64_t& word = entry(gone.id);
  Parts parts;
  take_apart(gone, parts);  // for the records that it had superseded
  pm::Heap::Txn txn(pool_.heap(), true);
  using Release = pm::Heap::Txn::Release;
  txn.will_unlink(gone.block(), &word, pm::Link::kTagged, Release::kLater);
  for (size_t i = 0; i < parts.superseded.size(); ++i) {
    if (i > 0) txn.will_unlink(gone.block(), &word, pm::Link::kTagged, Release::kLater);
    txn.will_unlink(parts.superseded[i], &word, pm::Link::kAsPrevious, Release::kLater);
  }
  // The intents, before the entry leads nowhere.
  txn.commit([&] {
    pm::store_release(word, kRetired);
    memory_.flush(&word, sizeof word);
  });
  // It has gone, also if memory is short for what follows.
  pending_.store(0, std::memory_order_release);
  retired_.add(gone.block(), gone.node->bytes);
  for (const uint64_t record : parts.superseded) records_.retire(record);
  // The number, when nobody has it any more. Not flushed: retired and free are the same after a
  // crash.
  epochs_.retire([this, &word] {
    pm::store_release(word, uint64_t{0});
    nodes_.fetch_sub(1, std::memory_order_relaxed);
  });
}

// The caller has shape_mutex_.
template <typename Content>
void Core<Content>::finish_pending() {
  const uint32_t id = pending_.load(std::memory_order_acquire);
  Seen gone;
  if (id == 0) return;
  if (!see(id, gone)) throw_damaged(id, "is to go, but has gone");
  if (gone.frozen()) absorb(gone);
  if (!see(id, gone)) throw_damaged(id, "is to go, but has gone");
  if (gone.frozen()) {
    forget_child(gone);
    drop(gone);
  } else {
    pending_.store(0, std::memory_order_release);
  }
}

// `gone` goes into `into`, the node before it or the root above it. The caller has shape_mutex_.
template <typename Content>
void Core<Content>::let_in(const Seen& into, const Seen& gone) {
  uint64_t& word = entry(gone.id);
  auto& hint = const_cast<Node*>(gone.node)->into;
  pm::store_release(hint, into.id);
  memory_.persist(&hint, sizeof hint);  // before the node is frozen, which it explains
  if (!swap(word, gone.word, gone.word | kFrozen)) return;
  pending_.store(gone.id, std::memory_order_release);
  finish_pending();
}

// One of the children that the key's way leads by goes, if it has little and is easy to take in.
template <typename Content>
void Core<Content>::merge_at(const Key& key, uint32_t level) {
  const Seen above = descend(up_to(key), level + 1, Mode::kHelp);
  if (above.node->level != level + 1) return;
  const Slot* items = above.node->items();
  const auto see_firm = [&](uint32_t index, Seen& seen) {
    const uint32_t id = child_of(items[index]);
    while (see(id, seen)) {
      if (seen.firm()) return !seen.frozen();
      pool_.require_writable();
      complete(seen);
    }
    return false;
  };
  Seen left;
  Seen right;
  if (above.node->count == 1) {
    if (above.id == kRootId && see_firm(0, right) && right.node->right == 0) let_in(above, right);
    return;
  }
  const auto size_of = [&](const Seen& seen) {
    return seen.node->level == 0 ? live_of(seen) : seen.node->count;
  };
  const auto text_bytes_of = [&](const Seen& seen) {
    uint32_t bytes = 0;
    for (uint32_t i = 0; !kWords && seen.node->level > 0 && i < seen.node->count; ++i)
      bytes += text_of(seen.node->items()[i]).bytes();
    return bytes;
  };
  const uint32_t at = child_index(*above.node, up_to(key));
  for (const uint32_t index : {at, at - 1}) {
    if (index >= above.node->count - 1 || !see_firm(index, left) || !see_firm(index + 1, right) ||
        left.node->right != right.id) {
      continue;
    }
    const uint32_t few = std::min(size_of(left), size_of(right));
    const uint32_t together = size_of(left) + size_of(right);
    if (together > (few == 0 ? node_keys_ : node_keys_ / 4 * 3)) continue;
    if (text_bytes_of(left) + text_bytes_of(right) > kInnerTextBytes / 4 * 3) continue;
    return let_in(left, right);
  }
}

// After a removal: sparse nodes go, unless another thread is changing the shape, or there is no
// room to do so.
template <typename Content>
void Core<Content>::shrink(const Key& key) {
  const std::unique_lock lock(shape_mutex_, std::try_to_lock);
  if (!lock) return;
  const pm::EpochManager::Guard guard(epochs_);
  try {
    finish_pending();
    for (uint32_t level = 0; level + 1 < kLevelsMax; ++level) {
      Seen top;
      if (!see(kRootId, top) || top.node->level <= level) return;
      merge_at(key, level);
    }
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
  }
}

// Leaves that hold superseded records are consolidated, each once.
template <typename Content>
void Core<Content>::compact() {
  const uint64_t entries = entries_.load(std::memory_order_acquire);
  for (uint32_t id = kRootId; id < entries; ++id) {
    const pm::EpochManager::Guard guard(epochs_);
    Seen leaf;
    if (!see_unless_unborn(id, leaf) || leaf.node->level != 0 || leaf.head == 0 || !leaf.firm() ||
        leaf.frozen()) {
      continue;
    }
    Parts parts;
    collect(leaf, parts);
    if (parts.superseded.empty()) continue;
    try {
      replace(leaf, parts, range_of(*leaf.node), Splits::kNever, true, false);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_BWTREE_INSTANTIATE)

}  // namespace perdure::index::bwtree
