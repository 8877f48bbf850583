// RocksDB's file system on files in a pool.
#include <pthread.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/io_status.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "lsm/log_file.h"
#include "lsm/placement.h"
#include "lsm/rocksdb/pool_of_uri.h"
#include "perdure/files.h"
#include "perdure/rocksdb.h"

namespace perdure {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Carries out `work` and turns what it throws into a status: no exception passes through RocksDB.
template <typename Work>
IOStatus status_of(const std::string& name, Work work) {
  try {
    work();
    return IOStatus::OK();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::kNotFound:  // NotFound is for who asks whether there is one
        return IOStatus::PathNotFound(name, error.what());
      case ErrorCode::kCorrupt:
        return IOStatus::Corruption(name, error.what());
      case ErrorCode::kPoolFull:
      case ErrorCode::kNoSpace:
        return IOStatus::NoSpace(name, error.what());
      default:
        return IOStatus::IOError(name, error.what());
    }
  } catch (const std::exception& error) {  // std::bad_alloc
    return IOStatus::IOError(name, error.what());
  }
}

// Copies: RocksDB reads ahead into buffers, and takes it for granted that what was read is in them.
class PoolSequentialFile final : public rocksdb::FSSequentialFile {
 public:
  explicit PoolSequentialFile(FileReader reader) : reader_(std::move(reader)) {}

  IOStatus Read(size_t bytes, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) override {
    const IOStatus status = PositionedRead(position_, bytes, options, result, scratch, debug);
    position_ += result->size();
    return status;
  }
  IOStatus Skip(uint64_t bytes) override {
    position_ += std::min(bytes, ~position_);
    return IOStatus::OK();
  }
  IOStatus PositionedRead(uint64_t offset, size_t bytes, const IOOptions& /*options*/,
                          Slice* result, char* scratch, IODebugContext* /*debug*/) override {
    const std::string_view read = reader_.read(offset, bytes, scratch);
    if (read.data() != scratch) std::memcpy(scratch, read.data(), read.size());
    *result = Slice(scratch, read.size());
    return IOStatus::OK();
  }

 private:
  FileReader reader_;
  uint64_t position_ = 0;
};

class PoolRandomAccessFile final : public rocksdb::FSRandomAccessFile {
 public:
  PoolRandomAccessFile(FileReader reader, bool in_place)
      : reader_(std::move(reader)), in_place_(in_place) {}

  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions& /*options*/, Slice* result,
                char* scratch, IODebugContext* /*debug*/) const override {
    if (scratch == nullptr) return read_without_scratch(offset, bytes, result);
    const std::string_view read = reader_.read(offset, bytes, scratch);
    const bool copied = !in_place_ || lsm::take_placement() == lsm::Placement::kCopy;
    if (!copied || read.data() == scratch) {
      *result = Slice(read.data(), read.size());
      return IOStatus::OK();
    }
    std::memcpy(scratch, read.data(), read.size());
    *result = Slice(scratch, read.size());
    return IOStatus::OK();
  }
  // Nothing to fetch: it is in memory.
  IOStatus Prefetch(uint64_t /*offset*/, size_t /*bytes*/, const IOOptions& /*options*/,
                    IODebugContext* /*debug*/) override {
    return IOStatus::OK();
  }

 private:
  // Of those who take the whole file for mapped. It lies in extents.
  IOStatus read_without_scratch(uint64_t offset, size_t bytes, Slice* result) const {
    const uint64_t end = reader_.size();
    bytes = static_cast<size_t>(std::min<uint64_t>(bytes, end - std::min(offset, end)));
    bool in_one = true;
    const IOStatus status = status_of("a mapped file", [&] {
      std::string copy(bytes, '\0');
      const std::string_view read = reader_.read(offset, bytes, copy.data());
      in_one = read.data() != copy.data();
      if (in_one) *result = Slice(read.data(), read.size());
    });
    return in_one ? status : IOStatus::NotSupported("a read of two extents needs room");
  }

  FileReader reader_;
  bool in_place_;
};

// RocksDB may sync a log while another thread appends to it.
class PoolWritableFile final : public rocksdb::FSWritableFile {
 public:
  PoolWritableFile(std::string name, const FileOptions& options, FileWriter writer)
      : FSWritableFile(options), name_(std::move(name)), writer_(std::move(writer)) {}

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions& /*options*/,
                  IODebugContext* /*debug*/) override {
    return locked([&] { writer_.append({data.data(), data.size()}); });
  }
  IOStatus Truncate(uint64_t bytes, const IOOptions& /*options*/,
                    IODebugContext* /*debug*/) override {
    return locked([&] {
      if (bytes < writer_.size()) writer_.truncate(bytes);
    });
  }
  IOStatus Close(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return locked([&] { writer_.close(); });
  }
  IOStatus Flush(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return locked([&] { writer_.flush(); });
  }
  IOStatus Sync(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return locked([&] { writer_.sync(); });
  }
  bool IsSyncThreadSafe() const override { return true; }
  uint64_t GetFileSize(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    const std::lock_guard lock(mutex_);
    return writer_.size();
  }

 private:
  template <typename Work>
  IOStatus locked(Work work) {
    const std::lock_guard lock(mutex_);
    return status_of(name_, work);
  }

  std::string name_;
  std::mutex mutex_;
  FileWriter writer_;
};

