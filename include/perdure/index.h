// What every index can do, as a concept for those who embed one structure (no virtual call), and as
// AnyIndex for tools that take any structure of the catalogue.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "perdure/error.h"
#include "perdure/pool.h"

namespace perdure {

// Keys and values are 64-bit words or byte strings.
enum class Kind : uint8_t { kU64 = 0, kBytes = 1 };

const char* to_string(Kind kind) noexcept;  // "u64" or "bytes". Never null.
Kind parse_kind(std::string_view text);     // Throws Error(kInvalidArgument).

// How a key or value type is passed in: words by value, byte strings as views.
template <typename T>
struct ArgumentOf;
// Words, by value.
template <>
struct ArgumentOf<uint64_t> {
  using type = uint64_t;
  static constexpr Kind kind = Kind::kU64;
};
// Byte strings, as views.
template <>
struct ArgumentOf<std::string> {
  using type = std::string_view;
  static constexpr Kind kind = Kind::kBytes;
};
template <typename T>
using Argument = typename ArgumentOf<T>::type;

// Whether a write is durable when it returns.
//
// kOff is for loading in bulk, in structures that have a log to leave out: the write is visible at
// once, and durable once the structure has moved it to PM, checkpoint() has returned, or the object
// was destroyed in order. A crash before that may lose it, wholly; then the key is what the newest
// durable write to it made it. Writes and removals with kOn are never lost, mixed or not. Of kOff
// writes to different keys a crash may keep any.
enum class Logging : uint8_t { kOn, kOff };

// An index from K to V, each uint64_t or std::string. Every call is atomic, durable when it returns
// (as the pool's durability says), and thread-safe unless the structure's traits say otherwise.
// Every modifying call may throw Error(kPoolFull / kNoSpace), having changed nothing.
template <typename T>
concept Index = requires(T index, const T& reader, Argument<typename T::key_type> key,
                         Argument<typename T::value_type> value, typename T::value_type& out) {
  { index.insert(key, value) } -> std::same_as<bool>;  // false, and no change, if present
  { index.update(key, value) } -> std::same_as<bool>;  // false, and no change, if absent
  { index.upsert(key, value) } -> std::same_as<void>;
  { index.remove(key) } -> std::same_as<bool>;  // false if absent
  // Only if the key has the value `value`: gives it another one, or removes it.
  { index.compare_exchange(key, value, value) } -> std::same_as<bool>;
  { index.compare_remove(key, value) } -> std::same_as<bool>;
  { reader.lookup(key, out) } -> std::same_as<bool>;  // false, and `out` as it was, if absent
};

// A record as batches take it. Not owned: valid for the call it is passed to.
template <typename K, typename V>
struct RecordOf {
  Argument<K> key;
  Argument<V> value;
};

// An index that works on several keys at once, faster than one after the other. Results go where
// the caller says, one for each key; spans of results are at least as long as those of keys. As in
// AnyIndex.
template <typename T>
concept BatchedIndex =
    Index<T> &&
    requires(T index, const T& reader, std::span<const Argument<typename T::key_type>> keys,
             std::span<typename T::value_type> values, std::span<bool> flags,
             std::span<const RecordOf<typename T::key_type, typename T::value_type>> records) {
      { reader.multi_lookup(keys, values, flags) } -> std::same_as<uint64_t>;
      { index.multi_insert(records, flags) } -> std::same_as<uint64_t>;
      { index.multi_upsert(records) } -> std::same_as<void>;
    };

// An index in the order of its keys: words as numbers, byte strings as memcmp has them, a shorter
// one before its extensions.
template <typename T>
concept OrderedIndex =
    Index<T> && requires(const T& reader, Argument<typename T::key_type> from,
                         const std::function<bool(Argument<typename T::key_type>,
                                                  Argument<typename T::value_type>)>& visit) {
      reader.scan(from, uint64_t{1}, visit);  // as AnyIndex::scan()
      // As AnyIndex::scan_back().
      reader.scan_back(std::optional(from), uint64_t{1}, visit);
    };

// A key or value of either kind, not owned: valid for the call it is passed to.
//
// Two words, so that calls pass it in registers. Were it copied through memory, each call would
// wait until that copy has left the store buffer, so for the cache misses of the call before it.
class Datum {
 public:
  // Of any integer type of at most 64 bits, so that Datum(0) is a word; a negative one counts
  // modulo 2^64.
  template <std::integral Word>
    requires(!std::same_as<Word, bool> && !std::same_as<Word, char> && sizeof(Word) <= 8)
  Datum(Word word) : word_(static_cast<uint64_t>(word)), size_(kIsWord) {}     // NOLINT: implicit
  Datum(std::string_view bytes) : data_(bytes.data()), size_(bytes.size()) {}  // NOLINT: implicit
  Datum(const std::string& bytes) : Datum(std::string_view(bytes)) {}          // NOLINT: implicit
  Datum(const char* bytes) : Datum(std::string_view(bytes)) {}                 // NOLINT: implicit
  Datum(std::nullptr_t) = delete;                                              // is neither
  Kind kind() const { return size_ == kIsWord ? Kind::kU64 : Kind::kBytes; }
  // 0 for bytes.
  uint64_t word() const { return size_ == kIsWord ? word_ : 0; }
  // Empty for a word.
  std::string_view bytes() const {
    return size_ == kIsWord ? std::string_view() : std::string_view(data_, size_);
  }
  bool operator==(const Datum& other) const {
    return kind() == other.kind() && word() == other.word() && bytes() == other.bytes();
  }

