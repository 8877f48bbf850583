#include "store/backup_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "perdure/error.h"
#include "pm/checksum.h"
#include "pm/system_error.h"
#include "store/layout.h"

namespace perdure::store {

namespace {

constexpr uint64_t kBackupMagic = 0x31706b6342725350;  // "PSrBckp1"
constexpr uint32_t kBackupVersion = 2;
constexpr uint32_t kBackupVersionWithoutRuns = 1;
constexpr size_t kChunkBytes = 256 << 10;
constexpr size_t kEntryBytes = 20;
constexpr uint64_t kChunkBytesMax = kKeyBytesMax + kValueBytesMax + kChunkBytes + kEntryBytes;

template <typename T>
void put_number(std::string& to, T number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}
// The caller has seen to it that there is one.
template <typename T>
T take_number(std::string_view& from) {
  T number;
  from.copy(reinterpret_cast<char*>(&number), sizeof number);
  from.remove_prefix(sizeof number);
  return number;
}

}  // namespace

bool is_replaceable(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    pm::throw_errno("stat", path, errno);
  }
  uint64_t magic = 0;
  if (S_ISREG(status.st_mode)) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) pm::throw_errno("open", path, errno);
    const ssize_t got = ::pread(file, &magic, sizeof magic, 0);
    ::close(file);
    if (got == sizeof magic && magic == kBackupMagic) return true;
  }
  throw Error(
      ErrorCode::kExists,
      fmt::format(
          "{} is there, and is no backup of a store: it stays as it is; choose another name, or "
          "remove it",
          path));
}

BackupWriter::BackupWriter(int file, std::string name, const BackupHeader& header)
    : name_(std::move(name)), file_(file), seed_(header.id) {
  std::string text;
  put_number(text, kBackupMagic);
  put_number(text, kBackupVersion);
  put_number(text, static_cast<uint32_t>(header.end.size()));
  put_number(text, header.id);
  put_number(text, header.parent);
  put_number(text, header.store);
  put_number(text, static_cast<uint32_t>(header.ordered ? 1 : 0));
  put_number(text, static_cast<uint32_t>(header.boundaries.size()));
  put_number(text, header.run);
  for (const uint64_t position : header.begin) put_number(text, position);
  for (const uint64_t position : header.end) put_number(text, position);
  text += header.boundaries;
  put_number(text, pm::checksum64(text.data(), text.size()));
  write(text);
}

