// What CCEH keeps in PM.
//
//   root, 256 bytes
//     | seal, initial_depth, buckets, probe ...        | immutable
//     | directory | pending | ...                      | one line; two words that change
//
//   directory, 64 + 8 * 2^depth bytes                  replaced as a whole when it doubles
//     | depth ...                                      | one line
//     | entry 0 | entry 1 | ...                        |
//
//   entry, 8 bytes, changed by one store
//     | segment / 256 (32 bits) | local depth (8) | 0  |  0: nobody has had a key here yet
//
//   segment, 16 KiB: 256 buckets of one line
//   bucket, 64 bytes: four slots
//     | hash 0 | value 0 | hash 1 | value 1 | hash 2 | value 2 | hash 3 | value 3 |
//
// The leading bits of the hash select the directory entry, the last eight the bucket. A segment has
// no header: its local depth stands in the directory entries that lead to it.
//
// Which slots are empty. A hash lives only in its own bucket and those that follow, `probe` in all,
// and only in a segment that the directory gives for its leading bits. So a slot is empty exactly
// if what it holds cannot live there:
//   - the bucket is not one of those of the hash that it holds (`vacant_hash` makes such a hash);
//   - or the hash has other leading bits than the segment, because a split has moved it (lazy
//     deletion);
//   - or, with byte strings, the value is 0: the offset of no record.
// Every 8-byte key is therefore legal, there is no bitmap to write, and no sentinel to exclude.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "index/records.h"
#include "index/structure.h"

namespace perdure::index::cceh {

inline constexpr uint64_t kRootMagic = 0x3130484543434450;  // "PDCCEH01"
inline constexpr uint32_t kBucketSlots = 4;
inline constexpr uint32_t kBuckets = 256;  // of a segment; smaller ones are for tests
inline constexpr uint32_t kBucketsMin = 16;
// Buckets that a hash may live in: the paper's, and the most. These, too, lie in two groups of
// stripes at most, and a vacant hash is further away in the smallest segment.
inline constexpr uint32_t kProbe = 4;
inline constexpr uint32_t kProbeMin = 2;
inline constexpr uint32_t kProbeMax = 16;
inline constexpr uint32_t kInitialDepthMax = 16;
inline constexpr uint32_t kDepthMax = 32;
inline constexpr uint64_t kUnitBytes = 256;

struct alignas(64) Bucket {
  HashSlot slots[kBucketSlots];
};
static_assert(sizeof(Bucket) == 64);

struct Segment {
  Bucket buckets[kBuckets];
};
static_assert(sizeof(Segment) == 16384);

struct Directory {
  uint32_t depth;
  uint32_t inverse;  // ~depth: a directory that seems smaller would be read in the wrong places
  uint32_t reserved[14];
  // Behind it: 2^depth entries.
  uint64_t* entries() { return reinterpret_cast<uint64_t*>(this + 1); }
  const uint64_t* entries() const { return reinterpret_cast<const uint64_t*>(this + 1); }
};
static_assert(sizeof(Directory) == 64);

constexpr uint64_t directory_bytes(uint32_t depth) {
  return sizeof(Directory) + (sizeof(uint64_t) << depth);
}

struct Root {
  RootSeal seal;
  uint64_t initial_depth;
  uint32_t buckets;  // of a segment
  // buckets that a hash may live in; 0: kProbe, as in pools made before it was here
  uint32_t probe;
  uint64_t reserved[4];
  uint64_t directory;  // offset
  uint64_t pending;    // a Pending, or 0
  uint64_t reserved2[22];
};
static_assert(offsetof(Root, directory) == 64 && sizeof(Root) == 256);
inline constexpr uint64_t kSealedBytes = 2 * sizeof(uint64_t);

// A directory entry.
struct Entry {
  uint64_t word = 0;

  static Entry make(uint64_t segment, uint32_t depth) {
    return {segment / kUnitBytes | uint64_t{depth} << 32};
  }
  uint64_t segment() const { return (word & 0xffffffff) * kUnitBytes; }
  uint32_t depth() const { return static_cast<uint32_t>(word >> 32 & 0xff); }
  explicit operator bool() const { return word != 0; }
  bool operator==(const Entry&) const = default;
};

// Which aligned range of directory entries is being changed: 2^bits of them from `first`. One of
// them decides for all: the middle one when a segment is split, the first when one is new.
struct Pending {
  uint64_t word = 0;

  static Pending make(uint64_t first, uint32_t bits, bool split) {
    return {uint64_t{1} << 63 | uint64_t{split} << 62 | uint64_t{bits} << 48 | first};
  }
  bool valid() const { return word >> 63 == 1 && (word >> 56 & 0x3f) == 0; }
  uint64_t first() const { return word & 0xffffffffffff; }
  uint32_t bits() const { return static_cast<uint32_t>(word >> 48 & 0xff); }
  bool split() const { return (word >> 62 & 1) != 0; }
  uint64_t count() const { return uint64_t{1} << bits(); }
  uint64_t deciding() const { return split() ? first() + count() / 2 : first(); }
};

// Which buckets a hash may live in, in segments of this many.
struct Geometry {
  uint32_t buckets;
  uint32_t probe;

  static Geometry of(const Root& root) {
    return {root.buckets, root.probe != 0 ? root.probe : kProbe};
  }
  bool is_sound() const {
    return buckets >= kBucketsMin && buckets <= kBuckets && std::has_single_bit(buckets) &&
           probe >= kProbeMin && probe <= kProbeMax && std::has_single_bit(probe) &&
           probe <= buckets / 2;
  }

  uint32_t wrap(uint32_t bucket) const { return bucket & (buckets - 1); }
  uint32_t home_of(uint64_t hash) const { return wrap(static_cast<uint32_t>(hash)); }
  bool may_live_in(uint64_t hash, uint32_t bucket) const {
    return wrap(bucket - home_of(hash)) < probe;
  }
  // A hash that cannot live in the bucket.
  uint64_t vacant_hash(uint32_t bucket) const { return bucket ^ (buckets / 2); }
  uint64_t segment_bytes() const { return buckets * sizeof(Bucket); }
};

// Whether two hashes have the same leading bits, 1 to 63 of them.
constexpr bool same_prefix(uint64_t a, uint64_t b, uint32_t bits) {
  return (a ^ b) >> (64 - bits) == 0;
}

}  // namespace perdure::index::cceh
