#include "lab/model/model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

constexpr uint32_t kSite = 3;

// A cache of one set of four lines, one DIMM with room for two units: everything is foreseeable.
Profile tiny() {
  Profile profile = builtin_profile("optane-200");  // clwb keeps the line
  profile.cpu_cache_bytes = 256;
  profile.cpu_cache_ways = 4;
  profile.dimm_count = 1;
  profile.write_buffer_units = 2;
  profile.write_buffer_recent_units = 1;  // leaves the older of the two
  profile.read_buffer_units = 2;
  profile.controller_writes_ppm = 0;
  return profile;
}

Access pm(uint64_t address, uint32_t bytes = 8) {
  return {.address = address, .bytes = bytes, .pm = true, .site = kSite};
}
Access dram(uint64_t address, uint32_t bytes = 8) {
  return {.address = address, .bytes = bytes, .pm = false};
}

TEST(Model, CountsInstructionsAndLines) {
  MemoryModel model(tiny());
  model.load(pm(60, 8));    // straddles two lines
  model.store(pm(64, 64));  // exactly one
  model.locked(pm(0));
  model.load(pm(0, 0));  // touches nothing
  const Counters counters = model.total();
  EXPECT_EQ(counters.loads, 3U);
  EXPECT_EQ(counters.stores, 2U);
  EXPECT_EQ(counters.locked, 1U);
  EXPECT_EQ(counters.pm_lines_read, 3U);
  EXPECT_EQ(counters.pm_lines_written, 2U);
  EXPECT_EQ(counters.pm_lines_dirtied, 2U);
  EXPECT_EQ(counters.pm_read_misses, 2U);
  EXPECT_EQ(counters.pm_write_misses, 0U);
}

TEST(Model, FlushingADirtyLineInsertsItOnceAndCleansIt) {
  MemoryModel model(tiny());
  model.store(pm(0));
  model.flush(pm(0), FlushKind::kClwb);
  model.flush(pm(0), FlushKind::kClwb);
  const Counters counters = model.total();
  EXPECT_EQ(counters.flushes, 2U);
  EXPECT_EQ(counters.flushes_clean, 1U);
  EXPECT_EQ(counters.wpq_flush, 1U);
  EXPECT_EQ(model.pending().cache_lines, 0U);
  EXPECT_EQ(model.pending().media_unit_lines, 1U);
}

TEST(Model, FlushingAnAbsentLineIsWasted) {
  MemoryModel model(tiny());
  model.flush(pm(0, 128), FlushKind::kClwb);
  EXPECT_EQ(model.total().flushes, 2U);
  EXPECT_EQ(model.total().flushes_clean, 2U);
  EXPECT_EQ(model.total().wpq_inserts(), 0U);
}

TEST(Model, ClwbKeepsOrEvictsTheLineAsTheProfileSays) {
  for (const bool evicts : {false, true}) {
    Profile profile = tiny();
    profile.clwb_evicts_line = evicts;
    MemoryModel model(profile);
    model.store(pm(0));
    model.flush(pm(0), FlushKind::kClwb);
    model.load(pm(0));
    EXPECT_EQ(model.total().pm_read_misses, evicts ? 1U : 0U);
    model.flush(pm(0), FlushKind::kClflushopt);
    model.load(pm(0));
    EXPECT_EQ(model.total().pm_read_misses, evicts ? 2U : 1U);
  }
}

TEST(Model, ReadsOfWhatADimmHoldsAreBuffered) {
  MemoryModel model(tiny());
  model.load(pm(0));    // media; its unit stays in the read buffer
  model.load(pm(192));  // so this one is near
  EXPECT_EQ(model.total().pm_read_misses, 2U);
  EXPECT_EQ(model.total().pm_misses_buffered, 1U);
  EXPECT_EQ(model.total().media_read_units, 4U);
  model.stream(pm(1024, 64));
  model.load(pm(1024));  // in the write buffer
  EXPECT_EQ(model.total().pm_misses_buffered, 2U);
  model.load(pm(1088));  // the same unit, a line that the buffer has not got
  EXPECT_EQ(model.total().pm_misses_buffered, 2U);
  EXPECT_EQ(model.total().media_read_units, 8U);
}

