// The ring of a write-ahead log in a file, with a copy in DRAM, which is what is read.
//
//   | magic 8 | salt 8 | log_bytes 8 | checksum 8 | - to 4 KiB | ring: log_bytes |
//
// Whole blocks of 4 KiB of the copy are written, past the caches of the system where the file
// system has O_DIRECT. A block that is written again has in it what was durable before, the same
// bytes: a device that writes each sector wholly or not at all cannot lose that.
//
// Once a write or a sync has failed nothing more is written: the system may have forgotten what it
// could not write, and a second sync that succeeds would mean nothing. The next opening reads the
// file, and writes what it has found once more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace perdure::buffer {

class LogFile {
 public:
  static constexpr uint64_t kBlock = 4096;

  enum class Use : uint8_t { kCreate, kOpen, kRead };
  // A ring of `bytes`, a multiple of kBlock, of the database with this salt. kCreate: the file must
  // not exist; it has all its room then, and is removed if that fails. kRead: what is written stays
  // in the copy. Cost: reads or writes the file. Throws kNotFound, kExists, kPermission, kReadOnly,
  // kLocked, kNoSpace, kIo; kInvalidArgument: it is no log file, or another database's; kCorrupt:
  // it was cut off, or its header is damaged.
  LogFile(const std::string& path, uint64_t salt, uint64_t bytes, Use use);
  // A ring without a file, of zeros: to read a database whose log file is gone.
  explicit LogFile(uint64_t bytes);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Whose a log file is; nothing if the file is none. Throws as the opening with kRead.
  static std::optional<uint64_t> salt_of(const std::string& path);

  char* ring() { return ring_.get(); }
  bool is_to_read() const { return to_read_; }

  // Puts `bytes` at an offset of the ring; durable after sync(). By one thread at a time, as all
  // that follows. Throws kIo: from then on nothing is written.
  void write(uint64_t at, const char* from, uint64_t bytes);
  // Writes a part of the ring as it is, once more.
  void write_again(uint64_t at, uint64_t bytes);
  void sync();
  // Throws kIo if a write or sync has failed. Thread-safe.
  void require_sound() const;
  [[noreturn]] void refuse_as_old() const;

 private:
  void make();
  void read();
  void write_blocks(uint64_t at, uint64_t bytes);
  void put(uint64_t at, const char* from, uint64_t bytes);
  template <typename Work>
  void or_fail(Work work);

  std::string subject_;  // of messages
  uint64_t salt_ = 0;
  uint64_t bytes_;
  bool to_read_;
  std::unique_ptr<char, void (*)(void*)> ring_;
  int fd_ = -1;
  std::atomic<bool> failed_{false};
};

// Faults of a log file, for tests: called before each write to it, of bytes at an offset of the
// file (it returns how many of them to write), before each sync, and after the ring was read at the
// opening, which it may change; may throw.
class LogFaults {
 public:
  virtual ~LogFaults() = default;
  virtual uint64_t write(uint64_t at, const char* from, uint64_t bytes) = 0;
  virtual void sync() = 0;
  virtual void read(char* /*ring*/, uint64_t /*bytes*/) {}
};
// Of log files that are used from now on; null: none. Not thread-safe.
void inject_log_faults(LogFaults* faults);

}  // namespace perdure::buffer
