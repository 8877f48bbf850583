// Redis clients, over real sockets; with epoll and, where the kernel has it, io_uring.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "perdure/error.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/fixture.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

class Resp : public ServerTest {
 protected:
  Resp() {
    config.io = GetParam();
    if (config.io == "uring" && server::make_uring_driver() == nullptr) {
      config.io = "auto";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Drivers, Resp, testing::Values("epoll", "uring"),
                         [](const auto& one) { return std::string(one.param); });

// Requests and replies of many megabytes, by one client.
class LargeResp : public Resp {};
INSTANTIATE_TEST_SUITE_P(Drivers, LargeResp, testing::Values("epoll", "uring"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(Resp, SpeaksOfStrings) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"PING"}), "PONG");
  EXPECT_EQ(c({"GET", "a"}), "(nil)");
  EXPECT_EQ(c({"SET", "a", "1"}), "OK");
  EXPECT_EQ(c({"INCR", "a"}), "2");
  EXPECT_EQ(c({"INCRBY", "a", "40"}), "42");
  EXPECT_EQ(c({"APPEND", "a", "x"}), "3");
  EXPECT_EQ(c({"INCR", "a"}), "-ERR value is not an integer or out of range");
  EXPECT_EQ(c({"GETRANGE", "a", "-2", "-1"}), "2x");
  EXPECT_EQ(c({"SETRANGE", "a", "5", "yz"}), "7");
  EXPECT_EQ(c({"GET", "a"}), std::string("42x\0\0yz", 7));
  EXPECT_EQ(c({"SET", "a", "b", "NX"}), "(nil)");
  EXPECT_EQ(c({"SET", "b", "b", "XX"}), "(nil)");
  EXPECT_EQ(c({"SET", "a", "new", "GET"}), std::string("42x\0\0yz", 7));
  EXPECT_EQ(c({"MSET", "k1", "v1", "k2", "v2"}), "OK");
  EXPECT_EQ(c({"MGET", "k1", "none", "k2"}), "[v1 (nil) v2]");
  EXPECT_EQ(c({"MSETNX", "k1", "x", "k3", "x"}), "0");
  EXPECT_EQ(c({"EXISTS", "k1", "k2", "k3"}), "2");
  EXPECT_EQ(c({"GETDEL", "k1"}), "v1");
  EXPECT_EQ(c({"DEL", "k1", "k2"}), "1");
  EXPECT_EQ(c({"INCRBYFLOAT", "f", "0.1"}), "0.1");
  EXPECT_EQ(c({"DBSIZE"}), "2");
  EXPECT_EQ(c({"NOSUCH", "x"}), "-ERR unknown command 'NOSUCH', with args beginning with: 'x' ");
  EXPECT_EQ(c({"GET"}), "-ERR wrong number of arguments for 'get' command");
}

// As a cache it takes all that comes; what is read stays, and a collection stays whole.
TEST_P(Resp, EvictsStringsWhenItMay) {
  config.capacity_bytes = uint64_t{32} << 20;
  config.memory_bytes = uint64_t{12} << 20;
  config.evict = true;
  start();
  RespClient c = resp();
  for (int i = 0; i < 100; ++i) {
    c({"HSET", "hash", "f" + std::to_string(i), "v"});
    c({"SET", "hot" + std::to_string(i), "v"});
  }
  const std::string value(1000, 'v');
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(c({"SET", "k" + std::to_string(i), value}), "OK");
    if (i % 20 == 0) c({"GET", "hot" + std::to_string(i / 20 % 100)});
  }
  EXPECT_EQ(c({"GET", "k19999"}), value);
  // Some cold ones share a use mark with a hot one, and stay.
  int cold = 0;
  for (int i = 0; i < 200; ++i) cold += c({"GET", "k" + std::to_string(i)}) == value ? 1 : 0;
  EXPECT_LT(cold, 100);
  int hot = 0;
  for (int i = 0; i < 100; ++i) hot += c({"GET", "hot" + std::to_string(i)}) == "v" ? 1 : 0;
  EXPECT_GT(hot, 80);
  EXPECT_EQ(c({"HLEN", "hash"}), "100");
  for (int i = 0; i < 100; ++i) ASSERT_EQ(c({"HGET", "hash", "f" + std::to_string(i)}), "v");
  const std::string info = c({"INFO"});
  EXPECT_NE(info.find("maxmemory:12582912"), std::string::npos);
  EXPECT_NE(info.find("maxmemory_policy:allkeys-lru"), std::string::npos);
  EXPECT_EQ(info.find("evicted_keys:0\r"), std::string::npos);
  EXPECT_EQ(c({"CONFIG", "GET", "maxmemory"}), "[maxmemory 12582912]");
}

