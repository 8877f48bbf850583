#include "lab/cli/observed/amp_options.h"

#include "common/units.h"

namespace perdure::cli {

lab::AmpOptions resolve(const AmpChoices& choices) {
  lab::AmpOptions amp;
  amp.structures = choices.structures;
  amp.workloads.clear();
  for (const std::string& name : choices.workloads) {
    amp.workloads.push_back(lab::amp_workload(name));
  }
  if (!choices.records.empty()) amp.records = parse_count(choices.records);
  if (!choices.operations.empty()) amp.operations = parse_count(choices.operations);
  amp.profile = lab::load_profile(choices.profile);
  if (!choices.no_scale) lab::scale_cache(amp.profile, amp.records);
  amp.threads = choices.threads;
  amp.seed = choices.seed;
  amp.folder = choices.folder;
  if (!choices.capacity.empty()) amp.capacity_bytes = parse_bytes(choices.capacity);
  return amp;
}

void add_workload_options(CLI::App& command, AmpChoices& choices, const std::string& group) {
  as_list(command.add_option(
              "--workload", choices.workloads,
              "A list of load (inserts only), a (half inserts, half lookups), b (5 % inserts), "
              "c (lookups only)"))
      ->group(group);
  command
      .add_option("--records", choices.records,
                  "Records to load, such as 4M (default: 1M); scales the modelled cache")
      ->group(group);
  command
      .add_option("--operations", choices.operations,
                  "Operations of a, b and c (default: as many as records)")
      ->group(group);
  command.add_option("--seed", choices.seed, "The same seed gives the same counts")
      ->capture_default_str()
      ->group(group);
}

void add_model_options(CLI::App& command, AmpChoices& choices, const std::string& group) {
  command
      .add_option("--profile", choices.profile,
                  "optane-100, optane-200, eadr, nvdimm, cxl, or a JSON file")
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--no-scale", choices.no_scale,
                "The profile's own cache, not that share of it which the records are of 64 M")
      ->group(group);
  as_list(command.add_option("--threads", choices.threads,
                             "Estimate the time for so many threads; a list, such as 1,2,4"))
      ->group(group);
}

}  // namespace perdure::cli
