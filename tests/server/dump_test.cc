// DUMP and RESTORE: among servers of this kind, and to Redis and back where it is installed.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "server/dump_format.h"
#include "server/fixture.h"

namespace perdure::test {
namespace {

// Debian's redis-server on a Unix socket, if there is one.
class Redis {
 public:
  explicit Redis(const std::string& socket) : socket_(socket) {
    const char* arguments[] = {
        "redis-server", "--port", "0",         "--unixsocket", socket_.c_str(), "--save", "",
        "--appendonly", "no",     "--logfile", "/dev/null",    nullptr};
    if (::posix_spawnp(&process_, arguments[0], nullptr, nullptr,
                       const_cast<char* const*>(arguments), environ) != 0) {
      process_ = 0;
      return;
    }
    for (int i = 0; i < 1000 && !client_; ++i) {
      try {
        client_.emplace(socket_);
      } catch (const std::runtime_error&) {
        if (::waitpid(process_, nullptr, WNOHANG) != 0) {
          process_ = 0;
          return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
  ~Redis() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  bool runs() const { return client_.has_value(); }
  RespClient& client() { return *client_; }

 private:
  std::string socket_;
  pid_t process_ = 0;
  std::optional<RespClient> client_;
};

using Words = std::vector<std::string>;

// Keys of all types and sizes: of what Redis packs in different ways, and of what it does not.
Words fill(RespClient& c) {
  const std::string runs(5000, 'r');
  std::string noise(3000, ' ');
  std::mt19937_64 random(7);
  for (char& one : noise) one = static_cast<char>(random());
  Words keys;
  const auto add = [&](const Words& command) {
    c.call(command);
    if (std::ranges::find(keys, command[1]) == keys.end()) keys.push_back(command[1]);
  };
  for (const char* number : {"0", "-1", "127", "-129", "32768", "2147483647", "-2147483648",
                             "9223372036854775807", "01", ""}) {
    add({"SET", std::string("s") + number, number});
  }
  add({"SET", "runs", runs});
  add({"SET", "noise", noise});
  add({"SET", "long", std::string(20000, 'x') + noise});
  for (int size : {1, 5, 300}) {
    const std::string n = std::to_string(size);
    for (int i = 0; i < size; ++i) {
      const std::string text = "member " + std::to_string(i) + std::string(i % 70, 'y');
      const std::string number =
          std::to_string(i % 2 == 0 ? int64_t{1} << (i % 62) : -(int64_t{3} << (i % 60)));
      add({"SADD", "texts" + n, text});
      add({"SADD", "numbers" + n, number});
      add({"HSET", "hash" + n, text, i % 3 == 0 ? number : text});
      add({"RPUSH", "list" + n, text, number, i == 4 ? noise : ""});
      add({"ZADD", "sorted" + n, std::to_string(i * 0.37 - 1), text});
      add({"ZADD", "whole" + n, std::to_string(i - 2), number});
    }
  }
  add({"RPUSH", "long list", runs + noise, runs, noise});
  add({"ZADD", "ends", "inf", "a", "-inf", "b", "1e300", "c", "-0", "d"});
  return keys;
}

// What a key has, in an order of its own.
Words contents(RespClient& c, const std::string& key) {
  const std::string type = c({"TYPE", key});
  Reply reply;
  size_t step = 1;
  if (type == "string") {
    reply = c.call({"GET", key});
    return {type, reply.text};
  }
  if (type == "list") reply = c.call({"LRANGE", key, "0", "-1"});
  if (type == "set") reply = c.call({"SMEMBERS", key});
  if (type == "hash") reply = c.call({"HGETALL", key}), step = 2;
  if (type == "zset") reply = c.call({"ZRANGE", key, "0", "-1", "WITHSCORES"}), step = 2;
  std::vector<Words> parts;
  for (size_t i = 0; i + step <= reply.elements.size(); i += step) {
    parts.emplace_back();
    for (size_t j = 0; j < step; ++j) parts.back().push_back(reply.elements[i + j].text);
    // Redis 7.0 writes more digits of it than it needs.
    if (type == "zset")
      parts.back().back() = std::to_string(std::bit_cast<uint64_t>(std::stod(parts.back().back())));
  }
  if (type == "set" || type == "hash") std::ranges::sort(parts);
  Words all{type};
  for (const Words& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// With version and checksum.
std::string payload_of(std::string value) {
  value += std::string_view("\x08\0", 2);
  const uint64_t crc = server::crc64(value);
  value.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return value;
}

class Dump : public ServerTest {};

void carry(RespClient& from, RespClient& to, const Words& keys) {
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    const Reply dump = from.call({"DUMP", key});
    ASSERT_EQ(dump.kind, '$');
    ASSERT_EQ(to({"RESTORE", key, "0", dump.text}), "OK");
    EXPECT_EQ(contents(to, key), contents(from, key));
  }
}

TEST_F(Dump, IsRestoredAsItWas) {
  start();
  RespClient c = resp();
  const Words keys = fill(c);
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    const Words before = contents(c, key);
    const Reply dump = c.call({"DUMP", key});
    ASSERT_EQ(c({"RESTORE", "copy", "0", dump.text, "REPLACE"}), "OK");
    EXPECT_EQ(contents(c, "copy"), before);
  }
  c({"SELECT", "1"});
  EXPECT_EQ(c({"DUMP", keys[0]}), "(nil)");
}

TEST_F(Dump, CarriesKeysToRedisAndBack) {
  Redis redis(folder.file("redis.sock"));
  if (!redis.runs()) GTEST_SKIP() << "no redis-server here";
  start();
  RespClient c = resp();
  const Words keys = fill(c);
  carry(c, redis.client(), keys);
  redis.client().call({"FLUSHALL"});
  fill(redis.client());
  c.call({"FLUSHALL"});
  carry(redis.client(), c, keys);
}

TEST_F(Dump, SaysWhatIsWrongAsRedisDoes) {
  start();
  RespClient c = resp();
  c({"SET", "a", "1"});
  const std::string dump = c.call({"DUMP", "a"}).text;
  Redis redis(folder.file("redis.sock"));
  std::string broken = dump;
  broken[1] ^= 1;
  std::string of_later = dump;
  of_later[of_later.size() - 9] = '\x7f';
  const std::string no_value = payload_of("\x09\x01x");
  const std::pair<Words, const char*> cases[] = {
      {{"RESTORE", "a", "0", dump}, "-BUSYKEY Target key name already exists."},
      {{"RESTORE", "b", "-1", dump}, "-ERR Invalid TTL value, must be >= 0"},
      {{"RESTORE", "b", "x", dump}, "-ERR value is not an integer or out of range"},
      {{"RESTORE", "b", "0", broken}, "-ERR DUMP payload version or checksum are wrong"},
      {{"RESTORE", "b", "0", of_later}, "-ERR DUMP payload version or checksum are wrong"},
      {{"RESTORE", "b", "0", "short"}, "-ERR DUMP payload version or checksum are wrong"},
      {{"RESTORE", "b", "0", no_value}, "-ERR Bad data format"},
      {{"RESTORE", "b", "0", dump, "NOSUCH"}, "-ERR syntax error"},
      {{"RESTORE", "b", "0", dump, "IDLETIME", "-1"}, "-ERR Invalid IDLETIME value, must be >= 0"},
      {{"RESTORE", "b", "0", dump, "FREQ", "256"},
       "-ERR Invalid FREQ value, must be >= 0 and <= 255"},
      {{"RESTORE", "b", "0", dump, "IDLETIME", "1", "FREQ", "1"}, "-ERR syntax error"},
      {{"RESTORE", "b"}, "-ERR wrong number of arguments for 'restore' command"},
      {{"RESTORE", "b", "0", dump, "IDLETIME", "1"}, "OK"},
      {{"RESTORE", "b", "0", dump, "REPLACE", "FREQ", "255"}, "OK"},
  };
  if (redis.runs()) redis.client().call({"SET", "a", "1"});
  for (const auto& [command, answer] : cases) {
    SCOPED_TRACE(command.size());
    EXPECT_EQ(c(command), answer);
    if (redis.runs()) {
      EXPECT_EQ(redis.client()(command), answer);
    }
  }
}

TEST_F(Dump, TakesAnExpiry) {
  start();
  RespClient c = resp();
  c({"RPUSH", "list", "a", "b"});
  const std::string dump = c.call({"DUMP", "list"}).text;
  EXPECT_EQ(c({"RESTORE", "soon", "100000", dump}), "OK");
  EXPECT_GT(c.call({"PTTL", "soon"}).number, 90000);
  EXPECT_EQ(c({"RESTORE", "at", "4102444800000", dump, "ABSTTL"}), "OK");
  EXPECT_EQ(c({"PEXPIRETIME", "at"}), "4102444800000");
  // In the past: what was there goes, and nothing comes.
  EXPECT_EQ(c({"RESTORE", "at", "1000", dump, "ABSTTL", "REPLACE"}), "OK");
  EXPECT_EQ(c({"EXISTS", "at"}), "0");
  EXPECT_EQ(c({"RESTORE", "list", "0", dump, "REPLACE"}), "OK");
  EXPECT_EQ(c({"TTL", "list"}), "-1");
  EXPECT_EQ(c({"LRANGE", "list", "0", "-1"}), "[a b]");
}

TEST_F(Dump, WithoutAChecksumIsRefused) {
  start();
  RespClient c = resp();
  c({"SET", "a", "text"});
  std::string dump = c.call({"DUMP", "a"}).text;
  std::fill_n(dump.end() - sizeof(uint64_t), sizeof(uint64_t), '\0');
  EXPECT_EQ(c({"RESTORE", "b", "0", dump}), "-ERR DUMP payload version or checksum are wrong");
}

// A list of `count` small numbers in one listpack of two bytes each, compressed.
std::string packed_numbers(uint32_t count) {
  const auto length = [](uint32_t bytes) {
    const uint32_t swapped = __builtin_bswap32(bytes);
    return '\x80' + std::string(reinterpret_cast<const char*>(&swapped), sizeof swapped);
  };
  const uint32_t bytes = 6 + 2 * count + 1;
  std::string packed(1, '\x07');
  packed.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  packed += std::string_view("\xff\xff\x05\x01", 4);
  const uint32_t left = 2 * (count - 1);
  for (uint32_t i = 0; i < left / 264; ++i) packed += std::string_view("\xe0\xff\x01", 3);
  for (uint32_t i = 0; i < left % 264 / 2; ++i) packed += std::string_view("\x01\x05\x01", 3);
  packed += std::string_view("\0\xff", 2);
  return payload_of("\x12\x01\x02\xc3" + length(static_cast<uint32_t>(packed.size())) +
                    length(bytes) + packed);
}

TEST_F(Dump, OfAFewBytesDoesNotBecomeVeryMany) {
  start();
  RespClient c = resp();
  EXPECT_EQ(c({"RESTORE", "some", "0", packed_numbers(1000)}), "OK");
  EXPECT_EQ(c({"LLEN", "some"}), "1000");
  EXPECT_EQ(c({"LINDEX", "some", "-1"}), "5");
  const std::string many = packed_numbers(9'000'000);
  EXPECT_LT(many.size(), 210'000U);
  EXPECT_EQ(c({"RESTORE", "many", "0", many}), "-ERR the value is too large to be unpacked");
  EXPECT_EQ(c({"EXISTS", "many"}), "0");
}

// A few megabytes of a transaction would be gigabytes.
TEST_F(Dump, OfATransactionHasOneBoundForAll) {
  start();
  RespClient c = resp();
  const std::string numbers = packed_numbers(1'000'000);
  c({"SET", "a", "1"});
  const std::string small = c.call({"DUMP", "a"}).text;
  // Of the past: nothing of it is written, and so only the unpacking counts.
  const Words restore = {"RESTORE", "list", "1", numbers, "REPLACE", "ABSTTL"};
  // By itself each may be unpacked, however many there are.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(c(restore), "OK");
  c({"MULTI"});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(c(restore), "QUEUED");
  EXPECT_EQ(c({"RESTORE", "b", "0", small}), "QUEUED");
  const Reply reply = c.call({"EXEC"});
  ASSERT_EQ(reply.elements.size(), 11U);
  EXPECT_EQ(reply.elements.front().text, "OK");
  EXPECT_EQ(reply.elements[9].text, "ERR the value is too large to be unpacked");
  EXPECT_EQ(c({"GET", "b"}), "(nil)");  // a number takes room, too, of which there is none
  c({"MULTI"});
  c({"RESTORE", "b", "0", small});
  EXPECT_EQ(c({"EXEC"}), "[OK]");
}

TEST_F(Dump, OfThePastIsAnEventOfRemoval) {
  start();
  RespClient c = resp();
  RespClient listener = resp();
  c({"SET", "a", "text"});
  const std::string dump = c.call({"DUMP", "a"}).text;
  c({"CONFIG", "SET", "notify-keyspace-events", "KEA"});
  listener.call({"PSUBSCRIBE", "__keyspace@0__:a"});
  EXPECT_EQ(c({"RESTORE", "a", "0", dump, "REPLACE"}), "OK");
  EXPECT_EQ(listener.read().elements.back().text, "restore");
  EXPECT_EQ(c({"RESTORE", "a", "1000", dump, "REPLACE", "ABSTTL"}), "OK");
  EXPECT_EQ(listener.read().elements.back().text, "del");
}

// Whatever it says, with a checksum that holds: it is taken, or refused.
TEST_F(Dump, StandsAnyPayload) {
  Redis redis(folder.file("redis.sock"));
  start();
  RespClient c = resp();
  RespClient& source = redis.runs() ? redis.client() : c;
  Words dumps;
  for (const std::string& key : fill(source)) dumps.push_back(source.call({"DUMP", key}).text);
  std::mt19937_64 random(11);
  int taken = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string dump = dumps[random() % dumps.size()];
    dump.resize(dump.size() - sizeof(uint64_t));
    for (uint64_t i = random() % 4; i < 4; ++i) {
      // Near the beginning most bytes say how long something is.
      const size_t within = random() % 2 == 0 ? std::min<size_t>(dump.size(), 24) : dump.size();
      dump[random() % within] = static_cast<char>(random());
    }
    if (random() % 8 == 0) dump.erase(random() % dump.size(), 1 + random() % 5);
    const uint64_t crc = server::crc64(dump);
    dump.append(reinterpret_cast<const char*>(&crc), sizeof crc);
    const Reply reply = c.call({"RESTORE", "any", "0", dump, "REPLACE"});
    taken += reply.kind == '+' ? 1 : 0;
    if (reply.kind == '+') contents(c, "any");
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 4000);
  EXPECT_EQ(c({"PING"}), "PONG");
}

}  // namespace
}  // namespace perdure::test