// Without eviction the bound refuses, and removals make room.
TEST_P(Resp, RefusesBeyondItsMemory) {
  config.capacity_bytes = uint64_t{32} << 20;
  config.memory_bytes = uint64_t{8} << 20;
  start();
  RespClient c = resp();
  const std::string value(1000, 'v');
  int written = 0;
  while (written < 20'000 && c({"SET", "k" + std::to_string(written), value}) == "OK") ++written;
  EXPECT_GT(written, 3000);
  EXPECT_LT(written, 9000);
  for (int i = 0; i < written; i += 2) EXPECT_EQ(c({"DEL", "k" + std::to_string(i)}), "1");
  EXPECT_EQ(c({"SET", "k", value}), "OK");
}

TEST_P(Resp, SpeaksOfKeys) {
  start();
  RespClient c = resp();
  c({"SET", "a", "1", "EX", "100"});
  EXPECT_EQ(c({"TTL", "a"}), "100");
  EXPECT_EQ(c({"SET", "a", "2", "KEEPTTL"}), "OK");
  EXPECT_EQ(c({"TTL", "a"}), "100");
  EXPECT_EQ(c({"PERSIST", "a"}), "1");
  EXPECT_EQ(c({"TTL", "a"}), "-1");
  EXPECT_EQ(c({"EXPIRE", "a", "-1"}), "1");
  EXPECT_EQ(c({"EXISTS", "a"}), "0");
  EXPECT_EQ(c({"TTL", "a"}), "-2");
  c({"SET", "a", "1"});
  EXPECT_EQ(c({"RENAME", "a", "b"}), "OK");
  EXPECT_EQ(c({"COPY", "b", "a"}), "1");
  EXPECT_EQ(c({"MGET", "a", "b"}), "[1 1]");
  EXPECT_EQ(c({"SELECT", "3"}), "OK");
  EXPECT_EQ(c({"GET", "a"}), "(nil)");
  c({"SET", "a", "in 3"});
  EXPECT_EQ(c({"DBSIZE"}), "1");
  c({"SELECT", "0"});
  EXPECT_EQ(c({"GET", "a"}), "1");
  EXPECT_EQ(c({"MOVE", "a", "3"}), "0");
  EXPECT_EQ(c({"MOVE", "b", "3"}), "1");
  EXPECT_EQ(c({"FLUSHDB"}), "OK");
  EXPECT_EQ(c({"DBSIZE"}), "0");
  c({"SELECT", "3"});
  EXPECT_EQ(c({"DBSIZE"}), "2");
  // Keys and values that begin as the server's own records do.
  const std::string odd("\0k\1odd", 6);
  const std::string marker("\0\xd7\x05\x1dhello", 9);
  EXPECT_EQ(c({"SET", odd, marker}), "OK");
  EXPECT_EQ(c({"GET", odd}), marker);
  EXPECT_EQ(c({"TYPE", odd}), "string");
}

TEST_P(Resp, ScansEveryKeyOnce) {
  for (const char* index : {"ordered", "hash", "pm"}) {
    SCOPED_TRACE(index);
    config.index = index;
    config.name = index;
    start();
    RespClient c = resp();
    for (int i = 0; i < 1000; ++i) c.write({"SET", "key" + std::to_string(i), "v"});
    for (int i = 0; i < 1000; ++i) c.read();
    std::multiset<std::string> found;
    std::string cursor = "0";
    do {
      const Reply reply = c.call({"SCAN", cursor, "COUNT", "70"});
      cursor = reply.elements.at(0).text;
      for (const Reply& key : reply.elements.at(1).elements) found.insert(key.text);
    } while (cursor != "0");
    EXPECT_EQ(found.size(), 1000U);
    EXPECT_EQ(std::set(found.begin(), found.end()).size(), 1000U);
    EXPECT_EQ(c.call({"KEYS", "key99*"}).elements.size(), 11U);
    std::set<std::string> some;
    for (int i = 0; i < 30; ++i) {
      some.insert(c({"RANDOMKEY"}));
      EXPECT_EQ(some.rbegin()->substr(0, 3), "key");
    }
    EXPECT_GT(some.size(), 5U);
    EXPECT_EQ(c({"SELECT", "1"}), "OK");
    EXPECT_EQ(c({"SET", "other", "v"}), "OK");
    for (int i = 0; i < 30; ++i) EXPECT_EQ(c({"RANDOMKEY"}), "other");
    EXPECT_EQ(c({"SELECT", "2"}), "OK");
    EXPECT_TRUE(c.call({"RANDOMKEY"}).is_null);
    // All of them go, and who watches one learns of it.
    RespClient watches = resp();
    EXPECT_EQ(watches({"WATCH", "key7"}), "OK");
    EXPECT_EQ(c({"FLUSHALL"}), "OK");
    EXPECT_EQ(watches({"MULTI"}), "OK");
    watches({"SET", "key7", "v"});
    EXPECT_EQ(watches.call({"EXEC"}).elements.size(), 0U);
    for (const char* database : {"0", "1"}) {
      EXPECT_EQ(c({"SELECT", database}), "OK");
      EXPECT_EQ(c({"DBSIZE"}), "0");
      EXPECT_EQ(c.call({"KEYS", "*"}).elements.size(), 0U);
    }
    // There are other databases again.
    EXPECT_EQ(c({"SET", "again", "v"}), "OK");
    stop();
    start();
    RespClient later = resp();
    EXPECT_EQ(later({"DBSIZE"}), "0");
    EXPECT_EQ(later({"SELECT", "1"}), "OK");
    EXPECT_EQ(later({"RANDOMKEY"}), "again");
    EXPECT_EQ(later({"FLUSHDB"}), "OK");
    EXPECT_EQ(later({"DBSIZE"}), "0");
    stop();
  }
}

// However few of a database's keys there are among those of others.
TEST_P(Resp, FindsTheOnlyKeyOfADatabase) {
  for (const char* index : {"hash", "pm", "ordered"}) {
    SCOPED_TRACE(index);
    config.index = index;
    config.name = index;
    start();
    RespClient c = resp();
    for (int i = 0; i < 6000; ++i)
      c.write({"SET", "key" + std::to_string(i), std::string(300, 'v')});
    for (int i = 0; i < 6000; ++i) c.read();
    EXPECT_EQ(c({"SELECT", "1"}), "OK");
    EXPECT_EQ(c({"SET", "only", "v"}), "OK");
    for (int i = 0; i < 50; ++i) EXPECT_EQ(c({"RANDOMKEY"}), "only");
    EXPECT_EQ(c({"DEL", "only"}), "1");
    EXPECT_TRUE(c.call({"RANDOMKEY"}).is_null);
    stop();
  }
}

TEST_P(Resp, ServesAStoreWhoseIndexIsInPm) {
  config.index = "pm";
  for (int session = 0; session < 3; ++session) {
    start();
    RespClient c = resp();
    for (int i = 0; i < 500; ++i) {
      const std::string key = "key" + std::to_string(i);
      EXPECT_EQ(c({"INCR", key}), std::to_string(session + 1));
    }
    EXPECT_EQ(c({"SET", "gone", "v"}), "OK");
    EXPECT_EQ(c({"DEL", "gone"}), "1");
    EXPECT_EQ(c({"EXISTS", "gone"}), "0");
    EXPECT_EQ(c({"DBSIZE"}), "500");
    EXPECT_EQ(c({"HSET", "h", "f", "1"}).substr(0, 4), "-ERR");
    stop();
    config.index.clear();  // as created
  }
  config.index = "hash";
  EXPECT_THROW(start(), Error);
}

TEST_P(Resp, SpeaksOfHashesSetsListsAndSortedSets) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"HSET", "h", "f", "1", "g", "2"}), "2");
  EXPECT_EQ(c({"HSET", "h", "f", "3"}), "0");
  EXPECT_EQ(c({"HGET", "h", "f"}), "3");
  EXPECT_EQ(c({"HINCRBY", "h", "g", "5"}), "7");
  EXPECT_EQ(c({"HLEN", "h"}), "2");
  EXPECT_EQ(c({"GET", "h"}), "-WRONGTYPE Operation against a key holding the wrong kind of value");
  EXPECT_EQ(c({"HDEL", "h", "f", "g", "x"}), "2");
  EXPECT_EQ(c({"EXISTS", "h"}), "0");
  EXPECT_EQ(c({"SADD", "s", "a", "b", "c", "a"}), "3");
  EXPECT_EQ(c({"SADD", "t", "b", "d"}), "2");
  EXPECT_EQ(c({"SISMEMBER", "s", "b"}), "1");
  EXPECT_EQ(c({"SINTER", "s", "t"}), "[b]");
  EXPECT_EQ(c({"SUNIONSTORE", "u", "s", "t"}), "4");
  EXPECT_EQ(c({"SCARD", "u"}), "4");
  EXPECT_EQ(c({"SREM", "u", "a", "z"}), "1");
  EXPECT_EQ(c.call({"SMEMBERS", "u"}).elements.size(), 3U);
  EXPECT_EQ(c.call({"SPOP", "u", "9"}).elements.size(), 3U);
  EXPECT_EQ(c({"EXISTS", "u"}), "0");
  EXPECT_EQ(c({"RPUSH", "l", "b", "c"}), "2");
  EXPECT_EQ(c({"LPUSH", "l", "a"}), "3");
  EXPECT_EQ(c({"LRANGE", "l", "0", "-1"}), "[a b c]");
  EXPECT_EQ(c({"LINSERT", "l", "BEFORE", "b", "x"}), "4");
  EXPECT_EQ(c({"LREM", "l", "0", "c"}), "1");
  EXPECT_EQ(c({"LRANGE", "l", "0", "-1"}), "[a x b]");
  EXPECT_EQ(c({"LMOVE", "l", "l", "LEFT", "RIGHT"}), "a");
  EXPECT_EQ(c({"LINDEX", "l", "-1"}), "a");
  EXPECT_EQ(c({"LTRIM", "l", "1", "1"}), "OK");
  EXPECT_EQ(c({"LPOP", "l"}), "b");
  EXPECT_EQ(c({"LPOP", "l"}), "(nil)");
  EXPECT_EQ(c({"ZADD", "z", "2", "b", "-1", "a", "1e3", "c"}), "3");
  EXPECT_EQ(c({"ZADD", "z", "XX", "CH", "5", "b", "7", "new"}), "1");
  EXPECT_EQ(c({"ZRANGE", "z", "0", "-1", "WITHSCORES"}), "[a -1 b 5 c 1000]");
  EXPECT_EQ(c({"ZRANGEBYSCORE", "z", "(-1", "+inf", "LIMIT", "1", "1"}), "[c]");
  EXPECT_EQ(c({"ZREVRANGEBYSCORE", "z", "5", "-inf"}), "[b a]");
  EXPECT_EQ(c({"ZINCRBY", "z", "-10", "b"}), "-5");
  EXPECT_EQ(c({"ZRANK", "z", "c"}), "2");
  EXPECT_EQ(c({"ZPOPMIN", "z"}), "[b -5]");
  EXPECT_EQ(c({"ZREVRANGE", "z", "0", "0"}), "[c]");
  EXPECT_EQ(c({"ZCARD", "z"}), "2");
}

