// perdure crash: structures of the catalogue through every crash that the hardware allows.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "lab/crash/campaign.h"
#include "lab/crash/command.h"
#include "lab/crash/external_subject.h"
#include "lab/crash/index_subject.h"
#include "lab/crash/plan.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {
namespace {

struct CrashCommandOptions {
  std::vector<std::string> structures;
  std::string operations;
  std::string prepared;
  std::string keys;
  uint64_t seed = 1;
  std::string budget = "60s";
  std::vector<std::string> kinds;
  unsigned threads = 0;
  uint32_t batch = 1;
  uint64_t schedule = 0;
  unsigned schedules = 3;
  std::string domain = "line";
  std::string capacity;
  std::vector<std::string> options;
  std::string only;
  bool bulk = false;
  uint32_t reopen_each = 0;
  std::string room;
  bool mutate = false;
  std::string mutants;
  std::string again_at;
  double mutant_seconds = 20;
  uint64_t nested = 16;
  uint64_t deaths = lab::crash::ExploreOptions::kDeathsAsRecoveries;
  uint32_t crashes = 3;
  uint32_t work = 300;
  uint64_t complete = 64;
  uint64_t findings = 8;
  std::string keep_image;
  unsigned check_seconds = 0;
  std::string html;
  std::string program;
  std::string check;
  std::string keep_trace;
  std::string replay;
  bool json = false;
};

std::pair<Kind, Kind> parse_kinds(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" are no kinds; give u64/u64, bytes/bytes, u64/bytes or bytes/u64",
                    text));
  }
  return {parse_kind(text.substr(0, slash)), parse_kind(text.substr(slash + 1))};
}

std::vector<uint32_t> parse_numbers(const std::string& text) {
  std::vector<uint32_t> numbers;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    numbers.push_back(static_cast<uint32_t>(parse_count(part)));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The command that repeats one run.
std::string command_of(const lab::crash::IndexWorkload& workload) {
  std::string text = fmt::format(
      "perdure crash {} --kinds {}/{} --keys {} --prepared {} --operations {} --seed {} "
      "--threads {} --schedule {}",
      workload.structure, to_string(workload.key_kind), to_string(workload.value_kind),
      workload.keys, workload.prepared, workload.operations, workload.seed, workload.threads,
      workload.schedule);
  if (workload.capacity_bytes != lab::crash::IndexWorkload{}.capacity_bytes) {
    text += fmt::format(" --capacity {}", workload.capacity_bytes);
  }
  if (workload.batch > 1) text += fmt::format(" --batch {}", workload.batch);
  if (workload.domain != Domain::kLine) {
    text += fmt::format(" --domain {}", to_string(workload.domain));
  }
  for (const auto& [name, value] : workload.options)
    text += fmt::format(" --option {}={}", name, value);
  if (workload.bulk) text += " --bulk";
  if (workload.reopen_each != 0) text += fmt::format(" --reopen-each {}", workload.reopen_each);
  if (workload.room_bytes != 0) text += fmt::format(" --room {}", workload.room_bytes);
  if (workload.further != lab::crash::IndexWorkload{}.further) {
    text += fmt::format(" --work {}", workload.further);
  }
  return text;
}

lab::crash::CampaignRun make_run(const std::string& title,
                                 const lab::crash::IndexWorkload& workload,
                                 const std::string& only) {
  lab::crash::CampaignRun run;
  run.title = fmt::format("{} keys, {} values, {}", to_string(workload.key_kind),
                          to_string(workload.value_kind), title);
  run.command = command_of(workload);
  run.subject = std::make_unique<lab::crash::IndexSubject>(workload);
  run.only = parse_numbers(only);
  return run;
}

using KindPairs = std::vector<std::pair<Kind, Kind>>;

// Those that were asked for; else those with keys and values of the same kind.
KindPairs kinds_to_run(const CrashCommandOptions& options, const Traits& traits) {
  KindPairs kinds;
  for (const std::string& text : options.kinds) kinds.push_back(parse_kinds(text));
  if (!kinds.empty()) return kinds;
  for (const auto& pair : traits.kinds) {
    if (pair.first == pair.second) kinds.push_back(pair);
  }
  return kinds;
}

// The structures of the catalogue that can be run as asked; says which can't.
std::vector<std::string> all_structures(const CrashCommandOptions& options) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    const auto supports = [&](const auto& pair) {
      return std::ranges::find(entry.traits.kinds, pair) != entry.traits.kinds.end();
    };
    if (std::ranges::all_of(kinds_to_run(options, entry.traits), supports)) {
      names.push_back(entry.name);
    } else {
      fmt::print(stderr, "perdure: {} is left out: it does not support these kinds\n", entry.name);
    }
  }
  return names;
}

