// Sheaf: sorted leaves in PM, a log for what is new, and a buffer in DRAM for each leaf between
// them.
//
// The idea. What one operation must make durable is one record of a log: one line at the end of the
// line before, the cheapest persist that there is. In DRAM the record is in the buffer of its leaf
// from then on. A buffer that is full is merged with its leaf into a new leaf, written past the
// caches as whole blocks, so that what a record costs beside its log record is a fraction of the
// leaf. The inner part over the leaves is in DRAM, small enough for the caches. Leaves are sorted
// and dense: a scan reads them in a stream, and a lookup finds the line of a key by a table of 64
// parts of the leaf's range, kept in DRAM beside the buffer: one line of DRAM and one or two of PM,
// at once.
//
// The persist points, and what a crash leaves
//   write          log record, fence (log.h). It counts from then on: recovery puts it into its buffer.
//   merge          new leaf and the heap's intents, fence; the slot of the directory leads to the new leaf,
//                  and the heap's bitmap, fence; the intents' end, fence. The leaf's `merged` says
//                  which log records it has: before the slot changes the old leaf and the log count,
//                  afterwards the new one, and the log records are skipped.
//   split, merge of neighbours
//                  the same with several slots, by the redo records of the heap's transaction.
//   log chunk      is used again once no buffer has a record of it (log.h).
//
// Numbers. Each log record bears a number, rising within the range of each leaf. A leaf that splits
// leaves its last number to both, neighbours that merge go on from the greater one. So of two
// records of one key the later one has the greater number, and one number says what a leaf has of
// its range.
//
// Recovery: reads the headers of the leaves, builds the inner part from them, and puts the log's
// records that are newer than their leaves into the buffers. Bounded by the number of leaves (one
// header for some hundred records) and by the log, which is a sixth of the leaves' bytes at most.
//
// Concurrency. A writer has its leaf's lock until its record is durable and in the buffer. Readers
// take none: they validate the leaf's version. Leaves are never changed, and freed when their
// readers have gone. Who merges for the sake of the log holds no leaf, then one at a time.
//
// Sources: the buffer over sorted leaves is of DPTree (VLDB 2019) and NBTree's and LSM trees' kin;
// the log with one persist a record is Mnemosyne's (ASPLOS 2011) and FlatStore's (ASPLOS 2020);
// whole blocks of 256 bytes are LB+-Tree's advice (VLDB 2020). docs/structures/sheaf.md says what
// is new here.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/instantiate.h"
#include "index/records.h"
#include "index/retired.h"
#include "index/sheaf/inner.h"
#include "index/sheaf/log.h"
#include "index/sheaf/promises.h"
#include "index/tree/content.h"
#include "pm/epoch.h"
#include "pm/pool_impl.h"

namespace perdure::index::sheaf {

// Vectors whose resize() does not clear what is about to be written.
template <typename T>
struct Uncleared : std::allocator<T> {
  template <typename U, typename... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    if constexpr (sizeof...(arguments) == 0) {
      ::new (static_cast<void*>(at)) U;
    } else {
      ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
    }
  }
};
// Records of a leaf that is to be made, in the order of their keys.
template <typename Content>
using ItemsOf = std::vector<typename Form<Content>::Item, Uncleared<typename Form<Content>::Item>>;

// 0: the default.
struct Options {
  uint64_t leaf_bytes = 0;
  uint32_t buffer_records = 0;
  uint64_t log_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t recovery_threads = 0;
};

template <typename Content>
class Core {
 public:
  using Key = typename Content::Key;
  using Value = typename Content::Value;
  using Condition = index::Condition<Value>;
  // Chunks of the log, of which there are so many, come back when those have gone who may look at
  // byte strings in them.
  static constexpr bool kGuardsHoldUpWriters = true;

  static std::unique_ptr<Core> create(pm::PoolImpl& pool, const std::string& name, Kind key,
                                      Kind value, const Options& options);
  static std::unique_ptr<Core> open(pm::PoolImpl& pool, const std::string& name, Kind key,
                                    Kind value, const Options& options);