// What is removed leaves no element behind, across restarts and expiry, too.
TEST_P(Resp, CollectionsLeakNothing) {
  start();
  {
    RespClient c = resp();
    for (int i = 0; i < 500; ++i) {
      c({"HSET", "h", "field" + std::to_string(i), std::string(100, 'v')});
    }
    EXPECT_EQ(c({"COPY", "h", "h2"}), "1");
    EXPECT_EQ(c({"RENAME", "h2", "h3"}), "OK");
    EXPECT_EQ(c({"HLEN", "h3"}), "500");
    EXPECT_EQ(c({"PEXPIRE", "h3", "30"}), "1");
    EXPECT_EQ(c({"SET", "h", "a string now"}), "OK");
  }
  stop();
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"GET", "h"}), "a string now");
  for (int i = 0; i < 300 && c({"EXISTS", "h3"}) == "1"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(c({"EXISTS", "h3"}), "0");
  // One record is left, and the server's notes that there have been collections, and with which
  // numbers; what had expired counts until it is compacted.
  const auto records = [&] {
    const std::lock_guard lock(running->execution());
    return running->store().size();
  };
  for (int i = 0; i < 300 && records() > 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_LE(records(), 4U);
}

TEST_P(Resp, TransactionsAreWholeAndWatch) {
  start();
  RespClient c = resp();
  RespClient other = resp();
  c({"SET", "n", "1"});
  EXPECT_EQ(c({"MULTI"}), "OK");
  EXPECT_EQ(c({"INCR", "n"}), "QUEUED");
  EXPECT_EQ(c({"LPUSH", "l", "x"}), "QUEUED");
  EXPECT_EQ(c({"INCR", "n"}), "QUEUED");
  EXPECT_EQ(c({"LPUSH", "n", "x"}), "QUEUED");
  EXPECT_EQ(other({"GET", "n"}), "1");
  EXPECT_EQ(c({"EXEC"}),
            "[2 1 3 -WRONGTYPE Operation against a key holding the wrong kind of value]");
  EXPECT_EQ(other({"GET", "n"}), "3");
  c({"WATCH", "n"});
  other({"SET", "n", "9"});
  c({"MULTI"});
  c({"SET", "n", "lost"});
  EXPECT_EQ(c({"EXEC"}), "(nil)");
  EXPECT_EQ(c({"GET", "n"}), "9");
  c({"MULTI"});
  EXPECT_EQ(c({"NOSUCH"}).substr(0, 20), "-ERR unknown command");
  EXPECT_EQ(c({"EXEC"}), "-EXECABORT Transaction discarded because of previous errors.");
  // Reads within see what was written within; a hash that is made and gone through.
  c({"MULTI"});
  c({"HSET", "t", "a", "1", "b", "2"});
  c({"HDEL", "t", "a"});
  c({"HGETALL", "t"});
  EXPECT_EQ(c({"EXEC"}), "[2 1 [b 2]]");
}

// What a few bytes of a transaction make is bounded before it is there.
TEST_P(LargeResp, TransactionsKeepBackAndReplyWithinBounds) {
  config.output_bytes_max = 1 << 20;
  start();
  RespClient c = resp();
  c({"MULTI"});
  for (int i = 0; i < 6; ++i) c({"SETRANGE", "long" + std::to_string(i), "60000000", "x"});
  EXPECT_EQ(c({"EXEC"}),
            "-EXECABORT Transaction discarded, nothing was done: ERR too large: the transaction "
            "writes too much");
  EXPECT_EQ(c({"EXISTS", "long0"}), "0");
  // What takes another's place takes no more room.
  c({"MULTI"});
  for (int i = 0; i < 6; ++i) c({"SETRANGE", "long", "50000000", "x"});
  c({"DEL", "long"});
  EXPECT_EQ(c({"EXEC"}), "[50000001 50000001 50000001 50000001 50000001 50000001 1]");
  c({"SET", "some", std::string(100'000, 'x')});
  c({"MULTI"});
  for (int i = 0; i < 40; ++i) c({"GET", "some"});
  c({"SET", "other", "1"});
  EXPECT_EQ(c({"EXEC"}),
            "-EXECABORT Transaction discarded, nothing was done: ERR the reply exceeds "
            "output-bytes-max");
  EXPECT_EQ(c({"EXISTS", "other"}), "0");
}

TEST_P(LargeResp, LargeTransactionsAreCarriedOut) {
  start();
  RespClient c = resp();
  constexpr int kCommands = 100'000;
  std::string commands = "*1\r\n$5\r\nMULTI\r\n";
  for (int i = 0; i < kCommands; ++i) commands += "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
  c.send(commands);
  EXPECT_EQ(c.read().to_string(), "OK");
  for (int i = 0; i < kCommands; ++i) ASSERT_EQ(c.read().to_string(), "QUEUED");
  const std::string numbers = c({"EXEC"});
  EXPECT_TRUE(numbers.starts_with("[1 2 3 "));
  EXPECT_TRUE(numbers.ends_with(" 99999 100000]"));
  c({"MULTI"});
  c({"SETRANGE", "long", "67000000", "x"});
  c({"GET", "long"});
  c({"DEL", "long"});
  EXPECT_TRUE(c({"EXEC"}) == "[67000001 " + std::string(67'000'000, '\0') + "x 1]");
}

// What is done in vain chooses no database either.
TEST_P(Resp, ATransactionThatIsDiscardedLeavesTheDatabase) {
  config.output_bytes_max = 1 << 20;
  start();
  RespClient c = resp();
  c({"SET", "some", "1"});
  c({"MULTI"});
  EXPECT_EQ(c({"SELECT", "1"}), "QUEUED");
  c({"SET", "some", std::string(100'000, 'x')});
  for (int i = 0; i < 40; ++i) c({"GET", "some"});
  EXPECT_TRUE(c({"EXEC"}).starts_with("-EXECABORT "));
  EXPECT_EQ(c({"GET", "some"}), "1");
  c({"MULTI"});
  c({"SELECT", "1"});
  EXPECT_EQ(c({"EXEC"}), "[OK]");
  EXPECT_EQ(c({"EXISTS", "some"}), "0");
}

// What a client sends may end where memory ends.
TEST(RealNumbers, AreReadToTheirEnd) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  char* const end = static_cast<char*>(pages) + page;
  ASSERT_EQ(::mprotect(end, page, PROT_NONE), 0);
  for (const std::string_view text : {"1", "1.5", "1e5", "inf", "-inf", "+inf", "infinity", "nan",
                                      "nan(1)", "-", "+", "i", "-n", ""}) {
    char* const begin = end - text.size();
    std::ranges::copy(text, begin);
    const std::string_view at_end(begin, text.size());
    std::optional<long double> real;
    std::optional<long double> long_real;
    try {
      real = server::real_of(at_end);
    } catch (const server::CommandError&) {
    }
    try {
      long_real = server::long_real_of(at_end);
    } catch (const server::CommandError&) {
    }
    EXPECT_EQ(real, long_real) << text;
  }
  ::munmap(pages, 2 * page);
}

TEST_P(Resp, ChannelsReachSubscribers) {
  config.threads = 2;
  start();
  RespClient listener = resp();
  EXPECT_EQ(listener({"SUBSCRIBE", "news"}), "[subscribe news 1]");
  EXPECT_EQ(listener({"PSUBSCRIBE", "n*"}), "[psubscribe n* 2]");
  EXPECT_EQ(listener({"GET", "a"}).substr(0, 22), "-ERR Can't execute 'ge");
  RespClient c = resp();
  EXPECT_EQ(c({"PUBLISH", "news", "hello"}), "2");
  EXPECT_EQ(listener.read().to_string(), "[message news hello]");
  EXPECT_EQ(listener.read().to_string(), "[pmessage n* news hello]");
  EXPECT_EQ(listener({"UNSUBSCRIBE"}), "[unsubscribe news 1]");
  EXPECT_EQ(c({"PUBLISH", "other", "x"}), "0");
}

TEST_P(Resp, HelloChoosesTheThirdVersion) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c.call({"HELLO", "3"}).kind, '%');
  EXPECT_EQ(c.call({"GET", "none"}).kind, '_');
  c({"HSET", "h", "f", "1"});
  EXPECT_EQ(c.call({"HGETALL", "h"}).kind, '%');
  c({"SADD", "s", "m"});
  EXPECT_EQ(c.call({"SMEMBERS", "s"}).kind, '~');
  c({"ZADD", "z", "1.5", "m"});
  EXPECT_EQ(c.call({"ZSCORE", "z", "m"}).kind, ',');
  EXPECT_EQ(c({"HELLO", "4"}), "-NOPROTO unsupported protocol version");
}

TEST_P(Resp, PipelinesAndInlineRequestsKeepTheirOrder) {
  start();
  RespClient c = resp();
  std::string bytes = "SET inline 'a b'\r\nGET inline\r\n\r\n";
  for (int i = 0; i < 5000; ++i) bytes += RespClient::encode({"INCR", "n"});
  c.send(bytes);
  EXPECT_EQ(c.read().text, "OK");
  EXPECT_EQ(c.read().text, "a b");
  for (int i = 1; i <= 5000; ++i) ASSERT_EQ(c.read().number, i);
}

TEST_P(Resp, RequestsOfAllKindsMixInOnePipeline) {
  start();
  RespClient c = resp();
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    const std::string n = std::to_string(i);
    bytes += RespClient::encode({"SET", "k" + n, "v" + n}) + "APPEND 'k" + n + "' \" w\"\r\n";
    bytes += RespClient::encode({"GET", "k" + n}) + RespClient::encode({}) + "\r\n";
    bytes += RespClient::encode({"SELECT", i % 2 == 0 ? "0" : "1"}) + RespClient::encode({"PING"});
  }
  c.send(bytes);
  for (int i = 0; i < 100; ++i) {
    const std::string n = std::to_string(i);
    ASSERT_EQ(c.read().text, "OK");
    ASSERT_EQ(c.read().number, static_cast<int64_t>(n.size()) + 3);
    ASSERT_EQ(c.read().text, "v" + n + " w");
    ASSERT_EQ(c.read().text, "OK");
    ASSERT_EQ(c.read().text, "PONG");
  }
}

// What a turn does not come to is parsed again in the next one, and so is the request that has only
// begun.
TEST_P(Resp, PipelineWhoseRepliesFillATurnGoesOn) {
  start();
  RespClient c = resp();
  const std::string value(200'000, 'x');
  EXPECT_EQ(c({"SET", "large", value}), "OK");
  std::string bytes;
  for (int i = 0; i < 20; ++i) bytes += RespClient::encode({"GET", "large"});
  const std::string last = RespClient::encode({"ECHO", "at the end"});
  c.send(bytes + last.substr(0, 16));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(c.read().text, value);
  c.send(last.substr(16));
  EXPECT_EQ(c.read().text, "at the end");
}

// The kernel may be about to write behind what a command that waits has kept from being carried
// out.
TEST_P(Resp, WhatComesBehindACommandThatWaitsIsKept) {
  start();
  RespClient c = resp();
  RespClient other = resp();
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    const std::string last = RespClient::encode({"ECHO", "c" + n});
    c.send(RespClient::encode({"BLPOP", "list", "0"}) + RespClient::encode({"ECHO", "a" + n}) +
           RespClient::encode({"ECHO", "b" + n}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(other({"RPUSH", "list", n}), "1");
    ASSERT_EQ(c.read().to_string(), "[list " + n + "]");
    ASSERT_EQ(c.read().text, "a" + n);
    ASSERT_EQ(c.read().text, "b" + n);
    c.send(last);
    ASSERT_EQ(c.read().text, "c" + n);
  }
}

TEST_P(Resp, LargeValuesComeInPieces) {
  start();
  RespClient c = resp();
  const std::string value(5 << 20, 'x');
  const std::string request = RespClient::encode({"SET", "large", value});
  for (size_t at = 0; at < request.size(); at += 99991) {
    c.send(std::string_view(request).substr(at, 99991));
  }
  EXPECT_EQ(c.read().text, "OK");
  for (int i = 0; i < 3; ++i) c.write({"GET", "large"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.read().text, value);
}

TEST_P(Resp, PasswordsAreAskedFor) {
  config.password = "secret";
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"GET", "a"}), "-NOAUTH Authentication required.");
  EXPECT_EQ(c({"AUTH", "wrong"}), "-WRONGPASS invalid username-password pair or user is disabled.");
  EXPECT_EQ(c({"AUTH", "default", "secret"}), "OK");
  EXPECT_EQ(c({"GET", "a"}), "(nil)");
  EXPECT_EQ(c({"CONFIG", "GET", "password"}), "[password ]");
  // In one pipeline: what AUTH allows counts from the next request on.
  RespClient at_once = resp();
  at_once.send(RespClient::encode({"GET", "a"}) + RespClient::encode({"AUTH", "secret"}) +
               RespClient::encode({"SET", "a", std::string(20'000, 'x')}) +
               RespClient::encode({"STRLEN", "a"}));
  EXPECT_EQ(at_once.read().to_string(), "-NOAUTH Authentication required.");
  EXPECT_EQ(at_once.read().text, "OK");
  EXPECT_EQ(at_once.read().text, "OK");
  EXPECT_EQ(at_once.read().number, 20'000);
  RespClient large = resp();
  large.send("*2\r\n$3\r\nGET\r\n$100000\r\n");
  EXPECT_EQ(large.read().to_string(), "-ERR Protocol error: invalid bulk length");
  EXPECT_TRUE(large.ends_within(10000));
}

TEST_P(Resp, TellsOfItself) {
  start();
  RespClient c = resp();
  c({"SET", "a", "1"});
  c({"GET", "a"});
  const std::string info = c({"INFO", "everything"});
  EXPECT_NE(info.find("keyspace_hits:1\r\n"), std::string::npos);
  EXPECT_NE(info.find("cmdstat_set:calls=1,"), std::string::npos);
  EXPECT_NE(info.find("db0:keys=1,"), std::string::npos);
  EXPECT_GT(c.call({"COMMAND"}).elements.size(), 150U);
  EXPECT_EQ(c.call({"COMMAND", "DOCS", "get"}).elements.at(0).text, "get");
  EXPECT_EQ(c({"CONFIG", "SET", "slowlog-us", "0"}), "OK");
  EXPECT_EQ(c({"CONFIG", "SET", "threads", "3"}).substr(0, 22), "-ERR CONFIG SET failed");
  EXPECT_EQ(c({"DEBUG", "SLEEP", "0.001"}), "OK");
  EXPECT_EQ(c.call({"SLOWLOG", "GET", "1"}).elements.at(0).elements.at(3).to_string(),
            "[DEBUG SLEEP 0.001]");
  c({"CLIENT", "SETNAME", "me"});
  EXPECT_NE(c({"CLIENT", "LIST"}).find(" name=me "), std::string::npos);
}

TEST_P(Resp, UnixSocketsAndIpv6) {
  config.unix_path = folder.file("socket");
  config.resp = {"127.0.0.1:0", "[::1]:0"};
  start();
  RespClient unix_client(config.unix_path);
  EXPECT_EQ(unix_client({"SET", "a", "1"}), "OK");
  RespClient six(addresses.at("resp"));  // the last one
  EXPECT_EQ(addresses.at("resp").substr(0, 6), "[::1]:");
  EXPECT_EQ(six({"GET", "a"}), "1");
}

TEST_P(Resp, MetricsForPrometheus) {
  config.metrics = "127.0.0.1:0";
  start();
  RespClient c = resp();
  c({"SET", "a", "1"});
  Socket http(addresses.at("metrics"));
  http.send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string page = http.read_to_end();
  EXPECT_EQ(page.substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_NE(page.find("perdure_command_seconds_count{command=\"set\"} 1\n"), std::string::npos);
  EXPECT_NE(page.find("perdure_store_records 1\n"), std::string::npos);
}

// Decimal fractions stay what they are, and no number is written with an exponent.
TEST_P(Resp, FractionsAddUp) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"INCRBYFLOAT", "f", "0.1"}), "0.1");
  EXPECT_EQ(c({"INCRBYFLOAT", "f", "0.2"}), "0.3");
  EXPECT_EQ(c({"HINCRBYFLOAT", "h", "f", "0.1"}), "0.1");
  EXPECT_EQ(c({"HINCRBYFLOAT", "h", "f", "0.2"}), "0.3");
  EXPECT_EQ(c({"INCRBYFLOAT", "g", "1e20"}), "100000000000000000000");
  EXPECT_EQ(c({"INCRBYFLOAT", "g", "-1e20"}), "0");
  EXPECT_EQ(c({"INCRBYFLOAT", "tiny", "-1e-30"}), "0");
  EXPECT_EQ(c({"INCRBYFLOAT", "f", "inf"}), "-ERR increment would produce NaN or Infinity");
  c({"SET", "s", "x"});
  EXPECT_EQ(c({"INCRBYFLOAT", "s", "1"}), "-ERR value is not a valid float");
}

TEST_P(Resp, ErrorsHaveRedisWords) {
  start();
  RespClient c = resp();
  c({"SET", "kept", "1"});
  EXPECT_EQ(c({"FLUSHALL", "NOW"}), "-ERR syntax error");
  EXPECT_EQ(c({"FLUSHDB", "ASYNC", "SYNC"}), "-ERR syntax error");
  EXPECT_EQ(c({"GET", "kept"}), "1");
  EXPECT_EQ(c({"CONFIG", "NOSUCH"}), "-ERR unknown subcommand 'NOSUCH'. Try CONFIG HELP.");
  EXPECT_EQ(c({"CONFIG", "GET"}), "-ERR wrong number of arguments for 'config|get' command");
  EXPECT_EQ(c({"OBJECT", "NOSUCH"}), "-ERR unknown subcommand 'NOSUCH'. Try OBJECT HELP.");
  EXPECT_EQ(c({"CLIENT", "ID", "x"}), "-ERR wrong number of arguments for 'client|id' command");
  EXPECT_EQ(c({"MEMORY", "HELP"}),
            "[MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are: USAGE <key> [SAMPLES "
            "<count>] HELP]");
  EXPECT_EQ(c({"SELECT", "x"}), "-ERR value is not an integer or out of range");
  EXPECT_EQ(c({"BITPOS", "kept", "2"}), "-ERR The bit argument must be 1 or 0.");
  EXPECT_EQ(c({"LPOS", "list", "a", "COUNT", "-1"}), "-ERR COUNT can't be negative");
  c({"SET", "zeros", "007"});
  for (const std::string number : {"007", "-0", "00", "+1", " 1", ""}) {
    EXPECT_EQ(c({"INCRBY", "kept", number}), "-ERR value is not an integer or out of range");
    EXPECT_EQ(c({"SPOP", "s", number}), "-ERR value is out of range, must be positive");
  }
  EXPECT_EQ(c({"INCR", "zeros"}), "-ERR value is not an integer or out of range");
  EXPECT_EQ(c({"LRANGE", "none", "0", "-1"}), "[]");
  EXPECT_EQ(c({"SPOP", "s", "0", "0"}), "-ERR syntax error");
  EXPECT_EQ(c({"SMOVE", "none", "kept", "x"}), "0");
  c({"MULTI"});
  c({"SET", "kept", "2"});
  EXPECT_EQ(c({"EXEC", "x"}),
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' "
            "command");
  EXPECT_EQ(c({"GET", "kept"}), "1");
  EXPECT_EQ(c({"SINTERCARD", "1", "s", "LIMIT", "-1"}), "-ERR LIMIT can't be negative");
  EXPECT_EQ(c({"SINTERCARD", "1x", "s"}), "-ERR numkeys should be greater than 0");
  EXPECT_EQ(c({"LPOP", "list", "x"}), "-ERR value is out of range, must be positive");
  c({"ZADD", "z", "1", "a", "2", "b"});
  EXPECT_EQ(c({"ZRANGE", "z", "0", "1", "LIMIT", "0", "1"}),
            "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or "
            "BYLEX");
  EXPECT_EQ(c({"GETRANGE", "kept", "0", "-100"}), "1");
  EXPECT_EQ(c({"COMMAND", "GETKEYS", "MSET", "a", "1", "b", "2"}), "[a b]");
  EXPECT_EQ(c({"COMMAND", "GETKEYS", "PING", "x"}), "-ERR The command has no key arguments");
}

TEST_P(Resp, FieldsOfBits) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"BITFIELD", "b", "SET", "u8", "0", "255", "GET", "i8", "0", "GET", "u4", "#1"}),
            "[0 -1 15]");
  EXPECT_EQ(c({"BITFIELD", "b", "INCRBY", "u8", "0", "1", "OVERFLOW", "SAT", "INCRBY", "i5", "100",
               "100", "OVERFLOW", "FAIL", "INCRBY", "i5", "100", "1"}),
            "[0 15 (nil)]");
  EXPECT_EQ(c({"STRLEN", "b"}), "14");
  EXPECT_EQ(c({"BITFIELD", "b", "SET", "i64", "3", "-9223372036854775808", "INCRBY", "i64", "3",
               "-1", "GET", "u63", "3"}),
            "[0 9223372036854775807 4611686018427387903]");
  EXPECT_EQ(c({"BITFIELD", "b", "OVERFLOW", "SAT", "SET", "u8", "0", "-1"}), "[15]");
  EXPECT_EQ(c({"BITFIELD_RO", "b", "GET", "u8", "0"}), "[255]");
  EXPECT_EQ(c({"BITFIELD_RO", "b", "SET", "u8", "0", "1"}),
            "-ERR BITFIELD_RO only supports the GET subcommand");
  EXPECT_EQ(c({"BITFIELD", "none", "GET", "u8", "0"}), "[0]");
  EXPECT_EQ(c({"EXISTS", "none"}), "0");
  for (const char* type : {"u64", "i65", "u0", "x8", "u8x"}) {
    EXPECT_EQ(c({"BITFIELD", "b", "GET", type, "0"}).substr(0, 27), "-ERR Invalid bitfield type.");
  }
  c({"RPUSH", "list", "x"});
  EXPECT_EQ(c({"BITFIELD", "list", "GET", "u8", "0"}).substr(0, 10), "-WRONGTYPE");
}

