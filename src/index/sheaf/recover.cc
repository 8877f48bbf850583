// Opening: the inner part from the headers of the leaves, the buffers from the log.
#include <algorithm>
#include <array>
#include <thread>

#include "index/sheaf/core.h"
#include "pm/thread.h"

namespace perdure::index::sheaf {

namespace {

constexpr size_t kPrefetchAhead = 16;
constexpr uint64_t kBytesForThread = uint64_t{64} << 10;

}  // namespace

template <typename Content>
void Core<Content>::recover(uint32_t threads) {
  const auto whole = read_directory();
  log_.load();
  std::vector<Child> children;
  int64_t leaf_bytes = 0;
  for (const Met& met : whole) {
    const Leaf& leaf = *pool_.at<Leaf>(met.offset);
    Ref* ref = refs_.take();
    adopt(*ref, met.offset, leaf);
    if constexpr (!kBytes) ref->low = met.low;
    if (leaf.external != 0) has_external_.store(true, std::memory_order_relaxed);
    ref->slot = met.slot;
    ref->number = leaf.merged;
    ref->merged = leaf.merged;
    ref->ordinal = children.size();
    ref->filtered = 0;
    ref->first_era = ~uint64_t{0};
    ref->obsolete = 0;
    children.push_back({met.low, ref});
    leaf_bytes += leaf.bytes;
  }
  inner_.build(children);
  account(leaf_bytes);
  replay(children, threads);
}

// Whether a slot may lead there: what opening asks of a leaf.
template <typename Content>
bool Core<Content>::is_leaf(uint64_t offset) const {
  const Leaf& leaf = *pool_.at<Leaf>(offset);
  if (leaf.header_checksum != leaf.header_checksum_at(offset) || leaf.bytes < kLeafHeaderBytes ||
      leaf.bytes > pm::Heap::block_bytes(root_.leaf_bytes + (kBytes ? kLeafBytesBeyond : 0)) ||
      leaf.count > Leaf::room_of<tree::Words>(leaf.bytes) || leaf.first > leaf.last ||
      leaf.low > leaf.first || !pool_.heap().is_allocated(offset, leaf.bytes)) {
    return false;
  }
  if constexpr (kBytes) {
    const uint64_t begin = kLeafHeaderBytes + leaf.count * sizeof(Slot);
    return leaf.content_bytes <= leaf.bytes - kLeafHeaderBytes &&
           begin + leaf.low_bytes <= leaf.bytes &&
           leaf.low_checksum == leaf.low_checksum_at(offset);
  }
  return true;
}

// All leaves, by their lows; slots that lead to none become free.
template <typename Content>
std::vector<typename Core<Content>::Met> Core<Content>::read_directory() {
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
      leaves.push_back({Low{}, *slot, slot});
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
    if (!is_leaf(leaves[i].offset)) throw_damaged("a leaf");
    if constexpr (kBytes) {
      leaves[i].low = pool_.at<Leaf>(leaves[i].offset)->low_text();
    } else {
      leaves[i].low = pool_.at<Leaf>(leaves[i].offset)->low;
    }
  }
  std::ranges::sort(leaves, {}, &Met::low);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (i == 0 ? leaves[i].low != Low{} : leaves[i].low == leaves[i - 1].low) {
      throw_damaged("the directory");
    }
    if constexpr (!kBytes) {
      if (i > 0 && pool_.at<Leaf>(leaves[i - 1].offset)->last >= leaves[i].low) {
        throw_damaged("the order of the leaves");
      }
    }
  }
  std::ranges::reverse(free_slots_);
  free_slots_.reserve(slots_);
  return leaves;
}

