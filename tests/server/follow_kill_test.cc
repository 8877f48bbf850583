// Leader and follower are killed under load, again and again; at any moment the follower has what
// the leader had written, of each client in order.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include "perdure/error.h"
#include "server/address.h"
#include "server/fixture.h"
#include "support/child.h"
#include "support/random.h"

namespace perdure::test {
namespace {

constexpr int kMany = 120;  // writes of 300 bytes in a transaction

int follow_rounds() {
  const char* text = std::getenv("PERDURE_KILL_ROUNDS");
  return text != nullptr ? std::max(std::atoi(text), 1) : 6;
}

// Starts servers in processes of their own, and kills them. A process without other threads does
// the forking.
class Servers {
 public:
  explicit Servers(std::vector<server::Config> configs) {
    if (::pipe2(orders_, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    child_ = std::make_unique<Child>([this, configs = std::move(configs)](int out) {
      std::vector<pid_t> pids(configs.size(), 0);
      for (Order order{}; ::read(orders_[0], &order, sizeof order) == sizeof order;) {
        pid_t& pid = pids[order.which];
        if (order.kills) {
          if (pid > 0) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
          }
          pid = 0;
        } else {
          pid = ::fork();
          if (pid == 0) serve(configs[order.which], out);
          continue;  // it answers itself
        }
        const char done = 'k';
        send(out, &done, 1);
      }
    });
    ::close(orders_[0]);
  }
  ~Servers() {
    for (int i = 0; i < 2; ++i) kill(i);
    ::close(orders_[1]);
  }
  void start(int which) { order({.which = which, .kills = false}, 's'); }
  void kill(int which) { order({.which = which, .kills = true}, 'k'); }

 private:
  struct Order {
    int which;
    bool kills;
  };
  void order(Order order, char wanted) {
    char done = 0;
    if (::write(orders_[1], &order, sizeof order) != sizeof order || !child_->receive(&done, 1) ||
        done != wanted) {
      throw std::runtime_error("a server does not start");
    }
  }
  [[noreturn]] static void serve(const server::Config& config, int out) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char done = 's';
    try {
      server::Server running(config);
      running.start([](const std::string&) {});
      send(out, &done, 1);
      std::this_thread::sleep_for(std::chrono::minutes(5));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      done = 'f';
      send(out, &done, 1);
    }
    ::_exit(1);
  }

