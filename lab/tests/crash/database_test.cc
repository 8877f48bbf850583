// Every crash of a database whose pages are changed in PM without a flush: what was committed is
// there, what was not is not, whatever lines of frames, table, log, staging area and page store are
// lost.
#include "perdure/database.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffer/layout.h"
#include "buffer/log_file.h"
#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"
#include "pm/file.h"
#include "pm/pool_impl.h"

namespace perdure::lab::crash {
namespace {

// Also where the process has a private copy of it.
std::string content_of(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string content(static_cast<size_t>(::lseek(file, 0, SEEK_END)), '\0');
  pm::read_at(file, path, 0, content.data(), content.size());
  ::close(file);
  return content;
}

// The log file beside a pool. What a crash may leave of it, the word in PM says that keeps the
// log's end, as it moves after each sync, and before anything else: what that sync made durable;
// and of what the next one is about nothing, a part, or all.
class LogHistory {
 public:
  // Watches the syncs of the log file beside this pool as long as it lives.
  class Watch final : public buffer::LogFaults {
   public:
    Watch(LogHistory& history, std::string pool, std::string log)
        : history_(history), pool_(std::move(pool)), log_(std::move(log)) {
      buffer::inject_log_faults(this);
    }
    ~Watch() override { buffer::inject_log_faults(nullptr); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    uint64_t write(uint64_t, const char*, uint64_t bytes) override { return bytes; }
    void sync() override {
      std::string now = content_of(log_);
      if (history_.last_.empty()) history_.last_ = now;
      history_.states_[end()] = {history_.last_, now};
      history_.last_ = std::move(now);
    }
    // Once it is open, or made.
    void look_at(Pool& pool) { open_ = &pm::impl_of(pool); }

   private:
    // The word as it is now: of a private copy the file does not show that.
    uint64_t end() {
      if (end_at_ == 0) end_at_ = end_at(content_of(pool_));
      return end_at_ == 0 ? 0 : *open_->at<uint64_t>(end_at_);
    }

    LogHistory& history_;
    std::string pool_;
    std::string log_;
    pm::PoolImpl* open_ = nullptr;
    uint64_t end_at_ = 0;
  };

  // Makes the file as a crash that left this pool may have left it. Returns its content.
  std::string make_file(const std::string& pool, const std::string& path) const {
    constexpr size_t kSector = 512;
    const std::string image = content_of(pool);
    const auto found = states_.find(end_in(image));
    std::string content = found == states_.end() ? last_ : found->second.durable;
    const uint64_t random = pm::checksum64(image.data(), image.size());
    if (found != states_.end() && random % 3 != 0) {
      const std::string& next = found->second.next;
      for (size_t at = 0; at < content.size(); at += kSector) {
        const bool is_new = random % 3 == 1 || drawn(random, at) % 2 == 0;
        if (is_new) content.replace(at, kSector, next, at, kSector);
      }
    }
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    pm::write_at(file, path, 0, content.data(), content.size());
    ::close(file);
    return content;
  }
  // From here on this is durable.
  void begin(std::string content) { last_ = std::move(content); }

 private:
  struct States {
    std::string durable;
    std::string next;
  };

  // Where the word is; 0: there is no database.
  static uint64_t end_at(const std::string& image) {
    for (size_t at = 0; at + sizeof(buffer::Root) <= image.size(); at += 64) {
      buffer::Root root;
      std::memcpy(&root, image.data() + at, sizeof root);
      if (root.seal.magic != buffer::kRootMagicLogFile || root.log_in_file != 1) continue;
      return root.log;
    }
    return 0;
  }
  static uint64_t end_in(const std::string& image) {
    uint64_t end = 0;
    if (const uint64_t at = end_at(image)) std::memcpy(&end, image.data() + at, sizeof end);
    return end;
  }

  std::map<uint64_t, States> states_;  // by the word
  std::string last_;
};

class DatabaseSubject final : public Subject {
 public:
  DatabaseSubject(uint32_t operations, uint64_t seed, bool log_in_file = false)
      : seed_(seed), operations_(operations), log_in_file_(log_in_file) {}

  std::string name() const override { return "database"; }
  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }

  Run record(const std::vector<uint32_t>&) override {
    const ScratchFolder folder;
    Run run;
    run.operations.assign(1, {""});
    Recorder recorder;
    install(&recorder);
    {
      const std::unique_ptr<LogHistory::Watch> watch = watch_log(folder, folder.file("pool"));
      Pool pool = Pool::create(folder.file("pool"), pool_options());
      if (watch) watch->look_at(pool);
      Database database = Database::create(pool, "d", database_options(folder));
      const Tree tree = database.tree("t");
      Contents model;
      expect(run, 0, {model}, 0, operations_, seed_);
      run.skipped.emplace_back(0, recorder.position());
      for (uint32_t i = 0; i < operations_; ++i) {
        perform(database, tree, model, i, operations_, seed_, run, recorder);
      }
      run.skipped.emplace_back(recorder.position(), recorder.position() + 1'000'000);  // the close
    }
    install(nullptr);
    run.trace = recorder.finish();
    return run;
  }

  Observation observe(const std::string& path, bool with_contents) override {
    const ScratchFolder folder;
    if (log_in_file_) history_.make_file(path, folder.file("log"));
    Pool pool = Pool::open(path, pool_options());
    Database database = Database::open(pool, "d", database_options(folder));
    const Tree tree = database.tree("t");
    Contents contents = inspect(pool, database, tree);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    for (uint32_t i = 0; i < 4; ++i) carry_out(database, tree, contents, i, 77);
    if (inspect(pool, database, tree) != contents) damaged("after recovery operations go astray");
    return seen;
  }

