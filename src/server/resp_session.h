// A client that speaks RESP.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/acl.h"
#include "server/commands.h"
#include "server/connection.h"
#include "server/resp_parser.h"
#include "server/resp_reply.h"
#include "server/server.h"
#include "server/sync_source.h"

namespace perdure::server {

class RespSession final : public Session, public Watcher, public Waiter {
 public:
  RespSession(Server& server, Connection& connection, Loop& loop);

  void look_ahead(Connection& connection, std::vector<std::string_view>& keys) override;
  void forget_ahead() override;
  Outcome execute(Connection& connection) override;
  void refuse_turn(Connection& connection) override;
  size_t bytes_wanted(const Connection& connection) const override;
  void leave() override;
  bool is_waiting() const override { return blocked_.has_value(); }
  bool is_due() const override;
  // To a follower: a unit of the log is told in one piece, and it asks for the next one only once
  // it has that.
  bool has_large_replies() const override { return sync != nullptr; }
  void wake() override;

  // For commands.
  uint32_t database = 0;
  std::shared_ptr<AclUser> user;  // null: it has not said who it is, and has to
  bool closes = false;            // after this reply
  std::string name;
  std::string library;
  std::string library_version;
  std::string_view last_command = "";
  std::vector<std::string> channels;
  std::vector<std::string> patterns;
  size_t subscribed_bytes = 0;  // of their names
  size_t subscriptions() const { return channels.size() + patterns.size(); }

  // MULTI: commands that wait for EXEC.
  bool in_multi = false;
  bool multi_failed = false;
  std::vector<std::vector<std::string>> queued;
  size_t queued_bytes = 0;
  void leave_multi();
  // What RESTORE may still unpack: of one, or of all of a transaction.
  uint64_t unpack_room_bytes = 0;
  // PERDURE.SYNC: the client is a follower.
  std::unique_ptr<SyncSource> sync;
  // Why EXEC cannot go on: a command of it could not be carried out as a whole.
  std::string exec_error;

  Connection& connection() { return connection_; }
  Loop& loop() { return loop_; }
  RespReply& reply() { return reply_; }
  // Runs one command, whose reply or error is appended.
  void run(std::span<const std::string_view> arguments);
  void run_command(const Command& command, std::span<const std::string_view> arguments);
  // The command, which has found nothing, waits for one of its keys; it is run again whenever one
  // was written to, and ends after so many seconds (0: never). Within a transaction it does not
  // wait. Appends the reply, if there is one.
  void wait_for_keys(const Call& call, double seconds, std::span<const std::string_view> raw_keys);
  // WAIT: what it has written last; and it is run again whenever a follower has more, and ends
  // after so many milliseconds (0: never), which is_due() tells it.
  const Server::Positions& written();
  void note_written();
  void wait_for_followers(const Call& call, uint64_t ms);
  // For ACL LOG.
  void note_denial(std::string_view reason, std::string_view object);
  // Back to how it began.
  void reset();
  void unsubscribe_all();

 private:
  // A request that was parsed and waits for those before it.
  struct Request {
    size_t arguments;  // of ahead_, ...
    size_t count;
    size_t bytes;  // ... and what it takes of the input
  };
  // Parses requests of a pipeline. Returns why it has stopped.
  RespParser::Result parse_ahead(std::string_view input);
  bool may_run(const Command& command, std::span<const std::string_view> arguments);
  void queue(std::span<const std::string_view> arguments);
  void call(const Command& command, std::span<const std::string_view> arguments);
  void fail(const std::string& text);

  struct Blocked {
    std::vector<std::string> arguments;
    uint64_t end_ms;  // ~0: never
  };
  bool go_on();
  void block(const Call& call, uint64_t ms);
  void stop_waiting();

  Server::Positions written_;
  bool wrote_unrecorded_ = false;  // while nobody followed
  std::optional<Blocked> blocked_;
  uint64_t run_from_ = 0;  // ticks: when the command before ended, or that which runs has begun
  bool is_woken_ = false;  // the loop has been told
  Server& server_;
  Connection& connection_;
  Loop& loop_;
  RequestLimits limits_;
  RespParser parser_;
  std::vector<std::string_view> ahead_;
  std::vector<Request> requests_;
  std::optional<RespParser::Result> looked_ahead_;  // what parse_ahead() has returned
  std::vector<std::string_view> keys_;              // that are asked for ahead
  RespReply reply_;
};

}  // namespace perdure::server
