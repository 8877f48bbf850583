#include "server/info.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iterator>

#include "perdure/error.h"
#include "perdure/version.h"
#include "server/commands.h"
#include "server/server.h"

namespace perdure::server {

namespace {

// The release of Redis whose commands these are: clients look at it to know what they may use.
constexpr char kRedisVersion[] = "7.0.15";

template <typename... Args>
void line(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  out += "\r\n";
}

void add_server(Server& server, std::string& out) {
  line(out, "redis_version:{}", kRedisVersion);
  line(out, "redis_mode:standalone");
  line(out, "server_name:perdure");
  line(out, "perdure_version:{}", kVersion);
  line(out, "os:Linux");
  line(out, "arch_bits:64");
  line(out, "multiplexing_api:{}", server.loops()[0]->driver_name());
  line(out, "process_id:{}", ::getpid());
  line(out, "tcp_port:{}", server.first_port());
  line(out, "server_time_usec:{}", static_cast<uint64_t>(std::time(nullptr)) * 1'000'000);
  line(out, "uptime_in_seconds:{}", server.uptime_s());
  line(out, "uptime_in_days:{}", server.uptime_s() / 86400);
  line(out, "io_threads_active:{}", server.loops().size() > 1 ? 1 : 0);
}

void add_clients(Server& server, std::string& out) {
  line(out, "connected_clients:{}", server.metrics().connections.load());
  line(out, "maxclients:{}", server.config().connections_max);
  line(out, "pubsub_clients:{}", server.channels().size() + server.patterns().size());
}

void add_memory(Server& server, std::string& out) {
  line(out, "used_memory:{}", resident_bytes());
  line(out, "used_memory_rss:{}", resident_bytes());
  line(out, "maxmemory:{}", server.config().memory_bytes);
  line(out, "maxmemory_policy:{}", server.config().evict ? "allkeys-lru" : "noeviction");
  if (server.keys() == nullptr) return;
  const std::vector<Statistic> all = server.store().statistics();
  const PoolInfo pool = server.pool().info();
  line(out, "store_dram_bytes:{:.0f}", statistic(all, "dram_bytes"));
  line(out, "store_pool_bytes:{:.0f}", statistic(all, "pool_bytes"));
  line(out, "store_live_bytes:{:.0f}", statistic(all, "live_bytes"));
  line(out, "pool_capacity_bytes:{}", pool.capacity_bytes);
  line(out, "pool_size_bytes:{}", pool.size_bytes);
}

void add_persistence(Server& server, std::string& out) {
  line(out, "loading:{}", server.is_loading() ? 1 : 0);
  if (server.is_loading()) {
    const store::StoreImpl::Progress opened =
        server.keys() == nullptr ? store::StoreImpl::Progress() : server.store().progress();
    const uint32_t partitions = server.keys() == nullptr ? 0 : server.store().partitions();
    line(out, "loading_start_time:{}", server.started_s());
    line(out, "loading_loaded_perc:{:.2f}",
         partitions == 0 ? 0.0 : 100.0 * opened.ready / partitions);
    line(out, "loading_partitions:{}", partitions);
    line(out, "loading_partitions_ready:{}", opened.ready);
  }
  line(out, "rdb_changes_since_last_save:0");
  line(out, "rdb_bgsave_in_progress:0");
  line(out, "aof_enabled:0");
  if (server.keys() == nullptr) return;
  const std::vector<Statistic> all = server.store().statistics();
  const PoolInfo pool = server.pool().info();
  line(out, "durable_writes:1");
  line(out, "pool_domain:{}", to_string(pool.domain));
  line(out, "pool_medium:{}", to_string(pool.medium));
  line(out, "pool_durability:{}", to_string(pool.durability));
  line(out, "recovery_seconds:{:.6f}", server.recovery_s());
  line(out, "recovered_records:{}", server.recovered_records());
  line(out, "turns:{}", server.metrics().turns);
  line(out, "write_turns:{}", server.metrics().write_turns);
  line(out, "group_writes:{}", server.keys()->groups());
  line(out, "fence_failures:{}", server.metrics().fence_failures);
  line(out, "compacted_blocks:{:.0f}", statistic(all, "compacted_blocks"));
  line(out, "moved_bytes:{:.0f}", statistic(all, "moved_bytes"));
  line(out, "damaged_blocks:{:.0f}", statistic(all, "damaged_blocks"));
  line(out, "failed_partitions:{:.0f}", statistic(all, "partitions_failed"));
}

void add_stats(Server& server, std::string& out) {
  const Metrics& metrics = server.metrics();
  line(out, "total_connections_received:{}", metrics.connections_accepted.load());
  line(out, "total_commands_processed:{}", metrics.commands);
  line(out, "total_net_input_bytes:{}", metrics.bytes_in.load());
  line(out, "total_net_output_bytes:{}", metrics.bytes_out.load());
  line(out, "rejected_connections:{}", metrics.connections_refused.load());
  line(out, "timed_out_connections:{}", metrics.connections_timed_out.load());
  line(out, "keyspace_hits:{}", metrics.keyspace_hits);
  line(out, "keyspace_misses:{}", metrics.keyspace_misses);
  const bool evicts = server.config().evict && server.keys() != nullptr;
  line(out, "evicted_keys:{:.0f}",
       evicts ? statistic(server.store().statistics(), "evicted_records") : 0.0);
  line(out, "pubsub_channels:{}", server.channels().size());
  line(out, "pubsub_patterns:{}", server.patterns().size());
}

// "HOST", "PORT" of an address.
std::pair<std::string, std::string> parts_of_address(const std::string& address) {
  const size_t colon = address.starts_with('/') ? std::string::npos : address.rfind(':');
  if (colon == std::string::npos) return {address, "0"};
  return {address.substr(0, colon), address.substr(colon + 1)};
}

// A figure of how far behind; -1: not known.
int64_t known(uint64_t figure) {
  return figure == ~uint64_t{0} ? -1 : static_cast<int64_t>(figure);
}

uint64_t offset_of(const std::vector<uint64_t>& positions) {
  uint64_t offset = 0;
  for (const uint64_t position : positions) offset += position == 0 ? 0 : position - 1;
  return offset;
}

const char* to_string(Follower::Link link) {
  switch (link) {
    case Follower::Link::kConnecting:
      return "connecting";
    case Follower::Link::kCopying:
      return "copying";
    case Follower::Link::kFollowing:
      return "following";
    case Follower::Link::kRefused:
      return "refused";
    case Follower::Link::kFailed:
      return "failed";
    case Follower::Link::kEnded:
      return "ended";
  }
  return "unknown";
}

void add_follower(Server& server, std::string& out) {
  Follower::Standing standing;
  if (server.follower() != nullptr) standing = server.follower()->standing();
  const auto [host, port] = parts_of_address(server.config().follow);
  const bool up = standing.link == Follower::Link::kFollowing;
  const bool copies = standing.link == Follower::Link::kCopying;
  line(out, "role:slave");
  line(out, "master_host:{}", host);
  line(out, "master_port:{}", port);
  line(out, "master_link_status:{}", up ? "up" : "down");
  line(out, "master_last_io_seconds_ago:{}",
       standing.ms_since_answer == ~uint64_t{0}
           ? -1
           : static_cast<int64_t>(standing.ms_since_answer / 1000));
  line(out, "master_sync_in_progress:{}", copies ? 1 : 0);
  line(out, "slave_read_repl_offset:{}", offset_of(standing.state.positions));
  line(out, "slave_repl_offset:{}", offset_of(standing.state.positions));
  line(out, "slave_priority:100");
  line(out, "slave_read_only:1");
  line(out, "follow_state:{}", to_string(standing.link));
  if (!standing.words.empty()) line(out, "follow_reason:{}", standing.words);
  line(out, "follow_keeps_old_copy:{}", standing.keeps_old ? 1 : 0);
  line(out, "follow_number:{:016x}", standing.state.follower);
  line(out, "follow_leader_store:{:016x}", standing.state.identity);
  line(out, "follow_records_behind:{}", known(standing.records_behind));
  line(out, "follow_bytes_behind:{}", known(standing.bytes_behind));
  line(out, "follow_seconds_behind:{:.3f}",
       standing.ms_behind == ~uint64_t{0} ? -1.0 : static_cast<double>(standing.ms_behind) / 1e3);
  line(out, "follow_applied_writes:{}", standing.applied);
  line(out, "follow_copies:{}", standing.copies);
  line(out, "follow_reconnects:{}", standing.reconnects);
}

void add_replication(Server& server, std::string& out) {
  if (server.is_follower()) {
    add_follower(server, out);
    line(out, "connected_slaves:0");
    return;
  }
  line(out, "role:master");
  size_t connected = 0;
  for (const auto& [id, one] : server.replicas()) connected += one.connection != 0 ? 1 : 0;
  line(out, "connected_slaves:{}", connected);
  size_t i = 0;
  for (const auto& [id, one] : server.replicas()) {
    const auto [ip, port] = parts_of_address(one.peer.empty() ? "unknown" : one.peer);
    const uint64_t now_ms = steady_ms();
    line(out,
         "slave{}:ip={},port={},state={},offset={},lag={},number={:016x},records_behind={},"
         "bytes_behind={}",
         i++, ip, port,
         one.connection == 0 ? "offline"
         : one.copies        ? "wait_bgsave"
                             : "online",
         offset_of(one.acknowledged),
         one.asked_ms == 0 ? -1 : static_cast<int64_t>((now_ms - one.asked_ms) / 1000), id,
         one.records_left, one.bytes_left);
  }
  if (server.keys() == nullptr || server.is_loading()) return;
  uint64_t offset = 0;
  for (uint32_t n = 0; n < server.store().partitions(); ++n) {
    if (!server.store().is_ready(n)) continue;
    offset += server.store().kept_changes(n).next - 1;
  }
  line(out, "master_replid:{:016x}", server.store().identity());
  line(out, "master_repl_offset:{}", offset);
}

void add_commandstats(Server& server, std::string& out) {
  for (const Command& command : commands()) {
    const CommandMetrics& one = server.metrics_of(number_of(command));
    const uint64_t calls = one.latency.count();
    if (calls == 0 && one.rejected == 0) continue;
    const double us = static_cast<double>(one.latency.sum_ns()) / 1e3;
    line(out,
         "cmdstat_{}:calls={},usec={:.0f},usec_per_call={:.2f},rejected_calls={},failed_calls={}",
         command.name, calls, us, calls == 0 ? 0 : us / static_cast<double>(calls), one.rejected,
         one.failed);
  }
}

void add_latencystats(Server& server, std::string& out) {
  for (const Command& command : commands()) {
    const Histogram& latency = server.metrics_of(number_of(command)).latency;
    if (latency.count() == 0) continue;
    const auto us = [&](double part) {
      return static_cast<double>(latency.percentile_ns(part)) / 1e3;
    };
    line(out, "latency_percentiles_usec_{}:p50={:.3f},p99={:.3f},p99.9={:.3f}", command.name,
         us(0.5), us(0.99), us(0.999));
  }
}

void add_keyspace(Server& server, std::string& out) {
  // Keys cannot be counted before all of them can be read.
  if (server.keys() == nullptr) return;
  if (server.store().progress().ready < server.store().partitions()) return;
  if (server.keys()->is_hidden()) return;
  for (uint32_t database = 0; database < kDatabases; ++database) {
    // Not a look at millions of keys each time that somebody asks.
    constexpr uint64_t kCounted = 100'000;
    uint64_t keys = server.keys()->count_keys(database, kCounted);
    if (keys == kCounted && database == 0) keys = server.store().size();
    if (keys > 0) line(out, "db{}:keys={},expires=0,avg_ttl=0", database, keys);
  }
}

struct Section {
  std::string_view name;
  bool is_default;
  void (*add)(Server& server, std::string& out);
};
constexpr Section kSections[] = {
    {"Server", true, add_server},
    {"Clients", true, add_clients},
    {"Memory", true, add_memory},
    {"Persistence", true, add_persistence},
    {"Stats", true, add_stats},
    {"Replication", true, add_replication},
    {"Commandstats", false, add_commandstats},
    {"Latencystats", false, add_latencystats},
    {"Keyspace", true, add_keyspace},
};

// Of Prometheus.
void metric(std::string& out, std::string_view name, std::string_view kind, std::string_view help,
            double value) {
  fmt::format_to(std::back_inserter(out), "# HELP perdure_{0} {1}\n# TYPE perdure_{0} {2}\n", name,
                 help, kind);
  fmt::format_to(std::back_inserter(out), "perdure_{} {}\n", name, value);
}

void add_histograms(std::string_view name, std::string_view help,
                    const std::function<const CommandMetrics&(size_t)>& metrics_of,
                    std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 "# HELP perdure_{0}_seconds {1}\n# TYPE perdure_{0}_seconds histogram\n", name,
                 help);
  for (const Command& command : commands()) {
    const Histogram& latency = metrics_of(number_of(command)).latency;
    if (latency.count() == 0) continue;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < Histogram::kBuckets; ++i) {
      sum += latency.in_bucket(i);
      if (i % 4 != 3) continue;  // powers of two are enough
      fmt::format_to(std::back_inserter(out),
                     "perdure_{}_seconds_bucket{{command=\"{}\",le=\"{:.9f}\"}} {}\n", name,
                     command.name, static_cast<double>(Histogram::end_ns(i)) / 1e9, sum);
    }
    fmt::format_to(std::back_inserter(out),
                   "perdure_{3}_seconds_bucket{{command=\"{0}\",le=\"+Inf\"}} {1}\n"
                   "perdure_{3}_seconds_sum{{command=\"{0}\"}} {2:.9f}\n"
                   "perdure_{3}_seconds_count{{command=\"{0}\"}} {1}\n",
                   command.name, latency.count(), static_cast<double>(latency.sum_ns()) / 1e9,
                   name);
  }
  fmt::format_to(std::back_inserter(out),
                 "# HELP perdure_{0}_failures_total Those that answered with an error\n"
                 "# TYPE perdure_{0}_failures_total counter\n",
                 name);
  for (const Command& command : commands()) {
    const CommandMetrics& one = metrics_of(number_of(command));
    if (one.failed + one.rejected == 0) continue;
    fmt::format_to(std::back_inserter(out), "perdure_{}_failures_total{{command=\"{}\"}} {}\n",
                   name, command.name, one.failed + one.rejected);
  }
}

}  // namespace