  Run record_recovery(const std::string& path, const Work& work) override {
    const ScratchFolder folder;
    if (log_in_file_) history_.begin(history_.make_file(path, folder.file("log")));
    Run run;
    run.operations.assign(1, {""});
    Recorder recorder;
    install(&recorder);
    {
      const std::unique_ptr<LogHistory::Watch> watch = watch_log(folder, path);
      Pool pool = Pool::open(path, pool_options());
      if (watch) watch->look_at(pool);
      Database database = Database::open(pool, "d", database_options(folder));
      const Tree tree = database.tree("t");
      Contents model = inspect(pool, database, tree);
      const uint32_t operations = 3 + std::min(work.operations, 6U);
      const uint64_t seed = work.seed + work.crashes;
      expect(run, 0, {model}, 0, operations, seed);
      run.recovered_at = recorder.position();
      for (uint32_t i = 0; i < operations; ++i) {
        perform(database, tree, model, i, operations, seed, run, recorder);
      }
      run.skipped.emplace_back(recorder.position(), recorder.position() + 1'000'000);
    }
    install(nullptr);
    run.trace = recorder.finish();
    return run;
  }

 private:
  static PoolOptions pool_options() { return explored_pool(uint64_t{4} << 20); }
  // Most pages are in PM.
  DatabaseOptions database_options(const ScratchFolder& folder) const {
    DatabaseOptions options;
    if (log_in_file_) options.log_file = folder.file("log");
    options.dram_bytes = uint64_t{4} * 4096;
    options.pm_bytes = uint64_t{16} * 4096;
    options.log_bytes = uint64_t{1} << 20;
    options.pages_max = 64;
    options.background = false;
    return options;
  }

  // A transaction of some writes, or a checkpoint.
  static bool is_checkpoint(uint32_t i, uint64_t seed) { return drawn(seed, i) % 8 == 7; }
  static Contents after(Contents model, uint32_t i, uint64_t seed) {
    if (is_checkpoint(i, seed)) return model;
    const uint64_t random = drawn(seed, i);
    for (uint64_t n = 0; n < 1 + random % 3; ++n) {
      const uint64_t one = drawn(random, n);
      const std::string key = "key" + std::to_string(one % 40);
      if (one >> 8 & 1 && model.contains(key)) {
        model.erase(key);
      } else {
        model[key] = std::string((one >> 16) % 500, static_cast<char>('a' + n + i % 20));
      }
    }
    return model;
  }

  static void carry_out(Database& database, const Tree& tree, Contents& model, uint32_t i,
                        uint64_t seed) {
    const Contents next = after(model, i, seed);
    if (is_checkpoint(i, seed)) {
      database.checkpoint();
    } else {
      Transaction transaction = database.begin();
      for (const auto& [key, value] : next) {
        const auto before = model.find(key);
        if (before == model.end() || before->second != value) transaction.put(tree, key, value);
      }
      for (const auto& [key, value] : model) {
        if (!next.contains(key)) transaction.erase(tree, key);
      }
      transaction.commit();
    }
    model = next;
  }

  std::unique_ptr<LogHistory::Watch> watch_log(const ScratchFolder& folder,
                                               const std::string& pool) {
    if (!log_in_file_) return nullptr;
    return std::make_unique<LogHistory::Watch>(history_, pool, folder.file("log"));
  }

  // From the event on it must be one of these; or, with a log file, which may have the next commit
  // before PM has anything of it, what that makes of the last one. `i`: what comes next.
  void expect(Run& run, uint32_t event, const std::vector<Contents>& models, uint32_t i,
              uint32_t operations, uint64_t seed) const {
    Expectation one{event, {}};
    for (const Contents& model : models) one.digests.push_back(digest_of(model));
    for (bool found = !log_in_file_; !found && i < operations; ++i) {
      const Contents next = after(models.back(), i, seed);
      found = next != models.back();
      if (found) one.digests.push_back(digest_of(next));
    }
    run.expectations.push_back(std::move(one));
  }

  void perform(Database& database, const Tree& tree, Contents& model, uint32_t i,
               uint32_t operations, uint64_t seed, Run& run, Recorder& recorder) const {
    const Contents next = after(model, i, seed);
    run.operations[0].push_back(is_checkpoint(i, seed) ? "checkpoint" : "commit");
    expect(run, recorder.position(), {model, next}, i + 1, operations, seed);
    begin_operation(operation_type(run.operations[0].back().c_str()), 0);
    carry_out(database, tree, model, i, seed);
    end_operation();
    expect(run, recorder.position() - 1, {model}, i + 1, operations, seed);
  }

  static Contents inspect(const Pool& pool, Database& database, const Tree& tree) {
    pool.check(damaged);
    Contents contents;
    {
      Transaction transaction = database.begin();
      Cursor cursor = transaction.cursor(tree);
      for (bool more = cursor.seek_first(); more; more = cursor.next()) {
        contents.emplace(cursor.key(), cursor.value());
      }
    }
    database.check(damaged);
    return contents;
  }

  uint64_t seed_;
  uint32_t operations_;
  bool log_in_file_;
  LogHistory history_;
};

TEST(DatabaseCrash, EveryStateIsWhole) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    DatabaseSubject subject(24, seed);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 1000, 2);
  }
}

// The file is durable up to the end that PM keeps, and behind it anything of the next entry.
TEST(DatabaseCrash, EveryStateIsWholeWithTheLogInAFile) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    DatabaseSubject subject(24, seed, true);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100, 0, ~uint32_t{0}, 1000, 2);
  }
}

}  // namespace
}  // namespace perdure::lab::crash
