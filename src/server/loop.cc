#include "server/loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "common/ticks.h"
#include "perdure/error.h"
#include "pm/thread.h"
#include "server/address.h"
#include "server/server.h"
#include "server/tls.h"

namespace perdure::server {

namespace {

constexpr uint64_t kLookMs = 100;
constexpr uint64_t kDrainMs = 5000;
constexpr uint64_t kLackTellMs = 10'000;
constexpr uint64_t kReapElements = 256;  // some hundred microseconds
constexpr size_t kAheadKeys = 32;        // or some more
// Of those who come, and of those who have waited, in a turn: no more are begun behind so much.
constexpr size_t kTurnBytes = size_t{4} << 20;  // of replies

// What a connection needs may be more memory than there is: then it goes, and the others stay.
template <typename Step>
void do_or_break(Connection& connection, Step step) {
  try {
    step();
  } catch (const std::bad_alloc&) {
    connection.is_broken = true;
  }
}

template <typename T>
void make_room(std::vector<T>& list, size_t count) {
  if (list.capacity() < count) list.reserve(2 * count);
}

}  // namespace

const char* to_string(Face face) noexcept {
  switch (face) {
    case Face::kResp:
      return "resp";
    case Face::kTlsResp:
      return "tls-resp";
    case Face::kMemcached:
      return "memcached";
    case Face::kMetrics:
      return "metrics";
  }
  return "unknown";
}

Loop::Loop(Server& server, uint32_t index)
    : server_(server), index_(index), wakeup_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wakeup_ < 0) throw Error(ErrorCode::kIo, "eventfd has failed");
  const std::string& io = server.config().io;
  // "auto" is epoll: measured as the faster one (docs/server.md).
  driver_ = io == "uring" ? make_uring_driver() : make_epoll_driver();
  if (driver_ == nullptr) {
    ::close(wakeup_);
    throw Error(ErrorCode::kIo, "io uring: this system, or this build, has none; use io = auto");
  }
  driver_->add_wakeup(wakeup_);
  ahead_.reserve(kAheadKeys + kAheadRequests);
}

Loop::~Loop() {
  stop();
  join();
  for (const auto& [fd, face] : listeners_) ::close(fd);
  ::close(wakeup_);
}

void Loop::add_listener(int fd, Face face) {
  listeners_.emplace_back(fd, face);
  make_room(events_.accepted, listeners_.size() * kAcceptsMax);
  driver_->add_listener(fd, static_cast<uint32_t>(listeners_.size() - 1));
}

void Loop::start() {
  std::promise<void> begun;
  std::future<void> has_begun = begun.get_future();
  thread_ = pm::start_thread("the server", [this, begun = std::move(begun)]() mutable {
    try {
      begin();
    } catch (...) {
      return begun.set_exception(std::current_exception());
    }
    begun.set_value();
    run();
  });
  has_begun.get();
}

// What the kernel has let us make, it may not let this thread use (a container's rules): then epoll
// serves, as where there is no io_uring.
void Loop::begin() {
  try {
    driver_->begin();
  } catch (const Error& error) {
    server_.log().write(LogLevel::kWarning, "epoll serves in place of {}: {}", driver_->name(),
                        error.what());
    driver_ = make_epoll_driver();
    driver_->add_wakeup(wakeup_);
    for (uint32_t i = 0; i < listeners_.size(); ++i) driver_->add_listener(listeners_[i].first, i);
    driver_->begin();
  }
}

void Loop::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeup_, &one, sizeof one);
}

void Loop::stop() {
  stopping_.store(true);
  wake();
}

void Loop::join() {
  if (thread_.joinable()) thread_.join();
}

void Loop::post(uint64_t connection, std::shared_ptr<const std::string> bytes) {
  {
    const std::lock_guard lock(mail_mutex_);
    mail_.push_back({connection, std::move(bytes)});
  }
  wake();
}

void Loop::post_close(uint64_t connection) { post(connection, nullptr); }

void Loop::run() {
  now_ms_ = looked_ms_ = steady_ms();
  while (!stopping_.load(std::memory_order_relaxed)) turn();
  drain();
  driver_->end();
}

void Loop::turn() {
  events_.clear();
  const int patience_ms = has_garbage_ ? 1 : static_cast<int>(kLookMs);
  driver_->wait(ready_.empty() && deferred_.empty() ? patience_ms : 0, events_);
  now_ms_ = steady_ms();
  accept(events_);
  for (Connection* connection : events_.changed) note_input(*connection);
  if (events_.woken) deliver_mail();
  serve();
  try {
    if (has_garbage_) reap();
    if (now_ms_ - looked_ms_ >= kLookMs) look_after_connections();
  } catch (const std::bad_alloc&) {
    server_.log().write(LogLevel::kError, "out of memory for what is done in the background");
  }
}

