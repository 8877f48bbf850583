// A thread for a run that must repeat exactly.
#pragma once

#include <functional>

namespace perdure::lab {

// Runs `work` in a fresh thread and waits for it; rethrows what it throws. Its stack begins at the
// same place of a page every time, which the main thread's, below the environment, does not. The
// calling thread sleeps, so events need no lock as they do with several threads.
void run_in_own_thread(const std::function<void()>& work);

}  // namespace perdure::lab
