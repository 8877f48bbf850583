#include "pm/backup_format.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "perdure/error.h"
#include "pm/file.h"
#include "pm/system_error.h"

namespace perdure::pm {

uint64_t checksum_of(const BackupHeader& header) {
  return checksum64(&header, offsetof(BackupHeader, checksum));
}

BackupFile::BackupFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw_errno("open", path, errno);
  try {
    read_header();
    read_table();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

BackupFile::~BackupFile() { ::close(file_); }

bool BackupFile::has_base() const {
  return std::ranges::any_of(header_.base_id, [](uint8_t byte) { return byte != 0; });
}

void BackupFile::read_header() {
  std::vector<char> page(kBackupHeaderBytes);
  const uint64_t got = read_at(file_, path_, 0, page.data(), page.size());
  std::memcpy(&header_, page.data(), sizeof header_);
  const bool ours = got >= sizeof header_.magic &&
                    std::memcmp(header_.magic, kBackupMagic, sizeof kBackupMagic) == 0;
  if (!ours) {
    throw Error(ErrorCode::kForeign, fmt::format("{}: is not a backup of a Perdure pool", path_));
  }
  if (got < page.size()) {
    throw Error(ErrorCode::kTruncated, fmt::format("{}: the backup was cut off", path_));
  }
  if (header_.version > kBackupVersion) {
    throw Error(
        ErrorCode::kVersion,
        fmt::format("{}: is a backup of format {}, this build knows up to {}; use a newer release",
                    path_, header_.version, kBackupVersion));
  }
  const bool rest_is_zero =
      std::all_of(page.begin() + sizeof header_, page.end(), [](char byte) { return byte == 0; });
  if (checksum_of(header_) != header_.checksum || !rest_is_zero ||
      header_.base_name[sizeof header_.base_name - 1] != '\0') {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: the header of the backup is damaged; use another backup", path_));
  }
}

void BackupFile::read_table() {
  struct stat status{};
  if (::fstat(file_, &status) != 0) throw_errno("fstat", path_, errno);
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
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
  const bool whole = read_at(file_, path_, header_.table_offset, table_.data(), bytes) == bytes;
  const auto sound = [&](const BackupUnit& unit) {
    return unit.place == kZeros || (unit.place == kInBase && has_base()) ||
           (unit.place >= kBackupHeaderBytes && unit.place < header_.table_offset &&
            header_.table_offset - unit.place >= kUnitBytes);
  };
  if (!whole || checksum64(table_.data(), bytes) != header_.table_checksum || table_.empty() ||
      header_.table_offset < kBackupHeaderBytes + kUnitBytes * header_.stored_units ||
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
