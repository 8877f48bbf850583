// The inner part of a Sheaf, in DRAM: what is known of each leaf, and which leaf holds a key.
//
// Ref: a leaf with its buffer of records that are in the log and not yet in the leaf. A ref stands
// for one range of keys for as long as it lives; leaves that split or merge get new ones. Who has
// found a ref under a guard of the epochs must look at `obsolete` under its lock, or validate.
//
// Inner: sorted arrays of two levels, groups of leaves and a top over the groups. None is ever
// changed: who splits a leaf publishes another group, and seldom another top. So readers take no
// lock and never wait or begin again. Refs lie in memory that is given back when the tree is
// closed: a ref that is looked at too late is another one, or obsolete, but there.
#pragma once

#include <emmintrin.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "index/hash.h"
#include "index/sheaf/layout.h"
#include "index/simd.h"
#include "index/stripes.h"
#include "pm/epoch.h"

namespace perdure::index::sheaf {

__extension__ using Wide = unsigned __int128;

// Which keys a leaf may have: so that an insert of a new key reads no PM before it writes its log
// record. A Bloom filter in DRAM, in blocks of one line, three bits of one block for each key. Of
// 320 keys, what leaves have on an average, it takes one in nine that are not there for one that
// may be.
class Filter {
 public:
  static constexpr uint32_t kBlocks = 3;

  void clear() {
    for (uint64_t& word : words_) pm::store_relaxed(word, uint64_t{0});
  }
  void add(uint64_t key) {
    const Place at(key);
    for (const uint32_t bit : at.bits) {
      uint64_t& word = words_[at.block * 8 + bit / 64];
      pm::store_relaxed(word, word | uint64_t{1} << bit % 64);
    }
  }
  // False: it does not have it.
  bool may_have(uint64_t key) const {
    const Place at(key);
    uint64_t all = 1;
    for (const uint32_t bit : at.bits)
      all &= pm::load_relaxed(words_[at.block * 8 + bit / 64]) >> bit % 64;
    return all != 0;
  }
  // The line that may_have() reads.
  const void* line_of(uint64_t key) const { return &words_[uint64_t{Place(key).block} * 8]; }

 private:
  struct Place {
    uint32_t block;
    std::array<uint32_t, 3> bits;
    explicit Place(uint64_t key) {
      uint64_t hash = key * kHashMultiplier;
      hash = (hash ^ hash >> 32) * kHashMultiplier;
      block = static_cast<uint32_t>((hash >> 32) * kBlocks >> 32);
      hash = hash ^ hash >> 29;
      bits = {static_cast<uint32_t>(hash & 511), static_cast<uint32_t>(hash >> 9 & 511),
              static_cast<uint32_t>(hash >> 18 & 511)};
    }
  };

  alignas(pm::kLineBytes) std::array<uint64_t, uint64_t{8} * kBlocks> words_{};
};

struct alignas(64) Ref {
  // What every operation needs; a write of a new key needs no more than this line, those of its
  // fingerprint and its record in the buffer, and one of the filter.
  StripeLock lock;
  uint8_t obsolete;
  uint8_t
      filtered;  // whether the filter has the leaf's keys: not between opening and the first merge
  uint16_t prefix;   // as in the leaf
  uint64_t offset;   // of the leaf
  uint64_t removed;  // bit i: buffer record i is a removal
  uint64_t first;    // as in the leaf
  uint64_t last;
  uint64_t scale;  // part of [first, last] that a key is in: (key - first) * scale >> 64
  uint16_t buffered;
  uint16_t inserted;  // units (form.h) of the buffer's records that are no removals
  uint16_t records;   // in the leaf
  uint16_t room;      // units that the leaf's block has room for
  uint64_t number;    // of the newest log record of the range

  uint8_t lines[kLookupLines];  // as in the leaf

  uint8_t fingerprints[kBufferRecordsMax];  // of the buffer's keys

  // For merges.
  uint64_t low;          // of words
  uint64_t* slot;        // that leads to the leaf
  uint64_t first_era;    // of the log when the oldest record of the buffer was written
  uint32_t block_bytes;  // of the leaf
  uint32_t promised;     // bytes, to the next merge, which needs more than the leaf has
  uint64_t used;         // units of the leaf
  uint64_t reserved;
  // While opening: what the leaf says, and which leaf this is.
  uint64_t merged;
  uint64_t ordinal;