  bool write(const Condition& condition, const Key& key, Value value);
  bool remove(const Key& key, const Condition& condition = Verb::kUpdate);
  // Calls `use` with the value.
  template <typename Use>
  bool lookup(const Key& key, Use use) const;
  template <typename Visit>
  void scan(const Key& from, uint64_t limit, Visit visit) const;
  // The same in descending order; null: from the last key on.
  template <typename Visit>
  void scan_back(const Key* from, uint64_t limit, Visit visit) const;
  // As AnyIndex: any number of keys; `inserted` may be empty.
  uint64_t multi_lookup(std::span<const Key> keys, std::span<Value> values,
                        std::span<bool> found) const
    requires(!Content::kOutOfPlace);
  uint64_t multi_write(Verb verb, std::span<const std::pair<Key, Value>> records,
                       std::span<bool> inserted)
    requires(!Content::kOutOfPlace);

  uint64_t check(const std::function<void(const std::string&)>& report) const;
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;
  std::vector<Statistic> statistics() const;

 private:
  using Form = sheaf::Form<Content>;
  using Sought = typename Form::Key;  // a key, and what is calculated of it once
  using Low = typename Form::Low;
  using Stored = typename Form::Stored;  // a value in a leaf, a buffer or the log
  using Item = typename Form::Item;
  using Items = ItemsOf<Content>;
  using Child = ChildOf<Content>;
  using LogRecord = LogRecordOf<Content>;
  static constexpr bool kBytes = Content::kOutOfPlace;
  using Lock = std::unique_lock<StripeLock>;
  // kNoLog, kScarce: not yet, first room must be made in the log, or what others were promised be
  // done.
  enum class Outcome : uint8_t { kFalse, kTrue, kNoLog, kScarce };
  enum class Room : uint8_t { kYes, kAfterMerge, kScarce };
  // Whether a merge may use the heap's reserve. That is for what makes room: were it used for
  // inserts, too, removals would find it gone.
  enum class Reserve : uint8_t { kSpared, kUsed };
  // What a buffer or a leaf says of a key.
  enum class Found : uint8_t { kNothing, kRecord, kRemoval };

  Core(pm::PoolImpl& pool, Root& root, std::string name);

  const Leaf& leaf_of(const Ref& ref) const {
    return *pool_.at<Leaf>(pm::load_relaxed(ref.offset));
  }
  [[noreturn]] void throw_damaged(const char* what) const;

  // ---- search.cc, and of byte strings bytes.cc
  // The buffer record of a key, or -1; kChanged, of byte strings, if a reader must begin again:
  // `stamp`, which a holder of the lock does not have, is no longer valid.
  static constexpr int kChanged = -2;
  int find_buffered(const Ref& ref, uint32_t buffered, const Sought& key,
                    const uint32_t* stamp = nullptr) const;
  Stored buffered_value(const Ref& ref, int buffered) const;
  // What the leaf's slots hold of a key.
  static uint64_t head_of(const Ref& ref, const Sought& key);
  // Whether the leaf at `offset`, of `records` records and `bytes`, has the key. [begin, end) are
  // lines to look at.
  bool find_in_leaf(uint64_t offset, uint32_t bytes, uint32_t records, uint32_t begin, uint32_t end,
                    uint64_t head, const Sought& key, Stored& value) const;
  static uint32_t part_of(uint64_t first, uint64_t scale, uint64_t head) {
    if (head <= first) return 0;
    const auto part = static_cast<uint64_t>(static_cast<Wide>(head - first) * scale >> 64);
    return static_cast<uint32_t>(part < kLookupLines ? part : kLookupLines - 1);
  }
  static uint64_t scale_of(uint64_t first, uint64_t last);
  // By the holder of the lock.
  Found find(const Ref& ref, const Sought& key, bool may_be_new, int& buffered,
             Stored& value) const;
  // By a reader: false if it must begin again.
  bool read(const Ref& ref, const Sought& key, Found& found, Stored& value) const;
  // The records from `from` on that a leaf and its buffer have, at one instant, at most `limit`.
  // False if it must begin again. Asks memory for what a scan that goes on needs of the leaf that
  // follows, if that is known.
  bool snapshot(const Ref& ref, const Ref* following, uint64_t from, uint64_t limit,
                std::vector<Slot>& out) const
    requires(!Content::kOutOfPlace);
  // The same of the records up to `from`, in descending order.
  bool snapshot_back(const Ref& ref, uint64_t from, uint64_t limit, std::vector<Slot>& out) const
    requires(!Content::kOutOfPlace);
  // What a reader must know of a leaf and its buffer.
  struct View {
    uint32_t stamp;
    uint32_t buffered;
    const Slot* leaf;
    uint32_t records;
    uint64_t removed;
    uint32_t begin_line;  // where the key's record would be
    uint32_t end_line;
  };
  // False if it must begin again.
  bool view(const Ref& ref, uint64_t key, View& out) const
    requires(!Content::kOutOfPlace);