TEST(Model, AUnitThatWasJustReadNeedsNoReadToBeCompleted) {
  for (const bool read_before : {false, true}) {
    MemoryModel model(tiny());
    if (read_before) model.load(pm(0));
    model.stream(pm(64, 64));
    model.drain();
    EXPECT_EQ(model.total().media_read_for_write_units, read_before ? 0U : 4U);
    EXPECT_EQ(model.total().media_read_units, 4U);
  }
}

TEST(Model, OnlyAFenceAfterAWriteWaits) {
  MemoryModel model(tiny());
  model.fence(0, 0, kSite);
  model.store(pm(0));
  model.fence(0, 0, kSite);
  EXPECT_EQ(model.total().fences_waiting, 0U);
  model.flush(pm(0), FlushKind::kClwb);
  model.fence(1, 0, kSite);  // another thread's
  EXPECT_EQ(model.total().fences_waiting, 0U);
  model.fence(0, 0, kSite);
  EXPECT_EQ(model.total().fences_waiting, 1U);
  model.flush(pm(0), FlushKind::kClwb);  // clean
  model.fence(0, 0, kSite);
  EXPECT_EQ(model.total().fences_waiting, 1U);
  EXPECT_EQ(model.total().fences, 5U);
  EXPECT_EQ(model.sites()[kSite].fences, 5U);
}

TEST(Model, TheLineUsedLongestAgoIsEvictedOnAccountOfItsLastStore) {
  MemoryModel model(tiny());
  Access first = pm(0);
  first.operation = 5;
  first.site = 1;
  model.store(first);
  first.site = 2;
  first.operation = 6;
  model.store(first);
  for (uint64_t line = 1; line < 4; ++line) model.load(dram(line * 64));
  EXPECT_EQ(model.total().wpq_eviction, 0U);
  model.load(dram(4 * 64));  // DRAM lines take part in the cache
  EXPECT_EQ(model.counters(5).wpq_eviction, 0U);
  EXPECT_EQ(model.counters(6).wpq_eviction, 1U);
  ASSERT_GE(model.sites().size(), 3U);
  EXPECT_EQ(model.sites()[1].wpq_eviction, 0U);
  EXPECT_EQ(model.sites()[2].wpq_eviction, 1U);
  EXPECT_EQ(model.total().dram_misses, 4U);
}

TEST(Model, AUseMakesALineTheLastToLeave) {
  MemoryModel model(tiny());
  for (uint64_t line = 0; line < 4; ++line) model.store(pm(line * 64));
  model.load(pm(0));
  model.load(dram(0));  // line 1 leaves
  model.load(pm(0));
  EXPECT_EQ(model.total().pm_read_misses, 0U);
  model.load(pm(64));
  EXPECT_EQ(model.total().pm_read_misses, 1U);
}

TEST(Model, DramAndPmAreTwoAddressSpaces) {
  MemoryModel model(tiny());
  model.store(pm(0));
  model.store(dram(0));
  model.flush(dram(0), FlushKind::kClwb);
  EXPECT_EQ(model.total().flushes, 0U);
  EXPECT_EQ(model.total().wpq_inserts(), 0U);
  EXPECT_EQ(model.total().dram_writebacks, 1U);
  EXPECT_EQ(model.pending().cache_lines, 1U);
}

TEST(Model, FullStreamedLinesLeaveAtOnceAndPartialOnesAtTheFence) {
  MemoryModel model(tiny());
  model.stream(pm(0, 32));
  EXPECT_EQ(model.total().wpq_nontemporal, 0U);
  model.stream(pm(32, 32));
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
  model.stream(pm(64, 8));
  EXPECT_EQ(model.pending().streaming_lines, 1U);
  model.fence(1, 0, 0);  // another thread's
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
  model.fence(0, 0, 0);
  EXPECT_EQ(model.total().wpq_nontemporal, 2U);
  EXPECT_EQ(model.total().fences, 2U);
  EXPECT_EQ(model.total().fences_waiting, 1U);
  EXPECT_EQ(model.pending().streaming_lines, 0U);
}

TEST(Model, AnAtomicOperationDrainsStreamedLines) {
  MemoryModel model(tiny());
  model.stream(pm(0, 8));
  model.locked(dram(0));
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
}

