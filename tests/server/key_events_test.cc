// Keyspace notifications: which events there are of which command, and when.
#include "server/key_events.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "perdure/error.h"
#include "server/fixture.h"

namespace perdure::test {
namespace {

class KeyEventsTest : public ServerTest {
 protected:
  void begin(const std::string& kinds) {
    start();
    c_ = std::make_unique<RespClient>(resp());
    listener_ = std::make_unique<RespClient>(resp());
    EXPECT_EQ(c({"CONFIG", "SET", "notify-keyspace-events", kinds}), "OK");
    (*listener_)({"PSUBSCRIBE", "__key*__:*", "end"});
    listener_->read();
  }
  std::string c(const std::vector<std::string>& arguments) { return (*c_)(arguments); }
  // What has been told since the last call: "event key, event key", in order; with the keyspace
  // channel "key=event".
  std::string told() {
    RespClient other = resp();
    other({"PUBLISH", "end", ""});
    std::string all;
    for (;;) {
      const Reply message = listener_->read();
      if (message.elements.at(2).text == "end") return all;
      const std::string channel = message.elements[2].text;
      const std::string text = message.elements[3].text;
      if (!all.empty()) all += ", ";
      const std::string what = channel.substr(channel.find(':') + 1);
      all += channel.starts_with("__keyspace") ? what + "=" + text : what + " " + text;
      const std::string database = channel.substr(channel.find('@') + 1);
      if (!database.starts_with("0__")) all += " @" + database.substr(0, database.find('_'));
    }
  }
  std::string events_of(const std::vector<std::string>& arguments) {
    const std::string reply = c(arguments);
    EXPECT_FALSE(reply.starts_with("-")) << arguments[0] << ": " << reply;
    return told();
  }

