// A pool: a file (or anonymous memory) that holds durable structures.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/words.pool", {.capacity_bytes = 64 << 20});
//   auto index = perdure::Plush<std::string, std::string>::create(pool, "words");
//   index.upsert("perdure", "to last, to go on existing");
//
// A pool grows in place from a small file up to its capacity. One process has it open at a time, or
// several have it open read-only; Pool::inspect() tells of one that is open elsewhere, and a backup
// can be read beside its pool. Opening fails closed: a damaged or foreign file is refused with an
// error that says what is wrong, and nothing is modified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/error.h"

namespace perdure {

class Pool;
namespace pm {
class PoolImpl;
PoolImpl& impl_of(const Pool& pool);
}  // namespace pm

// What it takes to make a store durable on a mapping.
enum class Domain : uint8_t {
  kPage = 0,  // an ordinary file: msync of whole pages
  kLine = 1,  // ADR: cache-line flush and fence
  kByte = 2,  // a store is durable once it is visible (eADR, CXL GPF, or process-crash durability)
};

// Which crash an operation that returned survives.
enum class Durability : uint8_t {
  kBest = 0,     // the strongest the medium gives without a system call per operation
  kProcess = 1,  // the death of the process
  kPower = 2,    // loss of power; refused where the medium cannot give it
};

// What kind of memory a pool is mapped on.
enum class Medium : uint8_t {
  kFile = 0,       // page cache over a disk
  kDax = 1,        // persistent memory, mapped with MAP_SYNC
  kDaxEadr = 2,    // the same, with the CPU caches inside the persistence domain
  kTmpfs = 3,      // DRAM that outlives the process
  kHugetlbfs = 4,  // the same on huge pages
  kAnonymous = 5,  // private memory: gone with the process
};

// Short names of the values above, such as "line", "power", "tmpfs". Never null.
const char* to_string(Domain domain) noexcept;
const char* to_string(Durability durability) noexcept;
const char* to_string(Medium medium) noexcept;

// Parses "page", "line" or "byte". Throws Error(kInvalidArgument) on anything else.
Domain parse_domain(std::string_view text);
// Parses "best", "process" or "power". Throws Error(kInvalidArgument) on anything else.
Durability parse_durability(std::string_view text);

// What PoolOptions::on_event reports.
enum class PoolEventKind : uint8_t {
  kOpened = 0,  // the pool was made or opened, and can be used
  kRecovered =
      1,  // before that: the last close was not clean, and what a crash interrupted is completed
  kGrown = 2,       // the pool has taken more of its medium
  kNearlyFull = 3,  // so much of the capacity is in use as PoolOptions::nearly_full_percent says
  kDamaged = 4,     // what was read is not what was written; the call that met it throws kCorrupt
};
const char* to_string(PoolEventKind kind) noexcept;  // "opened", "recovered", ...

// One of these, with the sizes of the pool at that moment.
struct PoolEvent {
  PoolEventKind kind;
  std::string_view path;     // of the pool; empty of an anonymous one
  std::string_view message;  // a sentence for a log
  uint64_t size_bytes;       // what the pool has grown to
  uint64_t
      // of these, what structures and free blocks among theirs take, in units of 64 KiB
      used_bytes;
  uint64_t capacity_bytes;
};

// How a pool is made or opened. Use designated initialisers: members may come.
struct PoolOptions {
  // The size the pool may grow to, in bytes; rounded down to 64 KiB. Used by create() only.
  // Minimum Pool::kMinCapacityBytes, maximum Pool::kMaxCapacityBytes.
  uint64_t capacity_bytes = uint64_t{1} << 30;
  // Used by open() only: a pool with a lower capacity has this one from then on, rounded down to 64
  // KiB; durable on return. 0, or no more than it has: it stays. It costs nothing until it is used;
  // a crash leaves the one or the other. Builds that know format version 2 alone refuse the pool
  // afterwards. No block is larger than what lies between two tables of segments: for certain, a
  // quarter of the capacity (docs/pool-format.md).
  // Errors: kCapacity (more than Pool::kMaxCapacityBytes, or so little more that it would give no
  // room), kInvalidArgument (with `read_only`), kIo.
  uint64_t capacity_at_least_bytes = 0;
  // How much the file grows by when it must, in bytes; rounded up to 64 KiB. Blocks are reserved,
  // so that a full medium is an error of the growing call and never a SIGBUS.
  uint64_t growth_bytes = uint64_t{4} << 20;
  // How much of the capacity, in bytes, gets its blocks at creation, so that no later operation
  // waits for the system to provide and clear them; more than the capacity means all of it.
  // create() throws kNoSpace if the medium has no room. Used by create() only.
  uint64_t reserve_bytes = 0;
  // Whether to ask the system for huge pages, on which lookups in large pools are faster; where it
  // has none to give, small ones do. PoolInfo::huge_pages tells.
  bool huge_pages = true;
  // The durability that every operation must have when it returns.
  Durability durability = Durability::kBest;
  // Overrides the detected domain (also: environment variable PERDURE_DOMAIN). For tests and
  // measurements: `line` on /dev/shm runs the very instructions that PM would need. A domain weaker
  // than what `durability` needs on this medium is refused with kDurability.
  bool force_domain = false;
  Domain domain = Domain::kByte;
  // Maps a private copy: structures open and recover in memory, the file is never written, and
  // every modification is refused with kReadOnly. Several readers may share a file, and keep
  // writers out meanwhile, if they may write to the file. Who may only read it keeps nobody out: he
  // reads a copy in memory, as large as the pool, that is made now (kLocked if a writer has it
  // open, or comes meanwhile). A backup can be opened in this way, too, by as many as like to: it
  // is mapped where it lies, and `verify` reads all of it.
  bool read_only = false;
  // How large, in bytes, that copy in memory may be; 0: half of what the machine has free when the
  // pool is opened. One that would be larger is refused (kNoSpace), with what to do in words.
  // Whoever may lock the pool makes no copy.
  uint64_t copy_bytes_max = 0;
  // With `read_only`: goes on where the pool itself is damaged, to save what can be read. Damaged
  // lanes and names are passed over, and a file that was cut off ends where it ends: what leads
  // there is kCorrupt when it is read, or not found. Damage may also lead readers astray, into
  // faults even: read in a process of its own.
  bool lenient = false;
  // Whether the checksum of a record out of place (a byte string) is verified each time it is read;
  // a record that does not fit it is kCorrupt. Costs some nanoseconds for each 64 bytes read.
  bool verify_payload = true;
  // Whether a clean close seals each segment in use with a checksum, which `verify` and check() of
  // a read-only pool compare. Costs one pass over the data in use at each close.
  bool seal_on_close = true;
  // Verifies the seals before anything else is done; a segment that does not fit its seal is
  // kCorrupt. Does nothing if the last close was not clean or did not seal. Costs one pass over the
  // data.
  bool verify = false;
  // Is told what happens to the pool: for logs, metrics, alarms. Called on the thread that made it
  // happen, in the middle of its call and under locks of the pool: it must be quick, must use
  // neither the pool nor a structure of it, and must not throw (what it throws is dropped). Several
  // threads may call it at a time. What it refers to must outlive the pool and its structures; the
  // views in the event are valid for the call. kRecovered and kOpened, and kDamaged of a file that
  // is refused, come before open() returns or throws. kNearlyFull comes once, and again when a
  // twentieth of the capacity has become free below the threshold meanwhile. kDamaged comes each
  // time that damage is met, by a reader or by work behind the scenes; but check() only reports it,
  // and what a Database finds in its pages and log, or BzTree in its descriptors, is thrown alone.
  // Where nothing happens it costs nothing.
  std::function<void(const PoolEvent&)> on_event = nullptr;
  // Whether other processes, of the same user or root, may have backups made by this one while it
  // has the pool open to write: `perdure pool backup`, Pool::backup_live(), and, of an open Store,
  // `perdure store backup`. Costs a thread that sleeps, and a socket without a file, in the name
  // space of the network that the process is in. What Pool::backup() asks of a program then holds
  // at any time. PoolInfo::serves_backups tells whether the system let it. A child that is forked
  // serves nothing. Without meaning for read-only and anonymous pools.
  bool serve_backups = false;
  // When kNearlyFull comes, in percent of the capacity, 1 to 100; 0: never.
  uint32_t nearly_full_percent = 90;
};

// A structure as the root directory names it.
struct StructureInfo {
  std::string name;
  std::string type;        // catalogue name, such as "plush"
  std::string key_kind;    // "u64" or "bytes"
  std::string value_kind;  // "u64" or "bytes"
};

// What is known of an open pool.
struct PoolInfo {
  std::string path;
  std::string uuid;
  uint32_t format_version;
  uint64_t capacity_bytes;
  // Bytes that the pool occupies on its medium; less than the file's length, which has a hole.
  uint64_t size_bytes;
  uint64_t allocated_bytes;  // bytes in allocated blocks
  uint64_t free_bytes;       // bytes in free blocks of what the pool has grown to
  // The end of what has been in use at any time since this open: what size_bytes would be if
  // nothing had been reserved beforehand.
  uint64_t high_water_bytes;
  uint64_t generation;  // how often the pool has been opened for writing
  bool clean;           // the last close before this open was clean
  bool sealed;          // it has sealed the segments, too
  bool huge_pages;  // the mapping is backed by huge pages (looked at again after growth of 2 MiB)
  bool read_only;
  Medium medium;
  Domain domain;          // what the persistence primitives do on this mapping
  Durability durability;  // kProcess or kPower; on anonymous memory kBest: nothing survives
  bool serves_backups;    // as PoolOptions::serve_backups asks
};

// What Pool::inspect() finds, in a pool that a process may have open for writing at that moment.
struct PoolInspection {
  bool
      // a process has it open for writing; then some of `info` is not known, see below
      open_to_write;
  // Whether the figures of allocated and free bytes were the same at two readings; else they are
  // near to what they were.
  bool exact;
  // Of these only the process that has it open knows, if there is one: high_water_bytes (here the
  // end of what is in use), clean and sealed (false meanwhile), huge_pages (false). Domain and
  // durability are those of an opening by default.
  PoolInfo info;
  std::vector<StructureInfo> structures;
};

// How Pool::backup() goes about it.
struct BackupOptions {
  // An earlier backup of this pool: only segments that differ from it are written, and restoring
  // needs it.
  std::string base;
  // Called now and then with the bytes looked at so far, and how many there are. It must not wait
  // for a thread that makes a backup, or shrinks the pool; if it does so itself, that is
  // kInvalidArgument.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

// What Pool::backup() did, and what it cost.
struct BackupReport {
  uint64_t pool_bytes = 0;     // the pool's size, free segments included
  uint64_t copied_bytes = 0;   // in use, so copied
  uint64_t written_bytes = 0;  // to the file: less than that with a base
  uint64_t elapsed_ns = 0;     // how long it took
  uint64_t protect_ns = 0;     // how long every writer may have been held up at the beginning
  uint64_t pause_ns_max = 0;   // the longest wait of a writer after that
  uint64_t pauses = 0;         // how often one waited
};

// Owns the mapping. Movable, not copyable. All methods may be called from several threads, except
// close() and the destructor. A pool that was closed or moved from has no other method: kInUse.
class Pool {
 public:
  static constexpr uint64_t kMinCapacityBytes = uint64_t{2} << 20;
  static constexpr uint64_t kMaxCapacityBytes = uint64_t{1} << 40;

