// Every crash of files in a pool: what was synced is there, an append is whole or not at all, a
// name leads to the old file or to the new one, and no block is lost.
#include "perdure/files.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "lab/crash/campaign.h"
#include "lab/crash/recorder.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "lab/seam/runtime.h"
#include "lsm/files/file_system.h"

namespace perdure::lab::crash {
namespace {

struct FileStep {
  enum class Verb : uint8_t { kCreate, kAppend, kTruncate, kRename, kRemove } verb;
  uint32_t file;
  uint32_t other;  // of a rename
  uint32_t bytes;  // appended, or left

  std::string text() const {
    static constexpr const char* kNames[] = {"create", "append", "truncate", "rename", "remove"};
    return fmt::format("{}({}, {}, {})", kNames[static_cast<size_t>(verb)], file, other, bytes);
  }
};

// In two directories.
std::string path_of(uint32_t file) {
  return fmt::format("/{}/f{}", file % 2 == 0 ? "a" : "b", file);
}

// The file that was appended to or cut last, which stays open: one sync after the other, as stores
// have it with their logs.
class OpenLog {
 public:
  FileWriter& of(Files& files, uint32_t file) {
    if (writer_ && file_ == file) return *writer_;
    close();
    file_ = file;
    return writer_.emplace(files.append_file(path_of(file)));
  }
  void close() { writer_.reset(); }

 private:
  std::optional<FileWriter> writer_;
  uint32_t file_ = 0;
};

class FilesSubject final : public Subject {
 public:
  // `logs`: appends to one file and cuts of it.
  explicit FilesSubject(uint32_t operations, uint64_t seed, bool logs = false)
      : seed_(seed), operations_(operations), logs_(logs) {}

  std::string name() const override { return "files"; }
  uint32_t operation_count() const override { return operations_; }

  Run record(const std::vector<uint32_t>& only) override {
    const ScratchFolder folder;
    Run run;
    run.operations.assign(1, {""});
    Recorder recorder;
    install(&recorder);
    {
      Pool pool = Pool::create(folder.file("pool"), options());
      Files files = Files::create(pool, "files");
      files.make_directory("/a");
      files.make_directory("/b");
      Contents model;
      run.expectations.push_back({0, {digest_of(model)}});
      run.skipped.emplace_back(0, recorder.position());
      OpenLog log;
      for (uint32_t i = 0; i < operations_; ++i) {
        const FileStep step = make_step(i, model, seed_);
        if (!only.empty() && std::find(only.begin(), only.end(), i) == only.end()) continue;
        perform(files, log, model, step, run, recorder);
      }
      run.skipped.emplace_back(recorder.position(), recorder.position() + 100'000);  // the close
    }
    install(nullptr);
    run.trace = recorder.finish();
    return run;
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, options());
    Files files = Files::open(pool, "files");
    Contents contents = inspect(pool, files);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    OpenLog log;
    for (uint32_t i = 0; i < 8; ++i) carry_out(files, log, contents, make_step(i, contents, 77));
    if (inspect(pool, files) != contents) damaged("after recovery operations go astray");
    return seen;
  }

