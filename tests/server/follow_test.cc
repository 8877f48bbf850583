// A server that follows another one.
#include <chrono>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "perdure/error.h"
#include "perdure/pool.h"
#include "perdure/store.h"
#include "server/follow_state.h"
#include "server/following.h"
#include "server/keyspace.h"

namespace perdure::test {
namespace {

TEST_F(Follow, HasWhatTheLeaderHasAndHadBefore) {
  start();
  {
    RespClient c = resp();
    for (int i = 0; i < 3000; ++i) c({"SET", "k" + std::to_string(i), std::to_string(i)});
    c({"HSET", "hash", "a", "1", "b", "2"});
    c({"SET", "long", std::string(300000, 'x')});
  }
  stop();
  start_both();
  catch_up();
  RespClient leader = resp();
  RespClient c = follower.resp();
  EXPECT_EQ(c({"GET", "k2999"}), "2999");
  EXPECT_EQ(c({"HGETALL", "hash"}).size(), leader({"HGETALL", "hash"}).size());
  EXPECT_EQ(c({"STRLEN", "long"}), "300000");
  leader({"RPUSH", "list", "a", "b", "c"});
  leader({"SADD", "set", "1", "2"});
  leader({"ZADD", "sorted", "1", "one", "2", "two"});
  leader({"MULTI"});
  leader({"SET", "m1", "1"});
  leader({"SET", "m2", "1"});
  leader({"DEL", "k0", "absent"});
  leader({"EXEC"});
  leader({"SET", "fleeting", "1", "PX", "100000"});
  leader({"DEL", "k1"});
  leader({"SELECT", "3"});
  leader({"SET", "other", "database"});
  catch_up();
  EXPECT_EQ(c({"LRANGE", "list", "0", "-1"}), "[a b c]");
  EXPECT_EQ(c({"SCARD", "set"}), "2");
  EXPECT_EQ(c({"ZRANGE", "sorted", "0", "-1"}), "[one two]");
  EXPECT_EQ(c({"MGET", "m1", "m2", "k0", "k1"}), "[1 1 (nil) (nil)]");
  EXPECT_NE(c({"PTTL", "fleeting"}), "-1");
  EXPECT_EQ(c({"DBSIZE"}), leader({"SELECT", "0"}) == "OK" ? leader({"DBSIZE"}) : "");
  c({"SELECT", "3"});
  EXPECT_EQ(c({"GET", "other"}), "database");
  EXPECT_EQ(c({"SET", "x", "y"}), "-READONLY You can't write against a read only replica.");
  EXPECT_EQ(figure(c, "master_link_status"), "up");
  EXPECT_EQ(figure(leader, "connected_slaves"), "1");
  Socket memcached(follower.addresses.at("memcached"));
  memcached.send("set a 0 0 1\r\nx\r\nget k5\r\n");
  EXPECT_TRUE(memcached.read_line().starts_with("SERVER_ERROR "));
  EXPECT_EQ(memcached.read_line(), "VALUE k5 0 1");
}

TEST_F(Follow, TakesOverByCommandAndByStartingWithoutALeader) {
  for (const bool by_command : {true, false}) {
    std::filesystem::remove(config.pool);
    std::filesystem::remove(follower.config.pool);
    config.resp = {"127.0.0.1:0"};
    start_both();
    {
      RespClient c = resp();
      for (int i = 0; i < 100; ++i) c({"HSET", "h" + std::to_string(i), "f", "v"});
    }
    catch_up();
    stop();
    if (by_command) {
      RespClient c = follower.resp();
      EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
    } else {
      follower.stop();
      follower.config.follow.clear();
      follower.start();
    }
    {
      RespClient c = follower.resp();
      EXPECT_EQ(c({"SET", "mine", "1"}), "OK");
      // Collections of the new leader are no collections of the old one.
      for (int i = 0; i < 100; ++i) c({"HSET", "n" + std::to_string(i), "g", "w"});
      for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(c({"HGETALL", "h" + std::to_string(i)}), "[f v]");
        EXPECT_EQ(c({"HGETALL", "n" + std::to_string(i)}), "[g w]");
      }
      EXPECT_EQ(figure(c, "role"), "master");
    }
    follower.stop();
    // What it has now is its own.
    start();
    follower.config.follow = addresses.at("resp");
    EXPECT_THROW(follower.start(), Error);
    follower.stop();
    follower.config.follow_anew = true;
    follower.start();
    catch_up();
    EXPECT_EQ(follower.resp()({"EXISTS", "mine", "h1"}), "1");
    follower.stop();
    follower.config.follow_anew = false;
    stop();
  }
}

// Copies of the file that the leader had some time ago.
TEST_F(Follow, ALeaderThatWasPutBackIsRefused) {
  start_both();
  {
    RespClient c = resp();
    for (int i = 0; i < 200; ++i) c({"SET", "k" + std::to_string(i), "first"});
  }
  catch_up();
  stop();
  const std::string older = folder.file("older");
  std::filesystem::copy_file(config.pool, older);
  start();
  {
    RespClient c = resp();
    for (int i = 0; i < 200; ++i) c({"SET", "k" + std::to_string(i), "second"});
  }
  catch_up();
  stop();
  std::filesystem::copy_file(older, config.pool, std::filesystem::copy_options::overwrite_existing);
  start();
  {
    // Beyond what the follower has, under the same positions.
    RespClient c = resp();
    for (int n = 0; n < 5; ++n) {
      for (int i = 0; i < 200; ++i) c({"SET", "k" + std::to_string(i), "third"});
    }
  }
  RespClient c = follower.resp();
  await([&] { return figure(c, "follow_state") == "refused"; });
  EXPECT_NE(figure(c, "follow_reason").find("DIVERGED"), std::string::npos);
  EXPECT_EQ(c({"GET", "k7"}), "second");
  follower.stop();
  follower.config.follow_anew = true;
  follower.start();
  catch_up();
  EXPECT_EQ(follower.resp()({"GET", "k7"}), "third");
}

// What the leader removes makes room, although each part of its log is applied together with the
// note of how far it goes.
TEST_F(Follow, AFullPoolTakesRemovals) {
  follower.config.capacity_bytes = uint64_t{8} << 20;
  start_both();
  constexpr int kKeys = 1000;
  RespClient to = resp();
  for (int i = 0; i < kKeys; ++i) {
    to({"SET", "k" + std::to_string(i), std::string(400, 'x')});
    to({"HSET", "h" + std::to_string(i), "a", "1", "b", std::string(100, 'y')});
  }
  catch_up();
  follower.stop();
  fill_follower();
  follower.start();
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(to({"DEL", "k" + std::to_string(i)}), "1");
    ASSERT_EQ(to({"HDEL", "h" + std::to_string(i), "b"}), "1");
  }
  catch_up();
  RespClient from = follower.resp();
  EXPECT_EQ(from({"EXISTS", "k0", "k999", "h0"}), "1");
  EXPECT_EQ(from({"HLEN", "h999"}), "1");
}

