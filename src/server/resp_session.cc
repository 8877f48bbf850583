#include "server/resp_session.h"

#include <fmt/core.h>

#include <algorithm>

#include "perdure/error.h"
#include "server/command_error.h"

namespace perdure::server {

namespace {

constexpr size_t kQueuedBytesMax = size_t{64} << 20;  // of MULTI
constexpr size_t kUnauthenticatedBytes = size_t{16} << 10;
constexpr size_t kUnauthenticatedArguments = 10;

constexpr char kLoadingError[] = "LOADING Perdure is loading the dataset in memory";

// The error as Redis says it.
std::string words_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kPoolFull:
    case ErrorCode::kNoSpace:
      return fmt::format("OOM command not allowed: the pool is full ({})", error.what());
    case ErrorCode::kTooLarge:
      return fmt::format("ERR too large: {}", error.what());
    case ErrorCode::kReadOnly:
      return fmt::format("READONLY {}", error.what());
    case ErrorCode::kIo:
      return fmt::format("IOERR {}", error.what());
    case ErrorCode::kCorrupt:
      return fmt::format("CORRUPT {}", error.what());
    default:
      return fmt::format("ERR {}", error.what());
  }
}

}  // namespace

RespSession::RespSession(Server& server, Connection& connection, Loop& loop)
    : is_authenticated(server.config().password.empty()),
      server_(server),
      connection_(connection),
      loop_(loop),
      parser_(limits_),
      reply_(connection.out) {
  limits_.bulk_bytes_max = server.config().value_bytes_max;
  if (!is_authenticated) {
    limits_.bulk_bytes_max = kUnauthenticatedBytes;
    limits_.arguments_max = kUnauthenticatedArguments;
  }
}

size_t RespSession::bytes_wanted(const Connection& connection) const {
  const size_t wanted = parser_.bytes_wanted();
  return wanted > connection.in.size() ? wanted - connection.in.size() : 0;
}

Session::Outcome RespSession::execute(Connection& connection) {
  const size_t begin = connection.out.size();
  for (int i = 0; i < kRequestsMax; ++i) {
    if (connection.out.size() - begin > kOutputMax) return Outcome::kMore;
    size_t consumed = 0;
    switch (parser_.parse(connection.in.view(), consumed)) {
      case RespParser::Result::kNeedMore:
        return Outcome::kIdle;
      case RespParser::Result::kError:
        reply_.error("ERR " + parser_.error());
        return Outcome::kClose;
      case RespParser::Result::kRequest:
        break;
    }
    if (!parser_.arguments().empty()) run(parser_.arguments());
    connection.in.consume(consumed);
    if (closes) return Outcome::kClose;
    if (is_authenticated && limits_.arguments_max == kUnauthenticatedArguments) {
      limits_ = RequestLimits();
      limits_.bulk_bytes_max = server_.config().value_bytes_max;
    }
  }
  return Outcome::kMore;
}

void RespSession::refuse_turn(Connection& /*connection*/) {
  reply_.error("IOERR the medium has failed: what was asked for last may not be durable");
}

void RespSession::fail(const std::string& text) {
  reply_.error(text);
  if (in_multi) multi_failed = true;
}

// Whether it may run now; if not, the client was told why.
bool RespSession::may_run(const Command& command, std::span<const std::string_view> arguments) {
  const auto count = static_cast<int>(arguments.size());
  if (command.arity > 0 ? count != command.arity : count < -command.arity) {
    fail(fmt::format("ERR wrong number of arguments for '{}' command", command.name));
    return false;
  }
  if (!is_authenticated && (command.flags & kNoAuth) == 0) {
    fail("NOAUTH Authentication required.");
    return false;
  }
  if (server_.keys() == nullptr && (command.flags & kLoading) == 0) {
    fail(kLoadingError);
    return false;
  }
  if (subscriptions() > 0 && reply_.version() == 2 && (command.flags & kWithSub) == 0) {
    fail(
        fmt::format("ERR Can't execute '{}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / "
                    "RESET are allowed in this context",
                    command.name));
    return false;
  }
  if (in_multi && (command.flags & kNoMulti) != 0) {
    fail(fmt::format("ERR Command '{}' not allowed inside a transaction", command.name));
    return false;
  }
  return true;
}

