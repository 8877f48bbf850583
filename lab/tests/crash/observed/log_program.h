// A program over the torn-bit log, compiled as observed code.
#pragma once

#include <memory>

#include "lab/crash/subject.h"

namespace perdure::lab::crash {

// One thread that stores values under few keys, one to three at a time, atomically, by a log of the
// smallest chunks there are: each is used again after a few operations.
std::unique_ptr<Subject> log_of_batches();

}  // namespace perdure::lab::crash
