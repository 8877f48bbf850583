// io_uring: what many connections receive and send goes to the kernel in one call for each turn.
//
// One operation of each kind at a time is under way for a connection. While it receives, nobody
// else appends to wire_in(), so the kernel may write there; what it sends has left wire_out() for
// `sending`. A connection that is removed stays until the kernel has let go of both.
#include "server/driver.h"

#if defined(PERDURE_HAS_URING)

#include <liburing.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "perdure/error.h"
#include "server/tls.h"

namespace perdure::server {

namespace {

constexpr unsigned kEntries = 1024;

// What a completion is of: in the lowest bits of its user data, whose rest is an address or a
// number.
enum Kind : uint64_t { kReceive, kSend, kListener, kWakeup, kCancel, kKindMask = 7 };

class UringDriver final : public Driver {
 public:
  UringDriver(io_uring& ring, bool polls_first, bool is_disabled)
      : ring_(ring), polls_first_(polls_first), is_disabled_(is_disabled) {}
  ~UringDriver() override {
    for (const auto& connection : removed_) ::close(connection->fd);
    ::io_uring_queue_exit(&ring_);
  }

  const char* name() const override { return "io_uring"; }
  // The ring is of the thread that enables it. What was queued before goes to the kernel with the
  // first wait().
  void begin() override {
    if (!is_disabled_) return;
    // No function of liburing: 2.3 declares it, and has none.
    if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr,
                  0) != 0) {
      throw Error(ErrorCode::kIo,
                  std::string("io_uring cannot be enabled: ") + std::strerror(errno));
    }
  }
  void end() override {
    Events events;
    for (int i = 0; i < 100 && !removed_.empty(); ++i) wait(10, events);
  }

  void add_listener(int fd, uint32_t number) override {
    if (listeners_.size() <= number) listeners_.resize(number + 1, -1);
    listeners_[number] = fd;
    resting_.reserve(listeners_.size());
    watch_listener(number);
  }
  void remove_listeners() override {
    for (uint32_t number = 0; number < listeners_.size(); ++number) {
      io_uring_sqe* entry = next_entry();
      ::io_uring_prep_poll_remove(entry, uint64_t{number} << 3 | kListener);
      entry->user_data = kCancel;
      listeners_[number] = -1;
    }
    resting_.clear();
  }
  void listen_again() override {
    for (const uint32_t number : resting_) watch_listener(number);
    resting_.clear();
  }
  void add_wakeup(int fd) override {
    wakeup_ = fd;
    watch_wakeup();
  }
  void add(Connection& connection) override {
    if (removed_.capacity() <= connections_) removed_.reserve(2 * (connections_ + 1));
    ++connections_;
    connection.is_watched = true;
  }
  void remove(std::unique_ptr<Connection> connection) override {
    if (connection->pending == 0) {
      ::close(connection->fd);
      if (connection->is_watched) --connections_;
      return;
    }
    connection->is_removed = true;
    // Ends what is under way: receives find the end, sends fail.
    ::shutdown(connection->fd, SHUT_RDWR);
    removed_.push_back(std::move(connection));
  }

  void receive(Connection& connection, size_t bytes_hint) override {
    if (connection.reads || connection.has_ended || connection.is_removed) return;
    Buffer& in = connection.wire_in();
    const size_t wanted = std::clamp(bytes_hint, kReadBytes, kReadBytesMax);
    char* to = in.prepare(wanted);
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_recv(entry, connection.fd, to, in.room(), 0);
#if defined(IORING_RECVSEND_POLL_FIRST)
    // Nearly always the client waits for what is answered in this turn: to look for input now would
    // find none.
    if (polls_first_) entry->ioprio |= IORING_RECVSEND_POLL_FIRST;
#endif
    entry->user_data = reinterpret_cast<uint64_t>(&connection) | kReceive;
    connection.reads = true;
    ++connection.pending;
  }
  bool lends_input(const Connection& connection) const override { return connection.reads; }
  // It receives once, and then not until it is told to.
  void pause(Connection& /*connection*/) override {}

  void send(Connection& connection) override {
    if (connection.writes || connection.is_removed) return;
    if (connection.sending.empty()) connection.sending.swap(connection.wire_out());
    if (connection.sending.empty()) return;
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_send(entry, connection.fd, connection.sending.data(), connection.sending.size(),
                         MSG_NOSIGNAL);
    entry->user_data = reinterpret_cast<uint64_t>(&connection) | kSend;
    connection.writes = true;
    ++connection.pending;
  }

  void wait(int timeout_ms, Events& events) override {
    io_uring_cqe* completion = nullptr;
    if (timeout_ms <= 0) {
      submit_and_look();
    } else {
      __kernel_timespec timeout{.tv_sec = timeout_ms / 1000,
                                .tv_nsec = static_cast<int64_t>(timeout_ms % 1000) * 1'000'000};
      ::io_uring_submit_and_wait_timeout(&ring_, &completion, 1, &timeout, nullptr);
    }
    unsigned head = 0;
    unsigned count = 0;
    io_uring_for_each_cqe(&ring_, head, completion) {
      handle(*completion, events);
      ++count;
    }
    ::io_uring_cq_advance(&ring_, count);
  }

