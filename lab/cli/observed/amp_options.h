// What `perdure amp` and `perdure study write-amplification` have in common on the command line:
// which structures run what, on which model.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lab/amp/amp.h"

namespace perdure::cli {

struct AmpChoices {
  std::vector<std::string> structures;
  std::vector<std::string> workloads;
  std::string records;
  std::string operations;
  std::string profile = "optane-100";
  bool no_scale = false;
  std::vector<uint64_t> threads = {1};
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
  std::string capacity;
};

// Throws Error(kInvalidArgument). Records that are not given stay as AmpOptions has them.
lab::AmpOptions resolve(const AmpChoices& choices);

// --workload, --records, --operations and --seed.
void add_workload_options(CLI::App& command, AmpChoices& choices, const std::string& group);
// --profile, --no-scale and --threads.
void add_model_options(CLI::App& command, AmpChoices& choices, const std::string& group);

}  // namespace perdure::cli
