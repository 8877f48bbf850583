// Leaders and followers.
//
// PERDURE.SYNC is what a follower says (sync_source.h); arguments in hexadecimal digits but for
// what is bytes:
//   HELLO version follower                  -> names and values: store, run, partitions
//   FOLLOW store run positions              -> +OK, or -COPYANEW, -DIVERGED, -OTHERLEADER
//   COPY                                    -> the positions behind the copy
//   MORE bytes                              -> a chunk (sync_format.h)
//   ACK positions                           -> +OK
//   FORGET follower                         -> +OK: nothing is kept for it any more
#include <fmt/core.h>

#include <charconv>
#include <memory>

#include "perdure/error.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/resp_session.h"
#include "server/sync_format.h"

namespace perdure::server {

namespace {

constexpr int64_t kChunkBytesMax = int64_t{4} << 20;

uint64_t hexadecimal_of(std::string_view text) {
  uint64_t value = 0;
  const char* const end = std::to_address(text.end());
  const auto [rest, error] = std::from_chars(std::to_address(text.begin()), end, value, 16);
  if (error != std::errc() || rest != end) {
    throw CommandError("ERR a number of up to 16 hexadecimal digits is needed");
  }
  return value;
}

std::vector<uint64_t> positions_in(Call& call, std::string_view bytes) {
  if (bytes.size() != call.server.store().partitions() * sizeof(uint64_t)) {
    throw CommandError("COPYANEW the store has other partitions");
  }
  return positions_of(bytes);
}

void sync_hello(Call& call) {
  Server& server = call.server;
  if (integer_of(call[2]) != kSyncVersion) {
    throw CommandError(fmt::format("ERR followers of this leader speak version {}", kSyncVersion));
  }
  const uint64_t follower = hexadecimal_of(call[3]);
  if (server.is_follower()) {
    throw CommandError("ERR this server follows another one: follow that");
  }
  if (server.config().evict) {
    throw CommandError(
        "ERR this server evicts, of which its log does not tell: it has no followers");
  }
  if (server.store().cut_by_boundaries()) {
    throw CommandError("ERR a store that is cut by boundaries has no followers");
  }
  Keyspace& keys = call.keys();
  keys.turn().require_all_ready();
  keys.finish_turn();
  const uint64_t run = server.store().tell_run();
  if (run == 0)
    throw CommandError(
        "OOM the pool has no room to note what followers have, or its notes are damaged");
  call.session.sync.reset();  // its end, before another one begins
  call.session.sync = std::make_unique<SyncSource>(server, call.session, follower);
  call.reply.map(3);
  const auto tell = [&](std::string_view name, const std::string& value) {
    call.reply.bulk(name);
    call.reply.bulk(value);
  };
  tell("store", fmt::format("{:016x}", server.store().identity()));
  tell("run", fmt::format("{:016x}", run));
  tell("partitions", fmt::format("{}", server.store().partitions()));
}

void sync_forget(Call& call) {
  Server& server = call.server;
  const uint64_t follower = hexadecimal_of(call[2]);
  const auto found = server.replicas().find(follower);
  if (found != server.replicas().end() && found->second.connection != 0) {
    throw CommandError("ERR it is connected");
  }
  server.keys()->finish_turn();
  server.store().remove_consumer(SyncSource::consumer_of(follower));
  server.replicas().erase(follower);
  call.reply.ok();
}

void run_sync(Call& call) {
  if (call.keyspace == nullptr) throw store::NotReady();
  const std::string_view what = call[1];
  if (same_word(what, "HELLO") && call.size() == 4) return sync_hello(call);
  if (same_word(what, "FORGET") && call.size() == 3) return sync_forget(call);
  SyncSource* sync = call.session.sync.get();
  if (sync == nullptr) throw CommandError("ERR say first who you are: PERDURE.SYNC HELLO");
  if (same_word(what, "FOLLOW") && call.size() == 5) {
    sync->follow(hexadecimal_of(call[2]), hexadecimal_of(call[3]), positions_in(call, call[4]));
    call.reply.ok();
  } else if (same_word(what, "COPY") && call.size() == 2) {
    call.reply.bulk(bytes_of(sync->copy()));
  } else if (same_word(what, "MORE") && call.size() == 3) {
    const int64_t bytes = std::clamp<int64_t>(integer_of(call[2]), 1, kChunkBytesMax);
    std::string chunk;
    sync->more(static_cast<uint64_t>(bytes), chunk);
    // However large: what was written together is told in one piece, and nothing piles up behind
    // it.
    constexpr size_t kAround = 32;  // length and ends of line
    call.reply.out().reserve(chunk.size() + kAround);
    call.reply.bulk(chunk);
  } else if (same_word(what, "ACK") && call.size() == 3) {
    sync->acknowledge(positions_in(call, call[2]));
    call.reply.ok();
  } else {
    throw CommandError("ERR PERDURE.SYNC is for followers: HELLO, FOLLOW, COPY, MORE, ACK, FORGET");
  }
}

void run_replicaof(Call& call) {
  if (!same_word(call[1], "NO") || !same_word(call[2], "ONE")) {
    throw CommandError(
        "ERR whom a server follows is said when it is started: perdure serve POOL --follow "
        "HOST:PORT; NO ONE ends it");
  }
  call.server.take_over();
  call.reply.ok();
}

void run_role(Call& call) {
  if (!call.server.is_follower()) {
    uint64_t offset = 0;
    size_t connected = 0;
    for (const auto& [id, one] : call.server.replicas()) connected += one.connection != 0 ? 1 : 0;
    if (call.keyspace != nullptr &&
        call.server.store().progress().ready == call.server.store().partitions()) {
      for (uint32_t i = 0; i < call.server.store().partitions(); ++i) {
        offset += call.server.store().kept_changes(i).next - 1;
      }
    }
    call.reply.array(3);
    call.reply.bulk("master");
    call.reply.integer(static_cast<int64_t>(offset));
    call.reply.array(connected);
    for (const auto& [id, one] : call.server.replicas()) {
      if (one.connection == 0) continue;
      const size_t colon = one.peer.rfind(':');
      uint64_t has = 0;
      for (const uint64_t position : one.acknowledged) has += position - 1;
      call.reply.array(3);
      call.reply.bulk(one.peer.substr(0, colon));
      call.reply.bulk(colon == std::string::npos ? "" : one.peer.substr(colon + 1));
      call.reply.bulk(fmt::format("{}", has));
    }
    return;
  }
  const std::string& leader = call.server.config().follow;
  const size_t colon = leader.rfind(':');
  const bool has_port = colon != std::string::npos && !leader.starts_with('/');
  Follower::Standing standing;
  if (call.server.follower() != nullptr) standing = call.server.follower()->standing();
  uint64_t offset = 0;
  for (const uint64_t position : standing.state.positions) offset += position - (position > 0);
  int64_t port = 0;
  if (has_port) {
    std::from_chars(leader.data() + colon + 1, leader.data() + leader.size(), port);
  }
  call.reply.array(5);
  call.reply.bulk("slave");
  call.reply.bulk(has_port ? leader.substr(0, colon) : leader);
  call.reply.integer(port);
  call.reply.bulk(standing.link == Follower::Link::kFollowing ? "connected"
                  : standing.link == Follower::Link::kCopying ? "sync"
                                                              : "connect");
  call.reply.integer(static_cast<int64_t>(offset));
}

constexpr uint32_t kOfReplication = kAdmin | kNoMulti | kLoading;
constexpr Command kReplicationCommands[] = {
    {"perdure.sync", -2, kAdmin | kNoMulti, 0, 0, 0, "server", "What followers say", run_sync},
    {"replicaof", 3, kOfReplication, 0, 0, 0, "server", "NO ONE: a follower takes over",
     run_replicaof},
    {"role", 1, kLoading | kFast, 0, 0, 0, "server", "Tells who follows whom", run_role},
    {"slaveof", 3, kOfReplication, 0, 0, 0, "server", "NO ONE: a follower takes over",
     run_replicaof},
};

}  // namespace

std::span<const Command> replication_commands() { return kReplicationCommands; }

}  // namespace perdure::server
