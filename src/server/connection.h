// A client's connection, and what speaks on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/buffer.h"

namespace perdure::server {

inline constexpr int kRequestsMax = 1000;  // of a connection in a turn
// That are parsed before the first of them is run.
inline constexpr size_t kAheadRequests = 32;
inline constexpr size_t kOutputMax = size_t{1} << 20;  // bytes of replies in a turn
inline constexpr double kTurnNs = 5e6;  // of a connection, or of a part of all, in a turn
// Replies that wait: nothing more is executed.
inline constexpr size_t kOutputPauseBytes = size_t{1} << 20;
inline constexpr size_t kBufferKeepBytes = size_t{64} << 10;  // of one that is empty

struct Connection;
class TlsChannel;

enum class Face : uint8_t { kResp, kTlsResp, kMemcached, kMetrics };
const char* to_string(Face face) noexcept;

// A protocol on one connection.
class Session {
 public:
  enum class Outcome : uint8_t {
    kIdle,  // all that came is done, but for the beginning of a request
    kMore,  // there is more to do, in the next turn
    kClose  // the connection ends once its replies are sent
  };
  virtual ~Session() = default;
  // Before those that have sent something execute, one after the other: reads what has come, and
  // adds up to kAheadRequests keys that it seems to need, which are then asked for together. The
  // keys must not move until execute(). Throws as execute().
  virtual void look_ahead(Connection& /*connection*/, std::vector<std::string_view>& /*keys*/) {}
  // It does not execute in this turn after all: more may come before it does.
  virtual void forget_ahead() {}
  // Carries out requests that have come, some of them if they are many; their replies go to `out`.
  // One that is beyond its bound is an error. The caller holds the execution lock. Throws nothing
  // but std::bad_alloc, for which the connection is closed.
  virtual Outcome execute(Connection& connection) = 0;
  // The writes of this turn may not be durable: what takes the place of the replies of the turn.
  virtual void refuse_turn(Connection& connection) = 0;
  // At least so many bytes more are needed for the request that has begun; 0: unknown.
  virtual size_t bytes_wanted(const Connection& /*connection*/) const { return 0; }
  // Whether a command waits for something, so that nothing is to be done; and whether it is to end
  // now. With the execution lock.
  virtual bool is_waiting() const { return false; }
  virtual bool is_due() const { return false; }
  // Whether a reply may be larger than `output-bytes-max`, and wait.
  virtual bool has_large_replies() const { return false; }
  // The connection goes. With the execution lock.
  virtual void leave() {}
};

struct Connection {
  int fd = -1;
  uint64_t id = 0;
  Face face = Face::kResp;
  std::string peer;
  std::string local;
  std::unique_ptr<Session> session;
  std::unique_ptr<TlsChannel> tls;

  // What has come and is to be read, in plain text; the replies, which have a bound.
  Buffer in;
  Buffer out;
  // The same as they go over the wire.
  Buffer tls_in;
  Buffer tls_out;
  Buffer& wire_in() { return tls != nullptr ? tls_in : in; }
  Buffer& wire_out() { return tls != nullptr ? tls_out : out; }
  size_t turn_begin = 0;  // bytes of `out` before this turn
  bool is_ready = false;  // in the loop's list of those with something to do
  bool is_closing = false;
  bool is_broken = false;   // to be closed at once
  bool is_waiting = false;  // a command of it
  bool has_ended = false;   // the client sends nothing more
  uint64_t accepted_ms = 0;
  uint64_t active_ms = 0;  // when something came last
  uint64_t taking_ms = 0;  // when it last took a reply, or nothing was waiting
  size_t unsent = 0;       // when last looked at
  uint64_t bytes_in = 0;   // since they were last counted
  uint64_t bytes_out = 0;

  // The driver's.
  bool is_watched = false;
  bool reads = false;    // input is awaited
  bool writes = false;   // room for output is awaited, or output is on its way
  Buffer sending;        // with io_uring: what the kernel reads
  uint32_t pending = 0;  // operations that the kernel has not completed
  bool is_removed = false;
};

}  // namespace perdure::server
