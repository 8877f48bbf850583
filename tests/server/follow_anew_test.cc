// What a follower has when a copy is made anew, when there is no room, and when it takes over.
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "perdure/error.h"
#include "perdure/pool.h"
#include "perdure/store.h"
#include "server/address.h"
#include "server/follow_state.h"
#include "server/following.h"
#include "server/keyspace.h"
#include "server/replica_writer.h"
#include "server/sync_client.h"
#include "store/store_impl.h"
#include "support/errors.h"
#include "support/failing_medium.h"
#include "support/random.h"
#include "support/scale.h"

namespace perdure::test {
namespace {

using server::FollowState;
using server::Keyspace;
using server::ReplicaWriter;

// Stands between a follower and its leader, who is gone once so many bytes of its answers have
// passed.
class Bridge {
 public:
  explicit Bridge(std::string leader) : leader_(std::move(leader)) {
    listener_ = server::listen_on(server::parse_address("127.0.0.1:0"), false);
    address_ = server::bound_address(listener_).text();
    thread_ = std::thread([this] { run(); });
  }
  ~Bridge() {
    ends_ = true;
    thread_.join();
    ::close(listener_);
  }
  const std::string& address() const { return address_; }
  void let_pass(int64_t bytes) { left_ = bytes; }
  bool is_used_up() const { return left_ <= 0; }

 private:
  void run() {
    while (!ends_) {
      pollfd one{listener_, POLLIN, 0};
      if (::poll(&one, 1, 10) <= 0) continue;
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) continue;
      if (left_ > 0) pass(client);
      ::close(client);
    }
  }
  void pass(int client) {
    Socket leader(leader_);
    std::vector<char> some(1 << 16);
    const auto forward = [&](int from, int to) {
      const ssize_t got = ::recv(from, some.data(), some.size(), MSG_DONTWAIT);
      if (got == 0) return int64_t{-1};
      for (ssize_t at = 0; at < got;) {
        const ssize_t sent =
            ::send(to, some.data() + at, static_cast<size_t>(got - at), MSG_NOSIGNAL);
        if (sent <= 0) {
          pollfd room{to, POLLOUT, 0};
          if (ends_ || ::poll(&room, 1, 1000) <= 0) return int64_t{-1};
          continue;
        }
        at += sent;
      }
      return std::max<int64_t>(got, 0);
    };
    while (!ends_ && left_ > 0) {
      std::array<pollfd, 2> both{pollfd{client, POLLIN, 0}, pollfd{leader.fd(), POLLIN, 0}};
      ::poll(both.data(), both.size(), 10);
      if (both[0].revents != 0 && forward(client, leader.fd()) < 0) return;
      if (both[1].revents == 0) continue;
      const int64_t passed = forward(leader.fd(), client);
      if (passed < 0) return;
      left_ -= passed;
    }
  }

  const std::string leader_;
  int listener_ = -1;
  std::string address_;
  std::atomic<bool> ends_{false};
  std::atomic<int64_t> left_{int64_t{1} << 40};
  std::thread thread_;
};

class FollowAnew : public Follow {
 protected:
  static constexpr int kKeys = 3000;

