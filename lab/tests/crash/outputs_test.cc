// Which outputs count as right after a crash.
#include "lab/crash/outputs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "crash/trace_builder.h"

namespace perdure::lab::crash {
namespace {

// Sees the first word.
class FirstWord : public Subject {
 public:
  std::string name() const override { return "first word"; }
  crash::Run record(const std::vector<uint32_t>&) override { return {}; }
  uint32_t operation_count() const override { return 0; }
  Observation observe(const std::string& path, bool) override {
    const int file = open(path.c_str(), O_RDONLY);
    uint64_t word = 0;
    const bool read = pread(file, &word, sizeof word, 0) == sizeof word;
    close(file);
    return {.digest = word, .problem = read ? "" : "cannot read", .contents = std::to_string(word)};
  }
};

using Digests = std::vector<uint64_t>;

TEST(Outputs, OfAnOperationInFlightAreTwo) {
  TraceBuilder builder;
  // Events:        0       1               2               3               4
  builder.held(0, 5).begin().store(0, {6}).store(0, {7}).flush(0).end();
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.allowed(0), Digests{5});
  for (const uint32_t event : {1, 2, 3, 4}) EXPECT_EQ(outputs.allowed(event), (Digests{5, 7}));
  EXPECT_EQ(outputs.allowed(5), Digests{7});
}

TEST(Outputs, OfAnOperationThatReturnedAreNotThoseOfTheNext) {
  TraceBuilder builder;
  builder.begin().store(0, {1}).end();  // 0 1 2
  builder.begin().store(0, {0}).end();  // 3 4 5: back to what was
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.allowed(3), Digests{1});
  EXPECT_EQ(outputs.allowed(4), (Digests{1, 0}));
  EXPECT_EQ(outputs.allowed(6), Digests{0});
}

TEST(Outputs, BetweenOperationsAreLikeThoseOfOne) {
  TraceBuilder builder;
  builder.store(0, {3}).store(0, {4});  // 0 1
  builder.begin().store(0, {5}).end();  // 2 3 4
  builder.store(0, {6});                // 5
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.allowed(0), Digests{0});
  EXPECT_EQ(outputs.allowed(1), (Digests{0, 4}));
  EXPECT_EQ(outputs.allowed(2), Digests{4});
  EXPECT_EQ(outputs.allowed(5), Digests{5});
  EXPECT_EQ(outputs.allowed(6), Digests{6});
}

TEST(Outputs, OfAnOperationThatNeverReturnsStayTwo) {
  TraceBuilder builder;
  builder.begin().store(0, {1});
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.allowed(2), (Digests{0, 1}));
}

TEST(Outputs, AreKnownInAnyOrderOfAsking) {
  TraceBuilder builder;
  builder.held(0, 9).begin().store(0, {1}).end().begin().store(0, {2}).end();
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.allowed(6), Digests{2});
  EXPECT_EQ(outputs.allowed(1), (Digests{9, 1}));
  EXPECT_EQ(outputs.allowed(6), Digests{2});
}

TEST(Outputs, AreToldInWords) {
  TraceBuilder builder;
  builder.held(0, 5).begin().store(0, {7}).end();
  FirstWord subject;
  Outputs outputs(builder.trace(), subject, {});
  EXPECT_EQ(outputs.explain(1, "6"), "recovery gives \"6\", and must give \"5\" or \"7\"");
  EXPECT_EQ(outputs.explain(3, "6"), "recovery gives \"6\", and must give \"7\"");
}

}  // namespace
}  // namespace perdure::lab::crash
