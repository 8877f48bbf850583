#include "server/resp_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "perdure/error.h"
#include "server/command_error.h"

namespace perdure::server {

namespace {

constexpr size_t kQueuedBytesMax = size_t{64} << 20;  // of MULTI
constexpr size_t kUnauthenticatedBytes = size_t{16} << 10;
constexpr size_t kUnauthenticatedArguments = 10;
constexpr size_t kAheadArguments = 256;  // or a few more

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
    : user(server.acl().default_user()),
      server_(server),
      connection_(connection),
      loop_(loop),
      parser_(limits_),
      reply_(connection.out) {
  limits_.bulk_bytes_max = server.config().value_bytes_max;
  if (user == nullptr) {
    limits_.bulk_bytes_max = kUnauthenticatedBytes;
    limits_.arguments_max = kUnauthenticatedArguments;
  }
}

size_t RespSession::bytes_wanted(const Connection& connection) const {
  const size_t wanted = parser_.bytes_wanted();
  return wanted > connection.in.size() ? wanted - connection.in.size() : 0;
}

RespParser::Result RespSession::parse_ahead(std::string_view input) {
  ahead_.clear();
  requests_.clear();
  // AUTH changes what may come behind it.
  const size_t requests_max = user != nullptr ? kAheadRequests : 1;
  auto result = RespParser::Result::kRequest;
  while (requests_.size() < requests_max && ahead_.size() < kAheadArguments) {
    const size_t first = ahead_.size();
    size_t consumed = 0;
    result = parser_.parse(input, consumed, ahead_);
    if (result != RespParser::Result::kRequest) break;
    requests_.push_back({first, ahead_.size() - first, consumed});
    if (input[0] != '*') break;  // the words may lie in the parser
    input.remove_prefix(consumed);
  }
  return result;
}

// What stands where most commands have their key. If it is none, or of another database by then,
// nothing is lost.
void RespSession::look_ahead(Connection& connection, std::vector<std::string_view>& keys) {
  if (blocked_) return;  // what comes behind it waits, too
  looked_ahead_ = parse_ahead(connection.in.view());
  if (database != 0) return;
  for (const Request& request : requests_) {
    if (request.count >= 2) keys.push_back(ahead_[request.arguments + 1]);
  }
}

void RespSession::forget_ahead() {
  if (!looked_ahead_) return;
  looked_ahead_.reset();
  parser_.restart();  // what it has begun is not what comes next
}

void RespSession::wake() {
  if (is_woken_) return;
  is_woken_ = true;
  static const auto kNothing = std::make_shared<const std::string>();
  loop_.post(connection_.id, kNothing);  // in a later turn: then it is written
}

bool RespSession::is_due() const {
  return blocked_ && blocked_->end_ms <= store::StoreImpl::now_ms();
}

void RespSession::wait_for_keys(const Call& call, double seconds,
                                std::span<const std::string_view> raw_keys) {
  if (call.keys().in_transaction()) return reply_.null_array();
  size_t bytes = 0;
  for (const std::string_view raw : raw_keys) bytes += raw.size();
  require_names(raw_keys.size(), bytes);
  // Less than a millisecond is not for ever.
  block(call, seconds == 0 ? 0 : std::max<uint64_t>(static_cast<uint64_t>(seconds * 1000), 1));
  for (const std::string_view raw : raw_keys) call.keys().wait_for(*this, raw);
}

void RespSession::wait_for_followers(const Call& call, uint64_t ms) {
  block(call, ms);
  server_.await_followers(*this);
}

void RespSession::block(const Call& call, uint64_t ms) {
  if (blocked_) return;
  is_woken_ = false;  // what it took last has woken itself
  // Some of the present millisecond is over, and nobody waits for less than he asked for.
  blocked_ = Blocked{.arguments = {call.arguments.begin(), call.arguments.end()},
                     .end_ms = ms == 0 ? ~uint64_t{0} : store::StoreImpl::now_ms() + ms + 1};
}

void RespSession::stop_waiting() {
  server_.keys()->stop_waiting(*this);
  server_.stop_awaiting_followers(*this);
  blocked_.reset();
}

// What waits is tried again. Returns whether it waits still.
bool RespSession::go_on() {
  if (!blocked_) return false;
  is_woken_ = false;
  const std::vector<std::string_view> arguments(blocked_->arguments.begin(),
                                                blocked_->arguments.end());
  const size_t begin = connection_.out.size();
  const Command& command = *find_command(arguments[0]);
  run_from_ = server_.clock().now();
  // Whatever has changed meanwhile: the user's rules, the role.
  if (may_run(command, arguments)) run_command(command, arguments);
  if (connection_.out.size() == begin) {
    if (!is_due()) return true;
    reply_.null_array();
  }
  stop_waiting();
  return false;
}

Session::Outcome RespSession::execute(Connection& connection) {
  if (go_on()) return Outcome::kIdle;
  const size_t begin = connection.out.size();
  const uint64_t begin_ticks = server_.clock().now();
  const auto most = static_cast<uint64_t>(kTurnNs / server_.clock().ns_per_tick());
  for (int done = 0; done < kRequestsMax;) {
    if (!looked_ahead_) {
      keys_.clear();
      look_ahead(connection, keys_);
      if (keys_.size() > 1 && server_.keys() != nullptr) server_.keys()->prefetch(keys_);
    }
    const RespParser::Result last = *std::exchange(looked_ahead_, std::nullopt);
    run_from_ = server_.clock().now();
    for (const Request& request : requests_) {
      const bool has_time = done == 0 || run_from_ - begin_ticks < most;
      if (!has_time || connection.out.size() - begin > kOutputMax) {
        parser_.restart();  // what it has begun is not what comes next
        return Outcome::kMore;
      }
      if (request.count > 0) run(std::span(ahead_).subspan(request.arguments, request.count));
      connection.in.consume(request.bytes);
      ++done;
      if (closes) return Outcome::kClose;
      if (blocked_) {  // what comes behind it waits, too
        parser_.restart();
        return Outcome::kIdle;
      }
      if (user != nullptr && limits_.arguments_max == kUnauthenticatedArguments) {
        limits_ = RequestLimits();
        limits_.bulk_bytes_max = server_.config().value_bytes_max;
      }
    }
    if (last == RespParser::Result::kNeedMore) return Outcome::kIdle;
    if (last == RespParser::Result::kError) {
      reply_.error("ERR " + parser_.error());
      return Outcome::kClose;
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
    const std::string words =
        fmt::format("wrong number of arguments for '{}' command", command.name);
    if (std::string_view(command.name) == "exec") {
      leave_multi();
      fail("EXECABORT Transaction discarded because of: " + words);
    } else {
      fail("ERR " + words);
    }
    return false;
  }
  if (const auto error = subcommand_error(command, arguments)) {
    fail(*error);
    return false;
  }
  if (user == nullptr && (command.flags & kNoAuth) == 0) {
    fail("NOAUTH Authentication required.");
    return false;
  }
  if (user != nullptr && !user->may_all()) {
    if (const auto denied = denial_of(*user, command, arguments)) {
      note_denial(denied->reason, denied->object);
      fail(denied->words);
      return false;
    }
  }
  if (server_.keys() == nullptr && (command.flags & kLoading) == 0) {
    fail(kLoadingError);
    return false;
  }
  if (server_.is_follower() && (command.flags & kWrites) != 0) {
    fail("READONLY You can't write against a read only replica.");
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
    fail("ERR Command not allowed inside a transaction");
    return false;
  }
  return true;
}

void RespSession::note_denial(std::string_view reason, std::string_view object) {
  object = object.substr(0, 128);  // what is kept of it
  server_.acl().note_denial({.time_ms = store::StoreImpl::now_ms(),
                             .reason = std::string(reason),
                             .object = std::string(object),
                             .user = user == nullptr ? std::string(object) : user->name(),
                             .peer = connection_.peer});
}

void RespSession::run(std::span<const std::string_view> arguments) {
  ++server_.metrics().commands;
  const Command* command = find_command(arguments[0]);
  if (command == nullptr) {
    if (same_word(arguments[0], "POST") || same_word(arguments[0], "HOST:")) {
      // A browser, which somebody lets send requests to us; its body would be commands.
      server_.log().write(LogLevel::kWarning, "connection {} from {} speaks HTTP: closed",
                          connection_.id, connection_.peer);
      closes = true;
      return;
    }
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
  last_command = command.name;
  reply_.forget_failure();
  const uint64_t begin = run_from_;
  call(command, arguments);
  if ((command.flags & kWrites) != 0) note_written();
  run_from_ = server_.clock().now();
  const auto ns =
      static_cast<uint64_t>(static_cast<double>(run_from_ - begin) * server_.clock().ns_per_tick());
  metrics.latency.add(ns);
  if (reply_.has_failed()) ++metrics.failed;
  const int64_t slow_us = server_.config().slowlog_us;
  if (slow_us >= 0 && ns / 1000 > static_cast<uint64_t>(slow_us)) [[unlikely]] {
    if ((command.flags & kNoAuth) == 0) server_.note_slow(arguments, ns / 1000, connection_.peer);
  }
}

void RespSession::note_written() {
  wrote_unrecorded_ = server_.replicas().empty();
  if (!wrote_unrecorded_) [[unlikely]]
    written_ = server_.positions_of_turn();
}

// Of what it wrote while nobody followed it is not known where it stands, but not behind what is
// there now.
const Server::Positions& RespSession::written() {
  if (wrote_unrecorded_ && !server_.replicas().empty()) note_written();
  return written_;
}

void RespSession::call(const Command& command, std::span<const std::string_view> arguments) {
  const size_t begin = connection_.out.size();
  Call call{server_, *this, server_.keys(), arguments, reply_};
  const bool opens_group = (command.flags & kGroup) != 0 && !call.keys().in_group();
  KeyEvents& events = server_.events();
  const auto undo = [&](const std::string& text) {
    if (opens_group) call.keys().abandon_group();
    events.abandon();
    connection_.out.truncate(begin);
    reply_.error(text);
  };
  try {
    if (events.are_on()) [[unlikely]]
      events.begin(command, arguments, database);
    if (opens_group) call.keys().begin_group();
    command.run(call);
    if (opens_group) call.keys().commit_group();
    if (events.are_on()) [[unlikely]]
      events.end(arguments, database);
  } catch (const CommandError& error) {
    undo(error.text);
  } catch (const store::NotReady&) {
    exec_error = kLoadingError;
    undo(exec_error);
  } catch (const Error& error) {
    exec_error = words_of(error);
    undo(exec_error);
  } catch (const BufferFull&) {
    exec_error = "ERR the reply exceeds output-bytes-max";
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
  subscribed_bytes = 0;
}

void RespSession::reset() {
  leave_multi();
  sync.reset();
  unsubscribe_all();
  database = 0;
  name.clear();
  reply_.set_version(2);
  user = server_.acl().default_user();
}

void RespSession::leave() {
  if (blocked_) stop_waiting();
  leave_multi();
  sync.reset();
  unsubscribe_all();
}

}  // namespace perdure::server
