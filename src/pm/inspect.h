// What a pool's file tells of the pool while another process may have it open for writing.
//
// Nothing is locked and nothing is written: all is read by calls of the system, of which none can
// fault where the writer cuts the file. What it reads changes meanwhile, and so is judged: the
// header's words and the descriptors' have check bits of their own, entries and blocks of the root
// directory have checksums, and the header and the directory are read until they were twice the
// same. A word is written by one store, so that each is the old one or the new one. What the lanes
// hold of a change that a crash interrupted is not looked at: it is not completed, or undone, yet.
#pragma once

#include <string>

#include "perdure/pool.h"

namespace perdure::pm {

PoolInspection inspect(const std::string& path);

}  // namespace perdure::pm
