#include "cli/pool_check.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "buffer/engine.h"
#include "common/units.h"
#include "index/owned_blocks.h"
#include "lsm/cache/core.h"
#include "lsm/files/file_system.h"
#include "perdure/catalog.h"
#include "perdure/error.h"
#include "perdure/pool.h"
#include "pm/pool_impl.h"
#include "pm/transaction_log.h"

namespace perdure::cli {
namespace {

// What the child tells: a letter and a text on each line.
constexpr char kStage = 'a';       // what it is about to check
constexpr char kStructures = 's';  // how many there are
constexpr char kProblem = 'p';
constexpr char kError = 'e';  // the number of an ErrorCode, a space, the message
constexpr char kDone = 'd';

class Report {
 public:
  explicit Report(int descriptor) : descriptor_(descriptor) {}
  void tell(char what, std::string text) const {
    std::replace(text.begin(), text.end(), '\n', ' ');
    text = what + text + "\n";
    for (size_t at = 0; at < text.size();) {
      const ssize_t wrote = write(descriptor_, text.data() + at, text.size() - at);
      if (wrote < 0 && errno != EINTR) _exit(1);  // nobody listens
      if (wrote > 0) at += static_cast<size_t>(wrote);
    }
  }

 private:
  int descriptor_;
};

struct Block {
  uint64_t offset;
  uint64_t bytes;
  size_t owner;  // index of the structure; their number: the pool itself
};

class Checker {
 public:
  Checker(Pool& pool, const Report& report)
      : pool_(pool), structures_(pool.structures()), report_(report) {}

  void run();

 private:
  void check_structure(size_t number);
  void check_ownership();
  void check_neighbours(const Block& earlier, const Block& later);
  std::string name_of(const Block& block) const {
    return block.owner < structures_.size() ? structures_[block.owner].name : "the pool itself";
  }
  void report(const std::string& sentence) const { report_.tell(kProblem, sentence); }