  // Makes a new pool file. Errors: kExists, kPermission, kReadOnly, kCapacity, kNoSpace,
  // kDurability, kNotFound (the folder), kIo. On error no file is left behind.
  static Pool create(const std::string& path, const PoolOptions& options = {});

  // Opens a pool file and completes what a crash interrupted. Errors: kNotFound, kNotAFile,
  // kPermission, kEmpty, kForeign, kTruncated, kCorrupt, kVersion, kLocked, kReadOnly, kDurability;
  // of PoolOptions::capacity_at_least_bytes also kCapacity, kInvalidArgument, kIo.
  static Pool open(const std::string& path, const PoolOptions& options = {});

  // What the file of a pool tells while another process may have it open for writing: sizes, and
  // which structures there are, as they were at a moment of the call. Takes no lock, so that it
  // keeps nobody from opening the pool, and needs read permission alone; writes nothing; waits for
  // nobody. In a pool that a crash left open, a structure that was just being made, renamed or
  // dropped is reported as it is before that is completed.
  // Errors: those of open(); kLocked if, for five seconds, a writer made or dropped structures, or
  // grew, without a pause.
  // Cost: reads the root directory and the descriptors, 256 bytes for each 64 KiB, twice.
  static PoolInspection inspect(const std::string& path);

  // A pool on private anonymous memory: same code paths, gone with the process.
  static Pool anonymous(const PoolOptions& options = {});

