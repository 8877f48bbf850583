// Every structure of the catalogue with keys and values of C++ types.
//
//   auto scores = perdure::FastFair<std::string, int64_t>::create(pool, "scores");
//   scores.upsert("ada", -3);
//   for (auto&& [name, score] : scores.prefix("a")) std::cout << name << ": " << score << '\n';
//
// A thin layer over AnyIndex: no state of its own, and each call is one call of the structure. What
// a call promises (atomic, durable on return, thread-safe as the structure is, the errors),
// AnyIndex says.
//
// What may be a key or a value:
//
//   integers, enumerations     of at most 64 bits, bool and char included: a word
//   float, double              values only: a word, the bits as they are
//   std::string                a byte string; passed as std::string_view
//   structs                    trivially copyable, with a default constructor: a byte string, their bytes
//
// How they are stored, which tools and other languages see: of signed keys the sign bit is flipped,
// so that negative ones come first in an ordered structure; signed values count modulo 2^64.
// Structs are in the order of their bytes (memcmp), which on little-endian processors is not that
// of their members: for scans that mean something, make a key of char arrays, or of integers with
// their highest byte first. Keys must have no padding, which would be part of the key. The pool
// keeps the two kinds, u64 or bytes, and not the C++ types: open an index with the types that it
// was made with. What does not fit (bytes of another size, a word out of range) is
// Error(kWrongType) when it is read; what fits is taken for what you say.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/error.h"
#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

// How C++ types become words and byte strings.
namespace typed {

template <typename T>
inline constexpr bool kOwnsNothing = std::is_pointer_v<T>;
template <typename Char, typename Traits>
inline constexpr bool kOwnsNothing<std::basic_string_view<Char, Traits>> = true;
template <typename T, size_t kExtent>
inline constexpr bool kOwnsNothing<std::span<T, kExtent>> = true;

template <typename T>
concept Number = (std::integral<T> || std::is_enum_v<T>) && sizeof(T) <= 8 &&
                 std::same_as<T, std::remove_cv_t<T>>;
template <typename T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;
template <typename T>
concept Struct = (std::is_class_v<T> || std::is_union_v<T>) && std::is_trivially_copyable_v<T> &&
                 std::default_initializable<T> && std::copyable<T> && !kOwnsNothing<T> &&
                 std::same_as<T, std::remove_cv_t<T>>;

template <typename T>
concept StorableValue = Number<T> || Real<T> || std::same_as<T, std::string> || Struct<T>;
// Of equal values the stored forms are equal, too.
template <typename T>
concept Comparable = Number<T> || Real<T> || std::same_as<T, std::string> ||
                     (Struct<T> && std::has_unique_object_representations_v<T>);
template <typename T>
concept StorableKey = StorableValue<T> && Comparable<T> && !Real<T>;

[[noreturn]] inline void throw_other_types(const std::string& what) {
  throw Error(ErrorCode::kWrongType,
              what +
                  ", which the type that it is read as cannot hold; open the index with the "
                  "types that it was made with");
}

// In: how T is passed in. View: how callbacks get it. key() and value(): the stored form, valid as
// long as the argument is. view() and read(): back again. Throw kWrongType if no T has that form.
template <typename T>
struct Coding;

template <typename T>
  requires Number<T>
struct Coding<T> {
  using In = T;
  using View = T;
  static constexpr Kind kKind = Kind::kU64;

  static uint64_t word_of(T number) {
    if constexpr (kSigned) {
      return static_cast<uint64_t>(static_cast<int64_t>(number));
    } else {
      return static_cast<uint64_t>(number);
    }
  }
  static Datum key(T number) { return word_of(number) ^ kFlip; }
  static Datum value(T number) { return word_of(number); }
  static T key_view(const Datum& stored) { return number_of(stored.word() ^ kFlip); }
  static T value_view(const Datum& stored) { return number_of(stored.word()); }

 private:
  static constexpr bool kSigned = [] {
    if constexpr (std::is_enum_v<T>) {
      return std::is_signed_v<std::underlying_type_t<T>>;
    } else {
      return std::is_signed_v<T>;
    }
  }();
  static constexpr uint64_t kFlip = kSigned ? uint64_t{1} << 63 : 0;

  static T number_of(uint64_t word) {
    const T number = static_cast<T>(word);
    if (sizeof(T) < 8 && word_of(number) != word) [[unlikely]]
      throw_other_types("the index holds the word " + std::to_string(word));
    return number;
  }
};

// As values only.
template <typename T>
  requires Real<T>
struct Coding<T> {
  using In = T;
  using View = T;
  static constexpr Kind kKind = Kind::kU64;

