// The log archive: a file of log entries that the log no longer needs, in the order of their LSNs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "buffer/log.h"
#include "buffer/page.h"

namespace perdure::buffer {

class Archive {
 public:
  // Opens or makes the file; what a crash has left of an entry at its end is cut off. Throws kIo, kPermission.
  Archive(std::string path, uint64_t salt);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // Adds the log's entries of [from, to). Durable on return. Throws kIo, kNoSpace.
  void add(const Log& log, uint64_t from, uint64_t to);
  // Makes a page from its records here and in the log, up to `lsn` (0: all). False if they do not begin with an image,
  // or not all are there. Reads the whole archive.
  bool make_page(const PageFormat& format, const Log& log, uint64_t id, uint64_t lsn,
                 char* page) const;

 private:
  // Calls `visit(lsn, entry)` for all whole entries; returns the bytes up to the last one's end.
  template <typename Visit>
  uint64_t visit_entries(Visit visit) const;
  [[noreturn]] void fail(const char* call) const;

  std::string path_;
  uint64_t salt_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  uint64_t end_lsn_ = 0;  // entries before are there
};

}  // namespace perdure::buffer
