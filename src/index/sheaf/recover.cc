// Opening: the inner part from the headers of the leaves, the buffers from the log.
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <thread>

#include "index/sheaf/core.h"

namespace perdure::index::sheaf {

namespace {

constexpr size_t kPrefetchAhead = 16;

}  // namespace

void Core::recover(uint32_t threads) {
  const auto whole = read_directory();
  log_.load();
  std::vector<Child> children;
  int64_t leaf_bytes = 0;
  for (const Met& met : whole) {
    const Leaf& leaf = *pool_.at<Leaf>(met.offset);
    Ref* ref = refs_.take();
    adopt(*ref, met.offset, leaf);
    ref->low = met.low;
    ref->slot = met.slot;
    ref->number = leaf.merged;
    ref->merged = leaf.merged;
    ref->ordinal = children.size();
    ref->filtered = 0;
    ref->first_era = ~uint64_t{0};
    ref->dead = 0;
    children.push_back({met.low, ref});
    leaf_bytes += leaf.bytes;
  }
  inner_.build(children);
  account(leaf_bytes);
  replay(children, threads);
}

// The header of a leaf that a slot leads to. Throws kCorrupt.
void Core::require_leaf(uint64_t offset) const {
  const Leaf& leaf = *pool_.at<Leaf>(offset);
  if (leaf.header_checksum != leaf.header_checksum_at(offset) || leaf.bytes < kLeafHeaderBytes ||
      leaf.bytes > root_.leaf_bytes || leaf.count > Leaf::room_of(leaf.bytes) ||
      leaf.first > leaf.last || leaf.low > leaf.first ||
      !pool_.heap().is_allocated(offset, leaf.bytes)) {
    throw_damaged("a leaf");
  }
}

// All leaves, by their lows; slots that lead to none become free.
std::vector<Core::Met> Core::read_directory() {
  const uint64_t count = Directory::count(root_.directory_bytes);
  const uint64_t blocks_max = pool_.end_offset() / root_.directory_bytes;
  std::vector<Met> leaves;
  uint64_t blocks = 0;
  slots_ = 1;
  const auto meet = [&](uint64_t* slot) {
    if (*slot == 0) {
      free_slots_.push_back(slot);
    } else if (*slot % pm::kLineBytes != 0 || !pool_.leads_inside(*slot, sizeof(Leaf))) {
      throw_damaged("the directory");
    } else {
      leaves.push_back({0, *slot, slot});
    }
  };
  meet(&root_.slot);
  for (uint64_t at = root_.directory; at != 0; at = pool_.at<Directory>(at)->next) {
    if (!pool_.heap().is_allocated(at, root_.directory_bytes) || ++blocks > blocks_max) {
      throw_damaged("the directory");
    }
    last_directory_ = at;
    uint64_t* slots = pool_.at<Directory>(at)->slots();
    slots_ += count;
    for (uint64_t i = 0; i < count; ++i) meet(slots + i);
  }
  if (leaves.empty()) throw_damaged("the directory");
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (i + kPrefetchAhead < leaves.size()) {
      const auto* ahead = pool_.at<Leaf>(leaves[i + kPrefetchAhead].offset);
      pm::prefetch(ahead);
      pm::prefetch(ahead->lines);
    }
    require_leaf(leaves[i].offset);
    leaves[i].low = pool_.at<Leaf>(leaves[i].offset)->low;
  }
  std::ranges::sort(leaves, {}, &Met::low);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (i == 0 ? leaves[i].low != 0 : leaves[i].low == leaves[i - 1].low) {
      throw_damaged("the directory");
    }
    if (i > 0 && pool_.at<Leaf>(leaves[i - 1].offset)->last >= leaves[i].low) {
      throw_damaged("the order of the leaves");
    }
  }
  std::ranges::reverse(free_slots_);
  free_slots_.reserve(slots_);
  return leaves;
}

