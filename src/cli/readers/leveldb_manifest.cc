#include "cli/readers/leveldb_manifest.h"

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/readers/reader.h"

namespace perdure::readers {
namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Little-endian, as LevelDB writes on all machines.
template <typename Word>
Word word_at(std::string_view bytes, size_t at) {
  Word word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// The records of a file in LevelDB's log format: blocks of 32 KiB, of fragments with a head of 7
// bytes.
struct LogFile {
  std::vector<std::string> records;
  bool is_cut = false;  // it ends in the midst of one
};
LogFile read_log(const std::filesystem::path& path) {
  constexpr size_t kBlock = 32768;
  constexpr size_t kHead = 7;  // checksum, length, kind
  enum Kind : uint8_t { kNothing, kWhole, kFirst, kMiddle, kLast };
  const std::string file = content_of(path);
  LogFile log;
  std::string record;
  for (size_t at = 0; at < file.size();) {
    const size_t left = kBlock - at % kBlock;
    if (left < kHead) {
      at += left;
      continue;
    }
    const size_t length = at + kHead <= file.size() ? word_at<uint16_t>(file, at + 4) : 0;
    log.is_cut = at + kHead + length > file.size();
    if (log.is_cut) break;
    const auto kind = static_cast<uint8_t>(file[at + 6]);
    if (kind == kNothing || kind > kLast) break;
    if (kind == kWhole || kind == kFirst) record.clear();
    record.append(file, at + kHead, length);
    if (kind == kWhole || kind == kLast) log.records.push_back(std::exchange(record, {}));
    at += kHead + length;
  }
  log.is_cut = log.is_cut || !record.empty();
  return log;
}

// One field after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}
  bool any() const { return !left_.empty() && sound_; }
  bool sound() const { return sound_; }
  uint64_t number() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      const auto byte = static_cast<uint8_t>(left_.front());
      left_.remove_prefix(1);
      value |= uint64_t{byte & 127U} << shift;
      if (byte < 128) return value;
    }
    sound_ = false;
    return 0;
  }
  void skip_bytes() {
    const uint64_t length = number();
    sound_ = sound_ && length <= left_.size();
    if (sound_) left_.remove_prefix(length);
  }
  void fail() { sound_ = false; }

 private:
  std::string_view left_;
  bool sound_ = true;
};

// What a MANIFEST comes to.
struct Manifest {
  std::set<uint64_t> tables;
  uint64_t first_log = 0;
  uint64_t log_before = 0;     // or 0
  uint64_t last_sequence = 0;  // of all records that it speaks of
  bool is_cut = false;
};

std::optional<Manifest> read_manifest(const std::filesystem::path& path) {
  enum Tag : uint8_t {
    kComparator = 1,
    kLog,
    kNextFile,
    kSequence,
    kCompaction,
    kGone,
    kNew,
    kBefore = 9
  };
  const LogFile log = read_log(path);
  Manifest all;
  all.is_cut = log.is_cut;
  for (const std::string& record : log.records) {
    Fields fields(record);
    while (fields.any()) {
      switch (fields.number()) {
        case kComparator:
          fields.skip_bytes();
          break;
        case kLog:
          all.first_log = fields.number();
          break;
        case kNextFile:
          fields.number();
          break;
        case kSequence:
          all.last_sequence = fields.number();
          break;
        case kCompaction:
          fields.number(), fields.skip_bytes();
          break;
        case kGone:
          fields.number(), all.tables.erase(fields.number());
          break;
        case kNew:
          fields.number();
          all.tables.insert(fields.number());
          fields.number(), fields.skip_bytes(), fields.skip_bytes();
          break;
        case kBefore:
          all.log_before = fields.number();
          break;
        default:
          fields.fail();
      }
    }
    if (!fields.sound()) return std::nullopt;
  }
  return all;
}

// Of "000017.ldb", if its name ends so.
std::optional<uint64_t> number_of(const std::filesystem::path& file, std::string_view ending) {
  const std::string name = file.filename().string();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool fits =
      error == std::errc() && std::string_view(end, name.data() + name.size()) == ending;
  return fits ? std::optional(number) : std::nullopt;
}

// The records of the logs that LevelDB is about to read: by sequence, from and up to.
std::vector<std::pair<uint64_t, uint64_t>> logged(const std::vector<std::filesystem::path>& files,
                                                  const Manifest& manifest) {
  constexpr size_t kBatchHead = 12;  // sequence of the first, and how many
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const std::filesystem::path& file : files) {
    const auto number = number_of(file, ".log");
    if (!number || (*number < manifest.first_log && *number != manifest.log_before)) continue;
    for (const std::string& batch : read_log(file).records) {
      if (batch.size() < kBatchHead) continue;
      const auto first = word_at<uint64_t>(batch, 0);
      all.emplace_back(first, first + word_at<uint32_t>(batch, 8));
    }
  }
  std::ranges::sort(all);
  return all;
}

// Calls `visit` with the sequence of each record of a table until it returns false. A table that is
// not whole has none: who writes one has not finished it.
template <typename Visit>
void visit_sequences(const std::filesystem::path& file, const Visit& visit) {
  leveldb::Env* const env = leveldb::Env::Default();
  leveldb::RandomAccessFile* opened_file = nullptr;
  if (!env->NewRandomAccessFile(file.string(), &opened_file).ok()) return;
  const std::unique_ptr<leveldb::RandomAccessFile> bytes(opened_file);
  leveldb::Table* opened = nullptr;
  if (!leveldb::Table::Open({}, bytes.get(), std::filesystem::file_size(file), &opened).ok())
    return;
  const std::unique_ptr<leveldb::Table> table(opened);
  const std::unique_ptr<leveldb::Iterator> at(table->NewIterator({}));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    constexpr size_t kTrailer = 8;  // sequence << 8 | kind
    const std::string_view key(at->key().data(), at->key().size());
    if (key.size() >= kTrailer && !visit(word_at<uint64_t>(key, key.size() - kTrailer) >> 8))
      return;
  }
}

}  // namespace

std::string check_leveldb_files(const std::string& folder) {
  std::string current = content_of(folder + "/CURRENT");
  while (current.ends_with('\n')) current.pop_back();
  std::error_code failed;
  if (!std::filesystem::is_regular_file(folder + "/" + current, failed)) return {};
  const std::optional<Manifest> manifest = read_manifest(folder + "/" + current);
  if (!manifest) return {};
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed))
    files.push_back(at->path());
  const auto in_logs = logged(files, *manifest);
  const auto is_known = [&](uint64_t sequence) {
    if (sequence <= manifest->last_sequence) return true;
    const auto after = std::ranges::upper_bound(in_logs, sequence, {},
                                                [](const auto& batch) { return batch.first; });
    return after != in_logs.begin() && sequence < std::prev(after)->second;
  };
  for (const std::filesystem::path& file : files) {
    auto number = number_of(file, ".ldb");
    if (!number) number = number_of(file, ".sst");
    if (!number || manifest->tables.contains(*number)) continue;
    visit_sequences(file, [&](uint64_t sequence) {
      if (is_known(sequence)) return true;
      throw Failure(current + " does not name the table " + file.filename().string() +
                    ", which has records that are newer than all that it speaks of: it was cut "
                    "short, or is an earlier one. LevelDB would remove that table. Nothing was "
                    "changed: put the file back, or let RepairDB of LevelDB make a new one in a "
                    "copy of the folder");
    });
  }
  if (!manifest->is_cut) return {};
  return current + " ends in the midst of an entry, as a crash leaves it: records may be missing";
}

}  // namespace perdure::readers
