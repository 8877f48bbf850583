// One connection to a server that waits for its answers: to greet it, to ask whether it is ready,
// to check what is there.
#pragma once

#include <string>

#include "lab/serve/protocol.h"

namespace perdure::lab::serve {

class ServerConnection {
 public:
  // Connects, gives the password and selects the database. Throws Error(kIo), and
  // Error(kPermission) if the server refuses that.
  explicit ServerConnection(const ServerAddress& address);
  ~ServerConnection();
  ServerConnection(const ServerConnection&) = delete;
  ServerConnection& operator=(const ServerConnection&) = delete;

  // Requests gather until send().
  RequestWriter& requests() { return writer_; }
  void send();
  // The next reply, valid until the next is read. Throws Error(kIo) if the server closes the
  // connection, talks another protocol, or says nothing for 30 s.
  const ServerReply& read();

  // Whether it answers a PING ("version" of memcached) with anything but an error.
  bool is_ready();

  // The descriptor, which is the caller's from then on.
  int release();

 private:
  ServerAddress address_;
  int fd_;
  std::string out_;
  std::string in_;
  size_t consumed_ = 0;
  RequestWriter writer_;
  ReplyParser parser_;
};

// Of an answer that a server broke off, or that is none.
[[noreturn]] void throw_server_gone(const ServerAddress& address, const std::string& why);

}  // namespace perdure::lab::serve
