// WAIT: followers have what a client wrote.
#include <chrono>
#include <mutex>
#include <thread>

#include "server/following.h"

namespace perdure::test {
namespace {

class Wait : public Follow {};

TEST_F(Wait, CountsFollowersThatHaveWhatTheClientWrote) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"WAIT", "0", "0"}), "0");
  EXPECT_EQ(c({"SET", "a", "1"}), "OK");
  EXPECT_EQ(c({"WAIT", "1", "50"}), "0") << "nobody follows";
  TestedServer second;
  second.config = follower.config;
  second.config.pool = folder.file("second");
  for (TestedServer* one : {&follower, &second}) {
    one->config.follow = addresses.at("resp");
    one->start();
  }
  EXPECT_EQ(c({"WAIT", "2", "0"}), "2");
  RespClient one = follower.resp();
  RespClient two = second.resp();
  EXPECT_EQ(one({"GET", "a"}), "1");
  EXPECT_EQ(two({"GET", "a"}), "1");
  // Each write is there once WAIT has returned, whatever it writes: keys of many partitions,
  // transactions, collections, and what changes nothing.
  for (int i = 0; i < 100; ++i) {
    const std::string n = std::to_string(i);
    c({"SET", "k" + n, n});
    switch (i % 4) {
      case 0:
        c({"MULTI"});
        c({"SET", "t" + n, n});
        c({"SADD", "set", n});
        c({"DEL", "nothing" + n});
        c({"EXEC"});
        break;
      case 1:
        c({"DEL", "nothing"});
        break;
      case 2:
        c({"RPUSH", "list", n});
        break;
      default:
        // Removals that remove nothing, of which the log does not tell.
        c({"MULTI"});
        for (const std::string key : {"x", "y"}) {
          c({"SET", key + n, n});
          c({"DEL", key + n});
        }
        c({"EXEC"});
        break;
    }
    ASSERT_EQ(c({"WAIT", "2", "20000"}), "2");
    ASSERT_EQ(one({"GET", "k" + n}), n);
    ASSERT_EQ(two({"GET", "k" + n}), n);
    if (i % 4 == 2) {
      ASSERT_EQ(two({"LINDEX", "list", "-1"}), n);
    }
  }
  // In a pipeline: those behind it wait.
  c.send(RespClient::encode({"SET", "last", "1"}) + RespClient::encode({"WAIT", "2", "0"}) +
         RespClient::encode({"PING"}));
  EXPECT_EQ(c.read().to_string(), "OK");
  EXPECT_EQ(c.read().to_string(), "2");
  EXPECT_EQ(c.read().to_string(), "PONG");
  EXPECT_EQ(one({"GET", "last"}), "1");
  // More than there are: until the time is up, and then how many have it.
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(c({"WAIT", "3", "100"}), "2");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
  // Within a transaction it waits for nobody.
  c({"MULTI"});
  c({"WAIT", "3", "0"});
  EXPECT_EQ(c({"EXEC"}).substr(0, 1), "[");
  EXPECT_TRUE(c({"WAIT", "1", "-1"}).starts_with("-ERR timeout"));
  EXPECT_TRUE(c({"WAIT", "x", "1"}).starts_with("-ERR "));
  EXPECT_TRUE(one({"WAIT", "1", "1"}).starts_with("-ERR WAIT cannot"));
  // One that is gone has what it had, but follows no more.
  second.stop();
  await([&] { return figure(c, "connected_slaves") == "1"; });
  EXPECT_EQ(c({"WAIT", "2", "50"}), "1");
  // Who has written before a follower was gone waits for that write, not for those of others.
  c({"SET", "mine", "1"});
  EXPECT_EQ(c({"WAIT", "1", "0"}), "1");
  follower.stop();
  await([&] { return figure(c, "connected_slaves") == "0"; });
  RespClient other = resp();
  other({"SET", "other", "1"});
  RespClient waiting = resp();
  waiting({"SET", "new", "1"});
  waiting.write({"WAIT", "1", "0"});
  EXPECT_EQ(c({"PING"}), "PONG");
  follower.start();
  EXPECT_EQ(waiting.read().to_string(), "1");
  EXPECT_EQ(follower.resp()({"GET", "new"}), "1");
}

// What a transaction has written is not among what followers have only because a WAIT stood in it.
TEST_F(Wait, InATransaction) {
  start_both();
  catch_up();
  RespClient c = resp();
  c({"SET", "a", "1"});
  EXPECT_EQ(c({"WAIT", "1", "0"}), "1");
  {
    const std::lock_guard held(follower.running->execution());
    c({"MULTI"});
    c({"SET", "t", "1"});
    c({"WAIT", "0", "0"});
    EXPECT_EQ(c({"EXEC"}), "[OK 0]");
    EXPECT_EQ(c({"WAIT", "1", "100"}), "0");
  }
  EXPECT_EQ(c({"WAIT", "1", "0"}), "1");
  EXPECT_EQ(follower.resp()({"GET", "t"}), "1");
}

// A client that leaves while it waits, and a server that stops.
TEST_F(Wait, EndsWithTheClientAndTheServer) {
  start_both();
  catch_up();
  follower.stop();
  {
    RespClient c = resp();
    c({"SET", "a", "1"});
    c.write({"WAIT", "1", "0"});
  }
  RespClient stays = resp();
  stays({"SET", "b", "1"});
  stays.write({"WAIT", "1", "0"});
  RespClient c = resp();
  await([&] { return c({"CLIENT", "LIST"}).find("cmd=wait") != std::string::npos; });
  follower.start();
  EXPECT_EQ(stays.read().to_string(), "1");
  follower.stop();
  await([&] { return figure(c, "connected_slaves") == "0"; });
  stays({"SET", "c", "1"});
  stays.write({"WAIT", "1", "0"});
  stop();
}

}  // namespace
}  // namespace perdure::test
