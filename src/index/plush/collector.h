// Garbage collection of the payload log, and room for new payload.
//
// Superseded and removed entries are counted for each chunk. A chunk of which at least half is
// garbage is collected when its partition begins a new one: what is live is appended again, each
// record is made to lead there, and the chunk is freed.
//
// Promises
//   - A chunk is freed after the copies of what was live in it, and what leads to them, are
//     durable.
//   - What a crash would go back to is still there: where a row hides an older version that is
//     durable, and the row is not, the row is logged first.
//   - A chunk with damaged entries is kept for good.
// All calls need the lock of the partition.
#pragma once

#include <cstdint>
#include <string_view>

#include "index/plush/lookup.h"
#include "index/plush/migrator.h"
#include "index/plush/partition.h"
#include "index/plush/payload.h"
#include "index/plush/recovery_log.h"
#include "index/plush/rows.h"

namespace perdure::index::plush {

class Collector {
 public:
  Collector(const pm::Memory& memory, const Geometry& geometry, const Keys& keys, const Rows& rows,
            const Lookup& lookup, const Payload& payload, const Partitions& partitions,
            const Migrator& migrator, RecoveryLog& log)
      : memory_(memory),
        geometry_(geometry),
        keys_(keys),
        rows_(rows),
        lookup_(lookup),
        payload_(payload),
        partitions_(partitions),
        migrator_(migrator),
        log_(log) {}

  // Collects if the partition has begun a chunk since the last time. May move rows down.
  void collect_if_grown(Partition& partition);
  // Appends a payload, collecting first if the pool is full. Throws kPoolFull, kNoSpace.
  uint64_t store(Partition& partition, const Key& key, std::string_view value,
                 PayloadLog::Flush flush);
  // Collects a chunk for a pool that is full; the caller has called it so many times for what it
  // writes. False: there is none; or there were as many calls as the partition has chunks, so that
  // what is moved gains nothing: entries may fill their new chunks no better than the old ones.
  bool make_room(Partition& partition, size_t times);
  // The payload of a record that is no longer in its row, or a tombstone now.
  void note_garbage(Partition& partition, uint64_t value, PayloadLog::Part part) const {
    payload_.log().note_garbage(value, part);
    note_written(partition, value);
  }
  // That it may have superseded as much.
  void note_written(Partition& partition, uint64_t value) const {
    partition.garbage_bytes += payload_.log().bytes_of(value);
  }

 private:
  size_t worth_collecting(uint32_t partition) const;
  bool collect(Partition& partition, bool desperate);
  bool collect_chunk(Partition& partition, size_t index, bool desperate);
  void move(Partition& partition, uint64_t pointer, const PayloadLog::View& view);

  const pm::Memory& memory_;
  const Geometry& geometry_;
  const Keys& keys_;
  const Rows& rows_;
  const Lookup& lookup_;
  const Payload& payload_;
  const Partitions& partitions_;
  const Migrator& migrator_;
  RecoveryLog& log_;
};

}  // namespace perdure::index::plush