  Pool(Pool&&) noexcept;
  Pool& operator=(Pool&&) noexcept;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  // Closes the pool as close() does, but swallows errors. If structures of the pool are open, it
  // stays mapped until the last of them closes; until then they can be read, and writes are kInUse.
  ~Pool();

  // Marks the pool as cleanly closed and unmaps it. Errors: kInUse if structures of the pool are
  // open (nothing has changed then), kIo.
  void close();

  // Makes everything written so far survive a power failure where the medium can (an ordinary
  // file in durability `process`: one msync of the whole pool). Cost: proportional to dirty pages.
  void sync();

  // Cost of info(): reads all segment descriptors, one line for each 64 KiB.
  PoolInfo info() const;
  std::vector<StructureInfo> structures() const;

  // Gives a structure another name, atomically; durable on return. Structures are removed by
  // drop_structure() (perdure/catalog.h). Errors: kNoSuchName, kNameExists, kInvalidArgument (the
  // name), kInUse (the structure is open), kReadOnly, kIo. Cost: three fences.
  void rename(const std::string& from, const std::string& to);

  // Gives space at the end of the pool that nothing is in back to the medium, and returns by how
  // many bytes the file is shorter then (in anonymous memory: the pool). It is kept: the 128 KiB
  // that removals may need, and up to the end of a huge page. Free space between blocks stays the
  // pool's, which uses it again; nothing is moved. The pool grows again when it must. A crash
  // leaves a pool that has all its records, and was shrunk or was not. Opening it again finds its
  // size; a file that is longer than that is cut by the next call. Waits for backups of the pool;
  // from BackupOptions::progress it is kInvalidArgument.
  // Errors: kInUse (a structure is open; nothing has changed), kReadOnly, kIo (if the file could
  // not be cut, the pool goes on, smaller). Cost: reads all segment descriptors, and one msync of
  // the pool's file.
  uint64_t shrink();