  static Datum value(T number) {
    uint64_t word = 0;
    std::memcpy(&word, &number, sizeof number);
    return word;
  }
  static T value_view(const Datum& stored) {
    const uint64_t word = stored.word();
    if (sizeof(T) < 8 && word >> 32 != 0) [[unlikely]]
      throw_other_types("the index holds the word " + std::to_string(word));
    T number;
    std::memcpy(&number, &word, sizeof number);
    return number;
  }
};

template <>
struct Coding<std::string> {
  using In = std::string_view;
  using View = std::string_view;
  static constexpr Kind kKind = Kind::kBytes;

  static Datum key(std::string_view text) { return text; }
  static Datum value(std::string_view text) { return text; }
  static std::string_view key_view(const Datum& stored) { return stored.bytes(); }
  static std::string_view value_view(const Datum& stored) { return stored.bytes(); }
};

template <typename T>
  requires Struct<T>
struct Coding<T> {
  using In = const T&;
  using View = T;
  static constexpr Kind kKind = Kind::kBytes;

  static Datum key(const T& object) { return bytes_of(object); }
  static Datum value(const T& object) { return bytes_of(object); }
  static T key_view(const Datum& stored) { return object_of(stored.bytes()); }
  static T value_view(const Datum& stored) { return object_of(stored.bytes()); }

 private:
  static Datum bytes_of(const T& object) {
    return std::string_view(reinterpret_cast<const char*>(&object), sizeof object);
  }
  static T object_of(std::string_view bytes) {
    if (bytes.size() != sizeof(T)) [[unlikely]]
      throw_other_types("the index holds " + std::to_string(bytes.size()) + " bytes");
    T object{};  // the bytes may lie at any address
    std::memcpy(static_cast<void*>(&object), bytes.data(), sizeof object);
    return object;
  }
};

// What is known only when it runs: for cursors of AnyIndex. Nothing that could be stored by another
// name.
template <>
struct Coding<Value> {
  using In = Datum;
  using View = Datum;

  static Datum key(const Datum& datum) { return datum; }
  static Datum value(const Datum& datum) { return datum; }
  static Datum key_view(const Datum& stored) { return stored; }
  static Datum value_view(const Datum& stored) { return stored; }
};

// Throws kWrongType if `name` is of another structure (null: any is right) or of other kinds. A
// name that is not there is left to open_index() to complain of.
inline void require(Pool& pool, const std::string& name, const char* structure, Kind key,
                    Kind value) {
  const std::vector<StructureInfo> all = pool.structures();
  const auto info = std::ranges::find(all, name, &StructureInfo::name);
  if (info == all.end()) return;
  const std::string type = structure != nullptr ? structure : info->type;
  if (info->type == type && info->key_kind == to_string(key) &&
      info->value_kind == to_string(value)) {
    return;
  }
  throw Error(ErrorCode::kWrongType, pool.info().path + ": '" + name + "' is a " + info->type +
                                         " from " + info->key_kind + " to " + info->value_kind +
                                         "; it was opened as a " + type + " from " +
                                         to_string(key) + " to " + to_string(value));
}

// From a prefix to the least byte string behind all that begin with it. False if there is none.
inline bool to_end_of_prefix(std::string& prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return false;
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return true;
}

}  // namespace typed

// What is known of a structure when a program is compiled. One of your own fixes a variant:
//
//   struct InPlace { static constexpr perdure::StructureFacts kFacts{.name = "cceh+ip"}; };
//   using Counts = perdure::TypedIndex<std::string, uint64_t, InPlace>;
struct StructureFacts {
  const char* name = nullptr;  // in the catalogue; null: any
  bool ordered = false;        // has scans, cursors and ranges
  bool byte_keys = true;       // may have keys, values, that are byte strings
  bool byte_values = true;
};

