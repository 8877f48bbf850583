// Every crash of making, filling, renaming and dropping structures: each is there wholly or not at
// all, under one name, and no block is lost or has two owners.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "crash/brief_exploration.h"
#include "crash/contents.h"
#include "index/owned_blocks.h"
#include "lab/crash/campaign.h"
#include "lab/crash/scratch_folder.h"
#include "lab/crash/subject.h"
#include "perdure/catalog.h"

namespace perdure::lab::crash {
namespace {

// A structure by name is "name" -> "", a record of it "name/key" -> value.
class DropSubject final : public Subject {
 public:
  DropSubject(std::string structure, uint32_t operations, uint64_t seed, uint64_t records_max = 30)
      : structure_(std::move(structure)),
        seed_(seed),
        operations_(operations),
        records_max_(records_max) {}

  std::string name() const override { return "drop of " + structure_; }
  uint32_t operation_count() const override { return operations_; }
  bool can_leave_out() const override { return false; }

  Run record(const std::vector<uint32_t>&) override {
    const ScratchFolder folder;
    ModelRecording recording;
    Pool pool = Pool::create(folder.file("pool"), options());
    recording.begin({});
    recording.skip_to_here();
    for (uint32_t i = 0; i < operations_; ++i) perform(pool, i, seed_, recording);
    recording.skip_the_rest();
    pool.close();
    return recording.finish();
  }

  Observation observe(const std::string& path, bool with_contents) override {
    Pool pool = Pool::open(path, options());
    Contents contents = inspect(pool);
    const Observation seen{.digest = digest_of(contents),
                           .problem = {},
                           .contents = with_contents ? text_of(contents) : ""};
    for (uint32_t i = 0; i < 6; ++i) carry_out(pool, contents, i, 77);
    if (inspect(pool) != contents) damaged("after recovery operations go astray");
    return seen;
  }

  Run record_recovery(const std::string& path, const Work& work) override {
    ModelRecording recording;
    Pool pool = Pool::open(path, options());
    recording.begin(inspect(pool), work);
    recording.recovered();
    for (uint32_t i = 0; i < 4 + std::min(work.operations, 8U); ++i) {
      perform(pool, i, work.seed + work.crashes, recording);
    }
    recording.skip_the_rest();
    pool.close();
    return recording.finish();
  }

 private:
  static PoolOptions options() { return explored_pool(uint64_t{4} << 20); }

  static std::string name_of(uint64_t number) { return fmt::format("structure {}", number % 3); }

  void perform(Pool& pool, uint32_t i, uint64_t seed, ModelRecording& recording) const {
    Contents model = recording.model();
    step(pool, model, i, seed, [&](const Change& change, const auto& action) {
      OpenNames open = recording.open_without_changes(change.next);
      // A record goes along with its structure, and stays as open as it was.
      for (const auto& [name, values] : recording.open()) {
        const std::string own = change.structure + "/";
        if (change.text == "rename" && name.starts_with(own))
          open[change.other + name.substr(own.size() - 1)] = values;
        if (change.text != "upsert" && name.starts_with(own)) open.erase(name);
      }
      const bool together = change.text != "upsert";
      recording.perform(
          change.text, change.next, std::move(open),
          together ? ModelRecording::Comes::kTogether : ModelRecording::Comes::kByName, [&] {
            action();
            return true;
          });
    });
  }

  void carry_out(Pool& pool, Contents& model, uint32_t i, uint64_t seed) const {
    step(pool, model, i, seed, [](const Change&, const auto& action) { action(); });
  }

  // What an operation makes of the contents.
  struct Change {
    std::string text;
    std::string structure;
    std::string other;  // its name after a rename
    Contents next;
  };