// What is set together is set wholly or not at all.
TEST_P(Resp, ConfigIsSetWhollyOrNot) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"CONFIG", "SET", "slowlog-us", "7", "nosuch", "1"}),
            "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'");
  EXPECT_EQ(c({"CONFIG", "GET", "slowlog-us"}), "[slowlog-us 10000]");
  EXPECT_EQ(c({"CONFIG", "SET", "slowlog-us", "7", "slowlog-entries", "x"}).substr(0, 5), "-ERR ");
  EXPECT_EQ(c({"CONFIG", "GET", "slowlog-us"}), "[slowlog-us 10000]");
}

TEST_P(Resp, ClientsAreChosen) {
  start();
  RespClient c = resp();
  RespClient listens = resp();
  RespClient other = resp();
  listens({"SUBSCRIBE", "channel"});
  EXPECT_EQ(other({"PING"}), "PONG");
  const std::string listed = c({"CLIENT", "LIST", "TYPE", "pubsub"});
  EXPECT_EQ(std::ranges::count(listed, '\n'), 1);
  EXPECT_EQ(c({"CLIENT", "LIST", "ID", "999999"}), "");
  EXPECT_EQ(c({"CLIENT", "LIST", "TYPE", "nosuch"}), "-ERR Unknown client type 'nosuch'");
  EXPECT_EQ(c({"CLIENT", "KILL", ""}), "-ERR No such client");
  EXPECT_EQ(c({"CLIENT", "KILL", "ADDR", ""}), "0");
  EXPECT_EQ(c({"CLIENT", "KILL", "TYPE", "pubsub"}), "1");
  EXPECT_TRUE(listens.ends_within(10000));
  EXPECT_EQ(c({"CLIENT", "KILL", "USER", "default"}), "1");  // not this one
  EXPECT_TRUE(other.ends_within(10000));
  EXPECT_EQ(c({"PING"}), "PONG");
}

// A page that a browser shows may let it send requests to loopback: no command of theirs runs.
TEST_P(Resp, WhoSpeaksHttpIsClosed) {
  start();
  for (const char* head : {"POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: x\r\n"}) {
    RespClient browser = resp();
    browser.send(std::string(head) + "\r\nSET stolen 1\r\n");
    browser.read_to_end();
  }
  EXPECT_EQ(resp()({"EXISTS", "stolen"}), "0");
}

