// The study of the database's buffer pool in persistent memory. Lersch's dissertation (TU Dresden,
// 2020, chapter 4) measured what checksums cost an update, and sketched the rest: how a database
// comes back from a crash, and what a share of DRAM is worth. This measures all of it, and TPC-C
// beside RocksDB and LMDB.
//
//   BufferStudyOptions options{.parts = {"restart"}};
//   const json study = run_buffer_study(options, progress, stop);
//   fmt::print("{}", buffer_table(study));
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/progress.h"
#include "lab/study/buffer/tpcc.h"

namespace perdure::lab::study {

struct BufferStudyOptions {
  std::vector<std::string> parts = {"updates", "restart", "dram", "peers", "kills"};
  unsigned threads = 2;
  unsigned repeats = 1;
  uint64_t seed = 1;
  std::string folder = "/dev/shm";

  // updates: pages of so many bytes in all, and updates for each figure
  uint64_t pages_bytes = uint64_t{128} << 20;
  uint64_t updates = 100'000;

  // restart, dram
  uint64_t records = 500'000;  // of 8 + value_bytes
  uint64_t value_bytes = 100;
  double pool_percent = 100;  // memory for pages, of all pages
  double dram_percent = 20;   // of that memory
  std::vector<double> dram_percents = {0, 20, 40, 60, 80, 100};
  std::vector<std::string> restarts = {"aries", "instant", "ours"};
  std::string mix = "a";  // YCSB's: a (half updates), b (a twentieth), c (none); of restart
  std::string distribution = "zipfian";
  uint64_t log_bytes = uint64_t{32} << 20;
  double latency_us = 80;         // of a page read from the SSD
  double write_latency_us = 20;   // of one written, and of a sync
  double pm_ns = 500;             // that each use of a page in PM takes longer than of one in DRAM
  std::string medium = "optane";  // for flushes and fences; empty: as they are
  double before_s = 4;            // before the crash; the last quarter of it is the peak
  double after_s = 6;             // half of it for each share of DRAM
  double window_s = 0.05;
  double sustained_s = 0.25;         // for so long it must be at 95 % of the peak
  double seconds = 1;                // of each throughput of dram, and of peers
  double dram_price = 1500.0 / 128;  // of a GiB
  double pm_price = 695.0 / 128;

  // peers, kills
  uint64_t peer_records = 200'000;  // of point reads and single updates
  TpccSize tpcc;
  uint64_t kills = 16;
};

// The study as docs/studies.md has its JSON. Set `stop` to end early with what is done. Throws
// Error on bad options. This process must have one thread: it forks those that it kills.
nlohmann::json run_buffer_study(const BufferStudyOptions& options, const ProgressSink& progress,
                                const std::atomic<bool>& stop);

// A table for each part, with the targets, and the conditions.
std::string buffer_table(const nlohmann::json& study);
// A page that needs nothing but itself.
std::string buffer_html(const nlohmann::json& study);

}  // namespace perdure::lab::study
