// A client that speaks RESP.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/commands.h"
#include "server/connection.h"
#include "server/resp_parser.h"
#include "server/resp_reply.h"
#include "server/server.h"

namespace perdure::server {

class RespSession final : public Session, public Watcher {
 public:
  RespSession(Server& server, Connection& connection, Loop& loop);

  Outcome execute(Connection& connection) override;
  void refuse_turn(Connection& connection) override;
  size_t bytes_wanted(const Connection& connection) const override;
  void leave() override;

  // For commands.
  uint32_t database = 0;
  bool is_authenticated = false;
  bool closes = false;  // after this reply
  std::string name;
  std::string library;
  std::string library_version;
  std::string_view last_command = "";
  std::vector<std::string> channels;
  std::vector<std::string> patterns;
  size_t subscriptions() const { return channels.size() + patterns.size(); }

  // MULTI: commands that wait for EXEC.
  bool in_multi = false;
  bool multi_failed = false;
  std::vector<std::vector<std::string>> queued;
  size_t queued_bytes = 0;
  void leave_multi();
  // Why EXEC cannot go on: a command of it could not be carried out as a whole.
  std::string exec_error;

  Connection& connection() { return connection_; }
  Loop& loop() { return loop_; }
  RespReply& reply() { return reply_; }
  // Runs one command, whose reply or error is appended.
  void run(std::span<const std::string_view> arguments);
  void run_command(const Command& command, std::span<const std::string_view> arguments);
  // Back to how it began.
  void reset();
  void unsubscribe_all();

 private:
  bool may_run(const Command& command, std::span<const std::string_view> arguments);
  void queue(std::span<const std::string_view> arguments);
  void call(const Command& command, std::span<const std::string_view> arguments);
  void fail(const std::string& text);

  Server& server_;
  Connection& connection_;
  Loop& loop_;
  RequestLimits limits_;
  RespParser parser_;
  RespReply reply_;
};

}  // namespace perdure::server