namespace structures {
// Any: the name is said when one is created, and looked up when it is opened. In one that is not
// ordered scans and cursors throw kWrongType; the others below have none that would compile.
struct Any {
  static constexpr StructureFacts kFacts{.ordered = true};
};
struct Plush {
  static constexpr StructureFacts kFacts{.name = "plush"};
};
struct PlushRange {
  static constexpr StructureFacts kFacts{
      .name = "plush+range", .ordered = true, .byte_keys = false};
};
struct Cceh {
  static constexpr StructureFacts kFacts{.name = "cceh"};
};
struct PClht {
  static constexpr StructureFacts kFacts{.name = "p-clht"};
};
struct Level {
  static constexpr StructureFacts kFacts{.name = "level"};
};
struct FpTree {
  static constexpr StructureFacts kFacts{.name = "fptree", .ordered = true};
};
struct WbTree {
  static constexpr StructureFacts kFacts{.name = "wbtree", .ordered = true};
};
struct FastFair {
  static constexpr StructureFacts kFacts{.name = "fast-fair", .ordered = true};
};
struct NvTree {
  static constexpr StructureFacts kFacts{.name = "nv-tree", .ordered = true};
};
struct BzTree {
  static constexpr StructureFacts kFacts{.name = "bztree", .ordered = true};
};
struct PBwTree {
  static constexpr StructureFacts kFacts{.name = "p-bwtree", .ordered = true};
};
struct Sheaf {
  static constexpr StructureFacts kFacts{.name = "sheaf", .ordered = true};
};
struct PArt {
  static constexpr StructureFacts kFacts{.name = "p-art+vl", .ordered = true};
};
struct PMasstree {
  static constexpr StructureFacts kFacts{.name = "p-masstree+vl", .ordered = true};
};
struct PHot {
  static constexpr StructureFacts kFacts{.name = "p-hot+vl", .ordered = true};
};
struct Wort {
  static constexpr StructureFacts kFacts{.name = "wort", .ordered = true};
};
struct Woart {
  static constexpr StructureFacts kFacts{.name = "woart", .ordered = true};
};
struct ArtCow {
  static constexpr StructureFacts kFacts{.name = "art-cow", .ordered = true};
};
}  // namespace structures

template <typename K, typename V, typename Structure = structures::Any>
class TypedIndex;

// What moves a cursor in a loop: by next() or, downwards, by previous().
namespace typed {
template <typename Cursor, bool kBack>
class CursorIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using iterator_category = std::input_iterator_tag;
  using value_type = typename Cursor::Record;
  using difference_type = std::ptrdiff_t;
  using pointer = const value_type*;
  using reference = const value_type&;

  CursorIterator() = default;
  explicit CursorIterator(Cursor* cursor) : cursor_(cursor) {}
  const value_type& operator*() const { return cursor_->record(); }
  const value_type* operator->() const { return &cursor_->record(); }
  CursorIterator& operator++() {
    if constexpr (kBack) {
      cursor_->previous();
    } else {
      cursor_->next();
    }
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const CursorIterator& at, std::default_sentinel_t) {
    return !at.cursor_->valid();
  }

 private:
  Cursor* cursor_ = nullptr;
};
}  // namespace typed

template <typename K, typename V>
class TypedReverse;

// A place in a range of an ordered index, and what is left of the range behind it: in ascending
// order, each record once; or in descending order, or to and fro.
//
//   for (auto cursor = index.from(10); cursor.valid(); cursor.next()) use(cursor.key(), cursor.value());
//   for (auto&& [key, value] : index.from(10)) use(key, value);         // the same
//   for (auto&& [key, value] : index.from(10) | std::views::take(3)) ...
//   for (auto&& [key, value] : index.range(10, 20).reverse()) ...       // from the greatest key below 20 down to 10
//   auto at = index.lower_bound(10);                                    // of the whole index
//   if (at.valid()) at.previous();                                      // the greatest key below 10
//
// It fetches a chunk of records by one scan of the structure (8 records at first, twice as many
// each time, up to 128, or as many as have 64 KiB), and continues behind the last key of the chunk
// with the next scan; who turns round within a chunk moves on within it. Between two scans it holds
// nothing of the structure, neither lock nor epoch: keep it as long as you want, and write to the
// index while you walk through it.
//
// What it sees: a record that is there when the cursor comes by, and that nobody writes to
// meanwhile, is seen exactly once, and on a way in one direction no key is seen twice. Of a record
// that somebody writes, removes or inserts meanwhile, the cursor shows what was there when its
// chunk was fetched: changes behind the chunk are seen, changes within it are not, and keys that
// are inserted where the cursor has been never. Hence it is not a snapshot. A record of which the
// key was shown may be gone; remove() tells. The end is where the last scan found it: records that
// are added behind it afterwards need a call of first(), last() or seek(), which read anew.
//
// Movable (of one that was moved from nothing may be asked), single-pass: begin() gives where it
// stands. For one thread at a time. The index must outlive it, but may be moved. Each scan, that is
// creating the cursor, placing it and moving on, may throw what AnyIndex::scan() and scan_back()
// throw, and bad_alloc; the cursor is then at its end. A chunk is in DRAM: 128 records, or 64 KiB
// and one record.
template <typename K, typename V>
class TypedCursor {
 public:
  // What it stands on.
  struct Record {
    K key;
    V value;
    bool operator==(const Record&) const
      requires std::equality_comparable<K> && std::equality_comparable<V>
    = default;
  };

  // Moves the cursor that it came from.
  using Iterator = typed::CursorIterator<TypedCursor, false>;
  using KeyIn = typename typed::Coding<K>::In;