void BackupWriter::write(std::string_view text) {
  bytes_ += text.size();
  while (!text.empty()) {
    const ssize_t wrote = ::write(file_, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) pm::throw_errno("write", name_, errno);
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

void BackupWriter::write_chunk() {
  std::string head;
  put_number(head, static_cast<uint32_t>(chunk_.size()));
  put_number(head, chunk_entries_);
  // Of the chunks before, too: none can be missing.
  seed_ = pm::checksum64(chunk_.data(), chunk_.size(), seed_ + chunk_entries_);
  put_number(head, seed_);
  write(head);
  write(chunk_);
  chunk_.clear();
  chunk_entries_ = 0;
}

void BackupWriter::add(const BackupEntry& entry) {
  put_number(chunk_, entry.kind);
  put_number(chunk_, uint8_t{0});
  put_number(chunk_, static_cast<uint16_t>(entry.partition));
  put_number(chunk_, static_cast<uint32_t>(entry.key.size()));
  put_number(chunk_, static_cast<uint32_t>(entry.value.size()));
  put_number(chunk_, entry.expiry_ms);
  chunk_ += entry.key;
  chunk_ += entry.value;
  ++chunk_entries_;
  ++entries_;
  if (chunk_.size() >= kChunkBytes) write_chunk();
}

void BackupWriter::finish() {
  if (chunk_entries_ != 0) write_chunk();
  write_chunk();  // the end
}

BackupReader::BackupReader(std::string path) : path_(std::move(path)) {
  begin(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
}

BackupReader::BackupReader(int file, std::string name) : path_(std::move(name)) {
  begin(::fcntl(file, F_DUPFD_CLOEXEC, 0));
}

void BackupReader::begin(int file) {
  file_ = file;
  if (file_ < 0) pm::throw_errno("open", path_, errno);
  try {
    struct stat status{};
    if (::fstat(file_, &status) != 0) pm::throw_errno("fstat", path_, errno);
    file_bytes_ = static_cast<uint64_t>(status.st_size);
    read_header();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

BackupReader::~BackupReader() { ::close(file_); }

void BackupReader::throw_damaged(const std::string& what) const {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: the backup is damaged: {}; take another copy of it", path_, what));
}

std::string BackupReader::take(uint64_t bytes) {
  if (bytes > file_bytes_ - at_) {
    throw Error(
        ErrorCode::kTruncated,
        fmt::format("{}: the backup ends after {} bytes, in the middle of what it says that it has",
                    path_, file_bytes_));
  }
  std::string text(bytes, '\0');
  for (uint64_t got = 0; got < bytes;) {
    const ssize_t one =
        ::pread(file_, text.data() + got, bytes - got, static_cast<off_t>(at_ + got));
    if (one < 0 && errno == EINTR) continue;
    if (one < 0) pm::throw_errno("read", path_, errno);
    if (one == 0) throw_damaged("it has become shorter");
    got += static_cast<uint64_t>(one);
  }
  at_ += bytes;
  return text;
}

void BackupReader::read_header() {
  constexpr uint64_t kFixed = 48;
  std::string text;
  if (file_bytes_ >= kFixed) text = take(kFixed);
  std::string_view rest = text;
  if (text.empty() || take_number<uint64_t>(rest) != kBackupMagic) {
    throw Error(ErrorCode::kForeign, fmt::format("{} is no backup of a store", path_));
  }
  const auto version = take_number<uint32_t>(rest);
  if (version != kBackupVersion && version != kBackupVersionWithoutRuns) {
    throw Error(
        ErrorCode::kVersion,
        fmt::format("{} has version {} of the format of backups; this program reads {} and {}",
                    path_, version, kBackupVersionWithoutRuns, kBackupVersion));
  }
  const auto partitions = take_number<uint32_t>(rest);
  header_.id = take_number<uint64_t>(rest);
  header_.parent = take_number<uint64_t>(rest);
  header_.store = take_number<uint64_t>(rest);
  header_.ordered = take_number<uint32_t>(rest) != 0;
  const auto boundary_bytes = take_number<uint32_t>(rest);
  if (partitions == 0 || partitions > kPartitionsMax || boundary_bytes > 2 << 20) {
    throw_damaged("its header makes no sense");
  }
  const bool has_run = version != kBackupVersionWithoutRuns;
  text += take((has_run ? sizeof(uint64_t) : 0) + uint64_t{partitions} * 16 + boundary_bytes);
  rest = std::string_view(text).substr(kFixed);
  if (has_run) header_.run = take_number<uint64_t>(rest);
  for (auto* positions : {&header_.begin, &header_.end}) {
    for (uint32_t i = 0; i < partitions; ++i) positions->push_back(take_number<uint64_t>(rest));
  }
  header_.boundaries = rest;
  const std::string sum = take(sizeof(uint64_t));
  rest = sum;
  if (take_number<uint64_t>(rest) != pm::checksum64(text.data(), text.size())) {
    throw_damaged("the checksum of its header does not hold");
  }
  entries_at_ = at_;
}

void BackupReader::read(const std::function<void(const BackupEntry& entry)>& visit) {
  at_ = entries_at_;
  uint64_t seed = header_.id;
  for (;;) {
    const uint64_t begin = at_;
    const std::string head = take(16);
    std::string_view rest = head;
    const auto bytes = take_number<uint32_t>(rest);
    const auto entries = take_number<uint32_t>(rest);
    const auto sum = take_number<uint64_t>(rest);
    if (bytes > kChunkBytesMax)
      throw_damaged(fmt::format("the chunk at {:#x} has a wrong length", begin));
    const std::string chunk = take(bytes);
    seed = pm::checksum64(chunk.data(), chunk.size(), seed + entries);
    if (seed != sum)
      throw_damaged(fmt::format("the checksum of the chunk at {:#x} does not hold", begin));
    if (entries == 0) {
      if (bytes != 0) throw_damaged("its end has entries that it does not count");
      if (at_ != file_bytes_) throw_damaged("something follows its end");
      return;
    }
    rest = chunk;
    for (uint32_t i = 0; i < entries; ++i) {
      if (rest.size() < kEntryBytes)
        throw_damaged(fmt::format("the chunk at {:#x} is too short", begin));
      BackupEntry entry;
      entry.kind = take_number<BackupEntry::Kind>(rest);
      const auto flags = take_number<uint8_t>(rest);
      if (entry.kind < BackupEntry::Kind::kPut || entry.kind > BackupEntry::Kind::kRemovePrefix ||
          flags != 0) {
        throw_damaged(fmt::format("the chunk at {:#x} has an entry of an unknown kind", begin));
      }
      entry.partition = take_number<uint16_t>(rest);
      const auto key_bytes = take_number<uint32_t>(rest);
      const auto value_bytes = take_number<uint32_t>(rest);
      entry.expiry_ms = take_number<uint64_t>(rest);
      if (uint64_t{key_bytes} + value_bytes > rest.size() ||
          entry.partition >= header_.end.size()) {
        throw_damaged(fmt::format("the chunk at {:#x} is too short", begin));
      }
      entry.key = rest.substr(0, key_bytes);
      entry.value = rest.substr(key_bytes, value_bytes);
      rest.remove_prefix(uint64_t{key_bytes} + value_bytes);
      if (visit) visit(entry);
    }
    if (!rest.empty()) throw_damaged(fmt::format("the chunk at {:#x} is too long", begin));
  }
}

}  // namespace perdure::store
