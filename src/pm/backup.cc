#include "pm/backup.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string_view>

#include "pm/backup_format.h"
#include "pm/cut.h"
#include "pm/file.h"
#include "pm/live.h"
#include "pm/pool_impl.h"
#include "pm/system_error.h"
#include "pm/unfinished_file.h"

namespace perdure::pm {

namespace {

bool is_all_zeros(const char* from, uint64_t bytes) {
  return from[0] == 0 && std::memcmp(from, from + 1, bytes - 1) == 0;
}

// More backups than ever rest on each other: what leads on and on is no chain.
constexpr uint64_t kChainMax = 100'000;

// Whether there is a file of this name, which then is an earlier backup: only such a one gives way.
bool is_replaceable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return false;
  if (is_backup(path)) return true;
  throw Error(ErrorCode::kExists,
              fmt::format("{}: is there already, and is no backup; choose another name", path));
}

// Writers wait for the copy of a unit, and each unit that is let go may split the mapping; of those
// the system allows some 65 thousand. Larger pools are on huge pages, which a smaller unit would
// split.
uint64_t cut_unit_bytes(uint64_t bytes) {
  constexpr uint64_t kSmallPool = uint64_t{64} << 20;
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  constexpr uint64_t kUnitsMax = 8192;
  if (bytes <= kSmallPool) return kUnitBytes;
  return std::max(kHugePage, std::bit_ceil(bytes / kUnitsMax));
}

// The thread is making a backup, so what it waits for until no backup is made would never come.
thread_local bool makes_backup = false;

// Where a backup is made, by whoever asks for it: what it rests on, and a file without a name yet.
class BackupPlace {
 public:
  // `mode`: of the pool's file; a backup of what others may not read is not theirs to read either.
  BackupPlace(const std::string& path, const std::string& base, mode_t mode)
      : path_(path), mode_(mode) {
    if (!base.empty()) open_base(base);
    replaces_ = is_replaceable(path_);
    out_ = std::make_unique<UnfinishedFile>(path_, mode_);
  }
  BackupTarget target() const {
    return {out_->file(), out_->name(), base_ ? &*base_ : nullptr, base_name_};
  }
  // What was passed to another user can still be written to by that one: another file with the same
  // takes its place.
  void take_back() {
    auto own = std::make_unique<UnfinishedFile>(path_, mode_);
    own->copy_from(*out_);
    out_ = std::move(own);
  }
  // What has come to be there meanwhile stays.
  void finish() { out_->finish(replaces_ && is_replaceable(path_)); }

 private:
  void open_base(const std::string& base);
  void require_no_ancestor() const;

  std::string path_;
  mode_t mode_;
  std::optional<BackupFile> base_;
  std::string base_name_;
  bool replaces_ = false;
  std::unique_ptr<UnfinishedFile> out_;
};

void BackupPlace::open_base(const std::string& base) {
  base_.emplace(base);
  require_no_ancestor();
  base_name_ = std::filesystem::path(base).filename().string();
  if (base_name_.size() >= sizeof(BackupHeader::base_name)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the name of the base is too long", base));
  }
}

// What is replaced must not be what the new backup rests on, however many others lie in between.
void BackupPlace::require_no_ancestor() const {
  BackupHeader replaced;
  try {
    replaced = read_backup_header(path_);
  } catch (const Error&) {
    return;  // there is nothing, or what nobody can rest on
  }
  std::string at = base_->path();
  BackupHeader header = base_->header();
  for (uint64_t length = 0; length < kChainMax; ++length) {
    if (header.id == replaced.id || header.base_id == replaced.id) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: a backup cannot replace one that it rests on; give it another "
                              "name",
                              path_));
    }
    if (!has_base(header)) return;
    // Where it was made. What is somewhere else now is not known, but for its number.
    at = base_beside(at, header);
    BackupHeader next;
    try {
      next = read_backup_header(at);
    } catch (const Error&) {
      return;
    }
    if (next.id != header.base_id) return;
    header = next;
  }
}

