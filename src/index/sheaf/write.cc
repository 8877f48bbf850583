// Making and opening a tree, and what goes to the log and a buffer.
#include <fmt/core.h>

#include <algorithm>

#include "index/sheaf/core.h"

namespace perdure::index::sheaf {

namespace {

constexpr char kType[] = "sheaf";
constexpr uint64_t kDirectoryBytes = 4096;
// Free segments beside those that merges need for certain.
constexpr uint64_t kSpareSegments = 8;
// To merge a leaf where the pool is full, while others read.
constexpr int kAttempts = 100;

}  // namespace

Core::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      buffer_records_(static_cast<uint32_t>(root.buffer_records)),
      refs_(buffer_records_),
      inner_(epochs_),
      log_(pool, root) {}

std::unique_ptr<Core> Core::create(pm::PoolImpl& pool, const std::string& name, Kind key,
                                   Kind value, const Options& options) {
  require_range("leaf_bytes", options.leaf_bytes, kLeafBytesMin, kLeafBytesMax);
  require_range("buffer_records", options.buffer_records, kBufferRecordsMin, kBufferRecordsMax);
  require_range("chunk_bytes", options.chunk_bytes, Log::kChunkBytesMin, Log::kChunkBytes);
  const uint64_t capacity = pool.header().capacity_bytes;
  Root image{};
  image.seal.magic = kRootMagic;
  image.leaf_bytes =
      pm::Heap::block_bytes(options.leaf_bytes != 0 ? options.leaf_bytes : kLeafBytes);
  image.buffer_records = options.buffer_records != 0 ? options.buffer_records : kBufferRecords;
  image.directory_bytes = image.leaf_bytes < 1024 ? 256 : kDirectoryBytes;
  image.chunk_bytes = options.chunk_bytes != 0 ? pm::Heap::block_bytes(options.chunk_bytes)
                                               : std::clamp(pm::Heap::block_bytes(capacity / 2048),
                                                            uint64_t{1024}, Log::kChunkBytes);
  const uint64_t log_bytes = options.log_bytes != 0 ? options.log_bytes : capacity / 16;
  image.chunks_max = std::clamp(log_bytes / image.chunk_bytes, Log::kChunksMin, Log::kChunksMax);
  const pm::Memory& memory = pool.memory();
  // All durable with the fence of make_structure().
  std::vector<NewBlock> blocks = {
      {image.directory_bytes, offsetof(Root, directory),
       [&](char* block) { write_zeros(memory, block, image.directory_bytes); }},
      {Log::kTableBytes, offsetof(Root, log),
       [&](char* block) { write_zeros(memory, block, Log::kTableBytes); }},
      {Leaf::bytes_for(1), offsetof(Root, slot), [&](char* block) {
         Leaf header;
         write_leaf(pool, pool.offset_of(block), pm::Heap::block_bytes(Leaf::bytes_for(1)), 0, 0,
                    {}, header);
       }}};
  for (uint64_t chunk = 0; chunk < kFirstChunks; ++chunk) {
    blocks.push_back(
        {image.chunk_bytes, offsetof(Root, chunks) + chunk * sizeof(uint64_t),
         [&, chunk](char* block) { Log::format(memory, block, image.chunk_bytes, chunk); }});
  }
  const uint64_t root =
      make_structure(pool, name, kType, key, value, &image, sizeof image, kSealedBytes, blocks);
  std::unique_ptr<Core> core(new Core(pool, *pool.at<Root>(root), name));
  core->recover(1);
  return core;
}

std::unique_ptr<Core> Core::open(pm::PoolImpl& pool, const std::string& name, Kind key, Kind value,
                                 const Options& options) {
  const uint64_t at =
      find_structure(pool, name, kType, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "leaf_bytes", options.leaf_bytes, root.leaf_bytes);
  require_same(pool, name, "buffer_records", options.buffer_records, root.buffer_records);
  require_same(pool, name, "chunk_bytes", options.chunk_bytes, root.chunk_bytes);
  if (root.leaf_bytes < kLeafBytesMin || root.leaf_bytes > kLeafBytesMax ||
      root.buffer_records < kBufferRecordsMin || root.buffer_records > kBufferRecordsMax ||
      root.chunk_bytes < Log::kChunkBytesMin || root.chunk_bytes > Log::kChunkBytes ||
      root.chunks_max < Log::kChunksMin || root.chunks_max > Log::kChunksMax ||
      root.reserved0 != 0 ||
      (root.directory_bytes != 256 && root.directory_bytes != kDirectoryBytes) ||
      !pool.heap().is_allocated(root.log, Log::kTableBytes)) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  std::unique_ptr<Core> core(new Core(pool, root, name));
  core->recover(options.recovery_threads);
  return core;
}

Core::~Core() {
  for (const auto& [leaf, ref] : retired_) pool_.heap().release(leaf);
}

// ---- writes

bool Core::write(Verb verb, Key key, Value value) { return carry_out({key, value, verb, false}); }

bool Core::remove(Key key) { return carry_out({key, 0, Verb::kUpdate, true}); }

bool Core::carry_out(const Change& change) {
  pool_.require_writable();
  // A removal needs no room but what is on its way back: it waits for that.
  for (int attempt = 0;; ++attempt) {
    try {
      for (;;) {
        const Outcome outcome = try_change(change);
        if (outcome != Outcome::kNoLog) return outcome == Outcome::kTrue;
        make_log_room();
      }
    } catch (const Error& error) {
      if (!pm::is_full(error) || attempt >= (change.removal ? kAttempts : 1)) throw;
    }
    if (attempt > 0) pm::PoolImpl::pause();
    reclaim();
  }
}

// The leaf of a key, locked.
Ref* Core::lock_leaf(Key key, Lock& lock) const {
  for (;;) {
    Ref* ref = inner_.find(key);
    pm::prefetch(ref->lines);
    pm::prefetch_to_change(ref->fingerprints);
    pm::prefetch_to_change(&ref->low);
    lock = Lock(ref->lock);
    if (ref->dead == 0) [[likely]]
      return ref;
    lock.unlock();
  }
}

Core::Outcome Core::try_change(const Change& change) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    Lock lock;
    Ref& ref = *lock_leaf(change.key, lock);
    int buffered = -1;
    if (change.verb == Verb::kUpsert) {
      buffered = find_buffered(ref, ref.buffered, change.key);
    } else {
      Value old = 0;
      const bool there = find(ref, change.key, buffered, old) == Found::kRecord;
      if (there != (change.verb == Verb::kUpdate)) return Outcome::kFalse;
    }
    if (!has_room(ref, change, buffered)) {
      merge(ref, lock, change.removal ? 0 : 1);
      continue;
    }
    if (ref.buffered == 0) enlist(ref);
    const LogRecord record{change.key, change.value, ref.number + 1, change.removal};
    if (!log_.append({&record, 1})) return Outcome::kNoLog;
    lock.mutex()->begin_change();
    put(ref, buffered, change);
    return Outcome::kTrue;
  }
}

