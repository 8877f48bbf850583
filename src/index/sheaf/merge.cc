// New leaves from old ones and their buffers.
#include <algorithm>
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

// The records of the leaf and its buffer, in order, without those that are removed.
void Core::collect(const Ref& ref, std::vector<Slot>& out) const {
  struct New {
    Slot slot;
    bool removal;
  };
  New fresh[kBufferRecordsMax];
  const uint32_t count = ref.buffered;
  for (uint32_t i = 0; i < count; ++i) {
    fresh[i] = {ref.buffer()[i], (ref.removed >> i & 1) != 0};
  }
  std::sort(fresh, fresh + count,
            [](const New& a, const New& b) { return a.slot.key < b.slot.key; });
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
    const uint64_t key = fresh[i].slot.key;
    while (at < ref.records && leaf[at].key < key) *to++ = leaf[at++];
    if (at < ref.records && leaf[at].key == key) ++at;
    if (!fresh[i].removal) *to++ = fresh[i].slot;
  }
  to = std::copy(leaf + at, leaf + ref.records, to);
  out.resize(static_cast<uint64_t>(to - out.data()));
}

// Merges a leaf with its buffer, so that `more` records fit afterwards. The lock is held, and may be
// gone on return, with the leaf dead. Throws kPoolFull, kNoSpace, having changed nothing.
void Core::merge(Ref& ref, Lock& lock, uint64_t more, Reserve reserve) {
  static thread_local std::vector<Slot> records;
  records.clear();
  collect(ref, records);
  merges_.fetch_add(1, std::memory_order_relaxed);
  if (records.size() <= Leaf::room_of(root_.leaf_bytes) / 4 &&
      merge_with_neighbour(ref, lock, records, more, reserve)) {
    return;
  }
  const std::vector<Part> parts = parts_of(ref, records, more);
  if (parts.size() == 1) {
    replace_one(ref, records, pm::Heap::block_bytes(Leaf::bytes_for(records.size() + more)),
                reserve);
  } else {
    replace_several(ref, lock, nullptr, records, parts, 0, reserve);
  }
}

// The same, with a neighbour, into one leaf: returns false, having changed nothing, if there is none, or no
// room. `own` are the records of the leaf and its buffer.
bool Core::merge_with_neighbour(Ref& ref, Lock& lock, const std::vector<Slot>& own, uint64_t more,
                                Reserve reserve) {
  Lock neighbour_lock;
  Ref* neighbour = lock_neighbour(ref, own.size() + more, neighbour_lock);
  if (neighbour == nullptr) return false;
  std::vector<Slot> both;
  if (neighbour->low > ref.low) both = own;
  collect(*neighbour, both);
  if (neighbour->low < ref.low) both.insert(both.end(), own.begin(), own.end());
  const Part all{0, both.size()};
  try {
    replace_several(ref, lock, neighbour, both, {&all, 1}, more, reserve);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;  // the leaf alone may have its own size
  }
  return true;
}

// A leaf beside this one that the records fit into, too, locked; or null. Does not wait: two leaves that
// wait for each other would do so for ever.
Ref* Core::lock_neighbour(const Ref& ref, uint64_t records, Lock& lock) const {
  bool has_next = false;
  uint64_t next = 0;
  inner_.find(ref.low, has_next, next);
  for (Ref* other : {has_next ? inner_.find(next) : nullptr, inner_.before(ref.low)}) {
    if (other == nullptr || other == &ref || !other->lock.try_lock()) continue;
    lock = Lock(other->lock, std::adopt_lock);
    const bool adjacent = other->dead == 0 && (other->low < ref.low || other->low == next);
    const uint64_t all = records + other->records + other->inserted;
    if (adjacent && all <= Leaf::room_of(root_.leaf_bytes) * uint64_t{3} / 4) return other;
    lock.unlock();
    lock = Lock();
  }
  return nullptr;
}

