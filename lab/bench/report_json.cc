// The report as JSON and CSV, for programs: docs/bench-schema.md.

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/units.h"
#include "lab/bench/report.h"
#include "perdure/version.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

json ratio_or_null(double part, double whole) {
  return part > 0 && whole > 0 ? json(part / whole) : json(nullptr);
}

json number_or_null(double value) { return value > 0 ? json(value) : json(nullptr); }

json median_or_null(const std::vector<double>& values) {
  return values.empty() ? json(nullptr) : json(median(values));
}

std::string hash_text(const BenchResult& result) {
  return fmt::format("{:016x}", result.stream_hash);
}

json percentiles_json(const std::vector<LatencySummary>& repeats) {
  if (repeats.empty()) return nullptr;
  const LatencySummary latency = summary_of(repeats);
  return {{"min", latency.min},        {"p50", latency.p50},    {"p90", latency.p90},
          {"p99", latency.p99},        {"p99.9", latency.p999}, {"p99.99", latency.p9999},
          {"p99.999", latency.p99999}, {"max", latency.max}};
}

json types_json(const BenchResult& result) {
  json types = json::object();
  const uint64_t scans = result.by_type[static_cast<size_t>(OperationType::kScan)].operations +
                         result.by_type[static_cast<size_t>(OperationType::kScanBack)].operations;
  for (size_t type = 0; type < kOperationTypes; ++type) {
    const TypeSummary& summary = result.by_type[type];
    if (summary.operations == 0 && summary.samples == 0) continue;
    json object = {{"operations", summary.operations},
                   {"samples", summary.samples},
                   {"percentiles", percentiles_json(summary.latencies)}};
    if (is_scan(static_cast<OperationType>(type))) {
      object["records_per_scan"] =
          ratio_or_null(static_cast<double>(result.scanned), static_cast<double>(scans));
    }
    types[to_string(static_cast<OperationType>(type))] = object;
  }
  return types;
}

json windows_json(const BenchReport& report, const BenchResult& result) {
  if (result.windows() < 2) return nullptr;
  return {{"window_ms", report.options.window_s * 1e3},
          {"mean_mops", result.window_mean_mops()},
          {"stddev_mops", result.window_stddev_mops()},
          {"series", result.window_mops}};
}

void add_load_figures(const BenchResult& result, json& object) {
  const auto records = static_cast<double>(result.records);
  object["pool_bytes_per_record"] =
      records > 0 ? static_cast<double>(result.pool_bytes) / records : 0;
  object["dram_bytes_per_record"] =
      records > 0 ? static_cast<double>(result.dram_bytes) / records : 0;
  object["load_s"] = result.load_s;
  object["open_clean_ms"] = result.open_clean_ms;
  object["open_killed_ms"] = result.open_killed_ms;
  object["open_clean_ms_median"] = median_or_null(result.open_clean_ms);
  object["open_killed_ms_median"] = median_or_null(result.open_killed_ms);
}

json served_json(const BenchResult& result) {
  const ServedFigures& served = *result.served;
  const double cpu = median(served.server_cpu);
  json object = {{"workload", served.workload},
                 {"loop", served.rate.is_closed() ? "closed" : "open"},
                 {"peak_share", number_or_null(served.rate.peak_share)},
                 {"offered_per_s", served.offered_per_s},
                 {"offered_per_s_median", median_or_null(served.offered_per_s)},
                 {"connections", served.connections},
                 {"pipeline", served.pipeline},
                 {"server_cpu", served.server_cpu},
                 {"server_us_per_op_median", ratio_or_null(cpu, result.mops_median())},
                 {"client_cpu", served.client_cpu}};
  if (result.is_load) {
    object["first_answer_ms"] = served.first_answer_ms;
    object["first_answer_ms_median"] = median_or_null(served.first_answer_ms);
  }
  return object;
}

