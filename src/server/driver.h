// How a loop learns of what happens on sockets, and moves bytes: epoll, or io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/connection.h"

namespace perdure::server {

inline constexpr size_t kReadBytes = size_t{16} << 10;  // of room for what a connection sends, ...
inline constexpr size_t kReadBytesMax = size_t{1} << 20;  // ... and where much is expected
inline constexpr int kAcceptsMax = 64;                    // of a listener, in one turn

struct Events {
  struct Accepted {
    int fd;
    uint32_t listener;  // the number that add_listener() was given
  };
  std::vector<Accepted> accepted;
  std::vector<Connection*> changed;  // with new input, an end or a failure, or output that has gone
  bool woken = false;
  bool lacks_descriptors = false;  // a client waits, and there is none for it
  void clear() {
    accepted.clear();
    changed.clear();
    woken = lacks_descriptors = false;
  }
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual const char* name() const = 0;
  // On the thread that will wait, send and receive, before it does; what comes before may be on
  // another one. Throws Error(kIo) where the kernel refuses it: then the driver is of no use.
  virtual void begin() {}
  // On the same thread, at its end, when all connections are removed: the kernel lets go of their
  // buffers.
  virtual void end() {}
  virtual void add_listener(int fd, uint32_t number) = 0;
  virtual void remove_listeners() = 0;
  // Looks again at listeners that were left alone, since there was no descriptor for who waits
  // there: such a socket is ready as long as he does.
  virtual void listen_again() = 0;
  // Waits for input on the descriptor, a counter to wake the loop.
  virtual void add_wakeup(int fd) = 0;
  // Throws Error(kIo).
  virtual void add(Connection& connection) = 0;
  // The connection goes; takes it over, for the kernel may still use its buffers.
  virtual void remove(std::unique_ptr<Connection> connection) = 0;
  // Begins to read at least `bytes_hint` bytes to the connection's wire_in(), if it does not read
  // already. Nothing is appended there by others until the connection has changed.
  virtual void receive(Connection& connection, size_t bytes_hint) = 0;
  // Stops that, where it costs nothing.
  virtual void pause(Connection& connection) = 0;
  // Whether the kernel may write to wire_in() at any time: nobody else may touch its memory.
  virtual bool lends_input(const Connection& connection) const = 0;
  // Begins to send what wire_out() has.
  virtual void send(Connection& connection) = 0;
  // Waits up to `timeout_ms`, and lets `events` tell what has happened.
  virtual void wait(int timeout_ms, Events& events) = 0;
  // Bytes that wait to be sent.
  static size_t unsent(const Connection& connection) {
    return connection.out.size() + connection.tls_out.size() + connection.sending.size();
  }

 protected:
  // Those who wait at a listener; `flags` as accept4(). False if it is to be left alone for a
  // while.
  static bool accept_some(int listener, uint32_t number, int flags, Events& events);
};

std::unique_ptr<Driver> make_epoll_driver();
// Null where the kernel, or the build, has no io_uring.
std::unique_ptr<Driver> make_uring_driver();

}  // namespace perdure::server