// Who listens and does not read is let go of when there is no memory for what waits; the others are
// served.
TEST_P(Resp, GoesOnWithoutMemoryForOne) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) GTEST_SKIP() << "they have it mapped";
  config.output_bytes_max = uint64_t{1} << 40;
  start();
  RespClient c = resp();
  RespClient listens = resp();
  listens({"SUBSCRIBE", "news"});
  const std::string publish = RespClient::encode({"PUBLISH", "news", std::string(1 << 20, 'n')});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit little = before;
  little.rlim_cur = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + (uint64_t{96} << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  int64_t heard = 1;
  int told = 0;
  for (; told < 400 && heard == 1; ++told) {
    c.send(publish);
    heard = c.read().number;
  }
  const std::string answer = c({"PING"});
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_LT(told, 400);
  EXPECT_EQ(answer, "PONG");
  EXPECT_EQ(resp()({"PING"}), "PONG");
}

TEST_P(Resp, StaysAfterBadRequests) {
  start();
  for (const char* bad : {"*x\r\n", "*1\r\n:1\r\n", "*1\r\n$-5\r\n", "*99999999\r\n",
                          "*1\r\n$99999999999\r\n", "*1\r\n$3\r\nGETxx", "SET 'a\r\n"}) {
    SCOPED_TRACE(bad);
    RespClient c = resp();
    c.send(bad);
    EXPECT_EQ(c.read().to_string().substr(0, 21), "-ERR Protocol error: ");
    EXPECT_TRUE(c.ends_within(10000));
  }
  EXPECT_EQ(resp()({"PING"}), "PONG");
}

// A client that asks for much and takes nothing costs a bounded amount, and hinders nobody.
TEST_P(Resp, DoesNotReadFromAClientThatTakesNoReplies) {
  start();
  RespClient slow = resp();
  slow({"SET", "v", std::string(100000, 'x')});
  // Long, so that not too many of them fit into the system's buffers.
  const std::string request = RespClient::encode({"MGET", "v", std::string(8000, 'k')});
  size_t sent = 0;
  for (int i = 0; i < 200000; ++i) {
    const size_t now = slow.send_some(request);
    sent += now;
    if (now < request.size()) break;
  }
  EXPECT_EQ(resp()({"PING"}), "PONG");
  // A request that was cut goes on.
  const size_t whole = sent / request.size();
  for (size_t i = 0; i < whole; ++i) {
    ASSERT_EQ(slow.read().elements.at(0).text.size(), 100000U);
  }
}