json result_json(const BenchReport& report, const BenchResult& result) {
  const double ns = result.ns_per_op_median();
  json object = {{"structure", result.structure},
                 {"kind", result.kind},
                 {"durability", result.durability},
                 {"phase", result.is_load ? "load" : "run"},
                 {"operation", result.operation},
                 {"threads", result.threads},
                 {"records", result.records},
                 {"operations", result.operations},
                 {"failed", result.failed},
                 {"stream_hash", hash_text(result)},
                 {"complete", result.complete},
                 {"mops", result.mops},
                 {"mops_median", result.mops_median()},
                 {"mops_min", result.mops_min()},
                 {"mops_max", result.mops_max()},
                 {"mops_spread", result.mops_spread()},
                 {"ns_per_op_median", ns},
                 {"ratio_to_first", number_or_null(report.ratio_to_first(result))},
                 {"ratio_to_floor", ratio_or_null(ns, report.floor_ns_median())},
                 {"ratio_to_read_chain", ratio_or_null(ns, report.read_chain_ns_median())},
                 {"percentiles", percentiles_json(result.latencies)},
                 {"by_operation", types_json(result)},
                 {"windows", windows_json(report, result)},
                 {"pool_bytes", result.pool_bytes},
                 {"dram_bytes", result.dram_bytes},
                 {"raw_bytes", result.raw_bytes},
                 {"space_amplification", ratio_or_null(static_cast<double>(result.pool_bytes),
                                                       static_cast<double>(result.raw_bytes))}};
  if (result.persists) {
    object["lines_per_operation"] = result.persists->lines;
    object["fences_per_operation"] = result.persists->fences;
  }
  if (result.is_load) add_load_figures(result, object);
  if (result.served) object["served"] = served_json(result);
  return object;
}

json workload_json(const Workload& workload) {
  json mix = json::object();
  for (const auto& [type, share] : workload.mix.shares) mix[to_string(type)] = share;
  return {{"name", workload.name},
          {"mix", mix},
          {"distribution", workload.distribution.name()},
          {"scan_length", {workload.scan_length.least, workload.scan_length.most}}};
}

json server_json(const ServerOptions& server) {
  json rates = json::array();
  for (const OfferedRate& rate : server.rates) {
    rates.push_back(rate.is_closed() ? "peak" : rate.name());
  }
  return {{"connections", server.connections},
          {"pipeline", server.pipeline},
          {"rates", rates},
          {"arrivals", server.uniform_arrivals ? "uniform" : "poisson"},
          {"server_processors", server.server_processors},
          {"client_processors", server.client_processors},
          {"server_threads", server.threads}};
}

json parameters_json(const BenchReport& report) {
  const BenchOptions& options = report.options;
  json workloads = json::array();
  for (const Workload& workload : options.workloads) workloads.push_back(workload_json(workload));
  json parameters = {{"structures", options.structures},
                     {"workloads", workloads},
                     {"records", options.records},
                     {"operations", options.operations},
                     {"warmup_operations", options.warmup},
                     {"batch", options.batch},
                     {"time_limit_s", number_or_null(options.time_limit_s)},
                     {"threads", options.threads},
                     {"pinned", options.pinned},
                     {"keys", to_string(options.key_order)},
                     {"distribution", options.workloads.front().distribution.name()},
                     {"key_kind", to_string(options.key_kind)},
                     {"value_kind", to_string(options.value_kind)},
                     {"key_bytes", options.key_kind == Kind::kU64 ? 8 : options.key_bytes},
                     {"value_bytes", options.value_kind == Kind::kU64 ? 8 : options.value_bytes},
                     {"key_prefix", options.key_prefix},
                     {"url_keys", options.url_keys},
                     {"path", options.folder},
                     {"seed", options.seed},
                     {"repeats", options.repeats},
                     {"latency_sampling", options.latency_sampling},
                     {"window_ms", options.window_s * 1e3},
                     {"structure_options", options.structure_options},
                     {"capacity_bytes", options.capacity_bytes},
                     {"reserved", options.reserve},
                     {"huge_pages_wanted", options.huge_pages},
                     {"payload_verified", options.verify_payload},
                     {"kill_recovery", options.kill_recovery}};
  if (!options.server.servers.empty()) parameters["server"] = server_json(options.server);
  return parameters;
}

