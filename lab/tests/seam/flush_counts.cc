#include "seam/flush_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "lab/crash/scratch_folder.h"
#include "lab/seam/runtime.h"
#include "perdure/catalog.h"

namespace seam_test {
namespace {

using perdure::lab::Event;
using perdure::lab::EventKind;

constexpr uint64_t kRecords = 24;
constexpr uint64_t kLineBytes = 64;

class FlushSink : public perdure::lab::Sink {
 public:
  void on(const Event& event) override {
    if (event.kind == EventKind::kFence) ++count.fences;
    if (event.kind != EventKind::kFlush) return;
    ++count.calls;
    const uint64_t last = (event.offset + std::max<uint64_t>(event.bytes, 1) - 1) / kLineBytes;
    count.lines += last - event.offset / kLineBytes + 1;
  }
  bool wants_dram() const override { return false; }

  FlushCount count{};
};

FlushCount count_of(const std::function<void()>& operation) {
  FlushSink sink;
  perdure::lab::install(&sink);
  operation();
  perdure::lab::install(nullptr);
  return sink.count;
}

// Of the second half: what is done once, at the beginning, is not the common path.
FlushCount median(const std::function<void(uint64_t key)>& operation) {
  std::vector<FlushCount> counts;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const uint64_t key = (i * 7 % kRecords) * 1000;  // in no order
    const FlushCount count = count_of([&] { operation(key); });
    if (i >= kRecords / 2) counts.push_back(count);
  }
  const auto middle = [&](uint64_t FlushCount::* figure) {
    std::ranges::sort(counts, {}, figure);
    return counts[counts.size() / 2].*figure;
  };
  return {middle(&FlushCount::calls), middle(&FlushCount::lines), middle(&FlushCount::fences)};
}

}  // namespace

FlushCounts flush_counts(const std::string& structure, const perdure::OptionMap& options) {
  const perdure::lab::crash::ScratchFolder folder;
  perdure::PoolOptions pool_options;
  pool_options.capacity_bytes = uint64_t{64} << 20;
  pool_options.force_domain = true;
  pool_options.domain = perdure::Domain::kLine;
  auto pool = perdure::Pool::create(folder.file("pool"), pool_options);
  const auto index = perdure::create_index(pool, "index", structure, perdure::Kind::kU64,
                                           perdure::Kind::kU64, options);
  FlushCounts counts{};
  counts.insert = median([&](uint64_t key) { EXPECT_TRUE(index->insert(key, key + 1)); });
  counts.update = median([&](uint64_t key) { EXPECT_TRUE(index->update(key, key + 2)); });
  counts.remove = median([&](uint64_t key) { EXPECT_TRUE(index->remove(key)); });
  return counts;
}

}  // namespace seam_test
