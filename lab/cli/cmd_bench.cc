// perdure bench: structures under load, beside the machine's own limits.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "lab/bench/bench.h"
#include "lab/bench/report.h"
#include "lab/bench/ycsb.h"
#include "lab/cli/commands.h"
#include "lab/cli/kinds.h"
#include "lab/serve/server_bench.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct BenchCommandOptions {
  lab::BenchOptions bench;
  std::string records = "1M";
  std::string operations = "1M";
  std::string warmup = "0";
  std::vector<std::string> mixes;
  std::vector<std::string> workloads;
  std::string distribution;
  std::string scan_length;
  std::string keys = "mixed";
  std::string key_kind;
  std::string value_kind;
  std::string key_size = "16";
  std::string value_size = "64";
  std::string capacity;
  std::string domain;
  std::string time_limit;
  std::string window = "100ms";
  std::vector<std::string> options;
  std::vector<std::string> plugins;
  std::string rates = "peak";
  std::string arrivals = "poisson";
  std::string server_cpus;
  std::string client_cpus;
  bool json = false;
  bool csv = false;
  const CLI::App* command = nullptr;

  bool given(const char* option) const { return command->count(option) > 0; }
};

// A file of YCSB's also says how many records, operations and so on; the command line goes before
// it.
void add_workload_file(const std::string& path, BenchCommandOptions& options) {
  const lab::YcsbFile file = lab::read_ycsb_file(path);
  lab::BenchOptions& bench = options.bench;
  bench.workloads.push_back(file.workload);
  bench.notes.insert(bench.notes.end(), file.unknown.begin(), file.unknown.end());
  if (file.records && !options.given("--records")) bench.records = *file.records;
  if (file.operations && !options.given("--operations")) bench.operations = *file.operations;
  if (file.threads && !options.given("--threads")) bench.threads = {*file.threads};
  if (file.time_limit_s && !options.given("--time")) bench.time_limit_s = *file.time_limit_s;
  if (file.value_bytes && !options.given("--value-size") && !options.given("--value-kind")) {
    bench.value_kind = Kind::kBytes;
    bench.value_bytes = *file.value_bytes;
  }
  if (file.sequential_keys && !options.given("--keys")) {
    bench.key_order = lab::KeyOrder::kSequential;
  }
}

void add_workloads(BenchCommandOptions& options) {
  lab::BenchOptions& bench = options.bench;
  bench.workloads.clear();
  for (const std::string& name : options.workloads) {
    if (const auto workload = lab::ycsb_workload(name)) {
      bench.workloads.push_back(*workload);
    } else {
      add_workload_file(name, options);
    }
  }
  if (options.mixes.empty() && options.workloads.empty()) options.mixes = {"lookup"};
  for (const std::string& mix : options.mixes) {
    bench.workloads.push_back(lab::Workload::of(lab::Mix::parse(mix)));
  }
  for (lab::Workload& workload : bench.workloads) {
    if (!options.distribution.empty()) {
      workload.distribution = lab::Distribution::parse(options.distribution);
    }
    if (!options.scan_length.empty()) {
      workload.scan_length = lab::ScanLength::parse(options.scan_length);
    }
  }
}

// Options of servers, and those of structures that servers do not have.
void resolve_servers(const BenchCommandOptions& options, lab::BenchOptions& bench) {
  lab::ServerOptions& server = bench.server;
  if (server.servers.empty()) {
    for (const char* option : {"--rate", "--arrivals", "--connections", "--pipeline",
                               "--server-cpus", "--client-cpus", "--server-threads"}) {
      if (!options.given(option)) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is for servers: name one with --server", option));
    }
    return;
  }
  for (const char* option : {"STRUCTURE", "--plugin", "--threads", "--batch", "--emulate",
                             "--domain", "--grow", "--small-pages", "--unverified", "--option",
                             "--pin", "--latency-sampling", "--key-kind", "--value-kind"}) {
    if (!options.given(option)) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is for structures, not for servers: leave it or --server out", option));
  }
  server.rates.clear();
  for (size_t begin = 0; begin <= options.rates.size();) {
    const size_t end = std::min(options.rates.find(',', begin), options.rates.size());
    server.rates.push_back(
        lab::OfferedRate::parse(std::string_view(options.rates).substr(begin, end - begin)));
    begin = end + 1;
  }
  server.uniform_arrivals = options.arrivals == "uniform";
  if (!options.server_cpus.empty()) {
    server.server_processors = lab::parse_processors(options.server_cpus);
  }
  if (!options.client_cpus.empty()) {
    server.client_processors = lab::parse_processors(options.client_cpus);
  }
}

