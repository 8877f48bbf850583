// A leader's side of a follower: first a copy of the store as it is at one moment, then the log.
//
// The follower asks for each chunk (PERDURE.SYNC MORE), so nothing piles up for one that is slow
// but what the log keeps for it anyway: a consumer of the store, by the follower's number, as far
// as `log-bytes`. The copy is of a snapshot, which goes with the connection, or when nothing is
// asked for during a minute. A chunk has at most `follower-output-max`: of a unit that is larger a
// follower is told by a copy, which has records by themselves.
//
// Order. Of each partition the writes are told in their order. A batch over several partitions is
// told as one unit once all that precedes its parts has been told; that there is always something
// to tell follows from batches being written one after the other: of those that have come first in
// one partition, the earliest has come first in all of its. All is read behind a fence and with the
// execution lock, so what is told is durable, and no part of a batch is missing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/snapshot.h"
#include "store/store_impl.h"

namespace perdure::server {

class RespSession;
class Server;
struct SyncHeader;

// What a leader knows of a follower.
struct Replica {
  uint64_t connection = 0;  // 0: it is away
  std::string peer;
  bool copies = false;
  std::vector<uint64_t> acknowledged;
  // The same, and beyond that what it needs no telling of, since it changed nothing. Empty before
  // it follows.
  std::vector<uint64_t> has;
  uint64_t records_left = 0;  // not acknowledged, at most
  uint64_t bytes_left = 0;    // about
  uint64_t asked_ms = 0;      // when it asked last, by steady_ms()
};

// With the execution lock, all of it.
class SyncSource {
 public:
  SyncSource(Server& server, RespSession& session, uint64_t follower);
  ~SyncSource();
  SyncSource(const SyncSource&) = delete;
  SyncSource& operator=(const SyncSource&) = delete;

  // The name of a follower's consumer.
  static std::string consumer_of(uint64_t follower);
  // Back from it, if it is one.
  static std::optional<uint64_t> follower_of(std::string_view consumer);

  // Begins with a copy; the positions behind it. Throws CommandError, and what snapshots and
  // consumers throw.
  std::vector<uint64_t> copy();
  // Begins with the log. Throws CommandError: COPYANEW if it is not kept from there on, DIVERGED if
  // the follower has what this leader does not, OTHERLEADER.
  void follow(uint64_t identity, uint64_t run, const std::vector<uint64_t>& positions);
  // The next chunk, of about that size, or larger by one unit. Throws CommandError, also COPYANEW
  // for a unit that is too large to be told; kCorrupt, kIo.
  void more(uint64_t bytes_max, std::string& chunk);
  // The follower has that, for good.
  void acknowledge(const std::vector<uint64_t>& positions);

 private:
  void note_what_it_has();

  // A partition's log as far as it was read, and told.
  struct Lane {
    uint64_t from = 0;  // to be read next
    uint64_t told = 0;
    uint64_t sent = 0;  // what the follower was told last
    store::Partition::LogPlace hint = {};
    std::vector<store::LogEntry> ahead = {};
    size_t at = 0;
  };

  void begin_log(const std::vector<uint64_t>& positions);
  void more_copy(uint64_t bytes_max, SyncHeader& header, std::string& chunk);
  void more_log(uint64_t bytes_max, SyncHeader& header, std::string& chunk);
  bool fill(uint32_t number);
  size_t unit_end(const Lane& lane) const;
  bool is_whole(const store::BatchPart& coordinator, std::vector<uint32_t>& members);
  uint64_t bytes_of_units(const std::vector<uint32_t>& members) const;
  void tell(const std::vector<uint32_t>& members, std::string& chunk);
  void add_consumer();
  Replica& replica();

  Server& server_;
  RespSession& session_;
  const uint64_t follower_;
  std::unique_ptr<store::StoreSnapshot> snapshot_;
  std::vector<uint64_t> copied_to_;  // where the log goes on behind the snapshot
  uint32_t copying_ = 0;             // the partition
  store::CopyPlace place_;
  std::vector<store::RecordCopy> copies_;
  bool tells_log_ = false;
  std::vector<Lane> lanes_;
};

}  // namespace perdure::server
