// Where entries are, and the shape of the deeper levels.
#include "index/plush/levels.h"

#include <fmt/core.h>

#include <cstring>

namespace perdure::index::plush {

namespace {

// Where keys fill the levels evenly, the records of a level take 800 times as much as the table of
// pointers to the next.
constexpr uint64_t kTableShare = 16;

}  // namespace

Levels::Levels(pm::PoolImpl& pool, Root& root, const std::string& name, const Geometry& geometry,
               const Keys& keys, const Rows& rows, uint32_t filter_levels)
    : pool_(pool),
      root_(root),
      memory_(pool.memory()),
      kernels_(kernels()),
      name_(name),
      geometry_(geometry),
      keys_(keys),
      rows_(rows),
      filter_levels_(filter_levels),
      level1_(pool.at<Entry>(root.level1)),
      directory_cache_(filter_levels == 0 ? 0 : copies_end(geometry.top_max()) - 1,
                       uint64_t{1} << root.directory_bits, geometry.fanout()) {
  for (uint32_t level = 2; level <= geometry.deepest(); ++level) {
    if (root.tables[level] != 0) tables_[level] = pool.at<uint32_t>(root.tables[level]);
  }
}

// ---- places and counts

void Levels::throw_damaged(uint32_t level, uint64_t index) const {
  pool_.throw_corrupt(fmt::format("'{}' is damaged at level {}, entry {}", name_, level, index));
}

void Levels::require_own_buckets(uint32_t level, uint64_t index, const Place& place) const {
  for (const DirectoryLine& line : place.all()) {
    for (const uint32_t unit : line.bucket) {
      if (unit != 0 && !pool_.heap().is_allocated(uint64_t{unit} * kUnitBytes, sizeof(Bucket))) {
        throw_damaged(level, index);
      }
    }
  }
}

void Levels::prefetch_entry(const Place& place) {
  for (const DirectoryLine& line : place.all()) pm::prefetch(&line);
}

Error Levels::too_dense(uint32_t level) const {
  return {
      ErrorCode::kPoolFull,
      fmt::format("{}: keys of '{}' lie so close together that they would need level {}; its "
                  "range is {} to {}: load them into one made with key_min and key_max near the "
                  "keys there are",
                  pool_.mapping().path(), name_, level, keys_.min(), keys_.max())};
}

void Levels::throw_too_deep() const {
  if (keys_.is_ordered()) throw too_dense(geometry_.deepest());
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: '{}' has used up its {} levels; load it into a pool with a larger "
                          "capacity",
                          pool_.mapping().path(), name_, geometry_.deepest()));
}

uint32_t Levels::used(const Place& place) {
  uint32_t sum = 0;
  for (uint32_t line = 0; line < place.lines; ++line) {
    const uint32_t count = line_count(*place.entry, line);
    if (count > kLineRecords || (count > 0 && sum != line * kLineRecords)) [[unlikely]]
      return kUnsound;
    sum += count;
  }
  return sum;
}

uint32_t Levels::records_in(uint32_t level, uint64_t index) const {
  const DirectoryCache::Copy* copy = cached_copy(level, index);
  return copy != nullptr ? copy->count : used(level, index, place_at(level, index));
}

bool Levels::may_be_below(uint32_t level, uint64_t hash) const {
  while (level++ < geometry_.deepest()) {
    const uint64_t index = geometry_.index_at(level, hash);
    const Place place = place_at(level, index);
    if (place.entry == nullptr) return false;
    if (used(place) > 0 &&
        kernels_.candidates(*place.entry, place.lines, keys_.filter_of(hash)) != 0)
      return true;
  }
  return false;
}

// Of an entry, what a step reads that gathers these: side by side.
void Levels::prefetch_records(uint32_t level, uint64_t index, uint32_t begin, uint32_t end) const {
  const Entry& source = *entry_at(level, index);
  for (uint32_t b = begin / kSlots; b < (end + kSlots - 1) / kSlots; ++b) {
    const uint32_t unit = source.lines[b / kLineBuckets].bucket[b % kLineBuckets];
    const auto* bytes = reinterpret_cast<const char*>(bucket_at(unit));
    for (size_t at = 0; at < sizeof(Bucket); at += pm::kLineBytes) pm::prefetch(bytes + at);
  }
}

uint32_t Levels::entry_epoch(const Entry& entry) {
  for (uint32_t line = kLines; line-- > 1;) {
    if (line_count(entry, line) > 0)
      return LineState{pm::load_relaxed(entry.lines[line].state)}.epoch();
  }
  return LineState{pm::load_relaxed(entry.lines[0].state)}.epoch();
}

void Levels::read_epoch(uint64_t row) const {
  const Place place = place_at(geometry_.level_of_row(row), Geometry::index_of_row(row));
  rows_[row].epoch = entry_epoch(*place.entry);
  rows_[row].known = true;
  // A process that died may have left the lines that void the row's log records in the caches only:
  // durable with the fence before the log's chunk is used again.
  if (pool_.may_be_unflushed())
    memory_.flush(place.entry->lines, place.lines * sizeof(DirectoryLine));
}

void Levels::visit_below(uint32_t level, uint64_t index,
                         const std::function<void(uint32_t, uint64_t, const Place&)>& visit) const {
  const Place place = place_at(level, index);
  if (place.entry == nullptr) return;
  visit(level, index, place);
  if (level == geometry_.deepest()) return;
  for (uint32_t child = 0; child < geometry_.fanout(); ++child) {
    visit_below(level + 1, (index << geometry_.fanout_bits()) + child, visit);
  }
}

// ---- the shape of the deeper levels

void Levels::clear_block(uint64_t offset, uint64_t bytes) const {
  // Words: a lookup may still be looking at what was here before.
  auto* words = pool_.at<uint64_t>(offset);
  for (uint64_t i = 0; i < bytes / 8; ++i) pm::store_relaxed(words[i], uint64_t{0});
  memory_.flush(words, bytes);
}

void Levels::ensure_table(uint32_t level) {
  const std::lock_guard lock(tables_mutex_);
  if (tables_[level].load(std::memory_order_acquire) != nullptr) return;
  const uint64_t bytes = (uint64_t{1} << geometry_.level_bits(level - 1)) * sizeof(uint32_t);
  if (keys_.is_ordered() && bytes > pool_.capacity_bytes() / kTableShare) throw too_dense(level);
  pm::Heap::Txn txn(pool_.heap());
  const uint64_t table = txn.allocate(bytes);
  clear_block(table, bytes);
  // The empty table, before the root leads to it.
  txn.publish(table, root_.tables[level]);
  tables_[level].store(pool_.at<uint32_t>(table), std::memory_order_release);
}

void Levels::ensure_children(uint32_t level, uint64_t index, uint32_t lines) {
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

// The lines that there are are copied, pointers to buckets and all, to a block of its own, which
// one store puts into the place of the old one. What a crash leaves is the one block or the other,
// with the same records; which of them is allocated is judged by that link. Nobody else changes the
// lines meanwhile: that takes the partition's lock.
void Levels::widen_children(uint32_t level, uint64_t index, uint32_t lines) const {
  const uint64_t begin = index << geometry_.fanout_bits();
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
  for (uint32_t child = 0; child < geometry_.fanout(); ++child) {
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
    pm::come_to_place("plush: children widened");
    memory_.flush(&link, sizeof link);
  });
}

}  // namespace perdure::index::plush