json emulation_json(const BenchReport& report) {
  if (!report.emulation) return nullptr;
  const EmulationReport& emulation = *report.emulation;
  return {{"medium", emulation.medium},
          {"fence_ns", emulation.fence_ns},
          {"flush_ns", emulation.flush_ns},
          {"write_gb_per_s", emulation.write_gb_per_s},
          {"unit_bytes", emulation.unit_bytes},
          {"native_fence_ns", emulation.native_fence_ns},
          {"native_flush_ns", emulation.native_flush_ns},
          {"added_fence_ns", emulation.added_fence_ns},
          {"added_flush_ns", emulation.added_flush_ns}};
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string csv_number(double value) { return value > 0 ? fmt::format("{:.6g}", value) : ""; }

}  // namespace

json to_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"processors", machine.processors},
          {"memory_bytes", machine.memory_bytes},
          {"kernel", machine.kernel},
          {"compiler", machine.compiler},
          {"flags", machine.flags},
          {"build", machine.build},
          {"commit", machine.commit},
          {"shmem_huge_pages", machine.shmem_huge}};
}

json to_json(const BenchReport& report) {
  json results = json::array();
  for (const BenchResult& result : report.results) results.push_back(result_json(report, result));
  return {{"schema", "perdure-bench-2"},
          {"perdure", kVersion},
          {"started", report.started},
          {"elapsed_s", report.elapsed_s},
          {"interrupted", report.interrupted},
          {"machine", to_json(report.machine)},
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
          {"pauses",
           {{"shortest_ns", Pauses::kShortestNs},
            {"per_s", report.pauses.per_s()},
            {"share", report.pauses.share()},
            {"longest_ns", report.pauses.longest_ns}}},
          {"emulation", emulation_json(report)},
          {"notes", report.notes},
          {"results", results}};
}

std::string to_csv(const BenchReport& report) {
  std::string text =
      "structure,kind,operation,threads,records,operations,failed,mops_median,mops_min,mops_max,"
      "window_stddev_mops,ns_per_op_median,ratio_to_first,min_ns,p50_ns,p90_ns,p99_ns,p99.9_ns,"
      "p99.99_ns,p99.999_ns,max_ns,pool_bytes,dram_bytes,space_amplification,open_clean_ms,"
      "open_killed_ms,stream_hash,durability\n";
  for (const BenchResult& result : report.results) {
    const LatencySummary latency = result.latency();
    text += fmt::format("{},{},{},{},{},{},{}", csv_text(result.structure), result.kind,
                        csv_text(result.operation), result.threads, result.records,
                        result.operations, result.failed);
    const double amplification = result.raw_bytes > 0 ? static_cast<double>(result.pool_bytes) /
                                                            static_cast<double>(result.raw_bytes)
                                                      : 0;
    for (const double value :
         {result.mops_median(), result.mops_min(), result.mops_max(), result.window_stddev_mops(),
          result.ns_per_op_median(), report.ratio_to_first(result), latency.min, latency.p50,
          latency.p90, latency.p99, latency.p999, latency.p9999, latency.p99999, latency.max}) {
      text += "," + csv_number(value);
    }
    text += fmt::format(",{},{},{},{},{},{},{}\n", result.pool_bytes, result.dram_bytes,
                        csv_number(amplification), csv_number(median(result.open_clean_ms)),
                        csv_number(median(result.open_killed_ms)), hash_text(result),
                        csv_text(result.durability));
  }
  return text;
}

}  // namespace perdure::lab
