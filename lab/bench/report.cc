#include "lab/bench/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/units.h"
#include "lab/text_table.h"

namespace perdure::lab {
namespace {

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

std::string format_mops(double mops) {
  return mops >= 0.01 || mops == 0 ? fmt::format("{:.3f}", mops) : fmt::format("{:.3g}", mops);
}

std::string scan_words(const Workload& workload) {
  const ScanLength& length = workload.scan_length;
  if (!workload.mix.has_scans()) return "";
  return length.least == length.most
             ? fmt::format(", scans of {}", format_counted(length.most, "record"))
             : fmt::format(", scans of {} to {} records", length.least, length.most);
}

std::string emulation_words(const BenchReport& report) {
  if (!report.emulation) return "";
  const EmulationReport& emulation = *report.emulation;
  std::string words = fmt::format(
      "emulated  {}: a fence takes {:.0f} ns and {:.0f} ns a line (here {:.0f} and {:.0f}; {:.0f} "
      "and {:.0f} are added)",
      emulation.medium, emulation.fence_ns, emulation.flush_ns, emulation.native_fence_ns,
      emulation.native_flush_ns, emulation.added_fence_ns, emulation.added_flush_ns);
  if (emulation.write_gb_per_s > 0) {
    words += fmt::format(", all threads write {} GB/s at most in units of {} bytes",
                         emulation.write_gb_per_s, emulation.unit_bytes);
  }
  return words + "; reads are not slowed\n";
}

std::string server_words(const ServerOptions& server) {
  return fmt::format(
      "servers   on processors {}, {} each, those that were started; clients on processors {}, {}, "
      "{} "
      "at a time on each; open loops have {} arrivals\n",
      fmt::join(server.server_processors, ","), format_counted(server.threads, "thread"),
      fmt::join(server.client_processors, ","), format_counted(server.connections, "connection"),
      format_counted(server.pipeline, "request"), server.uniform_arrivals ? "uniform" : "Poisson");
}

std::string key_words(const BenchOptions& options) {
  if (options.key_kind == Kind::kU64) return "u64";
  if (options.url_keys) return fmt::format("URLs of {} to {} bytes", kUrlBytesMin, kUrlBytesMax);
  return fmt::format("{} bytes", options.key_bytes);
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
  if (!options.server.servers.empty()) text += server_words(options.server);
  text += fmt::format(
      "workload  {} records, {} operations{}, keys {} ({}), values {}, seed {}, repeats {}, pool "
      "capacity {}{}{}{}\n",
      format_count(options.records), format_count(options.operations),
      options.warmup > 0 ? fmt::format(" after {} to warm up", format_count(options.warmup)) : "",
      to_string(options.key_order), key_words(options),
      options.value_kind == Kind::kU64 ? "u64" : fmt::format("{} bytes", options.value_bytes),
      options.seed, options.repeats, format_bytes(options.capacity_bytes),
      options.reserve ? " reserved" : "",
      options.time_limit_s > 0
          ? fmt::format(", at most {} a phase", format_nanoseconds(options.time_limit_s * 1e9))
          : "",
      options.pinned ? ", threads pinned" : "");
  for (const Workload& workload : options.workloads) {
    const std::string mix = workload.mix.name();
    text += fmt::format("          {}, records {}{}\n",
                        workload.name == mix ? mix : workload.name + ": " + mix,
                        workload.distribution.name(), scan_words(workload));
  }
  if (report.floor_ns.empty()) return text;
  text += fmt::format("limits    {} for one 64-byte store + {} + sfence in sequence",
                      format_nanoseconds(report.floor_ns_median()), report.flush_instruction);
  if (!report.read_chain_ns.empty()) {
    text += fmt::format("; {} for one dependent random read over {}",
                        format_nanoseconds(report.read_chain_ns_median()),
                        format_bytes(report.read_chain_bytes));
  }
  text += "\n";
  if (report.pauses.watched_s > 0) {
    text += fmt::format(
        "pauses    a loop that does nothing is paused {:.0f} times a second for {} or more: "
        "{:.2f} % of its time, at most {}\n",
        report.pauses.per_s(), format_nanoseconds(Pauses::kShortestNs), 100 * report.pauses.share(),
        format_nanoseconds(report.pauses.longest_ns));
  }
  return text + emulation_words(report);
}

std::string speed_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "operation", "threads", "M ops/s", "x first", "spread",
                            "windows", "ns/op", "x floor", "x read"}};
  for (const BenchResult& result : report.results) {
    const double ns = result.ns_per_op_median();
    rows.push_back(
        {result.structure, result.operation, std::to_string(result.threads),
         format_mops(result.mops_median()), or_dash(report.ratio_to_first(result), "", 2),
         result.mops.size() > 1 ? fmt::format("{:.0f} %", 100 * result.mops_spread()) : "-",
         result.windows() > 1 ? fmt::format("{} +- {}", format_mops(result.window_mean_mops()),
                                            format_mops(result.window_stddev_mops()))
                              : "-",
         fmt::format("{:.1f}", ns), or_dash(divide(ns, report.floor_ns_median()), "", 2),
         or_dash(divide(ns, report.read_chain_ns_median()), "", 2)});
  }
  return align_columns(rows, 2);
}