TEST(Model, MoreStreamedLinesThanBuffersPushTheOldestOut) {
  Profile profile = tiny();
  profile.streaming_buffers = 2;
  MemoryModel model(profile);
  model.stream(pm(0, 8));
  model.stream(pm(64, 8));
  model.stream(pm(128, 8));
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
  model.stream(pm(0, 56));  // line 0 begins anew and pushes line 1 out
  EXPECT_EQ(model.total().wpq_nontemporal, 2U);
}

TEST(Model, StreamingToACachedLineWritesItBackFirst) {
  MemoryModel model(tiny());
  model.store(pm(0));
  model.stream(pm(0, 64));
  EXPECT_EQ(model.total().wpq_eviction, 1U);
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
  EXPECT_EQ(model.pending().cache_lines, 0U);
}

TEST(Model, AnOrdinaryAccessSendsAStreamedLineOutFirst) {
  MemoryModel model(tiny());
  model.stream(pm(0, 8));
  model.load(pm(0));
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
  model.fence(0, 0, 0);
  EXPECT_EQ(model.total().wpq_nontemporal, 1U);
}

TEST(Model, AUnitsWriteIsSharedExactlyByTheLinesInIt) {
  MemoryModel model(tiny());
  for (uint64_t line = 0; line < 3; ++line) {
    Access access = pm(line * 64, 64);
    access.operation = static_cast<uint16_t>(line == 0 ? 1 : 2);
    access.site = access.operation;
    model.stream(access);
  }
  model.drain();
  EXPECT_EQ(model.counters(1).media_write_twelfths, 16U);
  EXPECT_EQ(model.counters(2).media_write_twelfths, 32U);
  EXPECT_EQ(model.sites()[1].media_write_twelfths, 16U);
  EXPECT_EQ(model.sites()[2].media_write_twelfths, 32U);
  EXPECT_EQ(model.total().media_write_units(), 4.0);
  EXPECT_EQ(model.total().media_write_partial_twelfths, 48U);
}

TEST(Model, AFullUnitIsWrittenAtOnceAndAnIncompleteOneWhenItsSlotIsNeeded) {
  MemoryModel model(tiny());
  model.stream(pm(0, 256));
  EXPECT_EQ(model.total().media_write_units(), 4.0);
  EXPECT_EQ(model.total().media_write_partial_twelfths, 0U);
  model.stream(pm(256, 64));
  model.stream(pm(512, 64));
  EXPECT_EQ(model.total().media_write_units(), 4.0);
  model.stream(pm(768, 64));
  EXPECT_EQ(model.total().media_write_units(), 8.0);
  EXPECT_EQ(model.total().media_read_for_write_units, 4U);
  EXPECT_EQ(model.pending().media_units, 2U);
}

TEST(Model, ThePiecesOfAnInterleavedRegionGoToTheDimmsInTurn) {
  Profile profile = tiny();
  profile.dimm_count = 2;
  MemoryModel model(profile);
  // Two units of each DIMM: one DIMM alone would have to give two of them up.
  for (const uint64_t chunk : {0, 1, 2, 3}) model.stream(pm(chunk * 4096, 64));
  EXPECT_EQ(model.total().media_write_units(), 0.0);
  model.stream(pm(4 * 4096, 64));
  EXPECT_EQ(model.total().media_write_units(), 4.0);
}