// Those that have something to do: who has just come first, then those for whom earlier turns had
// no room, or who were served and want more. Each of the two has a part of the turn, so that nobody
// waits for ever, and who asks for little not for those who ask for much.
void Loop::serve() {
  if (ready_.empty() && deferred_.empty()) return;
  arrived_.clear();
  arrived_.swap(ready_);
  serving_.clear();
  {
    const Server::Turn turn(server_);
    const auto arrived = static_cast<ptrdiff_t>(execute_some(arrived_));
    const auto deferred = static_cast<ptrdiff_t>(execute_some(deferred_));
    serving_.insert(serving_.end(), arrived_.begin(), arrived_.begin() + arrived);
    serving_.insert(serving_.end(), deferred_.begin(), deferred_.begin() + deferred);
    deferred_.erase(deferred_.begin(), deferred_.begin() + deferred);
    for (auto rest = arrived_.begin() + arrived; rest != arrived_.end(); ++rest) {
      driver_->pause(**rest);
      deferred_.push_back(*rest);
    }
    if (!turn.finish()) refuse_turn();
  }
  for (Connection* connection : serving_) after_turn(*connection);
}

void Loop::accept(const Events& events) {
  for (const auto& [fd, listener] : events.accepted) welcome(fd, listeners_[listener].second);
  if (!events.lacks_descriptors || now_ms_ - lacked_ms_ < kLackTellMs) return;
  lacked_ms_ = now_ms_;
  server_.log().write(LogLevel::kWarning,
                      "no descriptor is left for a new connection: it waits (ulimit -n)");
}