  // ---- bytes.cc
  // The value of a record of the key with this word, as long as the caller has a guard. Throws
  // kCorrupt.
  Value value_of(const Stored& stored, [[maybe_unused]] uint64_t word) const {
    if constexpr (kBytes) {
      return stored.external ? records_.value(block_of(stored, word)) : stored.bytes;
    } else {
      return stored;
    }
  }
  // The block of a value, which says whose it is. A damaged log may have lost what superseded the
  // record, and the block be another key's since.
  uint64_t block_of(const Stored& stored, uint64_t hash) const
    requires(Content::kOutOfPlace)
  {
    const uint64_t block = stored.block();
    if (records_.key(block) != as_bytes(hash)) [[unlikely]]
      throw_damaged("what leads to a value");
    return block;
  }
  static std::string_view as_bytes(const uint64_t& hash) {
    return {reinterpret_cast<const char*>(&hash), sizeof hash};
  }
  // Records that a scan has copied, in the order of its visits.
  struct Copies {
    struct Piece {
      uint64_t key_bytes;
      uint64_t value_bytes;
    };
    std::string text;
    std::vector<Piece> pieces;
    bool cut;  // there may be more in the leaf
  };
  // The records of a leaf and its buffer, at one instant, whose keys are from `from` on; or, if
  // `back`, up to it, or before it, or all (null), in descending order. At most `limit`. False if
  // it must begin again.
  struct Bound {
    const std::string* from;
    bool back;
    bool before;
  };
  bool copy(const Ref& ref, const Bound& bound, uint64_t limit, Copies& out) const
    requires(Content::kOutOfPlace);
  // Record `i` of a leaf with a slot like this. Throws kCorrupt if it is not inside the leaf.
  Item item_at(const char* leaf, uint32_t bytes, const Slot& slot) const
    requires(Content::kOutOfPlace);
  const LogEntry& entry_at(uint64_t word) const
    requires(Content::kOutOfPlace);
  void require_intact(uint64_t hash, const Stored& value, uint64_t word) const
    requires(Content::kOutOfPlace);
  // The first of the leaf's records that does not come before the key.
  uint32_t lower_bound(const char* leaf, uint32_t bytes, uint32_t records,
                       std::string_view key) const
    requires(Content::kOutOfPlace);

  // ---- write.cc
  struct Change {
    Sought key;
    Value value;
    Condition condition = Verb::kUpsert;
    bool removal;
    bool external = false;  // the value gets a block of its own

    // Units of its record in a leaf.
    uint64_t units() const {
      if constexpr (kBytes) {
        return Form::units_of(key.bytes.size(), external ? sizeof(uint64_t) : value.size());
      } else {
        return 1;
      }
    }
  };
  // Units of a leaf in use.
  static uint64_t used(const Ref& ref) {
    if constexpr (kBytes) {
      return ref.used;
    } else {
      return ref.records;
    }
  }
  Low low_of(const Ref& ref) const {
    if constexpr (kBytes) {
      return leaf_of(ref).low_text();
    } else {
      return ref.low;
    }
  }
  uint64_t units_left(const Ref& ref) const {
    const uint64_t all = used(ref) + ref.inserted;
    return all < ref.room ? ref.room - all : 0;
  }
  // Units of the records that a buffer may hold.
  uint64_t buffer_units() const {
    return kBytes ? std::max<uint64_t>(root_.leaf_bytes, 2048) / Form::kUnitBytes : buffer_records_;
  }
  uint64_t buffered_units(const Ref& ref, int buffered) const;
  bool carry_out(const Change& change);
  Outcome try_change(const Change& change);
  Ref* lock_leaf(const Change& change, Lock& lock) const;
  Room room_for(const Ref& ref, const Change& change, int buffered) const;
  uint32_t merge_bytes(const Ref& ref) const;
  void promise(Ref& ref);
  void put(Ref& ref, int buffered, const Change& change, const LogRecord& record);
  void enlist(Ref& ref);
  void prefetch_ref(const Ref& ref) const;
  void prefetch_leaf(const Ref& ref, uint64_t era) const;
  static Reserve reserve_for(const Change& change) {
    return change.removal ? Reserve::kUsed : Reserve::kSpared;
  }
  // Counts in `waits` how often it has waited for readers. Throws kPoolFull when that was often.
  void make_log_room(Reserve reserve, uint32_t& waits);
  void keep_log_room();
  bool merge_some(size_t most, bool together, Reserve reserve);
  bool take_due(std::vector<Ref*>& group, uint64_t& era, size_t most);
  void merge_due(std::vector<Ref*>& group, uint64_t era, Reserve reserve);
  template <typename Choose>
  std::exception_ptr merge_all(Reserve reserve, Choose choose);
  void keep_promises();
  void reclaim();
  // Who gets a lock after a failing medium has interrupted its holder does not go on.
  void require_writable() const {
    if (pool_.failed()) [[unlikely]]
      pool_.require_writable();
  }