  TypedCursor(TypedCursor&&) noexcept = default;
  TypedCursor& operator=(TypedCursor&&) noexcept = default;
  TypedCursor(const TypedCursor&) = delete;
  TypedCursor& operator=(const TypedCursor&) = delete;
  ~TypedCursor() = default;

  // Whether it stands on a record. If not it has left the range, at either end, and stays there
  // until it is placed anew.
  bool valid() const { return at_ < count_; }
  // What it stands on, which it must. Valid until it moves on.
  const Record& record() const { return chunk_[at_]; }
  const K& key() const { return chunk_[at_].key; }
  const V& value() const { return chunk_[at_].value; }
  // Moves on to the next record, or the end; nothing at an end. Cost: one scan for each chunk.
  void next() { step(false); }
  // To the record before, or the end; nothing at an end.
  void previous() { step(true); }

  // Places it, wherever it is: on the first record of the range; on the last one; on the first
  // whose key is not less than `key`, or greater than it; on the last whose key is not greater than
  // `key`, or less than it. At the end if the range has none. Cost: one scan of 8 records.
  void first() { place(false, Start::kEdge, Datum(0)); }
  void last() { place(true, Start::kEdge, Datum(0)); }
  void seek(KeyIn key) { place(false, Start::kAt, typed::Coding<K>::key(key)); }
  void seek_above(KeyIn key) { place(false, Start::kBeyond, typed::Coding<K>::key(key)); }
  void seek_down(KeyIn key) { place(true, Start::kAt, typed::Coding<K>::key(key)); }
  void seek_below(KeyIn key) { place(true, Start::kBeyond, typed::Coding<K>::key(key)); }

  // The range in descending order, from its last record on, wherever the cursor stood.
  TypedReverse<K, V> reverse() && { return TypedReverse<K, V>(std::move(*this)); }

  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  template <typename, typename, typename>
  friend class TypedIndex;
  friend class AnyIndex;

  enum class Until : uint8_t { kEnd, kKey, kOtherPrefix };
  enum class Start : uint8_t { kEdge, kAt, kBeyond };  // of the range; at a key; behind it
  static constexpr uint64_t kFirstRecords = 8;
  static constexpr uint64_t kMostRecords = 128;
  static constexpr uint64_t kChunkBytes = 64 << 10;

  // The range from `low` on, until the bound; not placed yet.
  TypedCursor(const AnyIndex& index, Datum low, Until until, Datum bound)
      : index_(&index), low_(low), bound_(bound), until_(until) {
    require_kind(low);
    require_kind(bound);
  }

  // What a type fixes, if it is one.
  void require_kind(const Datum& key) const {
    if constexpr (std::same_as<K, Value>) {
      if (key.kind() != index_->key_kind()) {
        throw Error(ErrorCode::kWrongType,
                    std::string("keys of this index are ") + to_string(index_->key_kind()));
      }
    }
  }
  static bool less(const Datum& a, const Datum& b) {
    return a.kind() == Kind::kU64 ? a.word() < b.word() : a.bytes() < b.bytes();
  }

  // Whether a key that lies on the right side of where the cursor began is within the range.
  bool within(const Datum& key) const {
    if (down_) return !less(key, low_.datum());
    switch (until_) {
      case Until::kEnd:
        return true;
      case Until::kKey:
        return less(key, bound_.datum());
      case Until::kOtherPrefix:
        return key.bytes().starts_with(bound_.bytes());
    }
    return false;
  }

  void place(bool down, Start start, Datum key) {
    at_ = count_ = 0;
    if (start != Start::kEdge) require_kind(key);
    down_ = down;
    start_ = start;
    wanted_ = kFirstRecords;
    if (start != Start::kEdge) from_ = key;
    clamp();
    fetch();
  }
  // Keeps the start within the range.
  void clamp() {
    if (!down_) {
      if (start_ != Start::kEdge && !less(from_.datum(), low_.datum())) return;
      start_ = Start::kAt;
      from_ = low_;
      return;
    }
    if (until_ == Until::kEnd) return;
    std::string behind;
    Datum bound = bound_.datum();
    if (until_ == Until::kOtherPrefix) {
      behind = bound_.bytes();
      if (!typed::to_end_of_prefix(behind)) return;
      bound = Datum(behind);
    }
    if (start_ != Start::kEdge && less(from_.datum(), bound)) return;
    start_ = Start::kBeyond;
    from_ = bound;
  }

