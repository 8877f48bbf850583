// Users and what they may do.
#include <fstream>

#include "server/fixture.h"

namespace perdure::test {
namespace {

class AclRules : public ServerTest {
 protected:
  RespClient as(const std::string& name, const std::string& password) {
    RespClient c = resp();
    EXPECT_EQ(c({"AUTH", name, password}), "OK");
    return c;
  }
  static constexpr const char* kNoCommand = "-NOPERM this user has no permissions to run the '";
  static constexpr const char* kNoKey =
      "-NOPERM this user has no permissions to access one of the keys used as arguments";
};

TEST_F(AclRules, CommandsKeysAndChannels) {
  start();
  RespClient admin = resp();
  EXPECT_EQ(admin({"ACL", "WHOAMI"}), "default");
  EXPECT_EQ(
      admin({"ACL", "SETUSER", "alice", "on", ">secret", "~cache:*", "%R~config:*", "%W~log:*",
             "&news.*", "+@read", "+@write", "+@pubsub", "+@transaction", "-del", "+config|get"}),
      "OK");
  RespClient c = resp();
  EXPECT_TRUE(c({"AUTH", "alice", "wrong"}).starts_with("-WRONGPASS "));
  EXPECT_TRUE(c({"AUTH", "bob", "secret"}).starts_with("-WRONGPASS "));
  EXPECT_EQ(c({"AUTH", "alice", "secret"}), "OK");
  EXPECT_EQ(c({"SET", "cache:1", "x"}), "OK");
  EXPECT_EQ(c({"GET", "cache:1"}), "x");
  EXPECT_EQ(c({"GET", "config:1"}), "(nil)");
  EXPECT_EQ(c({"SET", "config:1", "x"}), kNoKey);
  EXPECT_EQ(c({"SET", "log:1", "x"}), "OK");
  EXPECT_EQ(c({"GET", "log:1"}), kNoKey);
  EXPECT_EQ(c({"SET", "log:1", "x", "GET"}), kNoKey);
  EXPECT_EQ(c({"INCR", "log:1"}), kNoKey);
  EXPECT_EQ(c({"MGET", "cache:1", "other"}), kNoKey);
  EXPECT_EQ(c({"COPY", "config:1", "cache:2"}), "0");
  EXPECT_EQ(c({"COPY", "cache:2", "config:1"}), kNoKey);
  EXPECT_EQ(c({"SUNIONSTORE", "log:s", "config:a", "cache:b"}), "0");
  EXPECT_EQ(c({"SUNIONSTORE", "log:s", "log:a"}), kNoKey);
  EXPECT_EQ(c({"ZUNIONSTORE", "cache:z", "1", "other"}), kNoKey);
  EXPECT_EQ(c({"ZUNION", "1", "other"}), kNoKey);
  EXPECT_TRUE(c({"DEL", "cache:1"}).starts_with(kNoCommand));
  EXPECT_TRUE(c({"FLUSHALL"}).starts_with("-") == false);  // it is @write
  EXPECT_TRUE(c({"CONFIG", "GET", "save"}).starts_with("["));
  EXPECT_TRUE(c({"CONFIG", "SET", "slowlog-us", "1"}).starts_with(kNoCommand));
  EXPECT_TRUE(c({"ACL", "LIST"}).starts_with(kNoCommand));
  EXPECT_TRUE(c({"PERDURE.SYNC", "HELLO", "1", "1"}).starts_with(kNoCommand));
  EXPECT_EQ(c({"PUBLISH", "news.today", "x"}), "0");
  EXPECT_TRUE(c({"PUBLISH", "other", "x"}).starts_with("-NOPERM "));
  EXPECT_TRUE(c({"PSUBSCRIBE", "news*"}).starts_with("-NOPERM "));
  EXPECT_EQ(c({"MULTI"}), "OK");
  EXPECT_TRUE(c({"ACL", "LIST"}).starts_with("-NOPERM "));
  EXPECT_TRUE(c({"EXEC"}).starts_with("-EXECABORT "));
  EXPECT_EQ(c({"MULTI"}), "OK");
  EXPECT_EQ(c({"SET", "cache:1", "y"}), "QUEUED");
  admin({"ACL", "SETUSER", "alice", "-set"});
  EXPECT_TRUE(c({"EXEC"}).starts_with("[-NOPERM "));
  EXPECT_EQ(admin({"ACL", "DRYRUN", "alice", "GET", "cache:1"}), "OK");
  EXPECT_TRUE(admin({"ACL", "DRYRUN", "alice", "GET", "x"}).starts_with("NOPERM "));
  EXPECT_NE(admin({"ACL", "LOG", "1"}).find("username"), std::string::npos);
  {
    RespClient third = resp();
    third({"HELLO", "3"});
    const Reply entry = third.call({"ACL", "LOG", "1"}).elements.at(0);
    EXPECT_EQ(entry.elements.at(10).text, "age-seconds");
    EXPECT_EQ(entry.elements.at(11).kind, ',');
  }
  EXPECT_EQ(admin({"ACL", "DELUSER", "alice", "nobody"}), "1");
  EXPECT_TRUE(c.ends_within(5000));
  EXPECT_TRUE(admin({"ACL", "DELUSER", "default"}).starts_with("-ERR "));
}

TEST_F(AclRules, RulesComeBackAsTheyCount) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"ACL", "LIST"}), "[user default on nopass ~* &* +@all]");
  EXPECT_EQ(c({"ACL", "SETUSER", "a"}), "OK");
  EXPECT_EQ(c({"ACL", "GETUSER", "a"}),
            "[flags [off] passwords [] commands -@all keys  channels  selectors []]");
  c({"ACL", "SETUSER", "a", "+@all", "-@dangerous", "+keys", "allkeys", "on", ">p"});
  EXPECT_EQ(c({"ACL", "LIST"}).substr(0, 15), "[user a on #148");
  EXPECT_NE(c({"ACL", "LIST"}).find("~* resetchannels +@all -@dangerous +keys"), std::string::npos);
  // Nothing of it is done if one is wrong.
  EXPECT_TRUE(
      c({"ACL", "SETUSER", "a", "off", "+nonsense"}).starts_with("-ERR Error in ACL SETUSER"));
  EXPECT_NE(c({"ACL", "LIST"}).find("user a on"), std::string::npos);
  EXPECT_TRUE(c({"ACL", "SETUSER", "a", "(+get ~x)"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"ACL", "SETUSER", "a b"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"ACL", "SETUSER", "a", "#12"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"ACL", "SETUSER", "a", "<none"}).starts_with("-ERR "));
  EXPECT_EQ(c({"ACL", "GENPASS"}).size(), 64);
  EXPECT_EQ(c({"ACL", "GENPASS", "5"}).size(), 2);
  EXPECT_NE(c({"ACL", "CAT"}).find("dangerous"), std::string::npos);
  EXPECT_NE(c({"ACL", "CAT", "hash"}).find("hget"), std::string::npos);
  EXPECT_TRUE(c({"ACL", "CAT", "nonsense"}).starts_with("-ERR "));
  // COMMAND says the same.
  EXPECT_NE(c({"COMMAND", "INFO", "flushall"}).find("@dangerous"), std::string::npos);
}

