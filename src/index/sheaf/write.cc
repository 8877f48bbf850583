// Making and opening a tree, and what goes to the log and a buffer.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <new>
#include <random>
#include <thread>

#include "index/sheaf/core.h"

namespace perdure::index::sheaf {

namespace {

constexpr char kType[] = "sheaf";
constexpr uint64_t kDirectoryBytes = 4096;
// To merge a leaf where the pool is full, while others read.
constexpr int kAttempts = 100;
// For readers that keep chunks of the log: until it grows, and, a millisecond each, until there is
// no room.
constexpr uint32_t kShortWaits = 100;
constexpr uint32_t kWaits = 2000;
constexpr uint64_t kRetiredBytes = 4096;
constexpr uint64_t kChunkBytesMin = 512;

// A chunk of byte strings has room for the largest record. Where one ends is known from a place in
// it: its size is a power of two, as blocks of such sizes are at multiples of them.
template <typename Content>
uint64_t chunk_bytes_of(uint64_t wanted, uint64_t capacity) {
  const uint64_t bytes = wanted != 0
                             ? pm::Heap::block_bytes(wanted)
                             : std::max<uint64_t>(pm::Heap::block_bytes(capacity / 2048), 1024);
  return std::clamp(Content::kOutOfPlace ? std::bit_ceil(bytes) : bytes,
                    Log<Content>::kChunkBytesMin, Log<Content>::kChunkBytes);
}

// Blocks of leaves that wait for readers are kept from others: few.
uint64_t retire_together_bytes(const pm::PoolImpl& pool) {
  return std::clamp(pool.capacity_bytes() / 1024, uint64_t{64} << 10, uint64_t{1} << 20);
}

}  // namespace

template <typename Content>
Core<Content>::Core(pm::PoolImpl& pool, Root& root, std::string name)
    : use_(pool, name, pool.offset_of(&root)),
      pool_(pool),
      root_(root),
      memory_(pool.memory()),
      name_(std::move(name)),
      buffer_records_(static_cast<uint32_t>(root.buffer_records)),
      promises_(pool),
      refs_(buffer_records_),
      log_(pool, root, promises_,
           [this](pm::Heap::Txn& txn, uint64_t hash, std::string_view value) {
             return records_.make(txn, as_bytes(hash), value);
           }),
      records_(pool, epochs_),
      retired_(
          epochs_,
          [&heap = pool.heap(), &refs = refs_](const auto& group) {
            for (const auto& [leaf, ref] : group) {
              heap.release(leaf);
              if (ref != nullptr) refs.give(ref);
            }
          },
          retire_together_bytes(pool) / kRetiredBytes, retire_together_bytes(pool)),
      inner_(epochs_) {}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::create(pm::PoolImpl& pool, const std::string& name,
                                                     Kind key, Kind value, const Options& options) {
  require_range("leaf_bytes", options.leaf_bytes, kLeafBytesMin, kLeafBytesMax);
  require_range("buffer_records", options.buffer_records, kBufferRecordsMin, kBufferRecordsMax);
  require_range("chunk_bytes", options.chunk_bytes, kChunkBytesMin, Log<Content>::kChunkBytes);
  const uint64_t capacity = pool.capacity_bytes();
  Root image{};
  image.seal.magic = kRootMagic;
  image.leaf_bytes =
      pm::Heap::block_bytes(options.leaf_bytes != 0 ? options.leaf_bytes : kLeafBytes);
  image.buffer_records = options.buffer_records != 0 ? options.buffer_records : kBufferRecords;
  image.directory_bytes = image.leaf_bytes < 1024 ? 256 : kDirectoryBytes;
  image.chunk_bytes = chunk_bytes_of<Content>(options.chunk_bytes, capacity);
  const uint64_t log_bytes = options.log_bytes != 0 ? options.log_bytes : capacity / 16;
  image.chunks_max =
      std::clamp(log_bytes / image.chunk_bytes, Log<Content>::kChunksMin, Log<Content>::kChunksMax);
  image.first_chunks = kFirstChunks;
  if constexpr (kBytes) {
    std::random_device random;
    image.salt = (uint64_t{random()} << 32 | random()) & 0xffffffffffffff;
  }
  const pm::Memory& memory = pool.memory();
  // All durable with the fence of make_structure().
  std::vector<NewBlock> blocks = {
      {image.directory_bytes, offsetof(Root, directory),
       [&](char* block) { write_zeros(memory, block, image.directory_bytes); }},
      {Log<Content>::kTableBytes, offsetof(Root, log),
       [&](char* block) { write_zeros(memory, block, Log<Content>::kTableBytes); }},
      {Leaf::bytes_for<Content>(1), offsetof(Root, slot), [&](char* block) {
         Leaf header;
         write_leaf(pool, pool.offset_of(block), pm::Heap::block_bytes(Leaf::bytes_for<Content>(1)),
                    Low{}, 0, {}, header);
       }}};
  for (uint64_t chunk = 0; chunk < kFirstChunks; ++chunk) {
    blocks.push_back({image.chunk_bytes, offsetof(Root, chunks) + chunk * sizeof(uint64_t),
                      [&, chunk](char* block) {
                        Log<Content>::format(memory, block, image.chunk_bytes, chunk);
                      }});
  }
  const uint64_t root =
      make_structure(pool, name, kType, key, value, &image, sizeof image, kSealedBytes, blocks);
  std::unique_ptr<Core> core(new Core(pool, *pool.at<Root>(root), name));
  core->recover(1);
  return core;
}

template <typename Content>
std::unique_ptr<Core<Content>> Core<Content>::open(pm::PoolImpl& pool, const std::string& name,
                                                   Kind key, Kind value, const Options& options) {
  const uint64_t at =
      find_structure(pool, name, kType, key, value, kRootMagic, sizeof(Root), kSealedBytes);
  Root& root = *pool.at<Root>(at);
  require_same(pool, name, "leaf_bytes", options.leaf_bytes, root.leaf_bytes);
  require_same(pool, name, "buffer_records", options.buffer_records, root.buffer_records);
  if (options.chunk_bytes != 0) {
    require_same(pool, name, "chunk_bytes", chunk_bytes_of<Content>(options.chunk_bytes, 0),
                 root.chunk_bytes);
  }
  if (root.leaf_bytes < kLeafBytesMin || root.leaf_bytes > kLeafBytesMax ||
      root.buffer_records < kBufferRecordsMin || root.buffer_records > kBufferRecordsMax ||
      root.chunk_bytes < Log<Content>::kChunkBytesMin ||
      root.chunk_bytes > Log<Content>::kChunkBytes || root.chunks_max < Log<Content>::kChunksMin ||
      root.chunks_max > Log<Content>::kChunksMax || root.first_chunks != kFirstChunks ||
      (kBytes ? !std::has_single_bit(root.chunk_bytes) : root.salt != 0) ||
      (root.directory_bytes != 256 && root.directory_bytes != kDirectoryBytes) ||
      !pool.heap().is_allocated(root.log, Log<Content>::kTableBytes)) {
    pool.throw_corrupt(fmt::format("the root of '{}' is damaged", name));
  }
  std::unique_ptr<Core> core(new Core(pool, root, name));
  core->recover(options.recovery_threads);
  return core;
}

// ---- writes

template <typename Content>
bool Core<Content>::write(const Condition& condition, const Key& key, Value value) {
  bool external = false;
  if constexpr (kBytes) {
    records_.require_fits(key.bytes, value, Form::kKeyBytesMax);
    external = value.size() > Form::inline_value_bytes(root_.leaf_bytes);
  }
  return carry_out({Form::key_of(key), value, condition, false, external});
}

template <typename Content>
bool Core<Content>::remove(const Key& key, const Condition& condition) {
  if constexpr (kBytes) {
    if (key.bytes.size() > Form::kKeyBytesMax) return false;
  }
  return carry_out({Form::key_of(key), Value{}, condition, true});
}

template <typename Content>
bool Core<Content>::carry_out(const Change& change) {
  pool_.require_writable();
  if (log_.is_short()) [[unlikely]]
    keep_log_room();
  uint32_t waits = 0;
  // A removal needs no room but what is on its way back: it waits for that.
  for (int attempt = 0;; ++attempt) {
    try {
      for (;;) {
        const Outcome outcome = try_change(change);
        if (outcome == Outcome::kNoLog) {
          make_log_room(reserve_for(change), waits);
        } else if (outcome == Outcome::kScarce) {
          keep_promises();
        } else {
          return outcome == Outcome::kTrue;
        }
      }
    } catch (const Error& error) {
      if (!pm::is_full(error) || attempt >= (change.removal ? kAttempts : 1)) throw;
    }
    if (attempt > 0) pm::PoolImpl::pause();
    reclaim();
  }
}

// The leaf of a change's key, locked.
template <typename Content>
Ref* Core<Content>::lock_leaf(const Change& change, Lock& lock) const {
  const bool may_be_new = change.condition.holds_if_absent();
  for (;;) {
    Ref* ref = inner_.find(Form::low_of(change.key));
    pm::prefetch_to_change(ref);
    // Of a key that is to be new, what says so; else what says where it is.
    if (!change.condition.always_holds())
      pm::prefetch(may_be_new ? ref->filter.line_of(Form::word_of(change.key)) : ref->lines);
    pm::prefetch_to_change(ref->fingerprints);
    lock = Lock(ref->lock);
    require_writable();
    if (ref->obsolete == 0) [[likely]]
      return ref;
    lock.unlock();
  }
}

template <typename Content>
typename Core<Content>::Outcome Core<Content>::try_change(const Change& change) {
  const pm::EpochManager::Guard guard(epochs_);
  for (;;) {
    Lock lock;
    Ref& ref = *lock_leaf(change, lock);
    // Where the record will be, most likely: on its way beside the log record.
    pm::prefetch_to_change(ref.buffer() + std::min<uint32_t>(ref.buffered, buffer_records_ - 1));
    int buffered = -1;
    Stored old{};
    bool there = false;
    const bool must_know = kBytes && has_external_.load(std::memory_order_relaxed);
    if (change.condition.always_holds() && !must_know) {
      buffered = find_buffered(ref, ref.buffered, change.key);
    } else {
      there = find(ref, change.key, change.condition.holds_if_absent(), buffered, old) ==
              Found::kRecord;
      const auto has = [&](const Value& expected) {
        return value_of(old, Form::word_of(change.key)) == expected;
      };
      if (!(there ? change.condition.holds_if_present(has) : change.condition.holds_if_absent()))
        return Outcome::kFalse;
    }
    const Room room = room_for(ref, change, buffered);
    // Nobody is promised room that the merge below would use up.
    if (room == Room::kScarce && promises_.any()) return Outcome::kScarce;
    if constexpr (kBytes) {
      if (change.external && promises_.any() && promises_.is_scarce(change.value.size()))
        return Outcome::kScarce;
    }
    if (room != Room::kYes) {
      merge(ref, lock, change.removal ? 0 : change.units(), reserve_for(change));
      continue;
    }
    if (ref.buffered == 0) enlist(ref);
    if constexpr (kBytes) {
      const uint64_t superseded = there && old.external ? block_of(old, change.key.hash) : 0;
      if (superseded != 0 && !records_.sound(superseded)) throw_damaged("what leads to a value");
      LogRecord record{change.key.bytes, change.value, ref.number + 1, change.removal,
                       change.external,  superseded,   change.key.hash};
      if (record.external) has_external_.store(true, std::memory_order_relaxed);
      if (!log_.append({&record, 1})) return Outcome::kNoLog;
      lock.mutex()->begin_change();
      put(ref, buffered, change, record);
      lock.unlock();
      if (superseded != 0) records_.retire(superseded);
    } else {
      LogRecord record{change.key, change.value, ref.number + 1, change.removal};
      if (!log_.append({&record, 1})) return Outcome::kNoLog;
      lock.mutex()->begin_change();
      put(ref, buffered, change, record);
    }
    return Outcome::kTrue;
  }
}

// Whether the change fits the buffer, and the merge that follows fits the pool: where that is
// nearly full, only as long as the leaf needs no larger block, which a merge can have when all else
// is full.
template <typename Content>
typename Core<Content>::Room Core<Content>::room_for(const Ref& ref, const Change& change,
                                                     int buffered) const {
  if (buffered < 0 && ref.buffered == buffer_records_) return Room::kAfterMerge;
  if constexpr (kBytes) {
    if (ref.inserted + change.units() > buffer_units() && ref.buffered > 0)
      return Room::kAfterMerge;
  }
  const bool grows = !change.removal &&
                     (kBytes || buffered < 0 || (ref.removed >> buffered & 1) != 0) &&
                     used(ref) + ref.inserted + change.units() > ref.room && ref.promised == 0;
  return grows && promises_.is_scarce(merge_bytes(ref)) ? Room::kScarce : Room::kYes;
}

// The most that the next merge may have to allocate.
template <typename Content>
uint32_t Core<Content>::merge_bytes(const Ref& ref) const {
  const uint64_t most = Leaf::room_of<Content>(root_.leaf_bytes);
  const uint64_t units = used(ref) + buffer_units();
  const uint64_t pieces = units <= most ? 1 : std::max<uint64_t>(2, pieces_for(units, most));
  const uint64_t bytes =
      pm::Heap::block_bytes(Leaf::bytes_for<Content>((units + pieces - 1) / pieces));
  return static_cast<uint32_t>(pieces * bytes);
}

// If the records of the leaf and its buffer have no room in a block of the leaf's size.
template <typename Content>
void Core<Content>::promise(Ref& ref) {
  if (used(ref) + ref.inserted <= ref.room || ref.promised != 0) return;
  ref.promised = merge_bytes(ref);
  promises_.give(ref.promised);
}

// The caller has begun the change, whose log record is written.
template <typename Content>
void Core<Content>::put(Ref& ref, int buffered, const Change& change, const LogRecord& record) {
  uint32_t i = static_cast<uint32_t>(buffered);
  const uint64_t word = Form::word_of(change.key);
  if (buffered < 0) {
    i = ref.buffered;
    pm::store_relaxed(ref.buffer()[i].key, word);
    pm::store_relaxed(ref.fingerprints[i], fingerprint_of(word));
    pm::store_relaxed(ref.buffered, static_cast<uint16_t>(i + 1));
  }
  const uint64_t bit = uint64_t{1} << i;
  const bool counted = buffered >= 0 && (ref.removed & bit) == 0;
  if (counted) ref.inserted = static_cast<uint16_t>(ref.inserted - buffered_units(ref, buffered));
  if constexpr (kBytes) {
    pm::store_relaxed(ref.buffer()[i].value, record.word);
  } else {
    pm::store_relaxed(ref.buffer()[i].value, record.value);
  }
  pm::store_relaxed(ref.removed, change.removal ? ref.removed | bit : ref.removed & ~bit);
  if (change.removal) {
    removals_.store(1, std::memory_order_relaxed);
  } else {
    ref.inserted = static_cast<uint16_t>(ref.inserted + change.units());
  }
  ++ref.number;
  promise(ref);
}

template <>
uint64_t Core<tree::Words>::buffered_units(const Ref& /*ref*/, int /*buffered*/) const {
  return 1;
}

// ---- room in the log

// Notes that the buffer of the leaf begins, before its first record is written: who frees the chunk
// that gets it finds the leaf in a list of the chunk's last era or an earlier one.
template <typename Content>
void Core<Content>::enlist(Ref& ref) {
  const std::lock_guard lock(lists_mutex_);
  const uint64_t era = log_.era();
  while (lists_begin_ + lists_.size() <= era) lists_.emplace_back();
  lists_[era - lists_begin_].push_back(&ref);
  pm::store_relaxed(ref.first_era, era);
}

template <typename Content>
void Core<Content>::prefetch_ref(const Ref& ref) const {
  const auto* begin = reinterpret_cast<const char*>(&ref);
  const uint64_t bytes = sizeof(Ref) + uint64_t{buffer_records_} * sizeof(Slot);
  for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) pm::prefetch_to_change(begin + at);
}