void Loop::welcome(int fd, Face face) {
  Metrics& metrics = server_.metrics();
  if (metrics.connections.fetch_add(1) >= server_.limits().connections_max.load()) {
    metrics.connections.fetch_sub(1);
    metrics.connections_refused.fetch_add(1);
    constexpr std::string_view kFull = "-ERR max number of clients reached\r\n";
    if (face == Face::kResp) ::send(fd, kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::close(fd);
    return;
  }
  metrics.connections_accepted.fetch_add(1);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  Connection* entered = nullptr;
  try {
    auto connection = std::make_unique<Connection>();
    connection->fd = fd;
    connection->face = face;
    connection->peer = peer_address(fd).text();
    connection->id = server_.next_connection_id();
    connection->accepted_ms = connection->active_ms = connection->taking_ms = now_ms_;
    connection->out.set_bound(&server_.limits().output_bound);
    if (face == Face::kTlsResp) connection->tls = server_.tls()->accept();
    {
      // It looks at settings that CONFIG SET may change.
      const std::lock_guard lock(server_.execution());
      connection->session = server_.make_session(*connection, *this);
    }
    const size_t count = connections_.size() + 1;
    make_room(ready_, count);
    make_room(deferred_, count);
    make_room(arrived_, count);
    make_room(serving_, count);
    make_room(events_.changed, 2 * count);  // with io_uring one may have received and sent
    const std::lock_guard lock(table_mutex_);
    const uint64_t id = connection->id;
    entered = connections_.emplace(id, std::move(connection)).first->second.get();
  } catch (const std::exception& error) {
    server_.log().write(LogLevel::kWarning, "a connection is refused: {}", error.what());
    metrics.connections.fetch_sub(1);
    ::close(fd);
    return;
  }
  try {
    driver_->add(*entered);
    driver_->receive(*entered, 0);
  } catch (const std::exception& error) {
    server_.log().write(LogLevel::kWarning, "a connection is refused: {}", error.what());
    close(*entered);
  }
}

// Something has come, gone or ended.
void Loop::note_input(Connection& connection) {
  if (connection.bytes_in > 0) {
    server_.metrics().bytes_in.fetch_add(connection.bytes_in, std::memory_order_relaxed);
    connection.bytes_in = 0;
    connection.active_ms = now_ms_;
  }
  do_or_break(connection, [&] {
    if (connection.tls != nullptr && !connection.tls->decrypt(connection)) {
      connection.is_broken = true;
    }
  });
  if (connection.is_ready) return;
  connection.is_ready = true;
  ready_.push_back(&connection);
}

// As many of them as a part of a turn has room for, one at least. Returns how many.
size_t Loop::execute_some(const std::vector<Connection*>& ready) {
  const uint64_t begin = server_.clock().now();
  const auto most = static_cast<uint64_t>(kTurnNs / server_.clock().ns_per_tick());
  size_t bytes = 0;
  const auto has_room = [&] { return bytes < kTurnBytes && server_.clock().now() - begin < most; };
  const auto first = ready.begin();
  auto next = first;
  // The records of some requests are asked for before the first of these is carried out: of several
  // clients, and of what each has sent together.
  while (next != ready.end() && (next == first || has_room())) {
    ahead_.clear();
    auto end = next;
    // What is read ahead and not carried out is read again: so at most one is, if there is no room.
    for (; end != ready.end() && ahead_.size() < kAheadKeys && (end == next || has_room()); ++end) {
      Connection& connection = **end;
      if (!may_execute(connection)) continue;
      do_or_break(connection, [&] { connection.session->look_ahead(connection, ahead_); });
    }
    if (ahead_.size() > 1 && server_.keys() != nullptr) server_.keys()->prefetch(ahead_);
    for (; next != end && (next == first || has_room()); ++next) {
      Connection& connection = **next;
      connection.is_ready = false;
      execute_one(connection);
      bytes += connection.out.size() - connection.turn_begin;
    }
    for (auto rest = next; rest != end; ++rest) (*rest)->session->forget_ahead();
  }
  return static_cast<size_t>(next - first);
}

void Loop::refuse_turn() {
  for (Connection* connection : serving_) {
    if (connection->out.size() <= connection->turn_begin) continue;
    connection->out.truncate(connection->turn_begin);
    do_or_break(*connection, [&] { connection->session->refuse_turn(*connection); });
    connection->is_closing = true;
  }
}

// More waits than replies alone can be: `out` has its bound, and what had left it before the last
// of them began was less than kOutputPauseBytes, but for what TLS adds.
bool Loop::has_too_much(const Connection& connection) const {
  const uint64_t most =
      server_.limits().output_bound.load(std::memory_order_relaxed) + 2 * kOutputPauseBytes;
  return Driver::unsent(connection) > most && !connection.session->has_large_replies();
}

bool Loop::may_execute(Connection& connection) {
  return !connection.is_broken && !connection.is_closing &&
         Driver::unsent(connection) < kOutputPauseBytes;  // else until they have gone
}

void Loop::execute_one(Connection& connection) {
  connection.turn_begin = connection.out.size();
  if (!may_execute(connection)) {
    // Its replies may go in this very turn, and nothing else would tell that it may go on.
    connection.is_ready = !connection.is_broken && !connection.is_closing;
    return;
  }
  try {
    const Session::Outcome outcome = connection.session->execute(connection);
    connection.is_waiting = connection.session->is_waiting();
    switch (outcome) {
      case Session::Outcome::kIdle:
        if (connection.has_ended) connection.is_closing = true;
        break;
      case Session::Outcome::kMore:
        connection.is_ready = true;
        break;
      case Session::Outcome::kClose:
        connection.is_closing = true;
        break;
    }
  } catch (const std::bad_alloc&) {
    server_.log().write(LogLevel::kError, "out of memory for connection {}", connection.id);
    connection.is_broken = true;
  }
}

void Loop::send(Connection& connection) {
  for (bool has_more = true; has_more;) {
    do_or_break(connection, [&] {
      if (connection.tls != nullptr && !connection.tls->encrypt(connection)) {
        connection.is_broken = true;
      }
    });
    if (connection.is_broken || Driver::unsent(connection) == 0) return;
    const bool is_encrypted = connection.tls != nullptr && !connection.tls_out.empty();
    driver_->send(connection);
    // What is not encrypted yet comes when that has gone, which may be at once.
    has_more = is_encrypted && Driver::unsent(connection) == connection.out.size();
  }
}

void Loop::after_turn(Connection& connection) {
  const bool has_more = connection.is_ready;
  send(connection);
  if (connection.bytes_out > 0) {
    server_.metrics().bytes_out.fetch_add(connection.bytes_out, std::memory_order_relaxed);
    connection.bytes_out = 0;
  }
  const size_t unsent = Driver::unsent(connection);
  if (unsent == 0 || unsent < connection.unsent) connection.taking_ms = now_ms_;
  connection.unsent = unsent;
  if (has_too_much(connection)) {
    server_.log().write(LogLevel::kWarning, "connection {} does not take its replies: closed",
                        connection.id);
    connection.is_broken = true;
  }
  if (connection.is_broken || (connection.is_closing && unsent == 0)) {
    return close(connection);
  }
  const bool waits = unsent >= kOutputPauseBytes;
  if (has_more && !waits) {
    deferred_.push_back(&connection);  // is_ready stays
    driver_->pause(connection);
    return;
  }
  connection.is_ready = false;
  // Behind a command that waits some more may come, so that an end is noticed, but not without a
  // bound.
  const bool is_ahead = connection.is_waiting && connection.in.size() >= kBufferKeepBytes;
  if (connection.is_closing || waits || connection.has_ended || is_ahead) {
    driver_->pause(connection);
    return;
  }
  if (!driver_->lends_input(connection)) {
    connection.in.shrink(kBufferKeepBytes);
    if (connection.tls != nullptr) connection.tls_in.shrink(kBufferKeepBytes);
  }
  connection.out.shrink(kBufferKeepBytes);
  connection.tls_out.shrink(kBufferKeepBytes);
  do_or_break(connection,
              [&] { driver_->receive(connection, connection.session->bytes_wanted(connection)); });
  if (connection.is_broken) close(connection);
}

void Loop::deliver_mail() {
  std::vector<Mail> mail;
  {
    const std::lock_guard lock(mail_mutex_);
    mail.swap(mail_);
  }
  for (const Mail& one : mail) {
    const auto found = connections_.find(one.connection);
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    if (one.bytes == nullptr) {
      connection.is_broken = true;
    } else if (!connection.is_broken) {
      do_or_break(connection, [&] { connection.out.append(*one.bytes); });
      // What comes at once may be a burst: not all of it beyond what may wait for one that does not
      // take it.
      if (has_too_much(connection)) connection.is_broken = true;
      if (connection.is_broken) {
        server_.log().write(LogLevel::kWarning, "connection {} does not take its messages: closed",
                            connection.id);
      }
    }
    if (connection.is_ready) continue;
    connection.is_ready = true;
    ready_.push_back(&connection);
  }
}

void Loop::close(Connection& connection) {
  {
    const std::lock_guard lock(server_.execution());
    connection.session->leave();
  }
  std::erase(ready_, &connection);
  std::erase(deferred_, &connection);
  server_.metrics().connections.fetch_sub(1);
  const std::lock_guard lock(table_mutex_);
  const auto found = connections_.find(connection.id);
  std::unique_ptr<Connection> owned = std::move(found->second);
  connections_.erase(found);
  driver_->remove(std::move(owned));
}

// A little of what removed collections have left, in a quarter of the time at most.
void Loop::reap() {
  const double begin_s = steady_seconds();
  if (begin_s < reap_from_s_) return;
  has_garbage_ = server_.reap(kReapElements);
  const double end_s = steady_seconds();
  reap_from_s_ = end_s + 3 * (end_s - begin_s);
}

// Timeouts, and work that nobody waits for.
void Loop::look_after_connections() {
  looked_ms_ = now_ms_;
  driver_->listen_again();
  if (index_ == 0) reap();
  const uint64_t idle_ms = uint64_t{server_.limits().idle_timeout_s.load()} * 1000;
  const uint64_t slow_ms = uint64_t{server_.limits().slow_timeout_s.load()} * 1000;
  std::vector<Connection*> late;
  for (const auto& [id, connection] : connections_) {
    if (connection->is_waiting && !connection->is_ready) {
      // Its time may be up. Who waits has not stopped within a request.
      connection->active_ms = now_ms_;
      const std::lock_guard lock(server_.execution());
      if (connection->session->is_due()) {
        connection->is_ready = true;
        ready_.push_back(connection.get());
      }
    }
    const bool waits_for_us = connection->is_ready;
    const size_t unsent = Driver::unsent(*connection);
    if (unsent == 0) connection->taking_ms = std::max(connection->taking_ms, looked_ms_);
    const bool stuck = unsent > 0 && slow_ms != 0 && now_ms_ - connection->taking_ms > slow_ms;
    const bool has_begun =
        !connection->in.empty() || (connection->tls != nullptr && !connection->tls->is_agreed());
    const bool half = unsent == 0 && slow_ms != 0 && !waits_for_us && has_begun &&
                      now_ms_ - connection->active_ms > slow_ms;
    const bool idle =
        idle_ms != 0 && unsent == 0 && !waits_for_us && now_ms_ - connection->active_ms > idle_ms;
    if (stuck || half || idle) late.push_back(connection.get());
  }
  for (Connection* connection : late) {
    server_.metrics().connections_timed_out.fetch_add(1);
    server_.log().write(LogLevel::kDebug, "connection {} is closed: it was silent for too long",
                        connection->id);
    close(*connection);
  }
}

// The end in order: what has come is carried out, and its replies are sent, for some seconds.
void Loop::drain() {
  driver_->remove_listeners();
  for (const auto& [fd, face] : listeners_) ::close(fd);
  listeners_.clear();
  const uint64_t end_ms = steady_ms() + kDrainMs;
  const auto has_work = [&] {
    return !ready_.empty() || !deferred_.empty() ||
           std::ranges::any_of(connections_,
                               [](const auto& one) { return Driver::unsent(*one.second) > 0; });
  };
  // One turn more, with what has come by now; then as long as there is something to send.
  for (int round = 0; (round < 2 || has_work()) && steady_ms() < end_ms; ++round) {
    events_.clear();
    driver_->wait(round == 0 ? 0 : 10, events_);
    for (const auto& [fd, listener] : events_.accepted) ::close(fd);
    for (Connection* connection : events_.changed) note_input(*connection);
    serve();
  }
  while (!connections_.empty()) close(*connections_.begin()->second);
}

}  // namespace perdure::server
