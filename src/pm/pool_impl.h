// An open pool, as the structures see it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "perdure/pool.h"
#include "pm/epoch.h"
#include "pm/heap.h"
#include "pm/layout.h"
#include "pm/mapping.h"
#include "pm/memory.h"
#include "pm/segment_map.h"

namespace perdure::pm {

// What a pool's structures see of it. Throws kInUse if it was closed or moved from.
PoolImpl& impl_of(const Pool& pool);

class LiveService;
class TransactionLog;

class PoolImpl : public std::enable_shared_from_this<PoolImpl> {
 public:
  static std::unique_ptr<PoolImpl> create(Mapping mapping, const PoolOptions& options);
  static std::unique_ptr<PoolImpl> open(Mapping mapping, const PoolOptions& options);
  ~PoolImpl();

  const Memory& memory() const { return memory_; }
  Heap& heap() { return *heap_; }
  const Heap& heap() const { return *heap_; }
  const Mapping& mapping() const { return mapping_; }
  // What transactions over several structures leave for a crash.
  TransactionLog& transactions() const { return *transactions_; }
  // Answers other processes that ask for backups (live.h); null unless the pool was opened to do
  // so.
  LiveService* live() const { return live_.get(); }
  // Who writes to structures just now (write_gate.h).
  EpochManager& writers() { return writers_; }
  const PoolHeader& header() const { return *at<PoolHeader>(0); }
  Lane* lanes() const { return at<Lane>(header().lanes_offset); }
  const SegmentMap& map() const { return map_; }
  SegmentDescriptor& descriptor(uint64_t segment) const {
    return *at<SegmentDescriptor>(map_.descriptor_offset(segment));
  }
  // What the pool may grow to: what it was made with, or was raised to since. Does not change while
  // it is open.
  uint64_t capacity_bytes() const { return capacity_bytes_; }

