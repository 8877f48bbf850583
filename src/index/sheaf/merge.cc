// New leaves from old ones and their buffers.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "index/sheaf/core.h"
#include "index/simd.h"
#include "pm/checksum.h"

namespace perdure::index::sheaf {

namespace {

// The log may have one byte for so many of the leaves.
constexpr uint64_t kLeafBytesForLogByte = 6;

}  // namespace

// The buffer's records in the order of their keys, into `to`. By parts of the leaf's range first,
// which leaves few to be put right.
template <>
uint32_t Core<tree::Words>::sort_buffer(const Ref& ref, Fresh* to) const {
  std::array<uint8_t, kLookupLines + 1> ends{};
  std::array<uint8_t, kBufferRecordsMax> parts;
  const uint32_t count = ref.buffered;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t part = part_of(ref.first, ref.scale, ref.buffer()[i].key);
    parts[i] = static_cast<uint8_t>(part);
    ++ends[part + 1];
  }
  for (uint32_t part = 1; part < kLookupLines; ++part)
    ends[part] = static_cast<uint8_t>(ends[part] + ends[part - 1]);
  for (uint32_t i = 0; i < count; ++i) {
    to[ends[parts[i]]++] = {ref.buffer()[i], (ref.removed >> i & 1) != 0};
  }
  for (uint32_t i = 1; i < count; ++i) {
    if (to[i - 1].item.key < to[i].item.key) continue;
    const Fresh one = to[i];
    uint32_t at = i;
    for (; at > 0 && to[at - 1].item.key > one.item.key; --at) to[at] = to[at - 1];
    to[at] = one;
  }
  return count;
}

// Appends the records of the leaf and its buffer, in order, without those that are removed.
template <>
void Core<tree::Words>::collect(const Ref& ref, Items& out) const {
  Fresh fresh[kBufferRecordsMax];
  const uint32_t count = sort_buffer(ref, fresh);
  const Slot* leaf = leaf_of(ref).records();
  // Damage is not copied to a new leaf, whose checksum would be right.
  if (leaf_of(ref).content_checksum != pm::checksum32(leaf, ref.records * sizeof(Slot), ref.offset))
      [[unlikely]]
    throw_damaged("a leaf");
  const uint64_t begin = out.size();
  out.resize(begin + ref.records + count);
  Slot* to = out.data() + begin;
  uint32_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t key = fresh[i].item.key;
    while (at < ref.records && leaf[at].key < key) *to++ = leaf[at++];
    if (at < ref.records && leaf[at].key == key) ++at;
    if (!fresh[i].removal) *to++ = fresh[i].item;
  }
  to = std::copy(leaf + at, leaf + ref.records, to);
  out.resize(static_cast<uint64_t>(to - out.data()));
}

// Merges a leaf with its buffer, so that `more` records fit afterwards. The lock is held, and may
// be gone on return, with the leaf obsolete. Throws kPoolFull, kNoSpace, having changed nothing.
template <typename Content>
void Core<Content>::merge(Ref& ref, Lock& lock, uint64_t more, Reserve reserve) {
  static thread_local Items records;
  records.clear();
  collect(ref, records);
  merges_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t units = units_of(low_of(ref), records);
  if (units <= Leaf::room_of<Content>(root_.leaf_bytes) / 4 &&
      merge_with_neighbour(ref, lock, records, more)) {
    return;
  }
  const std::vector<Part> parts = parts_of(ref, records, more);
  if (parts.size() == 1) {
    replace_one(ref, records, pm::Heap::block_bytes(Leaf::bytes_for<Content>(units + more)),
                reserve);
  } else {
    replace_several(ref, lock, nullptr, records, parts, 0, reserve);
  }
}

