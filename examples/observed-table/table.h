// A small durable hash table as research code has it: a pool file that it maps itself, inline
// assembly for everything durable, spin locks by hand, and a recovery function. It knows nothing of
// Perdure; see README.md for what that is good for.
#ifndef OBSERVED_TABLE_H
#define OBSERVED_TABLE_H

#include <cstddef>
#include <cstdint>

namespace observed_table {

// One cache line. `valid` has a bit for each slot, and alone decides whether the slot counts.
// `lock` is of the first bucket of a group, guards the whole group and means nothing after a
// restart.
struct alignas(64) Bucket {
  static constexpr int kSlots = 3;
  uint32_t lock;
  uint32_t valid;
  struct {
    uint64_t key;
    uint64_t value;
  } slots[kSlots];
  uint64_t unused;
};
static_assert(sizeof(Bucket) == 64);

constexpr uint64_t kBucketsPerGroup = 8;

struct alignas(64) Header {
  uint64_t magic;  // written last, when the table is whole
  uint64_t groups;
};

struct Table {
  Header* header;
  Bucket* buckets;
  size_t bytes;
};

// Maps the pool file, creating it with room for so many groups if it does not exist. Returns false,
// with errno, if that fails. The table still has to be recovered.
bool map_table(const char* path, uint64_t groups, Table* table);
void unmap_table(Table* table);

// Makes the mapped table usable: formats it if it is new, and else releases the locks of the
// process that went away.
void recover(Table* table);

enum class Outcome { kDone, kPresent, kFull };

// Each is durable when it returns, and either wholly done after a crash or not at all.
Outcome insert(Table* table, uint64_t key, uint64_t value);
bool update(Table* table, uint64_t key, uint64_t value);
bool remove(Table* table, uint64_t key);

bool find(const Table* table, uint64_t key, uint64_t* value);

// Calls `visit` with every key and value, in no particular order.
void for_each(const Table* table, void (*visit)(uint64_t key, uint64_t value));

}  // namespace observed_table

#endif
