// Threads whose failure is an Error as all others, or of no consequence.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/error.h"

namespace perdure::pm {

// A thread that does `work`. Throws kIo, naming `whose` it was to be, if the system gives none.
template <typename Work>
std::thread start_thread(const std::string& whose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kIo, "no thread for " + whose + ": " + error.what());
  }
}

// Calls work(part) for each part below `parts`, in a thread each, of which the caller's is one, and
// waits for all. For a part for which the system gives no thread the caller does it. Throws what
// was thrown first, once all have ended.
template <typename Work>
void in_threads(uint32_t parts, const Work& work) {
  std::mutex mutex;
  std::exception_ptr failure;
  const auto try_to_work = [&](uint32_t part) {
    try {
      work(part);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  uint32_t begun = 1;
  {
    std::vector<std::jthread> others;
    try {
      for (; begun < parts; ++begun) others.emplace_back(try_to_work, begun);
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): fewer do it as well
    } catch (const std::bad_alloc&) {     // NOLINT(bugprone-empty-catch)
    }
    try_to_work(0);
    for (uint32_t part = begun; part < parts; ++part) try_to_work(part);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace perdure::pm