// Whether the user describes a workload. Else the structure's own are run.
bool is_described(const CrashCommandOptions& options) {
  return !options.operations.empty() || !options.prepared.empty() || !options.keys.empty() ||
         !options.capacity.empty() || !options.options.empty() || !options.only.empty() ||
         options.threads != 0 || options.schedule != 0 || options.batch != 1 || options.bulk ||
         options.reopen_each != 0 || !options.room.empty();
}

// What is run of one structure. As the user describes it, once with many keys and one thread, and
// with few keys and two threads, for conflicts.
std::vector<lab::crash::CampaignRun> make_runs(const CrashCommandOptions& options,
                                               const std::string& structure) {
  const CatalogEntry& entry = catalog_entry(structure);
  const Traits& traits = entry.traits;
  lab::crash::IndexWorkload base;
  base.structure = entry.name;
  if (!options.operations.empty()) {
    base.operations = static_cast<uint32_t>(parse_count(options.operations));
  }
  base.seed = options.seed;
  base.batch = options.batch;
  if (!options.capacity.empty()) base.capacity_bytes = parse_bytes(options.capacity);
  base.domain = parse_domain(options.domain);
  base.options = parse_structure_options(options.options);
  base.bulk = options.bulk;
  base.reopen_each = options.reopen_each;
  if (!options.room.empty()) base.room_bytes = parse_bytes(options.room);
  base.further = options.work;
  const KindPairs kinds = kinds_to_run(options, traits);
  std::vector<lab::crash::CampaignRun> runs;
  if (!is_described(options)) {
    for (const auto& [title, workload] : lab::crash::default_plan(base, kinds, options.schedules)) {
      runs.push_back(make_run(title, workload, ""));
    }
    return runs;
  }
  const auto add = [&](unsigned threads, uint32_t keys, uint32_t prepared, uint64_t schedule) {
    for (const auto& [key, value] : kinds) {
      lab::crash::IndexWorkload workload = base;
      workload.key_kind = key;
      workload.value_kind = value;
      workload.threads = threads;
      workload.keys =
          options.keys.empty() ? keys : static_cast<uint32_t>(parse_count(options.keys));
      workload.prepared = options.prepared.empty()
                              ? prepared
                              : static_cast<uint32_t>(parse_count(options.prepared));
      workload.schedule = schedule;
      const std::string title =
          threads == 1 ? "1 thread" : fmt::format("{} threads, order {}", threads, schedule);
      runs.push_back(make_run(title, workload, options.only));
    }
  };
  if (options.threads <= 1) add(1, 600, 900, 1);
  if (options.threads == 1 || !traits.concurrent) return runs;
  const unsigned threads = options.threads == 0 ? 2 : options.threads;
  if (options.schedule != 0) {
    add(threads, 12, 300, options.schedule);
  } else {
    for (uint64_t schedule = 1; schedule <= options.schedules; ++schedule) {
      add(threads, 12, 300, schedule);
    }
  }
  return runs;
}

// One run of somebody else's program.
std::vector<lab::crash::CampaignRun> make_program_run(const CrashCommandOptions& options) {
  if (options.check.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--program needs --check COMMAND, which recovers the file {} and prints what it "
                "holds");
  }
  lab::crash::ExternalProgram program;
  program.run = lab::crash::command_words(options.program);
  program.check = lab::crash::command_words(options.check);
  program.domain = parse_domain(options.domain);
  if (options.check_seconds != 0) program.check_seconds = options.check_seconds;
  std::vector<lab::crash::CampaignRun> runs(1);
  runs[0].title = "the program's run";
  runs[0].command =
      fmt::format("perdure crash --program '{}' --check '{}'", options.program, options.check);
  runs[0].subject = std::make_unique<lab::crash::ExternalSubject>(program);
  return runs;
}

// What of the exploration is not as by default, for the command that repeats it.
std::string exploration_options(const CrashCommandOptions& options) {
  const CrashCommandOptions defaults;
  std::string text;
  if (options.crashes != defaults.crashes) text += fmt::format(" --crashes {}", options.crashes);
  if (options.nested != defaults.nested) text += fmt::format(" --recoveries {}", options.nested);
  if (options.deaths != defaults.deaths) text += fmt::format(" --deaths {}", options.deaths);
  if (options.complete != defaults.complete)
    text += fmt::format(" --complete {}", options.complete);
  if (options.budget != defaults.budget) text += fmt::format(" --budget {}", options.budget);
  if (!options.again_at.empty()) text += fmt::format(" --again-at {}", options.again_at);
  return text;
}

// A trace is of one run: the first of those that were asked for.
void keep_or_replay(const CrashCommandOptions& options,
                    std::vector<lab::crash::CampaignRun>& runs) {
  if (options.keep_trace.empty() && options.replay.empty()) return;
  runs.resize(1);
  runs.front().keep_trace = options.keep_trace;
  runs.front().replay = options.replay;
}

