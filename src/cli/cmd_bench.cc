// perdure bench: structures under load, beside the machine's own limits.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "lab/bench/bench.h"
#include "lab/bench/report.h"
#include "lab/units.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct BenchCommandOptions {
  lab::BenchOptions bench;
  std::string records = "1M";
  std::string operations = "1M";
  std::vector<std::string> mixes = {"lookup"};
  std::string keys = "mixed";
  std::string key_kind = "u64";
  std::string value_kind = "u64";
  std::string key_size = "16";
  std::string value_size = "64";
  std::string capacity;
  std::string domain;
  std::vector<std::string> options;
  bool json = false;
};

lab::BenchOptions resolve(const BenchCommandOptions& options) {
  lab::BenchOptions bench = options.bench;
  bench.records = lab::parse_count(options.records);
  bench.operations = lab::parse_count(options.operations);
  bench.mixes.clear();
  for (const std::string& mix : options.mixes) bench.mixes.push_back(lab::Mix::parse(mix));
  bench.key_order = lab::parse_key_order(options.keys);
  bench.key_kind = parse_kind(options.key_kind);
  bench.value_kind = parse_kind(options.value_kind);
  bench.key_bytes = lab::parse_bytes(options.key_size);
  bench.value_bytes = lab::parse_bytes(options.value_size);
  if (!options.capacity.empty()) bench.capacity_bytes = lab::parse_bytes(options.capacity);
  if (!options.domain.empty()) bench.domain = parse_domain(options.domain);
  bench.structure_options = parse_structure_options(options.options);
  return bench;
}

int run_command(const BenchCommandOptions& options) {
  const lab::BenchOptions bench = resolve(options);
  const InterruptFlag interrupt;
  lab::BenchReport report;
  {
    ProgressBar bar("ops");
    report = lab::run_bench(bench, bar.sink(), interrupt.raised());
  }
  fmt::print("{}", options.json ? lab::to_json(report).dump(2) + "\n" : lab::to_table(report));
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
  command
      .add_option("--mix", options.mixes,
                  "Operations and their shares: insert, lookup, update, upsert, remove; may be "
                  "repeated, each mix gets a fresh pool")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(group);
  command.add_option("--threads", options.bench.threads, "A list, such as 1,2,4")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->capture_default_str()
      ->group(group);
  command.add_option("--keys", options.keys, "mixed (uniform) or sequential")
      ->check(CLI::IsMember({"mixed", "sequential"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--key-kind", options.key_kind, "u64 or bytes")
      ->check(CLI::IsMember({"u64", "bytes"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--value-kind", options.value_kind, "u64 or bytes")
      ->check(CLI::IsMember({"u64", "bytes"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--key-size", options.key_size, "Bytes of a byte-string key, 8 at least")
      ->capture_default_str()
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
  command.add_option("--path", options.bench.folder, "Folder for the pools, removed at the end")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--domain", options.domain,
                  "Force page, line or byte (default: line on tmpfs, elsewhere as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}))
      ->group(group);
  command
      .add_option("--capacity", options.capacity,
                  "Of each pool (default: three times the raw bytes, 64M at least)")
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

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<BenchCommandOptions>();
  CLI::App* command = add_command(
      app, "bench", "Measure structures: a load phase, a run phase, sizes and times to open",
      "  perdure bench plush --records 10M --operations 10M --mix insert --threads 1,2\n"
      "  perdure bench plush null --mix lookup=.5,update=.5 --repeats 5\n"
      "  perdure bench plush --key-kind bytes --value-kind bytes --value-size 1K --mix upsert\n"
      "  perdure bench plush --kill-recovery --operations 0 --json > result.json\n"
      "\n\"null\" is a structure that does nothing: it measures the benchmark itself. ns/op is "
      "the\n"
      "time of one thread. \"x floor\" compares it with one sequential 64-byte store + flush +\n"
      "fence, \"x read\" with one dependent random read over as much memory as the pool has, both\n"
      "measured on this machine in the same run. Ctrl-C prints what was measured so far. Exit "
      "code\n"
      "3 says that a structure gave wrong answers.\n");
  command
      ->add_option("STRUCTURE", options->bench.structures,
                   "Structures to measure, side by side; see `perdure list`, and null")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  add_workload_options(*command, *options);
  add_run_options(*command, *options);
  add_json_flag(*command, options->json);
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
