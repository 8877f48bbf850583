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
#include "lab/study/lsm/cached_db.h"
#include "lab/study/lsm/parts.h"
#include "lab/study/windows.h"
#include "perdure/error.h"

namespace perdure::lab::study::lsm {
namespace {

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

OpenCachedDb* find_rocksdb() {
  return reinterpret_cast<OpenCachedDb*>(
      find_in_peer("rocksdb", kOpenCachedDbSymbol, "RocksDB with its caches"));
}

// For each cache of the same price: its name, and its database.
std::vector<std::pair<std::string, CachedDbOptions>> caches_of(const Course& course) {
  const LsmStudyOptions& options = course.options;
  const auto raw = static_cast<double>(options.records * (8 + options.value_bytes));
  const auto share = [&](double percent) { return static_cast<uint64_t>(raw * percent / 100); };
  CachedDbOptions db{.folder = course.folder,
                     .records = options.records,
                     .value_bytes = options.value_bytes,
                     .latency_ns = static_cast<uint64_t>(options.latency_us * 1000),
                     .dram_bytes = share(options.dram_percent),
                     .in_dram = options.in_dram};
  CachedDbOptions beside = db;
  beside.dram_bytes = share(options.dram_beside_percent);
  beside.pm_bytes = std::max(share(options.pm_percent), uint64_t{1} << 20);
  return {{"DRAM", db}, {"DRAM by 2Q, persistent memory", beside}};
}

}  // namespace

json measure_restarts(const Course& course) {
  OpenCachedDb* open = find_rocksdb();
  json results = json::array();
  for (unsigned repeat = 0; repeat < course.options.repeats; ++repeat) {
    for (const auto& [name, db] : caches_of(course)) {
      if (course.stop) return results;
      results.push_back(
          measure(name, db, course.options, open, repeat, course.progress, course.stop));
    }
  }
  return results;
}

json measure_cost(const Course& course) {
  OpenCachedDb* open = find_rocksdb();
  json results = json::array();
  for (unsigned repeat = 0; repeat < course.options.repeats; ++repeat) {
    for (const unsigned threads : {1U, 2U}) {
      for (const auto& [name, options] : caches_of(course)) {
        if (course.stop) return results;
        LsmStudyOptions readers = course.options;
        readers.threads = threads;
        std::filesystem::remove(options.folder + "/cache.pool");
        course.tell(fmt::format("cost, {}, {} threads", name, threads), 0);
        const std::unique_ptr<CachedDb> db(open(options));
        const std::vector<Window> windows = read_for(
            *db, readers, readers.before_s, Clock::now(), readers.seed + repeat, [](double) {},
            course.stop);
        const size_t quarter = windows.size() - windows.size() / 4;
        const auto mean = [&](double Window::* figure) {
          return mean_of(windows, quarter, windows.size(), figure);
        };
        results.push_back({{"cache", name},
                           {"threads", threads},
                           {"repeat", repeat},
                           {"dram_bytes", options.dram_bytes},
                           {"pm_bytes", options.pm_bytes},
                           {"peak_per_s", mean(&Window::per_s)},
                           {"medium_reads_per_operation", mean(&Window::medium_reads)}});
      }
    }
  }
  return results;
}

}  // namespace perdure::lab::study::lsm