// Writes the copy, in the process that has the pool open.
class BackupWriter {
 public:
  BackupWriter(const PoolImpl& pool, const BackupTarget& target, const BackupProgress& progress)
      : pool_(pool),
        target_(target),
        progress_(progress),
        start_(std::chrono::steady_clock::now()) {}

  BackupReport run();

 private:
  void require_own_base() const;
  void read_tables();
  void take_early(uint64_t from, uint64_t to);
  template <typename T>
  const T& early(uint64_t offset) const;
  void note_used(const PoolHeader& header, const SegmentMap& map);
  void write_unit(uint64_t unit, const char* from);
  void write_piece(uint64_t piece, const char* from);
  void write_end();

  const PoolImpl& pool_;
  const BackupTarget& target_;
  const BackupProgress& progress_;
  std::chrono::steady_clock::time_point start_;
  std::optional<Cut> cut_;
  uint64_t unit_bytes_ = 0;
  uint64_t pieces_ = 0;     // units of the format, in the pool's file
  std::vector<bool> used_;  // by piece
  // Units of the cut with header, directory, lanes and descriptors, which are taken first.
  std::map<uint64_t, std::vector<char>> early_;
  std::vector<char> buffer_;
  std::vector<BackupUnit> table_;
  uint64_t at_ = kBackupHeaderBytes;
  BackupReport report_;
};

void BackupWriter::require_own_base() const {
  const BackupFile* base = target_.base;
  if (base == nullptr ||
      std::memcmp(base->header().uuid, pool_.header().uuid, sizeof base->header().uuid) == 0) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: is a backup of another pool than {}; make a backup without a base",
                          base->path(), pool_.mapping().path()));
}

BackupReport BackupWriter::run() {
  if (pool_.failed()) pool_.require_writable();  // throws: memory may not be what was acknowledged
  require_own_base();
  // A pool without segments has a file that ends before they would begin.
  const uint64_t mapped_bytes =
      pool_.segments() == 0 ? pool_.header().descriptors_offset : pool_.end_offset();
  unit_bytes_ = cut_unit_bytes(mapped_bytes);
  uint64_t cut_bytes = mapped_bytes;
  if (pool_.mapping().medium() == perdure::Medium::kHugetlbfs) {
    unit_bytes_ = std::max(unit_bytes_, kHugePageBytes);
    cut_bytes = (cut_bytes + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  }
  buffer_.resize(unit_bytes_);
  cut_.emplace(pool_.base(), cut_bytes, unit_bytes_, pool_.mapping().path());
  read_tables();
  const uint64_t per_unit = unit_bytes_ / kUnitBytes;
  for (uint64_t unit = 0; unit < cut_->units(); ++unit) {
    const uint64_t first = unit * per_unit;
    const uint64_t last = std::min(first + per_unit, pieces_);
    if (const auto table = early_.find(unit); table != early_.end()) {
      write_unit(unit, table->second.data());
      continue;
    }
    if (first < last && std::find(used_.begin() + static_cast<int64_t>(first),
                                  used_.begin() + static_cast<int64_t>(last),
                                  true) != used_.begin() + static_cast<int64_t>(last)) {
      cut_->take(unit, buffer_.data());
      write_unit(unit, buffer_.data());
    } else {
      cut_->skip(unit);
    }
    if (progress_) progress_(last * kUnitBytes, pieces_ * kUnitBytes);
  }
  const Cut::Figures figures = cut_->figures();
  cut_.reset();
  if (pool_.failed()) pool_.require_writable();  // throws: it may have been before the instant
  write_end();
  report_.protect_ns = figures.protect_ns;
  report_.pause_ns_max = figures.pause_ns_max;
  report_.pauses = figures.pauses;
  report_.elapsed_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count());
  return report_;
}

