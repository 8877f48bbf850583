#include "lab/bench/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/text_table.h"
#include "lab/units.h"
#include "perdure/version.h"

namespace perdure::lab {
namespace {

using nlohmann::json;
using Row = TextRow;

double divide(double part, double whole) { return whole > 0 ? part / whole : 0; }

double per_record(uint64_t bytes, uint64_t records) {
  return divide(static_cast<double>(bytes), static_cast<double>(records));
}

std::string or_dash(double value, const char* suffix, int decimals) {
  return value > 0 ? fmt::format("{:.{}f}{}", value, decimals, suffix) : "-";
}

std::string time_or_dash(const std::vector<double>& times_ms) {
  return times_ms.empty() ? "-" : format_nanoseconds(median(times_ms) * 1e6);
}

std::string conditions(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string text;
  text += fmt::format("machine   {}, {} processors, {}, {}\n", report.machine.cpu,
                      report.machine.processors, report.machine.kernel, report.machine.compiler);
  if (!report.medium.empty()) {
    text += fmt::format("memory    {} on {}, domain {}{}, survives: {}\n", report.medium,
                        options.folder, report.domain, report.domain_forced ? " (forced)" : "",
                        report.durability);
  }
  text += fmt::format(
      "workload  {} records, {} operations, keys {} ({}), values {}, seed {}, repeats {}, "
      "pool capacity {}\n",
      format_count(options.records), format_count(options.operations), to_string(options.key_order),
      options.key_kind == Kind::kU64 ? "u64" : fmt::format("{} bytes", options.key_bytes),
      options.value_kind == Kind::kU64 ? "u64" : fmt::format("{} bytes", options.value_bytes),
      options.seed, options.repeats, format_bytes(options.capacity_bytes));
  text += fmt::format("limits    {} for one 64-byte store + {} + sfence in sequence",
                      format_nanoseconds(report.floor_ns_median()), report.flush_instruction);
  if (!report.read_chain_ns.empty()) {
    text += fmt::format("; {} for one dependent random read over {}",
                        format_nanoseconds(report.read_chain_ns_median()),
                        format_bytes(report.read_chain_bytes));
  }
  return text + "\n";
}

std::string speed_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "operation", "threads", "M ops/s", "ns/op", "x floor",
                            "x read", "min", "p50", "p90", "p99", "p99.9", "p99.99", "max"}};
  for (const BenchResult& result : report.results) {
    const double ns = result.ns_per_op_median();
    Row row = {result.structure,
               result.operation,
               std::to_string(result.threads),
               fmt::format("{:.3f}", result.mops_median()),
               fmt::format("{:.1f}", ns),
               or_dash(divide(ns, report.floor_ns_median()), "", 2),
               or_dash(divide(ns, report.read_chain_ns_median()), "", 2)};
    const LatencySummary latency = result.latency();
    for (const double value : {latency.min, latency.p50, latency.p90, latency.p99, latency.p999,
                               latency.p9999, latency.max}) {
      row.push_back(result.latencies.empty() ? "-" : format_nanoseconds(value));
    }
    rows.push_back(row);
  }
  return align_columns(rows, 2);
}

std::string space_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "threads", "pool", "pool B/record", "DRAM",
                            "DRAM B/record", "open, closed", "open, killed"}};
  for (const BenchResult& result : report.results) {
    if (result.operation != "load" || result.pool_bytes == 0) continue;
    rows.push_back({result.structure, std::to_string(result.threads),
                    format_bytes(result.pool_bytes),
                    fmt::format("{:.1f}", per_record(result.pool_bytes, result.records)),
                    format_bytes(result.dram_bytes),
                    fmt::format("{:.1f}", per_record(result.dram_bytes, result.records)),
                    time_or_dash(result.open_clean_ms), time_or_dash(result.open_killed_ms)});
  }
  return rows.size() == 1 ? "" : "\n" + align_columns(rows, 1);
}

json number_or_null(double value) { return value > 0 ? json(value) : json(nullptr); }

json median_or_null(const std::vector<double>& values) {
  return values.empty() ? json(nullptr) : json(median(values));
}

