// A backup as a file, written from the front to the back.
//
//   header    | magic | version (4) | partitions (4) | id | parent | store |
//             | ordered (4), bytes of boundaries (4) | run | positions begin, a word each |
//             | positions end, a word each | boundaries | checksum of all that |
//   chunk     | bytes (4) | entries (4) | checksum | entries |  ... the last one has no entries: the end |
//   entry     | kind (1) | flags (1) | partition (2) | key bytes (4) | value bytes (4) | expiry | key | value |
//
// Little-endian. `id` is random; `parent` is the id of the backup that this one goes on from, 0 if
// it is whole. `run` is the run of the store (runs.h) in which it was made, 0 if nobody can say;
// version 1 of the format has none. The file gets its name when all of it is on the medium
// (pm::UnfinishedFile): a file of that name is complete, or was damaged later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::store {

struct BackupHeader {
  uint64_t id = 0;
  uint64_t parent = 0;
  uint64_t store = 0;  // its salt
  uint64_t run = 0;    // 0: no other can go on from it
  bool ordered = false;
  std::vector<uint64_t> begin =
      {};  // of each partition, the positions of what it has; of a whole one all 0
  std::vector<uint64_t> end = {};
  std::string boundaries = {};
};

struct BackupEntry {
  enum class Kind : uint8_t { kPut = 1, kRemove = 2, kRemovePrefix = 3 };
  Kind kind = Kind::kPut;
  uint32_t partition = 0;
  uint64_t expiry_ms = 0;
  std::string_view key = {};
  std::string_view value = {};
};

class BackupWriter {
 public:
  // Into an empty file, which stays the caller's. Errors of all calls: kIo, kNoSpace (the medium,
  // with what it says).
  BackupWriter(int file, std::string name, const BackupHeader& header);
  BackupWriter(const BackupWriter&) = delete;
  BackupWriter& operator=(const BackupWriter&) = delete;

  void add(const BackupEntry& entry);
  // The end. Who made the file sees to it that it is durable.
  void finish();
  uint64_t entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void write(std::string_view text);
  void write_chunk();

  std::string name_;
  int file_;
  std::string chunk_;
  uint32_t chunk_entries_ = 0;
  uint64_t seed_ = 0;
  uint64_t entries_ = 0;
  uint64_t bytes_ = 0;
};

// Whether there is a file of this name, which then is a backup and may be replaced. Throws kExists:
// it is none.
bool is_replaceable(const std::string& path);

class BackupReader {
 public:
  // Errors of all calls: kNotFound, kForeign, kVersion, kTruncated, kCorrupt, kIo.
  explicit BackupReader(std::string path);
  // Of a file that is open already, and stays the caller's.
  BackupReader(int file, std::string name);
  ~BackupReader();
  BackupReader(const BackupReader&) = delete;
  BackupReader& operator=(const BackupReader&) = delete;

  const std::string& path() const { return path_; }
  int file() const { return file_; }
  const BackupHeader& header() const { return header_; }
  uint64_t file_bytes() const { return file_bytes_; }
  // Reads all of it, and gives each entry to `visit`, if there is one. Verifies all of it either
  // way.
  void read(const std::function<void(const BackupEntry& entry)>& visit);

 private:
  void begin(int file);
  std::string take(uint64_t bytes);
  void read_header();
  [[noreturn]] void throw_damaged(const std::string& what) const;

  std::string path_;
  int file_ = -1;
  uint64_t at_ = 0;
  uint64_t entries_at_ = 0;  // where the first chunk begins
  uint64_t file_bytes_ = 0;
  BackupHeader header_;
};

}  // namespace perdure::store