// What says which segments are in use, as it was at the instant.
void BackupWriter::read_tables() {
  take_early(0, sizeof(PoolHeader));
  const PoolHeader header = early<PoolHeader>(0);
  uint64_t segments = 0;
  if (!unseal_word(header.segments_word, kSegmentsSalt, segments)) {
    pool_.throw_corrupt("the pool's size in the header is damaged");
  }
  // It may have grown between the mapping's end being asked for and the instant.
  const uint64_t cut_end = (cut_->units() - 1) * unit_bytes_ + cut_->bytes_of(cut_->units() - 1);
  if (segments > 0 && header.data_offset + segments * kSegmentBytes > cut_end) {
    throw Error(ErrorCode::kInUse,
                fmt::format("{}: the pool grows too fast to be copied", pool_.mapping().path()));
  }
  const SegmentMap map(header);
  take_early(0, header.descriptors_offset);
  map.for_each_piece(0, segments, [&](uint64_t first, uint64_t last) {
    take_early(map.descriptor_offset(first),
               map.descriptor_offset(last - 1) + sizeof(SegmentDescriptor));
  });
  pieces_ = (header.data_offset + segments * kSegmentBytes) / kUnitBytes;
  table_.resize(pieces_);
  used_.resize(pieces_);
  note_used(header, map);
  report_.pool_bytes = pieces_ * kUnitBytes;
}

// So that they can be read: all units of the range.
void BackupWriter::take_early(uint64_t from, uint64_t to) {
  for (uint64_t unit = from / unit_bytes_; unit * unit_bytes_ < to; ++unit) {
    if (early_.contains(unit)) continue;
    std::vector<char> content(unit_bytes_);  // the last one may be shorter
    cut_->take(unit, content.data());
    early_.emplace(unit, std::move(content));
  }
}

// What lies in a unit that was taken; no structure of the format lies in two.
template <typename T>
const T& BackupWriter::early(uint64_t offset) const {
  return *reinterpret_cast<const T*>(early_.at(offset / unit_bytes_).data() + offset % unit_bytes_);
}

void BackupWriter::note_used(const PoolHeader& header, const SegmentMap& map) {
  const uint64_t segments = pieces_ - header.data_offset / kUnitBytes;
  const uint64_t first_piece = header.data_offset / kUnitBytes;
  const auto mark = [&](uint64_t segment, uint64_t count) {
    for (uint64_t i = segment; i < std::min(segments, segment + count); ++i)
      used_[first_piece + i] = true;
  };
  const auto mark_table = [&](uint64_t from, uint64_t to) {
    for (uint64_t piece = from / kUnitBytes; piece * kUnitBytes < to; ++piece) used_[piece] = true;
  };
  const auto descriptor = [&](uint64_t segment) -> const SegmentDescriptor& {
    return early<SegmentDescriptor>(map.descriptor_offset(segment));
  };
  mark_table(0, header.descriptors_offset);
  map.for_each_piece(0, segments, [&](uint64_t first, uint64_t last) {
    mark_table(map.descriptor_offset(first),
               map.descriptor_offset(last - 1) + sizeof(SegmentDescriptor));
    for (uint64_t i = first; i < last;) {
      Segments::Content content;
      const bool sound = Segments::parse(descriptor(i).word, i, last, content);
      if (!sound || content.kind != SegmentKind::kFree) mark(i, content.segments);
      i += content.segments;
    }
  });
  // A run that is linked, but not marked yet: the intent tells whoever opens the copy.
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const Lane& own = early<Lane>(header.lanes_offset + lane * sizeof(Lane));
    for (const Intent& intent : own.intents) {
      const uint64_t block = intent.block & ~uint64_t{kIntentMask};
      if (intent.link == 0 || (intent.block & kBlockIsRun) == 0 || block < header.data_offset)
        continue;
      const uint64_t segment = (block - header.data_offset) / kSegmentBytes;
      if (segment < segments && !map.is_table(segment))
        mark(segment, descriptor(segment).pending_run_segments);
    }
  }
}