  // ---- batch.cc
  void find_all(std::span<const Key> keys, std::span<Ref*> refs) const
    requires(!Content::kOutOfPlace);
  void find_all_to_change(std::span<const Key> keys, std::span<Ref*> refs) const
    requires(!Content::kOutOfPlace);
  void prefetch_record(const Ref& ref, uint64_t key) const
    requires(!Content::kOutOfPlace);
  void change_together(std::span<const Change> changes, uint64_t& todo, std::span<bool> done)
    requires(!Content::kOutOfPlace);

  // ---- merge.cc
  static constexpr size_t kMergeTogether = 8;
  struct Part {
    uint64_t begin;
    uint64_t end;
  };
  void merge(Ref& ref, Lock& lock, uint64_t more, Reserve reserve);
  bool merge_with_neighbour(Ref& ref, Lock& lock, const Items& own, uint64_t more);
  // A record of a buffer.
  struct Fresh {
    Item item;
    bool removal;
  };
  uint32_t sort_buffer(const Ref& ref, Fresh* to) const;
  void collect(const Ref& ref, Items& out) const;
  Ref* lock_neighbour(const Ref& ref, uint64_t records, Lock& lock) const;
  std::vector<Part> parts_of(const Ref& ref, const Items& records, uint64_t more) const;
  static uint64_t units_of(Low low, std::span<const Item> records);
  // The least of what separates two records: no longer than it must be.
  static Low low_between(const Item& before, const Item& first);
  static void fill_lines(Leaf& header, const Slot* records);
  static void write_leaf(pm::PoolImpl& pool, uint64_t offset, uint64_t bytes, Low low,
                         uint64_t number, std::span<const Item> records, Leaf& header);
  struct Successor;
  bool make_successor(pm::Heap::Txn& txn, Ref& ref, uint64_t era, Successor& made);
  void replace_together(std::vector<Ref*>& group, uint64_t era);
  void replace_one(Ref& ref, std::span<const Item> records, uint64_t bytes, Reserve reserve);
  struct Several;
  void replace_several(Ref& ref, Lock& lock, Ref* neighbour, std::span<const Item> records,
                       std::span<const Part> parts, uint64_t more, Reserve reserve);
  void make_several(Several& made, Ref& ref, Ref* neighbour, std::span<const Item> records,
                    std::span<const Part> parts, uint64_t more, Reserve reserve);
  static void adopt(Ref& ref, uint64_t offset, const Leaf& header);
  void account(int64_t leaf_bytes);
  static void renew_filter(Ref& ref, std::span<const Item> records);
  void forget_buffer(Ref& ref);
  uint64_t* take_slot();
  void add_directory();
  void retire(uint64_t leaf, uint64_t bytes, Ref* ref) noexcept;
  void retire_all();

  // ---- recover.cc
  struct Met {
    Low low;
    uint64_t offset;
    uint64_t* slot;
  };
  void recover(uint32_t threads);
  std::vector<Met> read_directory();
  bool is_leaf(uint64_t offset) const;
  void replay(std::span<const Child> children, uint32_t threads);
  // What Log::replay() gives.
  using Replayed = std::conditional_t<kBytes, LogEntry, LogRecord>;
  bool replay_one(const Replayed& record, const Sought& key, uint64_t era, Ref& ref,
                  std::vector<uint64_t>& numbers);

