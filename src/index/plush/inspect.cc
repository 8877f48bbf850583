// Looking at a whole table: iteration, statistics, verification.
#include <fmt/core.h>

#include "index/plush/core.h"
#include "index/structure.h"

namespace perdure::index::plush {

void Core::collect_one(const Collected& one, std::vector<Collected>& out,
                       std::unordered_multimap<uint64_t, size_t>& seen) const {
  const auto [begin, end] = seen.equal_range(one.hash);
  for (auto other = begin; other != end; ++other) {
    const Collected& newer = out[other->second];
    if (payload_.is_same(one.tag, one.value, newer.tag, newer.value)) return;
  }
  seen.emplace(one.hash, out.size());
  out.push_back(one);
  out.back().dangles = payload_.is_used() && !payload_.log().alive(one.value);
}

void Core::collect_entry(uint32_t level, uint64_t index, std::vector<Collected>& out,
                         std::unordered_multimap<uint64_t, size_t>& seen) const {
  const Place place = levels_.place_at(level, index);
  if (place.entry == nullptr) return;
  for (uint32_t at = levels_.used(level, index, place); at-- > 0;) {
    const Bucket& bucket = levels_.bucket_of(*place.entry, at / kSlots);
    const uint64_t tag = bucket.tags[at % kSlots];
    collect_one({geometry_.full_hash(tag, index, level), tag, bucket.values[at % kSlots], false},
                out, seen);
  }
  if (level == geometry_.deepest()) return;
  for (uint32_t child = 0; child < geometry_.fanout(); ++child) {
    collect_entry(level + 1, (index << geometry_.fanout_bits()) + child, out, seen);
  }
}

uint64_t Core::collect_subtree(uint64_t hash, std::vector<Collected>& out) const {
  std::unordered_multimap<uint64_t, size_t> seen;
  const std::lock_guard lock(partitions_.of(hash).lock);
  const uint32_t top = geometry_.top_for(hash);
  const uint64_t index = geometry_.index_at(top, hash);
  const uint64_t row = geometry_.row_of(top, index);
  out.clear();
  const Bucket& bucket = rows_.records(row);
  for (uint32_t slot = rows_.count(row); slot-- > 0;) {
    const uint64_t tag = bucket.tags[slot];
    collect_one({geometry_.full_hash(tag, index, top), tag, bucket.values[slot], false}, out, seen);
  }
  collect_entry(top, index, out, seen);
  return geometry_.next_row(hash, top);
}

void Core::for_each_word(const std::function<void(uint64_t key, uint64_t value)>& visit) const {
  std::vector<Collected> records;
  uint64_t next = 0;
  do {
    next = collect_subtree(next, records);
    for (const Collected& one : records) {
      if ((one.tag & 1) == 0) visit(keys_.word_of_hash(one.hash), one.value);
    }
  } while (next != 0);
}

void Core::for_each_bytes(
    const std::function<void(std::string_view key, std::string_view value)>& visit) const {
  std::vector<Collected> records;
  uint64_t next = 0;
  do {
    const pm::EpochManager::Guard guard(payload_.log().epochs());
    next = collect_subtree(next, records);
    for (const Collected& one : records) {
      if ((one.tag & 1) != 0) continue;
      if (one.dangles) [[unlikely]]
        pool_.throw_corrupt(fmt::format("a record of '{}' leads to no payload", name_));
      const PayloadLog::View view = payload_.view_of(one.value);
      if (key_of(view.key).hash != one.hash) {
        pool_.throw_corrupt(fmt::format("a record of '{}' leads to another key", name_));
      }
      visit(view.key, view.value);
    }
  } while (next != 0);
}

void Core::visit_entries(
    const std::function<void(uint32_t level, uint64_t index, const Place&)>& visit) const {
  const uint64_t entries = uint64_t{1} << geometry_.directory_bits();
  for (uint64_t index = 0; index < entries; ++index) {
    const std::lock_guard lock(partitions_[geometry_.partition_above(1, index)].lock);
    levels_.visit_below(1, index, visit);
  }
}

void Core::visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const auto block = [&](uint64_t offset, uint64_t bytes) {
    if (offset != 0) meet(offset, bytes);
  };
  block(pool_.offset_of(&root_), sizeof(Root));
  block(root_.log, partitions_.log_bytes(1) * partitions_.count());
  block(root_.level1, (uint64_t{1} << geometry_.directory_bits()) * sizeof(Entry));
  block(root_.heads, partitions_.count() * sizeof(PartitionHead));
  for (uint32_t i = 0; i < partitions_.count(); ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    block(partitions_.head_of(i).log, partitions_.log_bytes(geometry_.top_of(i)));
  }
  block(root_.payload_heads, partitions_.count() * sizeof(PayloadHead));
  if (root_.payload_places != 0) {
    const auto held = payload_.log().hold_places();
    const uint64_t pages = PayloadLog::place_pages(pool_, root_);
    block(root_.payload_places, pages * sizeof(uint64_t));
    const auto* links = pool_.at<uint64_t>(root_.payload_places);
    for (uint64_t i = 0; i < pages; ++i) block(pm::load_acquire(links[i]), sizeof(PlacePage));
  }
  for (uint32_t level = 2; level <= geometry_.deepest(); ++level) {
    if (!levels_.has_table(level)) continue;
    const uint64_t parents = uint64_t{1} << geometry_.level_bits(level - 1);
    block(root_.tables[level], parents * sizeof(uint32_t));
    for (uint64_t i = 0; i < parents; ++i) {
      const std::lock_guard lock(partitions_[geometry_.partition_above(level - 1, i)].lock);
      const uint64_t first = i << geometry_.fanout_bits();
      block(uint64_t{levels_.block_of(level, first)} * kUnitBytes,
            levels_.block_bytes(levels_.place_at(level, first).lines));
    }
  }
  visit_entries([&](uint32_t, uint64_t, const Place& place) {
    for (const DirectoryLine& line : place.all()) {
      for (const uint32_t& unit : line.bucket) {
        block(uint64_t{pm::load_relaxed(unit)} * kUnitBytes, sizeof(Bucket));
      }
    }
  });
  if (!payload_.is_used()) return;
  for (uint32_t i = 0; i < partitions_.count(); ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    for (const PayloadLog::Chunk& chunk : payload_.log().chunks(i)) meet(chunk.offset, chunk.bytes);
  }
}

