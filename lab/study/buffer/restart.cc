// Throughput through a crash: our restart, and two that know nothing of pages in PM.
#include <algorithm>
#include <array>
#include <vector>

#include "lab/study/buffer/ycsb.h"

namespace perdure::lab::study::buffer_pool {
namespace {

// All have the same memory. What has no frames in PM keeps its log there alone. Options of the
// database do it all: ARIES-like is to mend all pages before the first transaction, instant restart
// is to mend them when they are asked for.
struct RestartVariant {
  const char* option;  // among BufferStudyOptions::restarts
  const char* name;
  bool pm_frames;
  bool mend_first;
};
constexpr std::array<RestartVariant, 3> kRestarts = {
    {{"aries", "ARIES-like", false, true},
     {"instant", "instant restart", false, false},
     {"ours", "persistent buffer pool", true, false}}};

json measure_restart(const Course& course, const RestartVariant& variant, uint64_t pages,
                     unsigned repeat) {
  const BufferStudyOptions& options = course.options;
  const double dram_percent = variant.pm_frames ? options.dram_percent : 100;
  const MemoryShare share = share_of(options, pages, dram_percent);
  RunSetup setup = copy_of_loaded(course, share);
  std::vector<Window> before;
  double peak = 0;
  double reads = 0;
  {
    course.tell(std::string(variant.name) + ", before the crash", -1);
    const auto run = warm_run(course, setup, options.seed + uint64_t{2} * repeat, options.mix);
    before = run->watch(course, options.before_s / 2, DatabaseRun::From::kNow);
    run->kill();
    const size_t half = before.size() / 2;
    peak = mean_of(before, half, before.size(), &Window::per_s);
    reads = mean_of(before, half, before.size(), &Window::medium_reads);
  }
  setup.mend_first = variant.mend_first;
  setup.database.pm_bytes = 0;  // as it was: the pages in PM are kept
  DatabaseRun run(options, setup, ycsb(options, options.seed + uint64_t{2} * repeat + 1, false));
  run.gauge().read_percent = read_percent_of(options.mix);
  course.tell(std::string(variant.name) + ", after the crash", -1);
  const std::vector<Window> after = run.watch(course, options.after_s, DatabaseRun::From::kBegin);
  json result = return_of(options, run, after, peak);
  const double offset = before.empty() ? 0 : before.back().begin_s + options.window_s;
  for (Window& each : before) each.begin_s -= offset;
  result.update({{"restart", variant.name},
                 {"repeat", repeat},
                 {"dram_bytes", share.dram_bytes},
                 {"pm_bytes", share.pm_bytes},
                 {"peak_per_s", peak},
                 {"medium_reads_per_operation", reads},
                 {"before", windows_json(before)},
                 {"after", windows_json(after)}});
  return result;
}

}  // namespace

json measure_restarts(const Course& course) {
  json results = json::array();
  const uint64_t pages = load_records(course);
  for (unsigned repeat = 0; repeat < course.options.repeats; ++repeat) {
    for (const RestartVariant& variant : kRestarts) {
      if (course.stop) return results;
      if (std::ranges::find(course.options.restarts, variant.option) ==
          course.options.restarts.end()) {
        continue;
      }
      results.push_back(measure_restart(course, variant, pages, repeat));
    }
  }
  return results;
}

// The same memory, of DRAM and PM in several shares.
json measure_dram_shares(const Course& course) {
  const BufferStudyOptions& options = course.options;
  constexpr std::array<const char*, 3> kMixes = {"c", "b", "a"};
  json results = json::array();
  const uint64_t pages = load_records(course);
  for (unsigned repeat = 0; repeat < options.repeats; ++repeat) {
    for (const double percent : options.dram_percents) {
      if (course.stop) return results;
      const MemoryShare share = share_of(options, pages, percent);
      RunSetup setup = copy_of_loaded(course, share);
      const uint64_t seed = options.seed + 100 + uint64_t{2} * repeat;
      json rates;
      double peak = 0;
      {
        course.tell("shares of DRAM", percent / 100);
        const auto run = warm_run(course, setup, seed, "a");
        for (const char* mix : kMixes) {
          run->gauge().read_percent = read_percent_of(mix);
          run->watch(course, options.seconds / 2, DatabaseRun::From::kNow);
          const std::vector<Window> windows =
              run->watch(course, options.seconds, DatabaseRun::From::kNow);
          peak = mean_of(windows, 0, windows.size(), &Window::per_s);
          rates[mix] = peak;
        }
        run->kill();
      }
      setup.database.pm_bytes = 0;
      DatabaseRun run(options, setup, ycsb(options, seed + 1, false));
      run.gauge().read_percent = read_percent_of("a");
      const std::vector<Window> after =
          run.watch(course, options.after_s / 2, DatabaseRun::From::kBegin);
      json result = return_of(options, run, after, peak);
      constexpr double kGib = uint64_t{1} << 30;
      const double cost = static_cast<double>(share.dram_bytes) / kGib * options.dram_price +
                          static_cast<double>(share.pm_bytes) / kGib * options.pm_price;
      result.update({{"dram_percent", percent},
                     {"repeat", repeat},
                     {"dram_bytes", share.dram_bytes},
                     {"pm_bytes", share.pm_bytes},
                     {"cost", cost},
                     {"per_s", rates}});
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace perdure::lab::study::buffer_pool
