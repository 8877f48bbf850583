// The log archive: a file of log entries that the log no longer needs, in the order of their LSNs,
// without a gap.
//
//   | magic 8 | salt 8 | begin 8: LSN | log_bytes 8 | checksum 8 | - 24 | entries, see log.h ... |
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "buffer/log.h"
#include "buffer/page.h"
#include "perdure/error.h"

namespace perdure::buffer {

class Archive {
 public:
  // Opens the file, for a log that begins at `head`; one that is not there is made, and empty.
  // Nothing in it is changed before start(). Throws kIo, kPermission, kNoSpace; kLocked (another
  // process has it open); kInvalidArgument: the file is no archive, or that of another database.
  // kCorrupt: entries before `head` are damaged, or missing since the database was used without it.
  Archive(const std::string& path, uint64_t salt, uint64_t log_bytes, uint64_t head);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // What there was when it was opened: no file, an empty one, or one with a header.
  enum class Before : uint8_t { kMissing, kEmpty, kBegun };
  Before before() const { return before_; }
  // Whether more than a header is in the file, as far as can be told.
  static bool has_entries(const std::string& path);

  // Gives an empty file its header, and cuts off what a crash has left at the end, which the log
  // still has. Before add(); does nothing when it is called again. Durable on return. Throws kIo,
  // kNoSpace.
  void start();
  // Adds the log's entries of [from, to). Durable on return. Throws kIo, kNoSpace.
  void add(const Log& log, uint64_t from, uint64_t to);
  // Makes a page from its records here and in the log, up to `lsn` (0: all). False if they do not
  // begin with an image, or not all are there. Reads the whole archive. Throws kIo.
  bool make_page(const PageFormat& format, const Log& log, uint64_t id, uint64_t lsn,
                 char* page) const;

 private:
  // The header, verified, or what an empty file is to have.
  void read_header(uint64_t head);
  // Calls `visit(lsn, entry)` for all whole entries up to the file's byte `end`, as long as none is
  // missing; returns the bytes up to the last one's end.
  template <typename Visit>
  uint64_t visit_entries(uint64_t end, Visit visit) const;
  // False: there are fewer bytes.
  bool read(uint64_t at, void* to, size_t bytes) const;
  [[noreturn]] void refuse(ErrorCode code, const std::string& what) const;

  std::string path_;
  std::string subject_;  // of messages
  Before before_ = Before::kBegun;
  bool is_new_ = false;  // it is empty
  uint64_t salt_;
  uint64_t log_bytes_;
  int fd_ = -1;
  uint64_t begin_lsn_ = 0;
  std::atomic<uint64_t> bytes_{0};
  uint64_t end_lsn_ = 0;  // entries from begin_lsn_ up to here are there
};

}  // namespace perdure::buffer
