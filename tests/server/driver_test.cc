// What moves the bytes of connections, without a server.
#include "server/driver.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/fixture.h"
#include "server/tls.h"
#include "support/child.h"
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

// The system refuses to enable a ring from now on, which it lets make.
void forbid_enabling_rings() {
  constexpr uint32_t kEnableRings = 12;  // IORING_REGISTER_ENABLE_RINGS
  sock_filter refuse[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_register, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kEnableRings, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<uint16_t>(std::size(refuse)), refuse};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::runtime_error("no seccomp here");
  }
}

TEST(UringDriver, ThatMayNotBeginLeavesItToEpoll) {
  if (server::make_uring_driver() == nullptr) GTEST_SKIP() << "no io_uring here";
  const TempDir folder;
  Child child([&](int out) {
    forbid_enabling_rings();
    TestedServer tested;
    tested.config.pool = folder.file("pool");
    tested.config.create = true;
    tested.config.capacity_bytes = uint64_t{32} << 20;
    tested.config.resp = {"127.0.0.1:0"};
    tested.config.io = "uring";
    tested.config.threads = 2;
    tested.config.log_level = server::LogLevel::kError;
    tested.start();
    const std::string info = tested.resp()({"INFO", "server"});
    const size_t at = info.find("multiplexing_api:");
    const std::string line = info.substr(at, info.find('\r', at) - at);
    send(out, line.data(), line.size());
  });
  EXPECT_EQ(child.receive_rest(), "multiplexing_api:epoll");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace perdure::test
