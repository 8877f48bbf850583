// A server that follows another one: it takes a copy of the leader's store, then its log, and
// serves what it has to readers. A copy that has to be made anew is made beside the one that is
// there, which is served until the new one is whole. Without room for both it is not made, which
// INFO and the log say, unless --follow-anew says that what is there may go first. What a crash
// leaves: replica_writer.h. What a leader tells: sync_source.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/follow_state.h"
#include "server/replica_writer.h"

namespace perdure::server {

class Server;
class SyncClient;

class Follower {
 public:
  // Before the server has its keys.
  Follower(Server& server, Keyspace& keys);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Before the store serves anybody. Reads what the pool notes, finishes what a crash has
  // interrupted. Throws kInvalidArgument if the pool has something else than what it has of a
  // leader.
  void prepare();
  // The same for a server that follows nobody, on a pool that has followed: it takes over. Throws
  // kInvalidArgument if the pool has no more than a part of a copy; kCorrupt if nobody can tell
  // whether it has followed.
  static void take_over_at_start(Server& server, Keyspace& keys);
  // Before prepare(). The state, if what the pool has is a part of a copy only, which is to be made
  // again, and is so damaged that it cannot be removed: the store is to be made anew.
  static std::optional<FollowState> must_make_anew(Keyspace& keys);
  // Of such a server, once all of the store answers, and with the execution lock: --follow-anew, if
  // it is not said any more, may be said again; and a mark goes for whose removal the pool was too
  // full.
  static void forget_anew(Server& server, Keyspace& keys);

  // Once all of the store answers.
  void start();
  // Ends it, and waits for that. Without the execution lock.
  void stop();

  // With the execution lock.
  // From here on the server is a leader. Throws CommandError if it has no whole copy.
  void take_over();
  bool has_ended() const { return ended_; }

  enum class Link : uint8_t { kConnecting, kCopying, kFollowing, kRefused, kFailed, kEnded };
  struct Standing {
    Link link = Link::kConnecting;
    std::string words;  // why not, of kConnecting, kRefused and kFailed
    FollowState state = {};
    uint64_t applied = 0;
    uint64_t copies = 0;
    uint64_t reconnects = 0;
    // Behind the leader, as it was told last; ~0: unknown.
    uint64_t records_behind = 0;
    uint64_t bytes_behind = 0;
    uint64_t ms_behind = 0;
    uint64_t ms_since_answer = 0;
    bool keeps_old = false;  // it copies, and serves what it had before
  };
  Standing standing() const;

 private:
  void run();
  void follow_leader();
  void greet(SyncClient& leader);
  void take_copy(SyncClient& leader);
  std::vector<uint64_t> receive_copy(SyncClient& leader, bool stages);
  void stage_copy(SyncClient& leader);
  void place_copy();
  void drop_staged();
  void require_removable();
  [[noreturn]] void refuse_replacement(std::string words);
  void take_log(SyncClient& leader);
  void note_answer(const SyncHeader& header);
  bool wait(uint64_t ms);
  template <typename Work>
  void in_turn(Work work);
  static FollowState state_at_start(Server& server, Keyspace& keys);

  Server& server_;
  Keyspace& keys_;
  ReplicaWriter writer_;
  int stop_fd_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leaves_{false};  // the server stops
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::thread thread_;

  // With the execution lock.
  FollowState state_;
  bool ended_ = false;
  bool anew_ = false;        // it may give up what it has for another leader's
  bool needs_copy_ = false;  // the leader has said so in the midst of its log; the thread's
  // What is there is to be replaced by a copy with this state, the thread's; and why it was found
  // that it cannot be.
  std::optional<FollowState> replacement_;
  std::string cannot_replace_;
  bool keeps_old_ = false;
  Link link_ = Link::kConnecting;
  std::string words_;
  uint64_t copies_ = 0;
  uint64_t reconnects_ = 0;
  SyncHeader heard_ = {};
  uint64_t heard_ms_ = 0;    // when the last answer came
  uint64_t abreast_ms_ = 0;  // when it was asked for what then was all there was
};

}  // namespace perdure::server