  // The follower has all of this; then it is away until the leader's log does not lead there any
  // more.
  void fall_behind(int value_bytes) {
    config.log_bytes = 1 << 20;
    start_both();
    write(0, value_bytes);
    catch_up();
    follower.stop();
    for (int round = 1; round < 4; ++round) write(round, value_bytes);
  }
  void write(int round, int value_bytes) {
    RespClient c = resp();
    // The first ones while it follows: no more at a time than the log keeps for it.
    const int group = round == 0 ? 100 : kKeys;
    for (int begin = 0; begin < kKeys; begin += group) {
      const int end = std::min(begin + group, kKeys);
      for (int i = begin; i < end; ++i) {
        c.write({"SET", key(round == 0 ? i : i + kKeys / 2), value(round, value_bytes)});
      }
      for (int i = begin; i < end; ++i) c.read();
      if (round == 0) {
        ASSERT_EQ(c({"WAIT", "1", "0"}), "1");
      }
    }
  }
  static std::string key(int i) { return "k" + std::to_string(i); }
  static std::string value(int round, int bytes) {
    return std::to_string(round) + std::string(static_cast<size_t>(bytes), 'x');
  }
  void expect_old(RespClient& c, int value_bytes) {
    EXPECT_EQ(c({"GET", key(0)}), value(0, value_bytes));
    EXPECT_EQ(c({"GET", key(kKeys - 1)}), value(0, value_bytes));
    EXPECT_EQ(c({"EXISTS", key(kKeys)}), "0");
    EXPECT_EQ(c({"DBSIZE"}), std::to_string(kKeys));
  }
  void expect_new(RespClient& c, int value_bytes) {
    EXPECT_EQ(c({"GET", key(0)}), value(0, value_bytes));
    EXPECT_EQ(c({"GET", key(kKeys - 1)}), value(3, value_bytes));
    EXPECT_EQ(c({"GET", key(kKeys + 1)}), value(3, value_bytes));
  }
  // How many records there are of the server's own.
  uint64_t own_records(const std::string& pool_path) const {
    Pool pool = Pool::open(pool_path);
    const Store store = Store::open(pool, config.name);
    uint64_t count = 0;
    store.for_each(
        [&](std::string_view raw, std::string_view) { count += Keyspace::is_local(raw); });
    return count;
  }
};

TEST_F(FollowAnew, WhatIsThereIsServedUntilTheNewCopyIsWhole) {
  for (const char* index : {"ordered", "hash"}) {
    SCOPED_TRACE(index);
    std::filesystem::remove(config.pool);
    std::filesystem::remove(follower.config.pool);
    config.resp = {"127.0.0.1:0"};
    follower.config.index = index;
    fall_behind(700);
    Bridge bridge(addresses.at("resp"));
    follower.config.follow = bridge.address();
    // The leader is gone in the midst of the copy, twice, the follower being started anew in
    // between.
    for (int i = 0; i < 2; ++i) {
      bridge.let_pass(1'500'000);
      follower.start();
      RespClient c = follower.resp();
      // It has begun with it: the old one is there, and served.
      await([&] { return bridge.is_used_up() && figure(c, "follow_state") == "connecting"; });
      expect_old(c, 700);
      follower.stop();
      EXPECT_GT(own_records(follower.config.pool), 100U);
    }
    // So it may even take over; what is there of the new one goes.
    const std::string other = folder.file("other");
    std::filesystem::copy_file(follower.config.pool, other,
                               std::filesystem::copy_options::overwrite_existing);
    for (const bool by_command : {true, false}) {
      TestedServer heir;
      heir.config = follower.config;
      heir.config.pool = by_command ? follower.config.pool : other;
      if (!by_command) heir.config.follow.clear();
      const std::string kept = read_file(heir.config.pool);
      heir.start();
      RespClient c = heir.resp();
      if (by_command) {
        EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
      }
      EXPECT_EQ(c({"SET", key(0), value(0, 700)}), "OK");
      expect_old(c, 700);
      heir.stop();
      if (by_command) {
        // What it had no time for is done by the next start.
        const std::string leader = std::exchange(heir.config.follow, "");
        heir.start();
        heir.stop();
        heir.config.follow = leader;
      }
      EXPECT_EQ(own_records(heir.config.pool), 0U);
      write_file(heir.config.pool, kept);
    }
    bridge.let_pass(int64_t{1} << 40);
    follower.start();
    catch_up();
    {
      RespClient c = follower.resp();
      expect_new(c, 700);
      EXPECT_EQ(figure(c, "follow_copies"), "1");
      EXPECT_EQ(c({"DBSIZE"}), resp()({"DBSIZE"}));
    }
    follower.stop();
    EXPECT_EQ(own_records(follower.config.pool), 2U) << "the note, and its mark";
    stop();
  }
}

TEST_F(FollowAnew, WithoutRoomForBothTheOldOneStays) {
  follower.config.capacity_bytes = uint64_t{8} << 20;
  fall_behind(1000);  // some 4 MB, then 6
  follower.start();
  {
    RespClient c = follower.resp();
    await([&] { return figure(c, "follow_state") == "refused"; });
    EXPECT_NE(figure(c, "follow_reason").find("--follow-anew"), std::string::npos);
    expect_old(c, 1000);
  }
  follower.stop();
  EXPECT_LE(own_records(follower.config.pool), 2U);
  follower.config.follow_anew = true;
  follower.start();
  catch_up();
  RespClient c = follower.resp();
  expect_new(c, 1000);
}

// A record of the old one whose removal cannot be written: nothing of the old one goes, until that
// is asked for.
TEST_F(FollowAnew, ADamagedOldOneIsServedUntilItIsGivenUp) {
  for (const char* const index : {"ordered", "hash"}) {
    SCOPED_TRACE(index);
    std::filesystem::remove(config.pool);
    std::filesystem::remove(follower.config.pool);
    config.resp = {"127.0.0.1:0"};
    config.log_bytes = 1 << 20;
    follower.config.index = index;
    follower.config.follow_anew = false;
    start_both();
    const std::string mark = "DAMAGEMEDAMAGEME";
    write(0, 700);
    resp()({"SET", "bad", mark});
    catch_up();
    follower.stop();
    for (int round = 1; round < 4; ++round) write(round, 700);
    std::string image = read_file(follower.config.pool);
    ASSERT_NE(image.find(mark), std::string::npos);
    for (size_t at = 0; (at = image.find(mark, at)) != std::string::npos;) image[at + 8] ^= 1;
    write_file(follower.config.pool, image);
    for (int i = 0; i < 2; ++i) {
      follower.start();
      RespClient c = follower.resp();
      await([&] { return figure(c, "follow_state") == "refused"; });
      EXPECT_NE(figure(c, "follow_reason").find("damaged"), std::string::npos);
      EXPECT_EQ(c({"GET", key(0)}), value(0, 700));
      EXPECT_EQ(c({"GET", key(kKeys - 1)}), value(0, 700));
      follower.stop();
    }
    // It may be given up, and taken over from.
    const std::string kept = read_file(follower.config.pool);
    follower.start();
    EXPECT_EQ(follower.resp()({"REPLICAOF", "NO", "ONE"}), "OK");
    EXPECT_EQ(follower.resp()({"GET", key(0)}), value(0, 700));
    follower.stop();
    write_file(follower.config.pool, kept);
    follower.config.follow_anew = true;
    follower.start();
    {
      RespClient c = follower.resp();
      await([&] { return figure(c, "follow_state") == "failed"; });
      EXPECT_NE(figure(c, "follow_reason").find("start this server again"), std::string::npos);
    }
    follower.stop();
    follower.start();
    catch_up();
    {
      RespClient c = follower.resp();
      expect_new(c, 700);
      EXPECT_EQ(c({"GET", "bad"}), mark);
      EXPECT_EQ(c({"DBSIZE"}), resp()({"DBSIZE"}));
    }
    follower.stop();
    stop();
  }
}

// At each persist of a copy that is made beside another and takes its place: power fails, whatever
// is on the medium then. One of the two is there, wholly, with its positions.
TEST(FollowPlacing, APowerFailureLeavesTheOldOrTheNew) {
  using Model = std::map<std::string, std::string>;
  for (const StoreIndex index : {StoreIndex::kOrdered, StoreIndex::kHash}) {
    const TempDir folder;
    const std::string path = folder.file("pool");
    PoolOptions options;
    options.capacity_bytes = uint64_t{12} << 20;
    options.growth_bytes = uint64_t{256} << 10;
    options.force_domain = true;
    options.domain = Domain::kLine;
    const StoreOptions made{.index = index, .partitions = 3, .block_bytes = 4096};
    Random random(base_seed());
    Model old_one;
    Model new_one;
    std::string chunk;
    for (int i = 0; i < 60; ++i) {
      const std::string key = fmt::format("key{:02}", i);
      if (i < 40) old_one[key] = "old" + std::to_string(i);
      if (i < 20) continue;
      new_one[key] = i % 9 == 0 ? std::string(3000, 'n') : "new" + std::to_string(i);
      server::append_entry(chunk, {.number = store::kNoExpiry, .key = key, .value = new_one[key]});
    }
    new_one[""] = "of the empty key";
    server::append_entry(chunk, {.number = store::kNoExpiry, .key = "", .value = new_one[""]});
    const FollowState before{.status = FollowState::Status::kFollowing,
                             .follower = 7,
                             .identity = 8,
                             .run = 9,
                             .positions = {10, 11}};
    {
      Pool pool = Pool::create(path, options);
      const auto store = store::StoreImpl::create(pool, "store", made);
      Keyspace keys(*store, 1);
      ReplicaWriter writer(keys);
      for (const auto& [key, value] : old_one) {
        keys.turn().write({.key = key, .value = value}, keys.now_ms());
      }
      writer.write_state(before);
    }
    const std::string image = read_file(path);
    // Goes on from what is there. Returns which one it has then.
    const auto settle = [](store::StoreImpl& store) {
      Keyspace keys(store, 1);
      ReplicaWriter writer(keys);
      FollowState state = writer.read_state();
      ReplicaWriter::Sweep sweep;
      if (state.is_placing()) {
        while (writer.place_some(state, sweep)) keys.finish_turn();
      } else if (writer.has_staged()) {
        while (writer.drop_staged_some(sweep)) keys.finish_turn();
      }
      keys.finish_turn();
      return state;
    };
    const auto run = [&](store::StoreImpl& store) {
      Keyspace keys(store, 1);
      ReplicaWriter writer(keys);
      writer.begin_staging();
      for (std::string_view rest = chunk; !rest.empty(); keys.finish_turn())
        writer.stage_some(rest);
      FollowState state = before;
      state.run = 99;
      state.positions = {20, 21};
      writer.begin_placing(state);
      ReplicaWriter::Sweep sweep;
      while (writer.place_some(state, sweep)) keys.finish_turn();
    };
    using Image = FailingMedium::Image;
    constexpr Image kImages[] = {Image::kLeast, Image::kMixed, Image::kAll};
    const auto fails_at = [&](uint64_t n, auto work) {
      FailingMedium medium(path, Domain::kLine);
      medium.begin();
      medium.refuse_here(n, true);
      try {
        Pool pool = Pool::open(path, options);
        const auto store = store::StoreImpl::open(pool, "store", {.recovery_threads = 1});
        work(*store);
        if (!medium.refused()) return false;
      } catch (const Error& error) {
        EXPECT_TRUE(medium.refused()) << error.what();
      }
      std::filesystem::rename(medium.make_image(kImages[random.below(3)], random.next()), path);
      return true;
    };
    int olds = 0;
    int news = 0;
    uint64_t n = 0;
    // Several images of each: which lines of what was not fenced are there differs.
    constexpr uint64_t kImagesOfEach = std::max<uint64_t>(2, scaled(5));
    for (bool failed = true; failed && !testing::Test::HasFailure(); ++n) {
      SCOPED_TRACE(n / kImagesOfEach);
      write_file(path, image);
      failed = fails_at(n / kImagesOfEach, run);
      for (int again = 0; failed && again < 2 && random.chance(40); ++again) {
        fails_at(random.below(30), settle);
      }
      Pool pool = Pool::open(path, options);
      const auto store = store::StoreImpl::open(pool, "store", {});
      const FollowState state = settle(*store);
      Model found;
      store->for_each([&](std::string_view key, std::string_view value) {
        if (!Keyspace::is_local(key)) found.emplace(key, value);
      });
      ASSERT_EQ(state.status, FollowState::Status::kFollowing);
      const bool is_old = state.positions == before.positions;
      ++(is_old ? olds : news);
      ASSERT_EQ(found, is_old ? old_one : new_one);
      ASSERT_EQ(state.run, is_old ? 9U : 99U);
      EXPECT_FALSE(ReplicaWriter(*std::make_unique<Keyspace>(*store, 1)).has_staged());
    }
    EXPECT_GT(olds, 10);
    EXPECT_GT(news, 10);
  }
}

TEST_F(FollowAnew, APoolWhoseNoteIsDamagedIsNotServed) {
  config.capacity_bytes = follower.config.capacity_bytes = uint64_t{256} << 20;  // 16 partitions
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  const std::string leader = std::exchange(follower.config.follow, "");
  static std::atomic<int> unreadable{-1};
  static std::atomic<int> also{-1};
  {
    Pool pool = Pool::open(follower.config.pool);
    const auto store = store::StoreImpl::open(pool, config.name, {});
    const std::string key = Keyspace::local_key(Keyspace::kFollowState);
    unreadable = static_cast<int>(store->place_of(key).number);
    const Keyspace keys(*store, 1);
    also = static_cast<int>(store->place_of(keys.follow_mark()).number);
  }
  ASSERT_NE(unreadable, also);
  const auto hide = [](bool both) {
    store::StoreImpl::before_recovery =
        both ? [](uint32_t number) {
          if (static_cast<int>(number) == unreadable || static_cast<int>(number) == also) {
            throw Error(ErrorCode::kCorrupt, "of the test");
          }
        }
             : [](uint32_t number) {
                 if (static_cast<int>(number) == unreadable) {
                   throw Error(ErrorCode::kCorrupt, "of the test");
                 }
               };
  };
  const auto code_of_start = [&](TestedServer& server) {
    std::optional<ErrorCode> code;
    try {
      server.start();
    } catch (const Error& error) {
      code = error.code();
    }
    server.stop();
    return code;
  };
  // All of its partition; and with it the mark that it is there.
  for (const bool both : {false, true}) {
    hide(both);
    EXPECT_EQ(code_of_start(follower), ErrorCode::kCorrupt);
  }
  // A pool that has followed nobody serves what can be read.
  hide(false);
  stop();
  EXPECT_EQ(code_of_start(*this), std::nullopt);
  store::StoreImpl::before_recovery = nullptr;
  {
    Pool pool = Pool::open(follower.config.pool);
    {
      Store store = Store::open(pool, config.name);
      store.put(Keyspace::local_key(Keyspace::kFollowState), "no note");
    }
    pool.close();
  }
  EXPECT_EQ(code_of_start(follower), ErrorCode::kCorrupt);
  follower.config.follow = leader;
  EXPECT_EQ(code_of_start(follower), ErrorCode::kCorrupt);
}

TEST_F(FollowAnew, AChunkThatIsTooLargeIsRefused) {
  follower.config.follow_chunk_max = uint64_t{8} << 20;
  start_both();
  RespClient to = resp();
  to({"SET", "a", "1"});
  catch_up();
  to({"MULTI"});
  for (int i = 0; i < 5; ++i) to({"SET", "long" + std::to_string(i), std::string(2'000'000, 'x')});
  to({"EXEC"});
  {
    RespClient c = follower.resp();
    await([&] { return figure(c, "follow_state") == "failed"; });
    EXPECT_NE(figure(c, "follow_reason").find("follow-chunk-max"), std::string::npos);
    EXPECT_EQ(c({"GET", "a"}), "1");
  }
  follower.stop();
  follower.config.follow_chunk_max = uint64_t{16} << 20;
  follower.start();
  catch_up();
  EXPECT_EQ(follower.resp()({"STRLEN", "long4"}), "2000000");
}

// Answers that claim to be longer than anything that is there.
TEST_F(FollowAnew, AnAnswerThatClaimsTooMuchTakesNoMemory) {
  for (const char* const claim : {"$4294967295\r\n", "$99999999999\r\n", "$1099511627777\r\n",
                                  "$18446744073709551615\r\n", "$-1\r\n"}) {
    std::array<int, 2> both{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, both.data()), 0);
    server::SyncClient client(both[0], both[1]);
    ASSERT_GT(::send(both[1], claim, std::string_view(claim).size(), 0), 0);
    EXPECT_THROW(client.read_chunk(uint64_t{8} << 20), Error) << claim;
    ::close(both[1]);
  }
}