TEST_F(Follow, AnotherLeaderIsRefused) {
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  stop();
  std::filesystem::remove(config.pool);
  start();
  RespClient c = follower.resp();
  await([&] { return figure(c, "follow_state") == "refused"; });
  EXPECT_NE(figure(c, "follow_reason").find("--follow-anew"), std::string::npos);
  EXPECT_EQ(c({"GET", "a"}), "1");
}

TEST_F(Follow, CopiesAnewWhenTheLogIsNotKept) {
  config.log_bytes = 1 << 20;
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  {
    RespClient c = resp();
    for (int i = 0; i < 10000; ++i) {
      c.write({"SET", "k" + std::to_string(i % 1000), std::string(1000, 'x') + std::to_string(i)});
    }
    for (int i = 0; i < 10000; ++i) c.read();
    c({"DEL", "a"});
  }
  follower.start();
  catch_up();
  RespClient c = follower.resp();
  EXPECT_EQ(figure(c, "follow_copies"), "1");
  EXPECT_EQ(c({"EXISTS", "a"}), "0");
  EXPECT_EQ(c({"DBSIZE"}), resp()({"DBSIZE"}));
}

TEST_F(Follow, BlocksOfOtherSizesAndAnIndexByHash) {
  config.capacity_bytes = uint64_t{1} << 30;
  follower.config.capacity_bytes = uint64_t{7} << 20;  // one partition, of small blocks
  follower.config.index = "hash";
  start_both();
  RespClient c = resp();
  catch_up();
  // More than goes into a batch of the follower's small blocks.
  c({"MULTI"});
  for (int i = 0; i < 300; ++i) c({"SET", "k" + std::to_string(i), std::string(150, 'a')});
  c({"SET", "long", std::string(300000, 'x')});
  EXPECT_EQ(c({"EXEC"}).substr(0, 7), "[OK OK ");
  c({"SET", "k1", "b"});
  catch_up();
  RespClient f = follower.resp();
  EXPECT_EQ(f({"GET", "k299"}), std::string(150, 'a'));
  EXPECT_EQ(f({"GET", "k1"}), "b");
  EXPECT_EQ(f({"STRLEN", "long"}), "300000");
}

