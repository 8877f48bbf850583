// Removing a structure: its blocks are freed by a list, since a crash may come at any time and
// opening a pool knows nothing of structures.
//
//   Drop drop(pool, "words");          // nobody has it open but the caller
//   index.visit_blocks(... drop.add(offset));
//   drop.commit();                     // durable: the structure is gone
//   ...close it; PoolImpl::is_dropped(&root) keeps it from writing...
//   drop.finish();                     // its blocks are free
//
// In PM: the directory entry leads to a chain of pages that name all blocks of the structure
// (pm/layout.h).
//
// Persist points
//   - each page, and its intent, before the entry leads to it (by a redo record): a crash finds a
//     list that is not complete beside an entry in use, and frees the pages alone: nothing was
//     dropped;
//   - all pages, before the entry is marked as dropped: from then on the structure is gone, and
//     whoever opens the pool carries on;
//   - the bits of all blocks, before the first page is let go: a crash clears them all again, which
//     does no harm, since no block is handed out before
//   - the entry is free, durably: were a block given to somebody else earlier, a crash would free
//     it under him.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pm/heap.h"
#include "pm/layout.h"

namespace perdure::pm {

class PoolImpl;

class Drop {
 public:
  // The caller has a PoolImpl::Use of the structure, or an object that has. Throws kNoSuchName,
  // kReadOnly, kIo.
  Drop(PoolImpl& pool, std::string_view name);

  // A block of the structure. Throws kCorrupt if it is not in use, or was added before.
  void add(uint64_t offset);
  uint64_t freed_bytes() const { return bytes_; }

  // Durable on return. Throws kPoolFull, kNoSpace (there is no room for the list), kIo; then the
  // structure is as it was, unless the medium has failed: then the next opening decides.
  void commit();

  // After commit(), when the structure is closed. Throws kIo: then the next opening goes on.
  void finish();

  // When a pool is opened, before anything is allocated: frees what dropped structures had. Throws
  // kCorrupt.
  static void clear_interrupted(PoolImpl& pool);
  // The same, when allocation works and the directory is verified: lets go of lists and entries.
  static void finish_interrupted(PoolImpl& pool);

 private:
  // Both throw kCorrupt if there is no such page.
  static const DropPage& page_at(PoolImpl& pool, uint64_t offset);
  static std::vector<Heap::Part> read_page(PoolImpl& pool, uint64_t offset);
  // Frees all pages of the entry's list; with the last one goes the entry, if its structure was
  // dropped.
  static void free_pages(PoolImpl& pool, uint32_t entry);
  static void replace_entry(PoolImpl& pool, uint32_t number, DirectoryEntry entry);

  void write_page(const uint64_t* words, size_t count);
  // How many of the words from `begin` on are whole records that a page of `room` words holds.
  static size_t whole_records(const std::vector<uint64_t>& words, size_t begin, size_t room);
  std::vector<uint64_t> records() const;

  PoolImpl& pool_;
  uint32_t entry_;
  std::map<uint64_t, Heap::Part> parts_;  // by segment
  uint64_t bytes_ = 0;
};

}  // namespace perdure::pm
