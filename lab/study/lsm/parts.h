// The parts of the study of LSM trees. Each gives a list of results.
#pragma once

#include <string>

#include "lab/study/lsm/lsm.h"

namespace perdure::lab::study::lsm {

using nlohmann::json;

// A part that runs: the study's options, and whom it tells how far it is.
struct Course {
  const LsmStudyOptions& options;
  const std::string& folder;  // of the study's own
  const ProgressSink& progress;
  const std::atomic<bool>& stop;

  void tell(const std::string& phase, double fraction) const {
    if (progress) progress({.phase = phase, .items = 0, .fraction = fraction, .detail = {}});
  }
};

json measure_groups(const Course& course);
json measure_reads(const Course& course);
json measure_mixes(const Course& course);
json measure_cost(const Course& course);
json measure_restarts(const Course& course);

}  // namespace perdure::lab::study::lsm