TEST_F(Follow, APrefixThatIsRemovedFromThePool) {
  start_both();
  {
    RespClient c = resp();
    for (int i = 0; i < 500; ++i) c({"SET", "a" + std::to_string(i), "1"});
    for (int i = 0; i < 500; ++i) c({"SET", "b" + std::to_string(i), "1"});
  }
  catch_up();
  stop();
  {
    Pool pool = Pool::open(config.pool);
    Store store = Store::open(pool, "main");
    EXPECT_EQ(store.remove_prefix("a"), 500);
    store.put("a7", "again");
  }
  // What another program wrote is of the log, too.
  start();
  catch_up();
  RespClient c = follower.resp();
  EXPECT_EQ(c({"GET", "a7"}), "again");
  EXPECT_EQ(c({"EXISTS", "a8"}), "0");
  EXPECT_EQ(c({"DBSIZE"}), resp()({"DBSIZE"}));
  {
    const std::lock_guard lock(running->execution());
    running->keys()->finish_turn();
    running->store().remove_prefix("b");
  }
  catch_up();
  EXPECT_EQ(c({"EXISTS", "b8"}), "0");
  EXPECT_EQ(c({"GET", "a7"}), "again");
  EXPECT_EQ(figure(c, "follow_copies"), "1");
}

// However often the leader's pool was opened meanwhile: no follower knows those runs.
TEST_F(Follow, GoesOnAfterManyOpeningsOfTheLeader) {
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  stop();
  for (int i = 0; i < 150; ++i) {
    Pool pool = Pool::open(config.pool);
    Store::open(pool, "main");
  }
  start();
  resp()({"SET", "a", "2"});
  stop();
  start();
  follower.start();
  catch_up();
  RespClient c = follower.resp();
  EXPECT_EQ(c({"GET", "a"}), "2");
  EXPECT_EQ(figure(c, "follow_copies"), "0");
}

TEST_F(Follow, WithAPassword) {
  config.password = "secret";
  start();
  follower.config.follow = addresses.at("resp");
  follower.start();
  RespClient c = follower.resp();
  await([&] { return figure(c, "follow_reason").starts_with("NOAUTH"); });
  EXPECT_TRUE(c({"GET", "a"}).starts_with("-LOADING"));
  follower.stop();
  follower.config.follow_password = "secret";
  follower.start();
  RespClient to = resp();
  to({"AUTH", "secret"});
  to({"SET", "a", "1"});
  RespClient from = follower.resp();
  await([&] { return from({"GET", "a"}) == "1"; });
}

