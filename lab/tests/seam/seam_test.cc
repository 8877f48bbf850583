// Every access of an observed program is told exactly once, with the right address and length.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "lab/seam/runtime.h"
#include "perdure/lab.h"
#include "seam/observed/accesses.h"

namespace seam_test {

void PrintTo(const Access& access, std::ostream* out) {
  *out << "{kind " << static_cast<int>(access.kind) << ", " << access.bytes << " bytes at "
       << access.offset << "}";
}

namespace {

using perdure::lab::Event;

class ListSink : public perdure::lab::Sink {
 public:
  explicit ListSink(bool dram = false) : dram_(dram) {}
  void on(const Event& event) override { events.push_back(event); }
  bool wants_dram() const override { return dram_; }

  std::vector<Event> events;

 private:
  bool dram_;
};

alignas(4096) std::array<unsigned char, kBytes> memory;

class Seam : public testing::Test {
 protected:
  Seam() {
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i % 7);
    perdure_lab_region(memory.data(), memory.size(), "seam test");
  }
  ~Seam() override { perdure_lab_region_end(memory.data()); }

  static std::vector<Access> told_by(const Case& each) {
    ListSink sink;
    perdure::lab::install(&sink);
    const bool right = each.run(memory.data());
    perdure::lab::install(nullptr);
    EXPECT_TRUE(right) << each.name;
    std::vector<Access> told;
    for (const Event& event : sink.events) {
      told.push_back({event.kind, event.region != 0 ? event.offset : 0, event.bytes});
    }
    return told;
  }
};

// How often each byte is reported, by kind; and what names no bytes, under offset kBytes.
using Coverage = std::map<std::pair<EventKind, uint64_t>, int>;
Coverage coverage_of(const std::vector<Access>& accesses) {
  Coverage coverage;
  for (const Access& access : accesses) {
    if (access.bytes == 0) ++coverage[{access.kind, kBytes}];
    for (uint64_t i = 0; i < access.bytes; ++i) ++coverage[{access.kind, access.offset + i}];
  }
  return coverage;
}

bool is_right(const Case& each, const std::vector<Access>& told) {
  return each.in_pieces ? coverage_of(told) == coverage_of(each.expected) : told == each.expected;
}

std::vector<Case> all_cases() {
  std::vector<Case> all = plain_cases();
  for (const auto& cases : {copy_cases(), atomic_cases(), primitive_cases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

TEST_F(Seam, TellsEveryAccessOnce) {
  for (const Case& each : all_cases()) {
    const std::vector<Access> told = told_by(each);
    EXPECT_TRUE(is_right(each, told)) << each.name << ": told " << testing::PrintToString(told)
                                      << ", expected " << testing::PrintToString(each.expected);
  }
}

// The test above can fail: whatever is missing, twice there or of another length is noticed.
TEST_F(Seam, AMissedAccessWouldBeNoticed) {
  for (const Case& each : all_cases()) {
    const std::vector<Access> told = told_by(each);
    for (size_t i = 0; i < told.size(); ++i) {
      std::vector<Access> missed = told;
      missed.erase(missed.begin() + static_cast<ptrdiff_t>(i));
      EXPECT_FALSE(is_right(each, missed)) << each.name;
      std::vector<Access> twice = told;
      twice.push_back(told[i]);
      EXPECT_FALSE(is_right(each, twice)) << each.name;
      if (told[i].bytes == 0) continue;
      std::vector<Access> shorter = told;
      --shorter[i].bytes;
      EXPECT_FALSE(is_right(each, shorter)) << each.name;
    }
  }
}

TEST_F(Seam, TellsNothingWithoutASinkOrWhileQuiet) {
  ListSink sink;
  auto* words = reinterpret_cast<uint64_t*>(memory.data());
  store_words(words, 8);
  perdure::lab::install(&sink);
  {
    const perdure::lab::Quiet quiet;
    store_words(words, 8);
  }
  perdure::lab::install(nullptr);
  EXPECT_EQ(sink.events.size(), 0U);
}

TEST_F(Seam, TellsOfDramOnlyInsideOperationsAndIfWanted) {
  std::array<uint64_t, 32> words{};
  for (const bool wanted : {false, true}) {
    ListSink sink(wanted);
    perdure::lab::install(&sink);
    store_words(words.data(), words.size());
    EXPECT_EQ(sink.events.size(), 0U);
    perdure_lab_operation_begin("write", 256);
    store_words(words.data(), words.size());
    perdure_lab_operation_end();
    perdure::lab::install(nullptr);
    uint64_t bytes = 0;
    for (const Event& event : sink.events) {
      EXPECT_EQ(event.region, 0U);
      if (event.kind == EventKind::kStore) bytes += event.bytes;
    }
    EXPECT_EQ(bytes, wanted ? sizeof words : 0);
    ASSERT_GE(sink.events.size(), 2U);
    EXPECT_EQ(sink.events.front().kind, EventKind::kBegin);
    EXPECT_EQ(sink.events.front().bytes, 256U);
    EXPECT_EQ(perdure::lab::operation_name(sink.events.front().address), "write");
    EXPECT_EQ(sink.events.back().kind, EventKind::kEnd);
  }
}

TEST_F(Seam, SeveralThreadsAreToldApartAndNothingIsLost) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 2000;
  constexpr uint64_t kWords = 16;
  ListSink sink;
  perdure::lab::install(&sink);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread] {
      auto* words = reinterpret_cast<uint64_t*>(memory.data()) + thread * kWords;
      for (uint64_t round = 0; round < kRounds; ++round) store_words(words, kWords);
    });
  }
  for (std::thread& thread : threads) thread.join();
  perdure::lab::install(nullptr);
  std::map<uint16_t, uint64_t> bytes;
  std::map<uint16_t, std::set<uint64_t>> parts;
  for (const Event& event : sink.events) {
    bytes[event.thread] += event.bytes;
    parts[event.thread].insert(event.offset / (kWords * 8));
  }
  ASSERT_EQ(bytes.size(), kThreads);
  for (const auto& [thread, count] : bytes) {
    EXPECT_EQ(count, kRounds * kWords * 8);
    EXPECT_EQ(parts[thread].size(), 1U);
  }
}

TEST_F(Seam, ARegionThatEndedIsDram) {
  perdure_lab_region_end(memory.data());
  ListSink sink;
  perdure::lab::install(&sink);
  store_words(reinterpret_cast<uint64_t*>(memory.data()), 8);
  perdure::lab::install(nullptr);
  EXPECT_EQ(sink.events.size(), 0U);
}

}  // namespace
}  // namespace seam_test