// Replies may go between two looks of a turn, while another client is served: what was asked for
// behind them is done all the same.
TEST_P(Resp, GoesOnWithAClientThatTakesItsRepliesMeanwhile) {
  start();
  RespClient others[] = {resp(), resp()};
  const std::string sleep = RespClient::encode({"DEBUG", "SLEEP", "0.15"});
  others[0]({"SET", "v", std::string(500'000, 'x')});
  // How much waits where depends on the system's buffers.
  for (size_t values = 6; values < 20; ++values) {
    RespClient slow = resp();
    std::vector<std::string> mget = {"MGET"};
    mget.resize(1 + values, "v");
    slow.write(mget);
    slow.write({"PING"});
    const std::string value = "$500000\r\n" + std::string(500'000, 'x') + "\r\n";
    size_t left = 2 + std::to_string(values).size() + 1 + values * value.size() + 7;  // and "+PONG"
    const auto take = [&](size_t most) {
      std::string bytes(65536, '\0');
      for (size_t taken = 0; taken < most;) {
        const ssize_t got = ::recv(slow.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (got <= 0) return;
        taken += static_cast<size_t>(got);
        left -= static_cast<size_t>(got);
      }
    };
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
    pause();
    others[0].send(sleep);
    pause();
    take(1'000'000);  // some can be sent in the next turn,
    others[1].send(sleep);
    others[0].read();
    pause();
    take(SIZE_MAX);  // and the rest at its end
    others[1].read();
    for (int i = 0; i < 60 && left > 0; ++i) {
      take(SIZE_MAX);
      if (left > 0) pause();
    }
    ASSERT_EQ(left, 0U) << values;
  }
}

constexpr char kExceeds[] = "-ERR the reply exceeds output-bytes-max";

TEST_P(LargeResp, AReplyThatIsTooLargeIsAnError) {
  config.output_bytes_max = 1 << 20;
  start();
  RespClient c = resp();
  const std::string value(100'000, 'v');
  std::vector<std::string> hset = {"HSET", "hash"};
  std::vector<std::string> sadd = {"SADD", "set"};
  std::vector<std::string> zadd = {"ZADD", "scores"};
  for (int i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    const std::string name = std::string(50'000, 'n') + number;
    hset.insert(hset.end(), {"field" + number, value});
    sadd.push_back(name);
    zadd.insert(zadd.end(), {number, name});
    c({"SET", name, "1"});
    ASSERT_EQ(c({"RPUSH", "list", value}), std::to_string(i + 1));
  }
  ASSERT_EQ(c(hset), "100");
  ASSERT_EQ(c(sadd), "100");
  ASSERT_EQ(c(zadd), "100");
  c({"SET", "some", value});
  std::vector<std::string> mget = {"MGET"};
  std::vector<std::string> hmget = {"HMGET", "hash"};
  for (int i = 0; i < 1000; ++i) {
    mget.emplace_back("some");
    hmget.emplace_back("field1");
  }
  const std::vector<std::string> too_large[] = {
      mget,
      hmget,
      {"HGETALL", "hash"},
      {"HVALS", "hash"},
      {"HRANDFIELD", "hash", "-60000", "WITHVALUES"},
      {"HRANDFIELD", "hash", "90", "WITHVALUES"},
      {"HSCAN", "hash", "0", "COUNT", "1000"},
      {"LRANGE", "list", "0", "-1"},
      {"LPOP", "list", "60"},
      {"RPOP", "list", "60"},
      {"DUMP", "hash"},
      {"DUMP", "list"},
      {"SMEMBERS", "set"},
      {"SUNION", "set", "none"},
      {"SINTER", "set", "set"},
      {"SDIFF", "set", "none"},
      {"SRANDMEMBER", "set", "-60000"},
      {"SPOP", "set", "90"},
      {"SSCAN", "set", "0", "COUNT", "1000"},
      {"ZRANGE", "scores", "0", "-1"},
      {"ZRANGEBYSCORE", "scores", "-inf", "+inf"},
      {"ZRANGEBYLEX", "scores", "-", "+"},
      {"ZUNION", "1", "scores"},
      {"ZRANDMEMBER", "scores", "-60000"},
      {"ZPOPMIN", "scores", "90"},
      {"KEYS", "*"},
      {"SCAN", "0", "COUNT", "100000"},
  };
  for (const std::vector<std::string>& one : too_large) {
    EXPECT_EQ(c(one).substr(0, 60), kExceeds) << one[0];
    ASSERT_EQ(c({"PING"}), "PONG") << one[0];
  }
  // What was not told was not removed.
  EXPECT_EQ(c({"LLEN", "list"}), "100");
  EXPECT_EQ(c({"SCARD", "set"}), "100");
  EXPECT_EQ(c({"ZCARD", "scores"}), "100");
  // What is not told does not count.
  c({"HSET", "other", "field", std::string(10'000, 'v')});
  EXPECT_EQ(c({"HRANDFIELD", "other", "-1000", "WITHVALUES"}), kExceeds);
  EXPECT_EQ(c.call({"HRANDFIELD", "other", "-1000"}).elements.size(), 1000U);
  EXPECT_EQ(c.call({"HKEYS", "hash"}).elements.size(), 100U);
  EXPECT_EQ(c({"ZCOUNT", "scores", "-inf", "+inf"}), "100");
  // As much as may be is told, whatever comes before it.
  const std::string get = RespClient::encode({"GET", "some"});
  std::string pipeline;
  for (int i = 0; i < 20; ++i) pipeline += get;
  mget.resize(11);
  c.send(pipeline + RespClient::encode(mget));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(c.read().text, value);
  EXPECT_EQ(c.read().elements.size(), 10U);
  // Who is refused is not closed, whatever is on its way.
  c({"SET", "below", std::string(900'000, 'v')});
  c({"SET", "long", std::string(3'000'000, 'v')});
  for (int i = 0; i < 20; ++i) {
    c.write({"GET", "below"});
    c.write({"GET", "long"});
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(c.read().text.size(), 900'000U);
    const Reply reply = c.read();
    ASSERT_TRUE(reply.kind == '-' || reply.text.size() == 3'000'000) << i;
  }
  // What CONFIG SET says is looked at at once, by all.
  RespClient other = resp();
  other({"CONFIG", "SET", "output-bytes-max", "64M"});
  EXPECT_EQ(c.call({"HVALS", "hash"}).elements.size(), 100U);
  EXPECT_EQ(c.call({"SPOP", "set", "90"}).elements.size(), 90U);
  EXPECT_EQ(c.call({"ZPOPMAX", "scores", "90"}).elements.size(), 180U);
  EXPECT_EQ(c.call({"RPOP", "list", "60"}).elements.size(), 60U);
  EXPECT_EQ(c({"LLEN", "list"}), "40");
}

// Some kilobytes of a request ask for gigabytes: the server's memory does not grow beyond the
// bound, and others are served.
TEST_P(Resp, ALargeReplyTakesBoundedMemory) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) GTEST_SKIP() << "they keep what is freed";
  config.output_bytes_max = 32 << 20;
  start();
  RespClient c = resp();
  RespClient slow = resp();
  c({"SETRANGE", "long", "7999999", "x"});
  c({"HSET", "hash", "field", std::string(8'000'000, 'x')});
  const auto peak_kib = [] {
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t number = 0;
    while (status >> word) {
      if (word == "VmHWM:" && status >> number) return number;
    }
    return number;
  };
  const uint64_t before = peak_kib();
  std::vector<std::string> mget = {"MGET"};
  std::vector<std::string> bitop = {"BITOP", "OR", "result"};
  for (int i = 0; i < 250; ++i) {
    mget.emplace_back("long");
    if (i < 50) bitop.emplace_back("long");
  }
  EXPECT_EQ(c(mget).substr(0, 60), kExceeds);
  EXPECT_EQ(c({"HRANDFIELD", "hash", "-250", "WITHVALUES"}).substr(0, 60), kExceeds);
  EXPECT_EQ(c(bitop), "8000000");
  // One that takes nothing keeps what it has asked for, and no more.
  mget.resize(4);
  for (int i = 0; i < 100; ++i) slow.write(mget);
  EXPECT_EQ(c({"PING"}), "PONG");
  EXPECT_LT(peak_kib() - before, uint64_t{200} << 10);
  EXPECT_EQ(slow.read().elements.size(), 3U);
}

// Results are written while their sources are gone through: which may be the same, or of a
// transaction.
TEST_P(Resp, ResultsTakeThePlaceOfTheirSources) {
  start();
  RespClient c = resp();
  const auto members = [&](const std::string& key) {
    std::set<std::string> all;
    for (const Reply& one : c.call({"SMEMBERS", key}).elements) all.insert(one.text);
    std::string text;
    for (const std::string& one : all) text += one + " ";
    return text;
  };
  for (const bool in_multi : {false, true}) {
    const auto run = [&](const std::vector<std::string>& arguments) {
      if (!in_multi) return c(arguments);
      c({"MULTI"});
      c(arguments);
      const std::string reply = c({"EXEC"});
      return reply.substr(1, reply.size() - 2);
    };
    c({"FLUSHALL"});
    c({"SADD", "a", "1", "2", "3"});
    c({"SADD", "b", "3", "4"});
    c({"SET", "string", "x"});
    EXPECT_EQ(run({"SUNIONSTORE", "a", "a", "string"}),
              "-WRONGTYPE Operation against a key holding the wrong kind of value");
    EXPECT_EQ(run({"SUNIONSTORE", "a", "a", "b", "a"}), "4");
    EXPECT_EQ(members("a"), "1 2 3 4 ");
    EXPECT_EQ(run({"SDIFFSTORE", "a", "a", "b"}), "2");
    EXPECT_EQ(members("a"), "1 2 ");
    EXPECT_EQ(run({"SINTERSTORE", "string", "a", "a"}), "2");
    EXPECT_EQ(run({"SINTERSTORE", "a", "a", "b"}), "0");
    EXPECT_EQ(c({"EXISTS", "a"}), "0");
    c({"ZADD", "y", "1", "p", "2", "q", "inf", "r"});
    c({"ZADD", "z", "10", "q", "-inf", "r", "7", "s"});
    c({"SADD", "p", "p", "q"});
    c({"SET", "x", "x"});
    EXPECT_EQ(run({"ZINTERSTORE", "y", "2", "y", "x"}),
              "-WRONGTYPE Operation against a key holding the wrong kind of value");
    EXPECT_EQ(run({"ZUNIONSTORE", "to", "3", "y", "z", "p", "WEIGHTS", "2", "1", "100"}), "4");
    EXPECT_EQ(c({"ZRANGE", "to", "0", "-1", "WITHSCORES"}), "[r 0 s 7 p 102 q 114]");
    EXPECT_EQ(c({"ZUNION", "3", "y", "z", "p", "WEIGHTS", "2", "1", "100", "WITHSCORES"}),
              "[r 0 s 7 p 102 q 114]");
    EXPECT_EQ(run({"ZINTERSTORE", "to", "3", "y", "z", "p", "AGGREGATE", "MAX"}), "1");
    EXPECT_EQ(c({"ZRANGE", "to", "0", "-1", "WITHSCORES"}), "[q 10]");
    EXPECT_EQ(c({"ZINTER", "3", "y", "z", "p", "AGGREGATE", "MIN", "WITHSCORES"}), "[q 1]");
    EXPECT_EQ(c({"ZDIFF", "2", "y", "p", "WITHSCORES"}), "[r inf]");
    EXPECT_EQ(run({"ZDIFFSTORE", "z", "2", "z", "p"}), "2");
    EXPECT_EQ(c({"ZRANGE", "z", "0", "-1", "WITHSCORES"}), "[r -inf s 7]");
    EXPECT_EQ(run({"ZUNIONSTORE", "y", "2", "y", "y", "AGGREGATE", "MIN"}), "3");
    EXPECT_EQ(run({"ZRANGESTORE", "y", "y", "1", "0", "REV"}), "0");
    EXPECT_EQ(c({"EXISTS", "y"}), "0");
    c({"ZADD", "y", "1", "a", "2", "b", "3", "c", "4", "d", "5", "e", "6", "f"});
    EXPECT_EQ(run({"ZRANGESTORE", "y", "y", "0", "4", "REV"}), "5");
    EXPECT_EQ(run({"ZREMRANGEBYRANK", "y", "1", "-2"}), "3");
    EXPECT_EQ(c({"ZRANGE", "y", "0", "-1"}), "[b f]");
    EXPECT_EQ(run({"ZREMRANGEBYSCORE", "y", "(2", "9"}), "1");
    EXPECT_EQ(run({"ZREMRANGEBYLEX", "y", "[a", "[b"}), "1");
    EXPECT_EQ(c({"EXISTS", "y"}), "0");
    c({"RPUSH", "l", "a", "b", "a", "c", "a", "a"});
    c({"EXPIRE", "l", "1000"});
    EXPECT_EQ(run({"LREM", "l", "-2", "a"}), "2");
    EXPECT_EQ(c({"LRANGE", "l", "0", "-1"}), "[a b a c]");
    EXPECT_EQ(run({"LINSERT", "l", "AFTER", "a", "x"}), "5");
    EXPECT_EQ(run({"LINSERT", "l", "BEFORE", "c", "y"}), "6");
    EXPECT_EQ(run({"LREM", "l", "1", "a"}), "1");
    EXPECT_EQ(c({"LRANGE", "l", "0", "-1"}), "[x b a y c]");
    EXPECT_GT(c.call({"TTL", "l"}).number, 900);
    for (const char* one : {"x", "b", "a", "y"}) {
      EXPECT_EQ(run({"LREM", "l", "-9223372036854775808", one}), "1");
    }
    EXPECT_EQ(run({"LREM", "l", "0", "c"}), "1");
    EXPECT_EQ(c({"EXISTS", "l"}), "0");
  }
}

// The server's memory may grow by so much, but for what is shared with the pool.
class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t more_bytes) {
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t kib = 0;
    while (status >> word && word != "VmData:") {
    }
    status >> kib;
    ::getrlimit(RLIMIT_DATA, &before_);
    rlimit little = before_;
    little.rlim_cur = (kib << 10) + more_bytes;
    ::setrlimit(RLIMIT_DATA, &little);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_DATA, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// What a command writes, or removes, is not collected first: collections of some 100 MB, in 64 MiB.
TEST_P(LargeResp, WhatACommandWritesTakesBoundedMemory) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) GTEST_SKIP() << "they have it mapped";
  if (GetParam() == std::string("uring")) GTEST_SKIP() << "nothing of it is the driver's";
  config.capacity_bytes = uint64_t{3} << 30;
  start();
  RespClient c = resp();
  constexpr int kNames = 1600;
  const std::string long_text(60'000, 'n');
  for (int i = 0; i < kNames;) {
    std::vector<std::string> sadd = {"SADD", "set"};
    std::vector<std::string> zadd = {"ZADD", "scores"};
    std::vector<std::string> rpush = {"RPUSH", "list"};
    for (int end = i + 50; i < end; ++i) {
      const std::string name = long_text + std::to_string(i);
      sadd.push_back(name);
      zadd.insert(zadd.end(), {std::to_string(i), name});
      rpush.push_back(name);
    }
    ASSERT_EQ(c(sadd), "50");
    ASSERT_EQ(c(zadd), "50");
    c(rpush);
  }
  c({"SADD", "other", "a", long_text + "7"});
  c({"ZADD", "others", "3", "a", "5", long_text + "7"});
  ::malloc_trim(0);
  {
    const MemoryLimit limit(uint64_t{64} << 20);
    EXPECT_EQ(c({"SUNIONSTORE", "to", "set", "other"}), "1601");
    EXPECT_EQ(c({"SDIFFSTORE", "to", "set", "other"}), "1599");
    EXPECT_EQ(c({"SINTERSTORE", "to", "set", "set"}), "1600");
    EXPECT_EQ(c({"SINTERCARD", "2", "set", "set"}), "1600");
    EXPECT_EQ(c({"SINTERCARD", "2", "set", "set", "LIMIT", "3"}), "3");
    EXPECT_EQ(c({"ZUNIONSTORE", "sum", "2", "scores", "others", "WEIGHTS", "2", "1"}), "1601");
    EXPECT_EQ(c({"ZSCORE", "sum", long_text + "7"}), "19");
    EXPECT_EQ(c({"ZREVRANGE", "sum", "0", "0", "WITHSCORES"}), "[" + long_text + "1599 3198]");
    EXPECT_EQ(c({"ZDIFFSTORE", "sum", "2", "scores", "other"}), "1599");
    EXPECT_EQ(c({"ZINTERSTORE", "sum", "2", "scores", "set"}), "1600");
    EXPECT_EQ(c({"ZINTER", "2", "scores", "others", "WITHSCORES"}), "[" + long_text + "7 12]");
    EXPECT_EQ(c({"ZRANGESTORE", "range", "scores", "1", "-1"}), "1599");
    EXPECT_EQ(c({"ZRANGESTORE", "range", "scores", "(0", "+inf", "BYSCORE"}), "1599");
    EXPECT_EQ(c({"ZREMRANGEBYSCORE", "range", "-inf", "(1599"}), "1598");
    EXPECT_EQ(c({"ZREMRANGEBYRANK", "sum", "0", "-2"}), "1599");
    EXPECT_EQ(c({"ZREMRANGEBYLEX", "scores", "-", "+"}), "1600");
    EXPECT_EQ(c({"LINSERT", "list", "AFTER", long_text + "0", "more"}), "1601");
    EXPECT_EQ(c({"LREM", "list", "0", "more"}), "1");
    EXPECT_EQ(c({"COPY", "list", "copy"}), "1");
  }
  EXPECT_EQ(c({"SCARD", "to"}), "1600");
  EXPECT_EQ(c({"ZRANGE", "range", "0", "-1", "WITHSCORES"}), "[" + long_text + "1599 1599]");
  EXPECT_EQ(c({"ZRANGE", "sum", "0", "-1", "WITHSCORES"}), "[" + long_text + "1599 1600]");
  EXPECT_EQ(c({"EXISTS", "scores"}), "0");
  EXPECT_EQ(c({"LINDEX", "copy", "1599"}), long_text + "1599");
}

// Values of 12 MB, of which many more than 100 MiB would be read ahead, from all partitions. A
// client in this process and the server have the one that they talk about some five times together.
TEST_P(LargeResp, LongValuesAreReadOneAtATime) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) GTEST_SKIP() << "they have it mapped";
  if (GetParam() == std::string("uring")) GTEST_SKIP() << "nothing of it is the driver's";
  config.capacity_bytes = uint64_t{2} << 30;
  start();
  RespClient c = resp();
  c({"HSET", "small", "field", "value"});
  const std::string value(12'000'000, 'v');
  for (int i = 0; i < 40; ++i) c({"SETRANGE", "long" + std::to_string(i), "12000000", "x"});
  for (int i = 0; i < 10; ++i) {
    c({"HSET", "hash", std::to_string(i), value + std::to_string(i)});
    c({"RPUSH", "list", value + std::to_string(i)});
  }
  ::malloc_trim(0);
  {
    const MemoryLimit limit(uint64_t{100} << 20);
    EXPECT_EQ(c({"HGETALL", "small"}), "[field value]");
    EXPECT_EQ(c.call({"SCAN", "0", "COUNT", "1000"}).elements.at(1).elements.size(), 43U);
    EXPECT_EQ(c({"SCAN", "0", "COUNT", "1000", "TYPE", "list"}), "[0 [list]]");
    EXPECT_EQ(c.call({"KEYS", "*"}).elements.size(), 43U);
    EXPECT_EQ(c({"DBSIZE"}), "43");
    EXPECT_NE(c({"RANDOMKEY"}), "");
    EXPECT_EQ(c({"HSCAN", "hash", "0", "MATCH", "none", "COUNT", "100"}), "[0 []]");
    EXPECT_EQ(c({"COPY", "hash", "copy"}), "1");
    EXPECT_EQ(c({"LREM", "list", "1", value + "0"}), "1");
    EXPECT_EQ(c({"LINSERT", "list", "BEFORE", value + "2", "more"}), "10");
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(c({"HGET", "copy", std::to_string(i)}) == value + std::to_string(i));
  }
  EXPECT_EQ(c({"LINDEX", "list", "1"}), "more");
  EXPECT_TRUE(c({"LINDEX", "list", "9"}) == value + "9");
  EXPECT_EQ(c({"FLUSHDB"}), "OK");
  EXPECT_EQ(c({"DBSIZE"}), "0");
}

// What a connection holds names of is refused as a whole beyond the bound.
TEST_P(Resp, NamesOfAConnectionAreBounded) {
  start();
  RespClient c = resp();
  RespClient other = resp();
  const std::string refused =
      "-ERR a connection may listen to, watch or wait for 10000 names, of 4194304 bytes together";
  const auto names = [](std::vector<std::string> words, int count, size_t bytes) {
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      words.push_back(std::string(bytes, 'n') + number);
    }
    return words;
  };
  EXPECT_EQ(c(names({"WATCH"}, 10001, 0)), refused);
  EXPECT_EQ(c(names({"WATCH"}, 100, 60'000)), refused);
  EXPECT_EQ(c(names({"WATCH"}, 9000, 0)), "OK");
  EXPECT_EQ(c(names({"WATCH"}, 10000, 0)), "OK");  // most of them again
  EXPECT_EQ(c({"WATCH", "one more"}), refused);
  EXPECT_EQ(c({"WATCH", "7"}), "OK");
  other({"SET", "one more", "1"});
  c({"MULTI"});
  EXPECT_EQ(c({"EXEC"}), "[]");
  EXPECT_EQ(c({"WATCH", "one more"}), "OK");
  EXPECT_EQ(c({"UNWATCH"}), "OK");
  std::vector<std::string> blpop = names({"BLPOP"}, 10001, 0);
  blpop.emplace_back("0");
  EXPECT_EQ(c(blpop), refused);
  EXPECT_EQ(c(names({"SUBSCRIBE"}, 10001, 0)), refused);
  EXPECT_EQ(c(names({"PSUBSCRIBE"}, 2, 3'000'000)), refused);
  EXPECT_EQ(other({"PUBSUB", "NUMSUB", "0"}), "[0 0]");
  EXPECT_EQ(other({"PUBSUB", "NUMPAT"}), "0");
  c.write(names({"SUBSCRIBE"}, 10000, 0));
  for (int i = 1; i <= 10000; ++i) ASSERT_EQ(c.read().elements.at(2).number, i);
  EXPECT_EQ(c({"SUBSCRIBE", "0"}), "[subscribe 0 10000]");
  EXPECT_EQ(c({"PSUBSCRIBE", "*"}), refused);
  EXPECT_EQ(c({"UNSUBSCRIBE", "0"}), "[unsubscribe 0 9999]");
  EXPECT_EQ(c({"PSUBSCRIBE", "*"}), "[psubscribe * 10000]");
  EXPECT_EQ(c({"RESET"}), "RESET");
  EXPECT_EQ(c({"SUBSCRIBE", std::string(4'194'304, 'n')}).substr(0, 12), "[subscribe n");
  EXPECT_EQ(c({"SUBSCRIBE", "0"}), refused);
}

// Who asks for names does not wait until their values are read: those of 16 partitions, for each
// name, took most of a minute.
TEST_P(Resp, NamesByChanceAreToldWithoutValues) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) GTEST_SKIP() << "they take too long";
  start();
  RespClient c = resp();
  std::vector<std::string> hset = {"HSET", "hash"};
  for (int i = 0; i < 100; ++i) {
    hset.push_back(std::to_string(i));
    hset.emplace_back(100'000, 'v');
  }
  ASSERT_EQ(c(hset), "100");
  const Reply reply = c.call({"HRANDFIELD", "hash", "-60000"});
  std::set<std::string> names;
  for (const Reply& one : reply.elements) names.insert(one.text);
  EXPECT_EQ(reply.elements.size(), 60000U);
  EXPECT_GT(names.size(), 80U);  // not each with the same chance
  const Reply pairs = c.call({"HRANDFIELD", "hash", "-20", "WITHVALUES"});
  ASSERT_EQ(pairs.elements.size(), 40U);
  for (size_t i = 1; i < 40; i += 2) EXPECT_EQ(pairs.elements[i].text, hset[3]);
}

TEST_P(Resp, SilentClientsAreClosed) {
  config.slow_timeout_s = 1;
  start();
  RespClient half = resp();
  half.send("*2\r\n$3\r\nGET\r\n$5\r\nab");
  RespClient idle = resp();
  EXPECT_EQ(idle({"PING"}), "PONG");
  EXPECT_TRUE(half.ends_within(10000));
  EXPECT_EQ(idle({"PING"}), "PONG");
}

// Of a list that is longer than what is looked at together from its end.
TEST_P(Resp, PlacesInALongList) {
  start();
  RespClient c = resp();
  for (int i = 0; i < 1000; ++i) c.write({"RPUSH", "long", i % 100 == 7 ? "x" : "y"});
  for (int i = 0; i < 1000; ++i) c.read();
  EXPECT_EQ(c({"LPOS", "long", "x"}), "7");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "3"}), "207");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "11"}), "(nil)");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-1"}), "907");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-10"}), "7");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-11"}), "(nil)");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-2", "COUNT", "3"}), "[807 707 607]");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "9", "COUNT", "0"}), "[807 907]");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-8", "COUNT", "0"}), "[207 107 7]");
  EXPECT_EQ(c({"LPOS", "long", "x", "COUNT", "0", "MAXLEN", "107"}), "[7]");
  EXPECT_EQ(c({"LPOS", "long", "x", "COUNT", "0", "MAXLEN", "108"}), "[7 107]");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-1", "COUNT", "0", "MAXLEN", "392"}), "[907 807 707]");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-1", "COUNT", "0", "MAXLEN", "393"}),
            "[907 807 707 607]");
  EXPECT_EQ(c({"LPOS", "long", "x", "RANK", "-1", "MAXLEN", "5000"}), "907");
  EXPECT_EQ(c({"LPOS", "long", "z", "COUNT", "0"}), "[]");
  EXPECT_EQ(c({"LPOS", "none", "x"}), "(nil)");
}

