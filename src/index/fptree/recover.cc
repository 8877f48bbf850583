// Opening and closing: the inner nodes from the leaves, or from what a clean close has spilled.
#include <fmt/core.h>

#include <cstring>
#include <thread>

#include "index/fptree/core.h"
#include "pm/thread.h"

namespace perdure::index::fptree {

template <typename Content>
void Core<Content>::throw_damaged(const char* what) const {
  if (pool_.failed()) pool_.require_writable();
  pool_.throw_corrupt(fmt::format("{} of '{}' is damaged", what, name_));
}

// ---- from the leaves

// The smallest key of each leaf in use, and the leaves that are not.
template <typename Content>
void Core<Content>::read_group(Group& group, std::vector<Item>& found,
                               std::vector<LeafRef*>& empty) const {
  for (uint32_t i = 0; i < geometry_.group; ++i) {
    LeafRef& ref = group.leaves[i];
    uint64_t left = bitmap_of(*ref.leaf);
    if constexpr (!Content::kOutOfPlace) {
      // Words have no intents. A process that died may have left the bitmap in the caches only: no
      // slot is written to that is free there, and counts on the medium.
      if (!pool_.read_only()) memory_.flush(&ref.leaf->bitmap, sizeof ref.leaf->bitmap);
    }
    if (left == 0) {
      empty.push_back(&ref);
      continue;
    }
    const Slot* slots = geometry_.slots(*ref.leaf);
    const Slot* least = nullptr;
    for (; left != 0; left &= left - 1) {
      const Slot& slot = slots[std::countr_zero(left)];
      if constexpr (Content::kOutOfPlace) {
        if (!records_.sound(slot.value)) throw_damaged("a leaf");
      }
      if (least == nullptr || before(slot, *least)) least = &slot;
    }
    if constexpr (Content::kOutOfPlace) {
      found.push_back({InnerNodes::separator_of(Key(records_.key(least->value))), &ref});
    } else {
      found.push_back({InnerNodes::separator_of(least->key), &ref});
    }
  }
}

template <typename Content>
void Core<Content>::rebuild(uint32_t threads) {
  if (!space_.load_chain()) throw_damaged("the chain of leaf groups");
  const std::vector<Group*> groups = space_.groups();
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  threads = std::min(threads, static_cast<uint32_t>(groups.size() / 16 + 1));
  const auto smaller = [](const Item& a, const Item& b) {
    if constexpr (Content::kOutOfPlace) {
      if (a.separator.word == b.separator.word) return *a.separator.text < *b.separator.text;
    }
    return a.separator.word < b.separator.word;
  };
  std::vector<std::vector<Item>> found(threads);
  std::vector<std::vector<LeafRef*>> empty(threads);
  std::atomic<size_t> next{0};
  const auto work = [&](uint32_t number) {
    for (size_t i = next++; i < groups.size(); i = next++) {
      read_group(*groups[i], found[number], empty[number]);
    }
    if (!pool_.read_only()) memory_.fence();  // the bitmaps, before any slot is written to
    std::sort(found[number].begin(), found[number].end(), smaller);
  };
  try {
    pm::in_threads(threads, work);
  } catch (...) {
    for (const auto& some : found) {
      for (const Item& item : some) InnerNodes::forget(item.separator);
    }
    throw;
  }
  std::vector<Item> items = std::move(found[0]);
  for (uint32_t i = 1; i < threads; ++i) {
    std::vector<Item> both(items.size() + found[i].size());
    std::merge(items.begin(), items.end(), found[i].begin(), found[i].end(), both.begin(), smaller);
    items.swap(both);
    empty[0].insert(empty[0].end(), empty[i].begin(), empty[i].end());
  }
  recovered_leaves_ = items.size();
  adopt(std::move(items), empty[0]);
}

// A tree of these leaves, or of an empty one if there are none.
template <typename Content>
void Core<Content>::adopt(std::vector<Item> items, const std::vector<LeafRef*>& empty) {
  for (LeafRef* leaf : empty) {
    if (!items.empty() || leaf != empty.front()) space_.give_quietly(leaf);
  }
  if (items.empty()) {
    items.push_back({InnerNodes::separator_of(Content::lowest_key()), empty.front()});
  }
  inner_.build(items);
  opened_ = true;
}

// ---- from a spill

template <typename Content>
void Core<Content>::write_spill() {
  epochs_.collect();
  // Of a single leaf there is no order to keep.
  if (spilled_.load(std::memory_order_acquire) || inner_.single()) return;
  std::vector<uint64_t> words(sizeof(Spill) / 8);
  std::vector<std::pair<const Group*, uint64_t>> numbers;
  for (const Group* group : space_.groups()) {
    numbers.emplace_back(group, words.size() - sizeof(Spill) / 8);
    words.push_back(group->offset);
  }
  std::sort(numbers.begin(), numbers.end());
  uint64_t leaves = 0;
  inner_.for_each_leaf([&](const LeafRef* leaf, const Separator* low, const Separator*) {
    const auto at = std::lower_bound(numbers.begin(), numbers.end(),
                                     std::pair<const Group*, uint64_t>(leaf->group, 0));
    words.push_back(at->second << 32 | leaf->number);
    ++leaves;
    if constexpr (Content::kOutOfPlace) {
      const std::string_view text = low == nullptr ? std::string_view() : *low->text;
      words.push_back(text.size());
      words.resize(words.size() + (text.size() + 7) / 8);
      if (!text.empty())
        std::memcpy(&words.back() + 1 - (text.size() + 7) / 8, text.data(), text.size());
    } else {
      words.push_back(low == nullptr ? 0 : low->word);
    }
  });
  Spill head{0, words.size() * 8, numbers.size(), leaves};
  std::memcpy(words.data(), &head, sizeof head);
  head.checksum = pm::checksum64(words.data() + 1, head.bytes - 8);
  words[0] = head.checksum;

  pm::Heap::Txn txn(pool_.heap());
  const uint64_t block = txn.allocate(head.bytes);
  auto* to = pool_.at<char>(block);
  std::memcpy(to, words.data(), head.bytes);
  memory_.flush(to, head.bytes);
  // The whole spill and the intent, before the root leads to it.
  txn.publish(block, root_.spill);
}

// What the root leads to, if it is a spill by its size. The content is not judged.
template <typename Content>
const Spill& Core<Content>::spill() const {
  const uint64_t at = root_.spill;
  if (at % pm::kLineBytes != 0 || !pool_.leads_inside(at, sizeof(Spill)))
    throw_damaged("the spill");
  const Spill& head = *pool_.at<Spill>(at);
  if (head.bytes % 8 != 0 || head.bytes < sizeof head || head.bytes > pool_.end_offset() - at ||
      !pool_.heap().is_allocated(at, head.bytes)) {
    throw_damaged("the spill");
  }
  return head;
}

// The parts of a spill.
template <typename Content>
struct Core<Content>::Spilled {
  struct Place {
    uint64_t group;
    uint64_t number;
    Key separator;
  };
  std::span<const uint64_t> groups;
  std::vector<Place> leaves;
};

// Judges all of it but what the offsets lead to.
template <typename Content>
auto Core<Content>::read_spill() const -> Spilled {
  const Spill& head = spill();
  const std::span words(pool_.at<uint64_t>(root_.spill), head.bytes / 8);
  const uint64_t count = words.size() - sizeof head / 8;
  if (pm::checksum64(words.data() + 1, head.bytes - 8) != head.checksum || head.groups > count ||
      head.leaves > (count - head.groups) / 2) {
    throw_damaged("the spill");
  }
  Spilled spilled{words.subspan(sizeof head / 8, head.groups), {}};
  spilled.leaves.reserve(head.leaves);
  std::vector<uint64_t> used(head.groups);  // leaves, by bit
  std::span left = words.subspan(sizeof head / 8 + head.groups);
  const auto take = [&] {
    if (left.empty()) throw_damaged("the spill");
    const uint64_t word = left.front();
    left = left.subspan(1);
    return word;
  };
  for (uint64_t i = 0; i < head.leaves; ++i) {
    const uint64_t place = take();
    const uint64_t group = place >> 32;
    const uint64_t number = place & 0xffffffff;
    if (group >= head.groups || number >= geometry_.group || (used[group] >> number & 1) != 0) {
      throw_damaged("the spill");
    }
    used[group] |= uint64_t{1} << number;
    const uint64_t word = take();
    if constexpr (Content::kOutOfPlace) {
      const std::string_view text(reinterpret_cast<const char*>(left.data()), word);
      if (word > left.size_bytes()) throw_damaged("the spill");
      left = left.subspan((word + 7) / 8);
      spilled.leaves.push_back({group, number, Key(text)});
    } else {
      spilled.leaves.push_back({group, number, word});
    }
  }
  if (!left.empty()) throw_damaged("the spill");
  // The first separator counts for nothing.
  for (size_t i = 2; i < spilled.leaves.size(); ++i) {
    const Key& low = spilled.leaves[i - 1].separator;
    const Key& high = spilled.leaves[i].separator;
    if constexpr (Content::kOutOfPlace) {
      if (low.bytes >= high.bytes) throw_damaged("the spill");
    } else {
      if (low >= high) throw_damaged("the spill");
    }
  }
  return spilled;
}

template <typename Content>
void Core<Content>::load_spill() {
  const Spilled spilled = read_spill();
  if (!space_.load_list(spilled.groups)) throw_damaged("the spill");
  const std::vector<Group*> groups = space_.groups();
  std::vector<uint64_t> free(groups.size(), geometry_.all_leaves());  // by bit
  std::vector<Item> items;
  items.reserve(spilled.leaves.size());
  for (const auto& [group, number, separator] : spilled.leaves) {
    free[group] &= ~(uint64_t{1} << number);
    items.push_back({InnerNodes::separator_of(separator), &groups[group]->leaves[number]});
  }
  std::vector<LeafRef*> empty;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (uint64_t left = free[g]; left != 0; left &= left - 1) {
      empty.push_back(&groups[g]->leaves[std::countr_zero(left)]);
    }
  }
  spilled_.store(true, std::memory_order_release);
  adopt(std::move(items), empty);
}

// Before the first change: after it the spill no longer describes the tree.
template <typename Content>
void Core<Content>::drop_spill() {
  const std::lock_guard lock(spill_mutex_);
  if (!spilled_.load(std::memory_order_acquire)) return;
  const uint64_t block = pool_.offset_of(&spill());
  pm::Heap::Txn txn(pool_.heap(), true);
  // The intent, before the root leads to no spill.
  txn.retire(block, root_.spill, uint64_t{0});
  spilled_.store(false, std::memory_order_release);
}

PERDURE_INSTANTIATE_PART(PERDURE_FPTREE_INSTANTIATE)

}  // namespace perdure::index::fptree
