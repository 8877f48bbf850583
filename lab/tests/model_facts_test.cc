// What is published about the memory, driven into the model as synthetic streams. The sources of
// the figures are in docs/lab-model.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "lab/model/curve.h"
#include "lab/model/model.h"

namespace perdure::lab {
namespace {

// Far beyond any cache or buffer.
constexpr uint64_t kBigRegionBytes = uint64_t{64} << 30;

class Blocks {
 public:
  explicit Blocks(uint32_t bytes) : bytes_(bytes) {}

  // A block at a random place, aligned to its size.
  Access next() {
    const uint64_t block = engine_() % (kBigRegionBytes / bytes_);
    return {.address = block * bytes_, .bytes = bytes_, .pm = true};
  }

 private:
  uint32_t bytes_;
  std::mt19937_64 engine_{7};
};

void persist(MemoryModel& model, const Access& access) {
  model.store(access);
  model.flush(access, FlushKind::kClwb);
  model.fence(access.thread, access.operation, access.site);
  model.operation_done(access.operation, access.bytes);
}

// Counts of `count` blocks, after as many to warm up.
template <class Write>
Counters steady_state(MemoryModel& model, uint64_t count, Write write) {
  for (uint64_t i = 0; i < count; ++i) write();
  model.reset_counters();
  for (uint64_t i = 0; i < count; ++i) write();
  return model.total();
}

Counters random_streams(uint32_t bytes) {
  MemoryModel model(builtin_profile("optane-100"));
  Blocks blocks(bytes);
  return steady_state(model, 100'000, [&] {
    const Access block = blocks.next();
    model.stream(block);
    model.fence(0, 0, 0);
    model.operation_done(0, block.bytes);
  });
}

Counters random_persists(uint32_t bytes) {
  MemoryModel model(builtin_profile("optane-100"));
  Blocks blocks(bytes);
  return steady_state(model, 100'000, [&] { persist(model, blocks.next()); });
}

Counters random_unflushed_stores(uint32_t bytes) {
  Profile profile = builtin_profile("optane-100");
  scale_cache(profile, 4'000'000);
  MemoryModel model(profile);
  Blocks blocks(bytes);
  return steady_state(model, 300'000, [&] {
    const Access block = blocks.next();
    model.store(block);
    model.operation_done(0, block.bytes);
  });
}

void expect_within(double measured, double published, double share) {
  EXPECT_NEAR(measured, published, published * share);
}

TEST(ModelFacts, SequentialPersistsCombineIntoWholeUnits) {
  MemoryModel model(builtin_profile("optane-100"));
  for (uint64_t line = 0; line < 400'000; ++line) {
    persist(model, {.address = line * 64, .bytes = 64, .pm = true});
  }
  const Counters counters = model.total();
  EXPECT_EQ(counters.wpq_flush, 400'000U);
  EXPECT_EQ(counters.media_write_twelfths, counters.wpq_inserts() * kTwelfths);
  EXPECT_EQ(counters.media_write_random_twelfths, 48U * 6) << "but for the first unit of each DIMM";
  EXPECT_EQ(counters.media_read_for_write_units, 0U);
}

TEST(ModelFacts, SequentialAppendsOfEightBytesCombineToo) {
  Profile profile = builtin_profile("optane-200");  // clwb keeps the line
  profile.controller_writes_ppm = 0;
  MemoryModel model(profile);
  for (uint64_t word = 0; word < 80'000; ++word) {
    persist(model, {.address = word * 8, .bytes = 8, .pm = true});
  }
  // The buffer writes a unit when its last line is touched first, and again with what came after.
  const Counters counters = model.total();
  EXPECT_EQ(counters.wpq_inserts(), 80'000U);
  EXPECT_LT(counters.media_writes_per_wpq_insert(), 2.01 / 8);
}

TEST(ModelFacts, RandomNontemporalWritesHaveThePublishedEffectiveWriteRatio) {
  expect_within(random_streams(64).effective_write_ratio(), 0.245, 0.03);
  expect_within(random_streams(128).effective_write_ratio(), 0.489, 0.03);
  expect_within(random_streams(256).effective_write_ratio(), 0.98, 0.03);
}

TEST(ModelFacts, RandomPersistsCostAWholeUnitEach) {
  expect_within(random_persists(64).media_writes_per_wpq_insert(), 4, 0.035);
  expect_within(random_persists(256).media_writes_per_wpq_insert(), 1, 0.035);
}

TEST(ModelFacts, EvictionsOfUnflushedStoresComeScrambled) {
  // A quarter, whatever their size: four lines stored together do not come back together.
  expect_within(random_unflushed_stores(64).effective_write_ratio(), 0.25, 0.05);
  expect_within(random_unflushed_stores(128).effective_write_ratio(), 0.25, 0.05);
  expect_within(random_unflushed_stores(256).effective_write_ratio(), 0.25, 0.05);
}

TEST(ModelFacts, UnflushedStoresReachTheControllerAsEvictions) {
  const Counters counters = random_unflushed_stores(128);
  EXPECT_EQ(counters.wpq_inserts(), counters.wpq_eviction);
  EXPECT_NEAR(static_cast<double>(counters.wpq_eviction), 600'000, 6'000);
}

TEST(ModelFacts, RewritingOneLineCoalesces) {
  MemoryModel model(builtin_profile("optane-100"));
  for (int i = 0; i < 10'000; ++i) persist(model, {.address = 4096, .bytes = 64, .pm = true});
  EXPECT_EQ(model.total().wpq_flush, 10'000U);
  EXPECT_EQ(model.total().media_write_twelfths, 0U);
  model.drain();
  EXPECT_EQ(model.total().media_write_twelfths, 4 * kTwelfths);
}

TEST(ModelFacts, AnIncompleteUnitIsReadBeforeItIsWritten) {
  const Counters counters = random_streams(64);
  const auto units = static_cast<double>(counters.media_write_partial_twelfths) / kTwelfths;
  expect_within(static_cast<double>(counters.media_read_for_write_units), units, 0.001);
  EXPECT_EQ(random_streams(256).media_read_units, 0U);
}

TEST(ModelFacts, AmplificationGrowsWithTheWorkingSetAsPublished) {
  int published = 0;
  for (const CurvePoint& point : write_amplification_curve(builtin_profile("optane-100"))) {
    SCOPED_TRACE(point.working_set_bytes);
    if (point.published > 0) {
      ++published;
      expect_within(point.modelled, point.published, 0.03);
    }
    if (point.working_set_bytes <= 16 * 1024) expect_within(point.modelled, 1.04, 0.02);
    if (point.working_set_bytes >= 128 * 1024) expect_within(point.modelled, 2.08, 0.02);
  }
  EXPECT_EQ(published, 5);
}

TEST(ModelFacts, NeitherFifoLikeNorPlainRandomReplacementGivesTheCurve) {
  // The first is strict LRU; both are far from 1.36 and 1.6.
  Profile profile = builtin_profile("optane-100");
  profile.write_buffer_recent_units = profile.write_buffer_units - 1;
  EXPECT_GT(halves_write_amplification(profile, 80), 2.0);
  profile.write_buffer_recent_units = 0;
  EXPECT_LT(halves_write_amplification(profile, 96), 1.5);
}

TEST(ModelFacts, MediaOfLineSizeHasNoAmplification) {
  for (const char* name : {"nvdimm", "cxl"}) {
    MemoryModel model(builtin_profile(name));
    Blocks blocks(64);
    for (int i = 0; i < 10'000; ++i) persist(model, blocks.next());
    EXPECT_EQ(model.total().media_write_twelfths, 10'000 * kTwelfths) << name;
    EXPECT_EQ(model.total().media_read_for_write_units, 0U) << name;
  }
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// With PERDURE_WRITE_DOCS=1 in the environment the figure and the table are written instead.
TEST(ModelFacts, TheDocumentShowsTheCurve) {
  const auto docs =
      std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "docs";
  if (!std::filesystem::exists(docs)) GTEST_SKIP() << "the sources are not here";
  const auto points = write_amplification_curve(builtin_profile("optane-100"));
  const auto figure = docs / "images" / "write-amplification-curve.svg";
  const auto page = docs / "lab-model.md";
  const std::string begin = "<!-- curve: generated -->\n";
  const std::string end = "<!-- end of curve -->\n";
  std::string text = content_of(page);
  const size_t from = text.find(begin);
  const size_t to = text.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to);
  if (std::getenv("PERDURE_WRITE_DOCS") != nullptr) {
    text.replace(from, to - from, begin + curve_table(points));
    std::ofstream(page) << text;
    std::ofstream(figure) << curve_svg(points);
    return;
  }
  EXPECT_EQ(text.substr(from, to - from), begin + curve_table(points));
  EXPECT_EQ(content_of(figure), curve_svg(points));
}

}  // namespace
}  // namespace perdure::lab
