// What P-CLHT keeps in PM.
//
//   root, 384 bytes
//     | seal, bucket_bytes ...                          | immutable
//     | table | next | extent 0 | ... 5                 | one line; `next` only while it grows
//     | extent 6 | ... 31 | ...                         | four lines
//
//   table, one block
//     | bits, overflow ... | main bucket 0 | ... 2^bits | overflow bucket 0 | ... `overflow` |
//
//   extent, one block: 2^bits / 8 more overflow buckets
//     | overflow bucket | ... |
//
//   bucket, 64 bytes (the paper's)
//     | lock | hash 0 | hash 1 | hash 2 | value 0 | value 1 | value 2 | next |
//
//   bucket, 256 bytes (+xs): slots of 16 bytes, so that no record straddles lines
//     | lock | next | hash 0 | value 0 | ... | hash 14 | value 14 |
//     A record is put into the line that its hash prefers while that has room, then into the next.
//
// The leading bits of the hash select the main bucket. `next` leads to an overflow bucket of the
// same table or its extents: 0, or its number + 1; the topmost bit of a main bucket's says that its
// records have moved to the next table. `lock` of a main bucket is a pm::GenerationLock for its
// whole chain; of an overflow bucket it tells who has claimed it (`Owner`).
//
// Which slots are empty. With 8-byte keys and values a slot holds the key's hash, which is
// bijective, and a hash belongs to one bucket: a slot that holds a hash of another bucket is empty
// (`vacant_hash`). With byte strings it is empty if its value, the offset of a record, is 0. Every
// key is legal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "index/records.h"
#include "index/structure.h"

namespace perdure::index::clht {

inline constexpr uint64_t kRootMagic = 0x3130544c43504450;  // "PDPCLT01"
inline constexpr uint32_t kBitsMin = 4;
inline constexpr uint32_t kBitsMax = 31;
inline constexpr uint32_t kOverflowShift = 3;  // an overflow bucket for each 8 main buckets
inline constexpr uint32_t kExtents = 32;
inline constexpr uint32_t kGrowBitsMax = 2;  // log2 of how much larger the next table is, at most
inline constexpr uint64_t kMoved = uint64_t{1} << 63;
// Chained buckets for each 100 main ones at which RECIPE's table grows, by four; at less we double.
inline constexpr uint32_t kPublishedGrowAt = 100;

struct alignas(64) LineBucket {
  static constexpr uint32_t kSlots = 3;
  uint64_t lock;
  uint64_t hashes[kSlots];
  uint64_t values[kSlots];
  uint64_t next;

  static constexpr uint32_t kLines = 1;

  static uint32_t first_slot(uint64_t) { return 0; }
  uint64_t& hash(uint32_t slot) { return hashes[slot]; }
  uint64_t& value(uint32_t slot) { return values[slot]; }
};
static_assert(sizeof(LineBucket) == 64 && offsetof(LineBucket, values) == 32 &&
              offsetof(LineBucket, next) == 56);

struct alignas(256) BlockBucket {
  static constexpr uint32_t kSlots = 15;
  static constexpr uint32_t kLines = 4;
  static constexpr uint32_t kLineSlots = 4;

  uint64_t lock;
  uint64_t next;
  HashSlot slots[kSlots];

  // Of the line that a hash prefers: records are put there if there is room, and looked for there
  // first, so that a lookup seldom reads all lines. Line 0 has the lock, and one slot less.
  static uint32_t first_slot(uint64_t hash) {
    const uint32_t line = line_of(hash);
    return line == 0 ? 0 : line * kLineSlots - 1;
  }
  static uint32_t last_slot(uint64_t hash) { return line_of(hash) * kLineSlots + kLineSlots - 2; }
  static uint32_t line_of(uint64_t hash) { return static_cast<uint32_t>(hash % kLines); }

  uint64_t& hash(uint32_t slot) { return slots[slot].hash; }
  uint64_t& value(uint32_t slot) { return slots[slot].value; }
};
static_assert(sizeof(BlockBucket) == 256 && offsetof(BlockBucket, slots) == 16);

// As large as a bucket, so that buckets keep their alignment.
struct TableHeader {
  uint32_t bits;
  uint32_t check;     // of both: a table of another size would be read in the wrong places
  uint64_t overflow;  // buckets

  static TableHeader make(uint32_t bits, uint64_t overflow) {
    const auto low = static_cast<uint32_t>(overflow);
    return {bits, ~(bits ^ low ^ static_cast<uint32_t>(overflow >> 32)), overflow};
  }
};
static_assert(sizeof(TableHeader) == 16);

struct Root {
  RootSeal seal;
  uint32_t bucket_bytes;
  uint32_t grow_at;  // chained buckets for each 100 main ones when the table grows; 0: as published
  uint64_t reserved[5];
  uint64_t table;              // offset
  uint64_t next;               // offset of the table that it is being moved to, or 0
  uint64_t extents[kExtents];  // of `table`
  uint64_t reserved2[6];
};
static_assert(offsetof(Root, table) == 64 && offsetof(Root, extents) == 80 && sizeof(Root) == 384);
inline constexpr uint64_t kSealedBytes = sizeof(uint64_t);

// Who has claimed an overflow bucket: a main bucket, and the generation of the pool that it was
// claimed in. 0: nobody. A claim of an older generation counts if the chain leads to the bucket.
struct Owner {
  uint64_t word = 0;

  static Owner make(uint64_t home, uint64_t generation) { return {generation << 32 | (home + 1)}; }
  uint64_t home() const { return (word & 0xffffffff) - 1; }
  bool of_generation(uint64_t generation) const { return word >> 32 == (generation & 0xffffffff); }
};

// The variants that Woo et al. (IEEE Access 2021) study.
struct Reference {
  static constexpr char kName[] = "p-clht";
  static constexpr bool kCoalesce = false;  // FC: value and key under one flush
  static constexpr bool kEvict = false;     // VE: the line again, after its lock was released
  static constexpr uint32_t kGrowAt = kPublishedGrowAt;
  using Bucket = LineBucket;
};
struct Coalesced : Reference {
  static constexpr char kName[] = "p-clht+fc";
  static constexpr bool kCoalesce = true;
  static constexpr uint32_t kGrowAt = 25;
};
struct Evicted : Coalesced {
  static constexpr char kName[] = "p-clht+fc+ve";
  static constexpr bool kEvict = true;
};
struct Sized : Evicted {
  static constexpr char kName[] = "p-clht+fc+ve+xs";
  using Bucket = BlockBucket;  // XS: as large as the medium's block
};

}  // namespace perdure::index::clht