  // ---- inspect.cc
  void check_leaf(const Child& child, const Child* next,
                  const std::function<void(const std::string&)>& fail) const;
  void check_records(const Ref& ref, const Child& child, const Child* next,
                     const std::function<void(const std::string&)>& fail) const;

  pm::PoolImpl::Use use_;  // the last member to go: the mapping may go with it
  pm::PoolImpl& pool_;
  Root& root_;
  const pm::Memory& memory_;
  std::string name_;
  const uint32_t buffer_records_;
  Promises promises_;
  RefSpace refs_;  // outlives the epochs, whose actions give refs back
  // As well: they give back chunks. Away from what merges write.
  alignas(pm::kLineBytes) Log<Content> log_;
  mutable pm::EpochManager epochs_;
  index::Records records_;  // values with blocks of their own
  // Blocks of leaves, and refs that went with them.
  Retired<std::pair<uint64_t, Ref*>> retired_;
  // What every operation reads, away from what merges write.
  alignas(pm::kLineBytes) Inner<Content> inner_;
  // Whether there may be values with blocks of their own: an upsert must then know what it
  // supersedes.
  std::atomic<bool> has_external_{false};

  std::mutex slots_mutex_;             // of the directory
  std::vector<uint64_t*> free_slots_;  // has room for all slots
  uint64_t slots_ = 0;
  uint64_t last_directory_ = 0;

  std::mutex lists_mutex_;
  std::deque<std::vector<Ref*>> lists_;  // refs by the era in which their buffers began
  uint64_t lists_begin_ = 0;             // the era of the first list
  std::mutex due_mutex_;                 // of what follows
  std::vector<Ref*> due_;                // what is to be merged for the log's oldest chunk
  uint64_t in_hand_ = 0;                 // beside these, what threads are merging for it

  std::atomic<uint64_t> leaf_bytes_{0};
  std::atomic<uint64_t> removals_{0};  // that are in buffers, or were lately
  std::atomic<uint64_t> merges_{0};
  std::atomic<uint64_t> splits_{0};
  uint64_t recovered_operations_ = 0;
};

