#include "lab/serve/server_bench.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/ticks.h"
#include "common/units.h"
#include "lab/serve/clients.h"
#include "lab/serve/connection.h"
#include "lab/serve/process.h"
#include "perdure/error.h"

namespace perdure::lab::serve {
namespace {

constexpr unsigned kLoadPipeline = 32;
constexpr double kTimeLimitS = 10;
constexpr uint64_t kSampledRecords = 4096;
constexpr size_t kSampledAtOnce = 64;
constexpr double kRecoveryS = 300;
constexpr uint64_t kCapacityBytesMin = uint64_t{256} << 20;
constexpr uint64_t kRecordOverheadBytes =
    256;  // what any of the servers needs for a record beside key and value

[[noreturn]] void refuse_option(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// The thread runs on these processors until the end of the scope.
class BoundHere {
 public:
  explicit BoundHere(const Processors& processors) : before_(allowed_processors()) {
    run_on_processors(processors);
  }
  ~BoundHere() {
    if (!before_.empty()) run_on_processors(before_);
  }
  BoundHere(const BoundHere&) = delete;
  BoundHere& operator=(const BoundHere&) = delete;

 private:
  const Processors before_;
};

// A server that is measured.
struct Measured {
  std::string name;
  std::optional<ServerKind> kind;  // one that we start
  ServerAddress address;           // another's
  std::unique_ptr<ServerProcess> process;
  bool is_loaded = false;
  bool is_sorted = false;   // what it has is
  bool was_killed = false;  // in this repeat

  const ServerAddress& where() const { return process ? process->address() : address; }
  ProcessUsage usage() const { return process ? usage_of(process->pid()) : ProcessUsage{}; }
};

struct RecoveryTimes {
  double first_ms = 0;
  double all_ms = 0;
};

class ServerBench {
 public:
  ServerBench(const BenchOptions& options, const ProgressSink& progress,
              const std::atomic<bool>& stop);
  BenchReport run();

 private:
  void fill_in_processors();
  void find_servers();
  void note(const std::string& sentence);
  std::string unable_to(const Measured& server, const Workload& workload) const;
  void run_repeat(unsigned repeat);
  void run_workload(unsigned repeat, const Workload& workload);
  // In millions of operations in a second; 0: it was not measured.
  double run_phase_on(Measured& server, unsigned repeat, const Workload& workload,
                      const OfferedRate& rate, double per_s);
  bool make_ready(Measured& server, unsigned repeat, bool sorted);
  void start(Measured& server, bool sorted);
  void load(Measured& server, unsigned repeat, bool sorted);
  RecoveryTimes kill_and_recover(Measured& server);
  ClientsOptions clients_of(const Measured& server, unsigned repeat, const std::string& what) const;
  BenchResult& result_of(const Measured& server, const std::string& operation);
  void keep(BenchResult& result, Measured& server, const ClientsResult& measured,
            double server_cpu_s);

  const ProgressSink& progress_;
  const std::atomic<bool>& stop_;
  std::vector<Measured> servers_;
  std::vector<std::string> gone_;  // servers that could not be started
  BenchReport report_;
};

ServerBench::ServerBench(const BenchOptions& options, const ProgressSink& progress,
                         const std::atomic<bool>& stop)
    : progress_(progress), stop_(stop) {
  report_.options = options;
  BenchOptions& used = report_.options;
  used.key_kind = used.value_kind = Kind::kBytes;
  used.latency_sampling = 1;
  used.batch = 1;
  used.pinned = true;
  if (used.time_limit_s == 0) used.time_limit_s = kTimeLimitS;
  fill_in_processors();
  if (used.capacity_bytes == 0) {
    BenchOptions wide = used;
    wide.value_bytes += kRecordOverheadBytes;
    used.capacity_bytes = std::max(default_capacity_bytes(wide), kCapacityBytesMin);
  }
  report_.started = utc_now();
  report_.notes = options.notes;
  report_.machine = describe_machine();
  report_.timer = TickClock::get().source();
  find_servers();
}

void ServerBench::fill_in_processors() {
  ServerOptions& server = report_.options.server;
  const Processors allowed = allowed_processors();
  const auto half = static_cast<std::ptrdiff_t>((allowed.size() + 1) / 2);
  if (server.server_processors.empty()) {
    server.server_processors.assign(allowed.begin(), allowed.begin() + half);
  }
  if (server.client_processors.empty()) {
    server.client_processors.assign(allowed.size() > 1 ? allowed.begin() + half : allowed.begin(),
                                    allowed.end());
  }
  const auto shared = [&](unsigned each) {
    return std::ranges::find(server.server_processors, each) != server.server_processors.end();
  };
  if (std::ranges::any_of(server.client_processors, shared)) {
    note("servers and clients share processors: they slow each other down");
  }
  if (server.threads == 0) server.threads = static_cast<unsigned>(server.server_processors.size());
}

void ServerBench::find_servers() {
  for (const std::string& name : report_.options.server.servers) {
    Measured& server = servers_.emplace_back();
    if (is_server_address(name)) {
      server.address = parse_server_address(name);
      server.name = to_string(server.address);
    } else {
      server.kind = parse_server_kind(name);
      server.name = name;
    }
    const auto same = [&](const Measured& other) {
      return &other != &server && other.name == server.name;
    };
    if (std::ranges::any_of(servers_, same)) refuse_option(server.name + " is named twice");
    report_.options.structures.push_back(server.name);
    if (!server.kind) {
      note(fmt::format("{} keeps the records that were written to it", server.name));
    }
  }
}

void ServerBench::note(const std::string& sentence) {
  auto& notes = report_.notes;
  if (std::ranges::find(notes, sentence) == notes.end()) notes.push_back(sentence);
}

// Why it cannot do that; empty: it can.
std::string ServerBench::unable_to(const Measured& server, const Workload& workload) const {
  if (std::ranges::find(gone_, server.name) != gone_.end()) return "it could not be started";
  if (!workload.mix.has_scans()) return "";
  const Protocol protocol = server.kind ? server.kind->protocol : server.address.protocol;
  if (protocol != Protocol::kResp) return "its protocol has no scans";
  if (server.kind && (server.kind->index == "hash" || server.kind->index == "pm")) {
    return "sorted sets, which scans go over, need its ordered index";
  }
  return "";
}

BenchReport ServerBench::run() {
  const double start_s = steady_seconds();
  const BoundHere bound(report_.options.server.client_processors);
  for (unsigned repeat = 0; repeat < report_.options.repeats && !stop_; ++repeat) {
    run_repeat(repeat);
  }
  report_.interrupted = stop_;
  report_.elapsed_s = steady_seconds() - start_s;
  if (gone_.size() == servers_.size()) {
    throw Error(ErrorCode::kNotFound, report_.notes.empty() ? "" : report_.notes.back());
  }
  return std::move(report_);
}

void ServerBench::run_repeat(unsigned repeat) {
  for (const Workload& workload : report_.options.workloads) {
    if (!stop_) run_workload(repeat, workload);
  }
  for (Measured& server : servers_) {
    server.process.reset();
    server.is_loaded = server.was_killed = false;
  }
}

void ServerBench::run_workload(unsigned repeat, const Workload& workload) {
  if (report_.options.operations == 0) {
    for (Measured& server : servers_) {
      if (!stop_ && unable_to(server, workload).empty())
        make_ready(server, repeat, workload.mix.has_scans());
    }
    return;
  }
  double slowest_mops = 0;
  for (const OfferedRate& rate : report_.options.server.rates) {
    const double per_s = rate.peak_share > 0 ? rate.peak_share * slowest_mops * 1e6 : rate.per_s;
    for (Measured& server : servers_) {
      if (stop_) return;
      const std::string reason = unable_to(server, workload);
      if (!reason.empty()) {
        if (servers_.size() == 1 && gone_.empty()) refuse_option(server.name + ": " + reason);
        note(fmt::format("skipped: {} of {}: {}", workload.name, server.name, reason));
        continue;
      }
      const double mops = run_phase_on(server, repeat, workload, rate, per_s);
      if (!rate.is_closed() || mops == 0) continue;
      slowest_mops = slowest_mops == 0 ? mops : std::min(slowest_mops, mops);
    }
  }
}

ClientsOptions ServerBench::clients_of(const Measured& server, unsigned repeat,
                                       const std::string& what) const {
  const BenchOptions& options = report_.options;
  ClientsOptions clients;
  clients.name = fmt::format("{}/{} {} {}", repeat + 1, options.repeats, server.name, what);
  clients.address = server.where();
  clients.threads = static_cast<unsigned>(options.server.client_processors.size());
  clients.processors = options.server.client_processors;
  clients.connections = options.server.connections;
  clients.pipeline = options.server.pipeline;
  clients.arrivals = options.server.uniform_arrivals ? Arrivals::kUniform : Arrivals::kPoisson;
  clients.seed = options.seed + repeat;
  clients.window_s = options.window_s;
  clients.form = {.key_bytes = options.key_bytes,
                  .value_bytes = options.value_bytes,
                  .prefix = options.key_prefix,
                  .text_keys = true};
  clients.sorted = server.is_sorted;
  return clients;
}

void ServerBench::start(Measured& server, bool sorted) {
  const BenchOptions& options = report_.options;
  server.process.reset();
  // An element of a sorted set is there twice, by its name and by its score.
  const uint64_t capacity_bytes = options.capacity_bytes * (sorted ? 2 : 1);
  server.process = std::make_unique<ServerProcess>(
      *server.kind, ServerStartOptions{.folder = options.folder,
                                       .processors = options.server.server_processors,
                                       .threads = options.server.threads,
                                       .capacity_bytes = capacity_bytes,
                                       .command = options.server.command});
}

// Has the records that a phase begins with there. False if the server cannot be had.
bool ServerBench::make_ready(Measured& server, unsigned repeat, bool sorted) {
  if (server.is_loaded && server.is_sorted == sorted) return true;
  if (server.kind) {
    try {
      start(server, sorted);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      note(fmt::format("skipped: {}", error.what()));
      gone_.push_back(server.name);
      return false;
    }
  }
  server.is_sorted = sorted;
  load(server, repeat, sorted);
  server.is_loaded = true;
  return true;
}

void ServerBench::load(Measured& server, unsigned repeat, bool sorted) {
  const BenchOptions& options = report_.options;
  const OperationPlan plan(Mix::parse("insert"), 0, options.records, options.seed,
                           options.key_order);
  ClientsOptions clients = clients_of(server, repeat, "load");
  clients.pipeline = kLoadPipeline;
  const double cpu_s = server.usage().cpu_s;
  const ClientsResult measured = run_clients(plan, clients, progress_, stop_);
  BenchResult& result = result_of(server, sorted ? "load of a sorted set" : "load");
  result.is_load = true;
  result.records = measured.phase.operations;
  result.served->workload = result.operation;
  result.served->pipeline = kLoadPipeline;
  keep(result, server, measured, server.usage().cpu_s - cpu_s);
  if (measured.phase.complete) result.load_s.push_back(measured.phase.seconds);
  const bool killed = options.kill_recovery && server.kind && server.kind->keeps_records();
  if (!killed || sorted || server.was_killed || stop_) return;
  server.was_killed = true;
  const RecoveryTimes times = kill_and_recover(server);
  result.served->first_answer_ms.push_back(times.first_ms);
  result.open_killed_ms.push_back(times.all_ms);
}

// Asks for a sample of the records until the first was answered, and until all were.
RecoveryTimes ServerBench::kill_and_recover(Measured& server) {
  const BenchOptions& options = report_.options;
  if (progress_) progress_({server.name + " kill and recover", 0, -1});
  const OperationPlan plan(Mix::parse("lookup"), options.records, 0, options.seed,
                           options.key_order);
  RecordBytes records(clients_of(server, 0, "").form);
  const double start_s = server.process->kill_and_restart();
  std::unique_ptr<ServerConnection> connection;
  RecoveryTimes times;
  uint64_t right_in_sequence = 0;
  for (uint64_t place = 0; right_in_sequence < kSampledRecords; place += kSampledAtOnce) {
    if (stop_ || steady_seconds() - start_s > kRecoveryS) {
      throw Error(ErrorCode::kIo,
                  server.name + " has not all of its records again after a SIGKILL");
    }
    try {
      if (connection == nullptr) connection = std::make_unique<ServerConnection>(server.where());
      for (size_t i = 0; i < kSampledAtOnce; ++i) {
        connection->requests().get(records.key(plan.key_of(plan.survivor(place + i))));
      }
      connection->send();
      size_t right = 0;
      for (size_t i = 0; i < kSampledAtOnce; ++i) {
        const ServerReply& reply = connection->read();
        const bool is_right = reply.kind == ServerReply::Kind::kValue &&
                              records.is_of(plan.key_of(plan.survivor(place + i)), reply.text);
        right += is_right ? 1 : 0;
      }
      const double elapsed_ms = (steady_seconds() - start_s) * 1e3;
      if (right > 0 && times.first_ms == 0) times.first_ms = elapsed_ms;
      right_in_sequence = right == kSampledAtOnce ? right_in_sequence + right : 0;
      if (right_in_sequence == kSampledAtOnce) times.all_ms = elapsed_ms;
      if (right < kSampledAtOnce) ::usleep(500);
    } catch (const Error&) {
      connection.reset();
      ::usleep(200);
    }
  }
  return times;
}

double ServerBench::run_phase_on(Measured& server, unsigned repeat, const Workload& workload,
                                 const OfferedRate& rate, double per_s) {
  const BenchOptions& options = report_.options;
  if (!rate.is_closed() && !(per_s > 0)) return 0;  // no peak was measured
  if (!make_ready(server, repeat, workload.mix.has_scans()) || stop_) return 0;
  const std::string operation =
      rate.is_closed() ? workload.name : fmt::format("{} at {}", workload.name, rate.name());
  const OperationPlan plan(workload, options.records, options.warmup + options.operations,
                           options.seed, options.key_order);
  ClientsOptions clients = clients_of(server, repeat, operation);
  clients.rate = per_s;
  clients.warmup = options.warmup;
  clients.time_limit_s = options.time_limit_s;
  // What changes which records there are can be carried out once.
  const auto share = [&](OperationType type) { return workload.mix.share_of(type); };
  if (share(OperationType::kInsert) + share(OperationType::kRemove) > 0) server.is_loaded = false;

  const double cpu_s = server.usage().cpu_s;
  ClientsResult measured = run_clients(plan, clients, progress_, stop_);
  const double server_cpu_s = server.usage().cpu_s - cpu_s;
  if (measured.phase.complete && !clients.sorted) {
    measured.phase.failed += count_missing_effects(plan, clients);
  }
  BenchResult& result = result_of(server, operation);
  result.records = options.records;
  result.served->workload = workload.name;
  result.served->rate = rate;
  result.served->pipeline = options.server.pipeline;
  if (per_s > 0) result.served->offered_per_s.push_back(per_s);
  if (per_s == 0 && measured.phase.seconds > 0) {
    result.served->client_cpu.push_back(measured.client_cpu_s / measured.phase.seconds);
  }
  keep(result, server, measured, server_cpu_s);
  return result.mops.empty() ? 0 : result.mops.back();
}

BenchResult& ServerBench::result_of(const Measured& server, const std::string& operation) {
  for (BenchResult& result : report_.results) {
    if (result.structure == server.name && result.operation == operation) return result;
  }
  BenchResult& result = report_.results.emplace_back();
  result.structure = server.name;
  result.kind = "server";
  result.durability = server.kind ? server.kind->durability() : "unknown: it was there already";
  result.operation = operation;
  result.threads = static_cast<unsigned>(report_.options.server.client_processors.size());
  result.served.emplace();
  result.served->connections = report_.options.server.connections;
  return result;
}

void ServerBench::keep(BenchResult& result, Measured& server, const ClientsResult& measured,
                       double server_cpu_s) {
  add_repeat(result, measured.phase);
  if (!measured.first_error.empty()) {
    note(fmt::format("{} refused some of {}: {}", server.name, result.operation,
                     measured.first_error));
  }
  if (server.process == nullptr) return;
  result.dram_bytes = server.usage().dram_bytes;
  result.pool_bytes = server.process->stored_bytes();
  const auto count = [&](OperationType type) {
    return measured.phase.by_type[static_cast<size_t>(type)].operations;
  };
  const uint64_t records = result.is_load ? result.records
                                          : result.records + count(OperationType::kInsert) -
                                                count(OperationType::kRemove);
  result.raw_bytes = records * raw_record_bytes(report_.options);
  if (measured.phase.seconds > 0) {
    result.served->server_cpu.push_back(server_cpu_s / measured.phase.seconds);
  }
}

void check_server_options(const BenchOptions& options) {
  const ServerOptions& server = options.server;
  if (server.servers.empty()) refuse_option("name at least one server to measure");
  if (options.records == 0) refuse_option("--records must be at least 1");
  if (options.repeats == 0) refuse_option("--repeats must be at least 1");
  if (server.connections < 1 || server.connections > 100'000) {
    refuse_option(fmt::format("{} connections: give 1 to 100,000", server.connections));
  }
  if (server.pipeline < 1 || server.pipeline > 10'000) {
    refuse_option(fmt::format("{} requests in a pipeline: give 1 to 10,000", server.pipeline));
  }
  const uint64_t least = options.key_prefix.size() + 16;
  if (options.key_bytes < least || options.key_bytes > 250) {
    refuse_option(
        fmt::format("keys of {} bytes: servers get 16 digits and the prefix, {} bytes, "
                    "to 250",
                    options.key_bytes, least));
  }
  for (const char c : options.key_prefix) {
    if (c <= ' ' || c == 0x7f)
      refuse_option("memcached's keys have no blanks and no control characters");
  }
  if (options.value_bytes < 8 || options.value_bytes > (uint64_t{64} << 20)) {
    refuse_option(
        fmt::format("values of {} bytes: give 8 to 64 MiB, so that answers can be checked",
                    options.value_bytes));
  }
  bool has_peak = false;
  for (const OfferedRate& rate : server.rates) {
    has_peak = has_peak || rate.is_closed();
    if (rate.peak_share > 0 && !has_peak)
      refuse_option("shares of the peak come after the peak in --rate: peak,50%,80%");
  }
  for (const Workload& workload : options.workloads) {
    double others = 0;
    for (const auto& [type, share] : workload.mix.shares) {
      others += is_scan(type) || type == OperationType::kInsert ? 0 : share;
    }
    if (workload.mix.has_scans() && others > 0) {
      refuse_option(
          fmt::format("{}: scans of servers go over a sorted set, which takes inserts beside "
                      "them and nothing else",
                      workload.name));
    }
  }
}

}  // namespace

BenchReport run_server_bench(const BenchOptions& options, const ProgressSink& progress,
                             const std::atomic<bool>& stop) {
  check_server_options(options);
  return ServerBench(options, progress, stop).run();
}

}  // namespace perdure::lab::serve
