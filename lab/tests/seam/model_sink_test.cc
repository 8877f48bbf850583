// What the memory model counts of an observed program: figures that can be counted by hand.
#include "lab/seam/model_sink.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/amp/collect.h"
#include "lab/crash/sites.h"
#include "lab/seam/own_thread.h"
#include "lab/seam/runtime.h"
#include "perdure/error.h"
#include "perdure/lab.h"
#include "seam/observed/slots.h"

namespace seam_test {
namespace {

using nlohmann::json;
using perdure::lab::builtin_profile;
using perdure::lab::ModelSink;

// Pages of its own at an address that the system chooses.
template <typename T>
class Mapped {
 public:
  explicit Mapped(size_t count = 1) : bytes_(count * sizeof(T)) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base_, MAP_FAILED);
  }
  ~Mapped() { munmap(base_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  T* get() { return static_cast<T*>(base_); }
  size_t bytes() const { return bytes_; }

 private:
  void* base_;
  size_t bytes_;
};

// Slots in memory that counts as persistent.
class PersistentSlots {
 public:
  PersistentSlots() { perdure_lab_region(slots_.get(), slots_.bytes(), "slots"); }
  ~PersistentSlots() { perdure_lab_region_end(slots_.get()); }
  PersistentSlots(const PersistentSlots&) = delete;
  PersistentSlots& operator=(const PersistentSlots&) = delete;
  Slots& operator*() { return *slots_.get(); }

 private:
  Mapped<Slots> slots_;
};

template <typename Work>
void as_operation(const char* type, size_t payload_bytes, const Work& work) {
  perdure_lab_operation_begin(type, payload_bytes);
  work();
  perdure_lab_operation_end();
}

// A report of what `work` does, without the addresses of its sites.
template <typename Work>
json report_of(const Work& work) {
  ModelSink sink(builtin_profile("optane-100"));
  perdure::lab::install(&sink);
  work();
  perdure::lab::install(nullptr);
  json report = sink.report();
  for (json& site : report["sites"]) {
    site.erase("offset");
    site.erase("callers");
  }
  return report;
}

TEST(ModelSink, CountsWhatATinyStructureWrites) {
  PersistentSlots slots;
  const json report = report_of([&] {
    for (uint64_t i = 0; i < 50; ++i) as_operation("insert", 16, [&] { insert(*slots, i, i + 9); });
    for (uint64_t i = 0; i < 20; ++i) {
      as_operation("lookup", 0, [&] { EXPECT_EQ(lookup(*slots, i), i + 9); });
    }
  });
  const json& insert_counts = report["operations"]["insert"];
  EXPECT_EQ(insert_counts["operations"], 50);
  EXPECT_EQ(insert_counts["payload_bytes"], 800);
  EXPECT_EQ(insert_counts["flushes"], 100);
  EXPECT_EQ(insert_counts["flushes_clean"], 0);
  EXPECT_EQ(insert_counts["fences"], 100);
  EXPECT_EQ(insert_counts["fences_waiting"], 100);
  EXPECT_EQ(insert_counts["pm_lines_written"], 150);
  EXPECT_EQ(insert_counts["pm_lines_read"], 50);
  EXPECT_EQ(insert_counts["wpq_flush"], 100);
  EXPECT_EQ(insert_counts["wpq_eviction"], 0);
  EXPECT_EQ(insert_counts["wpq_nontemporal"], 0);
  EXPECT_EQ(insert_counts["locked"], 0);
  const json& lookup_counts = report["operations"]["lookup"];
  EXPECT_EQ(lookup_counts["operations"], 20);
  EXPECT_EQ(lookup_counts["pm_lines_read"], 40);
  EXPECT_EQ(lookup_counts["wpq_inserts"], 0);
  EXPECT_EQ(lookup_counts["media_writes"], 0);
}

TEST(ModelSink, TellsFlushesThatWereInVain) {
  PersistentSlots slots;
  const json report =
      report_of([&] { as_operation("insert", 16, [&] { insert_wastefully(*slots, 3, 1); }); });
  EXPECT_EQ(report["operations"]["insert"]["flushes"], 3);
  EXPECT_EQ(report["operations"]["insert"]["flushes_clean"], 1);
  EXPECT_EQ(report["operations"]["insert"]["wpq_inserts"], 2);
}

TEST(ModelSink, NamesTheLinesThatWrite) {
  PersistentSlots slots;
  ModelSink sink(builtin_profile("optane-100"));
  perdure::lab::install(&sink);
  as_operation("insert", 16, [&] { insert(*slots, 3, 1); });
  perdure::lab::install(nullptr);
  const json report = sink.report();
  uint64_t flushes = 0;
  for (const json& site : report["sites"]) {
    if (site["flushes"] == 0) continue;
    perdure::lab::Symbols symbols(site["module"], 0);
    const perdure::lab::Frame* frame = symbols.site_of(site["offset"]);
    ASSERT_NE(frame, nullptr);
    EXPECT_TRUE(frame->file.ends_with("observed/slots.cc")) << frame->file;
    flushes += site["flushes"].get<uint64_t>();
  }
  EXPECT_EQ(flushes, 2U);
}

// A function that only flushes is not the line that writes: who calls it is.
TEST(ModelSink, NamesTheCallersOfFunctionsThatFlush) {
  PersistentSlots slots;
  ModelSink sink(builtin_profile("optane-100"));
  perdure::lab::install(&sink);
  as_operation("insert", 16, [&] { insert_out_of_line(*slots, 3, 1); });
  perdure::lab::install(nullptr);
  perdure::lab::AmpResult result;
  perdure::lab::collect(sink.report(), result);
  std::set<unsigned> lines;
  for (const perdure::lab::AmpSite& site : result.sites) {
    if (site.counters.flushes == 0 && site.counters.fences == 0) continue;
    EXPECT_EQ(site.function, "seam_test::insert_out_of_line") << site.place;
    EXPECT_EQ(site.counters.flushes, 1U);
    EXPECT_EQ(site.counters.fences, 1U);
    lines.insert(site.line);
  }
  EXPECT_EQ(lines.size(), 2U);
}

// Whatever it is called: in code that is not ours.
TEST(ModelSink, KnowsAFunctionThatOnlyFlushesByWhatItDoes) {
  using perdure::lab::Code;
  PersistentSlots slots;
  ModelSink sink(builtin_profile("optane-100"));
  perdure::lab::install(&sink);
  as_operation("insert", 16, [&] { insert_by_own_functions(*slots, 3, 1); });
  perdure::lab::install(nullptr);
  for (const Code code : {Code::kOurs, Code::kForeign}) {
    perdure::lab::AmpResult result;
    perdure::lab::collect(sink.report(), result, code);
    std::set<std::string> functions;
    std::set<unsigned> lines;
    for (const perdure::lab::AmpSite& site : result.sites) {
      if (site.counters.flushes == 0) continue;
      functions.insert(site.function);
      lines.insert(site.line);
    }
    EXPECT_EQ(functions,
              std::set<std::string>{code == Code::kOurs ? "make_safe"
                                                        : "seam_test::insert_by_own_functions"});
    EXPECT_EQ(lines.size(), code == Code::kOurs ? 1U : 2U);
  }
}

// Where the system puts persistent memory, DRAM and stacks makes no difference.
TEST(ModelSink, CountsDoNotDependOnAddresses) {
  constexpr size_t kWords = 40'000;
  const auto run = [] {
    PersistentSlots slots;
    Mapped<uint64_t> words(kWords);
    return report_of([&] {
      perdure::lab::run_in_own_thread([&] {
        for (uint64_t i = 0; i < 60; ++i) {
          as_operation("insert", 16, [&] {
            insert(*slots, i, i);
            work_in_dram(words.get(), kWords);
          });
        }
      });
    });
  };
  const json first = run();
  const Mapped<uint64_t> in_the_way(3 * kWords);
  EXPECT_EQ(first, run());
  EXPECT_GT(first["operations"]["insert"]["dram_misses"], 0);
}

// A region that ends and comes again under its name is the same memory; others are not.
TEST(ModelSink, KnowsARegionByItsName) {
  Mapped<Slots> slots;
  Mapped<Slots> others;
  const auto use = [](Mapped<Slots>& memory, const char* name) {
    perdure_lab_region(memory.get(), memory.bytes(), name);
    as_operation("lookup", 0, [&] { lookup(*memory.get(), 1); });
    perdure_lab_region_end(memory.get());
  };
  const json report = report_of([&] {
    use(slots, "one");
    use(slots, "one");
    use(others, "two");
  });
  EXPECT_EQ(report["regions"], json({"one", "two"}));
  EXPECT_EQ(report["operations"]["lookup"]["pm_read_misses"], 2);
}

TEST(LabInterface, ReadsAndResetsCounters) {
  double value = -1;
  EXPECT_EQ(perdure_lab_counter("insert", "flushes", &value), -1);
  PersistentSlots slots;
  ModelSink sink(builtin_profile("optane-100"));
  perdure::lab::install(&sink);
  as_operation("insert", 16, [&] { insert(*slots, 3, 1); });
  EXPECT_EQ(perdure_lab_counter("insert", "flushes", &value), 0);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(perdure_lab_counter("", "wpq_inserts", &value), 0);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(perdure_lab_counter(nullptr, "payload_bytes", &value), 0);
  EXPECT_EQ(value, 16);
  EXPECT_EQ(perdure_lab_counter("insert", "no such counter", &value), -1);
  EXPECT_EQ(perdure_lab_counter("no such type", "flushes", &value), -1);
  perdure_lab_reset();
  EXPECT_EQ(perdure_lab_counter("insert", "flushes", &value), 0);
  EXPECT_EQ(value, 0);
  perdure::lab::install(nullptr);
}

TEST(OwnThread, HandsOnWhatItsWorkThrows) {
  const auto fail = [] { throw perdure::Error(perdure::ErrorCode::kPoolFull, "full"); };
  EXPECT_THROW(perdure::lab::run_in_own_thread(fail), perdure::Error);
}

}  // namespace
}  // namespace seam_test