  void step(bool down) {
    if (!valid()) return;
    if (down == down_) {
      if (++at_ < count_ || !more_) return;
      at_ = count_ - 1;
    } else if (at_ > 0) {
      --at_;
      return;
    } else {
      down_ = down;
      wanted_ = kFirstRecords;
    }
    from_ = typed::Coding<K>::key(chunk_[at_].key);
    start_ = Start::kBeyond;
    fetch();
  }

  // From from_ on, or from behind it. Seeking the key itself and passing it over serves words and
  // byte strings of all lengths: of the longest ones there is no next one to seek.
  void fetch() {
    at_ = count_ = 0;
    uint64_t put = 0;
    uint64_t seen = 0;
    uint64_t bytes = 0;
    bool ended = false;
    const Datum from = from_.datum();
    const bool beyond = start_ == Start::kBeyond;
    const uint64_t limit = wanted_ + (beyond ? 1 : 0);
    const auto take = [&](Datum key, Datum value) {
      ++seen;
      if (beyond && key == from) return true;
      if (!within(key)) {
        ended = true;
        return false;
      }
      put_record(put++, key, value);
      bytes += key.bytes().size() + value.bytes().size();
      return bytes < kChunkBytes;
    };
    if (!down_) {
      index_->scan(from, limit, take);
    } else if (start_ == Start::kEdge) {
      index_->scan_back(std::nullopt, limit, take);
    } else {
      index_->scan_back(from, limit, take);
    }
    more_ = !ended && (seen == limit || bytes >= kChunkBytes);
    wanted_ = std::min(2 * wanted_, kMostRecords);
    count_ = put;  // at the end if the scan has thrown
  }

  // Strings keep their memory from chunk to chunk.
  void put_record(size_t at, const Datum& key, const Datum& value) {
    if (at == chunk_.size()) {
      chunk_.push_back(
          Record{K(typed::Coding<K>::key_view(key)), V(typed::Coding<V>::value_view(value))});
    } else {
      chunk_[at].key = typed::Coding<K>::key_view(key);
      chunk_[at].value = typed::Coding<V>::value_view(value);
    }
  }

  const AnyIndex* index_;
  Value from_;
  Value low_;    // where the range begins
  Value bound_;  // where it ends, as until_ says
  std::vector<Record> chunk_;
  size_t at_ = 0;
  size_t count_ = 0;  // records of chunk_ that count
  uint64_t wanted_ = kFirstRecords;
  Until until_;
  Start start_ = Start::kEdge;
  bool down_ = false;  // the order of the chunk
  bool more_ = false;  // there may be records behind the chunk
};

// What a cursor gives, in descending order: for range-for and std::ranges. Movable, single-pass,
// with the promises of its cursor.
//
//   for (auto&& [key, value] : index.all().reverse() | std::views::take(10)) ...   // the ten greatest keys
template <typename K, typename V>
class TypedReverse {
 public:
  using Record = typename TypedCursor<K, V>::Record;
  using Iterator = typed::CursorIterator<TypedCursor<K, V>, true>;

  // From the last record of the cursor's range on. Cost: one scan of 8 records.
  explicit TypedReverse(TypedCursor<K, V> cursor) : cursor_(std::move(cursor)) { cursor_.last(); }

  Iterator begin() { return Iterator(&cursor_); }
  std::default_sentinel_t end() const { return {}; }
  // Where it stands.
  TypedCursor<K, V>& cursor() { return cursor_; }

 private:
  TypedCursor<K, V> cursor_;
};

// An index from K to V, see above. Movable, and owns the structure: destroying the object closes it
// cleanly. An object that was moved from may only be assigned to or destroyed.
template <typename K, typename V, typename Structure>
class TypedIndex {
  static_assert(
      typed::StorableValue<K> && typed::StorableValue<V>,
      "keys and values are integers or enumerations of at most 64 bits, std::string, or "
      "trivially copyable structs that can be default-constructed and assigned; values also "
      "float and double. Pointers and views (std::string_view, std::span) own nothing "
      "that could be stored");
  static_assert(
      typed::StorableKey<K>,
      "a key's bytes must tell whether two keys are equal: no float or double, and no padding "
      "between or behind the members of a struct "
      "(std::has_unique_object_representations)");

  static constexpr StructureFacts kFacts = Structure::kFacts;
  static constexpr bool kFixed = kFacts.name != nullptr;
  using KeyCoding = typed::Coding<K>;
  using ValueCoding = typed::Coding<V>;
  using KeyIn = typename KeyCoding::In;
  using ValueIn = typename ValueCoding::In;

  static_assert(kFacts.byte_keys || KeyCoding::kKind == Kind::kU64,
                "this structure has keys of 8 bytes only: integers, enumerations");
  static_assert(kFacts.byte_values || ValueCoding::kKind == Kind::kU64,
                "this structure has values of 8 bytes only: integers, enumerations, float, double");

