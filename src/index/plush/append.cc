// Appending to entries, emptying them, and rewriting them in place.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "index/plush/levels.h"

namespace perdure::index::plush {

void Levels::plan(Append& append, pm::Heap::TxnIfNeeded& txn) const {
  assert(append.start + append.count <= append.room);
  append.fresh = 0;
  for (uint32_t b = append.start / kSlots; b <= (append.start + append.count - 1) / kSlots; ++b) {
    uint32_t& link = append.entry->lines[b / kLineBuckets].bucket[b % kLineBuckets];
    append.units[b] = link;
    if (link != 0) {
      bucket_of(*append.entry, b);
      continue;
    }
    pm::Heap::Txn& begun = txn.begin(pool_.heap());
    const uint64_t block = begun.allocate(sizeof(Bucket));
    append.units[b] = static_cast<uint32_t>(block / kUnitBytes);
    append.fresh |= 1U << b;
    begun.will_link(block, &link, pm::Link::kUnit);
  }
}

void Levels::write_buckets(const Append& append) const {
  for (uint32_t done = 0; done < append.count;) {
    const uint32_t at = append.start + done;
    const uint32_t b = at / kSlots;
    const uint32_t slot = at % kSlots;
    const uint32_t n = std::min(kSlots - slot, append.count - done);
    Bucket& bucket = *bucket_at(append.units[b]);
    if (n == kSlots) {
      memory_.copy_nontemporal(bucket.tags, append.tags + done, sizeof bucket.tags);
      memory_.copy_nontemporal(bucket.values, append.values + done, sizeof bucket.values);
    } else {
      for (uint32_t i = 0; i < n; ++i) {
        pm::store_relaxed(bucket.tags[slot + i], append.tags[done + i]);
        pm::store_relaxed(bucket.values[slot + i], append.values[done + i]);
      }
      memory_.flush(&bucket.tags[slot], n * sizeof(uint64_t));
      memory_.flush(&bucket.values[slot], n * sizeof(uint64_t));
    }
    done += n;
  }
}

FilterBits Levels::filter_of_tags(const uint64_t* tags, uint32_t count) const {
  if (!keys_.is_ordered()) return kernels_.filter(tags, count);
  uint64_t spread[kSlots];  // as if they were tags
  for (uint32_t i = 0; i < count; ++i) spread[i] = keys_.spread_bits(tags[i] >> 1) << 1;
  return kernels_.filter(spread, count);
}

void Levels::fill_line(const Append& append, uint32_t line_number) const {
  const uint32_t line_begin = line_number * kLineRecords;
  const uint32_t begin = std::max(append.start, line_begin);
  const uint32_t end = std::min(append.start + append.count, line_begin + kLineRecords);
  DirectoryLine& line = append.entry->lines[line_number];
  for (uint32_t at = begin; at < end;) {
    const uint32_t b = at / kSlots;
    const uint32_t stop = std::min(end, (b + 1) * kSlots);
    uint64_t(&filter)[2] = line.filter[b % kLineBuckets];
    FilterBits bits = filter_of_tags(append.tags + (at - append.start), stop - at);
    if (at % kSlots != 0) bits = {bits.low | filter[0], bits.high | filter[1]};
    pm::store_relaxed(filter[0], bits.low);
    pm::store_relaxed(filter[1], bits.high);
    at = stop;
    if ((append.fresh >> b & 1) != 0) {
      pm::store_relaxed(line.bucket[b % kLineBuckets], append.units[b]);
    }
  }
  const uint32_t generation = LineState{append.entry->lines[0].state}.generation();
  uint32_t epoch = 0;
  if (append.counts_epoch) {
    // Only the last line may void the log's records: the lines before do not hold all of the row.
    epoch = append.epoch + (end == append.start + append.count ? 1 : 0);
  } else if (line_number == 0) {
    epoch = LineState{line.state}.epoch();
  }
  // Filters and pointers above are in the same line, so they persist no later than this word.
  pm::store_release(line.state, LineState::make(end - line_begin, generation, epoch).word);
}

void Levels::stage(std::span<const Append> appends, pm::Heap::Txn* txn) const {
  for (const Append& append : appends) write_buckets(append);
  if (txn != nullptr) txn->prepare();
}

void Levels::stage_and_fence(std::span<const Append> appends, pm::Heap::Txn* txn) const {
  stage(appends, txn);
  memory_.fence();  // buckets and intents, before the lines that reveal them
}

void Levels::reveal(std::span<const Append> appends, pm::Heap::Txn* txn) const {
  for (const Append& append : appends) {
    if (append.counts_epoch || cached_copy(append.level, append.index) != nullptr) continue;
    count_superseded(append);
  }
  bool more = true;
  for (uint32_t step = 0; more; ++step) {
    more = false;
    for (const Append& append : appends) {
      const uint32_t first = append.start / kLineRecords;
      const uint32_t last = (append.start + append.count - 1) / kLineRecords;
      if (first + step <= last) {
        fill_line(append, first + step);
        memory_.flush(&append.entry->lines[first + step], sizeof(DirectoryLine));
      }
      more = more || first + step < last;
    }
    // Before the fence of the last lines: the bitmap may be durable before the line that it
    // follows. The intents stand until after this fence, and recovery judges each block by its link
    // and sets the bitmap anew.
    if (!more && txn != nullptr) txn->settle();
    // A line, before the next line of the same entry: newer records never outlive older ones that
    // were appended with them, or they would later seem newer than what is appended in between.
    memory_.fence();
  }
}

// ---- emptying and rewriting

// Empties an entry whose records are all durable below.
void Levels::release_source(uint32_t level, uint64_t index) const {
  Entry& entry = *entry_at(level, index);
  LineState state = LineState{entry.lines[0].state}.emptied();
  if (level != geometry_.top_above(level, index)) {
    return clear_entry(level, index, state, keeps_buckets(level, index) ? kEntryBuckets : 0);
  }
  state = LineState::make(0, state.generation(), rows_[geometry_.row_of(level, index)].epoch);
  // The first level keeps its buckets, so far as they fill again soon.
  const bool all = level <= root_.shape.preallocated_levels;
  const uint32_t keep = all ? kEntryBuckets : room_in(level, index) / kSlots;
  if (has_buckets_from(entry, keep)) return clear_entry(level, index, state, keep);
  pm::before_change("plush: entry emptied");
  const SequenceWrite guard(row_above(level, index));
  pm::store_release(entry.lines[0].state, state.word);
  // The emptied line; its buckets are written again by the next row only.
  memory_.persist(&entry.lines[0].state, sizeof(uint32_t));
  pm::come_to_place("plush: entry emptied");
  rebuild_copy(level, index);
}

bool Levels::has_buckets_from(const Entry& entry, uint32_t first) {
  for (uint32_t b = first; b < kEntryBuckets; ++b) {
    if (pm::load_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets]) != 0) return true;
  }
  return false;
}

