// What is known of pages after a crash, and how one is brought to where the log says it must be.
//
// Reading the log gives each page in it the LSN that it must have: the last record's. After that
// the database is open; a page is judged when it is first asked for, or when the background comes
// to it:
//   in PM, checksums do not fit                         corrupted: from the page store, and all its records
//   in PM, sound, the LSN expected                      right
//   in PM, sound, an older LSN                          its later records, in place
//   in PM, sound, a newer LSN (of an unfinished commit) from the page store, and all its records
//   in PM, sound, not in the log, an LSN before its head  right
//   not in PM                                           from the page store, and its records, if it has any
// A page whose records begin with an image of it needs no older version. The version in the page
// store must be one that the chain of records names; else the page store is damaged, and so is a
// page whose checksums do not fit: then the page is made from the archive, if there is one, or is
// an error. What is made of a page that the log names is not made durable for itself: the log is,
// and a crash during it begins with the log again. A page that the log does not name is flushed
// (pool.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>
#include <vector>

#include "buffer/log.h"
#include "buffer/page.h"
#include "buffer/page_store.h"

namespace perdure::buffer {

struct RecoveryCounters {
  std::atomic<uint64_t> right{0};
  std::atomic<uint64_t> older{0};
  std::atomic<uint64_t> newer{0};
  std::atomic<uint64_t> corrupted{0};
  std::atomic<uint64_t> fetched{0};   // not in PM, with records to replay
  std::atomic<uint64_t> replayed{0};  // records
  std::atomic<uint64_t> archived{0};  // pages made from the archive
};

// The pages that the log names, with what it says of them, in the order of their first records
// there. A table with open addressing leads from a page to its place: when a database is opened,
// some hundred thousand are noted one after the other, and each is a miss of the caches.
class NamedPages {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Named {
    uint64_t page;
    uint64_t lsn;    // of the last record
    uint64_t entry;  // where the first one's entry is
  };

  // Notes a record, later than all before. What was noted may be found after flush().
  void note(uint64_t page, uint64_t entry, uint64_t lsn) {
    waiting_[waiting_count_++] = {page, lsn, entry};
    if (waiting_count_ == waiting_.size()) flush();
  }
  void flush();

  // Its place in the order, or kNone. Thread-safe when all is noted.
  uint32_t find(uint64_t page) const;
  const Named& operator[](uint64_t place) const { return pages_[place]; }
  uint64_t size() const { return pages_.size(); }

 private:
  uint64_t slot_of(uint64_t page) const { return page * 0x9e3779b97f4a7c15 >> shift_; }
  // The page's slot, or the empty one where it belongs.
  uint64_t find_slot(uint64_t page) const;
  void grow();

  static constexpr unsigned kFirstBits = 12;
  std::vector<Named> pages_;
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(1 << kFirstBits);  // a place + 1; 0: empty
  unsigned shift_ = 64 - kFirstBits;
  // Noted together, so that their misses overlap.
  std::array<Named, 32> waiting_;
  size_t waiting_count_ = 0;
};

class Recovery {
 public:
  Recovery(const PageFormat& format, Log& log, PageStore& store)
      : format_(format), log_(log), store_(store) {}

  // Reads the log. Then tells what is pending.
  void analyse(uint64_t head);

  struct Expected {
    uint64_t lsn;    // of the last record
    uint64_t entry;  // where the first one's entry is, or before
  };
  // Whether records of the page wait, and what they make of it.
  bool find(uint64_t id, Expected& expected) const;
  // The page is in a frame now, which keeps the log as far as it needs.
  void settle(uint64_t id);
  // The oldest LSN that pending pages need, or `otherwise`.
  uint64_t oldest(uint64_t otherwise) const;
  // Hands out the pending pages in the order in which they let go of the log: by the entry of their
  // first record. Each one once, but for those that are put back. kNoPage: there is none.
  uint64_t take_next();
  void put_back();
  // The page cannot be made, and is not handed out again.
  void give_up(uint64_t id);
  // One of those that could not be made, or kNoPage.
  uint64_t given_up() const;
  uint64_t pending() const { return pending_count_.load(std::memory_order_acquire); }

  // A page found in a PM frame: makes it right, in place. Returns the parts whose checksums must be
  // computed.
  PartMask judge(uint64_t id, char* page, char* scratch);
  // Makes a page in `page` from the page store and the log. All checksums must be computed then.
  // `ahead`: what the page store has of it, read since the opening; of a page that the log does not
  // name any more it does not count, unless it is `page` itself, into which nobody else has read it
  // meanwhile. Null: it is to be read.
  void fetch(uint64_t id, char* page, const char* ahead = nullptr);

  // Makes the page `id` from its first record on, up to the LSN (0: the last one in it); false if
  // it cannot.
  using Archive = std::function<bool(uint64_t id, uint64_t lsn, char* page)>;
  void set_archive(Archive archive) { archive_ = std::move(archive); }

  // For who reads a damaged database with a log that is torn, or an older copy: pages that are
  // sound and newer than what the log has are taken as they are, and noted. After analyse(); by one
  // thread only, which also does all else then.
  //
  // What such a page may hold: in the page store, what a commit has left that was durable in the
  // log as it was then, as no page gets there before (no-steal), and what was undone never does. In
  // a frame, one that is below the end of the log, which moves when an entry is durable: the same,
  // or what a commit that failed had written before it was undone, if a power failure came right
  // after it; only the entries could tell. From the end on it may be of a commit that was not
  // durable when the process died: that is not taken. The pages are of different moments then: what
  // the commits that changed them have done to other pages may be missing.
  void keep_newer() { keeps_newer_ = true; }
  const std::set<uint64_t>& kept_newer() const { return kept_newer_; }

  const RecoveryCounters& counters() const { return counters_; }
  RecoveryCounters& counters() { return counters_; }

 private:
  struct Chain {
    std::vector<uint64_t> lsns;  // newest first
    uint64_t before;             // the LSN that the page had before the oldest of them
    bool whole;                  // the oldest one is an image
  };
  bool is_pending(uint32_t place) const;
  // The records of a page from `lsn` back, not those at `known` and before.
  Chain chain_of(uint64_t id, uint64_t lsn, uint64_t known) const;
  PartMask replay(uint64_t id, char* page, const Chain& chain, uint64_t known);
  // Whether this is page `id` as something has written it: its checksums fit, and it may be read.
  bool is_sound(uint64_t id, const char* page) const;
  // Whether it is to be taken as it is, from where nothing is that is not durable.
  bool keeps(uint64_t id, const char* page, uint64_t older);
  [[noreturn]] void damaged(uint64_t id, const char* what) const;

  const PageFormat& format_;
  Log& log_;
  PageStore& store_;
  uint64_t open_head_ = 0;
  uint64_t open_tail_ = 0;  // before the opening's mark
  bool keeps_newer_ = false;
  std::set<uint64_t> kept_newer_;
  NamedPages pages_;
  std::unique_ptr<std::atomic<bool>[]> settled_;  // of each of them
  std::atomic<uint64_t> pending_count_{0};
  mutable std::mutex mutex_;
  // Places in the order of the pages: those before the first one are settled, those before the
  // second one handed out.
  mutable uint64_t oldest_ = 0;
  uint64_t next_ = 0;
  std::unordered_set<uint64_t> given_up_;
  Archive archive_;
  RecoveryCounters counters_;
};

}  // namespace perdure::buffer