 private:
  static constexpr size_t kIsWord = ~size_t{0};  // more bytes than there can be

  union {
    uint64_t word_;     // NOLINT(readability-identifier-naming): clang-tidy takes it for public
    const char* data_;  // NOLINT(readability-identifier-naming)
  };
  size_t size_;
};
static_assert(sizeof(Datum) == 16 && std::is_trivially_copyable_v<Datum>);

// A value of either kind, owned. Reuse one object over many lookups: its buffer is kept.
class Value {
 public:
  Value() = default;
  // A copy of what is not owned.
  explicit Value(Datum datum) { *this = datum; }
  Value& operator=(Datum datum) {
    if (datum.kind() == Kind::kU64) {
      set(datum.word());
    } else {
      set_bytes().assign(datum.bytes());
    }
    return *this;
  }
  Kind kind() const { return kind_; }
  uint64_t word() const { return word_; }
  const std::string& bytes() const { return bytes_; }
  void set(uint64_t word) { word_ = word, kind_ = Kind::kU64; }
  std::string& set_bytes() { return kind_ = Kind::kBytes, bytes_; }
  Datum datum() const { return kind_ == Kind::kU64 ? Datum(word_) : Datum(bytes_); }
  operator Datum() const { return datum(); }  // NOLINT: implicit, so that one may be passed on
  bool operator==(const Value& other) const { return datum() == other.datum(); }

 private:
  std::string bytes_;
  uint64_t word_ = 0;
  Kind kind_ = Kind::kU64;
};

// What becomes of a key that modify() looks at.
enum class Change : uint8_t {
  kKeep,   // it stays as it is
  kWrite,  // it gets a value, whether or not it is there
  kRemove
};

// What has become of a write that does not throw when there is no room.
enum class WriteResult : uint8_t {
  kDone = 0,       // it is durable
  kUnchanged = 1,  // the key was there (try_insert) or was not (try_update, try_remove)
  kPoolFull = 2,   // the pool has reached its capacity; nothing was changed
  kNoSpace = 3,    // the medium has no room for the pool to grow; nothing was changed
};
const char* to_string(
    WriteResult result) noexcept;  // "done", "unchanged", "pool-full" or "no-space"

// A place in an ordered index whose kinds are known when it runs, in perdure/typed.h.
template <typename K, typename V>
class TypedCursor;
using AnyCursor = TypedCursor<Value, Value>;

// A record of either kinds, not owned.
struct AnyRecord {
  Datum key;
  Datum value;
};

// A figure that a structure reports, such as {"records_level_1", 123, "records"}.
struct Statistic {
  std::string name;
  double value;
  std::string unit;
};

// Any structure of the catalogue behind one interface. Passing a Datum of the wrong kind throws
// Error(kWrongType). Destroying the object closes the structure cleanly.
class AnyIndex {
 public:
  virtual ~AnyIndex() = default;

