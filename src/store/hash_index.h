// Where each key's record stands: a hash table in DRAM, of 8 bytes a record.
//
//   entry   | 27 bits of the key's hash | number of the block, 24 bits | offset in the block / 8, 13 bits |
//
// Ordered linear probing: the home of an entry is its 27 bits scaled to the table's length, and
// entries stand in the order of these bits, at their home or after it with no gap between. So the
// table is sorted: a key that is not there is known as soon as one with higher bits is met, and a
// table of any length can be made of another one without reading a key. It grows by a quarter when
// seven eighths are full: 9.1 to 11.4 bytes a record. Source: Amble and Knuth, "Ordered hash
// tables", The Computer Journal 17(2), 1974. Two entries of one partition have the same 27 bits
// about once in 800 lookups at 160,000 records; the caller compares keys. Owned by its partition:
// not thread-safe.
#pragma once

#include <emmintrin.h>

#include <bit>
#include <cstdint>
#include <span>

#include "pm/memory.h"
#include "store/table_memory.h"

namespace perdure::store {

// A place in a partition's blocks. Never 0: a block begins with its header.
class Location {
 public:
  Location() = default;
  Location(uint32_t slot, uint64_t offset) : word_(uint64_t{slot} << 13 | offset / 8) {}
  static Location of_word(uint64_t word) {
    Location location;
    location.word_ = word & kMask;
    return location;
  }
  uint32_t slot() const { return static_cast<uint32_t>(word_ >> 13); }
  uint64_t offset() const { return (word_ & 0x1fff) * 8; }
  uint64_t word() const { return word_; }
  bool operator==(const Location&) const = default;

  static constexpr uint64_t kMask = (uint64_t{1} << 37) - 1;
  static constexpr uint32_t kSlotsMax = 1 << 24;

 private:
  uint64_t word_ = 0;
};

class HashIndex {
 public:
  HashIndex() { allocate(kEntriesMin, kRest); }

  // What of a key's hash an entry keeps.
  static uint64_t tag_of(uint64_t hash) { return hash & kTagMask; }
  // Of an entry as a word (for_words()).
  static uint64_t tag_of_word(uint64_t word) { return word >> kTagShift; }

