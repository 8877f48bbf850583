// The crash states of one moment: which of the pending lines reached memory, and how far.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lab/crash/pending.h"

namespace perdure::lab::crash {

struct StateLimits {
  // All combinations are taken if there are no more than this; beyond it a covering sample: none,
  // all, each line alone, all but one line, pairs, what an orderly write-back gives and what the
  // reverse of one gives, and `random` random ones.
  uint64_t complete_max = 64;
  uint64_t options_per_line_max = 40;
  uint64_t lines_alone_max = 16;
  uint64_t options_alone_max = 4;  // of each of these lines
  uint64_t pairs_max = 16;
  uint64_t in_order = 8;  // states in which the stores up to some moment arrived, and none after
  uint64_t apart =
      8;  // states in which the lines stored to since some moment arrived, and no others
  uint64_t random = 12;
};

struct CrashState {
  std::vector<Word> words;  // over the durable image
  uint64_t hash = 0;        // of the whole image
};

// By thread: its stores before this event are old.
using RecentFrom = std::vector<uint32_t>;

// Calls `visit` for the states at the memory's present position until it returns false. The same
// image may come more than once. Lines with none but old stores (locks and hints that nobody
// flushes) are taken together: all of them written, or none. Deterministic. Returns whether every
// combination of the other lines was taken.
bool for_each_state(const PendingMemory& memory, const StateLimits& limits,
                    const RecentFrom& recent_from, uint64_t seed,
                    const std::function<bool(const CrashState&)>& visit);

// A state that keeps apart what the next fence is to bring together: most often the lines that were
// stored to last arrived and none of those before; else all lines arrived but for one, which may
// wait for as long as no fence comes; or any. By the seed.
CrashState state_apart(const PendingMemory& memory, uint64_t seed);
// Each line arrived or did not, by the seed.
CrashState state_mixed(const PendingMemory& memory, uint64_t seed);
// The line that was stored to last arrived, and no other.
CrashState state_newest(const PendingMemory& memory);
// The lines that were stored to since event `split` arrived, and no others.
CrashState state_apart_at(const PendingMemory& memory, uint32_t split);
// All lines arrived, or with a seed any; but these, by number, without what was stored to them from
// an event on.
CrashState state_without(const PendingMemory& memory, const std::map<uint64_t, uint32_t>& lines,
                         uint64_t seed = 0);

}  // namespace perdure::lab::crash