  // What keys and values are.
  virtual Kind key_kind() const = 0;
  virtual Kind value_kind() const = 0;

  // As the concept Index says: insert() is false, and nothing has changed, if the key is there;
  // update(), remove() and lookup() are false if it is absent. Writes are durable on return, and
  // may throw kPoolFull and kNoSpace, having changed nothing; kTooLarge; kReadOnly; kIo; kInUse if
  // the Pool is gone. All may throw kCorrupt.
  virtual bool insert(Datum key, Datum value) = 0;
  virtual bool update(Datum key, Datum value) = 0;
  virtual void upsert(Datum key, Datum value) = 0;
  virtual bool remove(Datum key) = 0;
  virtual bool lookup(Datum key, Value& out) const = 0;
  // Calls `use(value)` once if the key is there, and returns whether it is. A byte string is seen
  // where it lies in the pool, without a copy: it is whole, and stays as it is while `use` runs,
  // also if the key gets another value or goes meanwhile; BzTree, Sheaf and the store copy it once.
  // `use` may call the index and others, and write to them. Let it be short, and not wait for other
  // threads: memory that anybody frees in the structure comes back when it is done. What it throws
  // is passed on.
  virtual bool visit(Datum key, const std::function<void(Datum value)>& use) const;

  // Whether the key is there, without a copy of its value; the value, if it is. Cost: a lookup.
  bool contains(Datum key) const;
  std::optional<Value> get(Datum key) const;
  // Counts the records. Cost: reads all of them, as for_each() does; the structures keep no count.
  uint64_t size() const;

  // The same writes, for callers that expect the pool to be full one day: that is a result, and has
  // changed nothing. All other errors are thrown. Cost: that of the write; without room some
  // microseconds more.
  [[nodiscard]] WriteResult try_insert(Datum key, Datum value);
  [[nodiscard]] WriteResult try_update(Datum key, Datum value);
  [[nodiscard]] WriteResult try_upsert(Datum key, Datum value);
  [[nodiscard]] WriteResult try_remove(Datum key);

  // Reading and writing a key in one step, which no other write to it comes between, whoever makes
  // it and by whatever call. A crash leaves the key as it was before, or as it is after.
  //
  // Writes `desired` if the key is there and its value is `expected`, else nothing; returns whether
  // it did. Every structure of the catalogue compares under the lock of the leaf, bucket or
  // partition that it writes under, or by the multi-word CAS that commits. Others throw
  // Error(kWrongType).
  virtual bool compare_exchange(Datum key, Datum expected, Datum desired);
  // Removes the key if its value is `expected`.
  virtual bool compare_remove(Datum key, Datum expected);
  // Gives the key what `change` makes of its value: null if the key is absent. `change` may set
  // `after`, says what is to be done with it, and may use the index. It is called again if another
  // thread has written to the key meanwhile, so it should do nothing else. Returns what was done:
  // kRemove only if the key was there, else kKeep. No thread that is stopped keeps the others from
  // going on. Cost: a lookup, and an update that compares; again for each time that another thread
  // was faster.
  Change modify(Datum key, const std::function<Change(const Value* before, Value& after)>& change);
  // Gives a key that is there the value `change(value)`, a word or bytes, atomically; false, and no
  // change, if it is absent. May be called again, as in modify().
  template <typename Function>
    requires std::is_invocable_r_v<Value, Function&, const Value&> ||
             std::is_convertible_v<std::invoke_result_t<Function&, const Value&>, Datum>
  bool update(Datum key, Function change) {
    const auto apply = [&](const Value* before, Value& after) {
      if (before == nullptr) return Change::kKeep;
      const auto& made = change(*before);
      after = Datum(made);
      return Change::kWrite;
    };
    return modify(key, apply) == Change::kWrite;
  }
  // Adds to a value that is a word, 0 if the key is absent, modulo 2^64; returns the sum.
  // Throws Error(kWrongType) for values that are byte strings. Cost: as modify().
  uint64_t increment(Datum key, int64_t by = 1);

