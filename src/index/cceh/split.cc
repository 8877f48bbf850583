// New segments, splits, doubling of the directory, and recovery from an interrupted one.
#include <fmt/core.h>

#include <array>
#include <bitset>

#include "index/cceh/core.h"

namespace perdure::index::cceh {

template <typename Content>
Core<Content>::HeldAll::HeldAll(const Core& core, uint64_t hash)
    : locks_(&core.stripes_[core.stripe_of(hash, 0)]), count_(core.groups()) {
  for (uint32_t group = 0; group < count_; ++group) locks_[group].lock();
}

template <typename Content>
Core<Content>::HeldAll::~HeldAll() {
  for (uint32_t group = 0; group < count_; ++group) {
    if (moved_) {
      locks_[group].unlock_moved();
    } else {
      locks_[group].unlock();
    }
  }
}

template <typename Content>
void Core<Content>::HeldAll::begin_change() const {
  for (uint32_t group = 0; group < count_; ++group) locks_[group].begin_change();
}

template <typename Content>
void Core<Content>::make_room(uint64_t hash, Entry seen) {
  HeldAll held(*this, hash);
  pool_.require_writable();               // what a failed thread could not finish is not built upon
  if (!(entry_of(hash) == seen)) return;  // somebody else has done it
  if (!seen) {
    new_segment(hash);
    return held.moved();
  }
  // Another writer may have removed a record since.
  if (find_empty(segment_of(seen), hash, seen.depth()) != nullptr) return;
  try {
    split(held, hash, seen);
    held.moved();
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    if (!displace(held, hash, seen)) throw;
  }
}

namespace {

// A segment without records. Of what zeros mean, only bucket 0 and those after it could be wrong.
void write_empty(const pm::Memory& memory, const Geometry& geometry, Segment& segment) {
  write_zeros(memory, &segment, geometry.segment_bytes());
  Bucket first[kProbeMax] = {};
  for (uint32_t b = 0; b < geometry.probe; ++b) {
    for (HashSlot& slot : first[b].slots) slot.hash = geometry.vacant_hash(b);
  }
  memory.copy_nontemporal(&segment, first, geometry.probe * sizeof(Bucket));
}

}  // namespace

template <typename Content>
void Core<Content>::new_segment(uint64_t hash) {
  const std::lock_guard lock(directory_mutex_);
  const auto depth = static_cast<uint32_t>(root_.initial_depth);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t segment = txn.allocate(geometry_.segment_bytes());
  write_empty(memory_, geometry_, *pool_.at<Segment>(segment));
  const uint32_t bits = directory().depth - depth;
  const uint64_t first = index_in(directory(), hash) >> bits << bits;
  const Pending pending = Pending::make(first, bits, false);
  require_agreement(directory(), pending, {});
  change_range(txn, pending, segment, depth);
}

template <typename Content>
void Core<Content>::split(const HeldAll& held, uint64_t hash, Entry entry) {
  const uint32_t depth = entry.depth();
  if (depth >= kDepthMax) {
    throw Error(ErrorCode::kPoolFull,
                fmt::format("{}: '{}' cannot split a segment of depth {}: too many keys share "
                            "their leading hash bits; nothing was changed",
                            pool_.mapping().path(), name_, depth));
  }
  // The half that moves, at the places it has: the bucket does not depend on the leading bits.
  Segment image;
  Segment& source = segment_of(entry);
  for (uint32_t b = 0; b < geometry_.buckets; ++b) {
    for (uint32_t s = 0; s < kBucketSlots; ++s) {
      const HashSlot& slot = source.buckets[b].slots[s];
      const uint64_t of_slot = pm::load_relaxed(slot.hash);
      const bool moves = (of_slot >> (63 - depth) & 1) != 0 && !is_empty(slot, b, hash, depth);
      image.buckets[b].slots[s] = moves ? HashSlot{of_slot, pm::load_relaxed(slot.value)}
                                        : HashSlot{geometry_.vacant_hash(b), 0};
    }
  }
  const std::lock_guard lock(directory_mutex_);
  if (directory().depth == depth) double_directory();
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t sibling = txn.allocate(geometry_.segment_bytes());
  memory_.copy_nontemporal(pool_.at<Segment>(sibling), &image, geometry_.segment_bytes());
  const uint32_t bits = directory().depth - depth;
  const uint64_t first = index_in(directory(), hash) >> bits << bits;
  const Pending pending = Pending::make(first, bits, true);
  require_agreement(directory(), pending, entry);
  change_range(txn, pending, sibling, depth + 1);
  if (!variant_.rewrites_split) return;
  held.begin_change();  // who was sent here for a record that has moved must not miss it
  rewrite(source, hash & ~(uint64_t{1} << (63 - depth)), depth + 1);
}

// Writes the half that stays as a whole, as the reference does, which copies it to a new segment:
// with empty slots in place of what has moved. These were empty before, and one word makes each so:
// whatever a crash leaves of it means the same.
template <typename Content>
void Core<Content>::rewrite(Segment& segment, uint64_t hash, uint32_t depth) {
  for (uint32_t b = 0; b < geometry_.buckets; ++b) {
    for (HashSlot& slot : segment.buckets[b].slots) {
      const bool empty = is_empty(slot, b, hash, depth);
      const bool by_value = Content::kOutOfPlace;
      const uint64_t vacant = geometry_.vacant_hash(b);
      pm::store_release(slot.value, empty && by_value ? 0 : pm::load_relaxed(slot.value));
      pm::store_release(slot.hash, empty && !by_value ? vacant : pm::load_relaxed(slot.hash));
    }
  }
  memory_.persist(&segment, geometry_.segment_bytes());  // before the readers go on
}

// A range whose entries disagree is damaged: changing it as a whole would lose what some of them
// lead to.
template <typename Content>
void Core<Content>::require_agreement(const Directory& directory, Pending pending,
                                      Entry entry) const {
  for (uint64_t i = pending.first(); i < pending.first() + pending.count(); ++i) {
    if (pm::load_relaxed(directory.entries()[i]) == entry.word) [[likely]]
      continue;
    pool_.throw_corrupt(fmt::format("'{}': the directory entries of a segment disagree", name_));
  }
}

// Makes a range of directory entries lead to a new segment, all of them or the upper half.
template <typename Content>
void Core<Content>::change_range(pm::Heap::Txn& txn, Pending pending, uint64_t segment,
                                 uint32_t depth) {
  Directory& now = *directory_.load(std::memory_order_relaxed);
  uint64_t& deciding = now.entries()[pending.deciding()];
  txn.will_link(segment, &deciding, pm::Link::kUnit);
  txn.prepare();
  pm::store_release(root_.pending, pending.word);
  memory_.flush(&root_.pending, sizeof root_.pending);
  memory_.fence();  // the segment, its intent and `pending`, before any entry of the range
  pm::store_release(deciding, Entry::make(segment, depth).word);
  fill_range(now, pending);
  txn.settle();
  memory_.fence();  // all entries and the heap's bitmap, before `pending` and the intent end
  pm::store_release(root_.pending, uint64_t{0});
  memory_.flush(&root_.pending, sizeof root_.pending);
  txn.finish();
}

// Brings the entries of a range in line with the one that decides, and flushes them. The unit of
// the range's first entry is never changed by a split, so what it was before is known.
template <typename Content>
void Core<Content>::fill_range(const Directory& directory, Pending pending) const {
  uint64_t* const entries = const_cast<Directory&>(directory).entries();
  const uint64_t first = pending.first();
  const Entry decided{pm::load_relaxed(entries[pending.deciding()])};
  Entry lower = decided;
  const uint32_t depth_before = directory.depth - pending.bits();
  if (pending.split() && decided.depth() > depth_before) {
    lower = Entry::make(Entry{pm::load_relaxed(entries[first])}.segment(), depth_before + 1);
  }
  for (uint64_t i = 0; i < pending.count(); ++i) {
    const Entry entry = i < pending.count() / 2 ? lower : decided;
    pm::store_release(entries[first + i], entry.word);
  }
  memory_.flush(&entries[first], pending.count() * sizeof(uint64_t));
}

template <typename Content>
void Core<Content>::double_directory() {
  Directory& old = *directory_.load(std::memory_order_relaxed);
  const uint64_t old_at = root_.directory;
  const uint32_t depth = old.depth + 1;
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t at = txn.allocate(directory_bytes(depth));
  auto& fresh = *pool_.at<Directory>(at);
  fresh = Directory{};
  fresh.depth = depth;
  fresh.inverse = ~depth;
  for (uint64_t i = 0; i < uint64_t{1} << old.depth; ++i) {
    const uint64_t entry = pm::load_relaxed(old.entries()[i]);
    fresh.entries()[2 * i] = entry;
    fresh.entries()[2 * i + 1] = entry;
  }
  memory_.flush(&fresh, directory_bytes(depth));
  // The whole directory and the intents, before the pointer that reveals it.
  txn.replace(old_at, at, root_.directory, pm::Heap::Txn::Release::kLater);
  pm::publish(directory_, &fresh, "cceh: directory");
  epochs_.retire([this, old_at] { pool_.heap().release(old_at); });
}

template <typename Content>
void Core<Content>::recover() {
  const Pending pending{root_.pending};
  if (pending.word == 0) return;
  const Directory& now = directory();
  if (!pending.valid() || pending.bits() > now.depth || pending.first() % pending.count() != 0 ||
      pending.first() >> now.depth != 0) {
    pool_.throw_corrupt(fmt::format("the interrupted split of '{}' is damaged", name_));
  }
  fill_range(now, pending);
  memory_.fence();  // all entries, before `pending`, which tells that they may disagree
  pm::store_release(root_.pending, uint64_t{0});
  memory_.persist(&root_.pending, sizeof root_.pending);  // before the next change of a range
  recovered_operations_ = 1;
}

// Where a segment should be split, but the pool is full: makes room in the buckets of a hash
// by moving records, each to another of its own. Looks for the shortest chain of moves that
// ends in an empty slot, at each bucket once, and makes them from its end, so that each finds its
// slot empty. Returns false if there is no such chain; then nothing has moved.
template <typename Content>
bool Core<Content>::displace(const HeldAll& held, uint64_t hash, Entry entry) {
  constexpr uint32_t kNone = ~uint32_t{0};
  struct Step {  // a record may move to this bucket
    uint32_t bucket;
    uint32_t from;  // the step to the bucket where it is; kNone: none has to
    uint32_t slot;  // where it is in that
  };
  Segment& segment = segment_of(entry);
  std::array<Step, kBuckets> steps;  // in the order of their distance
  uint32_t known = 0;
  std::bitset<kBuckets> is_known;
  const auto add_buckets_of = [&](uint64_t record, uint32_t from, uint32_t slot) {
    for (uint32_t i = 0; i < geometry_.probe; ++i) {
      const uint32_t bucket = geometry_.wrap(geometry_.home_of(record) + i);
      if (is_known.test(bucket)) continue;
      is_known.set(bucket);
      steps[known++] = {bucket, from, slot};
    }
  };
  add_buckets_of(hash, kNone, 0);
  for (uint32_t i = 0; i < known; ++i) {
    HashSlot* to = empty_slot(segment, steps[i].bucket, hash, entry.depth());
    if (to == nullptr) {
      const auto& slots = segment.buckets[steps[i].bucket].slots;
      for (uint32_t slot = 0; slot < kBucketSlots; ++slot)
        add_buckets_of(slots[slot].hash, i, slot);
      continue;
    }
    for (Step step = steps[i]; step.from != kNone; step = steps[step.from]) {
      const uint32_t bucket = steps[step.from].bucket;
      HashSlot& from = segment.buckets[bucket].slots[step.slot];
      move_record(held, from, bucket, *to);
      to = &from;
    }
    return true;
  }
  return false;
}

template <typename Content>
void Core<Content>::move_record(const HeldAll& held, HashSlot& from, uint32_t bucket,
                                HashSlot& to) {
  const HashSlot record = from;
  const HashSlot vacant{Content::kOutOfPlace ? record.hash : geometry_.vacant_hash(bucket), 0};
  pm::Heap::Txn txn(pool_.heap(), true);
  // The hash last: readers that meet it follow the value beside it.
  txn.redo(&to.value, &record.value, sizeof record.value);
  txn.redo(&to.hash, &record.hash, sizeof record.hash);
  txn.redo(&from, &vacant, sizeof vacant);
  txn.commit_redo([&] { held.begin_change(); });
}

PERDURE_INSTANTIATE_PART(PERDURE_CCEH_INSTANTIATE)

}  // namespace perdure::index::cceh
