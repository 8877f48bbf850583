// Looking at a whole table: iteration, statistics, verification.
#include <fmt/core.h>

#include "index/plush/core.h"
#include "index/structure.h"

namespace perdure::index::plush {

// ---- iteration

void Core::collect_one(const Collected& one, std::vector<Collected>& out,
                       std::unordered_multimap<uint64_t, size_t>& seen) const {
  const auto [begin, end] = seen.equal_range(one.hash);
  for (auto other = begin; other != end; ++other) {
    if (!out_of_place_) return;  // a newer version of the same key
    PayloadLog::View newer;
    PayloadLog::View older;
    if (!payload_->read(one.value, older)) return;
    if (payload_->read(out[other->second].value, newer) && newer.key == older.key) return;
  }
  if (out_of_place_ && !payload_->alive(one.value)) return;
  seen.emplace(one.hash, out.size());
  out.push_back(one);
}

void Core::collect_entry(uint32_t level, uint64_t index, std::vector<Collected>& out,
                         std::unordered_multimap<uint64_t, size_t>& seen) const {
  const Entry* entry = entry_at(level, index);
  if (entry == nullptr) return;
  for (uint32_t at = used(*entry); at-- > 0;) {
    const uint32_t b = at / kSlots;
    const uint32_t unit = entry->lines[b / kLineBuckets].bucket[b % kLineBuckets];
    if (at >= kEntryRecords || uint64_t{unit} * kUnitBytes >= pool_.end_offset()) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: '{}' is damaged at level {}, entry {}; run `perdure pool check` "
                              "and restore the file from a backup",
                              pool_.mapping().path(), name_, level, index));
    }
    const Bucket& bucket = *bucket_at(unit);
    const uint64_t tag = bucket.tags[at % kSlots];
    collect_one({full_hash(tag, index, level), tag, bucket.values[at % kSlots]}, out, seen);
  }
  if (level == kLevelsMax) return;
  for (uint32_t child = 0; child < fanout(); ++child) {
    collect_entry(level + 1, (index << root_.fanout_bits) + child, out, seen);
  }
}

void Core::collect_subtree(uint64_t row, std::vector<Collected>& out) const {
  std::unordered_multimap<uint64_t, size_t> seen;
  const uint64_t partition = row / rows_per_partition();
  const std::lock_guard lock(partitions_[partition].lock);
  out.clear();
  const Bucket& bucket = row_records_[row];
  for (uint32_t slot = rows_[row].count.load(std::memory_order_relaxed); slot-- > 0;) {
    const uint64_t tag = bucket.tags[slot];
    collect_one({full_hash(tag, row, 1), tag, bucket.values[slot]}, out, seen);
  }
  collect_entry(1, row, out, seen);
}

void Core::for_each_word(const std::function<void(uint64_t key, uint64_t value)>& visit) const {
  std::vector<Collected> records;
  for (uint64_t row = 0; row < rows(); ++row) {
    collect_subtree(row, records);
    for (const Collected& one : records) {
      if ((one.tag & 1) == 0) visit(word_of_hash(one.hash), one.value);
    }
  }
}

void Core::for_each_bytes(
    const std::function<void(std::string_view key, std::string_view value)>& visit) const {
  std::vector<Collected> records;
  for (uint64_t row = 0; row < rows(); ++row) {
    const pm::EpochManager::Guard guard(payload_->epochs());
    collect_subtree(row, records);
    for (const Collected& one : records) {
      if ((one.tag & 1) != 0) continue;
      const PayloadLog::View view = payload_->read_pinned(one.value);
      visit(view.key, view.value);
    }
  }
}

// ---- every entry

void Core::visit_children(uint32_t level, uint64_t index,
                          const std::function<void(uint32_t, uint64_t, Entry&)>& visit) const {
  Entry* entry = entry_at(level, index);
  if (entry == nullptr) return;
  visit(level, index, *entry);
  if (level == kLevelsMax) return;
  for (uint32_t child = 0; child < fanout(); ++child) {
    visit_children(level + 1, (index << root_.fanout_bits) + child, visit);
  }
}

void Core::visit_entries(
    const std::function<void(uint32_t level, uint64_t index, Entry&)>& visit) const {
  for (uint64_t row = 0; row < rows(); ++row) {
    const std::lock_guard lock(partitions_[row / rows_per_partition()].lock);
    visit_children(1, row, visit);
  }
}

void Core::visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const auto block = [&](uint64_t offset, uint64_t bytes) {
    if (offset != 0) meet(offset, bytes);
  };
  block(pool_.offset_of(&root_), sizeof(Root));
  block(root_.log, root_.log_chunk_bytes * root_.log_chunks * partition_count_);
  block(root_.level1, rows() * sizeof(Entry));
  block(root_.payload_heads, partition_count_ * sizeof(PayloadHead));
  for (uint32_t level = 2; level <= kLevelsMax; ++level) {
    const uint32_t* table = tables_[level].load(std::memory_order_acquire);
    if (table == nullptr) continue;
    const uint64_t parents = uint64_t{1} << level_bits(level - 1);
    block(root_.tables[level], parents * sizeof(uint32_t));
    for (uint64_t i = 0; i < parents; ++i) {
      block(uint64_t{pm::load_acquire(table[i])} * kUnitBytes, fanout() * sizeof(Entry));
    }
  }
  visit_entries([&](uint32_t, uint64_t, Entry& entry) {
    for (const DirectoryLine& line : entry.lines) {
      for (const uint32_t& unit : line.bucket) {
        block(uint64_t{pm::load_relaxed(unit)} * kUnitBytes, sizeof(Bucket));
      }
    }
  });
  if (!payload_) return;
  for (uint32_t i = 0; i < partition_count_; ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    for (const PayloadLog::Chunk& chunk : payload_->chunks(i)) meet(chunk.offset, chunk.bytes);
  }
}

