// Crashes while structures grow: in workloads from empty, small enough that splits, expansions,
// resizes and chains happen in the part that is explored. That they do is asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "crash/brief_exploration.h"
#include "lab/crash/index_subject.h"
#include "lab/crash/plan.h"
#include "lab/crash/sites.h"

namespace perdure::lab::crash {
namespace {

struct Growth {
  std::string structure;
  Kind kind;                           // of keys and values
  uint32_t prepared;                   // operations before the explored ones
  std::vector<std::string> functions;  // that make room, and flush
  bool full_pool = false;              // when the pool is
  uint32_t around = 0;                 // the first of them: so many events before and after
};

std::ostream& operator<<(std::ostream& out, const Growth& growth) {
  return out << growth.structure << " " << to_string(growth.kind)
             << (growth.full_pool ? " in a full pool" : "");
}

std::vector<Growth> all_growths() {
  std::vector<Growth> all;
  for (const Kind kind : {Kind::kU64, Kind::kBytes}) {
    const std::vector<std::string> split = {"change_range", "split", "fill_range",
                                            "double_directory"};
    // Its entries are full after as many operations; the explored ones then drain some.
    all.push_back({"plush", kind, 3000, {"release_source", "clear_block", "ensure_children"}});
    // A short entry of a second level is full.
    all.push_back({"plush", kind, 900, {"widen_children"}, false, 150});
    // A partition's second level becomes its first.
    const uint32_t before = kind == Kind::kU64 ? 1900 : 3000;
    all.push_back({"plush", kind, before, {"grow", "clear_entry"}, false, 150});
    all.push_back({"cceh+ip", kind, 300, split});
    all.push_back({"cceh", kind, 300, split});
    all.back().functions.emplace_back("rewrite");
    all.push_back({"fptree", kind, 0, {"change_both", "copy_records", "add_group"}});
    all.push_back({"nv-tree", kind, 0, {"replace", "write_leaf", "append"}});
    all.push_back({"wbtree", kind, 0, {"split"}});
    for (const char* name : {"fast-fair", "fast-fair+rb", "fast-fair+rb+xs"}) {
      all.push_back({name, kind, 0, {"split"}});
    }
    all.push_back({"bztree", kind, 0, {"write_node", "persist_words"}});
    all.push_back({"p-bwtree", kind, 0, {"replace", "add_chunk"}});
    const std::vector<std::string> clht = {"link_block", "claim_next", "move_some", "mark_moved",
                                           "end_growing"};
    for (const char* name : {"p-clht", "p-clht+fc", "p-clht+fc+ve"}) {
      all.push_back({name, kind, 0, clht});
    }
    all.push_back({"p-clht+fc+ve+xs", kind, 150, clht});  // its buckets hold five times as much
    for (const char* name : {"level", "level+rb"}) {
      all.push_back({name, kind, 0, {"new_level", "commit", "end_growing"}});
    }
    all.push_back({"wort", kind, 0, {"branch_off", "grow_to"}});
    for (const char* name : {"woart", "art-cow", "p-art+vl", "p-art"}) {
      all.push_back({name, kind, 0, {"branch_off", "grow_to", "copy"}});
    }
    all.push_back({"p-hot+vl", kind, 0, {"make_node", "commit"}});
    if (kind == Kind::kU64) {
      all.push_back({"p-hot", kind, 0, {"make_node", "commit"}});
      all.push_back({"p-masstree", kind, 0, {"split"}});
    }
    all.push_back({"p-masstree+vl", kind, 0, {"split"}});
    // Layers, and suffixes that go with their layer.
    if (kind == Kind::kBytes) {
      for (const char* function : {"deepen", "grow_to", "join"}) {
        all.back().functions.emplace_back(function);
      }
    }
  }
  all.push_back({"sheaf", Kind::kU64, 0, {"grow_to", "merge", "add_directory", "replace_several"}});
  all.push_back({"plush+range", Kind::kU64, 3000, {"release_source", "reclaim_chunk"}});
  for (const char* name : {"rstore", "rstore+ordered"}) {
    all.push_back({name,
                   Kind::kBytes,
                   600,
                   {"open_block", "close_block", "append", "note_floors", "free_block",
                    "link_block", "begin_snapshot", "end_snapshot", "drop_recent"}});
  }
  all.push_back({"rstore+pm",
                 Kind::kBytes,
                 600,
                 {"link_checkpoint", "free_block", "change_range", "append"}});
  // Byte strings, for of words it would take 100,000 to fill the smallest pool.
  all.push_back({"cceh", Kind::kBytes, 12000, {"move_record"}, true});
  return all;
}

std::string case_name(const testing::TestParamInfo<Growth>& info) {
  std::string name = info.param.structure + "_" + to_string(info.param.kind);
  if (info.param.full_pool) name += "_full_pool";
  if (info.param.around > 0) name += "_" + info.param.functions.front();
  for (char& c : name) {
    if (c == '-' || c == '+') c = '_';
  }
  return name;
}

// The functions in which flushes, fences and streamed stores of the explored part stand, each with
// its first event.
std::map<std::string, uint32_t> functions_of(const crash::Run& run) {
  const SiteNames names(run.trace);
  std::map<uint64_t, uint32_t> sites;
  for (uint32_t i = 0; i < run.trace.events.size(); ++i) {
    const bool skipped = std::ranges::any_of(
        run.skipped, [&](const auto& part) { return part.first <= i && i < part.second; });
    if (!skipped && run.trace.events[i].kind != EventKind::kStore) {
      sites.emplace(run.trace.events[i].pc, i);
    }
  }
  std::map<std::string, uint32_t> functions;
  for (const auto& [site, event] : sites) {
    const std::string name = names.of(site);  // "grow.cc:88 Core::new_level"
    uint32_t& first =
        functions.emplace(name.substr(name.find_last_of(" :") + 1), event).first->second;
    first = std::min(first, event);
  }
  return functions;
}

class GrowthCrash : public testing::TestWithParam<Growth> {};

TEST_P(GrowthCrash, LosesNothingAcknowledged) {
  const Growth& growth = GetParam();
  IndexWorkload workload;
  workload.structure = growth.structure;
  workload.key_kind = workload.value_kind = growth.kind;
  workload.prepared = growth.prepared;
  workload.operations = 600;
  workload.keys = std::max(2000U, 6 * growth.prepared);
  if (growth.full_pool) workload.capacity_bytes = Pool::kMinCapacityBytes;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  ASSERT_EQ(run.problem, "");
  const std::map<std::string, uint32_t> functions = functions_of(run);
  for (const std::string& function : growth.functions) {
    EXPECT_TRUE(functions.contains(function))
        << function << " is not in the window; there are " << testing::PrintToString(functions);
  }
  if (!growth.full_pool && growth.around == 0) {
    return explore_briefly(run, subject, 100, 0, ~uint32_t{0}, growth.prepared < 900 ? 1000 : 400);
  }
  // Each image takes ten times as long: only around the first time that room is made.
  const uint32_t event = functions.at(growth.functions.front());
  const uint32_t before = growth.full_pool ? 200 : growth.around;
  const uint32_t after = growth.full_pool ? 12000 : growth.around;
  explore_briefly(run, subject, 50, event - before, event + after, growth.full_pool ? 200 : 120);
}

// What only a workload of its own reaches.
struct Rare {
  const char* structure;
  Kind kind;
  const char* title;  // of the run in the structure's own plan
  std::vector<std::string> functions;
};

std::ostream& operator<<(std::ostream& out, const Rare& rare) {
  return out << rare.structure << " " << to_string(rare.kind) << " " << rare.title;
}

std::vector<Rare> all_rare() {
  static constexpr char kReopened[] = "opened again and again";
  return {{"nv-tree", Kind::kU64, kReopened, {"drop_image", "write_image"}},
          {"fptree", Kind::kU64, kReopened, {"drop_spill", "write_spill"}},
          {"rstore", Kind::kBytes, "little room", {"compact_now"}}};
}

class RareCrash : public testing::TestWithParam<Rare> {};

TEST_P(RareCrash, IsInAWorkloadOfTheStructuresOwn) {
  const Rare& rare = GetParam();
  IndexWorkload base;
  base.structure = rare.structure;
  for (const PlannedRun& planned : default_plan(base, {{rare.kind, rare.kind}}, 1)) {
    if (planned.title != rare.title) continue;
    IndexSubject subject(planned.workload);
    const crash::Run run = subject.record({});
    ASSERT_EQ(run.problem, "");
    const std::map<std::string, uint32_t> functions = functions_of(run);
    for (const std::string& function : rare.functions) {
      ASSERT_TRUE(functions.contains(function))
          << function << " is not in the run; there are " << testing::PrintToString(functions);
      const uint32_t event = functions.at(function);
      explore_briefly(run, subject, 50, event - std::min(event, 100U), event + 100);
    }
    return;
  }
  FAIL() << "no such run";
}

std::string rare_name(const testing::TestParamInfo<Rare>& info) {
  std::string name = std::string(info.param.structure) + "_" + info.param.functions.front();
  std::ranges::replace_if(name, [](char c) { return c == '-' || c == '+'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Plan, RareCrash, testing::ValuesIn(all_rare()), rare_name);

// Every second of them, so one kind of each, is left to `make test-more`.
INSTANTIATE_TEST_SUITE_P(Catalog, GrowthCrash, testing::ValuesIn(all_growths()),
                         [](const auto& tested) {
                           return case_name(tested) + (tested.index % 2 == 0 ? "" : "_more");
                         });

}  // namespace
}  // namespace perdure::lab::crash
