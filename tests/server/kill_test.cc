// The server is killed under load; every write that was answered is there.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "server/fixture.h"
#include "support/child.h"
#include "support/random.h"

namespace perdure::test {
namespace {

int rounds() {
  const char* text = std::getenv("PERDURE_KILL_ROUNDS");
  return text != nullptr ? std::max(std::atoi(text), 1) : 4;
}

// What one client was told: the last number that was stored under each of its keys.
struct Told {
  std::map<std::string, uint64_t> answered;
  std::map<std::string, uint64_t> asked;  // the last, answered or not
};

// Counts up its own keys in pipelines, until the server is gone: strings, fields of a hash, and
// pairs that a transaction keeps equal.
void work(const std::string& address, int number, uint64_t first, Told& told) {
  const std::string own = "c" + std::to_string(number) + ":";
  try {
    RespClient c(address);
    for (uint64_t n = first;; ++n) {
      const std::string value = std::to_string(n);
      const std::string key = own + "s" + std::to_string(n % 50);
      const std::string field = own + "f" + std::to_string(n % 20);
      const std::string pair = own + "p";
      told.asked[key] = told.asked["hash " + field] = told.asked[pair] = n;
      c.send(RespClient::encode({"SET", key, value}) +
             RespClient::encode({"HSET", "hash", field, value}) + RespClient::encode({"MULTI"}) +
             RespClient::encode({"SET", pair + "1", value}) +
             RespClient::encode({"SET", pair + "2", value}) + RespClient::encode({"EXEC"}));
      if (c.read().text != "OK") std::abort();
      told.answered[key] = n;
      c.read();
      told.answered["hash " + field] = n;
      for (int i = 0; i < 3; ++i) c.read();
      if (c.read().elements.size() != 2) std::abort();
      told.answered[pair] = n;
    }
  } catch (const std::exception&) {
    // The server is gone.
  }
}

// The same through memcached's protocol: strings, one request at a time and in pipelines.
void work_memcached(const std::string& address, int number, uint64_t first, Told& told) {
  const std::string own = "m" + std::to_string(number) + ":";
  try {
    Socket c(address);
    for (uint64_t n = first;; n += 4) {
      std::string requests;
      const uint64_t count = n % 8 < 4 ? 1 : 4;
      const auto key = [&](uint64_t i) { return own + std::to_string((n + i) % 50); };
      for (uint64_t i = 0; i < count; ++i) {
        const std::string value = std::to_string(n + i);
        told.asked[key(i)] = n + i;
        requests +=
            "set " + key(i) + " 7 0 " + std::to_string(value.size()) + "\r\n" + value + "\r\n";
      }
      c.send(requests);
      for (uint64_t i = 0; i < count; ++i) {
        if (c.read_line() != "STORED") std::abort();
        told.answered[key(i)] = n + i;
      }
    }
  } catch (const std::exception&) {
    // The server is gone.
  }
}

void check(RespClient& c, const Told& told) {
  for (const auto& [key, answered] : told.answered) {
    const uint64_t asked = told.asked.at(key);
    const auto expect = [&, &name = key, least = answered](const std::string& text) {
      const uint64_t found = text == "(nil)" ? 0 : std::stoull(text);
      EXPECT_GE(found, least) << name;
      EXPECT_LE(found, asked) << name;
    };
    if (key.starts_with("hash ")) {
      expect(c({"HGET", "hash", key.substr(5)}));
    } else if (key.ends_with("p")) {
      const std::string first = c({"GET", key + "1"});
      expect(first);
      EXPECT_EQ(first, c({"GET", key + "2"})) << key;
    } else {
      expect(c({"GET", key}));
    }
  }
}

TEST(ServerKill, EveryAnsweredWriteIsThere) {
  const TempDir folder;
  std::mt19937_64 random(std::random_device{}());
  server::Config config;
  config.pool = folder.file("pool");
  config.create = true;
  config.capacity_bytes = uint64_t{32} << 20;
  config.resp = {"127.0.0.1:0"};
  config.memcached = {"127.0.0.1:0"};
  config.log_level = server::LogLevel::kError;
  const bool has_uring = server::make_uring_driver() != nullptr;
  std::vector<Told> told(6);  // four clients of RESP, two of memcached
  for (int round = 0; round < rounds() && !testing::Test::HasFailure(); ++round) {
    config.io = round % 2 == 0 || !has_uring ? "epoll" : "uring";
    config.threads = static_cast<uint32_t>(1 + round % 2);
    Child child([&](int out) {
      server::Server running(config);
      std::string both;
      running.start([&](const std::string& line) {
        std::string address = line.substr(line.find(' ') + 1);
        address.resize(64);
        both += address;
      });
      send(out, both.data(), both.size());
      std::this_thread::sleep_for(std::chrono::minutes(1));
    });
    std::string both(128, '\0');
    ASSERT_TRUE(child.receive(both.data(), both.size()));
    const std::string address = both.c_str();
    const std::string memcached = both.c_str() + 64;
    {
      RespClient c(address);
      for (const Told& one : told) check(c, one);
      uint64_t counted = 0;
      for (const Reply& one : c.call({"HVALS", "hash"}).elements)
        counted += one.text.empty() ? 0 : 1;
      EXPECT_EQ(std::to_string(counted), c({"HLEN", "hash"}));
    }
    const uint64_t first = static_cast<uint64_t>(round + 1) * 1'000'000;
    {
      std::vector<std::thread> clients;
      for (size_t i = 0; i < told.size(); ++i) {
        const bool speaks_resp = i < 4;
        clients.emplace_back(speaks_resp ? work : work_memcached, speaks_resp ? address : memcached,
                             static_cast<int>(i), first, std::ref(told[i]));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20000 + random() % 200000));
      child.kill();
      for (std::thread& one : clients) one.join();
    }
    child.wait();
  }
}

}  // namespace
}  // namespace perdure::test