// How the records are divided among new leaves.
std::vector<Core::Part> Core::parts_of(const Ref& ref, const std::vector<Slot>& records,
                                       uint64_t more) const {
  const uint64_t count = records.size();
  const uint64_t most = Leaf::room_of(root_.leaf_bytes);
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

// Writes a leaf past the caches; durable with the next fence.
void Core::write_leaf(pm::PoolImpl& pool, uint64_t offset, uint64_t bytes, uint64_t low,
                      uint64_t number, std::span<const Slot> records, Leaf& header) {
  header = Leaf{};
  header.merged = number;
  header.low = low;
  header.first = records.empty() ? low : records.front().key;
  header.last = records.empty() ? low : records.back().key;
  header.count = static_cast<uint32_t>(records.size());
  header.bytes = static_cast<uint32_t>(bytes);
  header.content_checksum = pm::checksum32(records.data(), records.size_bytes(), offset);
  const uint64_t scale = scale_of(header.first, header.last);
  uint32_t next_part = 0;
  for (uint32_t i = 0; i < header.count; ++i) {
    const uint32_t part = part_of(header.first, scale, records[i].key);
    for (; next_part <= part; ++next_part) {
      header.lines[next_part] = static_cast<uint8_t>(i / kLineRecords);
    }
  }
  const uint32_t last_line = header.count == 0 ? 0 : (header.count - 1) / kLineRecords;
  for (; next_part < kLookupLines; ++next_part) {
    header.lines[next_part] = static_cast<uint8_t>(last_line);
  }
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
void Core::adopt(Ref& ref, uint64_t offset, const Leaf& header) {
  pm::store_relaxed(ref.offset, offset);
  pm::store_relaxed(ref.records, header.count);
  pm::store_relaxed(ref.first, header.first);
  pm::store_relaxed(ref.scale, scale_of(header.first, header.last));
  ref.last = header.last;
  for (uint32_t i = 0; i < kLookupLines; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, header.lines + i, sizeof word);
    if constexpr (kVectorsAllowed) {
      std::memcpy(ref.lines + i, &word, sizeof word);
    } else {
      for (uint32_t j = 0; j < 8; ++j) pm::store_relaxed(ref.lines[i + j], header.lines[i + j]);
    }
  }
  ref.block_bytes = header.bytes;
}

// The filter of a ref whose leaf gets these records, of which its buffer has those that the old leaf lacks.
void Core::renew_filter(Ref& ref, std::span<const Slot> records) {
  if (ref.filtered != 0 && ref.removed == 0) {
    for (uint32_t i = 0; i < ref.buffered; ++i) ref.filter.add(ref.buffer()[i].key);
    return;
  }
  ref.filter.clear();
  for (const Slot& record : records) ref.filter.add(record.key);
  ref.filtered = 1;
}

void Core::forget_buffer(Ref& ref) {
  pm::store_relaxed(ref.buffered, 0U);
  pm::store_relaxed(ref.removed, uint64_t{0});
  ref.inserted = 0;
  promises_.end(std::exchange(ref.promised, 0));
}

// The log may have a part of the leaves' bytes.
void Core::account(int64_t leaf_bytes) {
  const uint64_t all =
      leaf_bytes_.fetch_add(static_cast<uint64_t>(leaf_bytes)) + static_cast<uint64_t>(leaf_bytes);
  log_.allow(std::max(Log::kChunksMin, all / kLeafBytesForLogByte / log_.chunk_bytes()));
}

// Puts the records into a leaf of `bytes`, or of as many as it has, if there is no such block.
void Core::replace_one(Ref& ref, std::span<const Slot> records, uint64_t bytes, Reserve reserve) {
  const uint64_t old = ref.offset;
  const uint64_t old_bytes = ref.block_bytes;
  Leaf header;
  uint64_t fresh = 0;
  {
    pm::Heap::Txn txn(pool_.heap(), reserve == Reserve::kUsed);
    try {
      fresh = txn.allocate(bytes);
    } catch (const Error& error) {
      if (!pm::is_full(error) || bytes >= old_bytes) throw;
      // Of this size the heap's reserve has some.
      bytes = old_bytes;
      fresh = txn.allocate(bytes);
    }
    write_leaf(pool_, fresh, bytes, ref.low, ref.number, records, header);
    // The leaf and the intents, before the slot leads to it.
    txn.replace(old, fresh, *ref.slot, pm::Heap::Txn::Release::kLater);
  }
  ref.lock.begin_change();
  adopt(ref, fresh, header);
  renew_filter(ref, records);
  forget_buffer(ref);
  account(static_cast<int64_t>(bytes) - static_cast<int64_t>(old_bytes));
  retire(old, old_bytes, nullptr);
}

// New leaves that are to stand for others: what a failure gives back.
struct Core::Several {
  std::vector<Ref*> refs;
  std::vector<uint64_t*> slots;  // the first one is that of the leaf that goes
  std::vector<Child> children;
  int64_t grown = 0;
};

void Core::replace_several(Ref& ref, Lock& lock, Ref* neighbour, std::span<const Slot> records,
                           std::span<const Part> parts, uint64_t more, Reserve reserve) {
  Several made;
  try {
    make_several(made, ref, neighbour, records, parts, more, reserve);
  } catch (...) {
    for (Ref* one : made.refs) {
      const std::lock_guard init(one->lock);
      pm::store_relaxed(one->dead, 1U);
      refs_.give(one);
    }
    if (!made.slots.empty()) {
      const std::lock_guard guard(slots_mutex_);
      free_slots_.insert(free_slots_.end(), made.slots.begin() + 1, made.slots.end());
    }
    throw;
  }
  // From here on nothing throws: PM has the change, and so must DRAM.
  const auto bury = [&](Ref& old) {
    old.lock.begin_change();
    pm::store_relaxed(old.dead, 1U);
    forget_buffer(old);
    retire(old.offset, old.block_bytes, &old);
  };
  if (neighbour != nullptr) {
    const std::lock_guard guard(slots_mutex_);
    free_slots_.push_back(neighbour->slot);
  }
  bury(ref);
  lock.unlock();
  if (neighbour != nullptr) bury(*neighbour);
  account(made.grown);
  splits_.fetch_add(1, std::memory_order_relaxed);
}

// Makes the leaves, and publishes them.
void Core::make_several(Several& made, Ref& ref, Ref* neighbour, std::span<const Slot> records,
                        std::span<const Part> parts, uint64_t more, Reserve reserve) {
  const uint64_t low = neighbour == nullptr ? ref.low : std::min(ref.low, neighbour->low);
  const uint64_t high = neighbour == nullptr ? ref.low : std::max(ref.low, neighbour->low);
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
    const uint64_t bytes =
        pm::Heap::block_bytes(Leaf::bytes_for(std::max<uint64_t>(part.size() + more, 1)));
    const uint64_t offset = txn.allocate(bytes);
    const uint64_t part_low = i == 0 ? low : part.front().key;
    Leaf header;
    write_leaf(pool_, offset, bytes, part_low, number, part, header);
    txn.will_link(offset, made.slots[i], pm::Link::kOffset);
    txn.redo(made.slots[i], &offset, sizeof offset);
    Ref& one = *made.refs[i];
    // Who has it from a list, from when it was another one, looks at it under its lock.
    const std::lock_guard init(one.lock);
    adopt(one, offset, header);
    one.low = part_low;
    one.slot = made.slots[i];
    one.number = number;
    one.filtered = 0;
    renew_filter(one, part);
    forget_buffer(one);
    pm::store_relaxed(one.dead, 0U);
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
  Inner::Change change = inner_.prepare(low, high, made.children);
  // The leaves and the intents, before the slots change together.
  txn.commit([&] { txn.apply(); });
  inner_.publish(std::move(change));
}

// ---- the directory

// A slot that leads nowhere. Throws kPoolFull, kNoSpace.
uint64_t* Core::take_slot() {
  const std::lock_guard lock(slots_mutex_);
  if (free_slots_.empty()) add_directory();
  uint64_t* slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void Core::add_directory() {
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

void Core::retire(uint64_t leaf, uint64_t bytes, Ref* ref) noexcept try {
  retired_.add({leaf, ref}, bytes);
} catch (const std::bad_alloc&) {  // the block is free when the tree is opened again
}

void Core::retire_all() { retired_.flush(); }

}  // namespace perdure::index::sheaf
