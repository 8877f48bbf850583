// What an operation of an NV-Tree flushes: an entry, and the count that makes it count.
#include <gtest/gtest.h>

#include <functional>

#include "lab/crash/scratch_folder.h"
#include "lab/seam/runtime.h"
#include "perdure/catalog.h"
#include "seam/flush_counts.h"

namespace seam_test {
namespace {

using perdure::Kind;
using perdure::lab::Event;
using perdure::lab::EventKind;

TEST(NvTreeFlushes, AnInsertAndAnUpdateFlushAnEntryAndTheCount) {
  const FlushCounts counts = flush_counts("nv-tree");
  for (const FlushCount& count : {counts.insert, counts.update}) {
    EXPECT_EQ(count.calls, 2U);
    EXPECT_EQ(count.lines, 2U);  // no entry straddles two
    EXPECT_EQ(count.fences, 2U);
  }
  // Of most of these the log is full already, with 24 inserts and as many updates.
  EXPECT_EQ(counts.remove.calls, 1U);
  EXPECT_EQ(counts.remove.lines, 1U);
  EXPECT_EQ(counts.remove.fences, 1U);
}

class FlushCalls : public perdure::lab::Sink {
 public:
  void on(const Event& event) override { calls += event.kind == EventKind::kFlush ? 1 : 0; }
  bool wants_dram() const override { return false; }
  uint64_t calls = 0;
};

TEST(NvTreeFlushes, ARemovalAppendsAsLongAsThereIsRoom) {
  const perdure::lab::crash::ScratchFolder folder;
  perdure::PoolOptions options;
  options.capacity_bytes = uint64_t{64} << 20;
  options.force_domain = true;
  options.domain = perdure::Domain::kLine;
  auto pool = perdure::Pool::create(folder.file("pool"), options);
  const auto index = perdure::create_index(pool, "index", "nv-tree", Kind::kU64, Kind::kU64, {});
  for (uint64_t key = 0; key < 63; ++key) ASSERT_TRUE(index->insert(key, key));
  for (const uint64_t flushes : {2U, 1U}) {  // into the last place of the log, and without one
    FlushCalls sink;
    perdure::lab::install(&sink);
    EXPECT_TRUE(index->remove(flushes));
    perdure::lab::install(nullptr);
    EXPECT_EQ(sink.calls, flushes);
  }
}

}  // namespace
}  // namespace seam_test
