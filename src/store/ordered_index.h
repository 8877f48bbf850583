// Where each key's record stands, in the order of keys: a B+tree in DRAM that keeps no keys.
//
// A leaf has, for each record, its place and the head of its key: the eight bytes that follow what
// all keys of the leaf begin with. Heads nearly always tell keys apart; where two are equal, the
// records are read. Inner nodes keep the shortest texts that separate their children. 16 bytes for
// each record, and about a third more for room. Owned by its partition: not thread-safe.
// Source: Bayer and Unterauer, "Prefix B-Trees", TODS 1977; heads: Graefe and Larson, "B-tree
// indexes and CPU caches", ICDE 2001.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/hash_index.h"

namespace perdure::store {

// Reads the key of a record. Throws kCorrupt if the record is damaged.
class RecordKeys {
 public:
  virtual std::string_view key_at(Location location) const = 0;
  // Of a record that has just been found sound: it is not verified again.
  virtual std::string_view sound_key_at(Location location) const = 0;
  virtual void prefetch_at(Location location) const = 0;

 protected:
  ~RecordKeys() = default;
};

class OrderedIndex {
 public:
  explicit OrderedIndex(const RecordKeys& keys);
  ~OrderedIndex();
  OrderedIndex(const OrderedIndex&) = delete;
  OrderedIndex& operator=(const OrderedIndex&) = delete;

  // The entry that has the key, if `is_it(Location)` agrees; else kNone. Entries are valid until
  // the next reserve(), insert() or erase(). Throws kCorrupt.
  static constexpr uint64_t kNone = HashIndex::kNone;
  template <typename IsIt>
  uint64_t find(std::string_view key, IsIt is_it) const {
    const Leaf& leaf = leaf_of(key);
    size_t first = 0;
    size_t last = 0;
    if (!same_head(leaf, key, &first, &last)) return kNone;
    // A single one is left to the caller, who reads it anyway.
    if (last - first > 1) first = lower_bound(leaf, key, first, last);
    if (first == last || !is_it(Location::of_word(leaf.places[first]))) return kNone;
    return entry_of(leaf, first);
  }
  // The same, where `entry` may be the one that find() would lead to: what prefetch() has found
  // when changes() was `changes`.
  template <typename IsIt>
  uint64_t find(std::string_view key, uint64_t entry, uint64_t changes, IsIt is_it) const {
    if (entry != 0 && changes == changes_ && is_it(at(entry))) return entry;
    return find(key, is_it);
  }
  // How often entries have become others, or none: as long as that stays, they are valid.
  uint64_t changes() const { return changes_; }
  // The entry of the key that leads to this place, or kNone. Reads no record, so that no other
  // one's damage hinders it.
  uint64_t find_place(std::string_view key, Location place) const;
  // The same, where `entry` is what prefetch() has come to when changes() was `changes`, or 0.
  uint64_t find_place(std::string_view key, Location place, uint64_t entry, uint64_t changes) const;
  Location at(uint64_t entry) const {
    return Location::of_word(leaf_at(entry).places[position_at(entry)]);
  }
  // The way of find() in kAheadSteps steps, so that what several keys wait for overlaps: each asks
  // the cache for what the next one reads, the last one for the record. `way` is 0 before the first
  // one, and 0 again where the way ends; behind the last one it is the entry, unless several have
  // the key's head. Nothing may change between them. Throws nothing.
  static constexpr int kAheadSteps = 4;
  void prefetch(int step, std::string_view key, uint64_t& way) const;
  void move(uint64_t entry, Location to) { leaf_at(entry).places[position_at(entry)] = to.word(); }

  // Makes room for `count` inserts, one of which is the key's. May throw std::bad_alloc and
  // kCorrupt; then what is found is the same.
  void reserve(std::string_view key, uint64_t count);
  // The key is not there, and reserve() was called for it. Does not throw.
  void insert(std::string_view key, Location location);
  // Does not throw. The leaf may stay emptier than it should be, until the next tidy().
  void erase(uint64_t entry);
  // Merges and removes leaves that erase() left nearly empty; reserve() does that, too. May throw
  // std::bad_alloc, having changed nothing. No entry is valid afterwards.
  void tidy();

  // Takes these records, in any order, into an empty index: sorts them, and builds the nodes from
  // the leaves up. Quickest in the order of their places, in which their keys are read twice. They
  // have just been found sound. Of two with the same key `kept_of(a, b)` tells which one to keep;
  // nothing: both. May throw std::bad_alloc, having changed nothing.
  using KeptOf = std::function<std::optional<Location>(Location, Location)>;
  void fill(std::span<const Location> records, const KeptOf& kept_of);
  // The same, besides what is there: each leaf is merged with what comes between its neighbours.
  // Where a key is there, `kept_of(its place, the new one)` tells. May throw kCorrupt of a record
  // that was there; if it throws, the index is empty. `replaces`: many of the keys may be there.
  void add(std::span<const Location> records, const KeptOf& kept_of, bool replaces);

  // All of it as words, to be given to load(): kLeavesFollow, then leaf after leaf, each with the
  // text that separates it from the next one.
  static constexpr uint64_t kLeavesFollow = 0x31766c'ffffffff;
  void save(std::vector<uint64_t>& out) const;
  // The same a leaf at a time, while the index goes on to change. Each entry that is there from
  // the begin of the walk to its turn is met once, in the order of keys: what is behind the walk
  // stays behind it. An entry that leads elsewhere meanwhile is met as it is then.
  void begin_walk();
  // Adds the next leaf, without records for whose places `is_there` is false, of which it returns
  // how many are left; nothing: the walk has ended.
  using IsThere = std::function<bool(Location)>;
  std::optional<uint64_t> walk_on(const IsThere& is_there, std::vector<uint64_t>& out);
  void end_walk();
  // Whether the walk has met the entry, or its leaf before it was there.
  bool is_behind_walk(uint64_t entry) const { return leaf_at(entry).walk == walk_; }
  uint64_t leaves() const { return leaves_; }

