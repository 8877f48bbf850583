// The guided demonstration: real data is loaded durably, the loader is killed half-way, and
// everything that it had acknowledged is shown to be there.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "perdure/pool.h"

namespace perdure::cli {

struct QuickstartOptions {
  std::string folder = "./perdure-data";
  unsigned threads = 1;
  bool keep = false;   // leave the pool and its source in the folder
  bool quiet = false;  // print no steps
  std::string source;  // a TSV or JSON lines file; empty: WordNet and the Debian package index
};

struct QuickstartReport {
  uint64_t records = 0;
  uint64_t source_bytes = 0;
  uint64_t acknowledged_before_kill = 0;
  bool killed = false;  // false if the loader had ended before the signal came
  uint64_t present_after_kill = 0;
  uint64_t lost = 0;                  // acknowledged and not there after the kill
  uint64_t wrong = 0;                 // there after the kill with a value that is not the source's
  double recovery_ms = 0;             // opening pool and structure after the kill
  uint64_t loaded_after_kill = 0;     // by the load that finishes the work
  double load_seconds = 0;            // of that load
  uint64_t verified = 0;              // records equal to the source at the end
  uint64_t excess = 0;                // records at the end that the source does not have
  std::vector<std::string> problems;  // found by the check of the whole pool
  double dram_bytes = 0;
  PoolInfo pool{};
  std::vector<std::pair<std::string, std::string>> looked_up;
  uint64_t served_asked =
      0;  // of the server on the pool, through RESP and memcached, around a SIGKILL
  uint64_t served_right = 0;
  double served_first_answer_ms = 0;  // after the SIGKILL, from its start

  bool sound() const;
};

// Runs it. Throws Error when it cannot; losses are told in the report.
QuickstartReport run_quickstart(const QuickstartOptions& options);

nlohmann::json to_json(const QuickstartReport& report);

}  // namespace perdure::cli