template <typename Content>
template <typename Use>
bool Core<Content>::lookup(const Key& key, Use use) const {
  const Sought sought = Form::key_of(key);
  const pm::EpochManager::Guard guard(epochs_);
  for (Backoff backoff;; backoff.pause()) {
    Found found = Found::kNothing;
    Stored value{};
    if (!read(*inner_.find(Form::low_of(sought)), sought, found, value)) continue;
    if (found != Found::kRecord) return false;
    use(value_of(value, Form::word_of(sought)));
    return true;
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan(const Key& from, uint64_t limit, Visit visit) const {
  if constexpr (kBytes) {
    Copies copies;
    std::string begin(from.bytes);
    for (std::string next;; begin.swap(next)) {
      bool has_next = false;
      {
        const pm::EpochManager::Guard guard(epochs_);
        for (Backoff backoff;; backoff.pause()) {
          Low low;
          const Ref& ref = *inner_.find(begin, has_next, low);
          if (!copy(ref, {&begin, false, false}, limit, copies)) continue;
          if (has_next) next.assign(low);
          break;
        }
      }
      const char* at = copies.text.data();
      for (const auto& [key_bytes, value_bytes] : copies.pieces) {
        if (!visit(std::string_view(at, key_bytes),
                   std::string_view(at + key_bytes, value_bytes)) ||
            --limit == 0) {
          return;
        }
        if (copies.cut)
          next.assign(at, key_bytes).push_back('\0');  // the next one that there can be
        at += key_bytes + value_bytes;
      }
      if (!has_next && !copies.cut) return;
    }
  } else {
    std::vector<Slot> records;
    for (Key begin = from;;) {
      bool has_next = false;
      uint64_t next = 0;
      {
        const pm::EpochManager::Guard guard(epochs_);
        for (Backoff backoff;; backoff.pause()) {
          const Ref* following = nullptr;
          const Ref& ref = *inner_.find(begin, has_next, next, &following);
          if (snapshot(ref, following, begin, limit, records)) break;
        }
      }
      for (const Slot& record : records) {
        if (!visit(record.key, record.value) || --limit == 0) return;
      }
      if (!has_next) return;
      begin = next;
    }
  }
}

template <typename Content>
template <typename Visit>
void Core<Content>::scan_back(const Key* from, uint64_t limit, Visit visit) const {
  if constexpr (kBytes) {
    Copies copies;
    std::string begin;
    if (from != nullptr) begin.assign(from->bytes);
    const std::string* under = from != nullptr ? &begin : nullptr;
    for (bool before = false;; before = true, under = &begin) {
      std::string next;
      {
        const pm::EpochManager::Guard guard(epochs_);
        for (Backoff backoff;; backoff.pause()) {
          Low low;
          const Low key = begin;
          const Ref& ref = under != nullptr && !before
                               ? *inner_.find_from(key, low)
                               : *inner_.find_under(under != nullptr ? &key : nullptr, low);
          if (!copy(ref, {under, true, before}, limit, copies)) continue;
          next.assign(low);
          break;
        }
      }
      const char* at = copies.text.data();
      for (const auto& [key_bytes, value_bytes] : copies.pieces) {
        if (!visit(std::string_view(at, key_bytes),
                   std::string_view(at + key_bytes, value_bytes)) ||
            --limit == 0) {
          return;
        }
        if (copies.cut) next.assign(at, key_bytes);
        at += key_bytes + value_bytes;
      }
      if (next.empty()) return;
      begin.swap(next);
    }
  } else {
    std::vector<Slot> records;
    for (Key begin = from != nullptr ? *from : ~Key{0};;) {
      uint64_t low = 0;
      {
        const pm::EpochManager::Guard guard(epochs_);
        for (Backoff backoff;; backoff.pause()) {
          if (snapshot_back(*inner_.find_from(begin, low), begin, limit, records)) break;
        }
      }
      for (const Slot& record : records) {
        if (!visit(record.key, record.value) || --limit == 0) return;
      }
      if (low == 0 || low > begin) return;  // the first leaf has the least key there is
      begin = low - 1;
    }
  }
}

// What bytes.cc does otherwise than search.cc and merge.cc.
#define PERDURE_SHEAF_DIFFERS(Content_)                                                          \
  template <>                                                                                    \
  int Core<Content_>::find_buffered(const Ref&, uint32_t, const Sought&, const uint32_t*) const; \
  template <>                                                                                    \
  Core<Content_>::Stored Core<Content_>::buffered_value(const Ref&, int) const;                  \
  template <>                                                                                    \
  uint64_t Core<Content_>::head_of(const Ref&, const Sought&);                                   \
  template <>                                                                                    \
  bool Core<Content_>::find_in_leaf(uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t,  \
                                    const Sought&, Stored&) const;                               \
  template <>                                                                                    \
  uint64_t Core<Content_>::buffered_units(const Ref&, int) const;                                \
  template <>                                                                                    \
  uint32_t Core<Content_>::sort_buffer(const Ref&, Fresh*) const;                                \
  template <>                                                                                    \
  void Core<Content_>::collect(const Ref&, Items&) const;                                        \
  template <>                                                                                    \
  std::vector<Core<Content_>::Part> Core<Content_>::parts_of(const Ref&, const Items&, uint64_t) \
      const;                                                                                     \
  template <>                                                                                    \
  uint64_t Core<Content_>::units_of(Low, std::span<const Item>);                                 \
  template <>                                                                                    \
  Core<Content_>::Low Core<Content_>::low_between(const Item&, const Item&);                     \
  template <>                                                                                    \
  void Core<Content_>::write_leaf(pm::PoolImpl&, uint64_t, uint64_t, Low, uint64_t,              \
                                  std::span<const Item>, Leaf&);                                 \
  template <>                                                                                    \
  void Core<Content_>::check_records(const Ref&, const Child&, const Child*,                     \
                                     const std::function<void(const std::string&)>&) const;
PERDURE_SHEAF_DIFFERS(tree::Words)
PERDURE_SHEAF_DIFFERS(tree::Bytes)
#undef PERDURE_SHEAF_DIFFERS

// The argument is `extern` or nothing: no expression.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define PERDURE_SHEAF_INSTANTIATE(prefix)  \
  prefix template class Core<tree::Words>; \
  prefix template class Core<tree::Bytes>;
// NOLINTEND(bugprone-macro-parentheses)

PERDURE_SHEAF_INSTANTIATE(extern)

}  // namespace perdure::index::sheaf