TEST_P(Resp, ThousandConnections) {
  config.connections_max = 1000;
  start();
  std::vector<RespClient> clients;
  for (int i = 0; i < 1000; ++i) clients.push_back(resp());
  for (size_t i = 0; i < clients.size(); ++i) clients[i].write({"SET", std::to_string(i), "v"});
  for (RespClient& one : clients) ASSERT_EQ(one.read().text, "OK");
  RespClient more = resp();
  EXPECT_EQ(more.read().to_string(), "-ERR max number of clients reached");
  EXPECT_EQ(clients[7]({"DBSIZE"}), "1000");
}

// Many who ask for much share no turn, so that others are answered meanwhile; all get what they
// have asked for.
TEST_P(LargeResp, ATurnIsBounded) {
  start();
  RespClient c = resp();
  const std::string value(size_t{1} << 20, 'v');
  c({"SET", "large", value});
  constexpr size_t kClients = 64;
  std::vector<RespClient> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(resp());
    ASSERT_EQ(clients.back()({"PING"}), "PONG");
  }
  const uint64_t turns = running->metrics().turns;
  c.write({"DEBUG", "SLEEP", "0.5"});  // so that all of them have come by the next turn
  for (RespClient& one : clients) one.write({"GET", "large"});
  for (RespClient& one : clients) ASSERT_EQ(one.read().text, value);
  EXPECT_EQ(c.read().text, "OK");
  EXPECT_GE(running->metrics().turns - turns, kClients / 8);
}

