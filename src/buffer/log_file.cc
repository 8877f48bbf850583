#include "buffer/log_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "buffer/data_file.h"
#include "buffer/pool.h"
#include "perdure/error.h"
#include "pm/checksum.h"
#include "pm/file.h"
#include "pm/system_error.h"

namespace perdure::buffer {

namespace {

constexpr uint64_t kLogFileMagic = 0x31674c6244647250;  // "PrdDbLg1"
constexpr const char* kLogFile = "log file";
constexpr const char* kAfterFailure =
    "nothing is committed any more: close the database and open it again";

struct LogFileHeader {
  uint64_t magic;
  uint64_t salt;
  uint64_t log_bytes;
  uint64_t checksum;
};
static_assert(sizeof(LogFileHeader) == 32);

LogFaults* log_faults = nullptr;

uint64_t header_checksum(const LogFileHeader& header) {
  return pm::checksum64(&header, offsetof(LogFileHeader, checksum), kLogFileMagic);
}

std::string log_subject(const std::string& path) {
  return fmt::format("{}: the {}", path, kLogFile);
}

// Nothing if the file is no log file. Throws kCorrupt if its header is damaged.
std::optional<LogFileHeader> read_header(int file, const std::string& subject) {
  const AlignedBytes block = aligned_bytes(LogFile::kBlock);
  const uint64_t bytes = pm::read_at(file, subject, 0, block.get(), LogFile::kBlock);
  LogFileHeader header;
  std::memcpy(&header, block.get(), sizeof header);
  if (bytes < LogFile::kBlock || header.magic != kLogFileMagic) return std::nullopt;
  if (header.checksum != header_checksum(header)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: its header is damaged", subject));
  }
  return header;
}

}  // namespace

void inject_log_faults(LogFaults* faults) { log_faults = faults; }

LogFile::LogFile(uint64_t bytes) : bytes_(bytes), to_read_(true), ring_(aligned_bytes(bytes)) {
  std::memset(ring_.get(), 0, bytes);
}

LogFile::LogFile(const std::string& path, uint64_t salt, uint64_t bytes, Use use)
    : subject_(log_subject(path)),
      salt_(salt),
      bytes_(bytes),
      to_read_(use == Use::kRead),
      ring_(aligned_bytes(bytes)),
      fd_(to_read_ ? open_data_file_to_read(path, kLogFile)
                   : open_data_file(path, kLogFile, use == Use::kCreate)) {
  try {
    if (use == Use::kCreate) {
      make();
    } else {
      read();
    }
  } catch (...) {
    if (use == Use::kCreate) ::unlink(path.c_str());
    ::close(fd_);
    throw;
  }
}

LogFile::~LogFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<uint64_t> LogFile::salt_of(const std::string& path) {
  const int file = open_data_file_to_read(path, kLogFile);
  const std::unique_ptr<const int, void (*)(const int*)> closed(
      &file, [](const int* one) { ::close(*one); });
  const std::optional<LogFileHeader> header = read_header(file, log_subject(path));
  if (!header) return std::nullopt;
  return header->salt;
}

// All its room now: what a full disk refuses, it refuses here. Zeros are written, so that the first
// commits change no block of the file system either. The header goes last, by a sync of its own: a
// file that has one is whole.
void LogFile::make() {
  std::memset(ring_.get(), 0, bytes_);
  // Not posix_fallocate(): where the file system has none, that writes single bytes, which O_DIRECT
  // refuses. The zeros take the room there.
  const auto all = static_cast<off_t>(kBlock + bytes_);
  while (::fallocate(fd_, 0, 0, all) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    if (errno != EINTR) pm::throw_errno("fallocate", subject_, errno);
  }
  put(kBlock, ring_.get(), bytes_);
  if (::fsync(fd_) != 0) pm::throw_errno("fsync", subject_, errno);
  LogFileHeader header{kLogFileMagic, salt_, bytes_, 0};
  header.checksum = header_checksum(header);
  const AlignedBytes block = aligned_bytes(kBlock);
  std::memset(block.get(), 0, kBlock);
  std::memcpy(block.get(), &header, sizeof header);
  put(0, block.get(), kBlock);
  if (::fsync(fd_) != 0) pm::throw_errno("fsync", subject_, errno);
}

void LogFile::read() {
  const auto refuse = [&](ErrorCode code, const char* why) {
    throw Error(code, fmt::format("{}: {}; it was not changed", subject_, why));
  };
  struct stat status{};
  if (::fstat(fd_, &status) != 0) pm::throw_errno("fstat", subject_, errno);
  if (!S_ISREG(status.st_mode)) refuse(ErrorCode::kInvalidArgument, "it is no file");
  const std::optional<LogFileHeader> header = read_header(fd_, subject_);
  if (!header) refuse(ErrorCode::kInvalidArgument, "the file is no log file of a database");
  if (header->salt != salt_) refuse(ErrorCode::kInvalidArgument, "it belongs to another database");
  if (header->log_bytes != bytes_) refuse(ErrorCode::kCorrupt, "it has another size than the log");
  if (pm::read_at(fd_, subject_, kBlock, ring_.get(), bytes_) < bytes_) {
    refuse(ErrorCode::kCorrupt, "it was cut off");
  }
  if (log_faults != nullptr) log_faults->read(ring_.get(), bytes_);
}

void LogFile::put(uint64_t at, const char* from, uint64_t bytes) {
  if (log_faults != nullptr) bytes = log_faults->write(at, from, bytes);
  pm::write_at(fd_, subject_, at, from, bytes);
}

void LogFile::require_sound() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  throw Error(ErrorCode::kIo,
              fmt::format("{}: a write or a sync has failed; {}", subject_, kAfterFailure));
}

// Whatever `work` throws, and before anything that needs memory: nothing is written any more.
template <typename Work>
void LogFile::or_fail(Work work) {
  try {
    work();
  } catch (const Error& error) {
    failed_.store(true, std::memory_order_release);
    throw Error(ErrorCode::kIo, fmt::format("{}; {}", error.what(), kAfterFailure));
  } catch (...) {
    failed_.store(true, std::memory_order_release);
    throw;
  }
}

void LogFile::refuse_as_old() const {
  throw Error(
      ErrorCode::kCorrupt,
      fmt::format("{}: it ends before the last commit that was acknowledged: it is an older "
                  "copy, or damaged; put the right one back, or save what can be read with "
                  "`perdure pool salvage`",
                  subject_));
}

void LogFile::write(uint64_t at, const char* from, uint64_t bytes) {
  require_sound();
  std::memcpy(ring_.get() + at, from, bytes);
  write_blocks(at, bytes);
}

void LogFile::write_again(uint64_t at, uint64_t bytes) {
  require_sound();
  write_blocks(at, bytes);
}

void LogFile::write_blocks(uint64_t at, uint64_t bytes) {
  if (to_read_ || bytes == 0) return;
  const uint64_t begin = at / kBlock * kBlock;
  const uint64_t end = (at + bytes + kBlock - 1) / kBlock * kBlock;
  or_fail([&] { put(kBlock + begin, ring_.get() + begin, end - begin); });
}

void LogFile::sync() {
  require_sound();
  if (to_read_) return;
  or_fail([&] {
    if (log_faults != nullptr) log_faults->sync();
    if (::fdatasync(fd_) == 0) return;
    const int reason = errno;
    failed_.store(true, std::memory_order_release);
    pm::throw_errno("fdatasync", subject_, reason);
  });
}

}  // namespace perdure::buffer