TEST_F(FollowAnew, TakesOverWithAFullPool) {
  follower.config.capacity_bytes = uint64_t{8} << 20;
  follower.config.follow_anew = true;
  start_both();
  RespClient to = resp();
  to({"SET", "a", "1"});
  catch_up();
  for (int i = 0; i < 60'000; ++i) to.write({"SET", key(i), std::string(200, 'x')});
  for (int i = 0; i < 60'000; ++i) to.read();
  {
    RespClient c = follower.resp();
    await([&] { return figure(c, "follow_state") == "failed"; });
  }
  follower.stop();
  stop();
  fill_follower();
  follower.start();
  {
    RespClient c = follower.resp();
    EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
    EXPECT_TRUE(c({"SET", "mine", std::string(100'000, 'x')}).starts_with("-OOM"));
    EXPECT_EQ(c({"DEL", "a"}), "1");
    EXPECT_EQ(figure(c, "role"), "master");
  }
  // For good: neither given up nor a follower again.
  follower.stop();
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow.clear();
  follower.start();
  EXPECT_EQ(follower.resp()({"EXISTS", "a", key(0)}), "1");
}

// Room for the journal of a large unit, but not for what it tells: it is not begun.
TEST_F(FollowAnew, AUnitForWhichThereIsNotRoomTwiceIsNotBegun) {
  follower.config.capacity_bytes = uint64_t{7} << 20;  // one partition, of small blocks
  start_both();
  RespClient to = resp();
  to({"SET", "a", "1"});
  catch_up();
  // Some 3.8 MB, of more short values than go into a block.
  to({"MULTI"});
  for (int i = 0; i < 3; ++i) to({"SET", "long" + std::to_string(i), std::string(1'250'000, 'x')});
  for (int i = 0; i < 300; ++i) to({"SET", key(i), std::string(150, 'x')});
  EXPECT_TRUE(to({"EXEC"}).starts_with("[OK "));
  RespClient c = follower.resp();
  await([&] { return figure(c, "follow_state") == "failed"; });
  EXPECT_EQ(c({"GET", "a"}), "1");
  EXPECT_EQ(c({"EXISTS", "long0", key(0)}), "0");
  stop();
  EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
  EXPECT_EQ(c({"SET", "long", std::string(4'000'000, 'x')}), "OK") << "the journal's room is free";
}

TEST_F(FollowAnew, IsNotObeyedAfterATakeoverByAStart) {
  follower.config.follow_anew = true;
  start_both();
  resp()({"SET", "a", "1"});
  catch_up();
  follower.stop();
  const std::string leader = std::exchange(follower.config.follow, "");
  // The option still stands in the file.
  follower.start();
  EXPECT_EQ(follower.resp()({"SET", "mine", "1"}), "OK");
  follower.stop();
  follower.config.follow = leader;
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow.clear();
  follower.start();
  EXPECT_EQ(follower.resp()({"GET", "mine"}), "1");
  follower.stop();
  // A start without it, as a leader: from then on it is what somebody says.
  follower.config.follow_anew = false;
  follower.start();
  EXPECT_EQ(follower.resp()({"GET", "mine"}), "1");
  follower.stop();
  follower.config.follow = leader;
  EXPECT_THROW(follower.start(), Error);
  follower.stop();
  follower.config.follow_anew = true;
  follower.start();
  catch_up();
  EXPECT_EQ(follower.resp()({"EXISTS", "mine"}), "0");
}

// Before it has anything of the leader.
TEST_F(FollowAnew, IsNotObeyedAfterATakeoverBeforeTheFirstCopy) {
  follower.start();
  follower.resp()({"SET", "mine", "1"});
  follower.stop();
  follower.config.follow = "127.0.0.1:1";  // nobody is there
  follower.config.follow_anew = true;
  follower.start();
  {
    RespClient c = follower.resp();
    EXPECT_EQ(c({"REPLICAOF", "NO", "ONE"}), "OK");
    EXPECT_EQ(c({"GET", "mine"}), "1");
  }
  follower.stop();
  EXPECT_THROW(follower.start(), Error);
}

}  // namespace
}  // namespace perdure::test
