// LevelDB's environment on files in a pool.
#include <leveldb/env.h>

#include <algorithm>
#include <condition_variable>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "lsm/leveldb/table_layout.h"
#include "lsm/log_file.h"
#include "lsm/placement.h"
#include "perdure/files.h"
#include "perdure/leveldb.h"
#include "pm/thread.h"

namespace perdure {
namespace {

using leveldb::Slice;
using leveldb::Status;

std::string_view view_of(const Slice& slice) { return {slice.data(), slice.size()}; }

// Carries out `work` and turns what it throws into a status: LevelDB knows no exceptions.
template <typename Work>
Status status_of(const std::string& name, Work work) {
  try {
    work();
    return Status::OK();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::kNotFound:
        return Status::NotFound(name, error.what());
      case ErrorCode::kCorrupt:
        return Status::Corruption(name, error.what());
      default:
        return Status::IOError(name, error.what());
    }
  } catch (const std::exception& error) {  // std::bad_alloc
    return Status::IOError(name, error.what());
  }
}

class PoolSequentialFile final : public leveldb::SequentialFile {
 public:
  explicit PoolSequentialFile(FileReader reader) : reader_(std::move(reader)) {}

  Status Read(size_t bytes, Slice* result, char* scratch) override {
    const std::string_view read = reader_.read(position_, bytes, scratch);
    position_ += read.size();
    *result = Slice(read.data(), read.size());
    return Status::OK();
  }
  Status Skip(uint64_t bytes) override {
    position_ += std::min(bytes, ~position_);
    return Status::OK();
  }

 private:
  FileReader reader_;
  uint64_t position_ = 0;
};

class PoolRandomAccessFile final : public leveldb::RandomAccessFile {
 public:
  PoolRandomAccessFile(FileReader reader, const LevelDbEnvOptions& options)
      : reader_(std::move(reader)),
        undecided_(options.reads),
        index_in_dram_(options.index_in_dram),
        index_begin_(lsm::index_begin(reader_)) {}

  Status Read(uint64_t offset, size_t bytes, Slice* result, char* scratch) const override {
    const std::string_view read = reader_.read(offset, bytes, scratch);
    *result = Slice(read.data(), read.size());
    if (!is_copied(offset) || read.data() == scratch) return Status::OK();
    std::memcpy(scratch, read.data(), read.size());
    *result = Slice(scratch, read.size());
    return Status::OK();
  }

 private:
  bool is_copied(uint64_t offset) const {
    if (offset >= index_begin_) return index_in_dram_;
    const lsm::Placement decided = lsm::take_placement();
    if (decided != lsm::Placement::kUndecided) return decided == lsm::Placement::kCopy;
    return undecided_ == BlockReads::kCopy;
  }

  FileReader reader_;
  BlockReads undecided_;
  bool index_in_dram_;
  uint64_t index_begin_;  // data blocks are before it
};

class PoolWritableFile final : public leveldb::WritableFile {
 public:
  PoolWritableFile(std::string name, FileWriter writer)
      : name_(std::move(name)), writer_(std::move(writer)) {}

  // After one that failed all fail: LevelDB has advanced in its log as if the record was whole.
  // Others behind a part of it would be acknowledged, and not found.
  Status Append(const Slice& data) override {
    if (failed_.ok()) failed_ = status_of(name_, [&] { writer_.append(view_of(data)); });
    return failed_;
  }
  Status Close() override {
    return status_of(name_, [&] { writer_.close(); });
  }
  Status Flush() override {
    return failed_.ok() ? status_of(name_, [&] { writer_.flush(); }) : failed_;
  }
  Status Sync() override {
    return failed_.ok() ? status_of(name_, [&] { writer_.sync(); }) : failed_;
  }

 private:
  std::string name_;
  FileWriter writer_;
  Status failed_;  // of an append
};

class PoolLogger final : public leveldb::Logger {
 public:
  explicit PoolLogger(FileWriter writer) : file_(std::move(writer)) {}

  void Logv(const char* format, std::va_list arguments) override {
    file_.write("", format, arguments);
  }