  Filter filter;

  // Whether the leaf may have a key, by what its slot would hold and by the word that filters get.
  // Without the lock that is a guess.
  bool may_be_in_leaf(uint64_t head, uint64_t word) const {
    return head >= pm::load_relaxed(first) && head <= pm::load_relaxed(last) &&
           (pm::load_relaxed(filtered) == 0 || filter.may_have(word));
  }
  Slot* buffer() { return reinterpret_cast<Slot*>(this + 1); }
  const Slot* buffer() const { return reinterpret_cast<const Slot*>(this + 1); }
};
static_assert(sizeof(Ref) == 448 && kLeafBytesMax / sizeof(Slot) < 1 << 16 &&
              offsetof(Ref, lines) == 64 && offsetof(Ref, fingerprints) == 128 &&
              offsetof(Ref, low) == 192 && offsetof(Ref, filter) == 256);

inline uint8_t fingerprint_of(uint64_t key) {
  return static_cast<uint8_t>(key * kHashMultiplier >> 56);
}

// The buffer records, by bit, whose fingerprint is the wanted one; bits of records that do not
// exist may be set. A concurrent writer may be changing fingerprints: the callers validate what
// they found.
inline uint64_t match_fingerprints(const Ref& ref, uint32_t records, uint8_t wanted) {
  uint64_t mask = 0;
  if constexpr (kVectorsAllowed) {
    const __m128i all = _mm_set1_epi8(static_cast<char>(wanted));
    for (uint32_t i = 0; i < records; i += 16) {
      const __m128i some = _mm_load_si128(reinterpret_cast<const __m128i*>(ref.fingerprints + i));
      const auto equal = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(some, all)));
      mask |= uint64_t{equal} << i;
    }
  } else {
    for (uint32_t i = 0; i < records; ++i) {
      mask |= uint64_t{pm::load_relaxed(ref.fingerprints[i]) == wanted} << i;
    }
  }
  return mask;
}

// Refs, in huge pages where there are any.
class RefSpace {
 public:
  explicit RefSpace(uint32_t buffer_records)
      : ref_bytes_((sizeof(Ref) + buffer_records * sizeof(Slot) + pm::kLineBytes - 1) /
                   pm::kLineBytes * pm::kLineBytes) {}
  ~RefSpace();
  RefSpace(const RefSpace&) = delete;
  RefSpace& operator=(const RefSpace&) = delete;

  // A ref, obsolete and with an empty buffer. Throws std::bad_alloc.
  Ref* take();
  // No reader can have it any more.
  void give(Ref* ref);
  uint64_t dram_bytes() const;

 private:
  static constexpr uint64_t kArenaBytes = uint64_t{2} << 20;

  const uint64_t ref_bytes_;
  mutable std::mutex mutex_;
  std::vector<char*> arenas_;
  uint64_t used_ = kArenaBytes;  // of the last arena
  std::vector<Ref*> free_;
};

// A leaf as the inner part has it.
template <typename Content>
struct ChildOf {
  typename Form<Content>::Low low;
  Ref* ref;
};

// Byte strings in ascending order, of which the first one stands for whatever comes before the
// second one. Searches compare numbers: the eight bytes behind what all but the first one begin
// with.
class Texts {
 public:
  void set(std::span<const std::string_view> texts);
  uint64_t count() const { return heads_.size(); }
  std::string_view at(uint64_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(all_).substr(begin, ends_[i] - begin);
  }
  // The last one that is not above the text or, if `below`, comes before it; 0 if there is none.
  uint64_t position(std::string_view text, bool below) const;
  uint64_t dram_bytes() const {
    return all_.capacity() + heads_.capacity() * (sizeof(uint64_t) + sizeof(uint32_t));
  }

 private:
  std::string_view prefix_;  // within all_
  std::vector<uint64_t> heads_;
  std::vector<uint32_t> ends_;
  std::string all_;
};

inline constexpr uint32_t kGroupLeaves = 128;

