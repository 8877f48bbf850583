// perdure trace: what a recorded run did to persistent memory, event by event.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>

#include "cli/command.h"
#include "common/units.h"
#include "lab/crash/sites.h"
#include "lab/crash/trace.h"

namespace perdure::cli {
namespace {

struct TraceCommandOptions {
  std::string file;
  uint64_t from = 0;
  std::string count = "0";
};

const char* name_of(lab::EventKind kind) {
  static constexpr const char* kNames[] = {"load",     "store", "update", "stream",
                                           "flush",    "fence", "locked", "sync",
                                           "allocate", "begin", "end"};
  return kNames[static_cast<size_t>(kind)];
}

void print_event(const lab::crash::Trace& trace, uint64_t number, const std::string& place) {
  using lab::EventKind;
  const lab::crash::TraceEvent& event = trace.events[number];
  std::string detail;
  if (event.kind == EventKind::kBegin) {
    detail = fmt::format("{} ({})", trace.operation_types[event.data], event.operation);
  } else if (lab::crash::is_store(event.kind)) {
    const unsigned char* bytes = trace.stored(event);
    detail = fmt::format("{:#x} +{} =", event.offset, event.bytes);
    for (uint64_t i = 0; i < std::min<uint64_t>(event.bytes, 16); ++i) {
      detail += fmt::format(" {:02x}", bytes[i]);
    }
    if (event.bytes > 16) detail += " ...";
  } else if (event.bytes > 0) {
    detail = fmt::format("{:#x} +{}", event.offset, event.bytes);
  }
  fmt::print("{:>9}  t{:<3} {:<7} {:<60} {}\n", number, event.thread, name_of(event.kind), detail,
             place);
}

void print_summary(const lab::crash::Trace& trace, const std::string& file) {
  std::array<uint64_t, 11> counts{};
  uint16_t threads = 0;
  for (const auto& event : trace.events) {
    ++counts[static_cast<size_t>(event.kind)];
    threads = std::max<uint16_t>(threads, event.thread);
  }
  fmt::print("{}: {} of {} bytes, {} events of {} thread(s), {} bytes stored\n", file,
             trace.region_name, format_count(trace.region_bytes), format_count(trace.events.size()),
             threads + 1, format_count(trace.data.size()));
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind] == 0) continue;
    fmt::print("  {:<9} {:>12}\n", name_of(static_cast<lab::EventKind>(kind)),
               format_count(counts[kind]));
  }
}

int run_command(const TraceCommandOptions& options) {
  const lab::crash::Trace trace = lab::crash::Trace::load(options.file);
  const uint64_t count = parse_count(options.count);
  if (count == 0) {
    print_summary(trace, options.file);
    return kExitOk;
  }
  const lab::crash::SiteNames names(trace);
  const uint64_t end = std::min<uint64_t>(trace.events.size(), options.from + count);
  for (uint64_t number = options.from; number < end; ++number) {
    print_event(trace, number, names.of(trace.events[number].pc));
  }
  return kExitOk;
}

}  // namespace

void add_trace(CLI::App& app, Action& action) {
  auto options = std::make_shared<TraceCommandOptions>();
  CLI::App* command = add_command(
      app, "trace", "Show what a recorded run did to persistent memory, event by event",
      "  perdure trace run.trace\n"
      "  perdure trace run.trace --from 1200 --count 50\n"
      "\n"
      "Traces are what `perdure crash --keep-trace` writes. Events come with the places in\n"
      "the program that made them.\n");
  command->add_option("FILE", options->file, "The trace")->required();
  command->add_option("--from", options->from, "The first event to show")->capture_default_str();
  command->add_option("--count", options->count, "How many events to show; 0: a summary")
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { return run_command(*options); }; });
}

}  // namespace perdure::cli