  // Some operations: `perform` gets each, and what carries it out.
  template <typename Perform>
  void step(Pool& pool, Contents& model, uint32_t i, uint64_t seed, Perform perform) const {
    const uint64_t random = drawn(seed, i);
    const std::string name = name_of(random);
    const std::string other = name_of(random >> 8);
    Contents next = model;
    if (!model.contains(name)) {
      next[name] = "";
      perform(Change{"create", name, {}, next},
              [&] { create_index(pool, name, structure_, Kind::kU64, Kind::kU64); });
      // Blocks of it and of its neighbours in the same segments.
      const auto index = open_index(pool, name);
      for (uint64_t key = 1; key <= 1 + (random >> 16) % records_max_; ++key) {
        next[fmt::format("{}/{}", name, key)] = std::to_string(random + key);
        perform(Change{"upsert", name, {}, next}, [&] { index->upsert(key, random + key); });
      }
      model = next;
      return;
    }
    const bool rename = (random >> 24) % 4 == 0 && !model.contains(other);
    for (const auto& [key, value] : model) {
      if (key != name && !key.starts_with(name + "/")) continue;
      next.erase(key);
      if (rename) next[other + key.substr(name.size())] = value;
    }
    perform(Change{rename ? "rename" : "drop", name, other, next}, [&] {
      if (rename) {
        pool.rename(name, other);
      } else {
        drop_structure(pool, name);
      }
    });
    model = next;
  }

  static Contents inspect(Pool& pool) {
    pool.check(damaged);
    Contents contents;
    uint64_t owned = 0;
    for (const StructureInfo& info : pool.structures()) {
      const auto index = open_index(pool, info.name);
      contents[info.name] = "";
      index->check(damaged);
      index->for_each([&](Datum key, Datum value) {
        contents[fmt::format("{}/{}", info.name, key.word())] = std::to_string(value.word());
      });
    }
    // All are closed: what closing writes is theirs as well.
    std::vector<std::unique_ptr<AnyIndex>> open;
    for (const StructureInfo& info : pool.structures()) {
      open.push_back(open_index(pool, info.name));
      index::visit_blocks_of(*open.back(), [&](uint64_t, uint64_t bytes) { owned += bytes; });
    }
    if (owned != pool.info().allocated_bytes) damaged("a block is lost, or has two owners");
    return contents;
  }

  std::string structure_;
  uint64_t seed_;
  uint32_t operations_;
  uint64_t records_max_;
};

TEST(DropCrash, EveryStateIsWhole) {
  uint64_t seed = 1;
  for (const char* structure : {"wort", "wbtree", "fptree"}) {
    SCOPED_TRACE(structure);
    DropSubject subject(structure, 16, seed++);
    const crash::Run run = subject.record({});
    EXPECT_EQ(run.problem, "");
    explore_briefly(run, subject, 100);
  }
}

// PERDURE_MUTATE: a longer campaign, with each flush and fence dropped in turn.
TEST(DropCrash, MostFlushesAndFencesAreMissed) {
  const bool whole = std::getenv("PERDURE_MUTATE") != nullptr;
  std::vector<CampaignRun> runs(1);
  runs[0].title = "drop";
  runs[0].subject = std::make_unique<DropSubject>("wort", whole ? 12 : 6, 1, 3);
  CampaignOptions options;
  options.mutate = true;
  options.shrink_seconds = 0;
  options.explore.crashes = whole ? 2 : 1;
  options.explore.states_max = whole ? 100'000 : 20'000;
  options.explore.limits.complete_max = 16;
  options.explore.limits.random = 4;
  const CampaignReport report = run_campaign(std::move(runs), options);
  EXPECT_EQ(report.findings(), 0U);
  EXPECT_TRUE(report.unmutated.empty()) << report.unmutated.front();
  uint64_t own = 0;
  uint64_t killed = 0;
  for (const MutationSite& site : report.mutation.sites) {
    const bool of_drop = site.place.find("drop.cc") != std::string::npos;
    own += of_drop ? 1 : 0;
    killed += of_drop && site.killed ? 1 : 0;
    if (whole)
      fmt::print("{} {} {}\n", site.killed ? "killed  " : "survived", to_string(site.kind),
                 site.place);
  }
  EXPECT_GT(own, 0U);
  EXPECT_GT(killed, 0U);
}

}  // namespace
}  // namespace perdure::lab::crash
