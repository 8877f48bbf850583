// What makes transactions over several structures of a pool all or nothing: their redo records.
//
//   TransactionLog::Record record = log.begin(bytes);   // room for it; waits for one of kSlots
//   record.commit(roots, operations);                   // durable: from here on the transaction happens
//   ...apply the operations to the structures...
//   record.retire();                                    // durable: nothing is left to be done
//
// A record says which structures it changes, each by the offset of its root block, and how, in a
// form that is the caller's affair (index/participant.h). Operations are idempotent: after a crash
// they are applied again.
//
//   root block   magic and number of slots, then the slots, a line each
//   slot         bytes      0, or the length of a committed record, a multiple of 8, with kMark
//                applied    bit i: structure i of the record has what the record holds for it
//                checksum   xxh3 of the record, seeded with `bytes`
//                buffer     the block that the record stands in, and its size; kept from record to record
//                check      xxh3 of `bytes`, `applied` and `checksum`
//   record       number of structures, their roots, operations
//
// The header of the pool leads to the root block by a word of its own, made with the first
// transaction. Builds that know no transactions refuse a pool with that word, which is unused and 0
// for them: they would not apply what a crash has left.
//
// Persist points, and what a crash before each leaves:
//   the record, F          nothing: `bytes` is 0. What is in the buffer counts for nothing, whatever it is.
//   the slot's line, F     the commit point. `applied`, `checksum`, `check` and `bytes` stand in one line, in which
//                          stores are durable in their order: a durable `bytes` has the others.
//   the structures', F...  recovery applies all of the record again.
//   `bytes` is 0, F        the same. Before the latches of its keys are released: a later write of a key must
//                          not meet a record that would write it once more.
//
// Recovery: open() flushes all slots, since a process that died may have left a `bytes` in the
// caches only, and what rests on it would outlast it; then each structure that a record names gets
// its operations when it is opened, before anybody can write to it, and then its bit of `applied`.
// The last bit empties the slot. A crash in between applies the structure's operations again, and
// nobody has written to it since. Of a key one record at most speaks: a record is retired before
// the latches of its keys are released.
//
// Flipped bits. One in the record, in `checksum` or in `bytes` refuses the pool: no multiple of 8
// with kMark becomes 0 or another one by one flip, nor does 0, and the record's checksum hangs on
// the length. `applied` is changed bit by bit, each followed by `check`: so what a crash or a flip
// leaves differs in one bit from what `check` was made of, which open() finds by trying. After a
// crash that is the bit that was set last, whose structure nobody has written to: it is applied
// again. A flip is undone. So neither loses the part of a structure, nor applies it over later
// writes. Records of earlier builds, whose length has no mark, have no `check`.
//
// Room. What is left for structures to finish needs some in the pool, as its commit did: open()
// keeps that from all others until the record is finished. Where the pool had less left, finishing
// takes of the heap's reserves, and a pool that is open read-only grows in memory.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

namespace perdure::pm {

class PoolImpl;

inline constexpr uint32_t kTransactionSlots = 16;

struct alignas(64) TransactionSlot {
  static constexpr uint64_t kMark = 5;  // of two bits, in `bytes`

  uint64_t bytes;
  uint64_t applied;
  uint64_t checksum;
  uint64_t buffer;
  uint64_t buffer_bytes;
  uint64_t check;
  uint64_t reserved[2];

  uint64_t length() const { return bytes & ~uint64_t{7}; }
  bool has_check() const { return (bytes & 7) == kMark; }
  uint64_t check_with(uint64_t applied_bits) const;
};
static_assert(sizeof(TransactionSlot) == 64 && offsetof(TransactionSlot, buffer) == 24);

struct alignas(64) TransactionLogRoot {
  uint64_t magic;
  uint64_t slots;
  uint64_t reserved[6];
  TransactionSlot slot[kTransactionSlots];
};
static_assert(sizeof(TransactionLogRoot) == 64 + 64 * kTransactionSlots);

class TransactionLog {
 public:
  static constexpr uint32_t kStructuresMax = 64;                  // of one record
  static constexpr uint64_t kRecordBytesMax = uint64_t{1} << 20;  // with everything
  static constexpr uint32_t kSlots = kTransactionSlots;

  explicit TransactionLog(PoolImpl& pool) : pool_(pool) {}
  TransactionLog(const TransactionLog&) = delete;
  TransactionLog& operator=(const TransactionLog&) = delete;

  // Reads what the last opening left. Changes nothing. Throws kCorrupt.
  void open();
  // forget() for what a crash has left for structures without a name. Empties slots of which all is
  // applied.
  void forget_dropped();