  char* base() const { return mapping_.base(); }
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.base() + offset);
  }
  uint64_t offset_of(const void* address) const {
    return static_cast<uint64_t>(static_cast<const char*>(address) - mapping_.base());
  }

  // The address of an offset that was read from PM, where `bytes` follow: throws kCorrupt unless
  // all of them are inside the part of the pool that structures use, and the offset is one of a
  // word.
  template <typename T>
  T* follow(uint64_t offset, uint64_t bytes = sizeof(T)) const {
    if (!leads_inside(offset, bytes)) [[unlikely]]
      throw_outside(offset);
    return at<T>(offset);
  }
  bool leads_inside(uint64_t offset, uint64_t bytes) const {
    const uint64_t end = end_offset_.load(std::memory_order_relaxed);
    return offset >= data_offset_ && offset <= end && bytes <= end - offset && offset % 8 == 0;
  }
  // The same in few instructions, for many offsets of words, which `bytes` follow: what it does not
  // have may be inside all the same, as follow() knows.
  struct Inside {
    char* base;
    uint64_t begin;
    uint64_t last;  // from `begin`
    bool has(uint64_t offset) const { return offset - begin < last; }
    template <typename T>
    T* at(uint64_t offset) const {
      return reinterpret_cast<T*>(base + offset);
    }
  };
  Inside inside(uint64_t bytes) const {
    const uint64_t behind = data_offset_ + bytes;
    const uint64_t end = end_offset_.load(std::memory_order_relaxed);
    return {mapping_.base(), data_offset_, end > behind ? end - behind : 0};
  }
  // Throws kCorrupt: `what` says what is damaged.
  [[noreturn]] void throw_corrupt(std::string_view what) const;
  [[noreturn]] void throw_outside(uint64_t offset) const;
  // Tells PoolOptions::on_event of damage that is about to be thrown. While the pool is being
  // opened nothing: its opener tells of what refuses it.
  Error damaged(Error error) const;
  // Tells it that the pool has grown.
  void note_growth() const noexcept;
  // So many segments are in use. Tells on_event when they become too many. The caller serialises
  // calls.
  void note_use(uint64_t segments) noexcept;

  // The number of the segment where the pool ends, and where it would at its capacity. Tables count
  // (SegmentMap).
  uint64_t segments() const { return segments_.load(std::memory_order_acquire); }
  uint64_t segments_max() const;
  // The largest block that an empty pool has room for.
  uint64_t run_bytes_max() const;
  // By how many segments it can still grow.
  uint64_t segments_left() const { return map_.count(segments(), segments_max()); }
  // One past the last byte in use.
  uint64_t end_offset() const { return end_offset_.load(std::memory_order_acquire); }

  // Extends the pool so that it ends at segment `least` or behind it (before it if the capacity
  // ends first). Durable on return. Throws kPoolFull at capacity, kNoSpace. The caller serialises
  // calls.
  void grow_to(uint64_t least);

  // Gives the end of the pool back to the medium, where nothing is in use. As Pool::shrink.
  //
  // What a crash leaves. The descriptors of the segments at the end say, durably, that they are
  // free. Then
  //   - the header counts fewer segments, durably, before the file is cut: a file that is shorter
  //     than its header says is refused. Before that, all that the pool holds is made durable even
  //     where its durability does not ask for it: else power that fails might leave names, blocks
  //     and a count from before the last sync, in a file without the segments that these speak of;
  //   - the file is cut. A crash before leaves it longer than the pool. That is no harm: what lies
  //     behind the end is as unknown as what lies in a free segment. Growth reserves it again,
  //     where the blocks may be there already with what they held, writes the descriptors anew
  //     before it counts them, and nobody relies on zeros: neither in a block, whose content is
  //     undefined when it is allocated, nor in a bitmap, which is cleared before it counts. The
  //     next shrink() cuts it.
  //   - that the file is shorter need not be durable: growth makes blocks durable before it counts
  //     them.
  // Nothing in PM leads behind the end: intents of transactions that are over are gone durably, and
  // what is not free is not cut.
  //
  // Free segments below stay reserved: blocks that were punched out of the file would have to be
  // had again from a medium that may be full by then, by a store that cannot fail. Descriptors
  // behind the end are nobody's, and growth reserves them again: theirs are given back.
  uint64_t shrink();
  // Its parts, for Segments. Where growth would leave the end of the pool that needs it to be here.
  uint64_t stepped_end(uint64_t segments) const;
  // The header counts so many segments, those behind being free. Durable on return. Throws kIo.
  void count_fewer(uint64_t segments);
  // Of the `before` that it had: gives back what is not counted any more, and returns how many
  // bytes that is. Throws kIo.
  uint64_t give_back(uint64_t before);
  // Held by who looks at all that the pool has grown to.
  std::shared_mutex& size_mutex() const { return size_mutex_; }

  uint64_t generation() const { return generation_; }
  // Whether there may be stores of a process that died, or of one before it, which are in the
  // caches only and look like all others: a close that seals has flushed them. What no intent asks
  // for is made durable before a change rests on it.
  bool may_be_unflushed() const { return may_be_unflushed_; }
  bool read_only() const { return mapping_.read_only(); }
  // Whether the medium has refused a write. From then on nothing is written any more: fences throw.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // Throws kReadOnly if the pool may not be modified, kIo if its medium has failed, kInUse if its
  // Pool object is gone.
  void require_writable() const;
  // Whether reading a record verifies its checksum.
  bool verifies_payload() const { return verify_payload_; }
  // PoolOptions::lenient: whether damage of the pool itself is passed over.
  bool lenient() const { return lenient_; }

  // What a structure holds as long as it is open: it keeps the mapping, and keeps everybody else in
  // the process from opening the same structure, whose state in DRAM would not know of this one's.
  class Use {
   public:
    // `root`: where the caller has found the structure's root block, if it has. Throws kInUse, also
    // if the name has gone to another structure since; kNoSuchName.
    Use(PoolImpl& pool, std::string_view name, uint64_t root = 0);
    // Of what reserve_entry() has given for the name, before it is there: so nobody else opens it
    // first. The caller holds directory_mutex(), and nothing else that others wait for.
    Use(PoolImpl& pool, std::string_view name, const DirectoryEntry& reserved);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    static uint32_t take(PoolImpl& pool, std::string_view name, uint64_t root);
    static uint32_t take(PoolImpl& pool, std::string_view name, const DirectoryEntry& reserved);
    static void give_back(PoolImpl& pool, uint32_t entry);
    [[noreturn]] static void throw_open(const PoolImpl& pool, std::string_view name);

    PoolImpl& pool_;
    uint32_t entry_;     // kAnnexNumber: it is an annex
    std::string annex_;  // then: its name
    std::shared_ptr<PoolImpl> keep_;
  };

  // The directory entry of a structure that belongs to another one, such as the index of a store:
  // it stands in a block of its owner's, and counts as one of the directory's as long as this
  // object lives, for whoever makes or opens a structure of that name. Nothing lists it, no name is
  // taken from the directory, and it goes with its owner's blocks. Begins as free_annex(). Throws
  // kCorrupt if it is damaged.
  class Annex {
   public:
    // `name`: one that nobody else gives. `owner`: offset of the owner's root.
    Annex(PoolImpl& pool, uint64_t entry, std::string name, uint64_t owner);
    ~Annex();
    Annex(const Annex&) = delete;
    Annex& operator=(const Annex&) = delete;

    const std::string& name() const { return name_; }
    DirectoryEntry& entry() const { return *pool_.at<DirectoryEntry>(entry_); }
    // Whether its structure has been made.
    bool is_used() const { return load_acquire(entry().in_use) == kEntryInUse; }

   private:
    friend class PoolImpl;
    PoolImpl& pool_;
    uint64_t entry_;
    std::string name_;
    uint64_t owner_;
    mutable bool open_ = false;  // under annexes_mutex_: who is the one that uses its structure
  };
  static DirectoryEntry free_annex();

  PoolInfo info() const;
  void sync() const;
  // Throws kInUse if structures are open, kIo.
  void close();
  // The Pool object goes: closes now, or when the last structure does.
  void abandon() noexcept;
  uint64_t check(const std::function<void(const std::string&)>& report) const;

  // The root directory. Serialise creations with directory_mutex().
  std::mutex& directory_mutex() { return directory_mutex_; }
  std::vector<StructureInfo> structures() const;
  // The entry of this name, or null. Throws kCorrupt if its checksum does not hold.
  const DirectoryEntry* find(std::string_view name) const;
  // Whether a structure has this root.
  bool names_root(uint64_t root) const;
  // Throws kNoSuchName, or kWrongType unless type and kinds fit.
  const DirectoryEntry& require(std::string_view name, std::string_view type, uint8_t key_kind,
                                uint8_t value_kind) const;
  [[noreturn]] void throw_no_such_name(std::string_view name) const;
  // Throws kInvalidArgument (a bad name), kNameExists.
  void require_new_name(std::string_view name) const;
  // A free entry for a structure about to be made. The thread has no transaction of the heap, for
  // where there is none the directory gets another block. Throws kNameExists, kInvalidArgument (bad
  // name), kPoolFull (or all that there may be are in use), kNoSpace, kReadOnly.
  DirectoryEntry* reserve_entry(std::string_view name);
  // What is to be written to the free entry `place`. From then on find() may find it.
  DirectoryEntry make_entry(const DirectoryEntry* place, std::string_view name,
                            std::string_view type, uint8_t key_kind, uint8_t value_kind,
                            uint64_t root);
  // Finds the blocks of the directory, when transactions of the heap have been recovered. Throws
  // kCorrupt.
  void load_directory();
  // Of the header's word of the capacity and of the chain of the directory's blocks. Returns how
  // much is wrong.
  uint64_t check_tables(const std::function<void(const std::string&)>& report) const;
  // Calls `visit` for the blocks that are no structure's: of the directory, and of the log of
  // transactions.
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;

  // Gives a structure that is not open another name. Errors: as Pool::rename.
  void rename(std::string_view from, std::string_view to);
  // Gives each of two structures the name of the other, in one step: a crash finds both names, and
  // both structures. Durable on return. Throws kNoSuchName, kInUse (one is open), kReadOnly, kIo.
  // Cost: three fences.
  void exchange_names(std::string_view one, std::string_view other);
  // Whether the structure of this root is being dropped: it is closed without writing anything,
  // since its blocks are as good as free.
  bool is_dropped(const void* root) const;

  // Yields the processor: what a thread does that waits for another one's short critical section.
  static void pause() { std::this_thread::yield(); }

 private:
  friend class Drop;

  PoolImpl(Mapping mapping, Domain domain, Durability durability, const PoolOptions& options);

  // What the entry of an annex has for a number.
  static constexpr uint32_t kAnnexNumber = ~uint32_t{0};
  DirectoryEntry* find_annex(std::string_view name) const;
  // Nothing if there is no annex of this name; else whether it was not open, and is now.
  std::optional<bool> open_annex(std::string_view name) const;
  void close_annex(std::string_view name) const;
  // Throws kNoSuchName.
  uint32_t entry_number(std::string_view name) const;
  // Entries by number, of which there are so many.
  uint32_t entries() const {
    return kDirectoryEntries +
           kDirectoryBlockEntries * directory_blocks_.load(std::memory_order_acquire);
  }
  DirectoryEntry& entry_at(uint32_t number) const {
    if (number < kDirectoryEntries) return at<DirectoryEntry>(header().directory_offset)[number];
    number -= kDirectoryEntries;
    return blocks_[number / kDirectoryBlockEntries]
        .load(std::memory_order_acquire)
        ->entries[number % kDirectoryBlockEntries];
  }
  uint32_t number_of(const DirectoryEntry& entry) const;  // kAnnexNumber: of an annex
  // Makes another block of entries. The caller holds directory_mutex_. Throws kPoolFull, kNoSpace,
  // kIo.
  void add_directory_block();
  // The block that a sealed word leads to, or nullptr if it is damaged.
  DirectoryBlock* sound_block(uint64_t word, uint32_t number) const;
  // Calls `visit(number, block)` for the blocks of the directory. Returns the number of the first
  // damaged one: the walk ends before it.
  template <typename Visit>
  std::optional<uint32_t> walk_directory(Visit visit) const;
  // Knows which names there are, by what the entries say.
  void index_names();
  // What follows of a structure that is dropped, and of its entry that is free. The caller holds
  // directory_mutex_.
  void note_dropped(uint32_t number);
  void note_freed(uint32_t number);
  void expect_name(std::string_view name, uint32_t number);
  void forget_name(std::string_view name, uint32_t number);
  // Fails closed on a damaged entry, and on a free one that is not empty.
  void check_directory() const;
  bool is_sound(uint32_t entry) const;
  // The same while others may be rewriting the entry: a whole one is seen soon.
  bool becomes_sound(uint32_t entry) const;
  static DirectoryEntry sealed(DirectoryEntry entry, uint32_t number);
  // What is to be written to the entry for its structure to have this name.
  DirectoryEntry renamed(uint32_t number, std::string_view name);
  // Commits what gives entries other names.
  void commit_names(Heap::Txn& txn);
  [[noreturn]] void throw_damaged(uint32_t entry) const;
  void write_header(const PoolOptions& options, uint64_t capacity_bytes);
  // Raises the capacity. Durable on return. Throws kIo: then it is raised, or was not.
  void raise_capacity(uint64_t bytes);
  // What the header has needs this version from now on.
  void extend_format();
  void write_empty_tables();
  void know_size(uint64_t segments);
  // Compares the seals that the last close has made, if it has, with what the file holds.
  uint64_t check_seals(const std::function<void(const std::string&)>& report) const;
  void start_generation();
  void persist_sizes();
  // As PoolOptions::serve_backups says.
  void serve_backups(const PoolOptions& options);
  // The pool can be used, and tells so.
  void now_ready(const PoolOptions& options, bool recovered) noexcept;
  // PoolOptions::on_event, if there is one.
  void tell(PoolEventKind kind, std::string_view message) const noexcept;
  // Whether any of the pool is on huge pages, asked again once its end has moved by one: the kernel
  // tells only by a walk over all memory of the process.
  bool on_huge_pages() const;
  void close_medium();
  // The caller holds uses_mutex_. Throws kInUse.
  void require_unused() const;
  void close_if_abandoned() noexcept;  // the caller holds uses_mutex_

  mutable std::atomic<bool> failed_{false};
  mutable std::atomic<uint64_t> huge_pages_seen_{0};  // the end then, with the answer in bit 0
  Mapping mapping_;
  Memory memory_;
  Durability durability_;
  std::unique_ptr<Heap> heap_;
  std::unique_ptr<TransactionLog> transactions_;
  EpochManager writers_;
  uint64_t data_offset_ = 0;  // as in the header
  uint64_t capacity_bytes_ = 0;
  SegmentMap map_;
  std::atomic<uint64_t> segments_{0};
  std::atomic<uint64_t> end_offset_{0};
  uint64_t generation_ = 0;
  uint64_t sealed_generation_ = 0;  // of the last close
  CloseMark closed_before_ = CloseMark::kClean;
  bool may_be_unflushed_ = false;
  bool verify_payload_;
  bool seal_on_close_;
  bool lenient_;
  bool open_ = false;
  std::function<void(const PoolEvent&)> on_event_;
  uint64_t nearly_full_segments_ = 0;  // in use, from which on it is nearly full
  bool nearly_full_ = false;           // and was reported
  bool ready_ = false;                 // it has been opened
  std::mutex directory_mutex_;
  mutable std::mutex annexes_mutex_;
  std::vector<const Annex*> annexes_;
  std::array<std::atomic<DirectoryBlock*>, kDirectoryBlocks> blocks_{};
  std::atomic<uint32_t> directory_blocks_{0};
  uint32_t first_free_ = 0;           // entries before it are not free
  std::atomic<uint32_t> dropped_{0};  // entries of dropped structures
  // Where each name may be: an entry that has the name is expected here, while what is expected
  // need not be there. So a name is added before the entry gets it, and taken away when the entry
  // has it no more, durably.
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  std::unordered_multimap<std::string, uint32_t, NameHash, std::equal_to<>> names_;
  std::optional<std::pair<std::string, uint32_t>> last_made_;  // which may not have happened
  mutable std::shared_mutex names_mutex_;
  mutable std::shared_mutex size_mutex_;
  std::mutex uses_mutex_;
  std::unordered_set<uint32_t> uses_;  // directory entries whose structures are open
  std::atomic<bool> abandoned_{false};
  std::unique_ptr<LiveService> live_;  // the last: it uses the others
};

}  // namespace perdure::pm