  std::unique_ptr<RespClient> c_;
  std::unique_ptr<RespClient> listener_;
};

TEST_F(KeyEventsTest, OfEachCommand) {
  begin("EA");
  using Words = std::vector<std::string>;
  const std::vector<std::pair<Words, std::string>> all = {
      {{"SET", "s", "1"}, "set s"},
      {{"SET", "s", "1", "EX", "100"}, "set s, expire s"},
      {{"SET", "s", "2", "KEEPTTL"}, "set s"},
      {{"SET", "s", "3", "NX"}, ""},
      {{"GET", "s"}, ""},
      {{"SETEX", "s", "100", "1"}, "set s, expire s"},
      {{"PSETEX", "s", "100000", "1"}, "set s, expire s"},
      {{"SETNX", "s", "1"}, ""},
      {{"GETSET", "s", "1"}, "set s"},
      {{"MSET", "s", "1", "s2", "2"}, "set s, set s2"},
      {{"MSETNX", "s", "1", "s3", "2"}, ""},
      {{"INCR", "s"}, "incrby s"},
      {{"DECR", "s"}, "incrby s"},
      {{"INCRBY", "s", "5"}, "incrby s"},
      {{"DECRBY", "s", "5"}, "incrby s"},
      {{"INCRBYFLOAT", "s", "1"}, "incrbyfloat s"},
      {{"APPEND", "s", "0"}, "append s"},
      {{"SETRANGE", "s", "1", "x"}, "setrange s"},
      {{"SETBIT", "s", "1", "1"}, "setbit s"},
      {{"BITOP", "NOT", "s4", "s"}, "set s4"},
      {{"BITOP", "AND", "s4", "none"}, "del s4"},
      {{"BITOP", "AND", "s4", "none"}, ""},
      {{"GETEX", "s"}, ""},
      {{"GETEX", "s", "EX", "100"}, "expire s"},
      {{"GETEX", "s", "PERSIST"}, "persist s"},
      {{"EXPIRE", "s", "100"}, "expire s"},
      {{"PEXPIRE", "s", "90000", "GT"}, ""},
      {{"PERSIST", "s"}, "persist s"},
      {{"PERSIST", "s"}, ""},
      {{"EXPIREAT", "s", "1"}, "del s"},
      {{"GETDEL", "s2"}, "del s2"},
      {{"GETDEL", "s2"}, ""},
      {{"MSET", "a", "1", "b", "2"}, "set a, set b"},
      {{"RENAME", "a", "b"}, "rename_from a, rename_to b"},
      {{"RENAMENX", "b", "a"}, "rename_from b, rename_to a"},
      {{"COPY", "a", "b"}, "copy_to b"},
      {{"COPY", "a", "b"}, ""},
      {{"MOVE", "b", "3"}, "move_from b, move_to b @3"},
      {{"DEL", "a", "none"}, "del a"},
      {{"UNLINK", "none"}, ""},
      {{"LPUSH", "l", "1", "2", "3"}, "lpush l"},
      {{"RPUSH", "l", "4"}, "rpush l"},
      {{"LPUSHX", "none", "4"}, ""},
      {{"RPUSHX", "l", "5"}, "rpush l"},
      {{"LSET", "l", "0", "x"}, "lset l"},
      {{"LINSERT", "l", "BEFORE", "1", "y"}, "linsert l"},
      {{"LREM", "l", "0", "y"}, "lrem l"},
      {{"LREM", "l", "0", "y"}, ""},
      {{"LTRIM", "l", "0", "2"}, "ltrim l"},
      {{"LPOP", "l"}, "lpop l"},
      {{"LPOP", "none"}, ""},
      {{"RPOPLPUSH", "l", "l"}, "lpush l, rpop l"},
      {{"LMOVE", "l", "m", "LEFT", "RIGHT"}, "rpush m, lpop l"},
      {{"RPOPLPUSH", "l", "m"}, "lpush m, rpop l, del l"},
      {{"BLMOVE", "m", "n", "RIGHT", "LEFT", "0"}, "lpush n, rpop m"},
      {{"BRPOP", "none", "n", "0"}, "rpop n, del n"},
      {{"BLPOP", "m", "0"}, "lpop m, del m"},
      {{"SADD", "t", "a", "b", "c"}, "sadd t"},
      {{"SADD", "t", "a"}, ""},
      {{"SREM", "t", "a", "none"}, "srem t"},
      {{"SREM", "t", "a"}, ""},
      {{"SMOVE", "t", "u", "b"}, "srem t, sadd u"},
      {{"SUNIONSTORE", "v", "t", "u"}, "sunionstore v"},
      {{"SINTERSTORE", "v", "t", "u"}, "del v"},
      {{"SDIFFSTORE", "v", "t", "u"}, "sdiffstore v"},
      {{"SMOVE", "u", "t", "b"}, "srem u, del u, sadd t"},
      {{"SPOP", "t", "5"}, "spop t, del t"},
      {{"HSET", "h", "a", "1", "b", "x"}, "hset h"},
      {{"HSET", "h", "a", "2"}, "hset h"},
      {{"HMSET", "h", "a", "1"}, "hset h"},
      {{"HSETNX", "h", "a", "1"}, ""},
      {{"HSETNX", "h", "c", "1"}, "hset h"},
      {{"HINCRBY", "h", "a", "1"}, "hincrby h"},
      {{"HINCRBYFLOAT", "h", "a", "1"}, "hincrbyfloat h"},
      {{"HDEL", "h", "a", "c"}, "hdel h"},
      {{"EXPIRE", "h", "100"}, "expire h"},
      {{"HDEL", "h", "b"}, "hdel h, del h"},
      {{"ZADD", "z", "1", "a", "2", "b", "3", "c", "4", "d", "5", "e", "6", "f"}, "zadd z"},
      {{"ZADD", "z", "INCR", "1", "a"}, "zincr z"},
      {{"ZINCRBY", "z", "-1", "a"}, "zincr z"},
      {{"ZREM", "z", "none"}, ""},
      {{"ZREM", "z", "a"}, "zrem z"},
      {{"ZRANGESTORE", "y", "z", "0", "1"}, "zrangestore y"},
      {{"ZRANGESTORE", "y", "z", "9", "9"}, "del y"},
      {{"ZUNIONSTORE", "y", "1", "z"}, "zunionstore y"},
      {{"ZINTERSTORE", "y", "1", "z"}, "zinterstore y"},
      {{"ZDIFFSTORE", "y", "1", "z"}, "zdiffstore y"},
      {{"ZREMRANGEBYSCORE", "z", "2", "2"}, "zremrangebyscore z"},
      {{"ZREMRANGEBYRANK", "z", "0", "0"}, "zremrangebyrank z"},
      {{"ZREMRANGEBYLEX", "z", "[d", "[d"}, "zremrangebylex z"},
      {{"ZPOPMIN", "z"}, "zpopmin z"},
      {{"BZPOPMAX", "z", "0"}, "zpopmax z, del z"},
      {{"ZPOPMAX", "y", "9"}, "zpopmax y, del y"},
      {{"ZPOPMAX", "y"}, ""},
      {{"FLUSHALL"}, ""},
  };
  for (const auto& [command, events] : all) {
    std::string words;
    for (const std::string& word : command) words += word + " ";
    EXPECT_EQ(events_of(command), events) << words;
  }
  // An error changes nothing, and is no event.
  c({"SET", "s", "text"});
  EXPECT_EQ(told(), "set s");
  EXPECT_TRUE(c({"INCR", "s"}).starts_with("-"));
  EXPECT_TRUE(c({"LPUSH", "s", "1"}).starts_with("-"));
  EXPECT_EQ(told(), "");
}

TEST_F(KeyEventsTest, OnTheChannelsOfTheKindsThatWereAskedFor) {
  begin("KE$n");
  EXPECT_EQ(c({"CONFIG", "GET", "notify-keyspace-events"}), "[notify-keyspace-events $KEn]");
  EXPECT_EQ(events_of({"SET", "s", "1"}), "s=new, new s, s=set, set s");
  EXPECT_EQ(events_of({"DEL", "s"}), "");
  EXPECT_EQ(events_of({"LPUSH", "l", "1"}), "l=new, new l");
  c({"CONFIG", "SET", "notify-keyspace-events", "Klm"});
  EXPECT_EQ(events_of({"LPUSH", "l", "1"}), "l=lpush");
  EXPECT_EQ(events_of({"GET", "none"}), "none=keymiss");
  EXPECT_EQ(events_of({"MGET", "none", "s", "s"}), "none=keymiss, s=keymiss, s=keymiss");
  EXPECT_EQ(events_of({"LLEN", "l"}), "");
  EXPECT_EQ(events_of({"SET", "s", "1"}), "");
  for (const char* const none : {"", "A", "glx"}) {
    EXPECT_EQ(c({"CONFIG", "SET", "notify-keyspace-events", none}), "OK");
    EXPECT_EQ(events_of({"LPUSH", "l", "1"}), "") << none;
  }
  c({"CONFIG", "SET", "notify-keyspace-events", "KEA"});
  EXPECT_EQ(c({"CONFIG", "GET", "notify-keyspace-events"}), "[notify-keyspace-events AKE]");
  EXPECT_TRUE(c({"CONFIG", "SET", "notify-keyspace-events", "Kq"}).starts_with("-ERR "));
  EXPECT_EQ(c({"CONFIG", "GET", "notify-keyspace-events"}), "[notify-keyspace-events AKE]");
  EXPECT_EQ(server::text_of_event_kinds(server::parse_event_kinds("g$lshzxetdKEmn")), "AKEmn");
}

TEST_F(KeyEventsTest, OfTransactionsThatWereCarriedOut) {
  begin("EA");
  c({"MULTI"});
  c({"SET", "a", "1"});
  c({"LPUSH", "a", "1"});  // an error of this command alone
  c({"RPUSH", "l", "1"});
  c({"LPOP", "l"});
  EXPECT_EQ(told(), "");
  c({"EXEC"});
  EXPECT_EQ(told(), "set a, rpush l, lpop l, del l");
  c({"MULTI"});
  c({"SET", "a", "1"});
  for (int i = 0; i < 40; ++i) c({"SET", "k" + std::to_string(i), std::string(2000, 'x')});
  c({"MSET", "b", std::string(2000, 'x'), "c", "1"});
  for (int i = 0; i < 400; ++i) c({"SET", "m" + std::to_string(i), std::string(1000, 'x')});
  EXPECT_NE(c({"EXEC"}).find("EXECABORT"), std::string::npos);
  EXPECT_EQ(told(), "");
  c({"MULTI"});
  c({"SET", "a", "1"});
  c({"DISCARD"});
  EXPECT_EQ(told(), "");
}

TEST_F(KeyEventsTest, OfExpiry) {
  config.resp = {"127.0.0.1:0"};
  start();
  resp()({"SET", "before", "1", "PX", "700"});
  stop();
  config.notify_events = server::parse_event_kinds("Ex");
  start();
  c_ = std::make_unique<RespClient>(resp());
  listener_ = std::make_unique<RespClient>(resp());
  (*listener_)({"PSUBSCRIBE", "__key*__:*", "end"});
  listener_->read();
  c({"SET", "moved", "1", "PX", "30"});
  c({"EXPIRE", "moved", "1000"});
  c({"SET", "gone", "1", "PX", "30"});
  c({"DEL", "gone"});
  c({"HSET", "hash", "f", "v"});
  c({"PEXPIRE", "hash", "40"});
  c({"SET", "soon", "1", "PX", "200"});
  c({"SELECT", "2"});
  c({"SET", "other", "1", "PX", "50"});
  std::string all;
  for (int i = 0; i < 500; ++i) {
    const std::string some = told();
    if (!some.empty()) all += (all.empty() ? "" : ", ") + some;
    if (all.find("soon") != std::string::npos && all.find("before") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const char* const one :
       {"expired before", "expired hash", "expired soon", "expired other @2"}) {
    EXPECT_NE(all.find(one), std::string::npos) << one << " in " << all;
  }
  EXPECT_EQ(all.find("moved"), std::string::npos) << all;
  EXPECT_EQ(all.find("gone"), std::string::npos) << all;
  // Once each.
  EXPECT_EQ(all.find("hash"), all.rfind("hash"));
  c({"SET", "flushed", "1", "PX", "150"});
  c({"FLUSHALL"});
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(told(), "");
}

TEST_F(KeyEventsTest, OfManyThatExpireAtOnce) {
  begin("Ex");
  constexpr int kKeys = 5000;
  const std::string at = std::to_string(
      std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::system_clock::now().time_since_epoch() + std::chrono::seconds(3))
          .count());
  for (int i = 0; i < kKeys; ++i) c_->write({"SET", "k" + std::to_string(i), "1", "PXAT", at});
  for (int i = 0; i < kKeys; ++i) c_->read();
  // Time and again another one, and then the same as the others.
  for (int i = 0; i < 50; ++i) c({"PEXPIREAT", "k0", std::to_string(std::stoll(at) + 50 - i)});
  c({"PEXPIREAT", "k0", at});
  std::string all;
  size_t count = 0;
  for (int i = 0; i < 500 && count < kKeys; ++i) {
    all += told() + ", ";
    count = 0;
    for (size_t found = 0; (found = all.find("expired k", found)) != std::string::npos; ++found) {
      ++count;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(count, kKeys);
  EXPECT_EQ(all.find("expired k0,"), all.rfind("expired k0,"));
}

TEST_F(KeyEventsTest, ATransactionThatIsDiscardedLeavesExpiriesAsTheyWere) {
  begin("Ex");
  c({"SET", "k", "1", "PX", "1000"});
  c({"MULTI"});
  c({"PERSIST", "k"});
  for (int i = 0; i < 800; ++i) c({"SET", "m" + std::to_string(i), std::string(1000, 'x')});
  EXPECT_NE(c({"EXEC"}).find("EXECABORT"), std::string::npos);
  c({"MULTI"});
  c({"SET", "l", "1", "PX", "300"});
  c({"EXEC"});
  std::string all;
  for (int i = 0; i < 300; ++i) {
    all += told() + ", ";
    if (all.find("expired k") != std::string::npos && all.find("expired l") != std::string::npos) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_NE(all.find("expired k"), std::string::npos) << all;
  EXPECT_NE(all.find("expired l"), std::string::npos) << all;
}

TEST_F(KeyEventsTest, ADamagedRecordIsLeftOut) {
  for (const char* const index : {"ordered", "hash"}) {
    SCOPED_TRACE(index);
    std::filesystem::remove(config.pool);
    config.index = index;
    config.notify_events = 0;
    start();
    const std::string mark = "DAMAGEMEDAMAGEME";
    {
      RespClient first = resp();
      for (int i = 0; i < 50; ++i) first({"SET", "k" + std::to_string(i), "1"});
      first({"SET", "bad", mark});
    }
    stop();
    std::string image = read_file(config.pool);
    ASSERT_NE(image.find(mark), std::string::npos);
    image[image.find(mark) + 8] ^= 1;
    write_file(config.pool, image);
    begin("Ex");
    c({"SET", "soon", "1", "PX", "50"});
    std::string all;
    for (int i = 0; i < 500 && all.find("expired soon") == std::string::npos; ++i) {
      all += told();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_NE(all.find("expired soon"), std::string::npos);
    EXPECT_TRUE(c({"GET", "bad"}).starts_with("-CORRUPT"));
    c_.reset();
    listener_.reset();
    stop();
  }
}

TEST_F(KeyEventsTest, OfEviction) {
  config.capacity_bytes = uint64_t{8} << 20;
  config.memory_bytes = uint64_t{4} << 20;
  config.evict = true;
  config.index = "hash";
  begin("Ee");
  for (int i = 0; i < 8000; ++i) c({"SET", "k" + std::to_string(i), std::string(1000, 'x')});
  const std::string all = told();
  EXPECT_NE(all.find("evicted k"), std::string::npos);
  int told_of = 0;
  for (size_t at = 0; (at = all.find("evicted ", at)) != std::string::npos; ++at) ++told_of;
  EXPECT_EQ(told_of + std::stoi(c({"DBSIZE"})), 8000);
}

TEST_F(KeyEventsTest, OfMemcachedsClients) {
  begin("EA");
  Socket m = memcached();
  m.send("set a 0 0 1\r\n1\r\n");
  m.read_line();
  EXPECT_EQ(told(), "set a");
  m.send(
      "set a 0 100 1\r\n1\r\nincr a 1\r\nappend a 0 0 1\r\n1\r\ntouch a 100\r\ndelete a\r\nget "
      "a\r\n");
  for (int i = 0; i < 6; ++i) m.read_line();
  EXPECT_EQ(told(), "set a, expire a, incrby a, append a, expire a, del a");
}

}  // namespace
}  // namespace perdure::test