// The same, with a neighbour, into one leaf: returns false, having changed nothing, if there is
// none, or no room. `own` are the records of the leaf and its buffer.
template <typename Content>
bool Core<Content>::merge_with_neighbour(Ref& ref, Lock& lock, const Items& own, uint64_t more) {
  Lock neighbour_lock;
  Ref* neighbour = lock_neighbour(ref, units_of(low_of(ref), own) + more, neighbour_lock);
  if (neighbour == nullptr) return false;
  Items both;
  const bool above = low_of(*neighbour) > low_of(ref);
  if (above) both = own;
  collect(*neighbour, both);
  if (!above) both.insert(both.end(), own.begin(), own.end());
  const Part all{0, both.size()};
  try {
    replace_several(ref, lock, neighbour, both, {&all, 1}, more, Reserve::kSpared);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;  // the leaf alone may have its own size
  }
  return true;
}

// A leaf beside this one that the records fit into, too, locked; or null. Does not wait: two leaves
// that wait for each other would do so for ever.
template <typename Content>
Ref* Core<Content>::lock_neighbour(const Ref& ref, uint64_t units, Lock& lock) const {
  bool has_next = false;
  Low next{};
  const Low low = low_of(ref);
  inner_.find(low, has_next, next);
  for (Ref* other : {has_next ? inner_.find(next) : nullptr, inner_.before(low)}) {
    if (other == nullptr || other == &ref || !other->lock.try_lock()) continue;
    lock = Lock(other->lock, std::adopt_lock);
    const bool adjacent = other->obsolete == 0 && (low_of(*other) < low || low_of(*other) == next);
    const uint64_t all = units + used(*other) + other->inserted;
    if (adjacent && all <= Leaf::room_of<Content>(root_.leaf_bytes) * uint64_t{3} / 4) return other;
    lock.unlock();
    lock = Lock();
  }
  return nullptr;
}

// How the records are divided among new leaves.
template <>
std::vector<Core<tree::Words>::Part> Core<tree::Words>::parts_of(const Ref& ref,
                                                                 const Items& records,
                                                                 uint64_t more) const {
  const uint64_t count = records.size();
  const uint64_t most = Leaf::room_of<tree::Words>(root_.leaf_bytes);
  if (count + more <= most) return {{0, count}};
  // Keys that come in ascending order: the leaf will get no more of them.
  const bool ascending = ref.records > 0 && ref.records + ref.buffered == count &&
                         records[ref.records - 1].key == leaf_of(ref).last;
  if (ascending && count - most < most && count > most) return {{0, most}, {most, count}};
  std::vector<Part> parts;
  const uint64_t pieces = std::max<uint64_t>(2, pieces_for(count, most));
  for (uint64_t i = 0; i < pieces; ++i)
    parts.push_back({count * i / pieces, count * (i + 1) / pieces});
  return parts;
}

template <>
uint64_t Core<tree::Words>::units_of(Low /*low*/, std::span<const Item> records) {
  return records.size();
}

template <>
uint64_t Core<tree::Words>::low_between(const Item& /*before*/, const Item& first) {
  return first.key;
}

// Which line a part's records begin on.
template <typename Content>
void Core<Content>::fill_lines(Leaf& header, const Slot* records) {
  // The first record of a part, or of a later one, is on the first line whose last record is of
  // such a part.
  const uint64_t scale = scale_of(header.first, header.last);
  uint32_t next_part = 0;
  for (uint32_t i = 0; i < header.count; i += kLineRecords) {
    const uint32_t last = std::min(i + kLineRecords, header.count) - 1;
    const uint32_t part = part_of(header.first, scale, records[last].key);
    for (; next_part <= part; ++next_part)
      header.lines[next_part] = static_cast<uint8_t>(i / kLineRecords);
  }
  const uint32_t last_line = header.count == 0 ? 0 : (header.count - 1) / kLineRecords;
  for (; next_part < kLookupLines; ++next_part) {
    header.lines[next_part] = static_cast<uint8_t>(last_line);
  }
}

