// The file of a backup.
//
//   0             header, one page
//   4 KiB         units of 64 KiB of the pool's file, as many as are stored
//   table_offset  an entry for each unit of the pool's file
//
// The header is written last. docs/operations.md has the format in words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pm/checksum.h"
#include "pm/layout.h"

namespace perdure::pm {

inline constexpr char kBackupMagic[8] = {'P', 'E', 'R', 'D', 'B', 'A', 'K', '\n'};
inline constexpr uint32_t kBackupVersion = 1;
inline constexpr uint64_t kBackupHeaderBytes = 4096;
inline constexpr uint64_t kUnitBytes = kSegmentBytes;

using BackupId = std::array<uint8_t, 16>;

struct BackupHeader {
  char magic[8];
  uint32_t version;
  uint32_t pool_version;  // format version of the pool
  BackupId id;            // random
  BackupId base_id;       // of the backup that this one rests on; zeros: none
  uint8_t uuid[16];       // of the pool
  uint64_t generation;    // of the pool, checked word and all
  uint64_t units;         // of the pool's file
  uint64_t stored_units;
  uint64_t table_offset;
  uint64_t table_checksum;
  uint64_t created_unix_s;
  char base_name[256];  // file name of the base, NUL-terminated
  uint64_t reserved[17];
  uint64_t checksum;  // xxh3 of all bytes before
};
static_assert(sizeof(BackupHeader) == 512 && offsetof(BackupHeader, checksum) == 504);

struct BackupUnit {
  Checksum128 checksum;
  uint64_t place;  // offset in this file, or kInBase, or kZeros
};
static_assert(sizeof(BackupUnit) == 24);

// Where a unit is that is not stored.
inline constexpr uint64_t kZeros = 0;  // nowhere: all zeros, or of a segment that is not in use
inline constexpr uint64_t kInBase = 1;

// A backup that is read. Header and table are verified.
class BackupFile {
 public:
  // Throws kNotFound, kPermission, kForeign, kTruncated, kVersion, kCorrupt.
  explicit BackupFile(const std::string& path);
  // Of a file that is open already, and stays the caller's. Throws as the other.
  static std::unique_ptr<BackupFile> of_descriptor(int file, const std::string& name);
  ~BackupFile();
  BackupFile(const BackupFile&) = delete;
  BackupFile& operator=(const BackupFile&) = delete;

  const std::string& path() const { return path_; }
  int file() const { return file_; }
  const BackupHeader& header() const { return header_; }
  const std::vector<BackupUnit>& table() const { return table_; }
  // Reads a unit that is stored here. Throws kCorrupt if it is not what the table says, kIo.
  void read(const BackupUnit& unit, char* to) const;

 private:
  BackupFile(int file, const std::string& path);
  void read_table();

  std::string path_;
  int file_ = -1;
  BackupHeader header_{};
  std::vector<BackupUnit> table_;
};

uint64_t checksum_of(const BackupHeader& header);
// The header of a backup, verified. Throws as BackupFile does.
BackupHeader read_backup_header(const std::string& path);
// Whether that is a file that begins as a backup does, damaged or not. Throws kNotFound,
// kPermission, kIo.
bool is_backup(const std::string& path);
bool has_base(const BackupHeader& header);
// Where the base of a backup is if both are where they were made: beside each other.
std::string base_beside(const std::string& path, const BackupHeader& header);

}  // namespace perdure::pm
