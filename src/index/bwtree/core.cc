// Making, opening, the mapping table, and finding the way.
#include "index/bwtree/core.h"

#include <fmt/core.h>

#include <algorithm>

namespace perdure::index::bwtree {

namespace {

void require(const Options& options) {
  require_range("node_keys", options.node_keys, kNodeKeysMin, kNodeKeysMax);
  require_range("chain", options.chain, 1, kChainMax);
}

uint64_t chunk_bytes(uint32_t chunk) {
  return uint64_t{kFirstChunkEntries} * sizeof(uint64_t) << chunk;
}

}  // namespace

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      node_keys_(static_cast<uint32_t>(root.node_keys)),
      chain_(static_cast<uint32_t>(root.chain)),
      records_(pool, epochs_),
      retired_(epochs_, pool.heap()) {
  load_chunks();
}

template <typename Content>
Core<Content>::~Core() = default;

template <typename Content>
void Core<Content>::throw_damaged(uint64_t at, const char* what) const {
  pool_.throw_corrupt(fmt::format("'{}': what is at {} {}", name_, at, what));
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require(options);
  Root root{};
  root.seal.magic = kMagic;
  root.node_keys = options.node_keys != 0 ? options.node_keys : kNodeKeysDefault;
  root.chain = options.chain != 0 ? options.chain : kChainDefault;
  uint64_t first = 0;
  const Image empty{static_cast<uint32_t>(root.node_keys), static_cast<uint32_t>(root.chain)};
  const std::array<NewBlock, 2> blocks = {
      NewBlock{empty.bytes(), offsetof(Root, first),
               [&](char* block) {
                 first = pool.offset_of(block);
                 empty.write(block, pool.memory());
               }},
      NewBlock{chunk_bytes(0), offsetof(Root, chunks), [&](char* block) {
                 write_zeros(pool.memory(), block, chunk_bytes(0));
                 pool.memory().fence();  // before the entry among them
                 auto* entries = reinterpret_cast<uint64_t*>(block);
                 pm::store_release(entries[kRootId], first);
                 pool.memory().flush(&entries[kRootId], sizeof(uint64_t));
               }}};
  const uint64_t at =
      make_structure(pool, name, kName, key, value, &root, sizeof root, kSealedBytes, blocks);
  std::unique_ptr<Core> core(new Core(pool, *pool.at<Root>(at), name));
  core->nodes_ = 1;
  return core;
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  require(options);
  const uint64_t at =
      find_structure(pool, name, kName, key, value, kMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  if (root.node_keys < kNodeKeysMin || root.node_keys > kNodeKeysMax || root.chain < 1 ||
      root.chain > kChainMax) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  require_same(pool, name, "node_keys", options.node_keys, root.node_keys);
  require_same(pool, name, "chain", options.chain, root.chain);
  std::unique_ptr<Core> core(new Core(pool, root, name));
  core->recover();
  return core;
}

// ---- the mapping table

template <typename Content>
void Core<Content>::load_chunks() {
  uint32_t chunk = 0;
  for (; chunk < kChunks && root_.chunks[chunk] != 0; ++chunk) {
    const uint64_t at = root_.chunks[chunk];
    if (at % pm::kLineBytes != 0 || !pool_.leads_inside(at, chunk_bytes(chunk)) ||
        !pool_.heap().is_allocated(at, chunk_bytes(chunk))) {
      throw_damaged(at, "is no part of the table of nodes");
    }
    chunks_[chunk] = pool_.at<uint64_t>(at);
  }
  entries_ = first_of(chunk);
  if (chunk == 0) throw_damaged(pool_.offset_of(&root_), "leads to no table of nodes");
}

template <typename Content>
void Core<Content>::add_chunk() {
  const std::lock_guard lock(table_mutex_);
  const uint64_t entries = entries_.load(std::memory_order_acquire);
  if (nodes_.load(std::memory_order_relaxed) < entries - entries / 8) return;  // another thread did
  const uint32_t chunk = chunk_of(static_cast<uint32_t>(entries));
  if (chunk == kChunks) {
    throw Error(
        ErrorCode::kPoolFull,
        fmt::format("'{}': its table has no number for one more node beside {} ones; nothing was "
                    "changed: remove records, or make another structure with larger nodes",
                    name_, entries));
  }
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t block = txn.allocate(chunk_bytes(chunk));
  write_zeros(memory_, pool_.at<char>(block), chunk_bytes(chunk));
  // The zeros and the intent, before the root leads there.
  txn.publish(block, root_.chunks[chunk]);
  pm::publish(chunks_[chunk], pool_.at<uint64_t>(block));
  pm::publish(entries_, uint64_t{first_of(chunk + 1)});
}

// An entry that is this thread's until it stores something there. The mark is not flushed: a crash
// forgets it.
template <typename Content>
uint32_t Core<Content>::claim_id() {
  for (;;) {
    const uint64_t entries = entries_.load(std::memory_order_acquire);
    const uint64_t nodes = nodes_.load(std::memory_order_relaxed);
    if (nodes >= entries - entries / 8) {
      try {
        add_chunk();
        if (entries != entries_.load(std::memory_order_acquire)) continue;
      } catch (const Error& error) {
        // Then the last free numbers serve, of which number 0 is none.
        if (!pm::is_full(error) || nodes >= entries - 1) throw;
      }
    }
    uint32_t id = cursor_.load(std::memory_order_relaxed);
    for (uint64_t tries = 0; tries < entries; ++tries) {
      if (++id >= entries) id = kRootId + 1;
      uint64_t& word = entry(id);
      if (pm::load_acquire(word) != 0 || !swap(word, 0, kClaimed)) continue;
      cursor_.store(id, std::memory_order_relaxed);
      nodes_.fetch_add(1, std::memory_order_relaxed);
      return id;
    }
  }
}

// ---- finding the way

template <typename Content>
Range Core<Content>::range_of(const Node& node) const {
  return {node.level, node.right, low_of(node), {node.high, text_in(node, node.high_text)}};
}

template <typename Content>
typename Core<Content>::Found Core<Content>::find(const Seen& at, const Key& key) const {
  Found found;
  bool changed = false;
  walk(*at.node, at.head, [&](const Delta& delta, uint32_t) {
    if (tree::compare<Content>(records_, {delta.key, delta.value}, key) != 0) return true;
    found = {delta.kind == DeltaKind::kPut, delta.value};
    changed = true;
    return false;
  });
  if (changed) return found;
  const Slot* begin = at.node->items();
  const Slot* end = begin + at.node->count;
  const Slot* slot = std::partition_point(
      begin, end, [&](const Slot& one) { return tree::compare<Content>(records_, one, key) < 0; });
  if (slot == end || tree::compare<Content>(records_, *slot, key) != 0) return {};
  return {true, slot->value};
}

template <typename Content>
void Core<Content>::collect(const Seen& at, Parts& out) const {
  struct Change {
    Slot slot;
    DeltaKind kind;
  };
  std::array<Change, kChainMax> changes;
  size_t count = 0;
  walk(*at.node, at.head, [&](const Delta& delta, uint32_t) {
    const Slot slot{delta.key, delta.value};
    const bool superseded =
        std::any_of(changes.begin(), changes.begin() + count,
                    [&](const Change& newer) { return order(newer.slot, slot) == 0; });
    if (!superseded) {
      changes[count++] = {slot, delta.kind};
    } else if (!kWords && delta.kind == DeltaKind::kPut) {
      out.superseded.push_back(delta.value);
    }
    return true;
  });
  std::sort(changes.begin(), changes.begin() + count,
            [&](const Change& a, const Change& b) { return order(a.slot, b.slot) < 0; });
  const Slot* slot = at.node->items();
  const Slot* end = slot + at.node->count;
  out.items.reserve(at.node->count + count);
  for (size_t i = 0; i < count; ++i) {
    const Slot* next = std::partition_point(
        slot, end, [&](const Slot& one) { return order(one, changes[i].slot) < 0; });
    out.items.insert(out.items.end(), slot, next);
    slot = next;
    if (slot != end && order(*slot, changes[i].slot) == 0) {
      if constexpr (!kWords) out.superseded.push_back(slot->value);
      ++slot;
    }
    if (changes[i].kind == DeltaKind::kPut) out.items.push_back(changes[i].slot);
  }
  out.items.insert(out.items.end(), slot, end);
}

// ---- what others left unfinished

// One step of making an entry firm, which may have changed by then.
template <typename Content>
void Core<Content>::complete(const Seen& seen) const {
  uint64_t& word = entry(seen.id);
  if ((seen.word & kUnborn) != 0) {
    const uint64_t& home = entry_at(seen.node->from);
    memory_.persist(&home, sizeof home);  // what leads to the node, before anything is said of it
    swap(word, seen.word, (seen.word & ~kUnborn) | kDirty);
    return;
  }
  memory_.persist(&word, sizeof word);  // before it is built on
  const uint32_t head = static_cast<uint32_t>(seen.word & kHeadMask);
  if constexpr (!kWords) {
    if (head != 0 && delta_of(*seen.node, head).kind == DeltaKind::kPut) {
      auto& committed = const_cast<Node*>(seen.node)->committed;
      std::atomic_ref(committed).fetch_or(uint64_t{1} << (head - 1), std::memory_order_acq_rel);
      // The record counts, before anybody relies on it: and not before the entry leads to it.
      memory_.persist(&committed, sizeof committed);
    }
  }
  swap(word, seen.word, seen.word & ~kDirty);
}

// Before the block that led to new nodes first is replaced: afterwards nothing would say that they
// are born.
template <typename Content>
void Core<Content>::complete_fresh(const Seen& at) const {
  for (const uint32_t id : at.node->fresh) {
    // The node has its number still, or nobody has: it does not go before this block was replaced,
    // and its number is not used again while the caller's guard lives.
    Seen fresh;
    while (id != 0 && see(id, fresh) && fresh.node->home == at.block() && !fresh.firm()) {
      complete(fresh);
    }
  }
}

// ---- recovery

template <typename Content>
void Core<Content>::free_orphan(uint32_t id) {
  uint64_t& word = entry(id);
  pm::Heap::Txn txn(pool_.heap(), true);
  txn.will_unlink(word & kBlockMask, &word, pm::Link::kTagged);
  // The intent, before the entry is free.
  txn.commit([&] {
    pm::store_release(word, uint64_t{0});
    memory_.flush(&word, sizeof word);
  });
}

template <typename Content>
void Core<Content>::recover() {
  const uint64_t entries = entries_;
  const pm::EpochManager::Guard guard(epochs_);
  std::vector<uint32_t> unborn;
  uint32_t frozen = 0;
  for (uint32_t id = kRootId; id < entries; ++id) {
    uint64_t& word = entry(id);
    if (word == 0) continue;
    if ((word & kBlockMask) == 0) {
      pm::store_release(word,
                        uint64_t{0});  // claimed or retired: a crash forgets that, which is as good
      continue;
    }
    ++nodes_;
    if ((word & (kDirty | kUnborn | kFrozen)) == 0) continue;
    ++recovered_operations_;
    if ((word & kUnborn) != 0) unborn.push_back(id);
    if ((word & kFrozen) != 0) frozen = id;
    if ((word & kDirty) == 0) continue;
    const Node& node = *node_at(word, id);
    uint64_t now = word & ~kDirty;
    const auto head = static_cast<uint32_t>(word & kHeadMask);
    if (!kWords && head != 0) {
      const Delta& delta = delta_of(node, head);
      if (delta.kind == DeltaKind::kPut && (node.committed >> (head - 1) & 1) == 0) {
        now = (now & ~kHeadMask) | delta.next;
      }
    }
    pm::store_release(word, now);
    memory_.flush(&word, sizeof word);
  }
  memory_.fence();  // before a place that is free again gets another change
  for (const uint32_t id : unborn) {
    uint64_t& word = entry(id);
    const Node& node = *node_at(word, id);
    if ((entry_at(node.from) & kBlockMask) == node.home) {
      pm::store_release(word, word & ~kUnborn);
      memory_.persist(&word, sizeof word);  // before the block that says so is replaced
    } else {
      free_orphan(id);
      --nodes_;
    }
  }
  Seen gone;
  if (frozen != 0 && see(frozen, gone)) {
    Seen absorber;
    if (absorber_of(gone, absorber)) {
      uint64_t& word = entry(frozen);
      pm::store_release(word, word & ~kFrozen);
      memory_.persist(&word, sizeof word);  // before it is written to
    } else {
      pending_ = frozen;
    }
  }
  Seen top;
  if (!see(kRootId, top)) throw_damaged(pool_.offset_of(&root_), "leads to no node");
  if (!pool_.heap().is_allocated(top.block(), top.node->bytes))
    throw_damaged(top.block(), "is no node, but the root leads there");
}

PERDURE_INSTANTIATE_PART(PERDURE_BWTREE_INSTANTIATE)

}  // namespace perdure::index::bwtree
