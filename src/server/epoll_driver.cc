// epoll, level-triggered.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "perdure/error.h"
#include "server/driver.h"
#include "server/tls.h"

namespace perdure::server {

namespace {

constexpr int kEventsMax = 256;

class EpollDriver final : public Driver {
 public:
  EpollDriver() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw Error(ErrorCode::kIo, "epoll_create1 has failed");
  }
  ~EpollDriver() override { ::close(epoll_); }

  const char* name() const override { return "epoll"; }

  void add_listener(int fd, uint32_t number) override {
    watch(fd, EPOLLIN, data_of(number));
    listeners_.push_back({fd, number});
  }
  void remove_listeners() override {
    for (const Listener& one : listeners_) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, one.fd, nullptr);
    listeners_.clear();
  }
  void listen_again() override {
    for (Listener& one : listeners_) {
      if (!std::exchange(one.rests, false)) continue;
      change(one);
    }
  }
  void add_wakeup(int fd) override {
    watch(fd, EPOLLIN, 1);
    wakeup_ = fd;
  }
  void add(Connection& connection) override {
    connection.is_watched = true;
    connection.reads = true;
    watch(connection.fd, EPOLLIN, reinterpret_cast<uint64_t>(&connection));
  }
  void remove(std::unique_ptr<Connection> connection) override { ::close(connection->fd); }

  void receive(Connection& connection, size_t bytes_hint) override {
    hint_of(connection, bytes_hint);
    if (connection.reads || connection.has_ended) return;
    connection.reads = true;
    change(connection);
  }
  bool lends_input(const Connection& /*connection*/) const override { return false; }
  void pause(Connection& connection) override {
    if (!connection.reads) return;
    connection.reads = false;
    change(connection);
  }
  void send(Connection& connection) override {
    Buffer& out = connection.wire_out();
    while (!out.empty()) {
      const ssize_t sent = ::send(connection.fd, out.data(), out.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        out.consume(static_cast<size_t>(sent));
        connection.bytes_out += static_cast<uint64_t>(sent);
        continue;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN) connection.is_broken = true;
      break;
    }
    const bool wants = !out.empty() && !connection.is_broken;
    if (wants == connection.writes) return;
    connection.writes = wants;
    change(connection);
  }

  void wait(int timeout_ms, Events& events) override {
    epoll_event ready[kEventsMax];
    const int count = ::epoll_wait(epoll_, ready, kEventsMax, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const uint64_t what = ready[i].data.u64;
      if (what == 1) {
        uint64_t counter = 0;
        [[maybe_unused]] const ssize_t read = ::read(wakeup_, &counter, sizeof counter);
        events.woken = true;
      } else if ((what & 1) != 0) {
        accept_all(static_cast<uint32_t>(what >> 2), events);
      } else {
        auto& connection =
            *reinterpret_cast<Connection*>(what);  // NOLINT(performance-no-int-to-ptr)
        handle(connection, ready[i].events);
        events.changed.push_back(&connection);
      }
    }
  }

 private:
  struct Listener {
    int fd;
    uint32_t number;
    bool rests = false;
  };
  // What an event refers to: a listener by its number, the wakeup by 0, a connection by its
  // address.
  static uint64_t data_of(uint32_t listener) { return (uint64_t{listener} << 1 | 1) << 1 | 1; }
  void change(const Listener& listener) const {
    epoll_event event{};
    if (!listener.rests) event.events = EPOLLIN;
    event.data.u64 = data_of(listener.number);
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener.fd, &event);
  }
  void watch(int fd, uint32_t what, uint64_t data) const {
    epoll_event event{};
    event.events = what;
    event.data.u64 = data;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      throw Error(ErrorCode::kIo, std::string("epoll_ctl: ") + std::strerror(errno));
    }
  }
  void change(const Connection& connection) const {
    epoll_event event{};
    if (connection.reads) event.events |= EPOLLIN;
    if (connection.writes) event.events |= EPOLLOUT;
    event.data.u64 = reinterpret_cast<uint64_t>(&connection);
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
  }
  static void hint_of(Connection& connection, size_t bytes) {
    // Where there is no memory for that it is read in smaller pieces.
    try {
      if (bytes > kReadBytes) connection.wire_in().prepare(std::min(bytes, kReadBytesMax));
    } catch (const std::bad_alloc&) {
    }
  }
  void accept_all(uint32_t number, Events& events) {
    const auto listener = std::ranges::find(listeners_, number, &Listener::number);
    if (listener == listeners_.end()) return;
    if (accept_some(listener->fd, number, SOCK_NONBLOCK, events)) return;
    listener->rests = true;
    change(*listener);
  }
  void handle(Connection& connection, uint32_t what) {
    if ((what & EPOLLIN) != 0 || (connection.reads && (what & (EPOLLHUP | EPOLLERR)) != 0)) {
      read_some(connection);
    } else if ((what & (EPOLLHUP | EPOLLERR)) != 0) {
      connection.is_broken = true;  // nothing can be sent either
    }
    if ((what & EPOLLOUT) != 0) send(connection);
  }
  static void read_some(Connection& connection) {
    const size_t room = std::clamp(connection.wire_in().room(), kReadBytes, kReadBytesMax);
    char* to = nullptr;
    try {
      to = connection.wire_in().prepare(room);
    } catch (const std::bad_alloc&) {
      connection.is_broken = true;
      return;
    }
    const ssize_t got = ::recv(connection.fd, to, room, 0);
    if (got > 0) {
      connection.wire_in().commit(static_cast<size_t>(got));
      connection.bytes_in += static_cast<uint64_t>(got);
    } else if (got == 0) {
      connection.has_ended = true;
    } else if (errno != EAGAIN && errno != EINTR) {
      connection.is_broken = true;
    }
  }

  int epoll_;
  int wakeup_ = -1;
  std::vector<Listener> listeners_;
};

}  // namespace

std::unique_ptr<Driver> make_epoll_driver() { return std::make_unique<EpollDriver>(); }

}  // namespace perdure::server