  // Calls `is_it(Location)` for the entries with the hash's tag until it returns true. Returns the
  // number of that entry, or kNone.
  static constexpr uint64_t kNone = ~uint64_t{0};
  template <typename IsIt>
  uint64_t find(uint64_t hash, IsIt is_it) const {
    const uint64_t far = first_place(hash) + kFar;
    for (uint64_t first = first_place(hash);; first += kAtOnce) {
      for (uint32_t same = with_tag(first, hash); same != 0; same &= same - 1) {
        const uint64_t i = first + static_cast<uint64_t>(std::countr_zero(same));
        if (is_it(Location::of_word(entries_[i]))) return i;
      }
      if (ends_before(first + kAtOnce, hash)) return kNone;
      if (first == far) first = first_not_below(first + kAtOnce, tag_of(hash)) - kAtOnce;
    }
  }
  // Where entries with the hash's tag may begin; which of the eight places from one on have such, a
  // bit for each; and whether none follow from a place on, where some may stand directly before it.
  // How far from its home an entry stands nobody can foretell: a loop that ends there is a branch
  // that the processor takes for another one as often as not, and all that it has begun meanwhile
  // of what comes after, such as the next lookup, is lost. An entry behind its home has no gap
  // before it, and others of its tag have the same home: what has the tag here counts.
  static constexpr uint64_t kAtOnce = 8;  // nearly all stand no further away
  // Where a run is so long that it is searched by halves. Records that come in the order of their
  // tags, as from another store, make one of all that have come since the table grew.
  static constexpr uint64_t kFar = 4 * kAtOnce;
  uint64_t first_place(uint64_t hash) const { return home(tag_of(hash)); }
  bool ends_before(uint64_t place, uint64_t hash) const {
    const uint64_t last = entries_[place - 1];
    return last == 0 || last >> kTagShift > tag_of(hash);
  }
  [[gnu::always_inline]] uint32_t with_tag(uint64_t first, uint64_t hash) const {
    const uint64_t* entries = &entries_[first];
    const uint64_t tag = tag_of(hash);
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(tag));
    const auto two = [](const uint64_t* from) {
      return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    };
    const auto four = [&](const uint64_t* from) {
      const __m128 high = _mm_shuffle_ps(two(from), two(from + 2), _MM_SHUFFLE(3, 1, 3, 1));
      const __m128i tags = _mm_srli_epi32(_mm_castps_si128(high), kTagShift - 32);
      const __m128i same = _mm_cmpeq_epi32(tags, wanted);
      return static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(same)));
    };
    uint32_t same = four(entries) | four(entries + 4) << 4;
    if (tag == 0) [[unlikely]] {
      // An empty place looks like one with this tag.
      for (uint64_t i = 0; i < kAtOnce; ++i) {
        if (entries[i] == 0) same &= ~(uint32_t{1} << i);
      }
    }
    return same;
  }

  Location at(uint64_t entry) const { return Location::of_word(entries_[entry]); }
  uint64_t word_at(uint64_t entry) const { return entries_[entry]; }
  // Gives an entry another place of the same key. Until the next insert() or erase().
  void move(uint64_t entry, Location to) {
    entries_[entry] = (entries_[entry] & ~Location::kMask) | to.word();
  }
  // Makes room for `count` entries more; may throw std::bad_alloc, having changed nothing.
  void reserve(uint64_t count) {
    if ((size_ + count) * 8 > length_ * 7 || !ends_with_room(count)) grow(size_ + count, count);
  }
  // Needs reserve(). Does not throw.
  void insert(uint64_t hash, Location location);
  void erase(uint64_t entry);

  void prefetch(uint64_t hash) const {
    const uint64_t* first = &entries_[home(tag_of(hash))];
    pm::prefetch(first);
    pm::prefetch(first + kLineEntries);
  }
  uint64_t size() const { return size_; }
  uint64_t dram_bytes() const { return places_ * sizeof(uint64_t); }

  // Calls `visit(tag, Location)` for all entries.
  template <typename Visit>
  void for_all(Visit visit) const {
    for (uint64_t i = 0; i < places_; ++i) {
      if (entries_[i] != 0) visit(entries_[i] >> kTagShift, Location::of_word(entries_[i]));
    }
  }

  // All entries as words, in order, to be given to assign(). Calls `visit(uint64_t)`.
  template <typename Visit>
  void for_words(Visit visit) const {
    for (uint64_t i = 0; i < places_; ++i) {
      if (entries_[i] != 0) visit(entries_[i]);
    }
  }
  // The same for about `count` entries, from the tag on. Returns the first tag that is left, kTags
  // if none is.
  template <typename Visit>
  uint64_t for_some(uint64_t first_tag, uint64_t count, Visit visit) const {
    uint64_t last_tag = first_tag;
    for (uint64_t i = first_not_below(home(first_tag), first_tag); i < places_; ++i) {
      const uint64_t word = entries_[i];
      const uint64_t tag = tag_of_word(word);
      if (word == 0 || tag < first_tag) continue;
      if (count == 0 && tag != last_tag) return tag;
      visit(word);
      last_tag = tag;
      if (count != 0) --count;
    }
    return kTags;
  }
  // Has these entries in place of others. May throw std::bad_alloc, having changed nothing.
  void assign(std::span<const uint64_t> words) { rebuild(words, words.size(), 0); }

  // Calls `visit(Location)` for the entries of keys whose tags lie in [first, end).
  static constexpr uint64_t kTags = uint64_t{1} << 27;
  template <typename Visit>
  void for_tags(uint64_t first, uint64_t end, Visit visit) const {
    if (first >= kTags) return;
    for (uint64_t i = first_not_below(home(first), first); i < places_; ++i) {
      const uint64_t entry = entries_[i];
      if (entry == 0) continue;
      const uint64_t tag = entry >> kTagShift;
      if (tag >= end) return;
      if (tag >= first) visit(Location::of_word(entry));
    }
  }

 private:
  static constexpr uint64_t kEntriesMin = 64;
  static constexpr uint64_t kRest = 64;
  static constexpr uint64_t kLineEntries = pm::kLineBytes / sizeof(uint64_t);
  static constexpr uint64_t kTagMask = kTags - 1;
  static constexpr int kTagShift = 37;

  uint64_t home(uint64_t tag) const { return tag * length_ >> 27; }
  // The first place from one on that is empty or has this tag or a higher one. `from`: at the tag's
  // home or behind it. An entry there with a lower tag has no gap between its home and itself, nor
  // a higher tag: so all places up to it have lower tags, and it can be sought by halves.
  uint64_t first_not_below(uint64_t from, uint64_t tag) const {
    const auto is_below = [&](uint64_t place) {
      return place < places_ && entries_[place] != 0 && entries_[place] >> kTagShift < tag;
    };
    uint64_t step = 1;  // all before `from` are below
    for (; is_below(from + step - 1); step *= 2) from += step;
    while (step > 1) {
      step /= 2;
      if (is_below(from + step - 1)) from += step;
    }
    return from;
  }
  // Whether so many inserts, wherever they are, end before the table does. Its last place is always
  // empty.
  bool ends_with_room(uint64_t count) const {
    for (uint64_t i = 1; i <= count + 1; ++i) {
      if (entries_[places_ - i] != 0) return false;
    }
    return true;
  }
  void allocate(uint64_t length, uint64_t rest);
  void grow(uint64_t entries, uint64_t count);
  void rebuild(std::span<const uint64_t> words, uint64_t entries, uint64_t count);

  TableMemory entries_;
  uint64_t length_ = 0;  // homes
  uint64_t places_ = 0;  // and what the last of them need beyond
  uint64_t size_ = 0;
};

}  // namespace perdure::store
