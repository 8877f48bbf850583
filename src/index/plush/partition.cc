#include "index/plush/partition.h"

#include <algorithm>
#include <new>

#include "index/plush/migrator.h"

namespace perdure::index::plush {

Partition::Partition(const pm::Memory& memory, char* area, uint64_t chunk_bytes, uint32_t chunks)
    : log(memory, area, chunk_bytes, chunks) {}

Partition::~Partition() = default;

Partitions::Partitions(pm::PoolImpl& pool, const Root& root, Geometry& geometry)
    : pool_(pool),
      root_(root),
      geometry_(geometry),
      count_(geometry.partitions()),
      partitions_(static_cast<Partition*>(
          ::operator new(sizeof(Partition) * count_, std::align_val_t{alignof(Partition)}))) {
  for (uint32_t i = 0; i < count_; ++i) {
    const auto top = static_cast<uint32_t>(1 + head_of(i).grown);
    geometry.set_top(i, top);
    new (&partitions_[i])
        Partition(pool.memory(), log_of(i), log_chunk_bytes(top), root.log_chunks);
  }
}

Partitions::~Partitions() {
  for (uint32_t i = 0; i < count_; ++i) partitions_[i].~Partition();
  ::operator delete(partitions_, std::align_val_t{alignof(Partition)});
}

uint64_t Partitions::log_bytes_of(const Root& root, uint32_t top) {
  const uint32_t bits = root.directory_bits + (top - 1) * root.fanout_bits - root.partition_bits;
  const uint64_t records = (uint64_t{1} << bits) * kSlots + kSlots;
  return root.log_chunks * std::max(root.log_chunk_bytes, pm::TornBitLog::chunk_bytes_for(records));
}

char* Partitions::log_of(uint32_t partition) const {
  const uint64_t own = head_of(partition).log;
  return pool_.at<char>(own != 0 ? own : root_.log + partition * log_bytes(1));
}

}  // namespace perdure::index::plush
