// What the dissertation on storage managers for persistent memory measured of LSM trees, repeated
// on this machine: LevelDB with its files in a pool, where writes are synced in groups, and where
// more or less of it is in DRAM; and RocksDB on an SSD, with a block cache in DRAM alone, or with a
// smaller one and, for the rest of its price, a block cache in persistent memory.
//
//   LsmStudyOptions options{.records = 4'000'000};
//   const json study = run_lsm_study(options, progress, stop);
//   fmt::print("{}", lsm_table(study));
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/progress.h"

namespace perdure::lab::study {

struct LsmStudyOptions {
  std::vector<std::string> parts = {"groups", "reads", "mixes", "cost", "restart"};
  // Of groups, reads and mixes: LevelDB.
  uint64_t level_records = 1'000'000;     // of 16 + value_bytes
  double seconds = 1;                     // that each figure is measured for
  std::vector<double> pm_times = {2, 5};  // persistent memory's latency, in DRAM's
  double dram_ns = 90;                    // which this is
  std::string disk_folder = ".";          // for files on a disk
  // Of cost and restart: RocksDB.
  uint64_t records = 4'000'000;  // of 8 + value_bytes
  uint64_t value_bytes = 100;
  double latency_us = 80;  // of a read from the SSD, which is emulated
  // In percent of the bytes of all records: the published 10, 2 and 17 of 110 GB.
  double dram_percent = 9.1;
  double dram_beside_percent = 1.8;
  double pm_percent = 15.5;
  double before_s =
      15;  // how long each is read before the restart; the last quarter of it is the peak
  double after_s = 15;        // and afterwards
  double window_s = 0.05;     // of which throughputs are told
  double sustained_s = 0.5;   // for so long it must be at 95 % of the peak
  double skew = 0.2;          // so many of the records get the others' share of the reads
  bool self_similar = false;  // and so on within these; else all of these are read alike
  bool in_dram = true;  // whether the cache in persistent memory keeps what the one in DRAM has
  unsigned threads = 1;
  unsigned repeats = 1;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";
};

// The study as docs/studies.md has its JSON. Set `stop` to end early with what is done. Throws
// Error on bad options, and if this build has no RocksDB.
nlohmann::json run_lsm_study(const LsmStudyOptions& options, const ProgressSink& progress,
                             const std::atomic<bool>& stop);

// Conditions, a row for each cache, and what was published.
std::string lsm_table(const nlohmann::json& study);
// A page that needs nothing but itself, with throughput over time.
std::string lsm_html(const nlohmann::json& study);

}  // namespace perdure::lab::study