  // Batches: each call does what the single calls would, one after the other, and every structure
  // has them; those that are a BatchedIndex are faster at it than at single calls. Each record is
  // atomic, the batch is not: after a crash, and for other threads meanwhile, any of its records
  // may be there and others not, but later records of one key never without the earlier ones. All
  // are durable on return. Of equal keys the first is inserted, and the last upserted stays. Spans
  // of results are at least as long as those of keys and records (kInvalidArgument); any number is
  // fine, none included.
  //
  // Sets found[i], and values[i] if key i is there; leaves the other values as they were. Returns
  // how many there are. Each key is looked up at a moment of its own.
  virtual uint64_t multi_lookup(std::span<const Datum> keys, std::span<Value> values,
                                std::span<bool> found) const;
  // Sets inserted[i] to whether record i was inserted; returns how many were. If it throws (a pool
  // that becomes full), `inserted` tells which records are there and durable: not necessarily the
  // first ones.
  virtual uint64_t multi_insert(std::span<const AnyRecord> records, std::span<bool> inserted);
  // If it throws, any of the records may have been written.
  virtual void multi_upsert(std::span<const AnyRecord> records);
  // For loading in bulk: upsert() that may be durable only after the next checkpoint(). A crash
  // before that may lose it, wholly, and then the key is what the newest durable write made it.
  // Structures without such a mode make it durable at once.
  virtual void bulk_upsert(Datum key, Datum value) { upsert(key, value); }
  // Every write that had returned before the call is durable on return. On `threads` threads, where
  // the structure can; 0: one per processor, 8 at most.
  virtual void checkpoint([[maybe_unused]] unsigned threads) {}

  // Ordered structures only: calls `visit` for at most `limit` records with keys >= `from`, in
  // ascending order, until `visit` returns false. Records that are written meanwhile may or may not
  // be seen; others are seen exactly once. `visit` may call the index. Others throw
  // Error(kWrongType).
  virtual void scan(Datum from, uint64_t limit,
                    const std::function<bool(Datum key, Datum value)>& visit) const;
  // The same in descending order: records with keys <= `from`, or without one from the last record
  // on. Every structure of the catalogue that is ordered has it, lock-free where scan() is. Cost:
  // in trees with leaves a descent for each leaf, where scan() follows a link; for each record what
  // scan() costs. Peers and indexes of your own that have only scan() throw Error(kWrongType).
  virtual void scan_back(std::optional<Datum> from, uint64_t limit,
                         const std::function<bool(Datum key, Datum value)>& visit) const;

  // Ordered structures only: removes the records with keys >= `first` and, with a `last`, < `last`.
  // Returns how many it has removed. Each removal is atomic, all are durable on return; a crash, or
  // an error, leaves some of them done, the least keys first. A record that is written meanwhile
  // may be removed, or stay: beside a thread that goes on writing greater and greater keys inside
  // the range the call need not end, as without a `last` one that appends does. Cost: a scan, and a
  // removal for each. Throws kWrongType (a bound of another kind than the keys, or no order), what
  // scan() and remove() throw.
  uint64_t remove_range(Datum first, std::optional<Datum> last);
  // Of byte strings: removes the records whose keys begin with `text`.
  uint64_t remove_prefix(std::string_view text);

  // Ordered structures only: cursors, which are ranges, too, and what they see, are told of in
  // perdure/typed.h. All records; those with keys >= `first`; of them, those with keys < `last`: on
  // the first of them. All records, on the first whose key is not less than `key`, or greater.
  // Those whose keys, byte strings, begin with `text`.
  //   for (auto&& [key, value] : index->range(10, 20)) use(key.word(), value.bytes());
  // Throw kWrongType (no order, a key of another kind), and what scan() throws.
  AnyCursor all() const;
  AnyCursor from(Datum first) const;
  AnyCursor range(Datum first, Datum last) const;
  AnyCursor lower_bound(Datum key) const;
  AnyCursor upper_bound(Datum key) const;
  AnyCursor prefix(std::string_view text) const;

