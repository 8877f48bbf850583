// A leader and a follower in this process.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "perdure/error.h"
#include "perdure/pool.h"
#include "perdure/store.h"
#include "server/fixture.h"

namespace perdure::test {

class Follow : public ServerTest {
 protected:
  Follow() {
    config.pool = folder.file("leader");
    follower.config = config;
    follower.config.pool = folder.file("follower");
    follower.config.memcached = {"127.0.0.1:0"};
  }

  void start_both() {
    start();
    config.resp = {addresses.at("resp")};  // the same after a restart
    follower.config.follow = addresses.at("resp");
    follower.start();
  }

  static std::string figure(RespClient& c, const std::string& name) {
    const std::string info = c({"INFO", "replication"});
    const size_t at = info.find(name + ":");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 1;
    return info.substr(begin, info.find("\r\n", begin) - begin);
  }
  template <typename Condition>
  static void await(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("it does not come");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Until the follower has what was written to the leader before.
  void catch_up() {
    RespClient to = resp();
    RespClient from = follower.resp();
    const std::string stamp = std::to_string(++stamps);
    to({"SELECT", "15"});
    to({"SET", "stamp", stamp});
    from({"SELECT", "15"});
    try {
      // One key is of one partition; the offsets are of all.
      await([&] {
        return from({"GET", "stamp"}) == stamp && figure(from, "follow_records_behind") == "0";
      });
      await([&] { return figure(from, "slave_repl_offset") == figure(to, "master_repl_offset"); });
    } catch (const std::exception& error) {
      // What both know of it.
      throw std::runtime_error(std::string(error.what()) + "\n" + from({"INFO", "replication"}) +
                               to({"INFO", "replication"}));
    }
  }

  // Its pool to the last byte, behind its back; it is stopped.
  void fill_follower() {
    Pool pool = Pool::open(follower.config.pool);
    Store store = Store::open(pool, config.name);
    int filler = 0;
    for (const size_t bytes : {2000U, 200U, 20U, 0U}) {
      try {
        for (;; ++filler) store.put("filler" + std::to_string(filler), std::string(bytes, 'f'));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
      }
    }
  }

  TestedServer follower;
  int stamps = 0;
};

}  // namespace perdure::test