double statistic(const std::vector<Statistic>& all, std::string_view name) {
  for (const Statistic& one : all) {
    if (one.name == name) return one.value;
  }
  return 0;
}

uint64_t resident_bytes() {
  unsigned long total = 0;
  unsigned long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return read == 2 ? uint64_t{resident} * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

std::string info_text(Server& server, std::string_view section) {
  const bool all = same_word(section, "ALL") || same_word(section, "EVERYTHING");
  std::string out;
  for (const Section& one : kSections) {
    std::string upper(one.name);
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const bool wanted =
        all || (same_word(section, "DEFAULT") ? one.is_default : same_word(section, upper));
    if (!wanted) continue;
    if (!out.empty()) out += "\r\n";
    line(out, "# {}", one.name);
    one.add(server, out);
  }
  return out;
}

std::string prometheus_text(Server& server) {
  const Metrics& metrics = server.metrics();
  const auto number = [](auto value) { return static_cast<double>(value); };
  std::string out;
  metric(out, "up", "gauge", "Whether the store answers", server.keys() != nullptr ? 1 : 0);
  metric(out, "loading", "gauge", "Whether a part of it is still being opened",
         server.is_loading() ? 1 : 0);
  metric(out, "uptime_seconds", "gauge", "Since the start", number(server.uptime_s()));
  metric(out, "connections", "gauge", "Connections now", number(metrics.connections.load()));
  metric(out, "connections_accepted_total", "counter", "Connections accepted",
         number(metrics.connections_accepted.load()));
  metric(out, "connections_refused_total", "counter", "Connections refused: there were too many",
         number(metrics.connections_refused.load()));
  metric(out, "connections_timed_out_total", "counter", "Connections closed for their silence",
         number(metrics.connections_timed_out.load()));
  metric(out, "received_bytes_total", "counter", "Bytes from clients",
         number(metrics.bytes_in.load()));
  metric(out, "sent_bytes_total", "counter", "Bytes to clients", number(metrics.bytes_out.load()));
  metric(out, "commands_total", "counter", "Commands of RESP", number(metrics.commands));
  metric(out, "memcached_commands_total", "counter", "Commands of memcached",
         number(metrics.memcached_commands));
  metric(out, "lookup_hits_total", "counter", "Lookups that found a key",
         number(metrics.keyspace_hits));
  metric(out, "lookup_misses_total", "counter", "Lookups that found none",
         number(metrics.keyspace_misses));
  metric(out, "turns_total", "counter", "Turns of the loops", number(metrics.turns));
  metric(out, "write_turns_total", "counter", "Turns whose writes shared a fence",
         number(metrics.write_turns));
  metric(out, "fence_failures_total", "counter", "Turns whose writes may not be durable",
         number(metrics.fence_failures));
  metric(out, "resident_bytes", "gauge", "Memory of the process, with what it has mapped and used",
         number(resident_bytes()));
  if (server.keys() != nullptr) {
    metric(out, "recovery_seconds", "gauge", "How long the store took to open",
           server.recovery_s());
    for (const Statistic& one : server.store().statistics()) {
      metric(out, "store_" + one.name, "gauge", "Of the store, in " + one.unit, one.value);
    }
    const PoolInfo pool = server.pool().info();
    metric(out, "pool_capacity_bytes", "gauge", "What the pool may grow to",
           number(pool.capacity_bytes));
    metric(out, "pool_size_bytes", "gauge", "What it occupies", number(pool.size_bytes));
  }
  if (Follower* follower = server.is_follower() ? server.follower() : nullptr) {
    const Follower::Standing standing = follower->standing();
    const auto figure = [&](uint64_t value, double unit) {
      return value == ~uint64_t{0} ? -1 : number(value) / unit;
    };
    metric(out, "follow_up", "gauge", "Whether the leader's log is followed",
           standing.link == Follower::Link::kFollowing ? 1 : 0);
    metric(out, "follow_records_behind", "gauge",
           "Writes that the leader has beyond, at most; -1: unknown",
           figure(standing.records_behind, 1));
    metric(out, "follow_bytes_behind", "gauge", "The same in bytes of its log, about",
           figure(standing.bytes_behind, 1));
    metric(out, "follow_seconds_behind", "gauge", "Since all was here that the leader had",
           figure(standing.ms_behind, 1e3));
    metric(out, "follow_applied_writes_total", "counter", "Writes of the leader that were applied",
           number(standing.applied));
    metric(out, "follow_copies_total", "counter", "Copies of the leader", number(standing.copies));
  }
  uint64_t connected = 0;
  uint64_t furthest = 0;
  for (const auto& [id, one] : server.replicas()) {
    connected += one.connection != 0 ? 1 : 0;
    furthest = std::max(furthest, one.bytes_left);
  }
  metric(out, "followers", "gauge", "Followers that are connected", number(connected));
  metric(out, "follower_bytes_behind", "gauge", "Log that the last of all known followers lacks",
         number(furthest));
  add_histograms(
      "command", "Time in which commands were carried out, without the fence",
      [&](size_t i) -> const CommandMetrics& { return server.metrics_of(i); }, out);
  add_histograms(
      "memcached_command", "The same of memcached's requests, by what they would be in Redis",
      [&](size_t i) -> const CommandMetrics& { return server.memcached_metrics_of(i); }, out);
  return out;
}

}  // namespace perdure::server
