// Programs over the multi-word compare-and-swap, compiled as observed code.
#pragma once

#include <cstdint>
#include <memory>

#include "lab/crash/subject.h"

namespace perdure::lab::crash {

// One thread that moves amounts between accounts, of two to twelve words at once.
std::unique_ptr<Subject> mwcas_transfers();

// Two threads that store values under keys, each with a word that counts the changes of all.
std::unique_ptr<Subject> mwcas_map(uint64_t schedule);

}  // namespace perdure::lab::crash