  Pool& pool_;
  std::vector<StructureInfo> structures_;
  std::vector<Block> blocks_;
  bool all_opened_ = true;
  const Report& report_;
};

void Checker::run() {
  report_.tell(kStructures, std::to_string(structures_.size()));
  report_.tell(kStage, "header and heap");
  pool_.check([this](const std::string& sentence) { report(sentence); });
  for (size_t number = 0; number < structures_.size(); ++number) check_structure(number);
  report_.tell(kStage, "the ownership of blocks");
  check_ownership();
}

void Checker::check_structure(size_t number) {
  const std::string& name = structures_[number].name;
  report_.tell(kStage, fmt::format("structure \"{}\"", name));
  const auto report_named = [this, &name](const std::string& sentence) {
    report(fmt::format("structure \"{}\": {}", name, sentence));
  };
  const auto own = [this, number](uint64_t offset, uint64_t bytes) {
    blocks_.push_back({offset, bytes, number});
  };
  try {
    if (structures_[number].type == Files::kTypeName) {
      const auto files = files::FileSystem::open(pm::impl_of(pool_), name);
      files->check(report_named);
      files->visit_blocks(own);
      return;
    }
    if (structures_[number].type == BlockCache::kTypeName) {
      const auto cache = block_cache::Core::open(pm::impl_of(pool_), name, {});
      cache->check(report_named);
      cache->visit_blocks(own);
      return;
    }
    if (structures_[number].type == Database::kTypeName) {
      // Its pages are verified by `perdure db check`, which mends them first.
      buffer::Engine::visit_blocks(pm::impl_of(pool_), name, own);
      return;
    }
    const std::unique_ptr<AnyIndex> index = open_index(pool_, name);
    index->check(report_named);
    index::visit_blocks_of(*index, own);
  } catch (const Error& error) {
    all_opened_ = false;
    report_named(fmt::format("does not open: {}", error.what()));
  }
}

void Checker::check_neighbours(const Block& earlier, const Block& later) {
  if (earlier.offset + earlier.bytes <= later.offset) return;
  if (earlier.offset == later.offset && earlier.bytes == later.bytes) {
    report(fmt::format("the block of {} bytes at offset {:#x} is owned twice, by \"{}\" and \"{}\"",
                       later.bytes, later.offset, name_of(earlier), name_of(later)));
    return;
  }
  report(fmt::format("the blocks at offset {:#x} (\"{}\") and {:#x} (\"{}\") overlap",
                     earlier.offset, name_of(earlier), later.offset, name_of(later)));
}

void Checker::check_ownership() {
  pm::impl_of(pool_).visit_blocks([this](uint64_t offset, uint64_t bytes) {
    blocks_.push_back({offset, bytes, structures_.size()});
  });
  std::sort(blocks_.begin(), blocks_.end(),
            [](const Block& a, const Block& b) { return a.offset < b.offset; });
  const PoolInfo info = pool_.info();
  uint64_t owned_bytes = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    owned_bytes += blocks_[i].bytes;
    if (blocks_[i].offset + blocks_[i].bytes > info.capacity_bytes) {
      report(
          fmt::format("the block of {} bytes at offset {:#x} (\"{}\") lies beyond the pool's end",
                      blocks_[i].bytes, blocks_[i].offset, name_of(blocks_[i])));
    }
    if (i > 0) check_neighbours(blocks_[i - 1], blocks_[i]);
  }
  // A structure that does not open owns blocks that cannot be counted.
  if (!all_opened_ || owned_bytes == info.allocated_bytes) return;
  if (owned_bytes < info.allocated_bytes) {
    report(fmt::format("{} bytes of the heap are allocated but belong to no structure",
                       format_count(info.allocated_bytes - owned_bytes)));
  } else {
    report(fmt::format("structures own {} bytes more than the heap has allocated",
                       format_count(owned_bytes - info.allocated_bytes)));
  }
}

// In the child. A fault ends it; the parent sees how.
[[noreturn]] void check_and_tell(const std::string& path, const Report& report,
                                 unsigned time_limit_s) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM}) std::signal(signal, SIG_DFL);
  const rlimit no_core{};
  setrlimit(RLIMIT_CORE, &no_core);
  alarm(time_limit_s);
  try {
    report.tell(kStage, "opening the pool");
    PoolOptions options;
    options.read_only = true;
    Pool pool = Pool::open(path, options);
    Checker(pool, report).run();
    report.tell(kDone, "");
  } catch (const Error& error) {
    report.tell(kError, fmt::format("{} {}", static_cast<int>(error.code()), error.what()));
  } catch (const std::exception& error) {
    report.tell(kProblem, fmt::format("the check could not go on: {}", error.what()));
    report.tell(kDone, "");
  }
  _exit(0);
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
}

// Errors that say that the file itself is damaged, and not that it cannot be reached.
bool says_damage(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated;
}

void take_error(const std::string& text, PoolCheck& result) {
  const auto code = static_cast<ErrorCode>(std::atoi(text.c_str()));
  const std::string message = text.substr(text.find(' ') + 1);
  if (!says_damage(code)) throw Error(code, message);
  result.problems.push_back(message);
}

PoolCheck understand(const std::string& told, int status) {
  PoolCheck result;
  std::string stage;
  bool finished = false;
  for (size_t begin = 0; begin < told.size();) {
    const size_t end = std::min(told.find('\n', begin), told.size());
    const std::string text = told.substr(begin + 1, end - begin - 1);
    const char what = told[begin];
    if (what == kStage) stage = text;
    if (what == kStructures) result.structures = std::strtoul(text.c_str(), nullptr, 10);
    if (what == kProblem) result.problems.push_back(text);
    if (what == kError) take_error(text, result);
    finished = finished || what == kError || what == kDone;
    begin = end + 1;
  }
  if (finished) return result;
  const std::string how =
      WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit without a report";
  result.problems.push_back(fmt::format(
      "the check ended by itself ({}) while at {}: damage leads it astray", how, stage));
  return result;
}

}  // namespace

PoolCheck check_pool(const std::string& path, unsigned time_limit_s) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    check_and_tell(path, Report(ends[1]), time_limit_s);
  }
  const int error = errno;
  close(ends[1]);
  const std::string told = read_all(ends[0]);
  close(ends[0]);
  if (child < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot fork: {}", std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return understand(told, status);
}

}  // namespace perdure::cli