// ---- verification

void Core::check_entry(uint32_t level, uint64_t index, const Entry& entry,
                       const std::function<void(const std::string&)>& fail) const {
  const auto where = [&] { return fmt::format("'{}', level {}, entry {}", name_, level, index); };
  uint32_t sum = 0;
  for (uint32_t line = 0; line < kLines; ++line) {
    const uint32_t count = line_count(entry, line);
    if (count > kLineRecords) return fail(where() + ": a line counts more records than it holds");
    if (count > 0 && sum != line * kLineRecords) {
      return fail(where() + ": lines are not filled in order");
    }
    sum += count;
  }
  const Mirror::Copy* copy = level <= mirror_->levels() ? &mirror_->at(level, index) : nullptr;
  if (copy != nullptr && !Mirror::is_known(*copy)) copy = nullptr;
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
    const uint64_t tag = bucket_at(line.bucket[b % kLineBuckets])->tags[at % kSlots];
    const uint64_t value = bucket_at(line.bucket[b % kLineBuckets])->values[at % kSlots];
    const uint64_t hash = full_hash(tag, index, level);
    if (index_at(level, hash) != index) {
      return fail(fmt::format("{}: record {} belongs to another entry", where(), at));
    }
    const FilterBits bits = filter_of(hash);
    const uint64_t(&filter)[2] = line.filter[b % kLineBuckets];
    if ((filter[0] & bits.low) != bits.low || (filter[1] & bits.high) != bits.high) {
      return fail(fmt::format("{}: the filter denies record {}", where(), at));
    }
    if (copy != nullptr && ((Mirror::candidates(*copy, spread_bits(hash)) >> b & 1) == 0 ||
                            copy->units[b] != line.bucket[b % kLineBuckets])) {
      return fail(fmt::format("{}: its copy in DRAM denies record {}", where(), at));
    }
    if (out_of_place_ && payload_->alive(value) && !payload_->verify(value)) {
      return fail(fmt::format("{}: the payload of record {} is damaged", where(), at));
    }
  }
}

uint64_t Core::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  visit_entries([&](uint32_t level, uint64_t index, Entry& entry) {
    check_entry(level, index, entry, fail);
  });
  BlockOwners owners(pool_, name_, fail);
  visit_blocks([&](uint64_t offset, uint64_t bytes) { owners.meet(offset, bytes); });
  if (!out_of_place_ || found > 0) return found;
  std::vector<Collected> records;
  for (uint64_t row = 0; row < rows(); ++row) {
    const pm::EpochManager::Guard guard(payload_->epochs());
    collect_subtree(row, records);
    for (const Collected& one : records) {
      PayloadLog::View view;
      if ((one.tag & 1) != 0) continue;
      if (!payload_->verify(one.value) || !payload_->read(one.value, view)) {
        fail(fmt::format("'{}': the payload of a record in row {} is damaged", name_, row));
      } else if (key_of(view.key).hash != one.hash) {
        fail(fmt::format("'{}': a record in row {} leads to another key", name_, row));
      }
    }
  }
  return found;
}

// ---- figures

std::vector<Statistic> Core::statistics() const {
  uint64_t records[kLevelsMax + 1] = {};
  uint64_t entries[kLevelsMax + 1] = {};
  for (uint64_t row = 0; row < rows(); ++row) {
    records[0] += rows_[row].count.load(std::memory_order_relaxed);
  }
  visit_entries([&](uint32_t level, uint64_t, Entry& entry) {
    ++entries[level];
    records[level] += used(entry);
  });
  const uint64_t pool_bytes = owned_bytes(*this);
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", dram_bytes_ + sizeof(Partition) * partition_count_ + mirror_->bytes(),
           "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records_level_0", records[0], "records");
  for (uint32_t level = 1; level <= kLevelsMax && entries[level] > 0; ++level) {
    list.add(fmt::format("records_level_{}", level), records[level], "records");
    list.add(fmt::format("entries_level_{}", level), entries[level], "entries");
  }
  list.add("directory_bits", root_.directory_bits, "");
  list.add("fanout", fanout(), "");
  list.add("partitions", partition_count_, "");
  uint64_t log_live = 0;
  uint64_t payload_chunks = 0;
  uint64_t payload_bytes = 0;
  for (uint32_t i = 0; i < partition_count_; ++i) {
    const std::lock_guard lock(partitions_[i].lock);
    log_live += partitions_[i].log.live_bytes();
    if (!payload_) continue;
    payload_chunks += payload_->chunks(i).size();
    for (const PayloadLog::Chunk& chunk : payload_->chunks(i)) payload_bytes += chunk.bytes;
  }
  list.add("log_bytes", root_.log_chunk_bytes * root_.log_chunks * partition_count_, "bytes");
  list.add("log_live_bytes", log_live, "bytes");
  if (payload_) {
    list.add("payload_chunks", payload_chunks, "chunks");
    list.add("payload_bytes", payload_bytes, "bytes");
  }
  return list.take();
}

}  // namespace perdure::index::plush
