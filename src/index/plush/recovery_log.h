// The recovery log of a partition: what its rows hold, durably.
//
// A log is a ring of chunks (pm/torn_bit_log.h). A record counts for as long as its row has the
// epoch that the record carries: a row that is flushed gets another one, with the store that makes
// its bucket count.
//
// Promises
//   - A chunk is used again only when the records in it are void, or have been copied to a newer
//     chunk, durably.
//   - While operations run one chunk is free, so that what needs no space in the pool finds room.
//   - The log never keeps a record until its row's epoch comes round again: moves without a record
//     in the log are counted, and the log is begun anew before there are too many.
//   - Nothing in the log leads to payload that is not durable: make_room() settles what unlogged
//     writes left.
// All calls need the lock of the partition.
#pragma once

#include <cstdint>

#include "index/plush/geometry.h"
#include "index/plush/migrator.h"
#include "index/plush/partition.h"
#include "index/plush/payload.h"
#include "index/plush/rows.h"

namespace perdure::index::plush {

class RecoveryLog {
 public:
  RecoveryLog(const pm::Memory& memory, const Geometry& geometry, const Rows& rows,
              Migrator& migrator, const Payload& payload, const Partitions& partitions)
      : memory_(memory),
        geometry_(geometry),
        rows_(rows),
        migrator_(migrator),
        payload_(payload),
        partitions_(partitions) {}

  // Room for so many records; rows may be flushed for that. Returns whether the log moved on to its
  // next chunk.
  bool make_room(Partition& partition, uint64_t records) {
    if (partition.unlogged) [[unlikely]]
      payload_.settle(partitions_.number_of(partition));  // before the record, which may lead to it
    if (partition.log.has_room(records)) [[likely]]
      return false;
    next_chunk(partition);
    return true;
  }
  // Reclaims chunks until the next one is free.
  void free_next_chunk(Partition& partition) {
    while (!partition.log.next_is_free()) reclaim_chunk(partition);
  }
  // Before a write without a record, which may make its row be flushed without one.
  void allow_unlogged_move(Partition& partition) {
    if (partition.unlogged_moves >= unlogged_moves_max(partition)) log_all_rows(partition);
  }
  // Begins the log anew with what the rows hold: nothing of them is unlogged any more. Durable.
  void log_all_rows(Partition& partition);
  // The same, if the log holds much else.
  void compact(Partition& partition);

 private:
  void next_chunk(Partition& partition);
  void reclaim_chunk(Partition& partition);
  void copy_or_move(Partition& partition, uint64_t row);
  bool copy_row(Partition& partition, uint64_t row) const;
  uint64_t unlogged_moves_max(const Partition& partition) const;

  const pm::Memory& memory_;
  const Geometry& geometry_;
  const Rows& rows_;
  Migrator& migrator_;
  const Payload& payload_;
  const Partitions& partitions_;
};

}  // namespace perdure::index::plush