 public:
  using key_type = K;
  using value_type = V;
  using Cursor = TypedCursor<K, V>;
  using Record = typename Cursor::Record;

  // Makes an empty structure of the catalogue, as create_index() does; of signed keys, options that
  // are keys are in the stored form.
  static TypedIndex create(Pool& pool, const std::string& name, std::string_view structure,
                           const OptionMap& options = {})
    requires(!kFixed)
  {
    return TypedIndex(
        create_index(pool, name, structure, KeyCoding::kKind, ValueCoding::kKind, options));
  }
  static TypedIndex create(Pool& pool, const std::string& name, const OptionMap& options = {})
    requires kFixed
  {
    return TypedIndex(
        create_index(pool, name, kFacts.name, KeyCoding::kKind, ValueCoding::kKind, options));
  }
  // As open_index(). Also throws kWrongType, and has not touched it, if the name is of another
  // structure or of other kinds.
  static TypedIndex open(Pool& pool, const std::string& name, const OptionMap& options = {}) {
    typed::require(pool, name, kFacts.name, KeyCoding::kKind, ValueCoding::kKind);
    return TypedIndex(open_index(pool, name, options));
  }
  // Takes over an open structure, whatever it is. Throws kWrongType if its kinds are others.
  explicit TypedIndex(std::unique_ptr<AnyIndex> index) : index_(std::move(index)) {
    if (index_->key_kind() != KeyCoding::kKind || index_->value_kind() != ValueCoding::kKind) {
      throw Error(ErrorCode::kWrongType,
                  std::string("the index is from ") + to_string(index_->key_kind()) + " to " +
                      to_string(index_->value_kind()) + ", not from " +
                      to_string(KeyCoding::kKind) + " to " + to_string(ValueCoding::kKind));
    }
  }

  // What has no types: batches, bulk_upsert(), checkpoint(), check(), statistics().
  AnyIndex& any() { return *index_; }
  const AnyIndex& any() const { return *index_; }

  // false, and no change, if the key is there.
  bool insert(KeyIn key, ValueIn value) {
    return index_->insert(KeyCoding::key(key), ValueCoding::value(value));
  }
  // false, and no change, if it is absent.
  bool update(KeyIn key, ValueIn value) {
    return index_->update(KeyCoding::key(key), ValueCoding::value(value));
  }
  void upsert(KeyIn key, ValueIn value) {
    index_->upsert(KeyCoding::key(key), ValueCoding::value(value));
  }
  // false if it is absent.
  bool remove(KeyIn key) { return index_->remove(KeyCoding::key(key)); }
  // The same, with a full pool or medium as a result, as in AnyIndex.
  [[nodiscard]] WriteResult try_insert(KeyIn key, ValueIn value) {
    return index_->try_insert(KeyCoding::key(key), ValueCoding::value(value));
  }
  [[nodiscard]] WriteResult try_update(KeyIn key, ValueIn value) {
    return index_->try_update(KeyCoding::key(key), ValueCoding::value(value));
  }
  [[nodiscard]] WriteResult try_upsert(KeyIn key, ValueIn value) {
    return index_->try_upsert(KeyCoding::key(key), ValueCoding::value(value));
  }
  [[nodiscard]] WriteResult try_remove(KeyIn key) {
    return index_->try_remove(KeyCoding::key(key));
  }

  // Writes `desired`, or removes the key, only if its value is `expected`; returns whether it did.
  // Values are compared as they are stored: float and double by their bits. Structs with padding,
  // or with members of that kind, have modify().
  bool compare_exchange(KeyIn key, ValueIn expected, ValueIn desired)
    requires typed::Comparable<V>
  {
    return index_->compare_exchange(KeyCoding::key(key), ValueCoding::value(expected),
                                    ValueCoding::value(desired));
  }
  bool compare_remove(KeyIn key, ValueIn expected)
    requires typed::Comparable<V>
  {
    return index_->compare_remove(KeyCoding::key(key), ValueCoding::value(expected));
  }
  // As AnyIndex::modify(): `change(const V* before, V& after)` returns a Change. `before` is null
  // if the key is absent; `after` begins empty, or 0. May be called again.
  template <typename Function>
  Change modify(KeyIn key, Function change) {
    return index_->modify(KeyCoding::key(key), [&](const Value* before, Value& after) -> Change {
      if constexpr (std::same_as<V, std::string>) {
        after.set_bytes().clear();
        const std::string* const text = before != nullptr ? &before->bytes() : nullptr;
        return change(text, after.set_bytes());
      } else {
        std::optional<V> old;
        if (before != nullptr) old = ValueCoding::value_view(before->datum());
        V desired{};
        const V* const given = old ? &*old : nullptr;
        const Change wanted = change(given, desired);
        if (wanted == Change::kWrite) after = ValueCoding::value(desired);
        return wanted;
      }
    });
  }
  // Gives a key that is there the value `change(value)`, atomically; false, and no change, if it is
  // absent. May be called again. What depends on a key's absence, too, is modify().
  template <typename Function>
    requires std::is_invocable_r_v<V, Function&, const V&>
  bool update(KeyIn key, Function change) {
    const auto apply = [&](const V* before, V& after) {
      if (before == nullptr) return Change::kKeep;
      after = change(*before);
      return Change::kWrite;
    };
    return modify(key, apply) == Change::kWrite;
  }
  // Adds to a value, 0 if the key is absent; returns the sum, modulo 2 to the number of bits of V.
  V increment(KeyIn key, int64_t by = 1)
    requires(std::integral<V> && !std::same_as<V, bool>)
  {
    V sum{};
    modify(key, [&](const V* before, V& after) {
      const uint64_t old = before != nullptr ? static_cast<uint64_t>(*before) : 0;
      sum = after = static_cast<V>(old + static_cast<uint64_t>(by));
      return Change::kWrite;
    });
    return sum;
  }

