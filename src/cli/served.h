// A server on a pool, asked through both of its protocols, killed, and asked again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace perdure::cli {

struct ServedReport {
  uint64_t asked = 0;          // questions, before and after the kill
  uint64_t right = 0;          // answers that were as they must be
  double first_answer_ms = 0;  // from the start of the second server to its first right answer
};

// Starts `perdure serve` on the pool, asks for the records through RESP and memcached, writes a
// record of its own, kills the server with SIGKILL, and does so again; the record that was
// acknowledged must be there. It is removed at the end. Throws Error(kIo) if the server does not
// start.
ServedReport serve_and_ask(const std::string& pool, uint64_t writes,
                           const std::vector<std::pair<std::string, std::string>>& records);

}  // namespace perdure::cli
