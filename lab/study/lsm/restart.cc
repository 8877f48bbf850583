#include "lab/study/lsm/restart.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "common/permutation.h"
#include "lab/bench/distribution.h"
#include "lab/bench/peers.h"
#include "lab/bench/report.h"
#include "lab/machine.h"
#include "lab/study/lsm/cached_db.h"
#include "lab/study/study_folder.h"
#include "lab/study/windows.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Records that lie side by side are asked for alike: about those of a block.
constexpr uint64_t kGroup = 32;

struct alignas(64) Count {
  std::atomic<uint64_t> operations{0};
};

// Reads with all threads from `begin` on for so long, and tells of each window.
std::vector<Window> read_for(CachedDb& db, const LsmStudyOptions& options, double seconds,
                             Clock::time_point begin, uint64_t seed,
                             const std::function<void(double)>& tell,
                             const std::atomic<bool>& stop) {
  const uint64_t groups = std::max<uint64_t>(1, options.records / kGroup);
  const auto hot = std::clamp<uint64_t>(
      static_cast<uint64_t>(static_cast<double>(groups) * options.skew), 1, groups - 1);
  const RankSampler ranks({Distribution::Kind::kSelfSimilar, options.skew}, groups);
  const auto draw = [&](uint64_t word) {
    if (options.self_similar) return ranks.draw(word);
    const bool is_hot = static_cast<double>(word >> 11) * 0x1p-53 >= options.skew;
    const uint64_t random = mix_word(~word);
    return is_hot ? random % hot : hot + random % (groups - hot);
  };
  const Permutation places(groups, options.seed);
  std::vector<Count> counts(options.threads);
  std::vector<std::exception_ptr> failures(options.threads);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < options.threads; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        uint64_t word = mix_word(seed * 1000 + thread);
        for (uint64_t i = 0; !over.load(std::memory_order_relaxed); ++i) {
          word = mix_word(word + i);
          const uint64_t group = places.at(draw(word));
          db.read(std::min(group * kGroup + mix_word(word) % kGroup, options.records - 1));
          counts[thread].operations.store(i + 1, std::memory_order_relaxed);
        }
      } catch (...) {
        failures[thread] = std::current_exception();
      }
    });
  }
  std::vector<Window> windows;
  uint64_t operations = 0;
  uint64_t medium_reads = db.counters().medium_reads;
  const auto since = [&begin] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  for (double last = since(); last < seconds && !stop;) {
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(last + options.window_s)));
    const double now = since();
    uint64_t sum = 0;
    for (const Count& each : counts) sum += each.operations.load(std::memory_order_relaxed);
    const uint64_t reads = db.counters().medium_reads;
    const auto done = static_cast<double>(sum - operations);
    windows.push_back({last, done / (now - last),
                       done > 0 ? static_cast<double>(reads - medium_reads) / done : 0});
    operations = sum;
    medium_reads = reads;
    last = now;
    tell(now);
  }
  over = true;
  for (std::thread& each : threads) each.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return windows;
}

// One cache, before and after a restart.
json measure(const std::string& name, const CachedDbOptions& db_options,
             const LsmStudyOptions& options, OpenCachedDb* open, unsigned repeat,
             const ProgressSink& progress, const std::atomic<bool>& stop) {
  const auto tell = [&](const char* phase, double all) {
    return [&progress, phase, all, &name](double seconds) {
      if (progress) {
        progress({.phase = fmt::format("{}, {}", name, phase),
                  .items = 0,
                  .fraction = std::min(1.0, seconds / all),
                  .detail = {}});
      }
    };
  };
  // What an earlier run of this cache has left is gone.
  std::filesystem::remove(db_options.folder + "/cache.pool");
  tell("load", 1)(0);
  std::unique_ptr<CachedDb> db(open(db_options));
  const std::vector<Window> before =
      read_for(*db, options, options.before_s, Clock::now(), options.seed + uint64_t{2} * repeat,
               tell("before", options.before_s), stop);
  const CachedDb::Counters at_peak = db->counters();
  db.reset();  // with all its DRAM
  const Clock::time_point restart = Clock::now();
  db.reset(open(db_options));
  const double opening_s = std::chrono::duration<double>(Clock::now() - restart).count();
  const std::vector<Window> after =
      read_for(*db, options, options.after_s, restart, options.seed + uint64_t{2} * repeat + 1,
               tell("after the restart", options.after_s), stop);
  const CachedDb::Counters at_end = db->counters();

  const size_t stretch =
      std::max<size_t>(1, static_cast<size_t>(std::lround(options.sustained_s / options.window_s)));
  const size_t quarter = before.size() - before.size() / 4;
  const double peak = mean_of(before, quarter, before.size(), &Window::per_s);
  const double reads = mean_of(before, quarter, before.size(), &Window::medium_reads);
  const double first =
      after.empty() ? 0 : mean_of(after, 0, std::min(stretch, after.size()), &Window::per_s);
  return {
      {"cache", name},
      {"repeat", repeat},
      {"dram_bytes", db_options.dram_bytes},
      {"pm_bytes", db_options.pm_bytes},
      {"peak_per_s", peak},
      {"medium_reads_per_operation", reads},
      {"medium_read_ns", at_end.medium_reads == 0 ? 0 : at_end.medium_ns / at_end.medium_reads},
      {"opening_s", opening_s},
      {"first_per_s", first},
      {"to_95_percent_s", or_null(first_time(after, stretch, &Window::per_s, 0.95 * peak, true))},
      {"to_105_percent_of_reads_s",
       or_null(first_time(after, stretch, &Window::medium_reads, 1.05 * reads, false))},
      {"pm_blocks", at_peak.pm_blocks},
      {"pm_recovered", at_end.pm_recovered},
      {"pm_opening_ns", at_end.pm_opening_ns},
      {"pm_index_dram_bytes", at_end.pm_dram_bytes},
      {"before", windows_json(before)},
      {"after", windows_json(after)}};
}