  // A place for the record of one transaction. Its end without retire() leaves a committed record,
  // as a crash does, to the next opening of its structures, in this process or after it, and its
  // slot taken until then.
  class Record {
   public:
    Record(Record&& other) noexcept
        : log_(other.log_), number_(other.number_), state_(other.state_) {
      other.log_ = nullptr;
    }
    Record(const Record&) = delete;
    Record& operator=(const Record&) = delete;
    Record& operator=(Record&&) = delete;
    ~Record();

    // Durable on return: the transaction happens. Throws kIo: whether it does the next opening
    // decides.
    void commit(std::span<const uint64_t> roots, std::span<const char> operations);
    // Durable on return: the record counts for nothing any more. Throws kIo.
    void retire();

   private:
    friend class TransactionLog;
    enum class State : uint8_t { kEmpty, kCommitted };
    Record(TransactionLog& log, uint32_t number) : log_(&log), number_(number) {}

    TransactionLog* log_;
    uint32_t number_;
    State state_ = State::kEmpty;
  };

  // The bytes that a record takes for so many structures and bytes of operations.
  static uint64_t record_bytes(uint64_t structures, uint64_t operation_bytes) {
    return sizeof(uint64_t) * (1 + structures) + operation_bytes;
  }
  // Waits while kSlots transactions are under way. Makes the log with the first one, and makes the
  // slot's buffer larger if it must: two transactions of the heap at most, none as a rule. Throws
  // kTooLarge, kPoolFull (also if all slots wait for structures to be opened), kNoSpace, kReadOnly,
  // kIo.
  Record begin(uint64_t record_bytes);

  // Whether something was left for the structure with this root.
  bool is_pending(uint64_t root) const;
  // Calls `apply(operations, number)` with each record left for the structure with this root, which
  // is its structure `number`, and notes durably that it is done. `apply` makes the operations
  // durable. What it throws leaves the record, which is applied as a whole at the next attempt. For
  // who has just opened the structure, before anybody else can write to it.
  void finish(uint64_t root,
              const std::function<void(std::span<const char> operations, uint32_t number)>& apply);
  // The structure with this root is no more: what records hold for it is void. To be called when
  // its name is durably gone, and before its root block can be given to another structure: a crash
  // in between leaves the rest to forget_dropped(). Nothing is to be done for who had the structure
  // open before, which finishes all. Throws kIo.
  void forget(uint64_t root);

  // Commits go side by side, unless one wants to be alone: then the others wait.
  class Commit {
   public:
    explicit Commit(TransactionLog& log);
    ~Commit();
    Commit(const Commit&) = delete;
    Commit& operator=(const Commit&) = delete;

   private:
    TransactionLog& log_;
    bool within_;  // of the thread's own Alone
  };
  class Alone {
   public:
    explicit Alone(TransactionLog& log);
    ~Alone();
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    TransactionLog& log_;
    const TransactionLog* outer_;
  };

  // Calls `visit` for the blocks of the log.
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const;

 private:
  // A record as it stands in its buffer.
  struct View {
    std::span<const uint64_t> roots;
    std::span<const char> operations;
  };

  TransactionLogRoot* root() const;
  TransactionSlot& slot(uint32_t number) const { return root()->slot[number]; }
  void make_log();
  void set_buffer(uint32_t number, uint64_t bytes);
  uint32_t take_slot();
  void give_back(uint32_t number);
  void leave(uint32_t number, bool committed);
  View view(uint32_t number) const;
  void require_sound(uint32_t number) const;
  void settle_applied(uint32_t number);
  // Room for finishing what a slot holds.
  void keep_room(uint32_t number);
  void end_room(uint32_t number);
  void note_applied(uint32_t number, uint64_t bits);
  // For each pending record that names the root: `use(slot, number)`.
  template <typename Use>
  void for_each_pending(uint64_t root, Use use) const;

  PoolImpl& pool_;
  std::mutex mutex_;  // the log's making; which slots are taken
  std::condition_variable freed_;
  uint32_t taken_ = 0;  // bit i: slot i
  // Bit i: the record of slot i is committed, and left to those who open its structures.
  std::atomic<uint32_t> pending_{0};
  std::array<uint64_t, kSlots> room_{};  // by slot: segments that are kept for finishing it
  mutable std::mutex pending_mutex_;     // finishing
  std::mutex turn_mutex_;
  std::condition_variable turn_;
  uint32_t commits_ = 0;  // under way
  bool alone_ = false;
};

// While one lives, its thread may write to structures of a pool that is open read-only, in the
// private copy, and take of the heap's reserves: to finish transactions.
class FinishingScope {
 public:
  FinishingScope() : outer_(active) { active = true; }
  ~FinishingScope() { active = outer_; }
  FinishingScope(const FinishingScope&) = delete;
  FinishingScope& operator=(const FinishingScope&) = delete;
  static bool is_active() { return active; }

 private:
  static constinit inline thread_local bool active = false;
  bool outer_;
};

}  // namespace perdure::pm
