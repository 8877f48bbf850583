#include "lab/bench/processors.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "perdure/error.h"

namespace perdure::lab {
namespace {

[[noreturn]] void refuse_processors(std::string_view text) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" are no processors to run on: give numbers and ranges, such as "
                          "0-3,8, of {}",
                          text, fmt::join(allowed_processors(), ", ")));
}

}  // namespace

Processors allowed_processors() {
  Processors processors;
  cpu_set_t allowed;
  // Of the process: threads that were bound before do not narrow it.
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) return processors;
  for (unsigned processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) processors.push_back(processor);
  }
  return processors;
}

Processors parse_processors(std::string_view text) {
  const Processors allowed = allowed_processors();
  Processors processors;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    unsigned first = 0;
    unsigned last = 0;
    const char* const part_begin = std::to_address(part.begin());
    const char* const part_end = std::to_address(part.end());
    auto read = std::from_chars(part_begin, part_end, first);
    last = first;
    if (read.ec == std::errc() && read.ptr != part_end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, part_end, last);
    }
    if (read.ec != std::errc() || read.ptr != part_end || last < first || last >= CPU_SETSIZE) {
      refuse_processors(text);
    }
    for (unsigned processor = first; processor <= last; ++processor) {
      if (std::ranges::find(allowed, processor) == allowed.end()) refuse_processors(text);
      processors.push_back(processor);
    }
    begin = end + 1;
  }
  std::ranges::sort(processors);
  processors.erase(std::ranges::unique(processors).begin(), processors.end());
  return processors;
}

void run_on_processor(unsigned number) {
  const Processors allowed = allowed_processors();
  if (!allowed.empty()) run_on_processors({allowed[number % allowed.size()]});
}

void run_on_processors(const Processors& processors) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (const unsigned processor : processors) CPU_SET(processor, &chosen);
  pthread_setaffinity_np(pthread_self(), sizeof chosen, &chosen);
}

}  // namespace perdure::lab