void BackupWriter::write_unit(uint64_t unit, const char* from) {
  const uint64_t per_unit = unit_bytes_ / kUnitBytes;
  for (uint64_t i = 0; i < per_unit; ++i) {
    const uint64_t piece = unit * per_unit + i;
    if (piece < pieces_ && used_[piece]) write_piece(piece, from + i * kUnitBytes);
  }
}

void BackupWriter::write_piece(uint64_t piece, const char* from) {
  report_.copied_bytes += kUnitBytes;
  BackupUnit& unit = table_[piece];
  if (is_all_zeros(from, kUnitBytes)) return;
  unit.checksum = checksum128(from, kUnitBytes);
  const BackupFile* base = target_.base;
  if (base != nullptr && piece < base->table().size() && base->table()[piece].place != kZeros &&
      base->table()[piece].checksum == unit.checksum) {
    unit.place = kInBase;
    return;
  }
  unit.place = at_;
  write_at(target_.file, target_.name, at_, from, kUnitBytes);
  at_ += kUnitBytes;
}

void BackupWriter::write_end() {
  BackupHeader header{};
  std::memcpy(header.magic, kBackupMagic, sizeof kBackupMagic);
  header.version = kBackupVersion;
  const PoolHeader& pool_header = early<PoolHeader>(0);
  header.pool_version = pool_header.format_version;
  const uint64_t id[] = {random_number(target_.name), random_number(target_.name)};
  std::memcpy(header.id.data(), id, sizeof id);
  if (target_.base != nullptr) {
    header.base_id = target_.base->header().id;
    std::memcpy(header.base_name, target_.base_name.data(), target_.base_name.size());
  }
  std::memcpy(header.uuid, pool_header.uuid, sizeof header.uuid);
  header.generation = pool_header.generation_word;
  header.units = pieces_;
  header.stored_units = (at_ - kBackupHeaderBytes) / kUnitBytes;
  header.table_offset = at_;
  const uint64_t table_bytes = table_.size() * sizeof(BackupUnit);
  header.table_checksum = checksum64(table_.data(), table_bytes);
  header.created_unix_s = static_cast<uint64_t>(std::time(nullptr));
  header.checksum = checksum_of(header);
  write_at(target_.file, target_.name, at_, table_.data(), table_bytes);
  write_at(target_.file, target_.name, 0, &header, sizeof header);
  report_.written_bytes = at_ + table_bytes;
}

// ---- restoring

// The paths of a backup and of what it rests on, the newest first. Only headers are read, and one
// file at a time is open: there may be thousands.
std::vector<std::string> find_chain(const BackupFile& newest,
                                    const std::vector<std::string>& bases) {
  const std::string& backup = newest.path();
  BackupHeader header = newest.header();
  std::map<BackupId, std::string> given;
  for (const std::string& base : bases) {
    std::error_code ignored;
    if (has_base(header) && std::filesystem::exists(base, ignored))
      given.emplace(read_backup_header(base).id, base);
  }
  std::vector<std::string> chain{backup};
  while (has_base(header)) {
    const std::string beside = base_beside(chain.back(), header);
    const auto found = given.find(header.base_id);
    const std::string& next = found == given.end() ? beside : found->second;
    std::error_code ignored;
    std::optional<BackupHeader> base;
    if (std::filesystem::exists(next, ignored)) base = read_backup_header(next);
    if (!base || base->id != header.base_id) {
      throw Error(
          ErrorCode::kNotFound,
          fmt::format(
              "{}: rests on the backup {}, which is not there, or is not the one it was made "
              "on; say where it is",
              chain.back(), beside));
    }
    chain.push_back(next);
    if (chain.size() > kChainMax) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: the chain of backups has no end", backup));
    }
    header = *base;
  }
  return chain;
}