// Whether the change fits the buffer, and the merge that follows fits the pool: where that is nearly full,
// only as long as the leaf needs no larger block, which a merge can have when all else is full.
bool Core::has_room(Ref& ref, const Change& change, int buffered) const {
  if (buffered < 0 && ref.buffered == buffer_records_) return false;
  const bool grows = !change.removal && (buffered < 0 || (ref.removed >> buffered & 1) != 0) &&
                     ref.promised == 0 &&
                     ref.records + ref.inserted + 1 > Leaf::room_of(ref.block_bytes);
  if (!grows) return true;
  const uint64_t promised = promises_.load(std::memory_order_relaxed) + 1;
  return !pool_.heap().is_scarce(promised * 2 * root_.leaf_bytes / pm::kSegmentBytes +
                                 kSpareSegments);
}

// The caller has begun the change.
void Core::put(Ref& ref, int buffered, const Change& change) {
  uint32_t i = static_cast<uint32_t>(buffered);
  if (buffered < 0) {
    i = ref.buffered;
    pm::store_relaxed(ref.buffer()[i].key, change.key);
    pm::store_relaxed(ref.fingerprints[i], fingerprint_of(change.key));
    pm::store_relaxed(ref.buffered, i + 1);
  }
  pm::store_relaxed(ref.buffer()[i].value, change.value);
  const uint64_t bit = uint64_t{1} << i;
  const bool counted = buffered >= 0 && (ref.removed & bit) == 0;
  pm::store_relaxed(ref.removed, change.removal ? ref.removed | bit : ref.removed & ~bit);
  if (change.removal) {
    if (counted) --ref.inserted;
    removals_.store(1, std::memory_order_relaxed);
  } else if (!counted) {
    ++ref.inserted;
  }
  ++ref.number;
  if (ref.promised == 0 && ref.records + ref.inserted > Leaf::room_of(ref.block_bytes)) {
    ref.promised = 1;
    promises_.fetch_add(1, std::memory_order_relaxed);
  }
}

