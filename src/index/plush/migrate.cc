// Appending to entries, rewriting them in place, and the shape of the deeper levels. Full entries are
// emptied in drain.cc.
#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

// Where keys fill the levels evenly, the records of a level take 800 times as much as the table of
// pointers to the next.
constexpr uint64_t kTableShare = 16;

}  // namespace

uint32_t Core::used(const Place& place) {
  uint32_t sum = 0;
  for (uint32_t line = 0; line < place.lines; ++line) {
    const uint32_t count = line_count(*place.entry, line);
    if (count > kLineRecords || (count > 0 && sum != line * kLineRecords)) [[unlikely]]
      return kUnsound;
    sum += count;
  }
  return sum;
}

// ---- appending to an entry

void Core::plan(Append& append, pm::Heap::TxnIfNeeded& txn) const {
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

void Core::write_buckets(const Append& append) const {
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

FilterBits Core::filter_of_tags(const uint64_t* tags, uint32_t count) const {
  if (!ordered_) return kernels_.filter(tags, count);
  uint64_t spread[kSlots];  // as if they were tags
  for (uint32_t i = 0; i < count; ++i) spread[i] = spread_bits(tags[i] >> 1) << 1;
  return kernels_.filter(spread, count);
}

void Core::fill_line(const Append& append, uint32_t line_number) const {
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

void Core::stage_all(std::span<const Append> appends, pm::Heap::Txn* txn) const {
  for (const Append& append : appends) write_buckets(append);
  if (txn != nullptr) txn->prepare();
}

void Core::write_all(std::span<const Append> appends, pm::Heap::Txn* txn) const {
  stage_all(appends, txn);
  memory_.fence();  // buckets and intents, before the lines that reveal them
}

void Core::reveal_all(std::span<const Append> appends, pm::Heap::Txn* txn) const {
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
    if (!more && txn != nullptr) txn->settle();
    // A line, before the next line of the same entry: newer records never outlive older ones that
    // were appended with them, or they would later seem newer than what is appended in between.
    memory_.fence();
  }
}

// ---- rows

void Core::flush_row(Partition& partition, uint64_t row) {
  append_row(partition, row, rows_[row].count.load(std::memory_order_relaxed));
}

Core::Append Core::append_of_row(uint64_t row, uint32_t count) const {
  Append append;  // not zeroed
  append.level = level_of_row(row);
  append.index = index_of_row(row);
  append.entry = entry_at(append.level, append.index);
  append.room = kEntryRecords;
  append.tags = row_records_[row].tags;
  append.values = row_records_[row].values;
  append.count = count;
  append.counts_epoch = true;
  append.epoch = rows_[row].epoch;
  append.start = records_in(append.level, append.index);
  return append;
}

// The row's records are durable in level 1.
void Core::row_moved(Partition& partition, const Append& append) {
  cache_append(append);
  const uint64_t number = row_of(append.level, append.index);
  Row& row = rows_[number];
  row.epoch = (row.epoch + 1) & LineState::kEpochMask;
  row.count.store(0, std::memory_order_release);
  const uint32_t before = append.start + kSlots;
  const uint32_t after = before + append.count;
  const auto crosses = [&](uint32_t room) { return before <= room && after > room; };
  if (crosses(room_in(append.level, append.index)) || crosses(kEntryRecords)) {
    partition.full_rows.push_back(number);
  }
}

void Core::append_row(Partition& partition, uint64_t row, uint32_t count) {
  rebuild_row(row);
  const uint32_t level = level_of_row(row);
  const uint64_t index = index_of_row(row);
  if (records_in(level, index) + count > kEntryRecords || is_draining(partition, level, index)) {
    drain(partition, level, index, count);
  }
  Append append = append_of_row(row, count);
  pm::Heap::TxnIfNeeded txn;
  try {
    plan(append, txn);
  } catch (const Error& error) {
    txn.reset();
    if (!pm::is_full(error) || !compact(level, index)) throw;
    append.start = records_in(level, index);
    plan(append, txn);
  }
  if (partition.unlogged) {
    ++partition.unlogged_moves;
    settle_payload(partition);  // before the line that leads to it
  }
  write_all({&append, 1}, txn.get());
  {
    // The record that completes the row is seen by nobody before it is durable.
    const SequenceWrite guard(rows_[row]);
    reveal_all({&append, 1}, txn.get());
    row_moved(partition, append);
  }
  txn.finish();
}

// ---- rewriting an entry in place

bool Core::compact(uint32_t level, uint64_t index) {
  Gathered live;
  gather(level, index, live);
  const uint32_t buckets_before = (live.used + kSlots - 1) / kSlots;
  const uint32_t buckets_after = (live.count + kSlots - 1) / kSlots;
  if (buckets_after >= buckets_before && live.count + kSlots > live.used) return false;
  try {
    rewrite(level, index, live);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    return false;
  }
  return true;
}

void Core::rewrite(uint32_t level, uint64_t index, const Gathered& live) {
  const Place place = place_at(level, index);
  Entry& entry = *place.entry;
  require_own_buckets(level, index, place);
  const LineState emptied = LineState{entry.lines[0].state}.emptied();
  const uint32_t generation = emptied.generation();
  const uint32_t epoch =
      level == top_above(level, index) ? rows_[row_of(level, index)].epoch : emptied.epoch();
  pm::Heap::Txn txn(pool_.heap(), true);
  Entry image{};
  uint64_t tags[kEntryRecords];
  uint64_t values[kEntryRecords];
  // Gathered newest first; appended oldest first, though after gathering it makes no difference.
  std::reverse_copy(live.tags, live.tags + live.count, tags);
  std::reverse_copy(live.values, live.values + live.count, values);
  Append append{};
  append.entry = &image;
  append.room = place.records();
  append.tags = tags;
  append.values = values;
  append.count = live.count;
  for (uint32_t b = 0; b * kSlots < live.count; ++b) {
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
  if (live.count > 0) {
    write_buckets(append);
    for (uint32_t line = 0; line * kLineRecords < live.count; ++line) fill_line(append, line);
  }
  for (DirectoryLine& line : image.lines) {
    line.state = LineState::make(LineState{line.state}.count(), generation, epoch).word;
  }
  txn.redo(&entry, &image, place.bytes());
  // Buckets, intents and the new entry, before the change is made certain.
  txn.commit([&] {
    const SequenceWrite guard(row_above(level, index));
    txn.apply();
    rebuild_entry(level, index);
  });
  account_garbage(live);
}

// ---- the shape of the deeper levels

void Core::clear_block(uint64_t offset, uint64_t bytes) const {
  // Words: a lookup may still be looking at what was here before.
  auto* words = pool_.at<uint64_t>(offset);
  for (uint64_t i = 0; i < bytes / 8; ++i) pm::store_relaxed(words[i], uint64_t{0});
  memory_.flush(words, bytes);
}

void Core::ensure_table(uint32_t level) {
  const std::lock_guard lock(tables_mutex_);
  if (tables_[level].load(std::memory_order_acquire) != nullptr) return;
  const uint64_t bytes = (uint64_t{1} << level_bits(level - 1)) * sizeof(uint32_t);
  if (ordered_ && bytes > pool_.header().capacity_bytes / kTableShare) throw too_dense(level);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t table = txn.allocate(bytes);
  clear_block(table, bytes);
  // The empty table, before the root leads to it.
  txn.publish(table, root_.tables[level]);
  tables_[level].store(pool_.at<uint32_t>(table), std::memory_order_release);
}

void Core::ensure_children(uint32_t level, uint64_t index, uint32_t lines) {
  if (has_children(level, index)) return;
  if (tables_[level + 1].load(std::memory_order_acquire) == nullptr) ensure_table(level + 1);
  uint32_t& link = tables_[level + 1].load(std::memory_order_acquire)[index];
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t block = txn.allocate(block_bytes(lines));
  clear_block(block, block_bytes(lines));
  DirectoryLine& first = *pool_.at<DirectoryLine>(block);
  pm::store_release(first.state, LineState{0}.with_lines(lines).word);
  memory_.flush(&first.state, sizeof first.state);
  // The empty entries, before the table leads to them.
  txn.publish(block, link);
}

// The lines that there are are copied, pointers to buckets and all, to a block of its own, which one store
// puts into the place of the old one. What a crash leaves is the one block or the other, with the same
// records; which of them is allocated is judged by that link. Nobody else changes the lines meanwhile: that
// takes the partition's lock.
void Core::widen_children(uint32_t level, uint64_t index, uint32_t lines) {
  const uint64_t begin = index << root_.fanout_bits;
  const Place first = place_at(level + 1, begin);
  if (first.lines >= lines) return;
  uint32_t& link = tables_[level + 1].load(std::memory_order_acquire)[index];
  const uint64_t old = uint64_t{link} * kUnitBytes;
  // Judged before it is freed.
  if (!pool_.heap().is_allocated(old, block_bytes(first.lines))) throw_damaged(level + 1, begin);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t block = txn.allocate(block_bytes(lines));
  auto* words = pool_.at<uint64_t>(block);
  const auto put = [&](const void* from,
                       uint64_t bytes) {  // words: lookups may look at what was here
    const auto* source = static_cast<const uint64_t*>(from);
    for (uint64_t i = 0; i < bytes / 8; ++i) {
      pm::store_relaxed(*words++, source != nullptr ? pm::load_relaxed(source[i]) : 0);
    }
  };
  for (uint32_t child = 0; child < fanout(); ++child) {
    const auto* from = first.entry->lines + uint64_t{child} * first.lines;
    DirectoryLine line = from[0];
    line.state = LineState{line.state}.with_lines(lines).word;
    put(&line, sizeof line);
    put(from + 1, first.bytes() - sizeof line);
    put(nullptr, lines * sizeof line - first.bytes());
  }
  memory_.flush(pool_.at<char>(block), block_bytes(lines));
  txn.will_link(block, &link, pm::Link::kUnit);
  txn.will_unlink(old, &link, pm::Link::kUnit);
  // The copies and the intents, before the table leads to the copies.
  txn.commit([&] {
    {
      const SequenceWrite guard(row_above(level + 1, begin));
      pm::store_release(link, static_cast<uint32_t>(block / kUnitBytes));
    }
    memory_.flush(&link, sizeof link);
  });
}

}  // namespace perdure::index::plush
