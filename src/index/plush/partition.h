// What belongs to one partition, under its lock: its recovery log, and what its writers have to do
// next.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "index/plush/geometry.h"
#include "index/plush/layout.h"
#include "pm/lock.h"
#include "pm/memory.h"
#include "pm/pool_impl.h"
#include "pm/torn_bit_log.h"

namespace perdure::index::plush {

struct Migration;

// What every write needs comes first, in one line, and the log's part of that in two: partitions go
// from one processor to the next all the time.
struct alignas(64) Partition {
  Partition(const pm::Memory& memory, char* area, uint64_t chunk_bytes, uint32_t chunks);
  ~Partition();

  pm::SpinLock lock;
  // Rows may hold records that the log does not have.
  bool unlogged = false;

  // ---- what is to be migrated (migrator.h)
  // Under way; each but the first for the one before.
  std::vector<std::unique_ptr<Migration>> migrations;
  std::deque<uint64_t> full_rows;  // whose entries of the first level are to be migrated next
  // One more than the entries of its second level that have children; 0: nobody has counted them.
  // And with how many it grows.
  uint64_t overflows = 0;
  uint64_t overflows_max = 0;

  alignas(64) pm::TornBitLog log;

  // ---- payload (collector.h)
  size_t payload_chunks = 0;  // after the last collection
  // Payload bytes that may have become garbage since a search of a full pool found none.
  uint64_t garbage_bytes = ~uint64_t{0} >> 1;

  // Rows that were flushed since the log was begun anew, without a record in it (recovery_log.h).
  // Nobody knows how many there were before the table was opened.
  uint64_t unlogged_moves = ~uint64_t{0} >> 1;

  void prefetch() const {
    pm::prefetch_to_change(this);
    log.prefetch();
  }
};

// All partitions of a table, each with the first level and the log that its head in PM says.
class Partitions {
 public:
  // Tells `geometry` of the first levels.
  Partitions(pm::PoolImpl& pool, const Root& root, Geometry& geometry);
  ~Partitions();
  Partitions(const Partitions&) = delete;
  Partitions& operator=(const Partitions&) = delete;

  uint32_t count() const { return count_; }
  Partition& operator[](uint32_t number) const { return partitions_[number]; }
  Partition& of(uint64_t hash) const { return partitions_[geometry_.partition_of(hash)]; }
  uint32_t number_of(const Partition& partition) const {
    return static_cast<uint32_t>(&partition - partitions_);
  }
  PartitionHead& head_of(uint32_t partition) const {
    return pool_.at<PartitionHead>(root_.heads)[partition];
  }

  // The bytes of a recovery log of a partition that has this first level, and of a chunk of it.
  static uint64_t log_bytes_of(const Root& root, uint32_t top);
  uint64_t log_bytes(uint32_t top) const { return log_bytes_of(root_, top); }
  uint64_t log_chunk_bytes(uint32_t top) const { return log_bytes(top) / root_.log_chunks; }

 private:
  char* log_of(uint32_t partition) const;

  pm::PoolImpl& pool_;
  const Root& root_;
  const Geometry& geometry_;
  uint32_t count_;
  Partition* partitions_;
};

}  // namespace perdure::index::plush
