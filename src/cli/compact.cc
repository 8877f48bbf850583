#include "cli/compact.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer/engine.h"
#include "cli/database_writer.h"
#include "cli/pool_check.h"
#include "common/units.h"
#include "perdure/block_cache.h"
#include "perdure/catalog.h"
#include "perdure/database.h"
#include "perdure/error.h"
#include "perdure/files.h"
#include "perdure/store.h"
#include "pm/file.h"
#include "pm/file_lock.h"
#include "pm/pool_impl.h"
#include "pm/system_error.h"
#include "store/layout.h"

namespace perdure::cli {
namespace {

bool is_store(const StructureInfo& info) { return info.type.starts_with("rstore"); }

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) {
    if (descriptor_ < 0) pm::throw_errno("open", path, errno);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

struct stat status_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) pm::throw_errno("stat", path, errno);
  return status;
}

class Compactor {
 public:
  Compactor(const std::string& pool, const PoolOptions& options, const ProgressSink& progress,
            const std::atomic<bool>& interrupted)
      : path_(std::filesystem::canonical(pool).string()),
        options_(options),
        progress_(progress),
        interrupted_(interrupted),
        from_(Pool::open(path_, options)),
        fresh_path_(fmt::format("{}.{}.compacting", path_, from_.info().uuid)) {}

  CompactReport run();

 private:
  void require_all_can_be_copied();
  void require_one_name() const;
  void require_room() const;
  void remove_left_over() const;
  void keep_owner() const;
  void keep_acl(const OpenFile& fresh) const;
  uint64_t copy(const StructureInfo& info);
  uint64_t copy_index(const StructureInfo& info);
  uint64_t copy_store(const StructureInfo& info);
  uint64_t copy_files(const StructureInfo& info);
  uint64_t copy_folder(const Files& from, Files& to, const std::string& folder);
  uint64_t copy_cache(const StructureInfo& info);
  uint64_t copy_database(const StructureInfo& info);
  void verify();
  uint64_t count_of_database(Pool& copy, const std::string& name) const;
  void take_place() const;
  void step(const StructureInfo& info, uint64_t records) const {
    if (interrupted_) throw CompactInterrupted{};
    if (!progress_ || records % 1000 != 0) return;
    progress_({.phase = "compact " + info.name, .items = records, .fraction = -1, .detail = {}});
  }

  std::string path_;
  PoolOptions options_;
  const ProgressSink& progress_;
  const std::atomic<bool>& interrupted_;
  Pool from_;
  std::string fresh_path_;  // the uuid in it says that it is a copy of this pool
  std::optional<Pool> to_;
  CompactReport report_;
};

void Compactor::require_all_can_be_copied() {
  const auto refuse = [&](const StructureInfo& info, const char* why) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' {}; nothing was changed", path_, info.name, why));
  };
  for (const StructureInfo& info : from_.structures()) {
    if (info.type == Files::kTypeName || info.type == BlockCache::kTypeName) continue;
    if (info.type == Database::kTypeName) {
      const DatabaseOptions made = buffer::Engine::options_of(pm::impl_of(from_), info.name);
      if (!made.page_file.empty())
        refuse(info, "has its pages in a file of its own, which would be another database's then");
      if (!made.log_file.empty())
        refuse(info, "has its log in a file of its own, which would be another database's then");
      continue;
    }
    catalog_entry(info.type);  // throws if this build has none
    if (is_store(info) && !Store::open(from_, info.name).consumers().empty())
      refuse(info, "has consumers, who could not go on: versions of a copy are new");
  }
}

// The copy is not larger than what is allocated now, but for what structures keep in reserve; a
// store is copied by way of a file.
void Compactor::require_room() const {
  struct statvfs system{};
  if (::statvfs(pm::parent_of(path_).c_str(), &system) != 0) {
    pm::throw_errno("statvfs", path_, errno);
  }
  const uint64_t room = uint64_t{system.f_bavail} * system.f_frsize;
  const PoolInfo info = from_.info();
  uint64_t wanted = pm::impl_of(from_).header().data_offset + info.allocated_bytes;
  if (std::ranges::any_of(from_.structures(), is_store)) wanted += info.allocated_bytes;
  if (room >= wanted) return;
  throw Error(ErrorCode::kNoSpace,
              fmt::format("{}: a copy beside it needs up to {}, and its file system has {} left; "
                          "nothing was changed: make room, or copy it to another file system with "
                          "`perdure convert --to`",
                          path_, format_bytes(wanted), format_bytes(room)));
}