// The number of the last of `count` >= 1 ascending lows that is not above the key; 0 if all are.
inline uint64_t position_among(const uint64_t* lows, uint64_t count, uint64_t key) {
  const uint64_t* base = lows;
  while (count > 1) {
    const uint64_t half = count / 2;
    base += base[half] <= key ? half : 0;
    count -= half;
  }
  return static_cast<uint64_t>(base - lows);
}

template <typename Content>
struct Group;
template <typename Content>
struct Top;

// Every 16th low stands in one line as well, so that a search waits for that line and then for two,
// instead of one line after the other. What is not used is the greatest number.
template <>
struct Group<tree::Words> {
  static constexpr uint32_t kPart = 16;

  uint32_t count = 0;
  alignas(pm::kLineBytes) std::array<uint64_t, kGroupLeaves / kPart> heads;
  alignas(pm::kLineBytes) std::array<uint64_t, kGroupLeaves> lows;
  std::array<Ref*, kGroupLeaves> refs;

  explicit Group(std::span<const ChildOf<tree::Words>> children);
  // The part that the key's leaf is in.
  uint64_t part_of(uint64_t key) const {
    uint64_t part = 0;
    for (size_t i = 1; i < heads.size(); ++i) part += heads[i] <= key ? 1U : 0U;
    return part;
  }
  // The last leaf whose low is not above the key; 0 if all are.
  uint64_t position(uint64_t key) const {
    const uint64_t part = part_of(key);
    const uint64_t* some = lows.data() + part * kPart;
    uint64_t below = 0;
    for (uint32_t i = 0; i < kPart; ++i) below += some[i] <= key ? 1U : 0U;
    const uint64_t at = part * kPart + below - (below != 0 ? 1 : 0);
    // The greatest key is not below what is not used.
    return at < count ? at : count - 1;
  }
  uint64_t low(uint64_t i) const { return lows[i]; }
  uint64_t dram_bytes() const { return sizeof *this; }
};

template <>
struct Group<tree::Bytes> {
  uint32_t count = 0;
  Texts lows;
  std::array<Ref*, kGroupLeaves> refs;

  explicit Group(std::span<const ChildOf<tree::Bytes>> children);
  uint64_t position(std::string_view key, bool below = false) const {
    return lows.position(key, below);
  }
  std::string_view low(uint64_t i) const { return lows.at(i); }
  uint64_t dram_bytes() const { return sizeof *this + lows.dram_bytes(); }
};

// A table of equal parts of the range of the lows says between which of them a key is. Of lows that
// lie evenly that leaves one or two.
template <>
struct Top<tree::Words> {
  std::vector<uint64_t> lows;
  std::unique_ptr<std::atomic<Group<tree::Words>*>[]> groups;
  std::vector<uint32_t> parts;  // lows that are in earlier parts; one more than there are parts
  uint64_t scale = 0;

  void set(std::vector<uint64_t> all);
  uint64_t count() const { return lows.size(); }
  uint64_t low(uint64_t i) const { return lows[i]; }
  uint64_t part_of(uint64_t key) const {
    if (key <= lows.front()) return 0;
    const auto part = static_cast<uint64_t>(static_cast<Wide>(key - lows.front()) * scale >> 64);
    return part < parts.size() - 2 ? part : parts.size() - 2;
  }
  // The last group whose low is not above the key; 0 if all are.
  uint64_t position(uint64_t key) const {
    const uint64_t part = part_of(key);
    const uint64_t begin = parts[part] == 0 ? 0 : parts[part] - 1;
    const uint64_t end = parts[part + 1];
    return end <= begin + 1 ? begin : begin + position_among(lows.data() + begin, end - begin, key);
  }
  uint64_t dram_bytes() const { return count() * 16 + parts.size() * sizeof(uint32_t); }
};

template <>
struct Top<tree::Bytes> {
  Texts lows;
  std::unique_ptr<std::atomic<Group<tree::Bytes>*>[]> groups;

  void set(const std::vector<std::string_view>& all) { lows.set(all); }
  uint64_t count() const { return lows.count(); }
  std::string_view low(uint64_t i) const { return lows.at(i); }
  uint64_t position(std::string_view key, bool below = false) const {
    return lows.position(key, below);
  }
  uint64_t dram_bytes() const { return count() * 8 + lows.dram_bytes(); }
};