// What servers are asked and take: in the place of the floors, which a network hides.
std::string server_table(const BenchReport& report) {
  std::vector<Row> rows = {{"server", "operation", "offered", "answered", "x first", "spread",
                            "server CPU", "us an operation", "client CPU", "memory", "files"}};
  for (const BenchResult& result : report.results) {
    const ServedFigures& served = *result.served;
    const double busy = median(served.server_cpu);
    rows.push_back(
        {result.structure, result.operation,
         served.offered_per_s.empty() ? "-" : format_rate(median(served.offered_per_s)),
         format_rate(result.mops_median() * 1e6), or_dash(report.ratio_to_first(result), "", 2),
         result.mops.size() > 1 ? fmt::format("{:.0f} %", 100 * result.mops_spread()) : "-",
         or_dash(100 * busy, " %", 0), or_dash(divide(busy, result.mops_median()), "", 2),
         or_dash(100 * median(served.client_cpu), " %", 0),
         result.dram_bytes > 0 ? format_bytes(result.dram_bytes) : "-",
         result.pool_bytes > 0 ? format_bytes(result.pool_bytes) : "-"});
  }
  return align_columns(rows, 2);
}

// After a SIGKILL.
std::string recovery_table(const BenchReport& report) {
  std::vector<Row> rows = {{"server", "records", "first answer after SIGKILL", "all answers"}};
  for (const BenchResult& result : report.results) {
    if (result.served->first_answer_ms.empty()) continue;
    rows.push_back({result.structure, format_count(result.records),
                    time_or_dash(result.served->first_answer_ms),
                    time_or_dash(result.open_killed_ms)});
  }
  return rows.size() == 1 ? "" : "\n" + align_columns(rows, 1);
}

std::string latency_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "operation", "latency of", "threads", "min", "p50", "p90",
                            "p99", "p99.9", "p99.99", "p99.999", "max"}};
  for (const BenchResult& result : report.results) {
    for (size_t type = 0; type < kOperationTypes; ++type) {
      if (result.by_type[type].latencies.empty()) continue;
      Row row = {result.structure, result.operation, to_string(static_cast<OperationType>(type)),
                 std::to_string(result.threads)};
      const LatencySummary latency = summary_of(result.by_type[type].latencies);
      for (const double value : {latency.min, latency.p50, latency.p90, latency.p99, latency.p999,
                                 latency.p9999, latency.p99999, latency.max}) {
        row.push_back(format_nanoseconds(value));
      }
      rows.push_back(row);
    }
  }
  return rows.size() == 1 ? "" : "\n" + align_columns(rows, 3);
}

std::string space_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "threads", "pool", "pool B/record", "x raw", "DRAM",
                            "DRAM B/record", "load", "open, closed", "open, killed"}};
  for (const BenchResult& result : report.results) {
    if (!result.is_load || result.pool_bytes + result.dram_bytes == 0) continue;
    rows.push_back({result.structure, std::to_string(result.threads),
                    format_bytes(result.pool_bytes),
                    fmt::format("{:.1f}", per_record(result.pool_bytes, result.records)),
                    or_dash(per_record(result.pool_bytes, result.raw_bytes), "", 2),
                    format_bytes(result.dram_bytes),
                    fmt::format("{:.1f}", per_record(result.dram_bytes, result.records)),
                    result.load_s.empty() ? "-" : format_nanoseconds(median(result.load_s) * 1e9),
                    time_or_dash(result.open_clean_ms), time_or_dash(result.open_killed_ms)});
  }
  return rows.size() == 1 ? "" : "\n" + align_columns(rows, 1);
}

// Figures compare only beside what an operation has promised when it returns.
std::string durability_table(const BenchReport& report) {
  std::vector<Row> rows = {{"structure", "what survives"}};
  for (const BenchResult& result : report.results) {
    const Row row = {result.structure, result.durability};
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
  }
  return "\n" + align_columns(rows, 2);
}

}  // namespace

std::string to_table(const BenchReport& report) {
  std::string text = conditions(report) + "\n";
  if (report.options.server.servers.empty()) {
    text += speed_table(report) + latency_table(report) + space_table(report);
  } else {
    text += server_table(report) + latency_table(report) + recovery_table(report);
  }
  text += durability_table(report);
  for (const std::string& note : report.notes) text += "\n" + note + "\n";
  if (report.failed() > 0) {
    text += fmt::format("\n{} operations gave a wrong answer\n", format_count(report.failed()));
  }
  if (report.interrupted) text += "\ninterrupted: these are the figures of what ran until then\n";
  return text;
}

}  // namespace perdure::lab
