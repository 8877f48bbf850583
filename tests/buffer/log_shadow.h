// A log file whose syncs are watched: what a power failure may leave of it is any of the sectors
// written since they were last made durable, and places to fail at.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "buffer/log_file.h"
#include "perdure/error.h"
#include "support/files.h"
#include "support/random.h"

namespace perdure::test {

class LogShadow final : public buffer::LogFaults {
 public:
  explicit LogShadow(std::string path) : path_(std::move(path)) { buffer::inject_log_faults(this); }
  ~LogShadow() override { buffer::inject_log_faults(nullptr); }

  // Called before each write and each sync, with their number from 0 on.
  std::function<void(uint64_t n)> at_point;
  // From this one on all fail, a write by a part.
  uint64_t fails_from = ~uint64_t{0};
  bool failed() const { return points_ > fails_from; }
  uint64_t points() const { return points_; }
  uint64_t syncs() const { return syncs_; }
  void begin_session() {
    points_ = 0;
    fails_from = ~uint64_t{0};
    at_point = nullptr;
  }

  // The file after a power failure, with any of the sectors that are not durable.
  std::string make_image(Random& random, bool least = false) const {
    std::string content = read_file(path_);
    for (const auto* sectors : {&unsynced_, &doubtful_}) {
      for (const auto& [at, before] : *sectors) {
        if (least || random.chance(50)) content.replace(at, before.size(), before);
      }
    }
    return content;
  }
  // The power failed: this is the file now.
  void replace(const std::string& content) {
    write_file(path_, content);
    unsynced_.clear();
    doubtful_.clear();
  }

  uint64_t write(uint64_t at, const char* /*from*/, uint64_t bytes) override {
    const bool fails = pass();
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    for (uint64_t sector = at; sector < at + bytes; sector += kSector) {
      std::string before(kSector, '\0');
      if (::pread(file, before.data(), kSector, static_cast<off_t>(sector)) < 0) before = {};
      // What was not durable before the system forgot it is as it was before that.
      const auto forgotten = doubtful_.find(sector);
      if (forgotten != doubtful_.end()) before = forgotten->second;
      unsynced_.try_emplace(sector, before);
      doubtful_.erase(sector);
    }
    ::close(file);
    if (!fails) return bytes;
    torn_ = true;
    return bytes / 2 / kSector * kSector;
  }
  // A system that could not write takes its pages for clean: later syncs do not write them.
  void sync() override {
    const bool fails = pass() || torn_;
    if (fails) {
      torn_ = false;
      doubtful_.merge(unsynced_);
      unsynced_.clear();
      throw Error(ErrorCode::kIo, "the log file: told to fail");
    }
    unsynced_.clear();
    ++syncs_;
  }

 private:
  static constexpr uint64_t kSector = 512;

  // Whether this one is to fail.
  bool pass() {
    const uint64_t n = points_++;
    if (at_point) at_point(n);
    return n >= fails_from;
  }

  std::string path_;
  std::map<uint64_t, std::string> unsynced_;  // by offset: as they were when they were durable
  std::map<uint64_t, std::string> doubtful_;
  uint64_t points_ = 0;
  uint64_t syncs_ = 0;
  bool torn_ = false;
};

}  // namespace perdure::test