// Empties an entry: its first line gets this state, which counts no records. Its buckets but the
// first `keep` go back to the heap.
void Levels::clear_entry(uint32_t level, uint64_t index, LineState state, uint32_t keep) const {
  const Place place = place_at(level, index);
  Entry& entry = *place.entry;
  require_own_buckets(level, index, place);
  pm::Heap::Txn txn(pool_.heap(), true);
  for (uint32_t b = keep; b < place.buckets(); ++b) {
    const uint32_t& unit = entry.lines[b / kLineBuckets].bucket[b % kLineBuckets];
    if (unit != 0) txn.will_unlink(uint64_t{unit} * kUnitBytes, &unit, pm::Link::kUnit);
  }
  // The intents, before what they judge by.
  txn.commit([&] {
    const SequenceWrite guard(row_above(level, index));
    pm::store_release(entry.lines[0].state, state.word);
    memory_.flush(&entry.lines[0].state, sizeof(uint32_t));
    memory_.fence();  // the entry is empty before its blocks go
    for (uint32_t b = keep; b < place.buckets(); ++b) {
      pm::store_relaxed(entry.lines[b / kLineBuckets].bucket[b % kLineBuckets], 0U);
    }
    for (DirectoryLine& line : place.all()) {
      // Lines that this generation did not reach must not bear a number that comes round again.
      if (&line == entry.lines) continue;
      pm::store_release(line.state, LineState::make(0, state.generation(), 0).word);
    }
    memory_.flush(&entry, place.bytes());
    pm::come_to_place("plush: entry cleared");
    rebuild_copy(level, index);
  });
}

void Levels::rewrite(uint32_t level, uint64_t index, std::span<const uint64_t> newest_tags,
                     std::span<const uint64_t> newest_values) const {
  const auto count = static_cast<uint32_t>(newest_tags.size());
  const Place place = place_at(level, index);
  Entry& entry = *place.entry;
  require_own_buckets(level, index, place);
  const LineState emptied = LineState{entry.lines[0].state}.emptied();
  const uint32_t generation = emptied.generation();
  const uint32_t epoch = level == geometry_.top_above(level, index)
                             ? rows_[geometry_.row_of(level, index)].epoch
                             : emptied.epoch();
  pm::Heap::Txn txn(pool_.heap(), true);
  Entry image{};
  uint64_t tags[kEntryRecords];
  uint64_t values[kEntryRecords];
  // Appended oldest first, though with one version of each key it makes no difference.
  std::ranges::reverse_copy(newest_tags, tags);
  std::ranges::reverse_copy(newest_values, values);
  Append append{};
  append.entry = &image;
  append.room = place.records();
  append.tags = tags;
  append.values = values;
  append.count = count;
  for (uint32_t b = 0; b * kSlots < count; ++b) {
    const uint64_t block = txn.allocate(sizeof(Bucket));
    append.units[b] = static_cast<uint32_t>(block / kUnitBytes);
    append.fresh |= 1U << b;
    txn.will_link(block, &entry.lines[b / kLineBuckets].bucket[b % kLineBuckets], pm::Link::kUnit);
  }
  for (DirectoryLine& line : place.all()) {
    for (uint32_t& unit : line.bucket) {
      if (unit != 0) txn.will_unlink(uint64_t{unit} * kUnitBytes, &unit, pm::Link::kUnit);
    }
  }
  if (count > 0) {
    write_buckets(append);
    for (uint32_t line = 0; line * kLineRecords < count; ++line) fill_line(append, line);
  }
  for (DirectoryLine& line : image.lines) {
    line.state = LineState::make(LineState{line.state}.count(), generation, epoch).word;
  }
  txn.redo(&entry, &image, place.bytes());
  // Buckets, intents and the new entry, before the change is made certain.
  txn.commit([&] {
    const SequenceWrite guard(row_above(level, index));
    txn.apply();
    pm::come_to_place("plush: entry rewritten");
    rebuild_copy(level, index);
  });
}

}  // namespace perdure::index::plush
