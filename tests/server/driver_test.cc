// What moves the bytes of connections, without a server.
#include "server/driver.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "server/tls.h"
#include "support/short_memory.h"

namespace perdure::test {
namespace {

// Those from which the kernel still receives: the server lets go of them when memory is short.
TEST(UringDriver, RemovesConnectionsWithoutMemory) {
  constexpr int kConnections = 20;
  const std::unique_ptr<server::Driver> driver = server::make_uring_driver();
  if (driver == nullptr) GTEST_SKIP() << "no io_uring here";
  driver->begin();
  std::vector<std::unique_ptr<server::Connection>> connections;
  std::vector<int> peers;
  for (int i = 0; i < kConnections; ++i) {
    int both[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    peers.push_back(both[1]);
    connections.push_back(std::make_unique<server::Connection>());
    connections.back()->fd = both[0];
    driver->add(*connections.back());
    driver->receive(*connections.back(), 0);
  }
  server::Events events;
  driver->wait(0, events);
  ShortMemory memory(0);
  for (auto& connection : connections) driver->remove(std::move(connection));
  memory.end();
  EXPECT_EQ(memory.refused(), 0U);
  driver->end();
  char byte = 0;
  for (const int peer : peers) {
    EXPECT_EQ(::recv(peer, &byte, 1, 0), 0);  // it was closed
    ::close(peer);
  }
}

}  // namespace
}  // namespace perdure::test