// One record of the log into its buffer, unless the leaf or the buffer has it or a later one.
template <typename Content>
bool Core<Content>::replay_one(const Replayed& record, const Sought& key, uint64_t era, Ref& ref,
                               std::vector<uint64_t>& numbers) {
  const std::lock_guard lock(ref.lock);
  if (record.number <= ref.merged) return false;
  int i = find_buffered(ref, ref.buffered, key);
  if (i < 0) {
    if (ref.buffered == buffer_records_) throw_damaged("the log");
    i = ref.buffered;
    pm::store_relaxed(ref.buffered, static_cast<uint16_t>(i + 1));
    ref.buffer()[i].key = Form::word_of(key);
    ref.fingerprints[i] = fingerprint_of(Form::word_of(key));
    numbers[ref.ordinal * buffer_records_ + static_cast<uint64_t>(i)] = 0;
  }
  uint64_t& number = numbers[ref.ordinal * buffer_records_ + static_cast<uint64_t>(i)];
  if (record.number > number) {
    number = record.number;
    const uint64_t bit = uint64_t{1} << i;
    if constexpr (kBytes) {
      ref.buffer()[i].value =
          LogEntry::word_of(pool_.offset_of(&record), Form::check_of(key.hash, record.value()));
      if (record.external != 0) has_external_.store(true, std::memory_order_relaxed);
    } else {
      ref.buffer()[i].value = record.value;
    }
    ref.removed = record.removal != 0 ? ref.removed | bit : ref.removed & ~bit;
  }
  ref.number = std::max(ref.number, record.number);
  ref.first_era = std::min(ref.first_era, era);
  return true;
}

template <typename Content>
void Core<Content>::replay(std::span<const Child> children, uint32_t threads) {
  std::vector<uint64_t> numbers(children.size() * buffer_records_);
  std::vector<uint8_t> live(log_.chunks());
  std::atomic<uint64_t> replayed{0};
  if (threads == 0) {
    // A thread is not worth while for less.
    const uint64_t worth = log_.chunks() * log_.chunk_bytes() / kBytesForThread;
    threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
    threads = static_cast<uint32_t>(std::clamp<uint64_t>(worth, 1, threads));
  }
  threads = static_cast<uint32_t>(std::min<uint64_t>(threads, (log_.chunks() + 7) / 8));
  constexpr size_t kTogether = Inner<Content>::kTogether;
  const auto work = [&](uint32_t part) {
    struct Waiting {
      std::conditional_t<kBytes, const LogEntry*, LogRecord> record;
      Sought key;
      uint64_t chunk;
    };
    std::array<Waiting, kTogether> waiting;
    std::array<Low, kTogether> keys;
    std::array<Ref*, kTogether> refs;
    size_t size = 0;
    uint64_t count = 0;
    const auto flush = [&] {
      inner_.find_all(std::span<const Low>(keys).first(size), refs);
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
        const Replayed* record = nullptr;
        if constexpr (kBytes) {
          record = one.record;
        } else {
          record = &one.record;
        }
        if (!replay_one(*record, one.key, log_.era_of(one.chunk), *refs[i], numbers)) continue;
        live[one.chunk] = 1;
        ++count;
      }
      size = 0;
    };
    log_.replay(part, threads, [&](const Replayed& record, uint64_t chunk) {
      if constexpr (kBytes) {
        waiting[size] = {&record, Form::key_of(tree::Bytes::Key(record.key())), chunk};
      } else {
        waiting[size] = {record, record.key, chunk};
      }
      keys[size] = Form::low_of(waiting[size].key);
      if (++size == waiting.size()) flush();
    });
    flush();
    replayed += count;
  };
  pm::in_threads(threads, work);
  recovered_operations_ = replayed;
  log_.settle(live);
  for (const Child& child : children) {
    Ref& ref = *child.ref;
    if (ref.buffered == 0) continue;
    while (lists_.size() <= ref.first_era) lists_.emplace_back();
    lists_[ref.first_era].push_back(&ref);
    ref.inserted = 0;
    for (int i = 0; i < ref.buffered; ++i) {
      if ((ref.removed >> i & 1) != 0) continue;
      ref.inserted = static_cast<uint16_t>(ref.inserted + buffered_units(ref, i));
      if constexpr (kBytes) {
        // The last record of a chunk may be damaged and look like a torn one. What it had
        // superseded is then the newest that is known, and its block free, or another key's.
        const Stored value = buffered_value(ref, i);
        if (value.external && (!records_.sound(value.block()) ||
                               records_.key(value.block()) != as_bytes(ref.buffer()[i].key))) {
          throw_damaged("the log");
        }
      }
    }
    if (ref.removed != 0) removals_ = 1;
    promise(ref);
  }
}

PERDURE_INSTANTIATE_PART(PERDURE_SHEAF_INSTANTIATE)

}  // namespace perdure::index::sheaf