void Core::check_entry(uint32_t level, uint64_t index, const Place& place,
                       const std::function<void(const std::string&)>& fail) const {
  const auto where = [&] { return fmt::format("'{}', level {}, entry {}", name_, level, index); };
  const Entry& entry = *place.entry;
  uint32_t sum = 0;
  for (uint32_t line = 0; line < place.lines; ++line) {
    const uint32_t count = Levels::line_count(entry, line);
    if (count > kLineRecords) return fail(where() + ": a line counts more records than it holds");
    if (count > 0 && sum != line * kLineRecords) {
      return fail(where() + ": lines are not filled in order");
    }
    sum += count;
  }
  const DirectoryCache::Copy* copy =
      levels_.has_copy(level, index) ? &levels_.copy_at(level, index) : nullptr;
  if (copy != nullptr && !DirectoryCache::is_known(*copy)) copy = nullptr;
  if (copy != nullptr && copy->count != sum) {
    return fail(
        fmt::format("{}: its copy in DRAM counts {} records of {}", where(), copy->count, sum));
  }
  for (uint32_t at = 0; at < sum; ++at) {
    const uint32_t b = at / kSlots;
    const DirectoryLine& line = entry.lines[b / kLineBuckets];
    const uint64_t offset = uint64_t{line.bucket[b % kLineBuckets]} * kUnitBytes;
    if (at % kSlots == 0 && !pool_.heap().is_allocated(offset, sizeof(Bucket))) {
      return fail(fmt::format("{}: bucket {} is not an allocated block", where(), b));
    }
    const uint64_t tag = levels_.bucket_at(line.bucket[b % kLineBuckets])->tags[at % kSlots];
    const uint64_t value = levels_.bucket_at(line.bucket[b % kLineBuckets])->values[at % kSlots];
    const uint64_t hash = geometry_.full_hash(tag, index, level);
    if (geometry_.index_at(level, hash) != index) {
      return fail(fmt::format("{}: record {} belongs to another entry", where(), at));
    }
    const FilterBits bits = keys_.filter_of(hash);
    const uint64_t(&filter)[2] = line.filter[b % kLineBuckets];
    if ((filter[0] & bits.low) != bits.low || (filter[1] & bits.high) != bits.high) {
      return fail(fmt::format("{}: the filter denies record {}", where(), at));
    }
    if (copy != nullptr &&
        ((DirectoryCache::candidates(*copy, keys_.spread_bits(hash)) >> b & 1) == 0 ||
         copy->units[b] != line.bucket[b % kLineBuckets])) {
      return fail(fmt::format("{}: its copy in DRAM denies record {}", where(), at));
    }
    if (payload_.is_used() && payload_.log().alive(value) && !payload_.log().verify(value)) {
      return fail(fmt::format("{}: the payload of record {} is damaged", where(), at));
    }
  }
}