// Of no consequence if the ref changes meanwhile.
template <typename Content>
void Core<Content>::prefetch_leaf(const Ref& ref, uint64_t era) const {
  if (pm::load_relaxed(ref.buffered) == 0 || pm::load_relaxed(ref.first_era) > era) return;
  const char* leaf = pool_.at<char>(pm::load_relaxed(ref.offset));
  const uint64_t bytes = kBytes ? pm::load_relaxed(ref.block_bytes)
                                : Leaf::bytes_for<Content>(pm::load_relaxed(ref.records));
  for (uint64_t at = 0; at < bytes; at += pm::kLineBytes) pm::prefetch(leaf + at);
}

// Makes the chunk free that was left first: merges the leaves with records in it. Threads that need
// room at the same time share the work. Returns at once if there is nothing to do but wait for
// others. A reader that stays, as one that has been stopped, holds nobody up for ever: the log
// grows beyond its part of the leaves, and where it must not there is no room.
template <typename Content>
void Core<Content>::make_log_room(Reserve reserve, uint32_t& waits) {
  for (;;) {
    // Leaves that are merged together take more room, for a while, than one after the other: blocks
    // of so many sizes, each from a segment of its own. Where room is scarce one thread has them
    // all, since what some free is what others may need.
    const bool scarce = promises_.is_scarce(kMergeTogether * pm::kSegmentBytes);
    if (log_.has_free_chunk()) return;
    if (!merge_some(scarce ? ~size_t{0} : kMergeTogether, !scarce, reserve)) break;
  }
  // Readers may have left chunks that wait for them.
  if constexpr (kBytes) epochs_.collect();
  if (log_.has_free_chunk()) return;
  if (log_.waits_for_readers() && ++waits > kShortWaits) {
    if (log_.grow()) return;
    if (waits > kWaits) {
      throw Error(
          ErrorCode::kPoolFull,
          fmt::format("the log of '{}' has no room: a reader has been looking at it for too long",
                      name_));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  // Others merge the last leaves, or write to lanes that have all chunks.
  pm::PoolImpl::pause();
}

// Before an operation, while few chunks are free: some merges, so that none has to do many, or to
// wait for what another thread has begun.
template <typename Content>
void Core<Content>::keep_log_room() {
  if (promises_.is_scarce(kMergeTogether * pm::kSegmentBytes)) return;
  try {
    merge_some(kMergeTogether, true, Reserve::kSpared);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    // The operation may have room, and reports what it meets itself.
  } catch (const std::bad_alloc&) {
  }
}

// Merges at most so many of the leaves with records in the chunk that was left first. The chunk is
// free when the last of them has been merged. False if there are none. To be called without a
// guard.
template <typename Content>
bool Core<Content>::merge_some(size_t most, bool together, Reserve reserve) {
  static thread_local std::vector<Ref*> group;
  uint64_t era = 0;
  if (!take_due(group, era, most)) return false;
  const size_t taken = group.size();
  const auto give_back = [&] {
    const std::lock_guard lock(due_mutex_);
    in_hand_ -= taken;
    due_.insert(due_.end(), group.begin(), group.end());  // has room: see take_due()
    if (due_.empty() && in_hand_ == 0) log_.free_oldest(epochs_);
  };
  try {
    if (together) replace_together(group, era);
    merge_due(group, era, reserve);
  } catch (...) {
    give_back();
    throw;
  }
  give_back();
  return true;
}

// At most so many of the leaves that are to be merged before the oldest chunk, which was left in
// `era`, is free. False if there are none. Who gets them merges them or gives them back.
template <typename Content>
bool Core<Content>::take_due(std::vector<Ref*>& group, uint64_t& era, size_t most) {
  group.clear();
  const std::lock_guard lock(due_mutex_);
  if (!log_.oldest(era)) return false;
  {
    const std::lock_guard lists(lists_mutex_);
    for (; !lists_.empty() && lists_begin_ <= era; ++lists_begin_) {
      const std::vector<Ref*>& list = lists_.front();
      due_.reserve(due_.size() + in_hand_ + list.size());  // so that giving back needs no memory
      due_.insert(due_.end(), list.begin(), list.end());
      lists_.pop_front();
    }
    lists_begin_ = std::max(lists_begin_, era + 1);
  }
  if (due_.empty()) {
    if (in_hand_ == 0) log_.free_oldest(epochs_);
    return false;
  }
  const auto count = static_cast<int64_t>(std::min(due_.size(), most));
  group.assign(due_.end() - count, due_.end());
  due_.erase(due_.end() - count, due_.end());
  in_hand_ += group.size();
  return true;
}

// Merges leaves, one by one, and takes them from the group. To be called without a guard.
template <typename Content>
void Core<Content>::merge_due(std::vector<Ref*>& group, uint64_t era, Reserve reserve) {
  for (int attempt = 0; !group.empty();) {
    try {
      const pm::EpochManager::Guard guard(epochs_);
      Ref& ref = *group.back();
      Lock lock(ref.lock);
      require_writable();
      if (ref.obsolete == 0 && ref.buffered > 0 && ref.first_era <= era) {
        merge(ref, lock, 0, reserve);
      }
      group.pop_back();
      attempt = 0;
      continue;
    } catch (const Error& error) {
      if (!pm::is_full(error) || ++attempt == (reserve == Reserve::kUsed ? kAttempts : 2)) throw;
    }
    // Others may make room.
    std::swap(group.back(), group[static_cast<size_t>(attempt) % group.size()]);
    retire_all();  // blocks that wait for readers may be all that is missing
    epochs_.collect();
    if (attempt > 1) pm::PoolImpl::pause();
  }
}

// Merges all leaves that are chosen. Returns the error of the last one that had no room, if any. To
// be called without a guard.
template <typename Content>
template <typename Choose>
std::exception_ptr Core<Content>::merge_all(Reserve reserve, Choose choose) {
  retire_all();
  epochs_.collect();
  std::vector<Child> children;
  {
    const pm::EpochManager::Guard guard(epochs_);
    children = inner_.children();
  }
  std::exception_ptr full;
  for (const Child& child : children) {
    try {
      const pm::EpochManager::Guard guard(epochs_);
      Ref& ref = *child.ref;
      Lock lock(ref.lock);
      require_writable();
      if (ref.obsolete != 0 || !choose(ref)) continue;
      merge(ref, lock, 0, reserve);
    } catch (const Error& error) {
      if (!pm::is_full(error)) throw;
      full = std::current_exception();
    }
    retire_all();
    epochs_.collect();
  }
  return full;
}

// Merges the leaves whose merges need more room than they have. Throws kPoolFull, kNoSpace.
template <typename Content>
void Core<Content>::keep_promises() {
  const auto full = merge_all(Reserve::kSpared, [](const Ref& ref) { return ref.promised != 0; });
  if (full) std::rethrow_exception(full);
}

// All that no record needs and can be had back: blocks that wait for readers which have gone, and
// what removals left that are still in buffers. To be called without a guard.
template <typename Content>
void Core<Content>::reclaim() {
  retire_all();
  epochs_.collect();
  if (removals_.exchange(0, std::memory_order_relaxed) == 0) return;
  merge_all(Reserve::kUsed, [](const Ref& ref) { return ref.removed != 0; });
}

PERDURE_SHEAF_INSTANTIATE()

}  // namespace perdure::index::sheaf
