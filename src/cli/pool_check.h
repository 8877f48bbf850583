// The offline check of a whole pool: header, directory, heap, every structure, and that every block
// of the heap belongs to exactly one of them.
#pragma once

#include <string>
#include <vector>

namespace perdure::cli {

struct PoolCheck {
  size_t structures = 0;
  std::vector<std::string> problems;  // one sentence each; empty for a sound pool
};

// Opens the pool read-only and checks it; modifies nothing. Damage of any kind is a problem in the
// result. The work is done in a child process: damage that makes even the check fault, or run
// longer than `time_limit_s`, is a problem like others. Throws what Pool::open throws when the file
// cannot be reached or read.
PoolCheck check_pool(const std::string& path, unsigned time_limit_s = 3600);

}  // namespace perdure::cli