 private:
  lsm::LogFile file_;
};

class PoolLock final : public leveldb::FileLock {
 public:
  explicit PoolLock(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// Carries out what LevelDB schedules, one after the other. Of each environment its own, where
// LevelDB's default has one for the whole process, which a forked child has lost.
class Background {
 public:
  // Now: LevelDB, which schedules while it holds a lock, cannot be told later. Throws kIo.
  Background() : thread_(pm::start_thread("LevelDB's background", [this] { run(); })) {}
  ~Background() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void schedule(void (*function)(void*), void* argument) {
    const std::lock_guard lock(mutex_);
    work_.emplace_back(function, argument);
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      const auto [function, argument] = work_.front();
      work_.pop_front();
      lock.unlock();
      function(argument);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> work_;
  bool ends_ = false;
  std::thread thread_;  // the last one, as it uses the others
};

class PoolEnv final : public leveldb::EnvWrapper {
 public:
  PoolEnv(Files files, LevelDbEnvOptions options)
      : EnvWrapper(Env::Default()), files_(std::move(files)), options_(std::move(options)) {}

  Status NewSequentialFile(const std::string& name, leveldb::SequentialFile** result) override {
    *result = nullptr;
    return status_of(name, [&] { *result = new PoolSequentialFile(files_.open_file(name)); });
  }
  Status NewRandomAccessFile(const std::string& name, leveldb::RandomAccessFile** result) override {
    *result = nullptr;
    return status_of(name,
                     [&] { *result = new PoolRandomAccessFile(files_.open_file(name), options_); });
  }
  Status NewWritableFile(const std::string& name, leveldb::WritableFile** result) override {
    *result = nullptr;
    return status_of(name, [&] { *result = new PoolWritableFile(name, files_.create_file(name)); });
  }
  Status NewAppendableFile(const std::string& name, leveldb::WritableFile** result) override {
    *result = nullptr;
    return status_of(name, [&] { *result = new PoolWritableFile(name, files_.append_file(name)); });
  }
  Status NewLogger(const std::string& name, leveldb::Logger** result) override {
    *result = nullptr;
    return status_of(name, [&] { *result = new PoolLogger(files_.create_file(name)); });
  }

  bool FileExists(const std::string& name) override {
    bool there = false;
    const Status ignored = status_of(name, [&] { there = files_.find(name).has_value(); });
    return there;
  }
  Status GetChildren(const std::string& directory, std::vector<std::string>* result) override {
    result->clear();
    return status_of(directory, [&] {
      for (FileInfo& info : files_.list(directory)) result->push_back(std::move(info.name));
    });
  }
  Status GetFileSize(const std::string& name, uint64_t* bytes) override {
    *bytes = 0;
    return status_of(name, [&] { *bytes = require(name, false).bytes; });
  }
  Status RemoveFile(const std::string& name) override { return remove(name, false); }
  Status RemoveDir(const std::string& name) override { return remove(name, true); }
  // With what leads to it: the root directory of a pool is empty, where a system's is not.
  Status CreateDir(const std::string& name) override {
    return status_of(name, [&] {
      if (files_.find(name)) throw Error(ErrorCode::kExists, "is there already");
      files_.make_directories(name);
    });
  }
  Status RenameFile(const std::string& from, const std::string& to) override {
    return status_of(from, [&] { files_.rename(from, to); });
  }

  Status LockFile(const std::string& name, leveldb::FileLock** lock) override {
    *lock = nullptr;
    return status_of(name, [&] {
      auto taken = std::make_unique<PoolLock>(name);
      if (!files_.lock(name)) throw Error(ErrorCode::kInUse, "already held by process");
      *lock = taken.release();
    });
  }
  Status UnlockFile(leveldb::FileLock* lock) override {
    const std::unique_ptr<PoolLock> held(static_cast<PoolLock*>(lock));
    return status_of(held->name(), [&] { files_.unlock(held->name()); });
  }
  void Schedule(void (*function)(void* argument), void* argument) override {
    background_.schedule(function, argument);
  }
  Status GetTestDirectory(std::string* path) override {
    *path = "/test";
    return status_of(*path, [&] { files_.make_directories(*path); });
  }

 private:
  FileInfo require(const std::string& name, bool directory) const {
    const auto info = files_.find(name);
    if (!info) throw Error(ErrorCode::kNotFound, "is not there");
    if (info->directory != directory)
      throw Error(ErrorCode::kNotAFile, directory ? "is a file" : "is a directory");
    return *info;
  }
  Status remove(const std::string& name, bool directory) {
    return status_of(name, [&] {
      require(name, directory);
      files_.remove(name);
    });
  }

  Files files_;
  LevelDbEnvOptions options_;
  Background background_;  // ends first
};

}  // namespace

std::unique_ptr<leveldb::Env> leveldb_env(Pool& pool, const LevelDbEnvOptions& options) {
  return std::make_unique<PoolEnv>(Files::open_or_create(pool, options.name), options);
}

}  // namespace perdure
