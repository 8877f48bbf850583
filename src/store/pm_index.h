// Where each key's record stands, in PM: a structure of the catalogue, from words to words, that
// all partitions of a store share, and for each partition a table in DRAM of what that structure
// has not been told yet.
//
// A key's entry has a place of 63 bits: the partition's number, then 53 bits of the key's hash. Two
// keys of a partition that have all of them in common stand at places that follow one another: an
// entry says whether another one may follow, and whoever looks for a key compares it with the
// record's. An entry:
//
//   | 26 bits of a checksum | another one may follow, 1 bit | Location, 37 bits, 0: the key that stood here is gone |
//
// The checksum is of place and entry: damage is told from another key. What it does not tell is
// that an entry is missing, since its key in the structure has changed. The blocks do: how many
// bytes of records count in each of them is known, and whoever looks at all records of a block
// meets fewer (Partition::require_nothing_lost).
//
// The structure is told nothing that is not covered: what a durable checkpoint of the partition
// holds (checkpoint.cc), or if there is none, what is durable in the log. So a crash finds it as of
// the last checkpoint, with some of that checkpoint's changes or all of them, and telling it all of
// them again gives one and the same state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "index/owned_blocks.h"
#include "perdure/catalog.h"
#include "pm/pool_impl.h"
#include "store/hash_index.h"

namespace perdure::store {

// The structure. Thread-safe, as structures are.
class PmIndex {
 public:
  // What `options` of a store say: "cceh", "cceh:segment_buckets=64,initial_depth=1", or "" for the
  // default. Throws kInvalidArgument if there is none of this name, or if it cannot be an index of
  // a store.
  struct Structure {
    explicit Structure(std::string_view text);
    const CatalogEntry* entry;
    OptionMap options;
  };

  // Of the store whose root is at `owner`, and whose salt names the index. `annex`: offset of the
  // structure's directory entry. Makes the structure, of this kind, if a crash came between the
  // store and that.
  PmIndex(Pool& pool, uint64_t annex, uint64_t salt, uint64_t owner, const Structure& structure);

  // Null if the pool is open to read, and the structure is damaged, or was not made before a crash;
  // or if there is no room for it (is_in_dram()).
  AnyIndex* get() const { return index_.get(); }
  // What the structure has of a partition that is about to forget it. To find it is to read the
  // whole structure: that is done once for all partitions that have been announced. Of a partition
  // it answers nothing until then.
  void will_forget(uint32_t partition) const;
  std::vector<uint64_t> places_of(uint32_t partition) const;
  // That, for all that have been announced, if any has; whether the structure is sound is found
  // out, too. Returns false if it is not.
  bool find_announced() const;
  // Gives the structure up, and makes another one of its type, which is empty, in its place. Before
  // any partition is recovered, and once none has a checkpoint. What the old one has of the pool
  // stays taken. Without room there is none, as after a crash in between.
  void make_anew(Pool& pool);
  // There is no room for a structure in a pool that is open to write: the tables in DRAM have all
  // of it, nobody writes checkpoints, and the next opening for which there is room makes the
  // structure.
  bool is_in_dram() const { return in_dram_; }

  // Whether there is a structure that could not be opened: the pool is open read-only then.
  bool is_lost() const { return index_ == nullptr && annex_.is_used(); }
  AnyIndex& operator*() const { return *index_; }
  const pm::PoolImpl& pool() const { return pool_; }
  void visit_blocks(const index::VisitOwned& visit) const {
    if (index_ != nullptr) index::visit_blocks_of(*index_, visit);
  }

 private:
  void find_places() const;  // of all that are announced; with the mutex
  void make(Pool& pool, const CatalogEntry& entry, const OptionMap& options);

