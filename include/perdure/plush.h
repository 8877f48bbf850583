// Plush: a write-optimised, log-structured, persistent hash table.
//
//   auto words = perdure::Plush<std::string, std::string>::create(pool, "words");
//   words.upsert("perdure", "to last");
//   std::string gloss;
//   if (words.lookup("perdure", gloss)) ...
//
// Small records gather in DRAM and move to PM in 256-byte buckets, level by level; a sequential
// recovery log makes each single operation durable with one persist. Byte-string records live in a
// payload log and are moved only by its garbage collection. See docs/structures/plush.md for the
// layout, the persist points and why a crash between any two of them is harmless.
//
// Source: Vogel et al., "Plush: A Write-Optimized Persistent Log-Structured Hash-Table",
// PVLDB 15(11), 2022.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

class PoolTransaction;

namespace index {
template <typename T>
class Adapter;
class Participant;
namespace plush {
class Core;
}
}  // namespace index

// What decides where in the table a key goes, and so whether there are ordered scans.
enum class PlushOrder : uint8_t { kHash, kRange };

// 0 and nothing mean: the default, which suits all capacities.
struct PlushOptions {
  // Rows of the DRAM level, and entries of the first PM level, to begin with: 2^n, n in 1..24. DRAM
  // use is 288 bytes for each row. Fixed at creation.
  uint32_t directory_bits = 0;
  // The most that there may be of them: each partition has `fanout` times as many whenever its
  // records need it. If directory_bits is given and this is not, the table does not grow. Fixed at
  // creation.
  uint32_t directory_bits_max = 0;
  // How many entries of the next level one entry spreads over: 2, 4, 8 or 16. Fixed at creation.
  uint32_t fanout = 0;
  // Partitions: independent writers' locks and recovery logs, a power of two, at most 1024 and at
  // most the directory entries. Fixed at creation.
  uint32_t partitions = 0;
  // Recovery-log bytes per byte that all rows together can log, in percent, 300..10000. Fixed at
  // creation.
  uint32_t log_percent = 0;
  // PM levels whose directories have copies with fingerprints in DRAM, made as entries are first
  // needed: 0 to 3. DRAM use is 1152 bytes for each entry that is there, about 4 bytes for each
  // record. May differ each time the table is opened.
  uint32_t filter_levels = 2;
  // Superseded records of an entry of the last level, in percent of those that count, from which on
  // it is rewritten without them: 10 to 10000. Less saves space where records are overwritten, more
  // saves writes. May differ each time the table is opened.
  uint32_t garbage_percent = 50;
  // Threads that recover in parallel when opening; 0: one per processor, 8 at most.
  uint32_t recovery_threads = 0;
  // PM levels whose buckets are allocated at creation and kept, 0 to 2: appending to them needs no
  // transaction of the heap. Level 1 takes 3 KiB for each row, level 2 another 3.25 KiB * fanout.
  // Fixed at creation, which throws kPoolFull if that is more than there is.
  std::optional<uint32_t> preallocated_levels = {};  // 0
  // kRange, for u64 keys: the table is in the order of the keys, which must be in key_min..key_max,
  // and has ordered scans. Levels fill evenly if the keys are spread evenly over that range; where
  // far too many lie close together, inserts fail with kPoolFull. Give the order when opening, too.
  PlushOrder order = PlushOrder::kHash;
  std::optional<uint64_t> key_min = {};  // 0
  std::optional<uint64_t> key_max = {};  // the largest word
};

// What Plush itself keeps; of other types TypedPlush (perdure/typed.h) makes these.
template <typename T>
inline constexpr bool kIsWordOrString =
    std::is_same_v<T, uint64_t> || std::is_same_v<T, std::string>;

// K and V are uint64_t or std::string. Movable. Thread-safe: writers of different partitions run in
// parallel, lookups take no lock. The pool must outlive the object.
template <typename K, typename V>
class Plush {
  static_assert(
      kIsWordOrString<K> && kIsWordOrString<V>,
      "keys and values of Plush are uint64_t or std::string; perdure::TypedPlush<K, V> has "
      "integers of all sizes, enumerations and trivially copyable structs, too");

 public:
  using key_type = K;
  using value_type = V;

  // Makes an empty table under `name`. Errors: kNameExists, kInvalidArgument, kPoolFull, kNoSpace.
  static Plush create(Pool& pool, const std::string& name, const PlushOptions& options = {});
  // Opens a table and replays its log. Errors: kNoSuchName, kWrongType, kCorrupt.
  static Plush open(Pool& pool, const std::string& name, const PlushOptions& options = {});

  Plush(Plush&&) noexcept;
  Plush& operator=(Plush&&) noexcept;
  // Closes cleanly: compacts the recovery log so that the next open replays little.
  ~Plush();

