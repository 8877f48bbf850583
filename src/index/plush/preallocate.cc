// Buckets of the first levels, allocated when the table is made: in order, so that neighbours lie
// side by side, and once, so that no append to these levels needs a transaction.
#include <fmt/core.h>

#include <algorithm>

#include "index/plush/levels.h"

namespace perdure::index::plush {

namespace {

constexpr uint32_t kEntriesPerTxn = pm::kIntentsPerLane / kEntryBuckets;

uint64_t bytes_of(const Root& root) {
  const uint64_t rows = uint64_t{1} << root.directory_bits;
  const uint64_t buckets = kEntryBuckets * sizeof(Bucket);
  uint64_t bytes = 0;
  if (root.shape.preallocated_levels >= 1) bytes += rows * buckets;
  if (root.shape.preallocated_levels >= 2) {
    bytes += rows * sizeof(uint32_t) + (rows << root.fanout_bits) * (sizeof(Entry) + buckets);
  }
  return bytes;
}

}  // namespace

// Before anything of the table exists: it is made with all of its buckets or not at all.
void Levels::require_room(pm::PoolImpl& pool, const Root& root, uint64_t other_bytes) {
  const uint64_t wanted = bytes_of(root);
  if (wanted == 0) return;
  const uint64_t taken = pool.header().data_offset + pool.heap().usage().allocated_bytes;
  const uint64_t capacity = pool.capacity_bytes();
  // Blocks come from whole segments, one begun in each lane.
  const uint64_t margin = other_bytes + 16 * pm::kSegmentBytes;
  if (taken + margin + wanted <= capacity) return;
  throw Error(ErrorCode::kPoolFull,
              fmt::format("{}: preallocated_levels {} takes {} KiB for buckets, and the pool has "
                          "{} KiB left; choose fewer levels, fewer directory_bits, or a larger "
                          "capacity",
                          pool.mapping().path(), root.shape.preallocated_levels, wanted >> 10,
                          (capacity - std::min(capacity, taken + margin)) >> 10));
}

// A crash in between leaves a table that allocates the rest on demand.
void Levels::preallocate() {
  std::vector<Entry*> entries;
  const auto add = [&](Entry* entry) {
    entries.push_back(entry);
    if (entries.size() < kEntriesPerTxn) return;
    allocate_buckets(entries);
    entries.clear();
  };
  if (root_.shape.preallocated_levels == 0) return;
  // Such a table does not grow.
  const uint64_t rows = uint64_t{1} << geometry_.directory_bits();
  for (uint64_t row = 0; row < rows; ++row) add(entry_at(1, row));
  for (uint64_t row = 0; root_.shape.preallocated_levels >= 2 && row < rows; ++row) {
    ensure_children(1, row, kLines);
    for (uint32_t child = 0; child < geometry_.fanout(); ++child) {
      add(entry_at(2, (row << geometry_.fanout_bits()) + child));
    }
  }
  allocate_buckets(entries);
}

void Levels::allocate_buckets(std::span<Entry* const> entries) const {
  if (entries.empty()) return;
  pm::Heap::Txn txn(pool_.heap());
  std::vector<std::pair<uint32_t*, uint32_t>> links;
  for (Entry* entry : entries) {
    for (DirectoryLine& line : entry->lines) {
      for (uint32_t& link : line.bucket) {
        const uint64_t block = txn.allocate(sizeof(Bucket));
        txn.will_link(block, &link, pm::Link::kUnit);
        links.emplace_back(&link, static_cast<uint32_t>(block / kUnitBytes));
      }
    }
  }
  // The intents, before the links that they are about.
  txn.commit([&] {
    for (const auto& [link, unit] : links) pm::store_release(*link, unit);
    for (const Entry* entry : entries) memory_.flush(entry, sizeof *entry);
  });
}

}  // namespace perdure::index::plush