// Finds units of the newest backup of a chain, wherever they are stored, one file after the other.
// `left` are the numbers of those that are wanted. Throws kCorrupt.
void find_units(const std::vector<std::string>& chain, const BackupFile& newest,
                std::vector<uint64_t> left,
                const std::function<void(uint64_t number, const BackupFile& file,
                                         const BackupUnit& unit)>& take) {
  const auto broken = [&] {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: what it rests on has not what it says; use another backup",
                            newest.path()));
  };
  for (size_t i = 0; i < chain.size() && !left.empty(); ++i) {
    std::optional<BackupFile> base;
    const BackupFile& file = i == 0 ? newest : base.emplace(chain[i]);
    std::erase_if(left, [&](uint64_t number) {
      if (number >= file.table().size()) broken();
      const BackupUnit& unit = file.table()[number];
      if (unit.place == kInBase) return false;
      if (unit.place == kZeros || !(unit.checksum == newest.table()[number].checksum)) broken();
      take(number, file, unit);
      return true;
    });
  }
  if (!left.empty()) broken();
}

// The same, and reads them.
void read_units(const std::vector<std::string>& chain, const BackupFile& newest,
                std::vector<uint64_t> wanted,
                const std::function<void(uint64_t number, const char* unit)>& take) {
  std::vector<char> content(kUnitBytes);
  find_units(chain, newest, std::move(wanted),
             [&](uint64_t number, const BackupFile& file, const BackupUnit& unit) {
               file.read(unit, content.data());
               take(number, content.data());
             });
}

// Numbers of units that are not zeros.
std::vector<uint64_t> units_of(const BackupFile& backup) {
  std::vector<uint64_t> units;
  for (uint64_t i = 0; i < backup.table().size(); ++i) {
    if (backup.table()[i].place != kZeros) units.push_back(i);
  }
  return units;
}

// The file of a pool, mapped to be written.
class MappedFile {
 public:
  MappedFile(int file, const std::string& name, uint64_t bytes) : name_(name), bytes_(bytes) {
    struct statfs status{};
    if (::fstatfs(file, &status) != 0) throw_errno("fstatfs", name, errno);
    if (static_cast<uint64_t>(status.f_type) == HUGETLBFS_MAGIC) {
      bytes_ = (bytes_ + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
    }
    if (::ftruncate(file, static_cast<off_t>(bytes_)) != 0) throw_errno("ftruncate", name, errno);
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) throw_errno("mmap", name, errno);
    base_ = static_cast<char*>(mapped);
  }
  ~MappedFile() { ::munmap(base_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  char* base() const { return base_; }
  void sync() const {
    if (::msync(base_, bytes_, MS_SYNC) != 0) throw_errno("msync", name_, errno);
  }

 private:
  std::string name_;
  uint64_t bytes_;
  char* base_ = nullptr;
};

// Room for all that the pool counts as its own: a store into it must not find the medium full.
void reserve_blocks(int file, const std::string& name, uint64_t begin, uint64_t end) {
  int result = 0;
  do {
    result = ::posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result == EINTR);
  if (result != 0) throw_errno("fallocate", name, result);
}

}  // namespace

void require_no_backup_of_thread(const char* what) {
  if (!makes_backup) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "{} from within BackupOptions::progress would wait for ever, since it waits for the "
          "backup that is being made; do it when Pool::backup() has returned",
          what));
}

BackupReport copy_pool(const PoolImpl& pool, const BackupTarget& target,
                       const BackupProgress& progress) {
  require_no_backup_of_thread("another backup");
  const struct Mark {
    Mark() { makes_backup = true; }
    ~Mark() { makes_backup = false; }
  } mark;
  const std::shared_lock lock(pool.size_mutex());  // what was asked to be copied stays
  for (int attempt = 0;; ++attempt) {
    try {
      return BackupWriter(pool, target, progress).run();
    } catch (const Error& error) {
      // Nothing has been written then.
      if (error.code() != ErrorCode::kInUse || attempt >= 100) throw;
    }
  }
}