  // Has what these words say in place of what it had. Behind a 0 they may go on with places that
  // are to be added, up to another 0. Of leaves no record is read, of these places the keys.
  // Returns false if the words are none of save()'s. May throw kCorrupt and std::bad_alloc. Then it
  // has what it had.
  bool load(std::span<const uint64_t> words) { return load(words, nullptr); }
  // The same without records for whose places `is_there` is false.
  bool load(std::span<const uint64_t> words, const IsThere& is_there);
  void clear() {
    OrderedIndex empty(keys_);
    swap(empty);
  }

  uint64_t size() const { return size_; }
  uint64_t dram_bytes() const { return dram_bytes_; }

  // A place between two records.
  struct Position {
    uint64_t leaf;
    size_t before;  // entries of the leaf that come before
  };
  // Before the first record whose key is not less than `key`; `after` it: whose key is greater.
  Position seek(std::string_view key, bool after) const;
  Position first() const;
  Position last() const;
  // Steps over a record and tells where it stands. Returns false at the end. Positions are valid as
  // entries are.
  bool next(Position& position, Location* out) const;
  bool previous(Position& position, Location* out) const;

 private:
  static constexpr size_t kMax = 64;     // entries of a leaf, children of an inner node
  static constexpr size_t kFilled = 48;  // of them where fill() makes a node

  struct Inner;
  struct Node {
    Inner* parent = nullptr;
    bool is_leaf = false;
    std::string prefix;           // what all keys, or separators, begin with
    std::vector<uint64_t> heads;  // of keys or separators, after the prefix, ascending
  };
  struct Leaf : Node {
    bool sparse = false;  // it stands in sparse_
    uint32_t walk = 0;    // the last one that has met it, or the leaf that it was split from
    Leaf* previous = nullptr;
    Leaf* next = nullptr;
    std::vector<uint64_t> places;  // words of Locations
  };
  // Child i holds keys that are less than separator i, and not less than separator i - 1.
  struct Inner : Node {
    std::vector<std::string> separators;
    std::vector<Node*> children;
  };

  // How many bytes both begin with.
  static size_t common_bytes(std::string_view a, std::string_view b);
  static uint64_t head_of(std::string_view key, size_t skip);
  static int compare_prefix(const Node& node, std::string_view key);
  static void shorten_prefix(Node& node, size_t bytes);
  static size_t upper_child(const Inner& inner, std::string_view key);
  static uint64_t entry_of(const Leaf& leaf, size_t position) {
    return reinterpret_cast<uint64_t>(&leaf) << 16 | position;
  }
  static Leaf& leaf_at(uint64_t entry) { return *reinterpret_cast<Leaf*>(entry >> 16); }
  static size_t position_at(uint64_t entry) { return entry & 0xffff; }

  Leaf& leaf_of(std::string_view key) const;
  static bool same_head(const Leaf& leaf, std::string_view key, size_t* first, size_t* last);
  static uint64_t place_among(const Leaf& leaf, size_t first, size_t last, Location place);
  size_t lower_bound(const Leaf& leaf, std::string_view key, size_t first, size_t last) const;
  std::string_view key_at(const Leaf& leaf, size_t i) const {
    return keys_.key_at(Location::of_word(leaf.places[i]));
  }

  Leaf* new_leaf(size_t entries);
  void free_node(Node* node);
  void free_subtree(Node* node);
  void split_leaf(Leaf& leaf, size_t entries);
  void split_inner(Inner& inner);
  static void add_child(Node& left, Node* right, std::string separator);
  void require_parent(Node& node);
  void lengthen_prefix(Leaf& leaf) const;
  static void lengthen_prefix(Inner& inner);
  void remove_node(Node* node);
  bool merge_with_next(Leaf& leaf);
  static uint64_t bytes_of(const Node& node);
  static uint64_t save_leaf(const Leaf& leaf, const IsThere& is_there, std::vector<uint64_t>& out);
  static std::string_view separator_behind(const Leaf& leaf);
  std::unique_ptr<Inner> new_inner();
  // ordered_fill.cc
  class Sorter;
  class Row;
  struct Sorted;
  void build_leaf(std::span<const Sorted> records, Row& leaves);
  void build_above(Row& row);
  class Merger;
  static void take_apart(Node* node, Row& leaves, std::vector<Inner*>& inner);
  void append_leaf(Leaf* leaf, Row& leaves);
  void swap(OrderedIndex& other) noexcept;
  class Words;
  Leaf* add_leaf(size_t entries, Row& leaves);
  bool load_leaf(uint64_t first, Words& words, const IsThere& is_there, Row& leaves);

  const RecordKeys& keys_;
  Node* root_;
  Leaf* first_;
  Leaf* last_;
  std::vector<Leaf*>
      sparse_;  // to be looked at by tidy(). With room for what the next erase() adds
  uint64_t size_ = 0;
  uint64_t leaves_ = 0;
  uint64_t dram_bytes_ = 0;
  uint32_t walk_ = 0;  // the number of the walk
  bool is_walked_ = false;
  Leaf* walk_at_ = nullptr;  // the first leaf before it; null: none is
  uint64_t changes_ = 0;
};

}  // namespace perdure::store