// A name more would go on leading to the old file, which two would write to as if it were the pool.
void Compactor::require_one_name() const {
  const auto names = status_of(path_).st_nlink;
  if (names <= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: the file has {} names (hard links), and the others would keep the "
                          "old pool; nothing was changed: remove them first",
                          path_, names));
}

// What a compaction of this pool that was killed has left: nobody else gives files names with its
// uuid, and whoever has the pool locked is the only one to make such.
void Compactor::remove_left_over() const {
  const std::string name = std::filesystem::path(fresh_path_).filename().string();
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(pm::parent_of(path_))) {
    const std::string other = entry.path().filename().string();
    if (!other.starts_with(name)) continue;
    const std::string_view rest = std::string_view(other).substr(name.size());
    const bool of_a_store =
        rest == ".store" || (rest.starts_with(".store.") && rest.ends_with(".unfinished"));
    if (rest.empty() || of_a_store) found.push_back(entry.path().string());
  }
  for (const std::string& path : found) {
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) pm::throw_errno("stat", path, errno);
    bool is_in_use = false;
    if (S_ISREG(status.st_mode)) is_in_use = pm::has_writer(OpenFile(path).descriptor(), path);
    if (!S_ISREG(status.st_mode) || is_in_use) {
      throw Error(ErrorCode::kExists,
                  fmt::format("{}: is in the way of the copy, and is {}; nothing was changed: move "
                              "it away",
                              path, is_in_use ? "open to write" : "no regular file"));
    }
  }
  for (const std::string& path : found) std::filesystem::remove(path);
}

// Owner and group of the copy, which is nobody else's to read yet, are the old file's.
void Compactor::keep_owner() const {
  const struct stat old = status_of(path_);
  const OpenFile file(fresh_path_);
  struct stat fresh{};
  if (::fstat(file.descriptor(), &fresh) != 0) pm::throw_errno("stat", fresh_path_, errno);
  const auto refuse = [&](const char* what, uint64_t id) {
    throw Error(ErrorCode::kPermission,
                fmt::format("{}: its {} is {}, which a copy that you make cannot get ({}); nothing "
                            "was changed: have its owner compact it",
                            path_, what, id, std::strerror(errno)));
  };
  if (fresh.st_uid != old.st_uid && ::fchown(file.descriptor(), old.st_uid, -1) != 0)
    refuse("owner", old.st_uid);
  if (fresh.st_gid != old.st_gid && ::fchown(file.descriptor(), -1, old.st_gid) != 0)
    refuse("group", old.st_gid);
}

// And the ACL: what the folder's default has given to the copy would come into force with the mode.
void Compactor::keep_acl(const OpenFile& fresh) const {
  constexpr const char* kAcl = "system.posix_acl_access";
  std::vector<char> acl(XATTR_SIZE_MAX);
  const ssize_t bytes = ::getxattr(path_.c_str(), kAcl, acl.data(), acl.size());
  if (bytes < 0 && errno != ENODATA && errno != EOPNOTSUPP)
    pm::throw_errno("getxattr", path_, errno);
  const int result =
      bytes < 0 ? ::fremovexattr(fresh.descriptor(), kAcl)
                : ::fsetxattr(fresh.descriptor(), kAcl, acl.data(), static_cast<size_t>(bytes), 0);
  const bool is_none = bytes < 0 && (errno == ENODATA || errno == EOPNOTSUPP);
  if (result != 0 && !is_none) pm::throw_errno("setxattr", fresh_path_, errno);
}

