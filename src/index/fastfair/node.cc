// Changes of one locked node, and making it whole after a crash.
#include "index/fastfair/core.h"
#include "index/fastfair/stepper.h"

namespace perdure::index::fastfair {

template <typename Policy, typename Content>
typename Core<Policy, Content>::Position Core<Policy, Content>::position(const Node& node,
                                                                         const Key& key) const {
  const Entry* entries = entries_of(node);
  const bool leaf = is_leaf(node);
  Position found;
  std::strong_ordering order = std::strong_ordering::less;
  for (; found.at < slots_ && pm::load_relaxed(entries[found.at].mark) != 0; ++found.at) {
    const Entry entry = {pm::load_relaxed(entries[found.at].mark),
                         pm::load_relaxed(entries[found.at].other)};
    order = compare(entry, leaf, key);
    if (order >= 0) break;
  }
  found.found = order == 0;
  found.count = found.at;
  while (found.count < slots_ && pm::load_relaxed(entries[found.count].mark) != 0) ++found.count;
  return found;
}

template <typename Policy, typename Content>
uint32_t Core<Policy, Content>::count_entries(const Node& node) const {
  const Entry* entries = entries_of(node);
  uint32_t count = 0;
  while (count < slots_ && pm::load_relaxed(entries[count].mark) != 0) ++count;
  return count;
}

// All before the last flush is ordered; the caller's fence makes that durable.
template <typename Policy, typename Content>
void Core<Policy, Content>::insert_entry(Node& node, const Position& position, Entry entry) const {
  Entry* entries = entries_of(node);
  Stepper stepper(memory_);
  // From right to left, and in each entry, too. When entry i has become the copy of its left
  // neighbour that neighbour is there twice, until its own place gets another mark.
  for (uint32_t i = position.count; i > position.at; --i) {
    stepper.store(entries[i].other, pm::load_relaxed(entries[i - 1].other));
    stepper.store(entries[i].mark, pm::load_relaxed(entries[i - 1].mark));
  }
  stepper.store(entries[position.at].other, entry.other);
  stepper.store(entries[position.at].mark, entry.mark);  // commits
}

template <typename Policy, typename Content>
void Core<Policy, Content>::remove_entry(Node& node, uint32_t at, uint32_t count) const {
  Entry* entries = entries_of(node);
  Stepper stepper(memory_);
  // From left to right. The first store commits: the mark of the right neighbour is there twice.
  for (uint32_t i = at; i + 1 < count; ++i) {
    stepper.store(entries[i].mark, pm::load_relaxed(entries[i + 1].mark));
    stepper.store(entries[i].other, pm::load_relaxed(entries[i + 1].other));
  }
  stepper.store(entries[count - 1].mark, uint64_t{0});
}

// The caller fences. What is left of this after a crash does not count in any case: see cut().
template <typename Policy, typename Content>
void Core<Policy, Content>::clear_from(Node& node, uint32_t at) const {
  Entry* entries = entries_of(node);
  uint32_t last = at;
  for (uint32_t i = at; i < slots_; ++i) {
    if (pm::load_relaxed(entries[i].mark) == 0) continue;
    pm::store_release(entries[i].mark, uint64_t{0});
    last = i;
  }
  const char* begin = reinterpret_cast<const char*>(&entries[at]);
  memory_.flush(begin, static_cast<size_t>(reinterpret_cast<const char*>(&entries[last]) - begin) +
                           sizeof(uint64_t));
}

// An entry that is there twice: the shift is finished to the left, which undoes an insert that had
// not committed, and completes a removal that had.
template <typename Policy, typename Content>
bool Core<Policy, Content>::close_gap(Node& node) {
  const Entry* entries = entries_of(node);
  const uint32_t count = count_entries(node);
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (entries[i].mark != entries[i + 1].mark) continue;
    begin_change(node);
    remove_entry(node, i, count);
    memory_.fence();  // the node is whole, before anybody changes it
    return true;
  }
  return false;
}

// What an interrupted split or merge left behind the end, or not below the sibling's `low`.
template <typename Policy, typename Content>
bool Core<Policy, Content>::cut(Node& node) {
  const Entry* entries = entries_of(node);
  const Node* sibling = sibling_of(node);
  uint32_t end = count_entries(node);
  const bool leaf = is_leaf(node);
  while (sibling != nullptr && end > 0 &&
         !is_below(key_of(entries[end - 1], leaf), *sibling, *this)) {
    --end;
  }
  for (uint32_t i = end; i < slots_; ++i) {
    if (entries[i].mark == 0) continue;
    begin_change(node);
    clear_from(node, end);
    memory_.fence();  // the copies are gone, before the sibling that has the originals changes
    return true;
  }
  return false;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::make_whole(Node& node) {
  if (pm::load_relaxed(node.generation) == generation_) [[likely]]
    return;
  // A process that died may have left stores in the caches only, which are older than those that
  // follow: the medium gets them first, so that it never misses more than one step.
  memory_.flush(&node, node_bytes_);
  memory_.fence();
  const bool closed = close_gap(node);
  if (cut(node) || closed) recovered_operations_.fetch_add(1, std::memory_order_relaxed);
  pm::store_relaxed(node.generation, generation_);
}

PERDURE_INSTANTIATE_PART(PERDURE_FASTFAIR_INSTANTIATE)

}  // namespace perdure::index::fastfair
