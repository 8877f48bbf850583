#include "lab/study/lsm/lsm.h"

#include <algorithm>
#include <array>

#include "lab/bench/report.h"
#include "lab/machine.h"
#include "lab/study/lsm/parts.h"
#include "lab/study/study_folder.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace lsm {
namespace {

struct Part {
  const char* name;
  json (*measure)(const Course& course);
};
constexpr std::array<Part, 5> kParts = {{{"groups", measure_groups},
                                         {"reads", measure_reads},
                                         {"mixes", measure_mixes},
                                         {"cost", measure_cost},
                                         {"restart", measure_restarts}}};

void require_sound_options(const LsmStudyOptions& options) {
  const auto require = [](bool sound, const std::string& what) {
    if (!sound) throw Error(ErrorCode::kInvalidArgument, what);
  };
  for (const std::string& part : options.parts) {
    require(std::ranges::any_of(kParts, [&](const Part& each) { return part == each.name; }),
            "there is no part '" + part + "': they are groups, reads, mixes, cost, restart");
  }
  require(!options.parts.empty(), "the study needs a part");
  require(options.level_records >= 1000, "LevelDB needs 1,000 records at least");
  require(options.seconds >= 0.01 && options.dram_ns >= 0 && options.dram_ns <= 1e6,
          "each figure takes 0.01 s at least, and DRAM's latency is from 0 to 1,000,000 ns");
  for (const double times : options.pm_times)
    require(times >= 1 && times <= 100, "persistent memory's latency is 1 to 100 times DRAM's");
  require(!options.pm_times.empty(), "the study needs a latency of persistent memory");
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
}  // namespace lsm

nlohmann::json run_lsm_study(const LsmStudyOptions& options, const ProgressSink& progress,
                             const std::atomic<bool>& stop) {
  lsm::require_sound_options(options);
  const StudyFolder folder(options.folder);
  const lsm::Course course{options, folder.path(), progress, stop};
  nlohmann::json study = {
      {"schema", "perdure-study-lsm-2"},
      {"machine", to_json(describe_machine())},
      {"parameters",
       {{"parts", options.parts},
        {"level_records", options.level_records},
        {"seconds", options.seconds},
        {"pm_times", options.pm_times},
        {"dram_ns", options.dram_ns},
        {"disk_folder", options.disk_folder},
        {"records", options.records},
        {"key_bytes", 8},
        {"value_bytes", options.value_bytes},
        {"raw_bytes", options.records * (8 + options.value_bytes)},
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
       {{"source", "L. Lersch, dissertation, TU Dresden, 2020, chapter 3"},
        {"conditions",
         "LevelDB 1.19, records of 16 + 112 bytes in emulated persistent memory of 360 ns, 4 "
         "times DRAM's; RocksDB 6.2.2, 1 billion records of 8 + 100 bytes on an SSD DC P3700, "
         "one thread; 10 GB of DRAM, or 2 GB and 17 GB of Optane DC memory"},
        {"dram_to_peak_s", 280},
        {"pm_to_peak_s", 15}}}};
  for (const lsm::Part& part : lsm::kParts) {
    if (std::ranges::find(options.parts, part.name) == options.parts.end() || stop) continue;
    study["results"][part.name] = part.measure(course);
  }
  study["interrupted"] = stop.load();
  return study;
}

}  // namespace perdure::lab::study