uint64_t Compactor::copy_index(const StructureInfo& info) {
  const std::unique_ptr<AnyIndex> source = open_index(from_, info.name);
  const std::unique_ptr<AnyIndex> copy =
      create_index(*to_, info.name, info.type, source->key_kind(), source->value_kind());
  constexpr uint64_t kCheckpointEvery = uint64_t{1} << 20;
  uint64_t records = 0;
  source->for_each([&](Datum key, Datum value) {
    copy->bulk_upsert(key, value);
    step(info, ++records);
    if (records % kCheckpointEvery == 0) copy->checkpoint(0);
  });
  copy->checkpoint(0);
  return records;
}

// With the expiry of its records, and the partitions that it has.
uint64_t Compactor::copy_store(const StructureInfo& info) {
  const std::string file = fresh_path_ + ".store";
  const struct Removal {
    const std::string& file;
    ~Removal() {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  } removal{file};
  StoreOptions options;
  options.index = StoreIndex::kHash;
  if (info.type == "rstore+ordered") options.index = StoreIndex::kOrdered;
  if (info.type == "rstore+pm") {
    pm::PoolImpl& impl = pm::impl_of(from_);
    const auto& root = *impl.at<store::Root>(impl.find(info.name)->root);
    options.index = StoreIndex::kPm;
    options.index_structure = impl.follow<pm::DirectoryEntry>(root.pm_index)->type;
  }
  const StoreBackup made = Store::open(from_, info.name).backup(file);
  step(info, 0);
  const std::string files[] = {file};
  const uint64_t records = Store::restore(*to_, info.name, files, options).size();
  if (records == made.entries) return records;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: of {} records of '{}' there are {} in the copy; nothing was changed",
                          path_, made.entries, info.name, records));
}

uint64_t Compactor::copy_folder(const Files& from, Files& to, const std::string& folder) {
  constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
  uint64_t count = 0;
  std::string scratch(kPieceBytes, '\0');
  for (const FileInfo& info : from.list(folder)) {
    const std::string path = (folder == "/" ? "" : folder) + "/" + info.name;
    if (info.directory) {
      to.make_directory(path);
      count += copy_folder(from, to, path);
      continue;
    }
    const FileReader reader = from.open_file(path);
    FileWriter writer = to.create_file(path);
    for (uint64_t at = 0; at < reader.size();) {
      if (interrupted_) throw CompactInterrupted{};
      const std::string_view piece =
          reader.read(at, std::min(kPieceBytes, reader.size() - at), scratch.data());
      if (piece.empty()) {
        throw Error(ErrorCode::kCorrupt,
                    fmt::format("{}: {} ends at byte {} of {}", path_, path, at, reader.size()));
      }
      writer.append(piece);
      at += piece.size();
    }
    writer.sync();
    writer.close();
    ++count;
  }
  return count;
}

uint64_t Compactor::copy_files(const StructureInfo& info) {
  const Files from = Files::open(from_, info.name);
  Files to = Files::create(*to_, info.name);
  return copy_folder(from, to, "/");
}

uint64_t Compactor::copy_cache(const StructureInfo& info) {
  const BlockCache from = BlockCache::open(from_, info.name);
  BlockCache to = BlockCache::create(*to_, info.name, from.options());
  uint64_t blocks = 0;
  from.for_each([&](std::string_view key, std::string_view block) {
    if (to.insert(key, block)) step(info, ++blocks);
  });
  return blocks;
}

uint64_t Compactor::copy_database(const StructureInfo& info) {
  const DatabaseShape shape = shape_of(buffer::Engine::options_of(pm::impl_of(from_), info.name));
  DatabaseOptions opening;
  opening.pm_frames = shape.pm_bytes != 0;
  Database source = Database::open(from_, info.name, opening);
  DatabaseWriter writer(*to_, info.name, shape, "", "");
  uint64_t records = 0;
  for (const std::string& name : source.trees()) {
    const Tree tree = source.find_tree(name).value();
    writer.begin_tree(name);
    Transaction reading = source.begin();
    Cursor cursor = reading.cursor(tree);
    for (bool more = cursor.seek_first(); more; more = cursor.next()) {
      writer.add(std::string(cursor.key()), std::string(cursor.value()));
      step(info, ++records);
    }
  }
  writer.write();
  return records;
}

uint64_t Compactor::copy(const StructureInfo& info) {
  if (info.type == Files::kTypeName) return copy_files(info);
  if (info.type == BlockCache::kTypeName) return copy_cache(info);
  if (info.type == Database::kTypeName) return copy_database(info);
  return is_store(info) ? copy_store(info) : copy_index(info);
}

