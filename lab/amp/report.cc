#include "lab/amp/report.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "lab/model/time.h"
#include "perdure/version.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

// What is told for each insert and each lookup at the top of a result.
constexpr std::array kPerOperation = {
    "flushes",       "flushes_clean",    "fences",       "locked",       "wpq_inserts",
    "wpq_flush",     "wpq_nontemporal",  "wpq_eviction", "media_writes", "media_reads",
    "pm_lines_read", "pm_lines_written", "allocations"};

json per_operation(const Counters& counters) {
  json object = to_json(counters);
  const auto operations = static_cast<double>(counters.operations);
  json result = json::object();
  for (const char* name : kPerOperation) {
    result[name] = object.at(name).get<double>() / operations;
  }
  return result;
}

void add_per_operation(json& result, const AmpResult& measured, const char* type) {
  const Counters* counters = measured.find(type);
  const json figures = counters != nullptr ? per_operation(*counters) : json::object();
  for (const char* name : kPerOperation) {
    result[fmt::format("{}_per_{}", name, type)] =
        counters != nullptr ? figures.at(name) : json(nullptr);
  }
}

json sites_json(const std::vector<AmpSite>& sites) {
  json array = json::array();
  for (const AmpSite& site : sites) {
    json object = to_json(site.counters);
    object["file"] = site.file.empty() ? json(nullptr) : json(site.file);
    object["line"] = site.file.empty() ? json(nullptr) : json(site.line);
    object["function"] = site.function.empty() ? json(nullptr) : json(site.function);
    object["place"] = site.place;
    array.push_back(std::move(object));
  }
  return array;
}

json result_json(const AmpReport& report, const AmpResult& measured) {
  const Counters total = measured.total();
  const Counters operations = measured.of_operations();
  json times = json::array();
  for (const uint64_t threads : report.options.threads) {
    times.push_back(to_json(estimate_time(operations, report.profile, {}, threads)));
  }
  json types = json::object();
  for (const auto& [name, counters] : measured.by_type) {
    types[name] = to_json(counters);
    types[name]["per_operation"] =
        counters.operations > 0 ? per_operation(counters) : json(nullptr);
  }
  json result = {{"structure", measured.structure},
                 {"workload", measured.workload},
                 {"records", measured.records},
                 {"operations", measured.operations},
                 {"failed", measured.failed},
                 {"pool_bytes", measured.pool_bytes},
                 {"seconds", measured.seconds},
                 {"media_writes_per_wpq_insert", operations.media_writes_per_wpq_insert()},
                 {"write_amplification", operations.write_amplification()},
                 {"modelled_mops", times[0].at("operations_per_s").get<double>() / 1e6},
                 {"bottleneck", times[0].at("bottleneck")},
                 {"time", std::move(times)},
                 {"total", to_json(total)},
                 {"operation_types", std::move(types)},
                 {"sites", sites_json(measured.sites)}};
  add_per_operation(result, measured, "insert");
  add_per_operation(result, measured, "lookup");
  return result;
}

json parameters_json(const AmpReport& report) {
  const AmpOptions& options = report.options;
  json parameters = {{"threads", options.threads}};
  if (!report.ours) {
    parameters["program"] = report.program;
    return parameters;
  }
  json workloads = json::array();
  for (const AmpWorkload& workload : options.workloads) workloads.push_back(workload.name);
  parameters.update({{"structures", options.structures},
                     {"workloads", workloads},
                     {"records", options.records},
                     {"operations", options.operations},
                     {"structure_options", options.structure_options},
                     {"key_kind", to_string(options.key_kind)},
                     {"value_kind", to_string(options.value_kind)},
                     {"key_bytes", options.key_kind == Kind::kU64 ? 8 : options.key_bytes},
                     {"value_bytes", options.value_kind == Kind::kU64 ? 8 : options.value_bytes},
                     {"seed", options.seed},
                     {"capacity_bytes", options.capacity_bytes}});
  return parameters;
}

}  // namespace

json to_json(const AmpReport& report) {
  json results = json::array();
  for (const AmpResult& result : report.results) results.push_back(result_json(report, result));
  return {{"schema", "perdure-amp-1"},
          {"perdure", kVersion},
          {"profile", to_json(report.profile)},
          {"scaling", scaling_statement(report.profile)},
          {"parameters", parameters_json(report)},
          {"interrupted", report.interrupted},
          {"results", std::move(results)}};
}

}  // namespace perdure::lab