// ---- room in the log

// Notes that the buffer of the leaf begins, before its first record is written: who frees the chunk that gets
// it finds the leaf in a list of the chunk's last era or an earlier one.
void Core::enlist(Ref& ref) {
  const std::lock_guard lock(lists_mutex_);
  const uint64_t era = log_.era();
  while (lists_begin_ + lists_.size() <= era) lists_.emplace_back();
  lists_[era - lists_begin_].push_back(&ref);
  pm::store_relaxed(ref.first_era, era);
}

// Of no consequence if the ref changes meanwhile.
void Core::prefetch_leaf(const Ref& ref, uint64_t era) const {
  if (pm::load_relaxed(ref.buffered) == 0 || pm::load_relaxed(ref.first_era) > era) return;
  const char* leaf = pool_.at<char>(pm::load_relaxed(ref.offset));
  const uint64_t bytes = Leaf::bytes_for(pm::load_relaxed(ref.records));
  for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) pm::prefetch(leaf + at);
  for (uint32_t i = 0; i < buffer_records_; i += kLineRecords) pm::prefetch(ref.buffer() + i);
}

// Merges the leaves with records in the chunk that was left first, which is free then.
void Core::make_log_room() {
  const std::lock_guard only(log_room_mutex_);
  uint64_t era = 0;
  if (log_.has_free_chunk()) return;
  if (!log_.oldest(era)) {
    pm::PoolImpl::pause();  // lanes that others write to have them all
    return;
  }
  {
    const std::lock_guard lock(lists_mutex_);
    for (; !lists_.empty() && lists_begin_ <= era; ++lists_begin_) {
      due_.insert(due_.end(), lists_.front().begin(), lists_.front().end());
      lists_.pop_front();
    }
    lists_begin_ = std::max(lists_begin_, era + 1);
  }
  for (int attempt = 0; !due_.empty();) {
    try {
      const pm::EpochManager::Guard guard(epochs_);
      Ref& ref = *due_.back();
      // The next leaf is read beside the fences of this one's merge.
      if (due_.size() > 1) prefetch_leaf(*due_[due_.size() - 2], era);
      Lock lock(ref.lock);
      if (ref.dead == 0 && ref.buffered > 0 && ref.first_era <= era) merge(ref, lock, 0);
      due_.pop_back();  // only now: who is not merged stays due
      attempt = 0;
      continue;
    } catch (const Error& error) {
      if (!pm::is_full(error) || ++attempt == kAttempts) throw;
    }
    retire_all();  // blocks that wait for readers may be all that is missing
    epochs_.collect();
    if (attempt > 1) pm::PoolImpl::pause();
  }
  log_.free_oldest();
}

// All that no record needs and can be had back: blocks that wait for readers which have gone, and what
// removals left that are still in buffers. To be called without a guard.
void Core::reclaim() {
  retire_all();
  epochs_.collect();
  if (removals_.exchange(0, std::memory_order_relaxed) == 0) return;
  std::vector<Child> children;
  {
    const pm::EpochManager::Guard guard(epochs_);
    children = inner_.children();
  }
  uint64_t merged = 0;
  for (const Child& child : children) {
    try {
      const pm::EpochManager::Guard guard(epochs_);
      Ref& ref = *child.ref;
      Lock lock(ref.lock);
      if (ref.dead != 0 || ref.removed == 0) continue;
      merge(ref, lock, 0);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
    }
    if (++merged % 2 != 0) continue;
    retire_all();
    epochs_.collect();
  }
  retire_all();
  epochs_.collect();
}

}  // namespace perdure::index::sheaf