uint64_t Compactor::count_of_database(Pool& copy, const std::string& name) const {
  uint64_t records = 0;
  buffer::Engine::open_damaged(pm::impl_of(copy), name, "")
      ->salvage([](std::string_view) {},
                [&](std::string_view, std::string_view) {
                  ++records;
                  if (interrupted_) throw CompactInterrupted{};
                },
                [&](buffer::Loss, const std::string& sentence) {
                  throw Error(
                      ErrorCode::kCorrupt,
                      fmt::format("{}: the copy of '{}' is damaged: {}; nothing was changed", path_,
                                  name, sentence));
                });
  return records;
}

// The copy as who opens it finds it: sound, with all structures, and as many records.
void Compactor::verify() {
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorCode::kCorrupt,
        fmt::format("{}: the copy is not what it should be: {}; nothing was changed", path_, what));
  };
  const PoolCheck check = check_pool(fresh_path_);
  if (!check.problems.empty()) refuse(check.problems.front());
  if (check.structures != report_.structures.size()) refuse("structures are missing");
  PoolOptions reading;
  reading.read_only = true;
  Pool copy = Pool::open(fresh_path_, reading);
  reading.lenient = true;  // a database is recovered in memory then
  Pool of_databases = Pool::open(fresh_path_, reading);
  for (const CompactedStructure& one : report_.structures) {
    // (A cache may lose blocks.)
    if (one.info.type == Files::kTypeName || one.info.type == BlockCache::kTypeName) continue;
    uint64_t there = 0;
    if (one.info.type == Database::kTypeName) {
      there = count_of_database(of_databases, one.info.name);
    } else {
      open_index(copy, one.info.name)->for_each([&](Datum, Datum) {
        ++there;
        if (interrupted_) throw CompactInterrupted{};
      });
    }
    if (there != one.records && !is_store(one.info)) {  // of which some may have expired meanwhile
      refuse(fmt::format("'{}' has {} of {} records", one.info.name, there, one.records));
    }
  }
  report_.bytes_after = copy.info().size_bytes;
}

// The old pool is locked still: who waits for it finds that it has no name any more, and opens the
// new one.
void Compactor::take_place() const {
  require_one_name();
  keep_owner();
  const mode_t mode = status_of(path_).st_mode & 07777;
  const OpenFile file(fresh_path_);
  keep_acl(file);
  if (::fchmod(file.descriptor(), mode) != 0) pm::throw_errno("chmod", fresh_path_, errno);
  if (::fsync(file.descriptor()) != 0) pm::throw_errno("fsync", fresh_path_, errno);
  if (::rename(fresh_path_.c_str(), path_.c_str()) != 0) pm::throw_errno("rename", path_, errno);
  pm::sync_parent_of(path_);
}

CompactReport Compactor::run() {
  const pm::PrivateFiles private_files;
  require_one_name();
  require_all_can_be_copied();
  remove_left_over();
  require_room();
  const PoolInfo info = from_.info();
  report_.bytes_before = info.size_bytes;
  PoolOptions making = options_;
  making.capacity_bytes = info.capacity_bytes;
  making.growth_bytes = pm::impl_of(from_).header().growth_bytes;
  try {
    to_.emplace(Pool::create(fresh_path_, making));
    keep_owner();
    for (const StructureInfo& structure : from_.structures()) {
      report_.structures.push_back({structure, copy(structure)});
    }
    to_->shrink();
    to_->close();
    to_.reset();
    verify();
    take_place();
  } catch (...) {
    to_.reset();
    std::error_code ignored;
    std::filesystem::remove(fresh_path_, ignored);
    throw;
  }
  return std::move(report_);
}

}  // namespace

CompactReport compact_pool(const std::string& pool, const PoolOptions& options,
                           const ProgressSink& progress, const std::atomic<bool>& interrupted) {
  if (!std::filesystem::exists(pool)) Pool::open(pool);  // throws
  return Compactor(pool, options, progress, interrupted).run();
}

}  // namespace perdure::cli
