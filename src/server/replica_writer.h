// Writes what a leader tells into a follower's store, so that a crash at any point leaves, with a
// position for each of the leader's partitions, exactly what the leader had written before these
// positions.
//
// 1. Units of the log go to the store in batches, each together with the record of the positions
//    behind them (FollowState). A batch is there wholly or not at all, whatever crashes come, and
//    so is the position: what has been applied is never asked for again, and what was not is. A
//    unit is never cut: a leader's batch or MULTI is there wholly or not at all, over all
//    partitions.
// 2. A unit that is too large for a batch of this store (its blocks are smaller, or several of the
//    leader's partitions fall together) goes to a journal first: its entries in pieces; behind a
//    fence a record that says that they are all there, and the state as it will be; behind another
//    fence the writes themselves, one by one; behind the next one, in one batch, the new state and
//    the end of that record. A crash before the record leaves pieces that nobody reads; a crash
//    after it finds it, and finish_journal() does all of the writes again before anything is
//    served. Doing them again is harmless, since they stand for the last values, and nothing else
//    is written in between: while the record is there nothing is served and no other unit is
//    applied, taking over finishes it first, and a copy removes it behind a fence before it says
//    kCopying. If the writes fail, since there is no room, the follower tries them again whenever
//    it connects. A record that the state does not go on to is not obeyed but removed. So that they
//    do not, records as large as the writes are made first, and removed again once the journal is
//    there: a unit for which there is not room twice is not begun, and what is there is served on.
// 3. A copy into a pool that has nothing to lose is not atomic, and says so: the state is kCopying
//    from before the first removal of what was there until behind the fence of the last record. A
//    crash in between finds kCopying, and a copy begins anew; nothing of it is served, and nobody
//    takes over from it.
// 4. A copy that takes the place of an older one is made beside it, under keys that begin with
//    kStaged, while that one is served and its state stays as it is: a crash, or the end of the
//    leader, leaves the older one, and records that are removed before the next copy, or behind a
//    takeover; a note that is durable before the first of them, and goes behind a fence after the
//    last, says that there may be some. Once all are durable, one record makes the new copy the one
//    that counts: the state kClearing, with the copy's positions. From there on no leader is
//    needed, and nothing is served. So all that is to be removed then is read before: of what is
//    damaged no removal can be written. What is no part of the copy is removed; behind a fence the
//    state is kMoving; then each record is written under its own key, and, behind a fence, removed
//    under the other. A crash among removals finds kClearing, and goes on with removals of what is
//    still there; one after that finds kMoving, and writes once more what it has not removed: the
//    same values, since nothing else is written. Behind the fence after the last one the state is
//    kFollowing.
//
// The leader tells only what is durable with it. So a position of a follower never lies beyond what
// a leader has after a crash; one that comes with another history is noticed by its run
// (store/runs.h). By induction over crashes of either side, in any order: each partition of the
// leader has at the follower a prefix of its writes, and a batch over several of them is in all of
// these prefixes or in none. Between partitions nothing more is promised: of two single writes to
// different partitions the later may be there without the earlier, until the follower has caught
// up.
//
// For who holds the execution lock.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "perdure/store.h"
#include "server/follow_state.h"
#include "server/keyspace.h"
#include "server/sync_format.h"

namespace perdure::server {

class ReplicaWriter {
 public:
  explicit ReplicaWriter(Keyspace& keys) : keys_(keys) {}

  // The state that the pool has; kNone if it has none. Throws kCorrupt, NotReady.
  FollowState read_state() const;
  void write_state(const FollowState& state);
  // Writes the mark of a pool that has a state and not that, as one of an earlier version; or
  // removes one that a full pool has kept though the state is gone. Throws as writing does.
  void mend_mark(bool has_state);
  // Needs no more room than what the store keeps for removals.
  void remove_state();

  // That it follows while --follow-anew is said. Once it has no state any more it has taken over,
  // and the option is not obeyed before a start without it, which takes the note off. So a
  // takeover, for which there may be no room, notes nothing.
  void note_anew(bool is_said);
  bool has_noted_anew() const;

  // How far one has gone through all records.
  struct Sweep {
    uint32_t partition = 0;
    store::CopyPlace place = {};
  };
  // Reads some more of all records, as removing them does. False once there are no more. Throws
  // kCorrupt.
  bool look_at_some(Sweep& sweep) const;
  // Removes some of the records, but what says whom the pool follows; false once there are none.
  bool clear_some(Sweep& sweep) { return clear_some(Clear::kAll, sweep); }
  // Some of a copy's entries off `chunk`. Throws kCorrupt, and what writing throws.
  void copy_some(std::string_view& chunk) { take_copy(chunk, false); }

  // A copy beside what is there. Before its first entry.
  void begin_staging();
  // As copy_some(). Also throws kTooLarge for a key that is too long for that.
  void stage_some(std::string_view& chunk) { take_copy(chunk, true); }
  // Whether there is one, or a part of it, that is not being put in its place; and removes some of
  // that, until false.
  bool has_staged() const;
  bool drop_staged_some(Sweep& sweep);
  // All of it is there, and takes the place of what was, with that state. Throws kPoolFull,
  // kNoSpace if there may not be room for that, having changed nothing.
  void begin_placing(FollowState& state);
  // Goes on with that. False once it is done: then `state` is kFollowing. If it throws, it may be
  // called again.
  bool place_some(FollowState& state, Sweep& sweep);
  // Some units of the log off `chunk`, durable on return, with `state` as it is then. If it throws,
  // `chunk` and `state` are as before, or behind what was applied.
  void apply_some(std::string_view& chunk, FollowState& state);
  // Whether a unit was interrupted, by a crash or since there was no room; and doing all of it,
  // unless the state has gone on without it. Needs all partitions. If it throws, the journal is
  // still there.
  bool has_journal() const;
  void finish_journal();
  // Gives it up. Before another state is written.
  void drop_journal();
  // What a journal that was interrupted before it counted has left. Without one.
  void remove_pieces();

  uint64_t applied() const { return applied_; }  // writes

 private:
  enum class Clear : uint8_t { kAll, kStaged, kReplaced };
  bool clear_some(Clear what, Sweep& sweep);
  bool next_some(bool only_staged, Sweep& sweep, std::vector<store::RecordCopy>& some) const;
  void take_copy(std::string_view& chunk, bool stages);
  void write_ballast(uint64_t bytes);
  void remove_ballast();
  void remove_numbered(std::string (*key)(uint64_t number));
  struct Unit {
    std::string_view bytes;
    std::vector<SyncEntry> entries;
    size_t size = 0;
    bool has_prefix = false;
  };
  static Unit take_unit(std::string_view& chunk);
  void apply(const std::vector<Unit>& units, FollowState& state);
  void apply_with_journal(const Unit& unit, FollowState& state);
  void write_one_by_one(std::string_view bytes, size_t partitions);
  void remove_prefix(std::string_view prefix, uint32_t of, size_t partitions);
  uint64_t room_of(const Unit& unit) const;
  static bool goes_on(const FollowState& now, const FollowState& after);
  static void advance(FollowState& state, const Unit& unit);

  Keyspace& keys_;
  uint64_t applied_ = 0;
  uint64_t largest_staged_ = 0;
};

}  // namespace perdure::server
