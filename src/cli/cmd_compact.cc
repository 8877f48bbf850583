// perdure pool compact: a pool without the room that nothing is in.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/compact.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "common/units.h"
#include "perdure/block_cache.h"
#include "perdure/files.h"

namespace perdure::cli {
namespace {

void print_report(const Target& target, const CompactReport& report) {
  if (target.json) {
    nlohmann::json structures = nlohmann::json::array();
    for (const CompactedStructure& one : report.structures) {
      structures.push_back(
          {{"name", one.info.name}, {"type", one.info.type}, {"records", one.records}});
    }
    const nlohmann::json object = {{"pool", target.pool},
                                   {"size_bytes_before", report.bytes_before},
                                   {"size_bytes", report.bytes_after},
                                   {"structures", structures}};
    fmt::print("{}\n", object.dump(2));
    return;
  }
  for (const CompactedStructure& one : report.structures) {
    fmt::print("{} ({}): {}\n", one.info.name, one.info.type,
               format_counted(one.records, one.info.type == Files::kTypeName        ? "file"
                                           : one.info.type == BlockCache::kTypeName ? "block"
                                                                                    : "record"));
  }
  fmt::print("{}: occupies {}, before {}\n", target.pool, format_bytes(report.bytes_after),
             format_bytes(report.bytes_before));
}

int run_compact(const Target& target) {
  try {
    const InterruptFlag interrupt;
    CompactReport report;
    {
      ProgressBar bar("records");
      report =
          compact_pool(target.pool, pool_options_for(target, {}), bar.sink(), interrupt.raised());
    }
    print_report(target, report);
    return kExitOk;
  } catch (const CompactInterrupted&) {
    fmt::print(stderr, "perdure: stopped; nothing was changed\n");
    return kExitInterrupted;
  }
}

}  // namespace

void add_pool_compact(CLI::App& pool, Action& action) {
  auto target = std::make_shared<Target>();
  CLI::App* command = add_command(
      pool, "compact", "Make a pool anew without the room that nothing is in",
      "  perdure pool compact words.pool\n"
      "\nAll structures are copied to POOL.<uuid>.compacting, which is checked and then takes\n"
      "the pool's name: a crash or Ctrl-C leaves the old pool or the new one, whole. What a\n"
      "crash leaves of the copy is removed by the next call. It needs room for the copy, and\n"
      "says how much if there is less. Owner, group and permissions stay; who cannot give\n"
      "them to the copy is refused, and so is a file with several hard links. Structures are\n"
      "made anew with default options. A store keeps the expiry of its records, and gets new\n"
      "versions. The pool is another one then: backups with --base begin anew, and a database\n"
      "that has an archive needs another file for --archive.\n");
  command->add_option("POOL", target->pool, "The pool file")->required();
  command
      ->add_option("--domain", target->domain,
                   "Force what makes a store durable: page, line or byte (default: as detected)")
      ->check(CLI::IsMember({"page", "line", "byte"}));
  add_json_flag(*command, target->json);
  command->callback([target, &action] { action = [target] { return run_compact(*target); }; });
}

}  // namespace perdure::cli
