#include "lab/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "build_info.h"

namespace perdure::lab {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// The chosen word of a line like "always within_size advise [never] deny force".
std::string bracketed_word(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('[');
  const size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos) return "";
  return line.substr(open + 1, close - open - 1);
}

std::string kernel_release() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.release;
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  machine.cpu = cpu_model();
  machine.processors = std::thread::hardware_concurrency();
  machine.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  machine.kernel = kernel_release();
#ifdef __clang__
  machine.compiler = __VERSION__;
#else
  machine.compiler = "GCC " __VERSION__;
#endif
  machine.flags = build_info::kFlags;
  machine.commit = build_info::kCommit;
#ifdef NDEBUG
  machine.build = "release";
#else
  machine.build = "debug";
#endif
  machine.shmem_huge = bracketed_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return machine;
}

}  // namespace perdure::lab
