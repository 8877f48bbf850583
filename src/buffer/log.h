// The write-ahead log: a ring of entries, in PM or in a file, one for each commit, with
// physiological redo records.
//
//   entry   | checksum 8 | lsn 8 | bytes 4 | kind 4 | records ... | padding to 64 bytes |
//   record  | page 8 | previous 8 | bytes 4 | op 2 | slot 2 | key_bytes 4 | value_bytes 4 | key | value | padding |
//
// An LSN is a number of bytes; what it names lies at lsn % log_bytes, and may wrap around the
// ring's end. The records of one page are chained: `previous` is the page's LSN before. An entry is
// written past the caches and made durable by one fence, or by one fdatasync; several commits may
// share it. What is there of an entry after a crash, its checksum tells; the log ends before the
// first one that does not fit.
//
// Why no crash makes an old entry pass for a new one, or an LSN mean two things: each opening ends
// the log with a *mark*, an entry without records whose LSN is log_bytes further than its place
// would give, and so are all later ones. An entry that a crash left whole behind a torn one, and a
// page in PM that an unfinished commit has changed, bear LSNs that will never be given again,
// whatever is written there later. The mark is durable before the first transaction; a crash before
// that leaves nothing that bears an LSN behind the old end. The same is done when a commit fails
// that has changed pages.
//
// PM keeps the end, an LSN that moves when an entry is durable and before anybody hears of its
// commits. Entries up to there are whole, until the head passes them: a log in which they are not
// is damaged, or in a file an older copy, and is refused. Of a log in a file the word is durable
// before anybody hears of the commits. Of one in PM that would be a second fence for each: it is
// stored only, so that it outlives the process, and flushed with what else needs a fence. A power
// failure may leave an older one, which is never ahead of the entries: damage to those behind it
// looks like a torn tail, unless a whole entry follows. (Databases that were made before it was
// kept in PM have none there.)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer/log_file.h"
#include "pm/memory.h"

namespace perdure::buffer {

enum class EntryKind : uint32_t { kCommit = 1, kMark = 2 };

struct EntryHeader {
  uint64_t checksum;  // xxh3 of what follows up to `bytes`, seeded with the log's salt
  uint64_t lsn;
  uint32_t bytes;  // a multiple of 64
  EntryKind kind;
};
static_assert(sizeof(EntryHeader) == 24);

// What a record does with its page.
enum class Op : uint16_t {
  kImage = 1,    // the whole body: key is its begin, value its end, slot the page's type
  kInsert = 2,   // of a node: key and value at a slot
  kErase = 3,    // the slot
  kReplace = 4,  // the slot's value
  kPatch = 5,    // value at an offset of the body, which is the slot
};
// Added to the op: the value of a record in a node is a reference to overflow pages.
inline constexpr uint16_t kOverflowBit = 0x100;

struct RecordHeader {
  uint64_t page;
  uint64_t previous;  // LSN, or 0: the page's first
  uint32_t bytes;     // a multiple of 8
  uint16_t op;        // Op, and kOverflowBit
  uint16_t slot;
  uint32_t key_bytes;
  uint32_t value_bytes;
};
static_assert(sizeof(RecordHeader) == 32);

struct LogRecord {
  RecordHeader header;
  std::string_view key;
  std::string_view value;
  Op op() const { return static_cast<Op>(header.op & (kOverflowBit - 1)); }
  bool overflow() const { return (header.op & kOverflowBit) != 0; }
};

// Reads the record at `at`, of which `bytes` are there. False if it makes no sense.
bool parse_record(const char* at, uint64_t bytes, LogRecord& record);

class Log {
 public:
  static constexpr uint64_t kAlign = 64;
  static constexpr uint64_t kFirst = 64;  // 0 means no LSN
  // LSNs are below: words in PM keep them, without their low bits, in 48 bits. Each opening and
  // each commit that fails half-way takes as many as the ring has bytes. No commit begins in the
  // last ones, which are for openings.
  static constexpr uint64_t kLsnMax = kAlign << 48;
  static constexpr uint64_t kLsnsForOpenings = uint64_t{1} << 50;

  // `end`: the word in PM that keeps its end, or null; `to_read`: even if it is damaged.
  Log(const pm::Memory& memory, char* ring, uint64_t* end, uint64_t bytes, uint64_t salt,
      bool to_read = false)
      : memory_(memory), ring_(ring), bytes_(bytes), salt_(salt), end_(end), to_read_(to_read) {}
  // In a file.
  Log(const pm::Memory& memory, std::unique_ptr<LogFile> file, uint64_t* end, uint64_t bytes,
      uint64_t salt)
      : memory_(memory),
        ring_(file->ring()),
        bytes_(bytes),
        salt_(salt),
        file_(std::move(file)),
        end_(end) {}