BackupReport write_backup(const PoolImpl& pool, const std::string& path,
                          const BackupOptions& options) {
  require_no_backup_of_thread("another backup");
  if (pool.failed()) pool.require_writable();  // throws
  BackupPlace place(path, options.base, mode_of(pool.mapping().file()));
  const BackupReport report = copy_pool(pool, place.target(), options.progress);
  place.finish();
  return report;
}

namespace {

[[noreturn]] void throw_not_done(const std::string& pool, const BackupTarget& target) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: the process that has the pool open says that {} is done, but has "
                          "not written what it says; ask again",
                          pool, target.name));
}

// That what was written is what the answer says: header and table are whole, and of a backup that
// rests on the base.
void require_copy(const std::string& pool, const BackupTarget& target, const BackupReport& report) {
  struct stat status{};
  if (::fstat(target.file, &status) != 0) throw_errno("fstat", target.name, errno);
  if (static_cast<uint64_t>(status.st_size) != report.written_bytes) throw_not_done(pool, target);
  std::unique_ptr<BackupFile> made;
  try {
    made = BackupFile::of_descriptor(target.file, target.name);
  } catch (const Error&) {
    throw_not_done(pool, target);
  }
  const BackupHeader& header = made->header();
  if (made->table().size() * kUnitBytes != report.pool_bytes ||
      header.base_id != (target.base == nullptr ? BackupId{} : target.base->header().id)) {
    throw_not_done(pool, target);
  }
}

}  // namespace

BackupReport ask_for_backup(const std::string& pool, const std::string& path,
                            const BackupOptions& options) {
  require_no_backup_of_thread("another backup");
  BackupPlace place(path, options.base, mode_of(pool));
  const AskedCopy made = ask_for_copy(pool, place.target(), options.progress);
  if (!made.of_own_user) {
    place.take_back();
    require_copy(pool, place.target(), made.report);
  }
  place.finish();
  return made.report;
}

namespace {

// What stands in the answer, in this order.
using ReportField = uint64_t BackupReport::*;
constexpr ReportField kReportFields[] = {&BackupReport::pool_bytes,    &BackupReport::copied_bytes,
                                         &BackupReport::written_bytes, &BackupReport::elapsed_ns,
                                         &BackupReport::protect_ns,    &BackupReport::pause_ns_max,
                                         &BackupReport::pauses};

}  // namespace

AskedCopy ask_for_copy(const std::string& pool, const BackupTarget& target,
                       const BackupProgress& progress) {
  LiveRequest request{.what = kLivePool, .file = target.file, .file_name = target.name};
  if (target.base != nullptr) {
    request.base = target.base->file();
    request.base_name = target.base->path();
    request.option = target.base_name;
  }
  const LiveAnswer answer = ask_live(pool, request, progress);
  AskedCopy made{.report = {}, .of_own_user = answer.of_own_user};
  if (answer.numbers.size() != std::size(kReportFields)) throw_not_done(pool, target);
  size_t i = 0;
  for (const ReportField field : kReportFields) made.report.*field = answer.numbers[i++];
  require_copy(pool, target, made.report);
  return made;
}

std::vector<uint64_t> answer_for_copy(const PoolImpl& pool, const LiveRequest& request,
                                      const BackupProgress& progress) {
  std::unique_ptr<BackupFile> base;
  if (request.base >= 0) {
    if (request.option.empty() || request.option.size() >= sizeof(BackupHeader::base_name)) {
      throw Error(ErrorCode::kInvalidArgument, "the base of the backup has no name");
    }
    base = BackupFile::of_descriptor(request.base, request.base_name);
  }
  const BackupReport report =
      copy_pool(pool, {request.file, request.file_name, base.get(), request.option}, progress);
  std::vector<uint64_t> numbers;
  for (const ReportField field : kReportFields) numbers.push_back(report.*field);
  return numbers;
}

