#include "lab/study/buffer/buffer_pool.h"

#include <algorithm>
#include <array>

#include "lab/bench/distribution.h"
#include "lab/bench/report.h"
#include "lab/machine.h"
#include "lab/study/buffer/parts.h"
#include "lab/study/buffer/ycsb.h"
#include "lab/study/study_folder.h"

namespace perdure::lab::study {
namespace {

struct BufferPart {
  const char* name;
  nlohmann::json (*measure)(const buffer_pool::Course& course);
};
constexpr std::array<BufferPart, 5> kBufferParts = {{{"updates", buffer_pool::measure_updates},
                                                     {"restart", buffer_pool::measure_restarts},
                                                     {"dram", buffer_pool::measure_dram_shares},
                                                     {"peers", buffer_pool::measure_peers},
                                                     {"kills", buffer_pool::measure_kills}}};

void require_sound_buffer_options(const BufferStudyOptions& options) {
  const auto require = [](bool sound, const std::string& what) {
    if (!sound) throw Error(ErrorCode::kInvalidArgument, what);
  };
  for (const std::string& part : options.parts) {
    require(std::ranges::any_of(kBufferParts,
                                [&](const BufferPart& each) { return part == each.name; }),
            "there is no part '" + part + "': they are updates, restart, dram, peers, kills");
  }
  require(!options.parts.empty(), "the study needs a part");
  require(options.threads >= 1 && options.threads <= 64, "there are 1 to 64 threads");
  require(options.repeats >= 1, "there is 1 repeat at least");
  require(options.records >= 10'000, "the study needs 10,000 records at least");
  require(options.peer_records >= 100, "the study needs 100 records beside others at least");
  require(options.value_bytes >= 8 && options.value_bytes <= 900, "values have 8 to 900 bytes");
  require(options.pages_bytes >= 1 << 20 && options.updates >= 100,
          "updates need 1 MiB of pages and 100 updates at least");
  require(options.pool_percent > 0 && options.pool_percent <= 200,
          "the pool has above 0 and up to 200 percent of the pages");
  std::vector<double> shares = options.dram_percents;
  shares.push_back(options.dram_percent);
  for (const double percent : shares)
    require(percent >= 0 && percent <= 100, "shares of DRAM are 0 to 100 percent");
  require(options.latency_us >= 0 && options.latency_us <= 1e6 && options.write_latency_us >= 0 &&
              options.write_latency_us <= 1e6 && options.pm_ns >= 0 && options.pm_ns <= 1e6,
          "the latencies are from 0 to 1,000,000");
  require(options.window_s >= 0.001 && options.sustained_s >= options.window_s &&
              options.before_s >= 8 * options.window_s &&
              options.after_s >= 4 * options.sustained_s && options.seconds >= options.window_s,
          "the times are too short for the windows");
  require(
      options.tpcc.warehouses >= 1 && options.tpcc.warehouses <= 1000 && options.tpcc.items >= 100,
      "TPC-C has 1 to 1000 warehouses, and 100 items at least");
  require(!options.restarts.empty(), "the study needs a restart");
  for (const std::string& restart : options.restarts) {
    require(restart == "aries" || restart == "instant" || restart == "ours",
            "there is no restart '" + restart + "': they are aries, instant, ours");
  }
  buffer_pool::read_percent_of(options.mix);
  Distribution::parse(options.distribution);
}

}  // namespace

nlohmann::json run_buffer_study(const BufferStudyOptions& options, const ProgressSink& progress,
                                const std::atomic<bool>& stop) {
  require_sound_buffer_options(options);
  const StudyFolder folder(options.folder);
  const buffer_pool::Course course{options, folder.path(), progress, stop};
  nlohmann::json study = {
      {"schema", "perdure-study-buffer-pool-1"},
      {"machine", to_json(describe_machine())},
      {"parameters",
       {{"parts", options.parts},
        {"threads", options.threads},
        {"repeats", options.repeats},
        {"seed", options.seed},
        {"folder", options.folder},
        {"pages_bytes", options.pages_bytes},
        {"updates", options.updates},
        {"records", options.records},
        {"key_bytes", 8},
        {"value_bytes", options.value_bytes},
        {"pool_percent", options.pool_percent},
        {"dram_percent", options.dram_percent},
        {"dram_percents", options.dram_percents},
        {"restarts", options.restarts},
        {"mix", options.mix},
        {"distribution", options.distribution},
        {"log_bytes", options.log_bytes},
        {"latency_us", options.latency_us},
        {"write_latency_us", options.write_latency_us},
        {"pm_ns", options.pm_ns},
        {"medium", options.medium},
        {"before_s", options.before_s},
        {"after_s", options.after_s},
        {"window_s", options.window_s},
        {"sustained_s", options.sustained_s},
        {"seconds", options.seconds},
        {"dram_price_gib", options.dram_price},
        {"pm_price_gib", options.pm_price},
        {"peer_records", options.peer_records},
        {"warehouses", options.tpcc.warehouses},
        {"items", options.tpcc.items},
        {"customers", options.tpcc.customers},
        {"kills", options.kills}}},
      {"published",
       {{"source", "L. Lersch, dissertation, TU Dresden, 2020, chapter 4"},
        {"conditions",
         "updates of random records in 10 GB of Optane DC memory, one thread, 8 checksums; the "
         "rest was sketched, not measured"}}}};
  for (const BufferPart& part : kBufferParts) {
    if (std::ranges::find(options.parts, part.name) == options.parts.end() || stop) continue;
    study["results"][part.name] = part.measure(course);
  }
  study["interrupted"] = stop.load();
  return study;
}

}  // namespace perdure::lab::study
