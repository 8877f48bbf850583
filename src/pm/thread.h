// Threads whose failure is an Error as all others.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

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

}  // namespace perdure::pm
