#include "pm/backup_format.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "perdure/error.h"
#include "perdure/pool.h"
#include "pm/file.h"
#include "pm/system_error.h"

namespace perdure::pm {

uint64_t checksum_of(const BackupHeader& header) {
  return checksum64(&header, offsetof(BackupHeader, checksum));
}

namespace {

// Does not wait for somebody to write to a pipe, as what is named in a damaged backup may be one.
int open_to_read(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) throw_errno("open", path, errno);
  return file;
}

bool is_regular(int file) {
  struct stat status{};
  return ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

bool has_magic(const char* bytes, uint64_t count) {
  return count >= sizeof kBackupMagic && std::memcmp(bytes, kBackupMagic, sizeof kBackupMagic) == 0;
}

BackupHeader read_header(int file, const std::string& path) {
  std::vector<char> page(kBackupHeaderBytes);
  const uint64_t got = is_regular(file) ? read_at(file, path, 0, page.data(), page.size()) : 0;
  BackupHeader header;
  std::memcpy(&header, page.data(), sizeof header);
  if (!has_magic(page.data(), got)) {
    throw Error(ErrorCode::kForeign, fmt::format("{}: is not a backup of a Perdure pool", path));
  }
  if (got < page.size()) {
    throw Error(ErrorCode::kTruncated, fmt::format("{}: the backup was cut off", path));
  }
  if (header.version > kBackupVersion) {
    throw Error(
        ErrorCode::kVersion,
        fmt::format("{}: is a backup of format {}, this build knows up to {}; use a newer release",
                    path, header.version, kBackupVersion));
  }
  const bool rest_is_zero =
      std::all_of(page.begin() + sizeof header, page.end(), [](char byte) { return byte == 0; });
  if (checksum_of(header) != header.checksum || !rest_is_zero ||
      header.base_name[sizeof header.base_name - 1] != '\0') {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: the header of the backup is damaged; use another backup", path));
  }
  return header;
}

}  // namespace

BackupHeader read_backup_header(const std::string& path) {
  const int file = open_to_read(path);
  try {
    const BackupHeader header = read_header(file, path);
    ::close(file);
    return header;
  } catch (...) {
    ::close(file);
    throw;
  }
}

bool is_backup(const std::string& path) {
  const int file = open_to_read(path);
  char magic[sizeof kBackupMagic] = {};
  const ssize_t got = is_regular(file) ? ::pread(file, magic, sizeof magic, 0) : 0;
  ::close(file);
  return has_magic(magic, got < 0 ? 0 : static_cast<uint64_t>(got));
}

bool has_base(const BackupHeader& header) { return header.base_id != BackupId{}; }

std::string base_beside(const std::string& path, const BackupHeader& header) {
  // Whatever else the name says: the base is in the same folder.
  return (std::filesystem::path(path).parent_path() /
          std::filesystem::path(header.base_name).filename())
      .string();
}

BackupFile::BackupFile(const std::string& path) : BackupFile(open_to_read(path), path) {}

std::unique_ptr<BackupFile> BackupFile::of_descriptor(int file, const std::string& name) {
  const int own = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) throw_errno("fcntl", name, errno);
  return std::unique_ptr<BackupFile>(new BackupFile(own, name));
}

// Takes the descriptor over.
BackupFile::BackupFile(int file, const std::string& path) : path_(path), file_(file) {
  try {
    header_ = read_header(file_, path_);
    read_table();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

BackupFile::~BackupFile() { ::close(file_); }

void BackupFile::read_table() {
  struct stat status{};
  if (::fstat(file_, &status) != 0) throw_errno("fstat", path_, errno);
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  // No sum below is more than 64 bits hold: no pool has more units.
  if (header_.units > Pool::kMaxCapacityBytes / kUnitBytes ||
      header_.stored_units > header_.units ||
      header_.table_offset < kBackupHeaderBytes + kUnitBytes * header_.stored_units ||
      header_.table_offset > kBackupHeaderBytes + Pool::kMaxCapacityBytes) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: the header of the backup says what no backup has; use another one",
                            path_));
  }
  const uint64_t wanted = header_.table_offset + header_.units * sizeof(BackupUnit);
  if (file_bytes < wanted) {
    throw Error(ErrorCode::kTruncated,
                fmt::format("{}: has {} bytes, but its header says {}; the backup was cut off",
                            path_, file_bytes, wanted));
  }
  if (file_bytes > wanted) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: has {} bytes, but its header says {}; use another backup", path_,
                            file_bytes, wanted));
  }
  table_.resize(header_.units);
  const uint64_t bytes = table_.size() * sizeof(BackupUnit);
  const bool based = has_base(header_);
  const bool whole = read_at(file_, path_, header_.table_offset, table_.data(), bytes) == bytes;
  const auto sound = [&](const BackupUnit& unit) {
    return unit.place == kZeros || (unit.place == kInBase && based) ||
           (unit.place >= kBackupHeaderBytes && unit.place < header_.table_offset &&
            header_.table_offset - unit.place >= kUnitBytes);
  };
  if (!whole || checksum64(table_.data(), bytes) != header_.table_checksum || table_.empty() ||
      !std::ranges::all_of(table_, sound)) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: the table of the backup is damaged; use another backup", path_));
  }
}

void BackupFile::read(const BackupUnit& unit, char* to) const {
  const uint64_t got = read_at(file_, path_, unit.place, to, kUnitBytes);
  if (got == kUnitBytes && checksum128(to, kUnitBytes) == unit.checksum) return;
  throw Error(
      ErrorCode::kCorrupt,
      fmt::format("{}: the backup is damaged at byte {:#x}: what is stored there does not fit its "
                  "checksum; use another backup",
                  path_, unit.place));
}

}  // namespace perdure::pm