  // Reads the log from `head` to its end, and calls `visit` for each record. Throws kCorrupt if it
  // does not hold all that it must.
  using Visit = std::function<void(uint64_t entry, uint64_t lsn, const LogRecord& record)>;
  void analyse(uint64_t head, const Visit& visit);
  // Of what was read by analyse(), where the process that wrote it died: it may be in the caches
  // only. Durable on return, before a page with such an LSN may be: else a power failure would
  // leave pages that no log can mend. Nothing else writes to the log meanwhile.
  void make_durable();
  // Ends what was: LSNs up to here will not be given again. Durable on return. Takes no memory.
  void mark();

  // The LSN that the next entry will have.
  uint64_t tail() const { return tail_.load(std::memory_order_acquire); }
  uint64_t head() const { return head_.load(std::memory_order_acquire); }
  // Where the entries ended that analyse() found. Not behind what tail() was then, and before it if
  // entries are missing.
  uint64_t read_to() const { return read_to_; }
  // Bytes in use from `head` on, and those that an entry may have now.
  uint64_t used() const;
  uint64_t bytes() const { return bytes_; }
  uint64_t room() const;

  // Completes and writes an entry, which begins with room for its header; its LSN is tail().
  // Durable after fence(). Throws kIo of a file: nothing more is written then.
  void append(std::vector<char>& entry);
  void fence();
  // Of a log in PM: where it ends is durable after the next fence of this thread. Thread-safe.
  void keep_end() const;
  bool is_in_file() const { return file_ != nullptr; }
  // Throws kNoSpace if there are too few LSNs left to commit.
  void require_lsns() const;
  // Throws kIo if the file has failed. Thread-safe.
  void require_sound() const {
    if (file_) file_->require_sound();
  }
  // Whether one that is only read does not hold all that it must.
  bool lacks_entries() const { return lacks_entries_; }
  // Nor whether it does, as PM has lost where it ends.
  bool has_lost_end() const { return has_lost_end_; }
  // Entries before `head`, an entry's LSN, may be overwritten.
  void release_before(uint64_t head);

  // Copies the record at `lsn`. False if there is none that makes sense.
  bool read_record(uint64_t lsn, std::vector<char>& buffer, LogRecord& record) const;
  // Copies [from, to), which lies in the log, entry by entry.
  void read_entries(uint64_t from, uint64_t to,
                    const std::function<void(std::string_view entry)>& visit) const;

  static void visit_records(uint64_t lsn, const char* entry, uint64_t bytes, const Visit& visit);
  static bool entry_is_sound(const char* entry, uint64_t bytes, uint64_t salt);

 private:
  struct Found {
    uint64_t lsn = 0;
    std::string_view entry;  // empty: there is none
  };
  // While nobody writes to the log an entry is read in the ring; else it is copied first, and then
  // judged.
  enum class Others : uint8_t { kNone, kMayWrite };
  // The entry at `lsn`: in the ring, or in `copy`, as is one that wraps around the ring's end.
  Found entry_at(uint64_t lsn, Others others, std::vector<char>& copy) const;
  // The entry that follows what ends at `lsn`: there, or a mark further on.
  Found next_entry(uint64_t lsn, Others others, std::vector<char>& copy) const;
  void copy_out(uint64_t lsn, char* to, uint64_t bytes) const;
  // [lsn, lsn + bytes) in the ring, in one piece or two: visit(at, bytes, bytes before it).
  template <typename VisitPiece>
  void visit_pieces(uint64_t lsn, uint64_t bytes, VisitPiece visit) const;
  // Whole lines.
  void write(std::span<char> entry, EntryKind kind, uint64_t lsn);
  void put(uint64_t at, const char* from, uint64_t bytes);
  bool is_to_read() const { return file_ ? file_->is_to_read() : to_read_; }
  void judge_end();
  void judge_ring(uint64_t used);

  const pm::Memory& memory_;
  char* ring_;
  uint64_t bytes_;
  uint64_t salt_;
  std::unique_ptr<LogFile> file_;  // null: in PM
  uint64_t* end_ = nullptr;        // checked
  bool to_read_ = false;           // of one in PM
  bool lacks_entries_ = false;
  bool has_lost_end_ = false;
  uint64_t read_to_ = kFirst;
  std::atomic<uint64_t> head_{kFirst};
  std::atomic<uint64_t> tail_{kFirst};
  std::atomic<uint64_t> used_{0};
};

}  // namespace perdure::buffer
