// Instruments that start within a program.
#pragma once

namespace perdure::lab {

// Records from now on what this process does to its first region of persistent memory, for the
// crash explorer. The trace is written when the process ends.
void start_recording();
// Writes what was asked for of this process, if that has not been done: before it ends without
// destructors.
void finish_instruments();

}  // namespace perdure::lab
