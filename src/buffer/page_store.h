// Where pages are when they are not in the buffer pool: a file of the system, or a part of the
// pool. Pages here never have changes that are not durable in the log; a page that is torn or
// damaged is found by its checksums.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pm/memory.h"

namespace perdure::buffer {

class PageStore {
 public:
  virtual ~PageStore() = default;
  // Reads a page into `page`, zeros where nothing was written. Throws kIo.
  virtual void read(uint64_t id, char* page) = 0;
  // Writes it; durable after sync(). Throws kIo, kNoSpace. Other pages keep their content.
  virtual void write(uint64_t id, const char* page) = 0;
  struct PageWrite {
    uint64_t id;
    const char* page;
  };
  // The same for a batch, side by side where the system can. If it throws, some were written.
  virtual void write_all(std::span<const PageWrite> pages) {
    for (const PageWrite& one : pages) write(one.id, one.page);
  }
  struct PageRead {
    uint64_t id;
    char* page;
  };
  // As read(), for a batch, side by side where the system can. If it throws, some were read.
  virtual void read_all(std::span<const PageRead> pages) {
    for (const PageRead& one : pages) read(one.id, one.page);
  }
  virtual void sync() = 0;
  // How many pages there is room for.
  virtual uint64_t capacity() const = 0;
  // Whether read_all() and write_all() go through io_uring.
  virtual bool has_ring() const { return false; }
};

// Faults of a page file, for tests: called before each read, write (with the bytes about to be
// written, which it may change; it returns how many of them to write) and sync; may throw.
class PageFaults {
 public:
  virtual ~PageFaults() = default;
  virtual void read(uint64_t id, char* page, uint32_t bytes) = 0;  // after the read
  // After a batch that was read side by side.
  virtual void read_all(std::span<const PageStore::PageRead> pages, uint32_t bytes) {
    for (const PageStore::PageRead& one : pages) read(one.id, one.page, bytes);
  }
  virtual uint32_t write(uint64_t id, uint32_t bytes) = 0;
  // The same of one of those that will be written side by side; `place` counts them from 0.
  virtual uint32_t write_beside(uint64_t id, uint32_t bytes, size_t /*place*/) {
    return write(id, bytes);
  }
  virtual void sync() = 0;
};
// Of page files that are opened from now on; null: none. Not thread-safe.
void inject_page_faults(PageFaults* faults);

// A file, with O_DIRECT where its file system allows that; batches go through io_uring, or by pread
// and pwrite where that is refused or PERDURE_IO_URING=0 is in the environment. Durable with its
// name, if it was made. `path` exists if `create` is false. Throws kNotFound, kExists, kPermission,
// kReadOnly, kLocked (another process has it open), kIo.
std::unique_ptr<PageStore> open_page_file(const std::string& path, uint32_t page_bytes,
                                          bool create);
// The same file, of which nothing is changed: what is written is kept in memory. For one thread.
std::unique_ptr<PageStore> open_page_file_to_read(const std::string& path, uint32_t page_bytes);
// `pages` pages at `area`, in PM.
std::unique_ptr<PageStore> open_page_area(const pm::Memory& memory, char* area, uint64_t pages,
                                          uint32_t page_bytes);

}  // namespace perdure::buffer
