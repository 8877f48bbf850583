// A database: B+trees with transactions, in a buffer pool that spans DRAM and persistent memory
// over a page file.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/bank.pool", {.capacity_bytes = 1 << 30});
//   perdure::Database bank = perdure::Database::create(pool, "bank", {.page_file = "/data/bank.pages"});
//   perdure::Tree accounts = bank.tree("accounts");              // made if it is not there
//   bank.transact([&](perdure::Transaction& transaction) {       // all of it or nothing, durable on return
//     const uint64_t alice = std::stoull(*transaction.get(accounts, "alice"));
//     transaction.put(accounts, "alice", std::to_string(alice - 10));
//   });
//
// Pages in PM are changed in place and not flushed; a commit is durable by one persist of the log.
// What a crash leaves of pages in PM is judged by their checksums when they are asked for, and
// mended from the page file and the log: so the database is open as soon as the log has been read,
// with its buffer pool warm.
//
// Transactions are serializable: their writes stay with them until they commit, and a commit fails
// with kConflict if something that it has read was changed by another one since. What a transaction
// reads is always of one moment. There are no locks to wait for and no deadlocks. A Snapshot reads
// one moment for as long as it lives, never has a conflict, and holds nobody up.
//
// Any thread may use a Database; a Transaction and its cursors belong to one thread at a time. What
// refers to a database, tree, transaction or snapshot may outlive it: it can be destroyed or
// assigned to, and its other calls throw kInvalidArgument, as do those of an object that was moved
// from. (What a cursor has copied, its key and value, can still be read.) A database may not be
// closed while another thread is in a call of it.
// Errors of all calls: kCorrupt (a page is damaged, and the log does not reach back to mend it),
// kIo (the page file, the log file or the pool's medium failed; once the pool's has, all is kIo
// until it is opened again; once the log file has, all commits and checkpoints are, and reads go
// on).
// Source: Lersch, Lehner, Oukid, "Persistent Buffer Management with Optimistic Consistency",
// DaMoN 2019.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

namespace buffer {
class Engine;
class CursorImpl;
class SnapshotImpl;
class TransactionImpl;
}  // namespace buffer

// How a database is made or opened.
struct DatabaseOptions {
  // The file with the pages, which must not exist at creation, and must be given at each opening.
  // Empty: the pages are in the pool, too.
  std::string page_file;
  // The memory for pages in DRAM. May be another one at each opening. At least 16 pages in DRAM and
  // PM together.
  uint64_t dram_bytes = uint64_t{64} << 20;
  // The part of the pool for pages in PM. 0: at creation an eighth of the pool's capacity, later
  // what it was. Another value than before: the pages in PM are given up at opening, and read
  // again.
  uint64_t pm_bytes = 0;
  // No pages in PM at all.
  bool pm_frames = true;
  // Of a page in PM the checksums are computed at each n-th change only. With more than 1 changes
  // are cheaper, and a crash finds more pages whose checksums do not fit, and which must be read
  // and mended.
  uint32_t checksum_every = 1;
  // Whether a thread writes changed pages and mends pages after a crash; else callers do when they
  // must.
  bool background = true;
  // Memory for what pages were before, as snapshots need it: at most what was changed since the
  // oldest one, some pages for each commit. When there is more, the oldest snapshot is given up:
  // its calls throw kTooOld, and commits go on.
  uint64_t snapshot_bytes = uint64_t{64} << 20;
  // A file that gets the log that is no longer needed. With one from the beginning, every page can
  // be made again, whatever becomes of the page file. Grows without end. Must be new or empty at
  // creation; give it at each opening: one that lacks what was done without it is refused
  // (kCorrupt), and so is a file that is none (kInvalidArgument).
  std::string archive;
  // A file for the write-ahead log, in place of the pool: for a small pool, or to have the log on a
  // device of its own. Must not exist at creation, has all its room then, and must be given at each
  // opening. A commit costs an fdatasync, shared with others that wait. Takes log_bytes of DRAM.
  // Empty: the log is in the pool.
  std::string log_file;

  // Used by create() only.
  uint32_t page_bytes = 4096;  // 4096 to 65536, a power of two
  uint32_t checksums = 8;      // of a page, 1 to 32, a power of two
  // At least 1 MiB, at most 16 GiB; a quarter bounds a transaction. In a file: whole 4 KiB.
  uint64_t log_bytes = uint64_t{16} << 20;
  uint64_t pages_max =
      // room in the pool, without page file; 0: half of the pool's capacity, or what fits in one
      // piece
      0;
};