  // Writes a copy of the pool, as it is at one instant within the call, to the file `path`, while
  // other threads go on reading and writing: all that had returned before the call is in it, and of
  // later writes those that came before the instant. An earlier backup of this name, but no other
  // file, and none that the new one rests on, is replaced once that is whole; until then it is
  // PATH.<random>.unfinished. Read back it is a pool whose process died.
  //
  // A thread that writes to a part of the pool which is not copied yet waits until that part is, in
  // a handler of SIGSEGV that the call installs; other faults go on to the handler that was there.
  // Neither any other thread's signal mask nor a later handler may keep SIGSEGV from it. System
  // calls of the program that write into the pool's memory themselves fail with EFAULT meanwhile.
  // One backup runs at a time in a process; others wait.
  //
  // Errors: kNotFound, kPermission, kNoSpace, kExists, kIo (of the file; or the pool's medium has
  // failed), kInvalidArgument, kCorrupt, kVersion (the base). On error no file is left behind, and
  // an earlier one stays.
  BackupReport backup(const std::string& path, const BackupOptions& options = {}) const;

  // The same of a pool file that another process has open to write, which makes the backup and goes
  // on, if it opened the pool with PoolOptions::serve_backups. It is handed the open file, and
  // opens none itself. One backup is made at a time; others that are asked for wait. Errors
  // besides: kLocked (nobody answers; or, for ten seconds, not a word), kPermission (who answers is
  // another user), kInUse (too many ask; it is closing the pool), kIo (it has ended).
  static BackupReport backup_live(const std::string& pool, const std::string& path,
                                  const BackupOptions& options = {});

  // Makes the pool file `path` of a backup. A backup on a base needs it, and its base, and so on:
  // they are looked for among `bases`, or else under the names they had, beside the backup. All
  // that is read is verified.
  // Errors: kExists, kNotFound (a base), kCorrupt, kTruncated, kForeign, kVersion, kNoSpace,
  // kPermission, kIo. On error no file is left behind. Durable on return, where the medium can.
  static void restore(const std::string& backup, const std::string& path,
                      const std::vector<std::string>& bases = {});

  // Verifies header, root directory and heap; of a read-only pool also the seals, if the last close
  // has made them. Calls `report` with one sentence for each violated invariant; returns how many
  // there were. Structures have their own check.
  uint64_t check(const std::function<void(const std::string&)>& report) const;

 private:
  friend pm::PoolImpl& pm::impl_of(const Pool& pool);
  explicit Pool(std::unique_ptr<pm::PoolImpl> impl);
  pm::PoolImpl& impl() const;
  // Shared with the pool's open structures.
  std::shared_ptr<pm::PoolImpl> impl_;
};

}  // namespace perdure