// What this process was called as.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string text;
  for (std::string word; std::getline(in, word, '\0');) {
    const bool plain = word.find_first_of(" {}'\"|&;<>()*?[") == std::string::npos;
    text += fmt::format("{}{}", text.empty() ? "" : " ", plain ? word : "'" + word + "'");
  }
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) throw Error(ErrorCode::kIo, fmt::format("{}: cannot write the report", path));
}

int run_command(const CrashCommandOptions& options) {
  using namespace lab::crash;
  const InterruptFlag interrupt;
  std::vector<std::string> structures = options.structures;
  if (structures.empty() == options.program.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "give structures of the catalogue, or a program with --program and --check");
  }
  if (!options.program.empty()) structures = {"program"};
  if (structures == std::vector<std::string>{"all"}) structures = all_structures(options);
  CampaignOptions campaign;
  campaign.seconds = parse_duration_s(options.budget) / static_cast<double>(structures.size());
  campaign.mutate = options.mutate;
  campaign.mutants = options.mutants;
  campaign.again_at = options.again_at;
  campaign.mutant_seconds = options.mutant_seconds;
  campaign.explore.nested_max = options.nested;
  campaign.explore.deaths_max = options.deaths;
  campaign.explore.crashes = options.crashes;
  campaign.explore.work = options.work;
  campaign.explore.limits.complete_max = options.complete;
  campaign.explore.findings_max = options.findings;
  campaign.explore.image_folder = options.keep_image;
  if (!options.keep_image.empty()) std::filesystem::create_directories(options.keep_image);
  if (options.check_seconds != 0) {
    // A program's check runs twice for each image, and is to be stopped before the worker is.
    const unsigned runs = options.program.empty() ? 1 : 3;
    campaign.explore.worker.seconds = runs * options.check_seconds;
  }
  campaign.explore.seed = options.seed;
  campaign.stop = [&interrupt] { return interrupt.raised().load(); };
  std::vector<CampaignReport> reports;
  uint64_t findings = 0;
  for (const std::string& structure : structures) {
    ProgressBar bar("states");
    campaign.progress = [&](const std::string& phase, uint64_t states, double fraction) {
      bar.show({fmt::format("{}: {}", structure, phase), states, fraction});
    };
    auto runs = options.program.empty() ? make_runs(options, structure) : make_program_run(options);
    for (auto& run : runs) run.command += exploration_options(options);
    keep_or_replay(options, runs);
    if (interrupt.raised()) break;
    reports.push_back(run_campaign(std::move(runs), campaign));
    findings += reports.back().findings();
    bar.clear();
    if (!options.json) fmt::print("{}", to_text(reports.back()));
    std::fflush(stdout);
  }
  if (options.json) fmt::print("{}", to_json(reports));
  if (!options.html.empty()) {
    write_file(options.html, to_html(reports, {.command = command_line(), .seed = options.seed}));
  }
  if (interrupt.raised()) return kExitInterrupted;
  return findings == 0 ? kExitOk : 1;
}

void add_workload_options(CLI::App& command, CrashCommandOptions& options) {
  const std::string group = "Workload";
  command
      .add_option("--operations", options.operations,
                  "Operations explored in each run (default: 300)")
      ->group(group);
  command
      .add_option("--prepared", options.prepared,
                  "Operations before those (default: 900; with several threads 300)")
      ->group(group);
  command
      .add_option("--keys", options.keys,
                  "Different keys (default: 600; with several threads 12, for conflicts)")
      ->group(group);
  command
      .add_option("--kinds", options.kinds,
                  "Key and value kinds, such as u64/bytes (default: u64/u64 and bytes/bytes)")
      ->group(group);
  command.add_option("--seed", options.seed, "The same seed gives the same operations")
      ->capture_default_str()
      ->group(group);
  command.add_option("--threads", options.threads, "Threads (default: runs with 1 and with 2)")
      ->group(group);
  command
      .add_option("--batch", options.batch,
                  "Inserts, upserts and lookups in one call; with several threads 12 in all")
      ->check(CLI::Range(1U, lab::crash::kInFlightMax))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--schedules", options.schedules, "How many orders of the threads' steps to run")
      ->capture_default_str()
      ->group(group);
  command.add_option("--schedule", options.schedule, "Only this order")->group(group);
  command
      .add_option("--domain", options.domain,
                  "What persists when: line (flush and fence), byte (every store, in order: the "
                  "death of the process), page (msync)")
      ->capture_default_str()
      ->group(group);
  command.add_option("--capacity", options.capacity, "Of each pool (default: 8M)")->group(group);
  command
      .add_option("--option", options.options,
                  "NAME=VALUE, an option of the structures (default: as small as they can be); may "
                  "be repeated; see `perdure list`")
      ->group(group);
  command
      .add_flag("--bulk", options.bulk,
                "Write most records without waiting for them to be durable, and make checkpoints "
                "in between")
      ->group(group);
  command
      .add_option("--reopen-each", options.reopen_each,
                  "Close the structure and open it again before each so many operations")
      ->group(group)
      ->type_name("N");
  command
      .add_option("--room", options.room,
                  "Leave about so much of the pool's capacity, and fill the rest")
      ->group(group)
      ->type_name("BYTES");
}