TEST_F(AclRules, FilesAndPasswords) {
  config.acl_file = folder.file("users");
  start();
  {
    RespClient c = resp();
    EXPECT_EQ(c({"ACL", "SETUSER", "default", ">master"}), "OK");
    EXPECT_EQ(c({"ACL", "SETUSER", "reader", "on", ">r", "~*", "+@read", "+ping"}), "OK");
    EXPECT_EQ(c({"ACL", "SAVE"}), "OK");
    EXPECT_EQ(c({"ACL", "LOAD"}), "OK");
    EXPECT_EQ(c({"PING"}), "PONG");
  }
  stop();
  start();
  RespClient c = resp();
  EXPECT_TRUE(c({"PING"}).starts_with("-NOAUTH "));
  EXPECT_EQ(c({"HELLO", "3", "AUTH", "reader", "r"}).substr(0, 7), "[server");
  EXPECT_EQ(c({"PING"}), "PONG");
  EXPECT_TRUE(c({"SET", "a", "1"}).starts_with(kNoCommand));
  EXPECT_EQ(c({"AUTH", "master"}), "OK");
  EXPECT_EQ(c({"SET", "a", "1"}), "OK");
  // memcached's text protocol is default's, as far as it may.
  Socket m = memcached();
  m.send("get a\r\n");
  EXPECT_EQ(m.read_line(), "VALUE a 0 1");
  EXPECT_EQ(c({"ACL", "SETUSER", "default", "-@write", "resetkeys", "%R~a*"}), "OK");
  EXPECT_EQ(m.read_line(), "1");
  EXPECT_EQ(m.read_line(), "END");
  m.send("set a 0 0 1\r\nx\r\nget b\r\n");
  EXPECT_EQ(m.read_line(), "CLIENT_ERROR this user has no permissions for this command");
  EXPECT_EQ(m.read_line(), "CLIENT_ERROR this user has no permissions for this key");
}