uint64_t Core::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  visit_entries([&](uint32_t level, uint64_t index, const Place& place) {
    check_entry(level, index, place, fail);
  });
  check_owners(*this, pool_, name_, fail);
  if (!payload_.is_used() || found > 0) return found;
  std::vector<Collected> records;
  uint64_t next = 0;
  do {
    const pm::EpochManager::Guard guard(payload_.log().epochs());
    const uint64_t row = next;
    next = collect_subtree(next, records);
    for (const Collected& one : records) {
      PayloadLog::View view;
      if ((one.tag & 1) != 0) continue;
      if (one.dangles || !payload_.log().verify(one.value) ||
          !payload_.log().read(one.value, view)) {
        fail(fmt::format("'{}': the payload of a record in the row of hash {:#x} is damaged", name_,
                         row));
      } else if (key_of(view.key).hash != one.hash) {
        fail(fmt::format("'{}': a record in the row of hash {:#x} leads to another key", name_,
                         row));
      }
    }
  } while (next != 0);
  return found;
}

std::vector<Statistic> Core::statistics() const {
  uint64_t records[kLevelsMax + 1] = {};
  uint64_t entries[kLevelsMax + 1] = {};
  uint64_t rows = 0;
  uint64_t log_bytes_all = partitions_.log_bytes(1) * partitions_.count();
  uint32_t levels[2] = {kLevelsMax, 0};
  for (uint32_t i = 0; i < partitions_.count(); ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    const RowRange range = geometry_.rows_in(i);
    rows += range.end - range.begin;
    const uint32_t top = geometry_.top_of(i);
    if (partitions_.head_of(i).log != 0) log_bytes_all += partitions_.log_bytes(top);
    levels[0] = std::min(levels[0], top);
    levels[1] = std::max(levels[1], top);
    for (uint64_t row = range.begin; row < range.end; ++row) {
      records[0] += rows_.count(row);
    }
  }
  visit_entries([&](uint32_t level, uint64_t index, const Place& place) {
    ++entries[level];
    records[level] += levels_.used(level, index, place);
  });
  const uint64_t pool_bytes = owned_bytes(*this);
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes",
           rows * (sizeof(Row) + sizeof(Bucket)) + sizeof(Partition) * partitions_.count() +
               levels_.copies_bytes(),
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records_level_0", records[0], "records");
  for (uint32_t level = 1; level <= geometry_.deepest() && entries[level] > 0; ++level) {
    list.add(fmt::format("records_level_{}", level), records[level], "records");
    list.add(fmt::format("entries_level_{}", level), entries[level], "entries");
  }
  list.add("rows", rows, "rows");
  list.add("first_level_least", levels[0], "");
  list.add("first_level_most", levels[1], "");
  list.add("directory_bits", geometry_.directory_bits(), "");
  list.add("directory_bits_max", root_.shape.directory_bits_max, "");
  list.add("fanout", geometry_.fanout(), "");
  list.add("partitions", partitions_.count(), "");
  uint64_t log_live = 0;
  uint64_t payload_chunks = 0;
  uint64_t payload_bytes = 0;
  for (uint32_t i = 0; i < partitions_.count(); ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    log_live += partitions_[i].log.live_bytes();
    if (!payload_.is_used()) continue;
    payload_chunks += payload_.log().chunks(i).size();
    for (const PayloadLog::Chunk& chunk : payload_.log().chunks(i)) payload_bytes += chunk.bytes;
  }
  list.add("log_bytes", log_bytes_all, "bytes");
  list.add("log_live_bytes", log_live, "bytes");
  if (payload_.is_used()) {
    list.add("payload_chunks", payload_chunks, "chunks");
    list.add("payload_bytes", payload_bytes, "bytes");
  }
  return list.take();
}

}  // namespace perdure::index::plush