  Run record_recovery(const std::string& path, const Work& work) override {
    Run run;
    run.operations.assign(1, {""});
    Recorder recorder;
    install(&recorder);
    {
      Pool pool = Pool::open(path, options());
      Files files = Files::open(pool, "files");
      Contents model = inspect(pool, files);
      run.expectations.push_back({0, {digest_of(model)}});
      run.recovered_at = recorder.position();
      OpenLog log;
      for (uint32_t i = 0; i < 6 + std::min(work.operations, 12U); ++i) {
        perform(files, log, model, make_step(i, model, work.seed + work.crashes), run, recorder);
      }
      run.skipped.emplace_back(recorder.position(), recorder.position() + 100'000);
    }
    install(nullptr);
    run.trace = recorder.finish();
    return run;
  }

 private:
  static PoolOptions options() { return explored_pool(uint64_t{2} << 20); }

  // Files that are there are appended to mostly; sizes small, now and then of several extents. Some
  // steps go to the same file.
  FileStep make_step(uint32_t i, const Contents& model, uint64_t seed) const {
    const uint64_t random = drawn(seed, i);
    const auto file = logs_ ? 0 : static_cast<uint32_t>(drawn(seed + 1, i / 4) % 4);
    const auto other = static_cast<uint32_t>((random >> 8) % 4);
    const auto found = model.find(path_of(file));
    using Verb = FileStep::Verb;
    if (found == model.end()) return {Verb::kCreate, file, 0, 0};
    const uint64_t choice = (random >> 16) % 100;
    const auto size = static_cast<uint32_t>(found->second.size());
    if (logs_ && choice < 20) {
      const auto cut = static_cast<uint32_t>((random >> 24) % 150);
      return {Verb::kTruncate, file, 0, size - std::min(size, cut)};
    }
    if (logs_ && choice < 30) return {Verb::kAppend, file, 0, 1100};
    if (logs_) return {Verb::kAppend, file, 0, 1 + static_cast<uint32_t>((random >> 24) % 200)};
    if (choice < 45) {
      const uint64_t bytes = (random >> 24) % ((random >> 20) % 4 == 0 ? 6000 : 200);
      return {Verb::kAppend, file, 0, 1 + static_cast<uint32_t>(bytes)};
    }
    if (choice < 55) return {Verb::kCreate, file, 0, 0};
    if (choice < 65)
      return {Verb::kTruncate, file, 0, static_cast<uint32_t>((random >> 24) % (size + 1))};
    if (choice < 85 && other != file) return {Verb::kRename, file, other, 0};
    return {Verb::kRemove, file, 0, 0};
  }

  static Contents after(const Contents& model, const FileStep& step) {
    Contents next = model;
    const std::string path = path_of(step.file);
    switch (step.verb) {
      case FileStep::Verb::kCreate:
        next[path].clear();
        break;
      case FileStep::Verb::kAppend:
        next[path] += bytes_of(next[path].size(), step.bytes);
        break;
      case FileStep::Verb::kTruncate:
        next[path].resize(step.bytes);
        break;
      case FileStep::Verb::kRename:
        next[path_of(step.other)] = next[path];
        next.erase(path);
        break;
      case FileStep::Verb::kRemove:
        next.erase(path);
        break;
    }
    return next;
  }

  static std::string bytes_of(uint64_t from, uint32_t bytes) {
    std::string text(bytes, '\0');
    for (uint32_t i = 0; i < bytes; ++i)
      text[i] = static_cast<char>(drawn(5, (from + i) / 8 + bytes));
    return text;
  }

  static void carry_out(Files& files, OpenLog& log, Contents& model, const FileStep& step) {
    const std::string path = path_of(step.file);
    if (step.verb != FileStep::Verb::kAppend && step.verb != FileStep::Verb::kTruncate) log.close();
    const uint64_t before = model.contains(path) ? model[path].size() : 0;
    switch (step.verb) {
      case FileStep::Verb::kCreate:
        files.create_file(path);
        break;
      case FileStep::Verb::kAppend: {
        FileWriter& writer = log.of(files, step.file);
        const std::string bytes = bytes_of(before, step.bytes);
        writer.append(std::string_view(bytes).substr(0, bytes.size() / 3));
        writer.append(std::string_view(bytes).substr(bytes.size() / 3));
        writer.sync();
        break;
      }
      case FileStep::Verb::kTruncate:
        log.of(files, step.file).truncate(step.bytes);
        break;
      case FileStep::Verb::kRename:
        files.rename(path, path_of(step.other));
        break;
      case FileStep::Verb::kRemove:
        files.remove(path);
        break;
    }
    model = after(model, step);
  }

  static void perform(Files& files, OpenLog& log, Contents& model, const FileStep& step, Run& run,
                      Recorder& recorder) {
    const Contents next = after(model, step);
    run.operations[0].push_back(step.text());
    run.expectations.push_back({recorder.position(), {digest_of(model), digest_of(next)}});
    begin_operation(operation_type(step.text().substr(0, step.text().find('(')).c_str()), 0);
    carry_out(files, log, model, step);
    end_operation();
    run.expectations.push_back({recorder.position() - 1, {digest_of(model)}});
  }

  static Contents inspect(const Pool& pool, const Files& files) {
    pool.check(damaged);
    files.check(damaged);
    double owned = 0;
    for (const Statistic& one : files.statistics()) {
      if (one.name == "pool_bytes") owned = one.value;
    }
    if (static_cast<uint64_t>(owned) != pool.info().allocated_bytes) damaged("a block is lost");
    Contents contents;
    for (const std::string directory : {"/a", "/b"}) {
      for (const FileInfo& info : files.list(directory)) {
        const std::string path = directory + "/" + info.name;
        const FileReader reader = files.open_file(path);
        std::string scratch(reader.size(), '\0');
        contents[path] = std::string(reader.read(0, scratch.size(), scratch.data()));
      }
    }
    return contents;
  }

  uint64_t seed_;
  uint32_t operations_;
  bool logs_;
};

TEST(FilesCrash, EveryStateIsWhole) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    FilesSubject subject(40, seed);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100);
  }
}

// Each append ends what the one before has left in the inode's line, and begins anew there: between
// any two stores.
TEST(FilesCrash, ALogIsWholeAtEveryStore) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    FilesSubject subject(12, seed, true);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    ExploreOptions options;
    options.crashes = 1;
    options.states_max = test::rounds(part_of(8000));
    options.limits.complete_max = 16;
    options.limits.lines_alone_max = 16;
    options.limits.options_alone_max = 8;
    options.limits.pairs_max = 0;
    options.limits.random = 2;
    Verdicts verdicts;
    const Exploration result = explore(run, subject, options, verdicts);
    report_findings(run, result);
  }
}

// PERDURE_MUTATE: a longer campaign, with each flush and fence dropped in turn.
TEST(FilesCrash, MostFlushesAndFencesAreMissed) {
  const bool whole = std::getenv("PERDURE_MUTATE") != nullptr;
  std::vector<CampaignRun> runs(1);
  runs[0].title = "files";
  runs[0].subject = std::make_unique<FilesSubject>(whole ? 60 : 20, 1);
  CampaignOptions options;
  options.mutate = true;
  options.shrink_seconds = 0;
  options.explore.crashes = whole ? 2 : 1;
  options.explore.states_max = whole ? 6000 : 1500;
  options.explore.limits.complete_max = 16;
  options.explore.limits.random = 4;
  const CampaignReport report = run_campaign(std::move(runs), options);
  EXPECT_EQ(report.findings(), 0U);
  uint64_t own = 0;
  uint64_t killed = 0;
  for (const MutationSite& site : report.mutation.sites) {
    const bool files = site.place.find("stream.cc") != std::string::npos ||
                       site.place.find("names.cc") != std::string::npos ||
                       site.place.find("space.cc") != std::string::npos;
    own += files ? 1 : 0;
    killed += files && site.killed ? 1 : 0;
    if (whole) {
      fmt::print("{} {} {}\n", site.killed ? "killed  " : "survived", to_string(site.kind),
                 site.place);
    }
  }
  EXPECT_GT(own, whole ? 10U : 0U);
  EXPECT_GT(killed, own / 3);
}

}  // namespace
}  // namespace perdure::lab::crash