json percentiles_json(const BenchResult& result) {
  if (result.latencies.empty()) return nullptr;
  const LatencySummary latency = result.latency();
  return {{"min", latency.min}, {"p50", latency.p50},    {"p90", latency.p90},
          {"p99", latency.p99}, {"p99.9", latency.p999}, {"p99.99", latency.p9999},
          {"max", latency.max}};
}

json result_json(const BenchReport& report, const BenchResult& result) {
  const double ns = result.ns_per_op_median();
  json object = {
      {"structure", result.structure},
      {"operation", result.operation},
      {"threads", result.threads},
      {"records", result.records},
      {"operations", result.operations},
      {"failed", result.failed},
      {"pool_bytes", result.pool_bytes},
      {"dram_bytes", result.dram_bytes},
      {"mops_median", result.mops_median()},
      {"mops", result.mops},
      {"ns_per_op_median", ns},
      {"percentiles", percentiles_json(result)},
      {"ratio_to_floor", number_or_null(divide(ns, report.floor_ns_median()))},
      {"ratio_to_read_chain", number_or_null(divide(ns, report.read_chain_ns_median()))}};
  if (result.operation == "load") {
    object["pool_bytes_per_record"] = per_record(result.pool_bytes, result.records);
    object["dram_bytes_per_record"] = per_record(result.dram_bytes, result.records);
    object["open_clean_ms_median"] = median_or_null(result.open_clean_ms);
    object["open_killed_ms_median"] = median_or_null(result.open_killed_ms);
  }
  return object;
}

json parameters_json(const BenchReport& report) {
  const BenchOptions& options = report.options;
  json mixes = json::array();
  for (const Mix& mix : options.mixes) mixes.push_back(mix.name());
  return {{"structures", options.structures},
          {"records", options.records},
          {"operations", options.operations},
          {"threads", options.threads},
          {"mixes", mixes},
          {"keys", to_string(options.key_order)},
          {"key_kind", to_string(options.key_kind)},
          {"value_kind", to_string(options.value_kind)},
          {"key_bytes", options.key_kind == Kind::kU64 ? 8 : options.key_bytes},
          {"value_bytes", options.value_kind == Kind::kU64 ? 8 : options.value_bytes},
          {"path", options.folder},
          {"seed", options.seed},
          {"repeats", options.repeats},
          {"latency_sampling", options.latency_sampling},
          {"structure_options", options.structure_options},
          {"capacity_bytes", options.capacity_bytes},
          {"kill_recovery", options.kill_recovery}};
}

}  // namespace

std::string to_table(const BenchReport& report) {
  std::string text = conditions(report) + "\n" + speed_table(report) + space_table(report);
  if (report.failed() > 0) {
    text += fmt::format("\n{} operations gave a wrong answer\n", format_count(report.failed()));
  }
  if (report.interrupted) text += "\ninterrupted: these are the figures of what ran until then\n";
  return text;
}

json to_json(const BenchReport& report) {
  const Machine& machine = report.machine;
  json results = json::array();
  for (const BenchResult& result : report.results) results.push_back(result_json(report, result));
  return {{"schema", "perdure-bench-1"},
          {"perdure", kVersion},
          {"machine",
           {{"cpu", machine.cpu},
            {"processors", machine.processors},
            {"memory_bytes", machine.memory_bytes},
            {"kernel", machine.kernel},
            {"compiler", machine.compiler},
            {"build", machine.build},
            {"shmem_huge_pages", machine.shmem_huge}}},
          {"parameters", parameters_json(report)},
          {"medium", report.medium},
          {"domain", report.domain},
          {"domain_forced", report.domain_forced},
          {"durability", report.durability},
          {"flush_instruction", report.flush_instruction},
          {"timer", report.timer},
          {"floor_ns", report.floor_ns_median()},
          {"read_chain_ns", number_or_null(report.read_chain_ns_median())},
          {"read_chain_bytes", report.read_chain_bytes},
          {"interrupted", report.interrupted},
          {"results", results}};
}

}  // namespace perdure::lab
