// The runs of a store: by what it tells whether a position is of its own history.
//
// A position says how many writes there have been, not which. A store whose pool was put back to an
// older state goes on with other writes under the same positions. A run is the time from one
// opening to write to the next; it has a random number. Who is told a position to come back with, a
// backup that others go on from or a follower, is told the run, too, which is noted in the pool;
// the next opening notes where it ended, in each partition. A position is of the store's history if
// its run is noted there, and had come so far when it ended.
//
// Only runs of which somebody was told are noted: openings in between cost nothing, however many
// they are. There is room for the last kRunsMax of them, with many partitions for fewer. Whatever
// is not noted is not taken: a run that is forgotten, one that is damaged, one that a crash kept
// from being noted (nobody knows it).
//
// Thread-safe from end_last() on. What makes this right over any sequence of crashes:
//   A run is durable in the list before anybody else knows it. Should the note be lost, the run is unknown.
//   Its end is durable before the next run writes anything; else positions beyond what there was at the end could
//     become the next run's, and would be taken for its own. Before that a crash leaves it without an end; the next
//     opening notes the same end if it sees that nobody has written since, by the pool's generation or the marks of the
//     last close. An opening that was not seen to its end, or an earlier version that knows of no runs, leaves neither:
//     then the end is never known, and nothing of the run is taken.
//   While partitions are opened beside the serving, what they had is not known before all are ready, and some are written
//     to meanwhile. So the run is noted as one whose end is not known first, durably.
//   If less is there than when a run ended, as after a power failure that the pool was not opened to survive, its end is
//     taken from it, durably, before the partition is written to: beyond its end the next writes would be taken for its own.
//   A run that evicts, of which the log does not tell, takes the ends from all that are noted before it begins.
//   An earlier version, which knows of no runs, may do all of that and take nothing. So each opening notes, in a store that
//     has a list, that it was there. One that finds that somebody may have been there since takes the ends from all.
//   A process that dies may leave an end that it noted or took back in the caches only. The next one finds it as it
//     is there, and would do nothing more: so each opening makes all of the list durable.
//   A list whose header is damaged says nothing: no run is known, and none is noted any more.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "pm/pool_impl.h"

namespace perdure::store {

struct RunSlot;

class Runs {
 public:
  // `link`: the word that leads to the list; it is made when it is needed. `seen`: the one that
  // says who was there last.
  Runs(pm::PoolImpl& pool, uint64_t& link, uint64_t& seen, uint64_t salt, uint32_t partitions);

  // At an opening, before anything is recovered. `nobody_wrote_since(generation)`: whether the
  // store was not opened to write after it was in that one. Durable on return.
  void begin(const std::function<bool(uint64_t generation)>& nobody_wrote_since, bool evicts,
             bool serves_early);
  // A partition begins there. Before it is written to; durable on return.
  void begin_partition(uint32_t number, uint64_t position);
  // The runs before have ended where this one begins, which is known once all partitions are
  // recovered. Durable on return; nothing the second time.
  void end_last(std::span<const uint64_t> positions);

  // This run, for somebody to come back with; noted, durably. 0: it cannot be, since the pool is
  // open to read and the last run was not, since it evicts, since the pool is full, or since the
  // list is damaged.
  uint64_t tell();
  // Whether tell() gives none but for want of room.
  bool tells_none() const { return read_only_ ? current_ == 0 : evicts_; }  // fixed by begin()

  enum class Verdict : uint8_t { kGoesOn, kUnknown, kLost };
  // Of positions in a run, in a store that is at `next`. kLost: the store does not have what they
  // stand for, or the run is so long ago that it is forgotten. kUnknown: nobody can say.
  Verdict judge(uint64_t run, std::span<const uint64_t> positions,
                std::span<const uint64_t> next) const;

  // The list in the pool; 0 if there is none.
  struct Block {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Block block() const;

 private:
  bool make_list();
  uint64_t bytes() const;
  bool note_seen();
  RunSlot* slot(uint64_t number) const;
  uint64_t* ends_of(RunSlot& of) const;
  bool is_noted(const RunSlot& one) const;
  uint64_t checksum_of(const RunSlot& one) const;
  void flush(const RunSlot& one) const;
  void forget_ends(RunSlot& of) const;

  pm::PoolImpl& pool_;
  uint64_t& link_;
  uint64_t& seen_;
  const uint64_t salt_;
  const uint32_t partitions_;
  const bool read_only_;
  bool evicts_ = false;
  bool has_gap_ = false;      // somebody may have been there who has taken no ends
  uint64_t slots_ = 0;        // also 0 in a pool that is read leniently, and of a damaged list
  mutable std::mutex mutex_;  // of what follows, and of what the slots have
  bool begun_ = false;
  uint64_t current_ = 0;          // the number of this run, once it is noted
  std::vector<uint64_t> ending_;  // slots of runs whose ends are being found
};

}  // namespace perdure::store