  pm::PoolImpl& pool_;
  pm::PoolImpl::Annex annex_;  // goes after the structure
  std::unique_ptr<AnyIndex> index_;
  bool in_dram_ = false;
  mutable std::mutex mutex_;  // of what follows
  mutable std::map<uint32_t, std::vector<uint64_t>>
      places_;                            // that have been found, and are still to be asked for
  mutable std::set<uint32_t> announced_;  // and not looked for
};

// A table in DRAM from places to entries.
class PlaceTable {
 public:
  struct Item {
    uint64_t place;
    uint64_t word;
  };
  // Null if it is not there.
  const Item* find(uint64_t place) const {
    if (items_.empty()) return nullptr;
    const Item& item = items_[position_of(place)];
    return item.place == place ? &item : nullptr;
  }
  // Makes room for so many more. May throw std::bad_alloc, having changed nothing.
  void reserve(uint64_t count) {
    if ((size_ + count) * 2 > items_.size()) grow(size_ + count);
  }
  // May throw as reserve() unless that was called.
  void set(uint64_t place, uint64_t word) {
    reserve(1);
    Item& item = items_[position_of(place)];
    size_ += item.place == kEmpty ? 1 : 0;
    item = {place, word};
  }
  // Is empty, with room for about so many; gives back memory that these do not need.
  void clear(uint64_t expected);
  uint64_t size() const { return size_; }
  uint64_t dram_bytes() const { return items_.capacity() * sizeof(Item); }
  // Where there is no other place for what is not here: an item that says that there is nothing is
  // not needed when the table grows.
  void drop_empty_words() { keeps_empty_words_ = false; }

  // All positions, those without an item, too: item_at() is null there.
  uint64_t positions() const { return items_.size(); }
  const Item* item_at(uint64_t position) const {
    return items_[position].place == kEmpty ? nullptr : &items_[position];
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  uint64_t position_of(uint64_t place) const {
    uint64_t at = place * 0x9e3779b97f4a7c15 >> shift_;
    while (items_[at].place != place && items_[at].place != kEmpty) {
      if (++at == items_.size()) at = 0;
    }
    return at;
  }
  void grow(uint64_t count);

  std::vector<Item> items_;
  uint64_t size_ = 0;
  int shift_ = 64;
  bool keeps_empty_words_ = true;
};

// The entries of one partition. Owned by it: not thread-safe.
class PmPartitionIndex {
 public:
  PmPartitionIndex(const PmIndex& index, uint32_t partition)
      : index_(index), base_(uint64_t{partition} << kHashBits) {}
  // Whether all of it is here, since there is no structure.
  bool is_in_dram() const { return index_.is_in_dram(); }

  // As HashIndex.
  static constexpr uint64_t kNone = ~uint64_t{0};
  template <typename IsIt>
  uint64_t find(uint64_t hash, IsIt is_it) const {
    for (uint64_t place = place_of(hash);; place = next(place)) {
      const uint64_t word = word_at(place);
      if (word == 0) return kNone;
      const Location location = Location::of_word(word);
      if (location != Location() && is_it(location)) {
        found_ = {place, word};
        return place;
      }
      if ((word & kGoesOn) == 0) return kNone;
    }
  }
  Location at(uint64_t entry) const {
    return Location::of_word(found_.place == entry ? found_.word : word_at(entry));
  }
  void move(uint64_t entry, Location to) {
    const uint64_t word = found_.place == entry ? found_.word : word_at(entry);
    set(entry, to.word() | (word & kGoesOn));
  }
  // Before an insert: throws kPoolFull if the structure has no room for what it was told, kIo.
  void require_room();
  // Room in DRAM for so many changes. May throw std::bad_alloc, having changed nothing.
  void reserve(uint64_t count) { fresh_.reserve(2 * count); }
  void insert(uint64_t hash, Location location);
  void erase(uint64_t entry);

  uint64_t size() const { return size_; }
  uint64_t dram_bytes() const { return fresh_.dram_bytes() + covered_.dram_bytes(); }

  // What has changed since the last cover(), and what of earlier changes the structure has not been
  // told.
  uint64_t changes() const { return fresh_.size(); }
  // Takes the latter to the former, which are then what a checkpoint must hold. May throw
  // std::bad_alloc.
  void gather();
  const PlaceTable& gathered() const { return fresh_; }
  // They are covered from now on. After gather(). Does not throw.
  void cover();
  // Tells the structure some of what is covered, about twice as much as has changed since the last
  // call. Throws kIo.
  void tell_some();
  // Tells it all. Returns whether it had room for that, and was sound. Throws kIo.
  bool tell_all();
  // Whether the structure could not take what it was told for damage, or damage has been met in
  // what it tells.
  bool is_damaged() const { return damaged_ || met_damage_ || lost_; }
  // Entries are missing: whoever finds none has not learnt that there is none.
  bool has_lost() const { return lost_; }
  void note_lost() const { lost_ = true; }
  // Throws kCorrupt if is_damaged(): `what` is not done.
  void require_sound(const char* what) const;

