// Every structure of the catalogue through the crashes of a short workload. Longer ones: `make
// crash-campaign`.
#include "perdure/catalog.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "crash/brief_exploration.h"
#include "lab/crash/explorer.h"
#include "lab/crash/index_subject.h"

namespace perdure::lab::crash {
namespace {

struct Case {
  std::string structure;
  Kind kind;  // of keys and values
  uint32_t threads;
  uint32_t batch = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.structure << " " << to_string(c.kind) << " " << c.threads
             << " threads, batches of " << c.batch;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const CatalogEntry& entry : catalog()) {
    for (const auto& [key, value] : entry.traits.kinds) {
      if (key != value) continue;
      cases.push_back({entry.name, key, 1});
      if (entry.traits.concurrent) cases.push_back({entry.name, key, 2});
    }
  }
  // Others loop over their single calls.
  for (const Kind kind : {Kind::kU64, Kind::kBytes}) {
    cases.push_back({"plush", kind, 1, 10});
    cases.push_back({"plush", kind, 2, 5});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.structure;
  for (char& c : name) {
    if (c == '-' || c == '+') c = '_';
  }
  name += std::string("_") + to_string(info.param.kind) + "_" + std::to_string(info.param.threads);
  return info.param.batch == 1 ? name : name + "_batches";
}

class CatalogCrash : public testing::TestWithParam<Case> {};

TEST_P(CatalogCrash, LosesNothingAcknowledged) {
  const Case& c = GetParam();
  IndexWorkload workload;
  workload.structure = c.structure;
  workload.key_kind = workload.value_kind = c.kind;
  workload.threads = c.threads;
  workload.batch = c.batch;
  workload.keys = c.threads == 1 ? 300 : 12;
  workload.prepared = c.threads == 1 ? 500 : 100;
  workload.operations = 60;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  ASSERT_EQ(run.problem, "");
  explore_briefly(run, subject, 50);
}

// Every second of them is left to `make test-more`.
INSTANTIATE_TEST_SUITE_P(Catalog, CatalogCrash, testing::ValuesIn(all_cases()),
                         [](const auto& tested) {
                           return case_name(tested) + (tested.index % 4 % 3 == 0 ? "" : "_more");
                         });

class BulkCrash : public testing::TestWithParam<Case> {};

// Logged and unlogged writes mixed, with checkpoints: only unlogged ones may be lost, each wholly.
TEST_P(BulkCrash, LosesOnlyUnloggedWrites) {
  const Case& c = GetParam();
  IndexWorkload workload;
  workload.structure = c.structure;
  workload.key_kind = workload.value_kind = c.kind;
  workload.threads = c.threads;
  workload.keys = c.threads == 1 ? 60 : 12;
  workload.prepared = 200;
  workload.operations = 100;
  workload.bulk = true;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  ASSERT_EQ(run.problem, "");
  explore_briefly(run, subject, 50);
}

INSTANTIATE_TEST_SUITE_P(Catalog, BulkCrash,
                         testing::Values(Case{"plush", Kind::kU64, 1}, Case{"plush", Kind::kU64, 2},
                                         Case{"plush", Kind::kBytes, 1},
                                         Case{"plush", Kind::kBytes, 2},
                                         Case{"plush+range", Kind::kU64, 1}),
                         case_name);

// The explorer would notice: without the fences of the code, operations that returned are lost.
TEST(CatalogCrashOracle, NoticesAStructureWithoutFences) {
  IndexWorkload workload;
  workload.structure = "plush";
  workload.prepared = 50;
  workload.operations = 10;
  IndexSubject subject(workload);
  const crash::Run run = subject.record({});
  ExploreOptions options;
  options.nested_max = 0;
  options.findings_max = 1;
  options.drops = [](const TraceEvent& event) { return event.kind == EventKind::kFence; };
  Verdicts verdicts;
  EXPECT_EQ(explore(run, subject, options, verdicts).findings.size(), 1U);
}

}  // namespace
}  // namespace perdure::lab::crash
