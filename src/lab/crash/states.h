// The crash states of one moment: which of the pending lines reached memory, and how far.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/crash/pending.h"

namespace perdure::lab::crash {

struct StateLimits {
  // All combinations are taken if there are no more than this; beyond it a covering sample: none,
  // all, each line alone, all but one line, pairs, what an orderly write-back gives, and `random`
  // random ones.
  uint64_t complete_max = 64;
  uint64_t options_per_line_max = 40;
  uint64_t lines_alone_max = 16;
  uint64_t options_alone_max = 4;  // of each of these lines
  uint64_t pairs_max = 16;
  uint64_t in_order = 8;  // states in which the stores up to some moment arrived, and none after
  uint64_t random = 12;
};

struct CrashState {
  std::vector<Word> words;  // over the durable image
  uint64_t hash = 0;        // of the whole image
};

// Calls `visit` for the states at the memory's present position until it returns false. The same
// image may come more than once. Lines whose last store is older than event `recent_from` (locks and
// hints that nobody flushes) are taken together: all of them written, or none. Deterministic.
// Returns whether every combination of the other lines was taken.
bool for_each_state(const PendingMemory& memory, const StateLimits& limits, uint32_t recent_from,
                    uint64_t seed, const std::function<bool(const CrashState&)>& visit);

}  // namespace perdure::lab::crash