void add_exploration_options(CLI::App& command, CrashCommandOptions& options) {
  const std::string group = "Exploration";
  command
      .add_option("--budget", options.budget,
                  "Time for exploring all structures: 30s, 10m, 1h; what it costs to mutate and to "
                  "shorten comes on top")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--complete", options.complete,
                  "Take all combinations of pending lines up to this many; beyond, a sample")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--crashes", options.crashes,
                  "Crashes in a row: recover, work on, crash again; 1 to 5")
      ->check(CLI::Range(1U, lab::crash::kCrashesMax))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--recoveries", options.nested,
                  "Images of each run that are crashed again, after recovery and work on them")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--deaths", options.deaths,
                  "Moments of each run at which the process dies, and the power fails only after "
                  "the next one has recovered and worked (default: as many as --recoveries)")
      ->group(group);
  command.add_option("--again-at", options.again_at,
                     "Crash again just before fences whose file, line or function contains this, "
                     "such as torn_bit_log.cc, and nowhere else (default: before any)");
  command
      .add_option("--findings", options.findings,
                  "Stop a run after so many different findings; those in operations of one type, "
                  "after the same store and with lost stores of the same places, are counted as "
                  "one")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--keep-image", options.keep_image,
                     "Leave the image of each finding in this folder");
  command
      .add_option("--check-seconds", options.check_seconds,
                  "How long a recovery, or the program's --check, may take before it is a hang "
                  "(default: 20; a program's check 10)")
      ->check(CLI::Range(1U, 3600U));
  command
      .add_option("--work", options.work,
                  "Operations between a recovery and the next crash: enough to use every ring, "
                  "journal and free list again")
      ->capture_default_str()
      ->group(group);
  command.add_option("--only", options.only, "Run only these operations, by number: 3,17,40")
      ->group(group);
  CLI::Option* mutate =
      command
          .add_flag("--mutate", options.mutate,
                    "Also drop each flush and fence in turn; each must be noticed")
          ->group(group);
  command
      .add_option("--mutants", options.mutants,
                  "Only those at places that contain this, such as migrator.cc or write.cc:132")
      ->needs(mutate)
      ->group(group);
  command.add_option("--mutant-seconds", options.mutant_seconds, "Time for each of them in a run")
      ->capture_default_str()
      ->group(group);
}

void add_program_options(CLI::App& command, CrashCommandOptions& options) {
  const std::string group = "Programs and traces";
  command
      .add_option("--program", options.program,
                  "Instead of structures: a command that runs a program built with perdure-c++; {} "
                  "stands for its file, which is new")
      ->group(group);
  command
      .add_option("--check", options.check,
                  "A command that recovers the file {} and prints all that a user would see")
      ->group(group);
  command
      .add_option("--keep-trace", options.keep_trace,
                  "Keep the trace of the first run in this file (see `perdure trace`), and run no "
                  "others")
      ->group(group);
  command
      .add_option("--replay", options.replay,
                  "Explore the trace in this file again, with the structure and kinds it was made "
                  "with")
      ->group(group);
}

}  // namespace

void add_crash(CLI::App& app, Action& action) {
  auto options = std::make_shared<CrashCommandOptions>();
  CLI::App* command = add_command(
      app, "crash", "Take structures, or a program of yours, through the crashes that may happen",
      "  perdure crash plush\n"
      "  perdure crash plush --operations 1k --budget 10m --mutate --html crash.html\n"
      "  perdure crash all --budget 5m --json\n"
      "  perdure crash plush --kinds bytes/bytes --threads 2 --schedules 20\n"
      "  perdure crash --program './table {} run 100' --check './table {} list'\n"
      "\nRuns a structure, builds the memory images that a crash at each flush and fence may "
      "leave,\n"
      "recovers each in a process of its own, and checks that every operation that returned is "
      "there,\n"
      "the one in flight wholly or not at all, nothing leaked, and the structure goes on working.\n"
      "docs/lab.md explains it. Exit code 1 says that there are findings.\n");
  command->add_option("STRUCTURE", options->structures,
                      "Structures, one after the other: see `perdure list`; or: all");
  add_workload_options(*command, *options);
  add_exploration_options(*command, *options);
  add_program_options(*command, *options);
  command->add_option("--html", options->html, "Write a report to this file");
  add_json_flag(*command, options->json);
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