void require_sound(const LsmStudyOptions& options) {
  const auto require = [](bool sound, const char* what) {
    if (!sound) throw Error(ErrorCode::kInvalidArgument, what);
  };
  require(options.records >= 10'000, "the study needs 10,000 records at least");
  require(options.value_bytes >= 1 && options.value_bytes <= 1 << 20,
          "values have 1 byte to 1 MiB");
  require(options.latency_us >= 0 && options.latency_us <= 1e6,
          "the latency is from 0 to 1,000,000 us");
  for (const double percent :
       {options.dram_percent, options.dram_beside_percent, options.pm_percent}) {
    require(percent > 0 && percent <= 200, "caches have above 0 to 200 percent of the records");
  }
  require(options.window_s >= 0.001 && options.sustained_s >= options.window_s &&
              options.before_s >= 8 * options.window_s &&
              options.after_s >= 2 * options.sustained_s,
          "the times are too short for the windows");
  require(options.skew > 0 && options.skew <= 0.5, "the skew is above 0 and up to 0.5");
  require(options.threads >= 1 && options.threads <= 256, "there are 1 to 256 threads");
  require(options.repeats >= 1, "there is 1 repeat at least");
}

}  // namespace

json run_lsm_study(const LsmStudyOptions& options, const ProgressSink& progress,
                   const std::atomic<bool>& stop) {
  require_sound(options);
  auto* open = reinterpret_cast<OpenCachedDb*>(
      find_in_peer("rocksdb", kOpenCachedDbSymbol, "RocksDB with its caches"));
  const StudyFolder folder(options.folder);
  const auto raw = static_cast<double>(options.records * (8 + options.value_bytes));
  const auto share = [&](double percent) { return static_cast<uint64_t>(raw * percent / 100); };
  CachedDbOptions db{.folder = folder.path(),
                     .records = options.records,
                     .value_bytes = options.value_bytes,
                     .latency_ns = static_cast<uint64_t>(options.latency_us * 1000),
                     .in_dram = options.in_dram};
  json results = json::array();
  for (unsigned repeat = 0; repeat < options.repeats && !stop; ++repeat) {
    db.dram_bytes = share(options.dram_percent);
    db.pm_bytes = 0;
    results.push_back(measure("DRAM", db, options, open, repeat, progress, stop));
    if (stop) break;
    db.dram_bytes = share(options.dram_beside_percent);
    db.pm_bytes = std::max(share(options.pm_percent), uint64_t{1} << 20);
    results.push_back(
        measure("DRAM by 2Q, persistent memory", db, options, open, repeat, progress, stop));
  }
  return {{"schema", "perdure-study-lsm-1"},
          {"machine", to_json(describe_machine())},
          {"parameters",
           {{"records", options.records},
            {"key_bytes", 8},
            {"value_bytes", options.value_bytes},
            {"raw_bytes", static_cast<uint64_t>(raw)},
            {"latency_us", options.latency_us},
            {"dram_percent", options.dram_percent},
            {"dram_beside_percent", options.dram_beside_percent},
            {"pm_percent", options.pm_percent},
            {"before_s", options.before_s},
            {"after_s", options.after_s},
            {"window_s", options.window_s},
            {"sustained_s", options.sustained_s},
            {"skew", options.skew},
            {"self_similar", options.self_similar},
            {"in_dram", options.in_dram},
            {"threads", options.threads},
            {"repeats", options.repeats},
            {"seed", options.seed},
            {"folder", options.folder}}},
          {"published",
           {{"source", "L. Lersch, dissertation, TU Dresden, 2020, chapter 3.5"},
            {"conditions",
             "RocksDB 6.2.2, 1 billion records of 8 + 100 bytes on an SSD DC P3700, one thread; 10 "
             "GB of DRAM, or 2 GB and 17 GB of Optane DC memory"},
            {"dram_to_peak_s", 280},
            {"pm_to_peak_s", 15}}},
          {"interrupted", stop.load()},
          {"results", results}};
}

}  // namespace perdure::lab::study