template <typename Content>
class Inner {
 public:
  using Low = typename Form<Content>::Low;
  using Child = ChildOf<Content>;

  explicit Inner(pm::EpochManager& epochs) : epochs_(epochs) {}
  ~Inner();
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

  // All leaves, ascending, at least one; the first has the least key there is.
  void build(std::span<const Child> children);

  // The leaf of a key. Needs a guard.
  Ref* find(Low key) const {
    const auto* group = group_of(key);
    return group->refs[group->position(key)];
  }
  // The leaves of at most kTogether keys, whose waits for memory overlap. Needs a guard.
  static constexpr size_t kTogether = 16;
  void find_all(std::span<const Low> keys, std::span<Ref*> refs) const;
  // As find(), and where the range of the leaf after it begins; has_next is false if there is none.
  // Of byte strings that lies in the inner part. `next`: that leaf, or null if it is in another
  // group.
  Ref* find(Low key, bool& has_next, Low& next_low, const Ref** next = nullptr) const;
  // As find(), and where the range of the leaf begins.
  Ref* find_from(Low key, Low& low) const {
    const auto* group = group_of(key);
    const uint64_t position = group->position(key);
    low = group->low(position);
    return group->refs[position];
  }
  // The leaf whose keys lie last before a byte string, or before the end, and where its range
  // begins. Needs a guard.
  Ref* find_under(const Low* key, Low& low) const
    requires(Content::kOutOfPlace);
  // The leaf before the one with this low; null if it is the first one. Needs a guard.
  Ref* before(Low low) const;

  // A change, for which all memory has been had. Others wait for it.
  class Change;
  // To put `fresh` in the place of the leaves with lows `from` to `to`. Needs a guard.
  Change prepare(Low from, Low to, std::span<const Child> fresh);
  void publish(Change change) noexcept;

  // Those of byte strings last as long as the caller's guard.
  std::vector<Child> children() const;
  uint64_t dram_bytes() const;

 private:
  using OneGroup = Group<Content>;
  using OneTop = Top<Content>;

  // What readers may still look at after a change.
  struct Gone {
    std::vector<std::unique_ptr<OneGroup>> groups;
    std::unique_ptr<OneTop> top;
    Gone* next = nullptr;
  };
  static constexpr uint32_t kGoneTogether = 32;

  const OneGroup* group_of(Low key) const {
    const OneTop* top = pm::acquire(top_);
    return pm::acquire(top->groups[top->position(key)]);
  }
  static void delete_all(Gone* gone);
  static std::vector<std::unique_ptr<OneGroup>> groups_of(std::span<const Child> children);
  static std::unique_ptr<OneTop> top_of(const OneTop* old, uint64_t from, uint64_t to,
                                        const std::vector<std::unique_ptr<OneGroup>>& fresh);

  pm::EpochManager& epochs_;
  std::atomic<OneTop*> top_{nullptr};
  alignas(pm::kLineBytes) mutable std::mutex mutex_;  // of who changes it
  // What waits to be handed to the epochs: each time they interrupt all threads.
  Gone* gone_ = nullptr;
  uint32_t gone_count_ = 0;
};

template <typename Content>
class Inner<Content>::Change {
 private:
  friend class Inner;
  std::unique_lock<std::mutex> lock_;
  std::vector<std::unique_ptr<OneGroup>> groups_;
  std::unique_ptr<OneTop> top_;              // null: one group takes the place of one
  std::atomic<OneGroup*>* place_ = nullptr;  // of that one
  std::unique_ptr<Gone> gone_;
  const OneTop* old_top_ = nullptr;
  uint64_t begin_ = 0;  // the groups that go
  uint64_t end_ = 0;
};

template <>
void Inner<tree::Words>::find_all(std::span<const uint64_t> keys, std::span<Ref*> refs) const;
template <>
void Inner<tree::Bytes>::find_all(std::span<const std::string_view> keys,
                                  std::span<Ref*> refs) const;
extern template class Inner<tree::Words>;
extern template class Inner<tree::Bytes>;

}  // namespace perdure::index::sheaf
