// The parts of the study of the buffer pool. Each gives a list of results.
#pragma once

#include <string>

#include "lab/study/buffer/buffer_pool.h"

namespace perdure::lab::study::buffer_pool {

using nlohmann::json;

// One part of a study that runs: its options, and whom it tells how far it is.
struct Course {
  const BufferStudyOptions& options;
  const std::string& folder;  // of the study's own
  const ProgressSink& progress;
  const std::atomic<bool>& stop;

  void tell(const std::string& phase, double fraction) const {
    if (progress) progress({.phase = phase, .items = 0, .fraction = fraction, .detail = {}});
  }
};

json measure_updates(const Course& course);
json measure_restarts(const Course& course);
json measure_dram_shares(const Course& course);
json measure_peers(const Course& course);
json measure_kills(const Course& course);

}  // namespace perdure::lab::study::buffer_pool