lab::BenchOptions resolve(BenchCommandOptions options) {
  lab::BenchOptions& bench = options.bench;
  bench.records = parse_count(options.records);
  bench.operations = parse_count(options.operations);
  bench.warmup = parse_count(options.warmup);
  bench.key_order = lab::parse_key_order(options.keys);
  bench.url_keys = options.key_kind == "url";
  bench.key_kind = bench.url_keys ? Kind::kBytes
                                  : parse_kind(kind_or_default(options.key_kind, bench.structures));
  bench.value_kind = parse_kind(kind_or_default(options.value_kind, bench.structures));
  bench.key_bytes =
      bench.url_keys ? (lab::kUrlBytesMin + lab::kUrlBytesMax) / 2 : parse_bytes(options.key_size);
  bench.value_bytes = parse_bytes(options.value_size);
  bench.window_s = parse_duration_s(options.window);
  if (!options.time_limit.empty()) bench.time_limit_s = parse_duration_s(options.time_limit);
  if (!options.capacity.empty()) bench.capacity_bytes = parse_bytes(options.capacity);
  if (!options.domain.empty()) bench.domain = parse_domain(options.domain);
  bench.structure_options = parse_structure_options(options.options);
  add_workloads(options);
  resolve_servers(options, bench);
  if (bench.url_keys && !options.plugins.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "plug-ins have keys of one size: give --key-kind bytes");
  }
  bench.structures.insert(bench.structures.end(), options.plugins.begin(), options.plugins.end());
  return bench;
}

std::string in_format(const lab::BenchReport& report, const BenchCommandOptions& options) {
  if (options.json) return lab::to_json(report).dump(2) + "\n";
  return options.csv ? lab::to_csv(report) : lab::to_table(report);
}

// Libraries print, and what they print is not the result: while one of these lives, standard output
// is standard error.
class OutputAside {
 public:
  OutputAside() : output_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ~OutputAside() {
    std::fflush(stdout);
    if (output_ < 0) return;
    ::dup2(output_, STDOUT_FILENO);
    ::close(output_);
  }
  OutputAside(const OutputAside&) = delete;
  OutputAside& operator=(const OutputAside&) = delete;

 private:
  const int output_;
};

int run_command(const BenchCommandOptions& options) {
  const lab::BenchOptions bench = resolve(options);
  const InterruptFlag interrupt;
  lab::BenchReport report;
  {
    std::optional<OutputAside> aside;
    if (!options.plugins.empty()) aside.emplace();
    ProgressBar bar("ops");
    report = bench.server.servers.empty()
                 ? lab::run_bench(bench, bar.sink(), interrupt.raised())
                 : lab::serve::run_server_bench(bench, bar.sink(), interrupt.raised());
  }
  fmt::print("{}", in_format(report, options));
  // Of a table they are a part; who reads the others looks for figures, and is told what has none.
  for (const std::string& note : report.notes) {
    if (options.csv || (options.json && note.starts_with("skipped"))) {
      fmt::print(stderr, "perdure: {}\n", note);
    }
  }
  if (report.interrupted) return kExitInterrupted;
  return report.failed() > 0 ? kExitDamage : kExitOk;
}

