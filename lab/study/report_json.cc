#include <nlohmann/json.hpp>

#include "lab/model/time.h"
#include "lab/study/figures.h"
#include "lab/study/write_amplification.h"
#include "perdure/version.h"

namespace perdure::lab::study {
namespace {

using nlohmann::json;

json number_or_null(std::optional<double> value) { return value ? json(*value) : json(nullptr); }

std::string name_of(Quantity quantity, std::string_view operation) {
  switch (quantity) {
    case Quantity::kWpqInserts:
      return "wpq_inserts_per_" + std::string(operation);
    case Quantity::kMediaWrites:
      return "media_writes_per_" + std::string(operation);
    case Quantity::kMediaPerWpqInsert:
      break;
  }
  return "media_writes_per_wpq_insert";
}

json cell_json(const StudyReport& report, const AmpResult& cell) {
  json types = json::object();
  for (const auto& [name, counters] : cell.by_type) types[name] = lab::to_json(counters);
  json times = json::array();
  for (const uint64_t threads : report.options.threads) {
    times.push_back(lab::to_json(estimate_time(cell.of_operations(), report.profile, {}, threads)));
  }
  json result = {{"structure", cell.structure},
                 {"workload", cell.workload},
                 {"operation", counted_operation(cell)},
                 {"operations", cell.operations},
                 {"failed", cell.failed},
                 {"pool_bytes", cell.pool_bytes},
                 {"seconds", cell.seconds},
                 {"published", json::object()},
                 {"deviation_percent", json::object()},
                 {"modelled_mops", times[0].at("operations_per_s").get<double>() / 1e6},
                 {"bottleneck", times[0].at("bottleneck")},
                 {"time", std::move(times)},
                 {"operation_types", std::move(types)}};
  for (const Quantity quantity :
       {Quantity::kWpqInserts, Quantity::kMediaWrites, Quantity::kMediaPerWpqInsert}) {
    for (const char* operation : {"insert", "lookup"}) {
      const bool counted = counted_operation(cell) == operation;
      const std::string name = name_of(quantity, operation);
      const Compared compared = compare(cell, quantity);
      if (counted || !result.contains(name)) {
        result[name] = counted ? number_or_null(compared.value) : json(nullptr);
      }
      if (!counted || compared.published == nullptr || !report.is_comparable()) continue;
      result["published"][name] = compared.published->value;
      result["deviation_percent"][name] = number_or_null(compared.deviation_percent);
    }
  }
  return result;
}

json effect_json(const Effect& effect) {
  return {
      {"optimisation", effect.optimisation},
      {"structure", effect.structure},
      {"base", effect.base},
      {"workload", effect.workload},
      {"wpq_inserts_percent", number_or_null(effect.wpq_inserts_percent)},
      {"media_writes_percent", number_or_null(effect.media_writes_percent)},
      {"published_wpq_inserts_percent", number_or_null(effect.published_wpq_inserts_percent)},
      {"published_media_writes_percent", number_or_null(effect.published_media_writes_percent)}};
}

json parameters_json(const AmpOptions& options) {
  json workloads = json::array();
  for (const AmpWorkload& workload : options.workloads) workloads.push_back(workload.name);
  return {{"structures", options.structures},
          {"workloads", workloads},
          {"records", options.records},
          {"operations", options.operations},
          {"threads", options.threads},
          {"seed", options.seed},
          {"key_bytes", 8},
          {"value_bytes", 8},
          {"capacity_bytes", options.capacity_bytes}};
}

json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"processors", machine.processors},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"compiler", machine.compiler},
          {"build", machine.build}};
}

}  // namespace

json to_json(const StudyReport& report) {
  json results = json::array();
  for (const AmpResult& cell : report.cells) results.push_back(cell_json(report, cell));
  json changes = json::array();
  for (const Effect& effect : effects(report.cells)) changes.push_back(effect_json(effect));
  json failures = json::array();
  for (const StudyFailure& failure : report.failures) {
    failures.push_back({{"structure", failure.structure},
                        {"workload", failure.workload},
                        {"message", failure.message}});
  }
  return {{"schema", "perdure-study-write-amplification-1"},
          {"perdure", kVersion},
          {"machine", machine_json(report.machine)},
          {"profile", lab::to_json(report.profile)},
          {"scaling", scaling_statement(report.profile)},
          {"parameters", parameters_json(report.options)},
          {"published", {{"source", kPublishedSource}, {"conditions", kPublishedConditions}}},
          {"interrupted", report.interrupted},
          {"cells_asked", report.cells_asked()},
          {"cells_resumed", report.resumed},
          {"results", std::move(results)},
          {"effects", std::move(changes)},
          {"failures", std::move(failures)}};
}

}  // namespace perdure::lab::study