// To read such a request takes longer than a turn may.
TEST_P(LargeResp, MillionsOfArgumentsAreAnswered) {
  start();
  constexpr size_t kArguments = 1'000'000;
  std::vector<std::string> request = {"EXISTS"};
  request.resize(kArguments, "some");
  const std::string bytes = RespClient::encode(request);
  std::vector<RespClient> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(resp());
  RespClient c = resp();
  EXPECT_EQ(c({"SET", "some", "1"}), "OK");
  c.write({"DEBUG", "SLEEP", "0.3"});
  std::vector<std::thread> threads;
  for (RespClient& one : clients) threads.emplace_back([&] { one.send(bytes); });
  for (std::thread& one : threads) one.join();
  for (RespClient& one : clients) EXPECT_EQ(one.read().to_string(), "999999");
  EXPECT_EQ(c.read().text, "OK");
}

// Who comes when no descriptor is left waits for one, and the server does not spin for him.
TEST_P(Resp, WaitsForDescriptors) {
  start();
  RespClient first = resp();
  EXPECT_EQ(first({"PING"}), "PONG");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<int> taken(1, ::dup(0));
  rlimit little = before;
  little.rlim_cur = static_cast<rlim_t>(taken.front()) + 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &little), 0);
  const auto take_all = [&] {
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
  };
  take_all();
  ::close(taken.back());  // for the client
  taken.pop_back();
  RespClient second = resp();
  take_all();
  second.write({"PING"});
  const std::clock_t begin = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double busy_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(first({"PING"}), "PONG");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const int fd : taken) ::close(fd);
  EXPECT_LT(busy_s, 0.3);
  EXPECT_EQ(second.read().to_string(), "PONG");
}

TEST_P(Resp, FullPoolsRefuseAndGoOn) {
  config.capacity_bytes = uint64_t{4} << 20;
  start();
  RespClient c = resp();
  std::string last;
  int stored = 0;
  for (; stored < 10000; ++stored) {
    last = c({"SET", "key" + std::to_string(stored), std::string(1000, 'x')});
    if (last != "OK") break;
  }
  EXPECT_EQ(last.substr(0, 4), "-OOM");
  ASSERT_GT(stored, 500);
  EXPECT_EQ(c({"GET", "key1"}).size(), 1000U);
  for (int i = 0; i < stored; ++i) ASSERT_EQ(c({"DEL", "key" + std::to_string(i)}), "1");
  EXPECT_EQ(c({"SET", "again", "1"}), "OK");
}

// Whatever takes something away goes on in a full pool, although a collection's header is written
// again, and what is left of a removed one is noted.
TEST_P(Resp, FullPoolsLetCollectionsGo) {
  config.capacity_bytes = uint64_t{4} << 20;
  start();
  RespClient c = resp();
  // Collections of several kinds, then small records to the last byte that there is.
  int stored = 0;
  const auto name = [](int i) { return "collection" + std::to_string(i); };
  for (std::string last; last.substr(0, 4) != "-OOM"; ++stored) {
    ASSERT_LT(stored, 100000);
    const std::string of = name(stored);
    const std::string a(20 + stored % 50, 'a');
    switch (stored % 4) {
      case 0:
        last = c({"HSET", of, a, "1", "b", "2", "c", "3"});
        break;
      case 1:
        last = c({"SADD", of, a, "b", "c"});
        break;
      case 2:
        last = c({"ZADD", of, "1", a, "2", "b", "3", "c"});
        break;
      default:
        last = c({"RPUSH", of, a, "b", "c"});
    }
  }
  --stored;
  int strings = 0;
  while (c({"SET", "s" + std::to_string(strings), "x"}) == "OK") ++strings;
  ASSERT_GT(stored, 1000);
  for (int i = 0; i < stored; ++i) {
    const std::string of = name(i);
    switch (i % 4) {
      case 0:
        ASSERT_EQ(c({"HDEL", of, "b"}), "1") << i;
        break;
      case 1:
        ASSERT_EQ(c({"SREM", of, "b"}), "1") << i;
        break;
      case 2:
        ASSERT_EQ(c({"ZREM", of, "b"}), "1") << i;
        break;
      default:
        ASSERT_EQ(c({"RPOP", of}), "c") << i;
    }
    if (i % 3 == 0) {
      ASSERT_EQ(c({"DEL", of}), "1") << i;
    } else if (i % 3 == 1) {
      c({"MULTI"});
      c({"DEL", of});
      ASSERT_EQ(c({"EXEC"}), "[1]") << i;
    }
  }
  // Nothing in between makes room for these.
  for (int i = 2; i < stored; i += 3) ASSERT_EQ(c({"DEL", name(i)}), "1") << i;
  for (int i = 0; i < strings; ++i) ASSERT_EQ(c({"DEL", "s" + std::to_string(i)}), "1");
  EXPECT_EQ(c({"DBSIZE"}), "0");
  EXPECT_EQ(c({"SET", "again", std::string(1000, 'x')}), "OK");
  EXPECT_EQ(c({"HSET", "anew", "a", "b"}), "1");
}

// As many removals at once as there is to remove: each is noted before any element has gone.
TEST_P(Resp, FullPoolsLetAllCollectionsGoAtOnce) {
  config.capacity_bytes = uint64_t{4} << 20;
  start();
  RespClient c = resp();
  const auto fill = [&] {
    int stored = 0;
    while (c({"SADD", "s" + std::to_string(stored), "x"}) == "1") ++stored;
    return stored;
  };
  // One that expires later, for which nobody looks at garbage for a while, hinders nothing.
  ASSERT_EQ(c({"SADD", "later", "x"}), "1");
  ASSERT_EQ(c({"EXPIRE", "later", "1000"}), "1");
  const int stored = fill();
  ASSERT_GT(stored, 1000);
  for (int i = 0; i < stored; ++i) c.write({"DEL", "s" + std::to_string(i)});
  for (int i = 0; i < stored; ++i) ASSERT_EQ(c.read().to_string(), "1") << i;
  EXPECT_EQ(c({"DBSIZE"}), "1");
  EXPECT_GE(fill(), stored * 9 / 10);  // at the cost of what is left of the others
  EXPECT_EQ(c({"FLUSHALL"}), "OK");
  EXPECT_EQ(c({"DBSIZE"}), "0");
}

// What is written in parts is no garbage before its last part, although it is noted as such, for a
// crash: the room for a later part does not come from an earlier one.
TEST_P(Resp, FullPoolsHaveAllOfACopyOrNothing) {
  config.capacity_bytes = uint64_t{16} << 20;
  start();
  RespClient c = resp();
  constexpr int kFields = 4000;
  for (int i = 0; i < kFields; ++i) {
    ASSERT_EQ(c({"HSET", "from", "f" + std::to_string(i), std::string(1000, 'x')}), "1");
  }
  int fillers = 0;
  while (c({"SET", "s" + std::to_string(fillers), std::string(1000, 'y')}) == "OK") ++fillers;
  ASSERT_GT(fillers, kFields);
  int copied = 0;
  int refused = 0;
  for (int i = 0; i < fillers; ++i) {
    ASSERT_EQ(c({"DEL", "s" + std::to_string(i)}), "1");
    if (i % 500 != 0) continue;
    const std::string answer = c({"COPY", "from", "to", "REPLACE"});
    if (answer != "1") {
      ++refused;
      ASSERT_EQ(answer.substr(0, 4), "-OOM");
      ASSERT_EQ(c({"EXISTS", "to"}), copied == 0 ? "0" : "1") << i;
    } else {
      ++copied;
    }
    if (copied == 0) continue;
    ASSERT_EQ(c({"HLEN", "to"}), std::to_string(kFields)) << i;
    RespClient reader = resp();
    reader.write({"HKEYS", "to"});
    ASSERT_EQ(reader.read().elements.size(), size_t{kFields}) << i;
  }
  EXPECT_GT(copied, 0);
  EXPECT_GT(refused, 0);
}

// Threads and connections side by side, on the same keys.
TEST_P(Resp, SeveralLoopsCountTogether) {
  config.threads = 3;
  start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this] {
      RespClient c = resp();
      for (int i = 0; i < 300; ++i) {
        c({"INCR", "n"});
        c({"HINCRBY", "h", "f", "1"});
      }
    });
  }
  for (std::thread& one : threads) one.join();
  RespClient c = resp();
  EXPECT_EQ(c({"GET", "n"}), "1800");
  EXPECT_EQ(c({"HGET", "h", "f"}), "1800");
}

TEST(ServerConfig, RefusesToBeReachedWithoutAPassword) {
  server::Config config;
  config.pool = "pool";
  config.resp = {"*:6379"};
  EXPECT_THROW(server::require_sound(config), Error);
  config.password = "x";
  server::require_sound(config);
  config.memcached = {"0.0.0.0:11211"};
  EXPECT_THROW(server::require_sound(config), Error);
  config.allow_unauthenticated = true;
  server::require_sound(config);
}

TEST(ServerConfig, FilesAreReadWithTheirErrors) {
  const TempDir folder;
  write_file(folder.file("conf"),
             "# a comment\npool = /p\nresp = 127.0.0.1:1\nresp = 127.0.0.1:2\nthreads = 2\n");
  server::Config config;
  server::read_config_file(folder.file("conf"), config);
  EXPECT_EQ(config.pool, "/p");
  EXPECT_EQ(config.resp, (std::vector<std::string>{"127.0.0.1:1", "127.0.0.1:2"}));
  EXPECT_EQ(config.threads, 2U);
  for (const char* bad : {"threads = x\n", "nosuch = 1\n", "no equals\n"}) {
    write_file(folder.file("conf"), bad);
    EXPECT_THROW(server::read_config_file(folder.file("conf"), config), Error);
  }
}

}  // namespace
}  // namespace perdure::test
