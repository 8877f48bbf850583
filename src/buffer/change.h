// The changes of one commit: to pages, which stay held exclusively, and to the log entry that tells
// of them. Only one thread at a time makes changes.
//
// Each change is carried out by the record that the log gets (replay.h), so that what recovery
// repeats is what was done. Until the entry is durable, rollback() undoes it all, byte by byte
// (page_undo.h). (To undo record by record does not do: a page that holds the same records again
// may have another layout, in which there is no room for them, or not for those that come next.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "buffer/log.h"
#include "buffer/page_undo.h"
#include "buffer/pool.h"

namespace perdure::buffer {

// The body of page 0.
struct SpaceBody {
  uint64_t pages;  // ids below are in use, or in the list of free ones
  uint64_t free;   // the first of those, or 0
  uint64_t free_count;
  uint64_t salt;  // the database's: other files are refused
};

// The body of an overflow page, followed by its bytes; a free page has `next` alone.
struct OverflowBody {
  uint64_t next;
  uint64_t bytes;
};

// The pages that a change has pinned. A few are looked through, of many there is an index.
class HeldPages {
 public:
  struct Held {
    uint64_t page;
    Frame* frame;
    std::optional<PageUndo> undo;  // of one that is edited: what it was, held exclusively
    PartMask unsealed;             // of its checksums then
    bool fresh;
  };

  // Null: it is not held. Until another one is added.
  Held* find(uint64_t page);
  // Throws std::bad_alloc; then it is not held.
  Held& add(uint64_t page, Frame& frame);
  void clear();
  std::vector<Held>& all() { return held_; }
  const std::vector<Held>& all() const { return held_; }

 private:
  static constexpr size_t kFew = 16;
  static constexpr size_t kKeptMax = 1024;
  std::vector<Held> held_;
  std::vector<uint64_t> pages_;  // theirs
  std::unordered_map<uint64_t, size_t> index_;
};

// Memory that the next changes take: from the heap it would take as long as what is done with it.
// By one thread at a time.
class SpareMemory {
 public:
  SpareMemory() { undos_.reserve(kUndosMax); }
  // For a PageUndo.
  std::string undo(const PageFormat& format);
  // Takes no memory.
  void keep(std::string undo);
  // An empty entry, with room for its header.
  std::vector<char> entry();
  void keep(std::vector<char> entry) {
    if (entry.capacity() <= kEntryBytesMax) entry_ = std::move(entry);
  }
  HeldPages& pages() { return pages_; }

 private:
  static constexpr size_t kUndosMax = 64;
  static constexpr size_t kEntryBytesMax = size_t{1} << 20;
  std::vector<std::string> undos_;
  std::vector<char> entry_;
  HeldPages pages_;
};

class Change {
 public:
  Change(BufferPool& pool, Log& log, SpareMemory& spare, uint64_t pages_max);
  ~Change();  // releases the pages; what was neither finished nor rolled back is rolled back
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  const PageFormat& format() const { return pool_.format(); }
  uint64_t lsn() const { return lsn_; }

  // A page to read. Held by nobody else while changes are made, but by readers.
  const char* read(uint64_t page);

  // Changes of pages, which throw kTooLarge if the log entry becomes too long.
  void insert(uint64_t page, uint32_t slot, std::string_view key, std::string_view value,
              bool overflow);
  void erase(uint64_t page, uint32_t slot);
  void replace(uint64_t page, uint32_t slot, std::string_view value, bool overflow);
  void patch(uint64_t page, uint32_t offset, std::string_view bytes);
  // The whole body: its begin and its end.
  void image(uint64_t page, PageType type, std::string_view begin, std::string_view end);

  // Counts the page as edited, without a change: who has scanned it is to see that it has lost a
  // part of its keys.
  void touch(uint64_t page) { edit(page); }

  // The space page of a database that has none.
  void format_space(std::string_view body) {
    edit(0, true);
    image(0, PageType::kSpace, body, {});
  }
  // A page for an image. Throws kPoolFull.
  uint64_t allocate();
  void free(uint64_t page);

  // Completes the log entry and writes it; durable after the log's next fence.
  void write();
  // After that fence: readers may see the pages.
  void finish() {
    done_ = true;
    release();
  }
  // Calls `visit(page, its LSN before, what it was)` for the pages of trees that were there before
  // and have changed; the last one is a function. Before finish().
  template <typename Visit>
  void visit_replaced(const Visit& visit) const {
    for (const HeldPages::Held& page : held_.all()) {
      if (!page.undo || page.fresh) continue;
      const PageHeader before = page.undo->header();
      const bool of_tree = before.type == PageType::kNode || before.type == PageType::kOverflow;
      // Touched only: it is as it was.
      const bool changed = header_of(page.frame->data).lsn != before.lsn;
      if (!of_tree || !changed) continue;
      visit(page.page, before.lsn, [&] { return page.undo->before(page.frame->data); });
    }
  }
  template <typename Visit>
  void for_each_edited(Visit visit) const {
    for (const HeldPages::Held& page : held_.all()) {
      if (page.undo) visit(page.page);
    }
  }
  bool is_empty() const { return !edited_; }
  // The pages are as before, and no LSN of this change will be given again. Throws kIo if the pool
  // has failed.
  void rollback();

 private:
  // Pins it. Until another page is.
  HeldPages::Held& hold(uint64_t page, bool fresh);
  // To change it; as above.
  HeldPages::Held& edit(uint64_t page, bool fresh = false);
  void apply(uint64_t page, Op op, bool overflow, uint32_t slot, std::string_view key,
             std::string_view value);
  void release();

  BufferPool& pool_;
  Log& log_;
  SpareMemory& spare_;
  uint64_t pages_max_;
  uint64_t lsn_;
  uint64_t bytes_max_;
  bool done_ = false;
  bool edited_ = false;
  std::vector<char> entry_;
  HeldPages& held_;
};

}  // namespace perdure::buffer
