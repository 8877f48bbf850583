// What a measurement was made on.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::lab {

struct Machine {
  std::string cpu;      // model name
  unsigned processors;  // usable by this process
  uint64_t memory_bytes;
  std::string kernel;
  std::string compiler;
  std::string flags;       // of the compiler
  std::string build;       // "release" or "debug"
  std::string commit;      // of the source; "unknown" outside a checkout
  std::string shmem_huge;  // the kernel's choice of huge pages for tmpfs; empty if unknown
};

Machine describe_machine();

}  // namespace perdure::lab
