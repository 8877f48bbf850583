// Every crash of a database whose pages are changed in PM without a flush: what was committed is
// there, what was not is not, whatever lines of frames, table, log, staging area and page store are
// lost.
#include "perdure/database.h"

#include <gtest/gtest.h>

#include <string>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"

namespace perdure::lab::crash {
namespace {

class DatabaseSubject final : public Subject {
 public:
  DatabaseSubject(uint32_t operations, uint64_t seed) : seed_(seed), operations_(operations) {}

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
      Pool pool = Pool::create(folder.file("pool"), pool_options());
      Database database = Database::create(pool, "d", database_options());
      const Tree tree = database.tree("t");
      Contents model;
      run.expectations.push_back({0, {digest_of(model)}});
      run.skipped.emplace_back(0, recorder.position());
      for (uint32_t i = 0; i < operations_; ++i) {
        perform(database, tree, model, i, seed_, run, recorder);
      }
      run.skipped.emplace_back(recorder.position(), recorder.position() + 1'000'000);  // the close
    }
    install(nullptr);
    run.trace = recorder.finish();
    return run;
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, pool_options());
    Database database = Database::open(pool, "d", database_options());
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
    Run run;
    run.operations.assign(1, {""});
    Recorder recorder;
    install(&recorder);
    {
      Pool pool = Pool::open(path, pool_options());
      Database database = Database::open(pool, "d", database_options());
      const Tree tree = database.tree("t");
      Contents model = inspect(pool, database, tree);
      run.expectations.push_back({0, {digest_of(model)}});
      run.recovered_at = recorder.position();
      for (uint32_t i = 0; i < 3 + std::min(work.operations, 6U); ++i) {
        perform(database, tree, model, i, work.seed + work.crashes, run, recorder);
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
  static DatabaseOptions database_options() {
    DatabaseOptions options;
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

  static void perform(Database& database, const Tree& tree, Contents& model, uint32_t i,
                      uint64_t seed, Run& run, Recorder& recorder) {
    const Contents next = after(model, i, seed);
    run.operations[0].push_back(is_checkpoint(i, seed) ? "checkpoint" : "commit");
    run.expectations.push_back({recorder.position(), {digest_of(model), digest_of(next)}});
    begin_operation(operation_type(run.operations[0].back().c_str()), 0);
    carry_out(database, tree, model, i, seed);
    end_operation();
    run.expectations.push_back({recorder.position() - 1, {digest_of(model)}});
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
};

TEST(DatabaseCrash, EveryStateIsWhole) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    DatabaseSubject subject(24, seed);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100);
  }
}

}  // namespace
}  // namespace perdure::lab::crash