// Writes a leaf past the caches; durable with the next fence.
template <>
void Core<tree::Words>::write_leaf(pm::PoolImpl& pool, uint64_t offset, uint64_t bytes,
                                   uint64_t low, uint64_t number, std::span<const Item> records,
                                   Leaf& header) {
  header = Leaf{};
  header.merged = number;
  header.low = low;
  header.first = records.empty() ? low : records.front().key;
  header.last = records.empty() ? low : records.back().key;
  header.count = static_cast<uint32_t>(records.size());
  header.bytes = static_cast<uint32_t>(bytes);
  header.content_checksum = pm::checksum32(records.data(), records.size_bytes(), offset);
  fill_lines(header, records.data());
  header.header_checksum = header.header_checksum_at(offset);
  const pm::Memory& memory = pool.memory();
  auto* home = pool.at<Leaf>(offset);
  memory.copy_nontemporal(home, &header, sizeof header);
  const uint64_t whole = records.size_bytes() / pm::kLineBytes * pm::kLineBytes;
  memory.copy_nontemporal(home->records(), records.data(), whole);
  if (const uint64_t rest = records.size_bytes() - whole; rest > 0) {
    alignas(64) Slot line[kLineRecords] = {};
    std::memcpy(line, records.data() + whole / sizeof(Slot), rest);
    memory.copy_nontemporal(home->records() + whole / sizeof(Slot), line, sizeof line);
  }
}

// What DRAM has of a new leaf.
template <typename Content>
void Core<Content>::adopt(Ref& ref, uint64_t offset, const Leaf& header) {
  pm::store_relaxed(ref.offset, offset);
  pm::store_relaxed(ref.records, static_cast<uint16_t>(header.count));
  pm::store_relaxed(ref.first, header.first);
  pm::store_relaxed(ref.scale, scale_of(header.first, header.last));
  pm::store_relaxed(ref.last, header.last);
  for (uint32_t i = 0; i < kLookupLines; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, header.lines + i, sizeof word);
    if constexpr (kVectorsAllowed) {
      std::memcpy(ref.lines + i, &word, sizeof word);
    } else {
      for (uint32_t j = 0; j < 8; ++j) pm::store_relaxed(ref.lines[i + j], header.lines[i + j]);
    }
  }
  pm::store_relaxed(ref.block_bytes, header.bytes);
  ref.room = static_cast<uint16_t>(Leaf::room_of<Content>(header.bytes));
  if constexpr (kBytes) {
    pm::store_relaxed(ref.prefix, header.prefix_bytes);
    ref.used = Form::units_of(header.content_bytes);
  }
}

// The filter of a ref whose leaf gets these records, of which its buffer has those that the old
// leaf lacks.
template <typename Content>
void Core<Content>::renew_filter(Ref& ref, std::span<const Item> records) {
  if (ref.filtered != 0 && ref.removed == 0) {
    for (uint32_t i = 0; i < ref.buffered; ++i) ref.filter.add(ref.buffer()[i].key);
    return;
  }
  ref.filter.clear();
  for (const Item& record : records) {
    if constexpr (kBytes) {
      ref.filter.add(pm::checksum64(record.key.data(), record.key.size()));
    } else {
      ref.filter.add(record.key);
    }
  }
  pm::store_relaxed(ref.filtered, uint8_t{1});
}

template <typename Content>
void Core<Content>::forget_buffer(Ref& ref) {
  pm::store_relaxed(ref.buffered, uint16_t{0});
  pm::store_relaxed(ref.removed, uint64_t{0});
  ref.inserted = 0;
  promises_.end(std::exchange(ref.promised, 0));
}

// The log may have a part of the leaves' bytes.
template <typename Content>
void Core<Content>::account(int64_t leaf_bytes) {
  const uint64_t all =
      leaf_bytes_.fetch_add(static_cast<uint64_t>(leaf_bytes)) + static_cast<uint64_t>(leaf_bytes);
  log_.allow(std::max(Log<Content>::kChunksMin, all / kLeafBytesForLogByte / log_.chunk_bytes()));
}