TEST(Model, TheControllersOwnWritesAreTheStatedShareOfRandomUnits) {
  Profile profile = tiny();
  profile.controller_writes_ppm = 250'000;
  MemoryModel model(profile);
  for (uint64_t i = 0; i < 1000; ++i) model.stream(pm((i * 7919 % 100'003) * 256, 256));
  EXPECT_EQ(model.total().media_write_controller_twelfths, 48U * 250);
  EXPECT_EQ(model.total().media_write_twelfths, 48U * 1250);
  EXPECT_EQ(model.sites()[kSite].media_write_twelfths, 48U * 1250);
}

TEST(Model, ResettingCountersKeepsTheContents) {
  MemoryModel model(tiny());
  model.store(pm(0));
  model.operation_done(0, 8);
  model.allocation(0, 100);
  EXPECT_EQ(model.total().allocation_bytes, 100U);
  model.reset_counters();
  EXPECT_EQ(model.total(), Counters{});
  model.load(pm(0));
  EXPECT_EQ(model.total().pm_read_misses, 0U);
  model.flush(pm(0), FlushKind::kClwb);
  EXPECT_EQ(model.total().wpq_flush, 1U);
}

TEST(Model, DrainingLeavesNothingOnItsWay) {
  MemoryModel model(tiny());
  model.store(pm(0));
  model.stream(pm(512, 8));
  model.store(pm(1024));
  model.flush(pm(1024), FlushKind::kClwb);
  model.drain();
  const Pending pending = model.pending();
  EXPECT_EQ(pending.cache_lines + pending.streaming_lines + pending.media_units, 0U);
  EXPECT_EQ(model.total().wpq_inserts(), 3U);
  EXPECT_EQ(model.total().media_write_units(), 12.0);
  const Counters once = model.total();
  model.drain();
  EXPECT_EQ(model.total(), once);
  // The DIMM still knows the units it wrote: a further line of one needs no read.
  model.stream(pm(512 + 64, 64));
  model.drain();
  EXPECT_EQ(model.total().media_read_for_write_units, once.media_read_for_write_units);
}

// A mixed run of several threads and operations.
Counters mixed_run(MemoryModel& model) {
  std::mt19937_64 engine(11);
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t dice = engine();
    Access access{.address = (dice >> 8) % (uint64_t{1} << 26),
                  .bytes = static_cast<uint32_t>(1 + (dice >> 40) % 100),
                  .pm = (dice & 1) != 0,
                  .thread = static_cast<uint16_t>(dice >> 1 & 3),
                  .operation = static_cast<uint16_t>(dice >> 3 & 7),
                  .site = static_cast<uint32_t>(dice >> 50 & 31)};
    switch (dice % 7) {
      case 0:
        model.stream(access);
        break;
      case 1:
        model.locked(access);
        break;
      case 2:
        model.load(access);
        break;
      case 3:
        model.fence(access.thread, access.operation, access.site);
        break;
      default:
        model.store(access);
        if (dice % 11 < 5) model.flush(access, FlushKind::kClwb);
    }
  }
  return model.total();
}

TEST(Model, EqualRunsGiveEqualCounts) {
  Profile profile = builtin_profile("optane-100");
  scale_cache(profile, 1'000'000);
  MemoryModel one(profile);
  MemoryModel two(profile);
  EXPECT_EQ(mixed_run(one), mixed_run(two));
  EXPECT_EQ(one.sites(), two.sites());
  EXPECT_GT(one.total().media_write_twelfths, 0U);
}

TEST(Model, SumsAgreeWhateverTheyAreSplitBy) {
  Profile profile = builtin_profile("optane-100");
  scale_cache(profile, 1'000'000);
  MemoryModel model(profile);
  mixed_run(model);
  model.drain();
  const Counters total = model.total();
  SiteCounters sites;
  for (const SiteCounters& each : model.sites()) sites += each;
  EXPECT_EQ(sites.media_write_twelfths, total.media_write_twelfths);
  EXPECT_EQ(sites.wpq_inserts(), total.wpq_inserts());
  EXPECT_EQ(sites.pm_misses, total.pm_misses());
  EXPECT_EQ(total.media_write_twelfths % 48, 0U) << "whole units";
  // Every dirtied line leaves once, flushed or evicted.
  EXPECT_EQ(total.pm_lines_dirtied, total.wpq_flush + total.wpq_eviction);
  EXPECT_EQ(total.flushes - total.flushes_clean, total.wpq_flush);
  EXPECT_GE(total.media_write_twelfths, total.media_write_random_twelfths);
}

TEST(Model, CountersAddAndSubtract) {
  Profile profile = tiny();
  MemoryModel model(profile);
  const Counters first = mixed_run(model);
  const Counters both = mixed_run(model);
  EXPECT_EQ(first + (both - first), both);
  EXPECT_EQ(to_json(both)["loads"], both.loads);
  EXPECT_EQ(to_json(both)["wpq_inserts"], both.wpq_inserts());
}

TEST(Model, RefusesAProfileThatDoesNotHold) {
  Profile profile = tiny();
  profile.media_unit_bytes = 192;
  EXPECT_THROW(MemoryModel{profile}, Error);
}

}  // namespace
}  // namespace perdure::lab
