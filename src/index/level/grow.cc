// Levels: which there are, beginning with a new one, and being done with old ones.
#include <fmt/core.h>

#include "index/level/core.h"

namespace perdure::index::level {

template <typename Policy, typename Content>
typename Core<Policy, Content>::Level Core<Policy, Content>::level_at(uint64_t offset) const {
  return {offset, reinterpret_cast<Node*>(pool_.at<LevelHeader>(offset) + 1),
          pool_.at<LevelHeader>(offset)->bits};
}

template <typename Policy, typename Content>
std::unique_ptr<typename Core<Policy, Content>::State> Core<Policy, Content>::read_state() const {
  auto state = std::make_unique<State>();
  state->growing = root_.next != 0;
  if (root_.next != 0) state->levels[state->count++] = level_at(root_.next);
  state->levels[state->count++] = level_at(root_.top);
  state->levels[state->count++] = level_at(root_.bottom);
  for (const uint64_t extra : root_.extras) {
    if (extra != 0) state->levels[state->count++] = level_at(extra);
  }
  return state;
}

template <typename Policy, typename Content>
void Core<Policy, Content>::publish(std::unique_ptr<State> state) {
  const State* before = state_.exchange(state.release(), std::memory_order_acq_rel);
  epochs_.retire([before] { delete before; });
}

template <typename Policy, typename Content>
void Core<Policy, Content>::make_room(const State* seen) {
  if (!seen->growing) return begin_growing(seen);
  for (Backoff backoff; state_.load(std::memory_order_acquire) == seen; backoff.pause()) {
    drain_some(seen);
    if (seen->done.load(std::memory_order_acquire) < seen->source_nodes()) continue;
    if (end_growing(seen)) return;
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: '{}' cannot grow: too many keys share their hash bits; nothing "
                            "was changed",
                            pool_.mapping().path(), name_));
  }
}

// Whoever writes helps, so that the old level is empty long before the new one is full; and waits
// where a thread that drains a part of it was stopped by the system meanwhile: with more than one
// write for each new node the records of that part might not fit any more.
template <typename Policy, typename Content>
void Core<Policy, Content>::keep_pace(const State* seen) {
  drain_some(seen);
  if (seen->written.fetch_add(1, std::memory_order_relaxed) < seen->levels[0].size()) return;
  for (Backoff backoff; state_.load(std::memory_order_acquire) == seen; backoff.pause()) {
    drain_some(seen);
    if (seen->done.load(std::memory_order_acquire) < seen->source_nodes()) continue;
    end_growing(seen);
    return;
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::begin_growing(const State* seen) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != seen) return;  // somebody else has begun
  try {
    new_level(seen->levels[0].bits + 1, root_.next);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    if (seen->count == 2 + kExtras) throw;
    const uint32_t bits = std::max(seen->levels[0].bits - 3, stripe_bits_);
    new_level(bits, root_.extras[seen->count - 2]);
  }
  publish(read_state());
}

template <typename Policy, typename Content>
void Core<Policy, Content>::new_level(uint32_t bits, uint64_t& link) {
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(bytes_for(bits));
  format_level(pool_, pool_.at<char>(at), bits);
  txn.will_link(at, &link, pm::Link::kOffset);
  txn.prepare();
  memory_.fence();  // the empty level and the intent, before the link
  pm::store_release(link, at);
  memory_.flush(&link, sizeof link);
  txn.settle();
  memory_.fence();  // the link and the heap's bitmap, before the intent ends
  txn.finish();
}

template <typename Policy, typename Content>
void Core<Policy, Content>::format_level(const pm::PoolImpl& pool, char* block, uint32_t bits) {
  write_zeros(pool.memory(), block, (bytes_for(bits) + 63) & ~uint64_t{63});
  alignas(pm::kLineBytes) const LevelHeader header{bits, {}};
  pool.memory().copy_nontemporal(block, &header, sizeof header);
}

// When all nodes have been drained. Returns false if records are left that fit nowhere.
template <typename Policy, typename Content>
bool Core<Policy, Content>::end_growing(const State* state) {
  const std::lock_guard lock(growing_mutex_);
  if (state_.load(std::memory_order_acquire) != state) return true;  // somebody else has
  {
    const std::lock_guard hold(left_mutex_);
    std::erase_if(left_,
                  [&](const auto& one) { return drain_slowly(*state, *one.first, one.second); });
    if (!left_.empty()) return false;
  }
  constexpr auto kLater = pm::Heap::Txn::Release::kLater;
  std::vector<std::pair<uint64_t, uint64_t>> blocks;
  pm::Heap::Txn txn(pool_.heap(), true);
  uint64_t* link = &root_.bottom;
  for (const Level& level : state->sources()) {
    txn.will_unlink(level.offset, link, pm::Link::kOffset, kLater);
    blocks.emplace_back(level.offset, bytes_for(level.bits));
    link = link == &root_.bottom ? root_.extras : link + 1;
  }
  const uint64_t image[3 + kExtras] = {root_.next, root_.top};
  static_assert(offsetof(Root, extras) == offsetof(Root, top) + 3 * sizeof(uint64_t));
  txn.redo(&root_.top, image, sizeof image);
  txn.prepare();
  memory_.fence();  // the intents and the redo record, before it is armed
  txn.apply();
  txn.settle();
  memory_.fence();  // the heap's bitmap, before the intents end
  txn.finish();
  publish(read_state());
  epochs_.retire([this, blocks = std::move(blocks)] {
    for (const auto& [offset, bytes] : blocks) pool_.heap().release(offset, bytes);
  });
  return true;
}

template class Core<Reference, Words>;
template class Core<Reference, Bytes>;
template class Core<Trimmed, Words>;
template class Core<Trimmed, Bytes>;

}  // namespace perdure::index::level