// A tree by name. Copyable; valid as long as its Database is open: not after another opening. One
// that was moved from is refused.
class Tree {
 public:
  Tree(const Tree&) = default;
  Tree(Tree&& other) noexcept
      : name_(std::move(other.name_)),
        root_(other.root_),
        made_at_(other.made_at_),
        opening_(std::exchange(other.opening_, 0)) {}
  Tree& operator=(const Tree&) = default;
  Tree& operator=(Tree&& other) noexcept {
    if (this == &other) return *this;
    name_ = std::move(other.name_);
    root_ = other.root_;
    made_at_ = other.made_at_;
    opening_ = std::exchange(other.opening_, 0);
    return *this;
  }
  ~Tree() = default;

  const std::string& name() const { return name_; }

 private:
  friend class Database;
  friend class Snapshot;
  friend class Transaction;
  friend class Cursor;
  Tree(std::string name, uint64_t root, uint64_t made_at, uint64_t opening)
      : name_(std::move(name)), root_(root), made_at_(made_at), opening_(opening) {}
  std::string name_;
  uint64_t root_;
  uint64_t made_at_;
  uint64_t opening_;  // its number: to find out if it is another database's. 0: it was moved from
};

// The records of a tree in the order of keys, as the transaction or snapshot sees them. Sees a
// transaction's writes that were made before the cursor came to their place. One of a snapshot
// throws its kTooOld, and no kConflict. A call that throws leaves it where it was.
class Cursor {
 public:
  Cursor(Cursor&&) noexcept;
  Cursor& operator=(Cursor&&) noexcept;
  ~Cursor();

  // To the first record whose key is not below `key`; to the first; to the last; to the last one
  // below `key`. False, as valid(), if there is none. Errors: kConflict.
  bool seek(std::string_view key);
  bool seek_first() { return seek(""); }
  bool seek_last();
  bool seek_below(std::string_view key);
  // From a valid position. Errors: kConflict.
  bool next();
  bool previous();

  bool valid() const;
  // Views until the cursor moves. From a valid position.
  std::string_view key() const;
  std::string_view value() const;

 private:
  friend class Transaction;
  friend class Snapshot;
  explicit Cursor(std::unique_ptr<buffer::CursorImpl> impl);
  buffer::CursorImpl& impl() const;
  std::unique_ptr<buffer::CursorImpl> impl_;
};

// Reads and writes that are committed together, or not at all.
class Transaction {
 public:
  Transaction(Transaction&&) noexcept;
  Transaction& operator=(Transaction&&) noexcept;
  // Aborts, unless it was committed.
  ~Transaction();

  // All methods with a tree: kInvalidArgument if it is another database's.
  // Reads. Errors: kConflict.
  std::optional<std::string> get(const Tree& tree, std::string_view key);
  Cursor cursor(const Tree& tree);

  // Writes, which others see once they are committed. Errors: kTooLarge: a key has at most an
  // eighth of a page; a value, and all writes of a transaction, at most an eighth of the log.
  void put(const Tree& tree, std::string_view key, std::string_view value);
  // False, and nothing is done, if the key is there already (or, for erase, is not). Errors:
  // kConflict.
  bool insert(const Tree& tree, std::string_view key, std::string_view value);
  bool erase(const Tree& tree, std::string_view key);

  // The writes since a savepoint are undone; the savepoint stays. Later ones are gone. Errors:
  // kInvalidArgument: the transaction has no savepoint, or none so late; nothing is undone.
  using Savepoint = size_t;
  Savepoint savepoint() const;
  void rollback_to(Savepoint savepoint);

  // Durable on return. Errors: kConflict; kTooLarge; kNoSpace, kPoolFull: nothing was changed, and
  // the transaction may be tried again. kIo: if the pool's medium or the log file failed, whether
  // it happened shows when the pool is opened again. After commit() or abort() the transaction has
  // no other method. Cost: one fence, or one fdatasync of a log file, shared with others that
  // commit at the same time; nothing for a transaction without writes.
  void commit();
  void abort();