  // Each is atomic, and durable on return if it is logged. Cost: one or two lines of log (and those
  // of the payload) under one fence; every 16th record of a row moves 16 of them (5 lines and 2
  // fences; more when a bucket must be allocated or the entry below is full). Throws kPoolFull or
  // kNoSpace, having changed nothing; kTooLarge for a key or value over 64 MiB; kReadOnly. With
  // Logging::kOff: neither flush nor fence but for every 16th record of a row. Such writes may be
  // mixed with logged ones, by any threads; what insert and update find present may be unlogged.
  bool insert(Argument<K> key, Argument<V> value, Logging logging = Logging::kOn);
  bool update(Argument<K> key, Argument<V> value, Logging logging = Logging::kOn);
  void upsert(Argument<K> key, Argument<V> value, Logging logging = Logging::kOn);
  // Durable on return: one flush and one fence. Needs no free space.
  bool remove(Argument<K> key);
  // Writes or removes a key with the value `expected` only, under the lock of its partition; as in
  // AnyIndex.
  // Cost: a lookup more.
  bool compare_exchange(Argument<K> key, Argument<V> expected, Argument<V> desired);
  bool compare_remove(Argument<K> key, Argument<V> expected);
  // Lock-free; writes nothing to PM. One filter line per level, then one bucket.
  bool lookup(Argument<K> key, V& out) const;
  // As AnyIndex::visit(): calls `use` with the bytes where they lie.
  bool visit(Argument<K> key, const std::function<void(std::string_view value)>& use) const
    requires std::is_same_v<V, std::string>;
  // Calls `use(value)` once if the key is there, and returns whether it is: with a std::string_view
  // of the bytes where they lie, as visit(), or a word.
  template <typename Use>
    requires std::is_invocable_v<Use&, Argument<V>>
  bool lookup(Argument<K> key, Use use) const {
    if constexpr (std::is_same_v<V, std::string>) {
      return visit(key, [&](std::string_view value) { use(value); });
    } else {
      V word{};
      const bool found = lookup(key, word);
      if (found) use(word);
      return found;
    }
  }
  // The value, if the key is there; whether it is.
  std::optional<V> get(Argument<K> key) const {
    std::optional<V> found;
    lookup(key, [&](Argument<V> value) { found.emplace(value); });
    return found;
  }
  bool contains(Argument<K> key) const {
    return lookup(key, [](Argument<V>) {});
  }
  // Counts the records. Cost: reads all of them, as for_each() does.
  uint64_t size() const {
    uint64_t count = 0;
    for_each([&](Argument<K>, Argument<V>) { ++count; });
    return count;
  }

  // Batches of any size, in groups of 16: the cache misses of a group overlap, and its records
  // share fences. Each record is atomic, the batch is not; as in AnyIndex. Thread-safe: a group
  // holds the locks of all its partitions.
  //
  // Lock-free like lookup(), which it is for each key on its own. `values` and `found` are at least
  // as long as `keys`. Returns how many are there.
  uint64_t multi_lookup(std::span<const Argument<K>> keys, std::span<V> values,
                        std::span<bool> found) const;
  // Durable on return. Cost of a group: a line or two of log for each record under one fence (byte
  // strings: mostly two), and for the rows that it completes, on average one, what insert() tells,
  // most of it under one more fence for all of them. Returns how many were inserted. If it throws,
  // `inserted` tells which records are there and durable. kTooLarge: nothing was done.
  uint64_t multi_insert(std::span<const RecordOf<K, V>> records, std::span<bool> inserted);
  // Likewise. If it throws anything but kTooLarge, any of the records may have been written.
  void multi_upsert(std::span<const RecordOf<K, V>> records);
  // Tables with PlushOrder::kRange; others throw kWrongType. As AnyIndex::scan(): takes no lock,
  // and reads what intersects the range, entry by entry. kRange also means for keys outside of
  // key_min..key_max: insert and upsert throw kInvalidArgument, and nothing else finds them.
  void scan(Argument<K> from, uint64_t limit,
            const std::function<bool(Argument<K>, Argument<V>)>& visit) const;
  // The same in descending order, as AnyIndex::scan_back().
  void scan_back(std::optional<Argument<K>> from, uint64_t limit,
                 const std::function<bool(Argument<K>, Argument<V>)>& visit) const;

  // Moves everything in DRAM to the first PM level, so that the log holds nothing. Durable on
  // return, for all writes that had returned before the call. Runs beside other operations, on
  // `threads` threads; 0: one per processor, 8 at most. Throws kPoolFull or kNoSpace; what has not
  // moved is as it was.
  void checkpoint(unsigned threads = 1);

  // As in AnyIndex.
  void for_each(const std::function<void(Argument<K>, Argument<V>)>& visit) const;
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  std::vector<Statistic> statistics() const;

 private:
  friend class index::Adapter<Plush>;
  friend class PoolTransaction;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  Plush(std::unique_ptr<index::plush::Core> core, Pool& pool, const std::string& name);
  index::Participant& participant() const { return *participant_; }
  std::unique_ptr<index::plush::Core> core_;
  std::unique_ptr<index::Participant> participant_;  // in transactions; goes before the core
};

extern template class Plush<uint64_t, uint64_t>;
extern template class Plush<uint64_t, std::string>;
extern template class Plush<std::string, uint64_t>;
extern template class Plush<std::string, std::string>;

}  // namespace perdure
