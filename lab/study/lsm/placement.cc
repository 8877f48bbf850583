// LevelDB in a pool: groups of writes, and what of it is worth DRAM.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "common/permutation.h"
#include "lab/bench/peers.h"
#include "lab/study/lsm/parts.h"
#include "lab/study/lsm/placed_db.h"
#include "lab/study/study_folder.h"

namespace perdure::lab::study::lsm {
namespace {

using Clock = std::chrono::steady_clock;
using Cache = PlacedDbOptions::Cache;

OpenPlacedDb* find_leveldb() {
  return reinterpret_cast<OpenPlacedDb*>(
      find_in_peer("leveldb", kOpenPlacedDbSymbol, "LevelDB in a pool"));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

uint64_t record_bytes(const LsmStudyOptions& options) { return 16 + options.value_bytes; }

PlacedDbOptions db_options(const Course& course) {
  const LsmStudyOptions& options = course.options;
  return {.path = course.folder + "/placed.pool",
          // The records, those that a compaction has just written, and what updates leave behind.
          .pool_bytes = (uint64_t{512} << 20) + 6 * options.level_records * record_bytes(options),
          .value_bytes = options.value_bytes};
}

// A record, of which a fifth gets four fifths of the accesses if they are skewed.
class Draw {
 public:
  Draw(const LsmStudyOptions& options, bool skewed)
      : records_(options.level_records),
        hot_(skewed ? std::max<uint64_t>(1, records_ / 5) : records_),
        places_(records_, options.seed),
        word_(options.seed) {}

  uint64_t random() { return word_ = mix_word(word_ + ++drawn_); }
  uint64_t record() {
    const uint64_t word = random();
    const bool is_hot = hot_ == records_ || word % 5 != 0;
    const uint64_t rank = is_hot ? (word >> 8) % hot_ : hot_ + (word >> 8) % (records_ - hot_);
    return places_.at(rank);
  }

 private:
  uint64_t records_;
  uint64_t hot_;
  Permutation places_;
  uint64_t word_;
  uint64_t drawn_ = 0;
};

// Inserts for so long, in groups. A record's latency is from when it was put into its group until
// the group is durable.
json insert_groups(const Course& course, PlacedDb& db, uint64_t group) {
  std::vector<Clock::time_point> arrived(group);
  double sum = 0;
  double sum_of_squares = 0;
  uint64_t count = 0;
  Draw draw(course.options, false);
  const Clock::time_point begin = Clock::now();
  while (seconds_since(begin) < course.options.seconds && !course.stop) {
    for (uint64_t i = 0; i < group; ++i) {
      arrived[i] = Clock::now();
      db.put(draw.record());
    }
    db.commit();
    const Clock::time_point end = Clock::now();
    for (const Clock::time_point at : arrived) {
      const double us = std::chrono::duration<double, std::micro>(end - at).count();
      sum += us;
      sum_of_squares += us * us;
    }
    count += group;
  }
  const double all = static_cast<double>(std::max<uint64_t>(count, 1));
  const double mean = sum / all;
  return {{"group", group},
          {"records", count},
          {"per_s", static_cast<double>(count) / seconds_since(begin)},
          {"latency_us_mean", mean},
          {"latency_us_deviation", std::sqrt(std::max(0.0, sum_of_squares / all - mean * mean))}};
}

// What of the database is in DRAM. Percentages are of the bytes of all records.
struct Step {
  const char* name;
  bool footers;
  bool index;
  Cache cache;
  double percent;
};
constexpr std::array<Step, 8> kSteps = {{{"none", false, false, Cache::kNone, 0},
                                         {"footers", true, false, Cache::kNone, 0},
                                         {"index blocks", true, true, Cache::kNone, 0},
                                         {"1 %, LRU", true, true, Cache::kLru, 1},
                                         {"10 %, LRU", true, true, Cache::kLru, 10},
                                         {"1 %, 2Q", true, true, Cache::kTwoQueue, 1},
                                         {"10 %, 2Q", true, true, Cache::kTwoQueue, 10},
                                         {"all", true, true, Cache::kLru, 300}}};

std::unique_ptr<PlacedDb> open_step(const Course& course, OpenPlacedDb* open, const Step& step,
                                    double times) {
  PlacedDbOptions db = db_options(course);
  db.all_footers = step.footers;
  db.index_in_dram = step.index;
  db.cache = step.cache;
  db.cache_bytes = static_cast<uint64_t>(
      static_cast<double>(course.options.level_records * record_bytes(course.options)) *
      step.percent / 100);
  db.added_ns = (times - 1) * course.options.dram_ns;
  return std::unique_ptr<PlacedDb>(open(db));
}

// A database for all steps.
void load_once(const Course& course, OpenPlacedDb* open, const char* part) {
  course.tell(fmt::format("{}, load", part), 0);
  std::filesystem::remove(db_options(course).path);
  std::unique_ptr<PlacedDb>(open(db_options(course)))->load(course.options.level_records);
}

// Operations in a second; updates are written in groups.
double run_mix(const Course& course, PlacedDb& db, Draw& draw, double seconds,
               unsigned update_percent, uint64_t group) {
  uint64_t done = 0;
  uint64_t waiting = 0;
  const Clock::time_point begin = Clock::now();
  while (seconds_since(begin) < seconds && !course.stop) {
    for (unsigned i = 0; i < 100; ++i, ++done) {
      if ((draw.random() >> 32) % 100 >= update_percent) {
        db.read(draw.record());
        continue;
      }
      db.put(draw.record());
      if (++waiting == group) {
        db.commit();
        waiting = 0;
      }
    }
  }
  if (waiting > 0) db.commit();
  return static_cast<double>(done) / seconds_since(begin);
}

// Reads until the cache has what it can hold.
void warm_up(const Course& course, PlacedDb& db, Draw& draw) {
  const uint64_t reads = course.options.level_records;
  for (uint64_t i = 0; i < reads && !course.stop; ++i) db.read(draw.record());
}

}  // namespace

json measure_groups(const Course& course) {
  OpenPlacedDb* open = find_leveldb();
  const StudyFolder disk(course.options.disk_folder);
  struct Medium {
    const char* name;
    std::string path;
    bool in_pool;
  };
  const std::array<Medium, 3> media = {{{"pool", course.folder + "/groups.pool", true},
                                        {"files", course.folder + "/groups", false},
                                        {"files on disk", disk.path() + "/groups", false}}};
  json results = json::array();
  for (const Medium& medium : media) {
    for (const uint64_t group : {1, 10, 100, 1000, 10000}) {
      if (course.stop) return results;
      course.tell(fmt::format("groups of {}, {}", group, medium.name), 0);
      PlacedDbOptions db = db_options(course);
      db.path = medium.path;
      db.in_pool = medium.in_pool;
      json result = insert_groups(course, *std::unique_ptr<PlacedDb>(open(db)), group);
      result["medium"] = medium.name;
      results.push_back(std::move(result));
      std::filesystem::remove_all(medium.path);
    }
  }
  return results;
}

json measure_reads(const Course& course) {
  OpenPlacedDb* open = find_leveldb();
  load_once(course, open, "reads");
  json results = json::array();
  for (const double times : course.options.pm_times) {
    for (const bool skewed : {false, true}) {
      for (const Step& step : kSteps) {
        if (course.stop) return results;
        course.tell(fmt::format("reads, {}, {} in DRAM", skewed ? "80/20" : "uniform", step.name),
                    0);
        const std::unique_ptr<PlacedDb> db = open_step(course, open, step, times);
        Draw draw(course.options, skewed);
        if (step.cache != Cache::kNone) warm_up(course, *db, draw);
        const double per_s = run_mix(course, *db, draw, course.options.seconds, 0, 1);
        results.push_back({{"pm_times", times},
                           {"reads", skewed ? "80/20" : "uniform"},
                           {"in_dram", step.name},
                           {"dram_bytes", db->dram_bytes()},
                           {"per_s", per_s}});
      }
    }
  }
  return results;
}

json measure_mixes(const Course& course) {
  OpenPlacedDb* open = find_leveldb();
  constexpr std::array<Step, 4> kMixSteps = {{{"none", false, false, Cache::kNone, 0},
                                              {"groups of 10", false, false, Cache::kNone, 0},
                                              {"index blocks", true, true, Cache::kNone, 0},
                                              {"10 %, 2Q", true, true, Cache::kTwoQueue, 10}}};
  json results = json::array();
  for (const unsigned percent : {25U, 50U}) {
    load_once(course, open, "mixes");
    for (const double times : course.options.pm_times) {
      for (size_t i = 0; i < kMixSteps.size(); ++i) {
        if (course.stop) return results;
        const Step& step = kMixSteps[i];
        course.tell(fmt::format("mixes, {} % updates, {}", percent, step.name), 0);
        const std::unique_ptr<PlacedDb> db = open_step(course, open, step, times);
        Draw draw(course.options, true);
        if (step.cache != Cache::kNone) warm_up(course, *db, draw);
        const double per_s =
            run_mix(course, *db, draw, course.options.seconds, percent, i == 0 ? 1 : 10);
        results.push_back({{"pm_times", times},
                           {"updates_percent", percent},
                           {"in_dram", step.name},
                           {"dram_bytes", db->dram_bytes()},
                           {"per_s", per_s}});
      }
    }
  }
  return results;
}

}  // namespace perdure::lab::study::lsm