 private:
  friend class Database;
  explicit Transaction(std::shared_ptr<buffer::TransactionImpl> impl);
  buffer::TransactionImpl& impl() const;
  uint64_t root_of(const Tree& tree) const;
  std::shared_ptr<buffer::TransactionImpl> impl_;  // its cursors have it, too
};

// All trees as they were at one moment, to read. Copies are of the same moment, which ends with the
// last of them and of their cursors. Any thread may use it; a cursor belongs to one at a time.
// Errors of all calls: kTooOld (it was given up, see DatabaseOptions::snapshot_bytes),
// kInvalidArgument (a tree of another database).
// Cost: none to begin with; commits keep a copy of each page that they change for the first time
// since the last one.
class Snapshot {
 public:
  std::optional<std::string> get(const Tree& tree, std::string_view key) const;
  Cursor cursor(const Tree& tree) const;
  // Those that were there at the moment. One that was made later is empty here.
  std::optional<Tree> find_tree(std::string_view name) const;
  std::vector<std::string> trees() const;

 private:
  friend class Database;
  buffer::SnapshotImpl& impl() const;
  uint64_t root_of(const Tree& tree) const;  // 0: it was not there
  explicit Snapshot(std::shared_ptr<buffer::SnapshotImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<buffer::SnapshotImpl> impl_;
};

// How far mending after a crash has come.
struct RecoveryProgress {
  uint64_t pending;    // pages with log records that wait to be replayed
  uint64_t right;      // pages in PM that were as they must be
  uint64_t older;      // lacked changes, which were replayed in place
  uint64_t newer;      // had changes of an unfinished commit: read and replayed
  uint64_t corrupted;  // checksums did not fit: read and replayed
  uint64_t fetched;    // were not in PM: read and replayed
  uint64_t archived;   // were damaged in the page file: made from the archive
};

// B+trees with transactions in a pool, and a page file where one is given.
class Database {
 public:
  static constexpr char kTypeName[] = "database";

  // Errors: kInvalidArgument, kNameExists, kExists (the page file or log file), kPoolFull,
  // kNoSpace, kReadOnly.
  static Database create(Pool& pool, const std::string& name, const DatabaseOptions& options = {});
  // Reads the log; then transactions may begin. Cost: proportional to the log since the last
  // checkpoint, at most log_bytes, and one word for each page in PM. Errors: kNoSuchName,
  // kWrongType, kNotFound (the page file or log file), kLocked (it is in use), kReadOnly;
  // kInvalidArgument (it is another database's, or none), kCorrupt (the log is damaged, or its file
  // cut off, or an older copy: it lacks commits that were acknowledged).
  static Database open(Pool& pool, const std::string& name, const DatabaseOptions& options = {});
  static Database open_or_create(Pool& pool, const std::string& name,
                                 const DatabaseOptions& options = {});

  Database(Database&&) noexcept;
  Database& operator=(Database&&) noexcept;
  // Writes changed pages, so that the next opening has nothing to replay; swallows errors.
  // Transactions that were not committed are gone.
  ~Database();

  // The tree of this name, which is made if it is not there. Durable on return. Errors: kTooLarge
  // (the name).
  Tree tree(std::string_view name);
  // Nothing if there is none.
  std::optional<Tree> find_tree(std::string_view name) const;
  std::vector<std::string> trees() const;

  // A transaction, which ends uncommitted unless it is committed.
  Transaction begin();
  // Calls `work`, commits, and does both again after kConflict: after some attempts while all other
  // commits wait, so that it ends. `work` may commit or abort by itself, and may throw: then
  // nothing has happened.
  void transact(const std::function<void(Transaction& transaction)>& work);

  // The moment now: with all commits that have returned.
  Snapshot snapshot() const;

  // Writes changed pages to the page file, and lets the log begin anew. Others go on meanwhile.
  // Errors: kNoSpace.
  void checkpoint();
  // Mends all pages that a crash has left, and tells how far that is after each batch of them.
  // Errors: as those of reading.
  void recover(const std::function<void(const RecoveryProgress&)>& told = {});
  RecoveryProgress recovery() const;

  // Verifies all trees, and that each page is used once; `report` gets one sentence for each
  // violation. Returns how many there were. Needs that nobody writes.
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  std::vector<Statistic> statistics() const;

 private:
  explicit Database(std::unique_ptr<buffer::Engine> engine);
  buffer::Engine& engine() const;
  std::unique_ptr<buffer::Engine> engine_;
};

}  // namespace perdure