  // Calls `visit` once for every record, in no particular order. Records that are written meanwhile
  // may or may not be seen; others are seen exactly once.
  virtual void for_each(const std::function<void(Datum key, Datum value)>& visit) const = 0;

  // Verifies the structure's invariants and that no block leaked or is reached twice. `report` gets
  // one sentence for each violation; returns how many there were. Needs that nobody writes.
  virtual uint64_t check(const std::function<void(const std::string&)>& report) const = 0;

  // Figures for people: levels, fill, log use, DRAM and pool bytes ("dram_bytes", "pool_bytes" and
  // "recovered_operations" are always there).
  virtual std::vector<Statistic> statistics() const = 0;
};

// The same for one structure, without AnyIndex: `change(const V* before, V& after)` returns a
// Change.
template <Index T, typename Modify>
Change modify(T& index, Argument<typename T::key_type> key, Modify change) {
  typename T::value_type before{};
  typename T::value_type after{};
  for (;;) {
    if (index.lookup(key, before)) {
      const Change wanted = change(static_cast<const typename T::value_type*>(&before), after);
      if (wanted == Change::kKeep) return wanted;
      if (wanted == Change::kWrite ? index.compare_exchange(key, before, after)
                                   : index.compare_remove(key, before)) {
        return wanted;
      }
    } else {
      const typename T::value_type* none = nullptr;
      if (change(none, after) != Change::kWrite) return Change::kKeep;
      if (index.insert(key, after)) return Change::kWrite;
    }
  }
}
// AnyIndex::increment() for one structure.
template <Index T>
  requires std::same_as<typename T::value_type, uint64_t>
uint64_t increment(T& index, Argument<typename T::key_type> key, int64_t by = 1) {
  uint64_t sum = 0;
  modify(index, key, [&](const uint64_t* before, uint64_t& after) {
    sum = after = (before != nullptr ? *before : 0) + static_cast<uint64_t>(by);
    return Change::kWrite;
  });
  return sum;
}

// `write` returns whether it changed anything, or nothing; what it throws for want of room is a
// result.
template <typename Write>
[[nodiscard]] WriteResult try_write(Write write) {
  try {
    if constexpr (std::is_void_v<decltype(write())>) {
      write();
      return WriteResult::kDone;
    } else {
      return write() ? WriteResult::kDone : WriteResult::kUnchanged;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPoolFull) return WriteResult::kPoolFull;
    if (error.code() == ErrorCode::kNoSpace) return WriteResult::kNoSpace;
    throw;
  }
}
// AnyIndex::try_insert() and its kin for one structure.
template <Index T>
[[nodiscard]] WriteResult try_insert(T& index, Argument<typename T::key_type> key,
                                     Argument<typename T::value_type> value) {
  return try_write([&] { return index.insert(key, value); });
}
// As try_insert().
template <Index T>
[[nodiscard]] WriteResult try_update(T& index, Argument<typename T::key_type> key,
                                     Argument<typename T::value_type> value) {
  return try_write([&] { return index.update(key, value); });
}
// As try_insert().
template <Index T>
[[nodiscard]] WriteResult try_upsert(T& index, Argument<typename T::key_type> key,
                                     Argument<typename T::value_type> value) {
  return try_write([&] { index.upsert(key, value); });
}
// As try_insert().
template <Index T>
[[nodiscard]] WriteResult try_remove(T& index, Argument<typename T::key_type> key) {
  return try_write([&] { return index.remove(key); });
}

// Structure options as text, such as {"fanout", "8"}; unknown names and bad values throw
// Error(kInvalidArgument).
using OptionMap = std::map<std::string, std::string>;

}  // namespace perdure