  // For verification. Which partition's place it is; whether an entry is what was written there;
  // and whether the tables in DRAM say what the structure is still to learn of it, or the structure
  // is not asked at all.
  static uint64_t partition_of(uint64_t place) { return place >> kHashBits; }
  static bool is_sound(uint64_t place, uint64_t word) {
    return word == sealed(place, word & kSaid);
  }
  bool is_overruled(uint64_t place) const {
    return !asks_ || fresh_.find(place) != nullptr || covered_.find(place) != nullptr;
  }
  // Whether the structure finds an entry there, whatever it says.
  bool is_found(uint64_t place) const { return (*index_).lookup(place, value_); }
  // Calls `visit(place)` for what the structure has been told, and does not say.
  template <typename Visit>
  void for_untrue(Visit visit) const {
    if (!asks_) return;
    for (uint64_t position = 0; position < told_; ++position) {
      const PlaceTable::Item* item = covered_.item_at(position);
      if (item == nullptr || std::ranges::find(waiting_, position) != waiting_.end()) continue;
      const bool is_there = (*index_).lookup(item->place, value_);
      if (is_there != (item->word != 0) || (is_there && value_.word() != item->word)) {
        visit(item->place);
      }
    }
  }

  // For recovery. What a checkpoint holds, in place of all else.
  void load(uint64_t size, PlaceTable changes);
  // Nothing is there: the structure is not asked until it was cleared.
  void begin_anew();
  // Removes all that the structure has of this partition. Cost: as PmIndex::places_of().
  void clear_structure();
  // The structure has what is in neither table, from now on: once all records have been read.
  void ask() { asks_ = index_.get() != nullptr; }
  // After tell_all(): of what the structure knows nothing is kept in DRAM.
  void forget_told();

 private:
  static constexpr int kHashBits = 53;
  static constexpr uint64_t kHashMask = (uint64_t{1} << kHashBits) - 1;
  static constexpr uint64_t kGoesOn = Location::kMask + 1;
  static constexpr uint64_t kSaid = 2 * kGoesOn - 1;  // all but the checksum
  // So many inserts may wait for room in the structure before the next one is refused.
  static constexpr size_t kWaitingMax = 64;

  uint64_t place_of(uint64_t hash) const { return base_ | (hash & kHashMask); }
  uint64_t next(uint64_t place) const { return base_ | ((place + 1) & kHashMask); }
  static uint64_t sealed(uint64_t place, uint64_t said) {
    const uint64_t mixed = (place ^ said * 0xd6e8feb86659fd93) * 0x9fb21c651e98df25;
    return said | ((mixed ^ mixed >> 32) & ~kSaid);
  }
  uint64_t word_at(uint64_t place) const;
  uint64_t word_in_structure(uint64_t place) const;
  void set(uint64_t place, uint64_t said) {
    const uint64_t word = said == 0 ? 0 : sealed(place, said);
    fresh_.set(place, word);
    ++set_;
    found_ = {kNone, 0};
  }
  void remove_from_structure(uint64_t place);
  bool tell(const PlaceTable::Item& item);
  void tell_next(uint64_t count);

  const PmIndex& index_;
  uint64_t base_;
  uint64_t size_ = 0;
  bool asks_ = true;  // the structure, for what is in neither table
  PlaceTable fresh_;  // changes since the last cover()
  PlaceTable
      covered_;  // those before: the structure knows the items up to a position, but for waiting_
  uint64_t told_ = 0;              // that position
  uint64_t untold_ = 0;            // items from there on
  std::vector<uint64_t> waiting_;  // positions before that which the structure had no room for
  size_t try_next_ = 0;            // of these
  uint64_t set_ = 0;               // changes since tell_some()
  bool damaged_ = false;
  mutable bool met_damage_ = false;
  mutable bool lost_ = false;
  mutable PlaceTable::Item found_{kNone, 0};  // by the last find()
  mutable Value value_;
};

}  // namespace perdure::store