// One record of the log into its buffer, unless the leaf or the buffer has it or a later one.
bool Core::replay_one(const LogRecord& record, uint64_t era, Ref& ref,
                      std::vector<uint64_t>& numbers) {
  const std::lock_guard lock(ref.lock);
  if (record.number <= ref.merged) return false;
  int i = find_buffered(ref, ref.buffered, record.key);
  if (i < 0) {
    if (ref.buffered == buffer_records_) throw_damaged("the log");
    i = ref.buffered;
    pm::store_relaxed(ref.buffered, static_cast<uint16_t>(i + 1));
    ref.buffer()[i].key = record.key;
    ref.fingerprints[i] = fingerprint_of(record.key);
    numbers[ref.ordinal * buffer_records_ + static_cast<uint64_t>(i)] = 0;
  }
  uint64_t& number = numbers[ref.ordinal * buffer_records_ + static_cast<uint64_t>(i)];
  if (record.number > number) {
    number = record.number;
    const uint64_t bit = uint64_t{1} << i;
    ref.buffer()[i].value = record.value;
    ref.removed = record.removal ? ref.removed | bit : ref.removed & ~bit;
  }
  ref.number = std::max(ref.number, record.number);
  ref.first_era = std::min(ref.first_era, era);
  return true;
}

void Core::replay(std::span<const Child> children, uint32_t threads) {
  std::vector<uint64_t> numbers(children.size() * buffer_records_);
  std::vector<uint8_t> live(log_.chunks());
  std::atomic<uint64_t> replayed{0};
  std::mutex mutex;
  std::exception_ptr failure;
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  threads = static_cast<uint32_t>(std::min<uint64_t>(threads, (log_.chunks() + 7) / 8));
  const auto work = [&](uint32_t part) {
    struct Waiting {
      LogRecord record;
      uint64_t chunk;
    };
    std::array<Waiting, Inner::kTogether> waiting;
    std::array<uint64_t, Inner::kTogether> keys;
    std::array<Ref*, Inner::kTogether> refs;
    size_t size = 0;
    uint64_t count = 0;
    const auto flush = [&] {
      inner_.find_all(std::span(keys).first(size), refs);
      for (size_t i = 0; i < size; ++i) {
        pm::prefetch_to_change(refs[i]);
        pm::prefetch_to_change(refs[i]->fingerprints);
        pm::prefetch_to_change(&refs[i]->low);
      }
      for (size_t i = 0; i < size; ++i) {
        // Of no consequence if another thread puts a record there.
        const Ref& ref = *refs[i];
        const uint64_t next =
            std::min<uint64_t>(pm::load_relaxed(ref.buffered), buffer_records_ - 1);
        pm::prefetch_to_change(ref.buffer() + next);
        pm::prefetch_to_change(&numbers[ref.ordinal * buffer_records_ + next]);
      }
      for (size_t i = 0; i < size; ++i) {
        const Waiting& one = waiting[i];
        if (!replay_one(one.record, log_.era_of(one.chunk), *refs[i], numbers)) continue;
        live[one.chunk] = 1;
        ++count;
      }
      size = 0;
    };
    try {
      log_.replay(part, threads, [&](const LogRecord& record, uint64_t chunk) {
        keys[size] = record.key;
        waiting[size] = {record, chunk};
        if (++size == waiting.size()) flush();
      });
      flush();
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
    replayed += count;
  };
  {
    std::vector<std::jthread> helpers;
    for (uint32_t i = 1; i < threads; ++i) helpers.emplace_back(work, i);
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
  recovered_operations_ = replayed;
  log_.settle(live);
  for (const Child& child : children) {
    Ref& ref = *child.ref;
    if (ref.buffered == 0) continue;
    while (lists_.size() <= ref.first_era) lists_.emplace_back();
    lists_[ref.first_era].push_back(&ref);
    ref.inserted = static_cast<uint16_t>(ref.buffered - std::popcount(ref.removed));
    if (ref.removed != 0) removals_ = 1;
    promise(ref);
  }
}

}  // namespace perdure::index::sheaf