// RocksDB's own logger ends the process, in builds with assertions, when it is written to after a
// write to its file has failed.
class PoolLogger final : public rocksdb::Logger {
 public:
  explicit PoolLogger(FileWriter writer) : file_(std::move(writer)) {}
  ~PoolLogger() override {
    if (!closed_) Close().PermitUncheckedError();
  }

  using Logger::Logv;
  void Logv(const char* format, std::va_list arguments) override {
    std::array<char, 24> thread;
    std::snprintf(thread.data(), thread.size(), "%llx ",
                  static_cast<unsigned long long>(pthread_self()));  // NOLINT: as RocksDB's
    file_.write(thread.data(), format, arguments);
  }
  size_t GetLogFileSize() const override { return file_.bytes(); }

 protected:
  rocksdb::Status CloseImpl() override {
    return status_of("the log", [&] { file_.close(); });
  }

 private:
  lsm::LogFile file_;
};

// Names are durable when a call returns.
class PoolDirectory final : public rocksdb::FSDirectory {
 public:
  IOStatus Fsync(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return IOStatus::OK();
  }
  IOStatus Close(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return IOStatus::OK();
  }
};

class PoolLock final : public rocksdb::FileLock {
 public:
  explicit PoolLock(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

class PoolFileSystem final : public rocksdb::FileSystem {
 public:
  // `keep` is what must live as long: the pool, if it was opened for this.
  PoolFileSystem(Files files, std::shared_ptr<void> keep)
      : keep_(std::move(keep)), files_(std::move(files)) {}

  const char* Name() const override { return "PerdureFileSystem"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& /*options*/,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result,
                             IODebugContext* /*debug*/) override {
    return status_of(
        name, [&] { *result = std::make_unique<PoolSequentialFile>(files_.open_file(name)); });
  }
  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      *result =
          std::make_unique<PoolRandomAccessFile>(files_.open_file(name), options.use_mmap_reads);
    });
  }
  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* result,
                           IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      *result = std::make_unique<PoolWritableFile>(name, options, files_.create_file(name));
    });
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* result,
                              IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      *result = std::make_unique<PoolWritableFile>(name, options, files_.append_file(name));
    });
  }
  // The one that is reused is a log that nobody needs any more. RocksDB may not have closed it yet:
  // its writer keeps what it has, and another file takes its place.
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old,
                             const FileOptions& options,
                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                             IODebugContext* debug) override {
    const IOStatus removed = remove(old, false);
    return removed.ok() ? NewWritableFile(name, options, result, debug) : removed;
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions& /*options*/,
                        std::unique_ptr<rocksdb::FSDirectory>* result,
                        IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      const auto info = files_.find(name);
      if (!info || !info->directory)
        throw Error(ErrorCode::kNotFound, "there is no such directory");
      *result = std::make_unique<PoolDirectory>();
    });
  }

  IOStatus NewLogger(const std::string& name, const IOOptions& /*options*/,
                     std::shared_ptr<rocksdb::Logger>* result, IODebugContext* /*debug*/) override {
    return status_of(name,
                     [&] { *result = std::make_shared<PoolLogger>(files_.create_file(name)); });
  }

  IOStatus FileExists(const std::string& name, const IOOptions& /*options*/,
                      IODebugContext* /*debug*/) override {
    bool there = false;
    const IOStatus status = status_of(name, [&] { there = files_.find(name).has_value(); });
    return there || !status.ok() ? status : IOStatus::NotFound(name, "is not there");
  }
  IOStatus GetChildren(const std::string& directory, const IOOptions& /*options*/,
                       std::vector<std::string>* result, IODebugContext* /*debug*/) override {
    result->clear();
    bool there = false;
    const IOStatus status = status_of(directory, [&] {
      const auto found = files_.find(directory);
      there = found && found->directory;
      if (!there) return;
      for (FileInfo& info : files_.list(directory)) result->push_back(std::move(info.name));
    });
    return there || !status.ok() ? status : IOStatus::NotFound(directory, "is no directory");
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions& /*options*/,
                      IODebugContext* /*debug*/) override {
    return remove(name, false);
  }
  IOStatus DeleteDir(const std::string& name, const IOOptions& /*options*/,
                     IODebugContext* /*debug*/) override {
    return remove(name, true);
  }
  IOStatus Truncate(const std::string& name, size_t bytes, const IOOptions& /*options*/,
                    IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      require(name);  // or it would be made
      FileWriter writer = files_.append_file(name);
      writer.truncate(bytes);
      writer.close();
    });
  }
  // With what leads to it: the root directory of a pool is empty, where a system's is not.
  IOStatus CreateDir(const std::string& name, const IOOptions& /*options*/,
                     IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      if (files_.find(name)) throw Error(ErrorCode::kExists, "is there already");
      files_.make_directories(name);
    });
  }
  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions& /*options*/,
                              IODebugContext* /*debug*/) override {
    return status_of(name, [&] { files_.make_directories(name); });
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions& /*options*/, uint64_t* bytes,
                       IODebugContext* /*debug*/) override {
    return status_of(name, [&] { *bytes = require(name).bytes; });
  }
  IOStatus GetFileModificationTime(const std::string& name, const IOOptions& /*options*/,
                                   uint64_t* seconds, IODebugContext* /*debug*/) override {
    return status_of(name, [&] { *seconds = require(name).modified_unix_s; });
  }
  IOStatus IsDirectory(const std::string& name, const IOOptions& /*options*/, bool* directory,
                       IODebugContext* /*debug*/) override {
    return status_of(name, [&] { *directory = require(name).directory; });
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& /*options*/,
                      IODebugContext* /*debug*/) override {
    return status_of(from, [&] { files_.rename(from, to); });
  }

  // There are no links.
  IOStatus NumFileLinks(const std::string& name, const IOOptions& /*options*/, uint64_t* links,
                        IODebugContext* /*debug*/) override {
    return status_of(name, [&] {
      require(name);
      *links = 1;
    });
  }
  IOStatus AreFilesSame(const std::string& first, const std::string& second,
                        const IOOptions& /*options*/, bool* same,
                        IODebugContext* /*debug*/) override {
    return status_of(first, [&] {
      require(first);
      require(second);
      *same = spelling_of(first) == spelling_of(second);
    });
  }

  IOStatus LockFile(const std::string& name, const IOOptions& /*options*/, rocksdb::FileLock** lock,
                    IODebugContext* /*debug*/) override {
    *lock = nullptr;
    return status_of(name, [&] {
      auto taken = std::make_unique<PoolLock>(name);
      if (!files_.lock(name)) throw Error(ErrorCode::kInUse, "lock hold by current process");
      *lock = taken.release();
    });
  }
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions& /*options*/,
                      IODebugContext* /*debug*/) override {
    const std::unique_ptr<PoolLock> held(static_cast<PoolLock*>(lock));
    return status_of(held->name(), [&] { files_.unlock(held->name()); });
  }
  IOStatus GetTestDirectory(const IOOptions& options, std::string* path,
                            IODebugContext* debug) override {
    *path = "/test";
    return CreateDirIfMissing(*path, options, debug);
  }
  // After a write that found no room RocksDB goes on by itself once it hears that there is some.
  IOStatus GetFreeSpace(const std::string& path, const IOOptions& /*options*/, uint64_t* bytes,
                        IODebugContext* /*debug*/) override {
    *bytes = 0;
    return status_of(path, [&] { *bytes = files_.free_bytes(); });
  }
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions& /*options*/,
                           std::string* absolute, IODebugContext* /*debug*/) override {
    *absolute = path.starts_with('/') ? path : "/" + path;
    return IOStatus::OK();
  }

 private:
  // All spellings of a path are one.
  static std::string spelling_of(const std::string& path) {
    return (std::filesystem::path("/" + path) / "").lexically_normal().string();
  }
  FileInfo require(const std::string& name) const {
    const auto info = files_.find(name);
    if (!info) throw Error(ErrorCode::kNotFound, "is not there");
    return *info;
  }
  IOStatus remove(const std::string& name, bool directory) {
    return status_of(name, [&] {
      if (require(name).directory != directory)
        throw Error(ErrorCode::kNotAFile, directory ? "is a file" : "is a directory");
      files_.remove(name);
    });
  }

  std::shared_ptr<void> keep_;
  Files files_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> rocksdb_file_system(Pool& pool, const std::string& name) {
  return std::make_shared<PoolFileSystem>(Files::open_or_create(pool, name), nullptr);
}

std::unique_ptr<rocksdb::FileSystem> lsm::file_system_of_uri(const std::string& uri) {
  const std::shared_ptr<PoolOfUri> open = pool_of_uri(uri);
  return std::make_unique<PoolFileSystem>(open->files, open);
}

}  // namespace perdure