void RespSession::run(std::span<const std::string_view> arguments) {
  ++server_.metrics().commands;
  const Command* command = find_command(arguments[0]);
  if (command == nullptr) {
    std::string text = fmt::format("ERR unknown command '{}', with args beginning with: ",
                                   arguments[0].substr(0, 128));
    for (const std::string_view one : arguments.subspan(1)) {
      if (text.size() > 256) break;
      text += fmt::format("'{}' ", one.substr(0, 128));
    }
    return fail(text);
  }
  if (!may_run(*command, arguments)) {
    ++server_.metrics_of(number_of(*command)).rejected;
    return;
  }
  last_command = command->name;
  if (in_multi && (command->flags & kAtOnce) == 0) return queue(arguments);
  run_command(*command, arguments);
}

void RespSession::queue(std::span<const std::string_view> arguments) {
  for (const std::string_view one : arguments) queued_bytes += one.size() + sizeof(std::string);
  if (queued_bytes > kQueuedBytesMax) {
    return fail(fmt::format("ERR a transaction may not exceed {} bytes", kQueuedBytesMax));
  }
  queued.emplace_back(arguments.begin(), arguments.end());
  reply_.simple("QUEUED");
}

void RespSession::run_command(const Command& command, std::span<const std::string_view> arguments) {
  CommandMetrics& metrics = server_.metrics_of(number_of(command));
  reply_.forget_failure();
  const uint64_t begin = server_.clock().now();
  call(command, arguments);
  const auto ns = static_cast<uint64_t>(static_cast<double>(server_.clock().now() - begin) *
                                        server_.clock().ns_per_tick());
  metrics.latency.add(ns);
  if (reply_.has_failed()) ++metrics.failed;
  const int64_t slow_us = server_.config().slowlog_us;
  if (slow_us >= 0 && ns / 1000 > static_cast<uint64_t>(slow_us)) [[unlikely]] {
    if ((command.flags & kNoAuth) == 0) server_.note_slow(arguments, ns / 1000, connection_.peer);
  }
}

void RespSession::call(const Command& command, std::span<const std::string_view> arguments) {
  const size_t begin = connection_.out.size();
  Call call{server_, *this, server_.keys(), arguments, reply_};
  const bool opens_group = (command.flags & kGroup) != 0 && !call.keys().in_group();
  const auto undo = [&](const std::string& text) {
    if (opens_group) call.keys().abandon_group();
    connection_.out.truncate(begin);
    reply_.error(text);
  };
  try {
    if (opens_group) call.keys().begin_group();
    command.run(call);
    if (opens_group) call.keys().commit_group();
  } catch (const CommandError& error) {
    undo(error.text);
  } catch (const store::NotReady&) {
    exec_error = kLoadingError;
    undo(exec_error);
  } catch (const Error& error) {
    exec_error = words_of(error);
    undo(exec_error);
  } catch (const std::bad_alloc&) {
    exec_error = "OOM out of memory";
    undo(exec_error);
  }
}

void RespSession::leave_multi() {
  in_multi = multi_failed = false;
  queued.clear();
  queued_bytes = 0;
  if (server_.keys() != nullptr) server_.keys()->forget(*this);
}

void RespSession::unsubscribe_all() {
  const auto take_off = [&](Server::Subscribers& all, std::vector<std::string>& mine) {
    for (const std::string& one : mine) {
      const auto found = all.find(one);
      if (found == all.end()) continue;
      std::erase(found->second, Server::Subscriber{&loop_, connection_.id, 2});
      if (found->second.empty()) all.erase(found);
    }
    mine.clear();
  };
  take_off(server_.channels(), channels);
  take_off(server_.patterns(), patterns);
}

void RespSession::reset() {
  leave_multi();
  unsubscribe_all();
  database = 0;
  name.clear();
  reply_.set_version(2);
  is_authenticated = server_.config().password.empty();
}

void RespSession::leave() {
  leave_multi();
  unsubscribe_all();
}

}  // namespace perdure::server
