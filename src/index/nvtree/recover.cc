// Opening: the inner part from its image, or from the leaves, in parallel.
#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "index/nvtree/core.h"
#include "pm/thread.h"

namespace perdure::index::nvtree {

namespace {

constexpr uint64_t kLeavesTogether = 256;

// Calls work(begin, end) for parts of [0, count), in several threads.
template <typename Work>
void in_parallel(uint32_t threads, uint64_t count, Work work) {
  const uint64_t parts = (count + kLeavesTogether - 1) / kLeavesTogether;
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  std::atomic<uint64_t> next{0};
  pm::in_threads(static_cast<uint32_t>(std::min<uint64_t>(threads, parts)), [&](uint32_t) {
    for (uint64_t i = next++; i < parts; i = next++) {
      work(i * kLeavesTogether, std::min(count, (i + 1) * kLeavesTogether));
    }
  });
}

}  // namespace

template <typename Content>
void Core<Content>::throw_damaged(const char* what) const {
  if (pool_.failed()) pool_.require_writable();
  pool_.throw_corrupt(fmt::format("{} of '{}' is damaged", what, name_));
}

template <typename Content>
bool Core<Content>::is_leaf(uint64_t at) const {
  return pool_.heap().is_allocated(at, leaf_bytes(leaf_records_)) &&
         leaf_at(at).count <= leaf_records_;
}

template <typename Content>
void Core<Content>::recover(uint32_t threads) {
  if (leaf_records_ < kLeafRecordsMin || leaf_records_ > kLeafRecords ||
      inner_.records() < kInnerRecordsMin || inner_.records() > kInnerRecordsMax) {
    throw_damaged("the root");
  }
  has_image_ = root_.image != 0;
  inner_.build(has_image_ ? read_image() : read_leaves(threads));
  recovered_ = true;
}

// All leaves from the head on.
template <typename Content>
std::vector<uint64_t> Core<Content>::list_leaves() const {
  std::vector<uint64_t> leaves;
  for (uint64_t at = root_.head; at != 0 || leaves.empty(); at = leaf_at(at).next) {
    if (!is_leaf(at) || leaves.size() > leaves_max()) throw_damaged("the list of leaves");
    leaves.push_back(at);
  }
  return leaves;
}

template <typename Content>
typename Core<Content>::Extremes Core<Content>::extremes(uint64_t at) const {
  const Leaf& leaf = leaf_at(at);
  if constexpr (!Content::kOutOfPlace) {
    // Words have no intents, by which recovery would do that. A process that died may have left the
    // removal of the least or the greatest key in the caches only: the key would then come to the
    // leaf beside this one, and a power failure bring it back here.
    if (pool_.may_be_unflushed() && !pool_.read_only())
      memory_.flush(&leaf, leaf_bytes(leaf.count));
  }
  Extremes found;
  for (uint64_t live = live_mask(leaf, static_cast<uint32_t>(leaf.count)); live != 0;
       live &= live - 1) {
    const Slot slot = leaf.slot(static_cast<uint32_t>(std::countr_zero(live)));
    if constexpr (Content::kOutOfPlace) {
      if (!records_.sound(slot.value)) throw_damaged("a leaf");
    }
    if (!found.any || before(slot, found.least)) found.least = slot;
    if (!found.any || before(found.greatest, slot)) found.greatest = slot;
    found.any = true;
  }
  return found;
}

template <typename Content>
ChildList Core<Content>::read_leaves(uint32_t threads) {
  const std::vector<uint64_t> leaves = list_leaves();
  std::vector<Extremes> found(leaves.size());
  in_parallel(threads, leaves.size(), [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) found[i] = extremes(leaves[i]);
    // The leaves, before anything is written that goes by their extremes.
    if (pool_.may_be_unflushed() && !pool_.read_only()) memory_.fence();
  });
  ChildList children;
  Extremes last;
  uint64_t* link = &root_.head;
  for (size_t i = 0; i < leaves.size(); ++i) {
    // Empty ones, but for the last that remains, were left behind by removals that a crash cut
    // short.
    if (!found[i].any && (!children.empty() || i + 1 < leaves.size())) {
      unlink_empty(*link, leaves[i]);
      continue;
    }
    if (last.any && !before(last.greatest, found[i].least))
      throw_damaged("the order of the leaves");
    Child child{children.empty() ? 0 : found[i].least.key, nullptr, leaves[i]};
    if constexpr (Content::kOutOfPlace) {
      child.text = children.empty() ? new std::string
                                    : separator(records_.key(last.greatest.value),
                                                records_.key(found[i].least.value));
      child.word = tree::prefix_of(*child.text);
    }
    children.push_back(child);
    last = found[i];
    link = &leaf_at(leaves[i]).next;
  }
  return children;
}

template <typename Content>
void Core<Content>::unlink_empty(uint64_t& link, uint64_t leaf) {
  pm::Heap::Txn txn(pool_.heap(), true);
  // The intent, before the pointer that it follows.
  txn.retire(leaf, link, leaf_at(leaf).next);
  ++recovered_operations_;
}

PERDURE_INSTANTIATE_PART(PERDURE_NVTREE_INSTANTIATE)

}  // namespace perdure::index::nvtree
