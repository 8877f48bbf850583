// A server in this process, on a pool of its own, that listens on loopback with ports that the
// kernel chooses.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/client.h"
#include "server/info.h"
#include "server/server.h"
#include "support/files.h"

namespace perdure::test {

// One that is configured before it starts, and can start again.
struct TestedServer {
  server::Config config;
  std::map<std::string, std::string> addresses;
  std::unique_ptr<server::Server> running;

  void start() {
    addresses.clear();
    running = std::make_unique<server::Server>(config);
    running->start([this](const std::string& line) {
      const size_t blank = line.find(' ');
      addresses[line.substr(0, blank)] = line.substr(blank + 1);
    });
  }
  void stop() { running.reset(); }
  RespClient resp() const { return RespClient(addresses.at("resp")); }
  // What /metrics answers, between two turns of the loops.
  std::string metrics() const {
    const std::lock_guard lock(running->execution());
    return server::prometheus_text(*running);
  }
};

struct ServerFolder {
  TempDir folder;
};

// The folder goes after the server.
class ServerTest : public testing::TestWithParam<const char*>,
                   protected ServerFolder,
                   protected TestedServer {
 protected:
  ServerTest() {
    config.pool = folder.file("pool");
    config.create = true;
    config.capacity_bytes = uint64_t{64} << 20;
    config.resp = {"127.0.0.1:0"};
    config.memcached = {"127.0.0.1:0"};
    config.log_level = server::LogLevel::kError;
  }

  Socket memcached() { return Socket(addresses.at("memcached")); }
};

}  // namespace perdure::test