TEST_F(Follow, ExpiriesBeyondWhatTheApiCanSay) {
  start_both();
  RespClient to = resp();
  to({"SET", "k", "v"});
  EXPECT_EQ(to({"EXPIRE", "k", "9999999999"}), "1");
  to({"HSET", "h", "f", "v"});
  EXPECT_EQ(to({"EXPIRE", "h", "9999999999"}), "1");
  EXPECT_EQ(to({"HGET", "h", "f"}), "v");
  catch_up();
  RespClient from = follower.resp();
  EXPECT_EQ(from({"GET", "k"}), "v");
  EXPECT_EQ(from({"HGET", "h", "f"}), "v");
}

TEST_F(Follow, ALeaderThatEvictedInBetweenIsCopiedAnew) {
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  stop();
  config.evict = true;
  start();
  stop();
  config.evict = false;
  start();
  follower.start();
  catch_up();
  RespClient c = follower.resp();
  EXPECT_EQ(figure(c, "follow_copies"), "1");
}

TEST_F(Follow, AUnitLargerThanRepliesMayBe) {
  config.output_bytes_max = 1 << 20;
  start_both();
  RespClient to = resp();
  catch_up();
  to({"MULTI"});
  for (int i = 0; i < 5; ++i) to({"SETRANGE", "b" + std::to_string(i), "1000000", "x"});
  to({"EXEC"});
  catch_up();
  EXPECT_EQ(follower.resp()({"STRLEN", "b4"}), "1000001");
}

// What the leader would have to hold for a follower is bounded: of what is larger it is told by a
// copy.
TEST_F(Follow, AUnitLargerThanTheLeaderHoldsIsCopied) {
  config.follower_output_max = 8 << 20;
  config.capacity_bytes = follower.config.capacity_bytes = uint64_t{256} << 20;
  start_both();
  RespClient to = resp();
  to({"SET", "a", "1"});
  catch_up();
  const auto write_together = [&](int values) {
    to({"MULTI"});
    for (int i = 0; i < values; ++i) to({"SETRANGE", "b" + std::to_string(i), "1000000", "x"});
    to({"SET", "a", std::to_string(values)});
    to({"EXEC"});
  };
  {
    RespClient from = follower.resp();
    write_together(7);
    catch_up();
    EXPECT_EQ(figure(from, "follow_copies"), "1");
    write_together(9);
    catch_up();
    EXPECT_EQ(figure(from, "follow_copies"), "2");
    EXPECT_EQ(from({"GET", "a"}), "9");
    EXPECT_EQ(from({"STRLEN", "b8"}), "1000001");
  }
  // It goes on by the log, in which several units are told in several pieces.
  follower.stop();
  for (int i = 0; i < 5; ++i) write_together(3);
  follower.start();
  catch_up();
  RespClient from = follower.resp();
  EXPECT_EQ(figure(from, "follow_copies"), "0") << figure(from, "follow_reason");
  EXPECT_EQ(from({"GET", "a"}), "3");
}

TEST_F(Follow, AJournalThatCannotBeFinishedOrIsOfAnotherTime) {
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  // The record of a journal whose piece is not there, behind the state of the pool or of another
  // run.
  const auto write_journal = [&](bool is_stale) {
    Pool pool = Pool::open(follower.config.pool);
    {
      Store store = Store::open(pool, follower.config.name);
      server::FollowState state =
          server::FollowState::decode(store.get(server::Keyspace::local_key("s")).value());
      if (is_stale) state.run += 2;
      const uint64_t pieces = 1;
      const std::string record(reinterpret_cast<const char*>(&pieces), sizeof pieces);
      store.put(server::Keyspace::local_key("c"), record + state.encode());
    }
    pool.close();
  };
  write_journal(true);
  follower.start();
  resp()({"SET", "a", "2"});
  catch_up();
  EXPECT_EQ(follower.resp()({"GET", "a"}), "2");
  follower.stop();
  write_journal(false);
  follower.start();
  {
    RespClient c = follower.resp();
    await([&] { return figure(c, "follow_state") == "failed"; });
    EXPECT_TRUE(c({"GET", "a"}).starts_with("-LOADING"));
    EXPECT_TRUE(c({"REPLICAOF", "NO", "ONE"}).starts_with("-ERR "));
  }
  follower.stop();
  const std::string leader = std::exchange(follower.config.follow, "");
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow = leader;
  follower.config.follow_anew = true;
  follower.start();
  catch_up();
  {
    RespClient c = follower.resp();
    EXPECT_EQ(c({"GET", "a"}), "2");
    EXPECT_EQ(figure(c, "follow_copies"), "1");
    // What has taken over is not given up because the option still stands there.
    EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
    EXPECT_EQ(c({"SET", "mine", "1"}), "OK");
  }
  follower.stop();
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow_anew = false;
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow_anew = true;
  follower.start();
  catch_up();
  EXPECT_EQ(follower.resp()({"EXISTS", "mine"}), "0");
}