TEST_F(AclRules, WhatIsTakenAwayEnds) {
  start();
  RespClient admin = resp();
  admin({"ACL", "SETUSER", "alice", "on", ">a", "&news", "&other", "+@all"});
  RespClient c = as("alice", "a");
  RespClient kept = as("alice", "a");
  c({"SUBSCRIBE", "news"});
  kept({"SUBSCRIBE", "other"});
  EXPECT_EQ(admin({"ACL", "SETUSER", "alice", "resetchannels", "&other"}), "OK");
  EXPECT_TRUE(c.ends_within(5000));
  EXPECT_EQ(admin({"PUBLISH", "other", "x"}), "1");
  for (const char* rule : {"~a\tb", "&a\rb", "~a\x7f"}) {
    EXPECT_TRUE(admin({"ACL", "SETUSER", "alice", "resetkeys", rule}).starts_with("-ERR "));
  }
  EXPECT_TRUE(admin({"ACL", "SETUSER", "a\tb"}).starts_with("-ERR "));
}

TEST_F(AclRules, AFileWithoutDefaultKeepsThePassword) {
  config.acl_file = folder.file("users");
  config.password = "secret";
  std::ofstream(config.acl_file) << "user reader on nopass ~* +@read\n";
  start();
  RespClient c = resp();
  EXPECT_TRUE(c({"GET", "a"}).starts_with("-NOAUTH "));
  EXPECT_EQ(c({"AUTH", "secret"}), "OK");
  EXPECT_EQ(c({"ACL", "LOAD"}), "OK");
  EXPECT_TRUE(resp()({"GET", "a"}).starts_with("-NOAUTH "));
}

TEST_F(AclRules, OfTheConfiguration) {
  config.users = {"default off", "app on >pw ~app:* +@all -@admin"};
  config.resp = {"127.0.0.1:0"};
  start();
  RespClient c = resp();
  EXPECT_TRUE(c({"GET", "app:1"}).starts_with("-NOAUTH "));
  EXPECT_EQ(c({"AUTH", "app", "pw"}), "OK");
  EXPECT_EQ(c({"SET", "app:1", "1"}), "OK");
  EXPECT_TRUE(c({"SHUTDOWN"}).starts_with(kNoCommand));
  EXPECT_EQ(c({"ACL", "WHOAMI"}).substr(0, 7), "-NOPERM");
  Socket m = memcached();
  m.send("get app:1\r\n");
  EXPECT_EQ(m.read_line(), "CLIENT_ERROR unauthenticated");
  stop();
  config.users = {"bad +nonsense"};
  EXPECT_THROW(start(), std::exception);
}

TEST_F(AclRules, SortedSetsTogether) {
  start();
  RespClient c = resp();
  c({"ZADD", "a", "1", "x", "2", "y", "3", "z"});
  c({"ZADD", "b", "10", "y", "1", "w"});
  EXPECT_EQ(c({"ZUNION", "2", "a", "b", "WITHSCORES"}), "[w 1 x 1 z 3 y 12]");
  EXPECT_EQ(c({"ZINTER", "2", "a", "b", "WITHSCORES", "AGGREGATE", "MAX"}), "[y 10]");
  EXPECT_EQ(c({"ZDIFF", "2", "a", "b"}), "[x z]");
  EXPECT_EQ(c({"ZDIFFSTORE", "d", "2", "a", "b"}), "2");
  EXPECT_EQ(c({"ZRANGE", "d", "0", "-1"}), "[x z]");
  EXPECT_TRUE(c({"ZDIFF", "2", "a", "b", "WEIGHTS", "1", "1"}).starts_with("-ERR syntax"));
  EXPECT_TRUE(c({"ZUNION", "9", "a"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"ZUNION", "-1", "a"}).starts_with("-ERR "));
}

}  // namespace
}  // namespace perdure::test