 private:
  // Also lets what has completed become visible, where the kernel leaves that to the thread.
  void submit_and_look() {
#if defined(IORING_SETUP_DEFER_TASKRUN)
    ::io_uring_submit_and_get_events(&ring_);
#else
    ::io_uring_submit(&ring_);
#endif
  }
  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    while (entry == nullptr) {  // the queue is full: the kernel takes it
      ::io_uring_submit(&ring_);
      entry = ::io_uring_get_sqe(&ring_);
    }
    return entry;
  }
  void watch_listener(uint32_t number) {
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_poll_add(entry, listeners_[number], POLLIN);
    entry->user_data = uint64_t{number} << 3 | kListener;
  }
  void watch_wakeup() {
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_read(entry, wakeup_, &counter_, sizeof counter_, 0);
    entry->user_data = kWakeup;
  }

  void handle(const io_uring_cqe& completion, Events& events) {
    const uint64_t what = completion.user_data;
    const auto kind = static_cast<Kind>(what & kKindMask);
    if (kind == kCancel) return;
    if (kind == kWakeup) {
      events.woken = true;
      return watch_wakeup();
    }
    if (kind == kListener) return accept_all(static_cast<uint32_t>(what >> 3), events);
    auto& connection =
        *reinterpret_cast<Connection*>(what & ~kKindMask);  // NOLINT(performance-no-int-to-ptr)
    --connection.pending;
    if (kind == kReceive) {
      connection.reads = false;
      note_received(connection, completion.res);
    } else {
      connection.writes = false;
      note_sent(connection, completion.res);
    }
    if (!connection.is_removed) {
      // All is sent, and input is awaited: nobody has to look at it.
      const bool idle = kind == kSend && connection.reads && Driver::unsent(connection) == 0 &&
                        !connection.is_broken && !connection.is_closing;
      if (!idle) events.changed.push_back(&connection);
    } else if (connection.pending == 0) {
      ::close(connection.fd);
      --connections_;
      const auto is_it = [&](const auto& one) { return one.get() == &connection; };
      std::iter_swap(std::ranges::find_if(removed_, is_it), removed_.end() - 1);
      removed_.pop_back();
    }
  }
  void note_received(Connection& connection, int result) {
    if (result > 0) {
      connection.wire_in().commit(static_cast<size_t>(result));
      connection.bytes_in += static_cast<uint64_t>(result);
    } else if (result == 0) {
      connection.has_ended = true;
    } else if (result == -EINTR || result == -EAGAIN) {
      if (!connection.is_removed) receive(connection, 0);  // to the room that it had
    } else {
      connection.is_broken = true;
    }
  }
  void note_sent(Connection& connection, int result) {
    if (result > 0) {
      connection.sending.consume(static_cast<size_t>(result));
      connection.sending.shrink(kBufferKeepBytes);  // nobody may look at it for long
      connection.bytes_out += static_cast<uint64_t>(result);
    } else if (result != -EINTR && result != -EAGAIN) {
      connection.is_broken = true;
    }
    if (!connection.is_broken) send(connection);  // the rest, and what has come since
  }
  void accept_all(uint32_t number, Events& events) {
    const int listener = listeners_[number];
    if (listener < 0) return;
    // Blocking sockets: io_uring waits by itself.
    if (accept_some(listener, number, 0, events)) {
      watch_listener(number);
    } else {
      resting_.push_back(number);  // there is room for all
    }
  }

  io_uring ring_;
  [[maybe_unused]] const bool polls_first_;
  const bool is_disabled_;
  std::vector<int> listeners_;
  std::vector<uint32_t> resting_;  // not watched for now
  int wakeup_ = -1;
  uint64_t counter_ = 0;
  size_t connections_ = 0;  // with those that are removed
  // There is always room in it for all connections: to let one go may not need memory.
  std::vector<std::unique_ptr<Connection>> removed_;
};

}  // namespace

std::unique_ptr<Driver> make_uring_driver() {
  io_uring ring{};
  // One thread submits, and what has completed is looked after when it waits, of all connections
  // together (6.1).
#if defined(IORING_SETUP_DEFER_TASKRUN)
  constexpr unsigned kOneThread =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED;
  if (::io_uring_queue_init(kEntries, &ring, kOneThread) == 0) {
    // Whether begin() will be let enable it: some containers forbid the call.
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    if (probe != nullptr) {
      ::io_uring_free_probe(probe);
      return std::make_unique<UringDriver>(ring, true, true);
    }
    ::io_uring_queue_exit(&ring);
    ring = {};
  }
#endif
  // One thread submits, and looks for completions when it waits: the kernel need not interrupt it.
  // Kernels that know this (5.19) know IORING_RECVSEND_POLL_FIRST, too.
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_COOP_TASKRUN)
  if (::io_uring_queue_init(kEntries, &ring, IORING_SETUP_COOP_TASKRUN) == 0) {
    return std::make_unique<UringDriver>(ring, true, false);
  }
#endif
  if (::io_uring_queue_init(kEntries, &ring, 0) != 0) return nullptr;
  return std::make_unique<UringDriver>(ring, false, false);
}

}  // namespace perdure::server

#else

namespace perdure::server {

std::unique_ptr<Driver> make_uring_driver() { return nullptr; }

}  // namespace perdure::server

#endif