  int orders_[2];
  std::unique_ptr<Child> child_;
};

// An address that nobody has, nor the kernel gives to who connects.
std::string free_address(std::mt19937_64& random) {
  for (;;) {
    const std::string text = "127.0.0.1:" + std::to_string(20000 + random() % 10000);
    try {
      ::close(server::listen_on(server::parse_address(text), false));
      return text;
    } catch (const Error&) {
      // Somebody has it.
    }
  }
}

// What one client was told: its last number.
struct Progress {
  uint64_t answered = 0;
  uint64_t asked = 0;
};

// Writes the number n, in order: pairs that a transaction keeps equal, over several partitions;
// fields of a hash, whose length tells their number; a list whose elements come and go; keys that
// go again.
void write_numbers(const std::string& address, int number, uint64_t first, Progress& progress) {
  const std::string own = "c" + std::to_string(number) + ":";
  try {
    RespClient c(address);
    for (uint64_t n = first;; ++n) {
      progress.asked = n;
      const std::string value = std::to_string(n);
      std::string requests = RespClient::encode({"MULTI"});
      for (int i = 0; i < 5; ++i) {
        requests += RespClient::encode({"SET", own + "t" + std::to_string(i), value});
      }
      requests += RespClient::encode({"HSET", own + "h", "f" + std::to_string(n % 30), value});
      requests += RespClient::encode({"RPUSH", own + "l", value});
      if (n % 70 == 0) requests += RespClient::encode({"DEL", own + "l", "absent"});
      const int many = n % 11 == 0 ? kMany : 0;
      for (int i = 0; i < many; ++i) {
        requests += RespClient::encode(
            {"SET", own + "m" + std::to_string(i), value + std::string(300, 'm')});
      }
      requests += RespClient::encode({"EXEC"});
      requests += RespClient::encode({"SET", own + "s" + std::to_string(n % 40), value});
      requests += RespClient::encode({"DEL", own + "s" + std::to_string((n + 1) % 40)});
      if (n % 50 == 0)
        requests += RespClient::encode({"SET", own + "long", std::string(20000, 'x') + value});
      c.send(requests);
      const int replies = 1 + 5 + 2 + (n % 70 == 0 ? 1 : 0) + many + 1 + 2 + (n % 50 == 0 ? 1 : 0);
      for (int i = 0; i < replies; ++i) {
        if (c.read().kind == '-') std::abort();
      }
      progress.answered = n;
    }
  } catch (const std::exception&) {
    // The server is gone.
  }
}

// What a follower shows at any time: transactions wholly.
void read_pairs(const std::string& address, const std::atomic<bool>& ends, int clients) {
  try {
    RespClient c(address);
    while (!ends) {
      for (int i = 0; i < clients; ++i) {
        const std::string own = "c" + std::to_string(i) + ":t";
        const Reply all = c.call({"MGET", own + "0", own + "1", own + "2", own + "3", own + "4"});
        if (all.kind == '-') {
          // While it copies.
          EXPECT_TRUE(all.text.starts_with("LOADING")) << all.text;
          continue;
        }
        for (const Reply& one : all.elements) {
          EXPECT_EQ(one.to_string(), all.elements[0].to_string());
        }
        const std::string many = "c" + std::to_string(i) + ":m";
        const Reply ends_of = c.call({"MGET", many + "0", many + std::to_string(kMany - 1)});
        if (ends_of.kind == '-') continue;
        EXPECT_EQ(ends_of.elements[0].to_string(), ends_of.elements[1].to_string());
      }
    }
  } catch (const std::exception&) {
    // The follower is gone.
  }
}

std::string dump(RespClient& c) {
  std::map<std::string, std::string> all;
  std::string cursor = "0";
  do {
    const Reply page = c.call({"SCAN", cursor, "COUNT", "500"});
    if (page.kind == '-') return page.text;
    cursor = page.elements[0].text;
    for (const Reply& key : page.elements[1].elements) {
      const std::string type = c({"TYPE", key.text});
      std::string value;
      if (type == "string") {
        value = c({"GET", key.text});
      } else if (type == "hash") {
        value = c({"HGETALL", key.text}) + c({"HLEN", key.text});
      } else if (type == "list") {
        value = c({"LRANGE", key.text, "0", "-1"}) + c({"LLEN", key.text});
      }
      all[key.text] = type + " " + value;
    }
  } while (cursor != "0");
  std::string text;
  for (const auto& [key, value] : all) text += key + "=" + value + "\n";
  return text;
}

std::string figure_of(RespClient& c, const std::string& name) {
  const std::string info = c({"INFO", "replication"});
  const size_t at = info.find(name + ":");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return info.substr(begin, info.find("\r\n", begin) - begin);
}

void await_equal(RespClient& leader, RespClient& follower) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto has_all = [&] {
    return figure_of(follower, "follow_state") == "following" &&
           figure_of(follower, "follow_records_behind") == "0" &&
           figure_of(follower, "slave_repl_offset") == figure_of(leader, "master_repl_offset");
  };
  while (!has_all()) {
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("the follower does not catch up: " +
                               follower({"INFO", "replication"}) + leader({"INFO", "replication"}));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Of the follower: MiB.
class FollowKill : public testing::TestWithParam<int> {};
// In the smaller one a large transaction goes through the journal: it has one partition, of small
// blocks.
INSTANTIATE_TEST_SUITE_P(Capacity, FollowKill, testing::Values(96, 7),
                         [](const auto& info) { return std::to_string(info.param) + "MiB"; });

TEST_P(FollowKill, WhatTheLeaderHadInOrder) {
  constexpr int kClients = 3;
  const TempDir folder;
  std::mt19937_64 random(std::random_device{}());
  server::Config leader_config;
  leader_config.pool = folder.file("leader");
  leader_config.create = true;
  leader_config.capacity_bytes = uint64_t{64} << 20;
  leader_config.resp = {free_address(random)};
  leader_config.log_level = server::LogLevel::kError;
  server::Config follower_config = leader_config;
  follower_config.pool = folder.file("follower");
  follower_config.resp = {free_address(random)};
  follower_config.capacity_bytes = static_cast<uint64_t>(GetParam()) << 20;
  std::vector<Progress> progress(kClients);
  follower_config.follow = leader_config.resp[0];
  const std::string leader_at = leader_config.resp[0];
  const std::string follower_at = follower_config.resp[0];
  constexpr int kLeader = 0;
  constexpr int kFollower = 1;
  Servers servers({leader_config, follower_config});
  servers.start(kLeader);
  servers.start(kFollower);
  for (int round = 0; round < follow_rounds() && !testing::Test::HasFailure(); ++round) {
    const uint64_t first = static_cast<uint64_t>(round + 1) * 1'000'000;
    std::vector<std::thread> threads;
    std::atomic<bool> ends{false};
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back(write_numbers, leader_at, i, first, std::ref(progress[i]));
    }
    threads.emplace_back(read_pairs, follower_at, std::cref(ends), kClients);
    const auto some = [&] { return std::chrono::microseconds(1000 + random() % 60000); };
    bool both = false;
    std::exception_ptr failure;
    try {
      // The follower, once or several times, then the leader; sometimes both at about the same
      // time.
      for (uint64_t kills = random() % 4; kills > 0; --kills) {
        std::this_thread::sleep_for(some());
        servers.kill(kFollower);
        servers.start(kFollower);
      }
      std::this_thread::sleep_for(some());
      servers.kill(kLeader);
      both = random() % 3 == 0;
      if (both) servers.kill(kFollower);
    } catch (...) {
      failure = std::current_exception();
      servers.kill(kLeader);
      servers.kill(kFollower);
    }
    ends = true;
    for (std::thread& one : threads) one.join();
    if (failure) std::rethrow_exception(failure);
    if (both) servers.start(kFollower);
    {
      // By itself, the leader being gone: transactions wholly, and nothing newer than what was
      // asked for.
      RespClient c(follower_at);
      for (int i = 0; i < kClients; ++i) {
        const std::string own = "c" + std::to_string(i) + ":t";
        // At one moment: it may still carry out what came last.
        const Reply all = c.call({"MGET", own + "0", own + "1", own + "2", own + "3", own + "4"});
        if (all.kind == '-') continue;  // it has begun to copy
        const std::string one = all.elements[0].to_string();
        for (const Reply& other : all.elements) EXPECT_EQ(other.to_string(), one);
        EXPECT_LE(one == "(nil)" ? 0 : std::stoull(one), progress[i].asked);
      }
    }
    servers.start(kLeader);
    RespClient from(leader_at);
    RespClient to(follower_at);
    for (int i = 0; i < kClients; ++i) {
      const std::string value = from({"GET", "c" + std::to_string(i) + ":t0"});
      const uint64_t has = value == "(nil)" ? 0 : std::stoull(value);
      EXPECT_GE(has, progress[i].answered);
      EXPECT_LE(has, progress[i].asked);
    }
    await_equal(from, to);
    EXPECT_EQ(dump(to), dump(from)) << "round " << round;
  }
}

}  // namespace
}  // namespace perdure::test