// The note of it is the server's own, and no key.
TEST_F(Follow, AFlushKeepsTheNoteOfATakeover) {
  follower.config.follow_anew = true;
  follower.config.index = "hash";
  start_both();
  catch_up();
  {
    RespClient c = follower.resp();
    EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
    EXPECT_EQ(c({"FLUSHALL"}), "OK");
    EXPECT_EQ(c({"DBSIZE"}), "0");
    EXPECT_EQ(c({"SET", "mine", "1"}), "OK");
  }
  follower.stop();
  EXPECT_THROW(follower.start(), Error);
}

TEST_F(Follow, TwoWithTheSameNumber) {
  start();
  RespClient one = resp();
  EXPECT_TRUE(one({"PERDURE.SYNC", "HELLO", "1", "77"}).starts_with("["));
  {
    RespClient other = resp();
    EXPECT_NE(other({"PERDURE.SYNC", "HELLO", "1", "77"}).find("a copy of the other's pool"),
              std::string::npos);
    EXPECT_TRUE(other({"PERDURE.SYNC", "HELLO", "1", "78"}).starts_with("["));
  }
  // Nothing is kept of the number that was only said.
  await([&] {
    return one({"INFO", "replication"}).find("number=0000000000000078") == std::string::npos;
  });
}

// Requests of PERDURE.SYNC that make no sense.
TEST_F(Follow, CarelessFollowers) {
  start();
  RespClient c = resp();
  EXPECT_TRUE(c({"PERDURE.SYNC", "MORE", "1"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "HELLO", "9", "1"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "HELLO", "1", "xyz"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "HELLO", "1", "7"}).starts_with("[store "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "MORE", "1"}).starts_with("-ERR "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "ACK", "1"}).starts_with("-COPYANEW "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "FOLLOW", "1", "1", "1"}).starts_with("-COPYANEW "));
  EXPECT_TRUE(c({"PERDURE.SYNC", "HELLO", "1", "7"}).starts_with("[store "));
  EXPECT_FALSE(c({"PERDURE.SYNC", "COPY"}).starts_with("-"));
  EXPECT_FALSE(c({"PERDURE.SYNC", "COPY"}).starts_with("-"));
  EXPECT_FALSE(c({"PERDURE.SYNC", "MORE", "-5"}).starts_with("-"));
  const std::string far(4 * 8, '\xff');
  EXPECT_TRUE(c({"PERDURE.SYNC", "ACK", far + far + far + far}).starts_with("-ERR "));
  // The same number once more: only when the first one is it no longer.
  RespClient again = resp();
  EXPECT_TRUE(again({"PERDURE.SYNC", "HELLO", "1", "7"}).starts_with("-ERR "));
  EXPECT_EQ(c({"RESET"}), "RESET");
  EXPECT_TRUE(again({"PERDURE.SYNC", "HELLO", "1", "7"}).starts_with("[store "));
  EXPECT_TRUE(again({"PERDURE.SYNC", "FORGET", "7"}).starts_with("-ERR "));
  EXPECT_EQ(again({"RESET"}), "RESET");
  EXPECT_EQ(again({"PERDURE.SYNC", "FORGET", "7"}), "OK");
  EXPECT_TRUE(again({"PERDURE.SYNC", "FORGET", "8"}).starts_with("-ERR "));
  EXPECT_EQ(again({"PING"}), "PONG");
}

}  // namespace
}  // namespace perdure::test