void restore_backup(const std::string& backup, const std::string& path,
                    const std::vector<std::string>& bases) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    throw Error(ErrorCode::kExists,
                fmt::format("{}: is there already; restore to another name, or remove it", path));
  }
  const BackupFile newest(backup);
  const std::vector<std::string> chain = find_chain(newest, bases);
  std::vector<uint64_t> units = units_of(newest);
  PoolHeader header{};
  if (!units.empty() && units[0] == 0) {
    read_units(chain, newest, {0},
               [&](uint64_t, const char* unit) { std::memcpy(&header, unit, sizeof header); });
  }
  const uint64_t bytes = newest.table().size() * kUnitBytes;
  if (header.data_offset == 0 || header.data_offset > bytes ||
      header.data_offset > header.capacity_bytes || header.data_offset % kSegmentBytes != 0 ||
      header.descriptors_offset > header.data_offset) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: holds no pool", backup));
  }
  UnfinishedFile out(path);
  {
    const MappedFile pool(out.file(), out.name(), bytes);
    const uint64_t segments = (bytes - header.data_offset) / kSegmentBytes;
    const SegmentMap map(header);
    reserve_blocks(out.file(), out.name(), 0, header.descriptors_offset);
    map.for_each_piece(0, segments, [&](uint64_t first, uint64_t last) {
      reserve_blocks(out.file(), out.name(), map.descriptor_offset(first),
                     map.descriptor_offset(last - 1) + sizeof(SegmentDescriptor));
      reserve_blocks(out.file(), out.name(), header.data_offset + first * kSegmentBytes,
                     header.data_offset + last * kSegmentBytes);
    });
    read_units(chain, newest, std::move(units), [&](uint64_t number, const char* unit) {
      const uint64_t at = number * kUnitBytes;
      // Of tables whole units, also what the pool does not know of: a store into it would be the
      // end of the process.
      if (at < header.data_offset || map.is_table((at - header.data_offset) / kSegmentBytes))
        reserve_blocks(out.file(), out.name(), at, at + kUnitBytes);
      std::memcpy(pool.base() + at, unit, kUnitBytes);
    });
    pool.sync();
  }
  // That it opens, before it has its name.
  PoolOptions options;
  options.read_only = true;
  Pool::open(out.name(), options).close();
  out.finish(false);
}

bool is_backup_file(const std::string& path) noexcept try {
  return is_backup(path);
} catch (const std::exception&) {
  return false;
}

Mapping open_backup(const std::string& backup, bool verify) {
  const BackupFile newest(backup);
  const std::vector<std::string> chain = find_chain(newest, {});
  std::vector<int> files;
  std::vector<Mapping::Part> parts;
  const auto keep = [&](const BackupFile& file) {
    const int own = ::fcntl(file.file(), F_DUPFD_CLOEXEC, 0);
    if (own < 0) throw_errno("fcntl", file.path(), errno);
    files.push_back(own);
  };
  try {
    keep(newest);
    std::string last = newest.path();
    std::vector<char> content(kUnitBytes);
    find_units(chain, newest, units_of(newest),
               [&](uint64_t number, const BackupFile& file, const BackupUnit& unit) {
                 if (verify) file.read(unit, content.data());
                 if (last != file.path()) keep(file);
                 last = file.path();
                 parts.push_back({files.size() - 1, unit.place, number * kUnitBytes, kUnitBytes});
               });
  } catch (...) {
    for (const int file : files) ::close(file);
    throw;
  }
  std::ranges::sort(parts, {}, &Mapping::Part::offset);
  return Mapping::of_parts(backup, std::move(files), std::move(parts),
                           newest.table().size() * kUnitBytes);
}

}  // namespace perdure::pm
