#include "buffer/archive.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "buffer/replay.h"
#include "perdure/error.h"

namespace perdure::buffer {

void Archive::fail(const char* call) const {
  const int reason = errno;
  const ErrorCode code = reason == ENOSPC || reason == EDQUOT ? ErrorCode::kNoSpace
                         : reason == EACCES                   ? ErrorCode::kPermission
                                                              : ErrorCode::kIo;
  throw Error(code, fmt::format("{}: the log archive: {}: {}", path_, call, std::strerror(reason)));
}

Archive::Archive(std::string path, uint64_t salt) : path_(std::move(path)), salt_(salt) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("open");
  bytes_ =
      visit_entries([&](uint64_t lsn, std::string_view entry) { end_lsn_ = lsn + entry.size(); });
  if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) fail("ftruncate");
}

Archive::~Archive() { ::close(fd_); }

template <typename Visit>
uint64_t Archive::visit_entries(Visit visit) const {
  std::vector<char> entry;
  uint64_t at = 0;
  for (;;) {
    EntryHeader header;
    if (::pread(fd_, &header, sizeof header, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(sizeof header)) {
      return at;
    }
    if (header.bytes < sizeof header) return at;
    entry.resize(header.bytes);
    if (::pread(fd_, entry.data(), entry.size(), static_cast<off_t>(at)) !=
            static_cast<ssize_t>(entry.size()) ||
        !Log::entry_is_sound(entry.data(), entry.size(), salt_)) {
      return at;
    }
    visit(header.lsn, std::string_view(entry.data(), entry.size()));
    at += entry.size();
  }
}

void Archive::add(const Log& log, uint64_t from, uint64_t to) {
  uint64_t bytes = bytes_;
  uint64_t end = end_lsn_;
  log.read_entries(from, to, [&](std::string_view entry) {
    EntryHeader header;
    std::memcpy(&header, entry.data(), sizeof header);
    if (header.lsn < end_lsn_) return;  // added before a crash
    for (size_t done = 0; done < entry.size();) {
      const ssize_t n =
          ::pwrite(fd_, entry.data() + done, entry.size() - done, static_cast<off_t>(bytes + done));
      if (n <= 0) fail("write");
      done += static_cast<size_t>(n);
    }
    bytes += entry.size();
    end = header.lsn + entry.size();
  });
  if (::fdatasync(fd_) != 0) fail("fdatasync");
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
    if (begun && whole) apply_record(format, page, at, record);
    last = at;
  };
  uint64_t head = 0;
  do {  // what the log lets go of meanwhile comes to the archive
    head = log.head();
    visit_entries([&](uint64_t entry_lsn, std::string_view entry) {
      Log::visit_records(entry_lsn, entry.data(), entry.size(), apply);
    });
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
