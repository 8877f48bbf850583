// One thread of a server: its listening sockets, its connections, and the turns in which it serves
// them.
//
// A turn: wait; read what has come; with the execution lock, carry out the requests and make what
// they wrote durable by one fence; send the replies. So what arrives together shares a fence, and
// no reply leaves before what it tells is durable. Commands of several loops run one at a time, as
// in Redis; reading, parsing of sockets and sending run side by side.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/connection.h"
#include "server/driver.h"

namespace perdure::server {

class Server;

class Loop {
 public:
  Loop(Server& server, uint32_t index);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Before start(). The loop owns the socket.
  void add_listener(int fd, Face face);
  // Returns once it serves. Throws Error(kIo) if it cannot.
  void start();
  // Any thread: ends it in order: nothing more is accepted, what has come is carried out, replies
  // are sent.
  void stop();
  void join();

  // Sends bytes to a connection of this loop, if it is still there. Any thread.
  void post(uint64_t connection, std::shared_ptr<const std::string> bytes);
  // Closes a connection of this loop, if it is still there. Any thread.
  void post_close(uint64_t connection);
  const char* driver_name() const { return driver_->name(); }
  uint32_t index() const { return index_; }

  // CLIENT LIST: calls `visit` for each connection. With the execution lock; any thread.
  template <typename Visit>
  void for_connections(Visit visit) {
    const std::lock_guard lock(table_mutex_);
    for (const auto& [id, connection] : connections_) visit(*connection);
  }

 private:
  struct Mail {
    uint64_t connection;
    std::shared_ptr<const std::string> bytes;  // null: close it
  };

  void begin();
  void run();
  void turn();
  void serve();
  void accept(const Events& events);
  void welcome(int fd, Face face);
  void note_input(Connection& connection);
  size_t execute_some(const std::vector<Connection*>& ready);
  void refuse_turn();
  bool has_too_much(const Connection& connection) const;
  static bool may_execute(Connection& connection);
  void execute_one(Connection& connection);
  void send(Connection& connection);
  void after_turn(Connection& connection);
  void deliver_mail();
  void close(Connection& connection);
  void reap();
  void look_after_connections();
  void drain();
  void wake();

  Server& server_;
  const uint32_t index_;
  std::unique_ptr<Driver> driver_;
  int wakeup_;
  std::vector<std::pair<int, Face>> listeners_;
  std::mutex table_mutex_;  // while the table changes, and others read it
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  // There is always room in these for all connections: nothing that lets the others go on may need
  // memory.
  std::vector<Connection*> ready_;       // something has come
  std::vector<Connection*> deferred_;    // from earlier turns, which had no room for it
  std::vector<Connection*> arrived_;     // in this turn: what ready_ was, ...
  std::vector<Connection*> serving_;     // ... and who has been served
  std::vector<std::string_view> ahead_;  // keys of requests that come next
  Events events_;
  std::mutex mail_mutex_;
  std::vector<Mail> mail_;
  std::atomic<bool> stopping_{false};
  uint64_t now_ms_ = 0;
  uint64_t looked_ms_ = 0;
  uint64_t lacked_ms_ = 0;    // when it was told that descriptors lack
  bool has_garbage_ = false;  // more of it than the last reap() has removed
  double reap_from_s_ = 0;
  std::thread thread_;
};

}  // namespace perdure::server