  // Calls `use(value)` once if the key is there, and returns whether it is. A string comes as a
  // std::string_view of the bytes where they lie in the pool, valid for the call: no copy is made,
  // but by BzTree, Sheaf and the store one. What `use` may do and what it should not,
  // AnyIndex::visit() says.
  template <typename Use>
  bool lookup(KeyIn key, Use use) const {
    return index_->visit(KeyCoding::key(key),
                         [&](Datum found) { use(ValueCoding::value_view(found)); });
  }
  // The value, if the key is there.
  std::optional<V> get(KeyIn key) const {
    std::optional<V> found;
    lookup(key, [&](const auto& value) { found.emplace(value); });
    return found;
  }
  bool contains(KeyIn key) const {
    return index_->visit(KeyCoding::key(key), [](Datum) {});
  }

  // Counts the records. Cost: reads all of them, as for_each() does; the structures keep no count.
  uint64_t size() const {
    uint64_t count = 0;
    index_->for_each([&](const Datum&, const Datum&) { ++count; });
    return count;
  }
  // Calls `use(key, value)` for every record, as AnyIndex::for_each(): in no particular order,
  // strings as std::string_view, valid for the call. May be called in ordered structures, too.
  template <typename Use>
  void for_each(Use use) const {
    index_->for_each([&](Datum key, Datum value) {
      use(KeyCoding::key_view(key), ValueCoding::value_view(value));
    });
  }

  // Ordered structures. Calls `use(key, value)` for the records with keys >= `from`, ascending; if
  // it returns a bool, until that is false. By one scan of the structure, as AnyIndex::scan().
  template <typename Use>
  void scan(KeyIn from, Use use) const
    requires(kFacts.ordered)
  {
    index_->scan(KeyCoding::key(from), ~uint64_t{0}, typed_visit(use));
  }
  // The same in descending order, of the records with keys <= `from`, or of all. As
  // AnyIndex::scan_back().
  template <typename Use>
  void scan_back(KeyIn from, Use use) const
    requires(kFacts.ordered)
  {
    visit_back(KeyCoding::key(from), use);
  }
  template <typename Use>
  void scan_back(Use use) const
    requires(kFacts.ordered)
  {
    visit_back(std::nullopt, use);
  }
  // Removes the records with keys >= `first` and < `last`; those whose keys begin with `text`.
  // Returns how many. Each removal is atomic; as AnyIndex::remove_range().
  uint64_t remove_range(KeyIn first, KeyIn last)
    requires(kFacts.ordered)
  {
    return index_->remove_range(KeyCoding::key(first), KeyCoding::key(last));
  }
  uint64_t remove_prefix(std::string_view text)
    requires(kFacts.ordered && std::same_as<K, std::string>)
  {
    std::string end(text);
    if (!typed::to_end_of_prefix(end)) return index_->remove_range(text, std::nullopt);
    return index_->remove_range(text, Datum(std::string_view(end)));
  }
  // The record with the least key, with the greatest one. Cost: one scan of a record.
  std::optional<Record> first() const
    requires(kFacts.ordered)
  {
    std::optional<Record> found;
    index_->scan(lowest(), 1, keep(found));
    return found;
  }
  std::optional<Record> last() const
    requires(kFacts.ordered)
  {
    std::optional<Record> found;
    index_->scan_back(std::nullopt, 1, keep(found));
    return found;
  }
  // All records; those with keys >= `first`; of them, those with keys < `last`. On the first of
  // them.
  Cursor all() const
    requires(kFacts.ordered)
  {
    return placed(Cursor(*index_, lowest(), Cursor::Until::kEnd, lowest()));
  }
  Cursor from(KeyIn first) const
    requires(kFacts.ordered)
  {
    return placed(Cursor(*index_, KeyCoding::key(first), Cursor::Until::kEnd, lowest()));
  }
  Cursor range(KeyIn first, KeyIn last) const
    requires(kFacts.ordered)
  {
    return placed(
        Cursor(*index_, KeyCoding::key(first), Cursor::Until::kKey, KeyCoding::key(last)));
  }
  // All records, on the first whose key is not less than `key`; on the first whose key is greater.
  // As those of std::map, but at the end only a placing leads back: seek_below(key) finds what is
  // before either.
  Cursor lower_bound(KeyIn key) const
    requires(kFacts.ordered)
  {
    Cursor cursor(*index_, lowest(), Cursor::Until::kEnd, lowest());
    cursor.seek(key);
    return cursor;
  }
  Cursor upper_bound(KeyIn key) const
    requires(kFacts.ordered)
  {
    Cursor cursor(*index_, lowest(), Cursor::Until::kEnd, lowest());
    cursor.seek_above(key);
    return cursor;
  }
  // Those whose keys begin with `text`; all of them do with an empty one.
  Cursor prefix(std::string_view text) const
    requires(kFacts.ordered && std::same_as<K, std::string>)
  {
    return placed(Cursor(*index_, text, Cursor::Until::kOtherPrefix, text));
  }

