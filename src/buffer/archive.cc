#include "buffer/archive.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "buffer/data_file.h"
#include "buffer/replay.h"
#include "perdure/error.h"
#include "pm/checksum.h"
#include "pm/file.h"
#include "pm/file_lock.h"
#include "pm/system_error.h"

namespace perdure::buffer {

namespace {

constexpr uint64_t kMagic = 0x3163724162447250;  // "PrDbArc1"

struct Header {
  uint64_t magic;
  uint64_t salt;
  uint64_t begin;
  uint64_t log_bytes;
  uint64_t checksum;
  uint64_t reserved[3];
};
static_assert(sizeof(Header) == 64);

uint64_t checksum_of(const Header& header) {
  return pm::checksum64(&header, offsetof(Header, checksum), kMagic);
}

}  // namespace

void Archive::refuse(ErrorCode code, const std::string& what) const {
  throw Error(code, fmt::format("{}: {}", subject_, what));
}

Archive::Archive(const std::string& path, uint64_t salt, uint64_t log_bytes, uint64_t head)
    : path_(path), subject_(path + ": the log archive"), salt_(salt), log_bytes_(log_bytes) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  fd_ = ::open(path.c_str(), kFlags | O_EXCL, 0644);
  const bool made = fd_ >= 0;
  if (!made && errno == EEXIST) fd_ = ::open(path.c_str(), kFlags, 0644);
  if (fd_ < 0) pm::throw_errno("open", subject_, errno);
  bool own = false;
  try {
    pm::lock_for_writer(fd_, path, "log archive");
    own = made;
    read_header(head);
    if (is_new_) before_ = made ? Before::kMissing : Before::kEmpty;
    end_lsn_ = begin_lsn_;
    bytes_ = visit_entries(
        ~uint64_t{0}, [&](uint64_t lsn, std::string_view entry) { end_lsn_ = lsn + entry.size(); });
    if (end_lsn_ < head) {
      refuse(ErrorCode::kCorrupt,
             fmt::format("it ends at {}, and the log begins at {}: it is damaged, or the database "
                         "was used without it; move it away, and give the name of a new one",
                         end_lsn_, head));
    }
  } catch (...) {
    if (own) ::unlink(path.c_str());
    ::close(fd_);
    throw;
  }
}

Archive::~Archive() { ::close(fd_); }

void Archive::read_header(uint64_t head) {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) pm::throw_errno("fstat", subject_, errno);
  is_new_ = S_ISREG(status.st_mode) && status.st_size == 0;
  begin_lsn_ = head;
  if (is_new_) return;
  Header header{};
  if (!S_ISREG(status.st_mode) || !read(0, &header, sizeof header) || header.magic != kMagic ||
      header.checksum != checksum_of(header)) {
    refuse(ErrorCode::kInvalidArgument, "the file is no log archive; it was not changed");
  }
  if (header.salt != salt_) {
    const bool is_bare = status.st_size == sizeof header;
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("it belongs to another database; it was not changed{}{}",
                       is_bare ? ". It has no entries: " : "", is_bare ? kIfLeftBehind : ""));
  }
  begin_lsn_ = header.begin;
}

bool Archive::has_entries(const std::string& path) {
  struct stat status{};  // takes no memory, which may be why the opening has failed
  return ::stat(path.c_str(), &status) != 0 || status.st_size > static_cast<off_t>(sizeof(Header));
}

void Archive::start() {
  if (is_new_) {
    Header header{kMagic, salt_, begin_lsn_, log_bytes_, 0, {}};
    header.checksum = checksum_of(header);
    pm::write_at(fd_, subject_, 0, &header, sizeof header);
    if (::fsync(fd_) != 0) pm::throw_errno("fsync", subject_, errno);
    pm::sync_parent_of(path_);
    is_new_ = false;
  } else if (::ftruncate(fd_, static_cast<off_t>(bytes_.load())) != 0) {
    // The log still has what a crash has torn.
    pm::throw_errno("ftruncate", subject_, errno);
  }
}

bool Archive::read(uint64_t at, void* to, size_t bytes) const {
  return pm::read_at(fd_, subject_, at, to, bytes) == bytes;
}

template <typename Visit>
uint64_t Archive::visit_entries(uint64_t end, Visit visit) const {
  std::vector<char> entry;
  uint64_t next = begin_lsn_;
  for (uint64_t at = sizeof(Header);;) {
    EntryHeader header;
    if (at >= end || !read(at, &header, sizeof header)) return at;
    const bool follows =
        header.lsn == next || (header.kind == EntryKind::kMark && header.lsn == next + log_bytes_);
    if (!follows || header.bytes < sizeof header || header.bytes > log_bytes_) return at;
    entry.resize(header.bytes);
    if (!read(at, entry.data(), entry.size()) ||
        !Log::entry_is_sound(entry.data(), entry.size(), salt_)) {
      return at;
    }
    visit(header.lsn, std::string_view(entry.data(), entry.size()));
    at += entry.size();
    next = header.lsn + entry.size();
  }
}

void Archive::add(const Log& log, uint64_t from, uint64_t to) {
  if (from > end_lsn_) refuse(ErrorCode::kInternal, "the log has let go of entries");
  uint64_t bytes = bytes_;
  uint64_t end = end_lsn_;
  log.read_entries(from, to, [&](std::string_view entry) {
    EntryHeader header;
    std::memcpy(&header, entry.data(), sizeof header);
    if (header.lsn < end_lsn_) return;  // added before a crash
    pm::write_at(fd_, subject_, bytes, entry.data(), entry.size());
    bytes += entry.size();
    end = header.lsn + entry.size();
  });
  if (end < to) refuse(ErrorCode::kCorrupt, fmt::format("the log is damaged at {}", end));
  if (::fdatasync(fd_) != 0) pm::throw_errno("fdatasync", subject_, errno);
  bytes_ = bytes;
  end_lsn_ = end;
}

bool Archive::make_page(const PageFormat& format, const Log& log, uint64_t id, uint64_t lsn,
                        char* page) const {
  bool begun = false;
  bool whole = true;
  uint64_t last = 0;
  const auto apply = [&](uint64_t, uint64_t at, const LogRecord& record) {
    if (record.header.page != id || (lsn != 0 && at > lsn) || at <= last) return;
    if (record.op() == Op::kImage) {
      if (!begun) std::memset(page, 0, format.page_bytes());
      begun = true;
    } else if (record.header.previous != last) {
      whole = false;
    }
    if (begun && whole) apply_record(format, page, at, record, Checksums::kLater);
    last = at;
  };
  uint64_t head = 0;
  do {  // what the log lets go of meanwhile comes to the archive
    head = log.head();
    const uint64_t bytes = bytes_;
    const uint64_t read = visit_entries(bytes, [&](uint64_t entry_lsn, std::string_view entry) {
      Log::visit_records(entry_lsn, entry.data(), entry.size(), apply);
    });
    if (read != bytes) return false;  // damaged since: what follows may have changed the page
    if (log.head() != head) continue;
    log.read_entries(head, log.tail(), [&](std::string_view entry) {
      EntryHeader header;
      std::memcpy(&header, entry.data(), sizeof header);
      Log::visit_records(header.lsn, entry.data(), entry.size(), apply);
    });
  } while (log.head() != head);
  if (!begun || !whole || (lsn != 0 && last != lsn)) return false;
  format.seal(page, format.all_parts());
  return true;
}

}  // namespace perdure::buffer
