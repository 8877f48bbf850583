#include "lab/study/serving/serving.h"

#include <fmt/core.h>

#include <algorithm>

#include "lab/bench/report.h"
#include "lab/serve/server_bench.h"
#include "lab/study/once.h"
#include "lab/study/serving/published.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

constexpr uint64_t kServingKeyBytes = 24;
constexpr const char* kServingPrefix = "user";

struct ServingPart {
  const char* name;
  uint64_t value_bytes;
  bool scans;
};
constexpr ServingPart kServingParts[] = {
    {"100", 100, false}, {"1000", 1000, false}, {"scans", 100, true}};

const ServingPart& find_part(const std::string& name) {
  for (const ServingPart& part : kServingParts) {
    if (part.name == name) return part;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no part of the study: choose from 100, 1000, scans", name));
}

std::vector<Workload> workloads_of(const ServingPart& part, const ServingStudyOptions& options) {
  const Distribution distribution = Distribution::parse(options.distribution);
  std::vector<Workload> workloads;
  if (part.scans) {
    for (const uint32_t length : {100U, 300U, 1000U}) {
      workloads.push_back({.name = fmt::format("scans of {}", length),
                           .mix = Mix::parse("scan"),
                           .distribution = distribution,
                           .scan_length = {length, length}});
    }
    return workloads;
  }
  constexpr std::pair<const char*, const char*> kMixes[] = {{"read-heavy", "lookup=.9,update=.1"},
                                                            {"balanced", "lookup=.5,update=.5"},
                                                            {"write-heavy", "lookup=.1,update=.9"}};
  for (const auto& [name, mix] : kMixes) {
    workloads.push_back({.name = name, .mix = Mix::parse(mix), .distribution = distribution});
  }
  return workloads;
}

BenchOptions bench_options_of(const ServingPart& part, const ServingStudyOptions& options) {
  BenchOptions bench;
  bench.server = options.server;
  bench.server.servers = options.servers;
  if (part.scans) {
    bench.server.rates = {OfferedRate{}};
    std::erase_if(bench.server.servers, [](const std::string& name) {
      return name.find("memcached") != std::string::npos || name.ends_with(":hash") ||
             name.ends_with(":pm");
    });
  }
  bench.workloads = workloads_of(part, options);
  bench.key_kind = bench.value_kind = Kind::kBytes;
  bench.key_bytes = kServingKeyBytes;
  bench.key_prefix = kServingPrefix;
  bench.value_bytes = part.value_bytes;
  bench.records = options.records;
  bench.operations = options.operations;
  bench.time_limit_s = options.time_limit_s;
  bench.repeats = options.repeats;
  bench.seed = options.seed;
  bench.folder = options.folder;
  return bench;
}

// Memory of its own, and, of ours, the pool, in DRAM and in persistent memory at these prices.
// Files of other servers lie on a disk, which is not counted.
json cost_json(const json& load, const ServingPart& part, const ServingStudyOptions& options) {
  const std::string name = load.at("structure");
  const auto dram_bytes = load.at("dram_bytes").get<double>();
  const double pm_bytes = name.starts_with("perdure") ? load.at("pool_bytes").get<double>() : 0;
  constexpr double kGiB = 1 << 30;
  return {{"structure", name},
          {"value_bytes", part.value_bytes},
          {"records", load.at("records")},
          {"raw_bytes", load.at("raw_bytes")},
          {"dram_bytes", dram_bytes},
          {"pm_bytes", pm_bytes},
          {"cost", dram_bytes / kGiB * options.dram_price + pm_bytes / kGiB * options.pm_price}};
}

json published_costs_json() {
  json costs = json::array();
  for (const PublishedCost& each : published_costs()) {
    costs.push_back({{"structure", each.system},
                     {"dollars_100_bytes", each.small_dollars},
                     {"dollars_1000_bytes", each.large_dollars}});
  }
  return {{"source", kServingSource}, {"conditions", kServingConditions}, {"costs", costs}};
}

void add_part(const ServingPart& part, const ServingStudyOptions& options, const json& report,
              json& study) {
  if (study.is_null()) {
    study = report;
    study["results"] = json::array();
    study["notes"] = json::array();
    study["costs"] = json::array();
    study["elapsed_s"] = 0.0;
    study["parameters"]["value_bytes"] = json::array();
    study["parameters"]["workloads"] = json::array();
    study["parameters"]["parts"] = options.parts;
  }
  study["elapsed_s"] = study["elapsed_s"].get<double>() + report.at("elapsed_s").get<double>();
  study["interrupted"] = report.at("interrupted");
  study["parameters"]["value_bytes"].push_back(part.value_bytes);
  for (const json& workload : report.at("parameters").at("workloads")) {
    study["parameters"]["workloads"].push_back(workload);
  }
  for (const json& note : report.at("notes")) {
    if (std::ranges::find(study["notes"], note) == study["notes"].end())
      study["notes"].push_back(note);
  }
  for (json result : report.at("results")) {
    if (result.at("operation") == "load") {
      study["costs"].push_back(cost_json(result, part, options));
    }
    const std::string label = fmt::format("values of {} bytes, ", part.value_bytes);
    result["operation"] = label + result.at("operation").get<std::string>();
    result["served"]["workload"] = label + result.at("served").at("workload").get<std::string>();
    result["value_bytes"] = part.value_bytes;
    result["windows"] = nullptr;  // of so short phases they say little
    study["results"].push_back(std::move(result));
  }
}

}  // namespace

nlohmann::json run_serving_study(const ServingStudyOptions& options, const ProgressSink& progress,
                                 const std::atomic<bool>& stop) {
  require_once(options.servers, [](const std::string& name) { return name; });
  require_once(options.parts, [](const std::string& name) { return name; });
  for (const std::string& name : options.parts) find_part(name);  // before any work
  if (!(options.dram_price >= 0) || !(options.pm_price >= 0)) {
    throw Error(ErrorCode::kInvalidArgument, "prices are from 0 on");
  }
  json study;
  for (const std::string& name : options.parts) {
    const ServingPart& part = find_part(name);
    const BenchOptions bench = bench_options_of(part, options);
    if (stop || bench.server.servers.empty()) continue;
    add_part(part, options, to_json(serve::run_server_bench(bench, progress, stop)), study);
  }
  if (study.is_null()) {
    throw Error(ErrorCode::kInvalidArgument, "none of the servers has any of these parts");
  }
  study["schema"] = "perdure-study-serving-1";
  study["parameters"]["structures"] = options.servers;
  study["prices"] = {{"dram_gib", options.dram_price}, {"pm_gib", options.pm_price}};
  study["published"] = published_costs_json();
  return study;
}

}  // namespace perdure::lab::study