 private:
  static Cursor placed(Cursor cursor) {
    cursor.first();
    return cursor;
  }
  // What a scan calls: `use`, with the types.
  template <typename Use>
  static auto typed_visit(Use& use) {
    return [&use](Datum key, Datum value) -> bool {
      if constexpr (std::is_void_v<std::invoke_result_t<Use&, typename KeyCoding::View,
                                                        typename ValueCoding::View>>) {
        use(KeyCoding::key_view(key), ValueCoding::value_view(value));
        return true;
      } else {
        return use(KeyCoding::key_view(key), ValueCoding::value_view(value));
      }
    };
  }
  static auto keep(std::optional<Record>& found) {
    return [&found](Datum key, Datum value) {
      found.emplace(Record{K(KeyCoding::key_view(key)), V(ValueCoding::value_view(value))});
      return false;
    };
  }
  template <typename Use>
  void visit_back(std::optional<Datum> from, Use& use) const {
    index_->scan_back(from, ~uint64_t{0}, typed_visit(use));
  }
  static Datum lowest() {
    if constexpr (KeyCoding::kKind == Kind::kU64) {
      return 0;
    } else {
      return std::string_view();
    }
  }

  std::unique_ptr<AnyIndex> index_;
};

// The structures by name. Plush has a class of its own for words and strings (perdure/plush.h).
template <typename K, typename V>
using TypedPlush = TypedIndex<K, V, structures::Plush>;
template <typename K, typename V>
using PlushRange = TypedIndex<K, V, structures::PlushRange>;
template <typename K, typename V>
using Cceh = TypedIndex<K, V, structures::Cceh>;
template <typename K, typename V>
using PClht = TypedIndex<K, V, structures::PClht>;
template <typename K, typename V>
using Level = TypedIndex<K, V, structures::Level>;
template <typename K, typename V>
using FpTree = TypedIndex<K, V, structures::FpTree>;
template <typename K, typename V>
using WbTree = TypedIndex<K, V, structures::WbTree>;
template <typename K, typename V>
using FastFair = TypedIndex<K, V, structures::FastFair>;
template <typename K, typename V>
using NvTree = TypedIndex<K, V, structures::NvTree>;
template <typename K, typename V>
using BzTree = TypedIndex<K, V, structures::BzTree>;
template <typename K, typename V>
using Sheaf = TypedIndex<K, V, structures::Sheaf>;
template <typename K, typename V>
using PArt = TypedIndex<K, V, structures::PArt>;
template <typename K, typename V>
using PMasstree = TypedIndex<K, V, structures::PMasstree>;
template <typename K, typename V>
using PHot = TypedIndex<K, V, structures::PHot>;
template <typename K, typename V>
using PBwTree = TypedIndex<K, V, structures::PBwTree>;
template <typename K, typename V>
using Wort = TypedIndex<K, V, structures::Wort>;
template <typename K, typename V>
using Woart = TypedIndex<K, V, structures::Woart>;
template <typename K, typename V>
using ArtCow = TypedIndex<K, V, structures::ArtCow>;

}  // namespace perdure
