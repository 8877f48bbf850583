// Commands that wait for an element.
#include <chrono>
#include <thread>

#include "server/fixture.h"

namespace perdure::test {
namespace {

class Blocking : public ServerTest {
 protected:
  // Until so many clients wait.
  void await_waiting(RespClient& c, int count) {
    for (int i = 0; i < 5000; ++i) {
      const std::string list = c({"CLIENT", "LIST"});
      int waiting = 0;
      for (size_t at = 0; (at = list.find("cmd=b", at)) != std::string::npos; ++at) ++waiting;
      if (waiting >= count) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << "nobody waits";
  }
};

TEST_P(Blocking, TakesWhatComes) {
  config.io = GetParam();
  config.threads = 2;
  start();
  RespClient c = resp();
  RespClient waiting = resp();
  c({"RPUSH", "there", "x", "y"});
  EXPECT_EQ(waiting({"BLPOP", "none", "there", "0"}), "[there x]");
  EXPECT_EQ(waiting({"BRPOP", "there", "1.5"}), "[there y]");
  waiting.write({"BLPOP", "a", "b", "0"});
  waiting.write({"PING"});  // behind it
  await_waiting(c, 1);
  EXPECT_EQ(c({"SET", "other", "1"}), "OK");
  EXPECT_EQ(c({"RPUSH", "b", "1", "2"}), "2");
  EXPECT_EQ(waiting.read().to_string(), "[b 1]");
  EXPECT_EQ(waiting.read().to_string(), "PONG");
  EXPECT_EQ(c({"LRANGE", "b", "0", "-1"}), "[2]");
  waiting.write({"BLMOVE", "from", "to", "LEFT", "RIGHT", "0"});
  await_waiting(c, 1);
  c({"MULTI"});
  c({"RPUSH", "from", "moved"});
  EXPECT_EQ(c({"EXEC"}), "[1]");
  EXPECT_EQ(waiting.read().to_string(), "moved");
  EXPECT_EQ(c({"LRANGE", "to", "0", "-1"}), "[moved]");
  waiting.write({"BZPOPMIN", "z", "0"});
  await_waiting(c, 1);
  c({"ZADD", "z", "2", "two", "1", "one"});
  EXPECT_EQ(waiting.read().to_string(), "[z one 1]");
  EXPECT_EQ(waiting({"BZPOPMAX", "z", "0"}), "[z two 2]");
}

TEST_P(Blocking, EndsByItself) {
  config.io = GetParam();
  start();
  RespClient c = resp();
  RespClient waiting = resp();
  EXPECT_EQ(waiting({"BLPOP", "a", "0.05"}), "(nil)");
  EXPECT_EQ(waiting({"BLPOP", "a", "-1"}), "-ERR timeout is negative");
  EXPECT_EQ(waiting({"BLPOP", "a", "x"}), "-ERR timeout is not a float or out of range");
  c({"SET", "text", "x"});
  EXPECT_TRUE(waiting({"BLPOP", "text", "0"}).starts_with("-WRONGTYPE "));
  // Within a transaction nothing waits.
  waiting({"MULTI"});
  waiting({"BLPOP", "a", "0"});
  EXPECT_EQ(waiting({"EXEC"}), "[(nil)]");
  {
    RespClient gone = resp();
    gone.write({"BLPOP", "a", "0"});
    await_waiting(c, 1);
  }
  // Who has gone takes nothing.
  for (int i = 0; i < 5000 && c({"CLIENT", "LIST"}).find("cmd=blpop") != std::string::npos; ++i) {
    if (i > 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    waiting({"PING"});
  }
  EXPECT_EQ(c({"RPUSH", "a", "kept"}), "1");
  EXPECT_EQ(c({"LLEN", "a"}), "1");
  // Several wait, one gets it; the others go on.
  c({"DEL", "a"});
  RespClient first = resp();
  RespClient second = resp();
  first.write({"BLPOP", "a", "0"});
  await_waiting(c, 1);
  second.write({"BLPOP", "a", "0"});
  await_waiting(c, 2);
  c({"RPUSH", "a", "1"});
  EXPECT_EQ(first.read().to_string(), "[a 1]");
  c({"RPUSH", "a", "2"});
  EXPECT_EQ(second.read().to_string(), "[a 2]");
  // A client that sends on and on is not read without a bound, and ends.
  RespClient careless = resp();
  careless.write({"BLPOP", "a", "0"});
  const std::string many(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) careless.send_some(many);
  EXPECT_EQ(c({"PING"}), "PONG");
}

INSTANTIATE_TEST_SUITE_P(Drivers, Blocking, testing::Values("epoll", "auto"));

}  // namespace
}  // namespace perdure::test