void add_workload_options(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Workload";
  command.add_option("--records", options.records, "Records to load, such as 10M")
      ->capture_default_str()
      ->group(group);
  command.add_option("--operations", options.operations, "Operations to run then; 0: load only")
      ->capture_default_str()
      ->group(group);
  command.add_option("--warmup", options.warmup, "Operations before those, not measured")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--mix", options.mixes,
                  "Operations and their shares: insert, lookup, update, upsert, remove, scan, "
                  "scan-back (downwards), rmw (read-modify-write); may be repeated, each mix gets "
                  "a fresh pool (default: "
                  "lookup)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--workload", options.workloads,
                  "One of YCSB's by letter, a to f, or a file of its properties; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option(
          "--distribution", options.distribution,
          "Which records are addressed: uniform, zipfian=0.99, selfsimilar=0.2, sequential, "
          "latest=0.99 (default: uniform, or the workload's)")
      ->group(group);
  command
      .add_option("--scan-length", options.scan_length,
                  "Records of a scan, such as 100 or 1-100 (default: 100, or the workload's)")
      ->group(group);
  as_list(command.add_option("--threads", options.bench.threads, "A list, such as 1,2,4"))
      ->group(group);
  command
      .add_option(
          "--keys", options.keys,
          "How a record's number becomes its key: mixed (uniform), sequential, dense (the same "
          "numbers in random order), clustered (runs of 1,024), or pibench (its "
          "multiplicative hash)")
      ->check(CLI::IsMember({"mixed", "sequential", "pibench", "dense", "clustered"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--key-kind", options.key_kind,
                  "u64, bytes, or url: byte strings of 30 to 100 bytes like those of the web "
                  "(default: u64, or bytes if a structure takes nothing else)")
      ->check(CLI::IsMember({"u64", "bytes", "url"}))
      ->group(group);
  command.add_option("--value-kind", options.value_kind, "u64 or bytes (default: as for keys)")
      ->check(CLI::IsMember({"u64", "bytes"}))
      ->group(group);
  command
      .add_option("--key-size", options.key_size,
                  "Bytes of a byte-string key, 8 and the prefix's at least")
      ->capture_default_str()
      ->group(group);
  command.add_option("--key-prefix", options.bench.key_prefix, "Before every byte-string key")
      ->group(group);
  command.add_option("--value-size", options.value_size, "Bytes of a byte-string value")
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", options.bench.seed, "The same seed gives the same operations")
      ->capture_default_str()
      ->group(group);
}

void add_run_options(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Run";
  add_folder_option(command, options.bench.folder, "For the pools, which are removed", group);
  command
      .add_option("--domain", options.domain,
                  "Force page, line or byte (default: line on tmpfs, elsewhere as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}))
      ->group(group);
  command
      .add_option("--capacity", options.capacity,
                  "Of each pool (default: 4.5 times the raw bytes, 64M at least)")
      ->group(group);
  command
      .add_flag("!--grow", options.bench.reserve,
                "Let pools grow while they are measured; by default all of their capacity is "
                "reserved before")
      ->group(group);
  command
      .add_flag(
          "!--small-pages", options.bench.huge_pages,
          "Keep pools on small pages, as the files of peers and plug-ins are; by default they "
          "are on huge pages where the system has them")
      ->group(group);
  command
      .add_flag("!--unverified", options.bench.verify_payload,
                "Do not verify the checksums of byte strings that are read")
      ->group(group);
  command
      .add_option("--option", options.options,
                  "NAME=VALUE, an option of the structures; may be repeated; see `perdure list`")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--repeats", options.bench.repeats, "Repeats, of which medians are reported")
      ->capture_default_str()
      ->group(group);
  command.add_option("--time", options.time_limit, "Of each phase at most, such as 30s")
      ->group(group);
  command.add_option("--window", options.window, "Of the series of throughputs")
      ->capture_default_str()
      ->group(group);
  command.add_flag("--pin", options.bench.pinned, "Bind each thread to a processor")->group(group);
  command
      .add_option(
          "--emulate", options.bench.emulated_medium,
          "Slow persists down to those of a medium: optane, a profile of `perdure amp`, or a stall "
          "for each line that is flushed, such as 300ns")
      ->group(group);
  command
      .add_option("--batch", options.bench.batch,
                  "Inserts, upserts and lookups in one call; latencies are then those of batches")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--latency-sampling", options.bench.latency_sampling,
                  "Share of the operations that are timed one by one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--kill-recovery", options.bench.kill_recovery,
                "Also kill a loader with SIGKILL and time the opening of what it left")
      ->group(group);
}

void add_server_options(CLI::App& command, BenchCommandOptions& options) {
  const std::string group = "Servers";
  lab::ServerOptions& server = options.bench.server;
  command
      .add_option("--server", server.servers,
                  "In the place of structures: one to be started here (redis, redis+aof, "
                  "memcached, memcached:meta, "
                  "perdure, perdure:INDEX, perdure+memcached), or the address of one that runs "
                  "(redis://HOST:PORT, "
                  "memcached://HOST:PORT, unix:///PATH); may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--rate", options.rates,
                  "A list of what is offered: peak (each answer is followed by the next request), "
                  "requests in a "
                  "second (10k), shares of the slowest server's peak (80%); latencies of the "
                  "latter two count from "
                  "when a request was due")
      ->capture_default_str()
      ->group(group);
  command.add_option("--arrivals", options.arrivals, "Of requests at a rate: poisson or uniform")
      ->check(CLI::IsMember({"poisson", "uniform"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--connections", server.connections, "Of all clients")
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--pipeline", server.pipeline,
          "Requests that are sent together on a connection; at a rate, under way on it at most")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--server-cpus", options.server_cpus,
                  "Processors for servers, such as 0-3 (default: the first half)")
      ->group(group);
  command
      .add_option("--client-cpus", options.client_cpus,
                  "Processors for clients, a thread on each (default: the other half)")
      ->group(group);
  command
      .add_option("--server-threads", server.threads,
                  "Of each server but Redis (default: one for each of its processors)")
      ->group(group);
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<BenchCommandOptions>();
  CLI::App* command = add_command(
      app, "bench",
      "Measure structures, or servers: a load phase, a run phase, sizes and times to open",
      "  perdure bench plush --records 10M --operations 10M --mix insert --threads 1,2\n"
      "  perdure bench plush null --mix lookup=.5,update=.5 --repeats 5\n"
      "  perdure bench plush cceh rocksdb lmdb dram-hash --workload a --workload b\n"
      "  perdure bench plush --mix upsert --distribution zipfian=0.99 --time 30s --csv\n"
      "  perdure bench plush --key-kind bytes --value-kind bytes --value-size 1K --mix upsert\n"
      "  perdure bench store store+ordered store+pm rocksdb leveldb lmdb --mix lookup\n"
      "  perdure bench plush --plugin ./libfptree.so --threads 1,2\n"
      "  perdure bench plush --kill-recovery --operations 0 --json > result.json\n"
      "  perdure bench --server perdure --server redis --server memcached --workload a --rate "
      "peak,50%,80%\n"
      "\nThe store is measured with an index by hash (store, or rstore), an ordered one "
      "(store+ordered) and\none in PM (store+pm); its keys and values are byte strings.\n"
      "\nBeside structures: \"null\" does nothing and measures the benchmark itself; database\n"
      "is Perdure's own, with a transaction an operation; rocksdb, leveldb\n"
      "and lmdb (each also with -nosync) are stores that you might take instead; dram-hash and\n"
      "dram-btree are what volatile memory gives. ns/op is the time of one thread. \"x floor\"\n"
      "compares it with one sequential 64-byte store + flush + fence, \"x read\" with one "
      "dependent\n"
      "random read over as much memory as the pool has, both measured on this machine in the same\n"
      "run. Ctrl-C prints what was measured so far. Exit code 3 says that a structure gave wrong\n"
      "answers. How to measure well: docs/benchmarking.md.\n");
  command
      ->add_option("STRUCTURE", options->bench.structures,
                   "What to measure, side by side: see `perdure list`, and below")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--plugin", options->plugins,
                   "A library built for PiBench, to measure beside or instead; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  add_workload_options(*command, *options);
  add_run_options(*command, *options);
  add_server_options(*command, *options);
  add_json_flag(*command, options->json);
  command->add_flag("--csv", options->csv, "Print one line of comma-separated values a result")
      ->excludes("--json");
  options->command = command;
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