// A leaf that is to take the place of another one.
template <typename Content>
struct Core<Content>::Successor {
  Ref* ref;
  Lock lock;
  uint64_t offset;
  Leaf header;
};

// Writes the leaf that takes the place of one whose buffer began in `era` or before. False if that
// takes a larger change, or there is no room, or another has the leaf: nothing has changed. True
// with `made.ref` null if the leaf is no such one.
template <typename Content>
bool Core<Content>::make_successor(pm::Heap::Txn& txn, Ref& ref, uint64_t era, Successor& made) {
  static thread_local Items records;
  made.ref = nullptr;
  if (!ref.lock.try_lock()) return false;
  Lock lock(ref.lock, std::adopt_lock);
  require_writable();
  if (ref.obsolete != 0 || ref.buffered == 0 || ref.first_era > era) return true;
  records.clear();
  try {
    collect(ref, records);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return false;  // the others are merged; who merges this one by itself reports it
  }
  const uint64_t most = Leaf::room_of<Content>(root_.leaf_bytes);
  const uint64_t units = units_of(low_of(ref), records);
  if (units <= most / 4 || units > most) return false;
  const uint64_t bytes = pm::Heap::block_bytes(Leaf::bytes_for<Content>(units));
  try {
    made.offset = txn.allocate(bytes);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
  write_leaf(pool_, made.offset, bytes, low_of(ref), ref.number, records, made.header);
  txn.will_link(made.offset, ref.slot, pm::Link::kOffset);
  txn.will_unlink(ref.offset, ref.slot, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  // Even if nothing came of the merge: the filter would lack only what the buffer has as removed,
  // until the next.
  renew_filter(ref, records);
  made.lock = std::move(lock);
  made.ref = &ref;
  return true;
}

// Merges leaves with their buffers in one transaction. Each has a link of its own, so a crash
// leaves any of them old or new. Leaves in `group` those that must be merged one by one. Leaves
// that are locked are among them: who holds several leaves waits for none, and a leaf may be there
// twice.
template <typename Content>
void Core<Content>::replace_together(std::vector<Ref*>& group, uint64_t era) {
  std::array<Successor, kMergeTogether> made;
  std::array<Ref*, kMergeTogether> rest;
  size_t count = 0;
  size_t rest_count = 0;
  const pm::EpochManager::Guard guard(epochs_);
  pm::Heap::Txn txn(pool_.heap());
  prefetch_ref(*group[0]);
  for (size_t i = 0; i < group.size(); ++i) {
    // The next leaf is read beside the work on this one.
    if (i + 2 < group.size()) prefetch_ref(*group[i + 2]);
    if (i + 1 < group.size()) prefetch_leaf(*group[i + 1], era);
    if (!make_successor(txn, *group[i], era, made[count])) {
      rest[rest_count++] = group[i];
    } else if (made[count].ref != nullptr) {
      ++count;
    }
  }
  if (count > 0) {
    // The leaves and the intents, before the slots lead to them.
    txn.commit([&] {
      for (size_t i = 0; i < count; ++i) {
        pm::store_release(*made[i].ref->slot, made[i].offset);
        memory_.flush(made[i].ref->slot, sizeof(uint64_t));
      }
    });
  }
  for (size_t i = 0; i < count; ++i) {
    Ref& ref = *made[i].ref;
    const uint64_t old = ref.offset;
    const uint32_t old_bytes = ref.block_bytes;
    ref.lock.begin_change();
    adopt(ref, made[i].offset, made[i].header);
    forget_buffer(ref);
    made[i].lock.unlock();
    account(int64_t{made[i].header.bytes} - int64_t{old_bytes});
    retire(old, old_bytes, nullptr);
  }
  merges_.fetch_add(count, std::memory_order_relaxed);
  group.assign(rest.begin(), rest.begin() + static_cast<int64_t>(rest_count));
}

// Puts the records into a leaf of `bytes`, or of as many as it has, if there is no such block.
template <typename Content>
void Core<Content>::replace_one(Ref& ref, std::span<const Item> records, uint64_t bytes,
                                Reserve reserve) {
  const uint64_t old = ref.offset;
  const uint64_t old_bytes = ref.block_bytes;
  Leaf header;
  uint64_t fresh = 0;
  const auto replace = [&](uint64_t size, Reserve from) {
    pm::Heap::Txn txn(pool_.heap(), from == Reserve::kUsed);
    fresh = txn.allocate(size);
    write_leaf(pool_, fresh, size, low_of(ref), ref.number, records, header);
    // The leaf and the intents, before the slot leads to it.
    txn.replace(old, fresh, *ref.slot, pm::Heap::Txn::Release::kLater);
  };
  try {
    replace(bytes, Reserve::kSpared);
  } catch (const Error& error) {
    if (!pm::is_full(error) || (bytes >= old_bytes && reserve == Reserve::kSpared)) throw;
    // Of this size the heap's reserve has some, and gets one back. A smaller one it would not get
    // back, and a leaf that has that size could need it.
    replace(std::max(bytes, old_bytes), reserve);
  }
  ref.lock.begin_change();
  adopt(ref, fresh, header);
  renew_filter(ref, records);
  forget_buffer(ref);
  account(int64_t{header.bytes} - static_cast<int64_t>(old_bytes));
  retire(old, old_bytes, nullptr);
}

// New leaves that are to stand for others: what a failure gives back.
template <typename Content>
struct Core<Content>::Several {
  std::vector<Ref*> refs;
  std::vector<uint64_t*> slots;  // the first one is that of the leaf that goes
  std::vector<Child> children;
  int64_t grown = 0;
};

template <typename Content>
void Core<Content>::replace_several(Ref& ref, Lock& lock, Ref* neighbour,
                                    std::span<const Item> records, std::span<const Part> parts,
                                    uint64_t more, Reserve reserve) {
  Several made;
  try {
    make_several(made, ref, neighbour, records, parts, more, reserve);
  } catch (...) {
    for (Ref* one : made.refs) {
      const std::lock_guard init(one->lock);
      pm::store_relaxed(one->obsolete, uint8_t{1});
      refs_.give(one);
    }
    if (!made.slots.empty()) {
      const std::lock_guard guard(slots_mutex_);
      free_slots_.insert(free_slots_.end(), made.slots.begin() + 1, made.slots.end());
    }
    throw;
  }
  // From here on nothing throws: PM has the change, and so must DRAM.
  const auto retire_leaf = [&](Ref& old) {
    old.lock.begin_change();
    pm::store_relaxed(old.obsolete, uint8_t{1});
    forget_buffer(old);
    retire(old.offset, old.block_bytes, &old);
  };
  if (neighbour != nullptr) {
    const std::lock_guard guard(slots_mutex_);
    free_slots_.push_back(neighbour->slot);
  }
  retire_leaf(ref);
  lock.unlock();
  if (neighbour != nullptr) retire_leaf(*neighbour);
  account(made.grown);
  splits_.fetch_add(1, std::memory_order_relaxed);
}

// Makes the leaves, and publishes them.
template <typename Content>
void Core<Content>::make_several(Several& made, Ref& ref, Ref* neighbour,
                                 std::span<const Item> records, std::span<const Part> parts,
                                 uint64_t more, Reserve reserve) {
  const Low own = low_of(ref);
  const Low low = neighbour == nullptr ? own : std::min(own, low_of(*neighbour));
  const Low high = neighbour == nullptr ? own : std::max(own, low_of(*neighbour));
  const uint64_t number =
      neighbour == nullptr ? ref.number : std::max(ref.number, neighbour->number);
  made.refs.reserve(parts.size());
  made.slots.reserve(parts.size());
  made.slots.push_back(ref.slot);
  made.grown = -static_cast<int64_t>(ref.block_bytes);
  if (neighbour != nullptr) made.grown -= neighbour->block_bytes;
  while (made.slots.size() < parts.size()) made.slots.push_back(take_slot());
  while (made.refs.size() < parts.size()) made.refs.push_back(refs_.take());
  pm::Heap::Txn txn(pool_.heap(), reserve == Reserve::kUsed);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto part = records.subspan(parts[i].begin, parts[i].end - parts[i].begin);
    const Low part_low = i == 0 ? low : low_between(records[parts[i].begin - 1], part.front());
    const uint64_t units = units_of(part_low, part) + more;
    const uint64_t bytes =
        pm::Heap::block_bytes(Leaf::bytes_for<Content>(std::max<uint64_t>(units, 1)));
    const uint64_t offset = txn.allocate(bytes);
    Leaf header;
    write_leaf(pool_, offset, bytes, part_low, number, part, header);
    txn.will_link(offset, made.slots[i], pm::Link::kOffset);
    txn.redo(made.slots[i], &offset, sizeof offset);
    Ref& one = *made.refs[i];
    // Who has it from a list, from when it was another one, looks at it under its lock.
    const std::lock_guard init(one.lock);
    adopt(one, offset, header);
    if constexpr (!kBytes) one.low = part_low;
    one.slot = made.slots[i];
    one.number = number;
    pm::store_relaxed(one.filtered, uint8_t{0});
    renew_filter(one, part);
    forget_buffer(one);
    pm::store_relaxed(one.obsolete, uint8_t{0});
    made.children.push_back({part_low, &one});
    made.grown += static_cast<int64_t>(bytes);
  }
  txn.will_unlink(ref.offset, ref.slot, pm::Link::kOffset, pm::Heap::Txn::Release::kLater);
  if (neighbour != nullptr) {
    const uint64_t none = 0;
    txn.will_unlink(neighbour->offset, neighbour->slot, pm::Link::kOffset,
                    pm::Heap::Txn::Release::kLater);
    txn.redo(neighbour->slot, &none, sizeof none);
  }
  // Whatever the inner part needs, before PM changes: memory may be short.
  typename Inner<Content>::Change change = inner_.prepare(low, high, made.children);
  // The leaves and the intents, before the slots change together.
  txn.commit([&] { txn.apply(); });
  inner_.publish(std::move(change));
}

// ---- the directory

// A slot that leads nowhere. Throws kPoolFull, kNoSpace.
template <typename Content>
uint64_t* Core<Content>::take_slot() {
  const std::lock_guard lock(slots_mutex_);
  if (free_slots_.empty()) add_directory();
  uint64_t* slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

template <typename Content>
void Core<Content>::add_directory() {
  const uint64_t count = Directory::count(root_.directory_bytes);
  free_slots_.reserve(slots_ + count);  // so that giving slots back needs no memory
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t block = txn.allocate(root_.directory_bytes);
  auto* directory = pool_.at<Directory>(block);
  write_zeros(memory_, directory, root_.directory_bytes);
  // The empty block and the intent, before the chain leads to it.
  txn.publish(block,
              last_directory_ == 0 ? root_.directory : pool_.at<Directory>(last_directory_)->next);
  last_directory_ = block;
  slots_ += count;
  for (uint64_t i = count; i > 0; --i) free_slots_.push_back(directory->slots() + i - 1);
}

// ---- what readers may still look at

template <typename Content>
void Core<Content>::retire(uint64_t leaf, uint64_t bytes, Ref* ref) noexcept try {
  retired_.add({leaf, ref}, bytes);
} catch (const std::bad_alloc&) {  // the block is free when the tree is opened again
}

template <typename Content>
void Core<Content>::retire_all() {
  retired_.flush();
  if constexpr (kBytes) records_.reclaim();
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
