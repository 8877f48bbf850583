// memcached's binary protocol, over real sockets.
#include "perdure/error.h"
#include "server/fixture.h"

namespace perdure::test {
namespace {

std::string number(uint64_t value, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = bytes; i-- > 0; value >>= 8) out[i] = static_cast<char>(value & 0xff);
  return out;
}

uint64_t number_in(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

std::string request(uint8_t opcode, const std::string& key = "", const std::string& value = "",
                    const std::string& extras = "", uint64_t cas = 0, uint32_t opaque = 0) {
  return std::string("\x80") + static_cast<char>(opcode) + number(key.size(), 2) +
         number(extras.size(), 1) + number(0, 3) +
         number(extras.size() + key.size() + value.size(), 4) + number(opaque, 4) + number(cas, 8) +
         extras + key + value;
}

struct Answer {
  uint64_t opcode = 0;
  uint64_t status = 0;
  uint64_t opaque = 0;
  uint64_t cas = 0;
  std::string extras;
  std::string key;
  std::string value;
};

Answer read_answer(Socket& client) {
  const std::string header = client.read_bytes(24);
  EXPECT_EQ(number_in(header, 0, 1), 0x81);
  const std::string body = client.read_bytes(number_in(header, 8, 4));
  const size_t extras = number_in(header, 4, 1);
  const size_t key = number_in(header, 2, 2);
  return {.opcode = number_in(header, 1, 1),
          .status = number_in(header, 6, 2),
          .opaque = number_in(header, 12, 4),
          .cas = number_in(header, 16, 8),
          .extras = body.substr(0, extras),
          .key = body.substr(extras, key),
          .value = body.substr(extras + key)};
}

Answer ask(Socket& client, const std::string& bytes) {
  client.send(bytes);
  return read_answer(client);
}

const std::string kNever = number(0, 8);  // flags 0, no expiry

class MemcachedBinary : public ServerTest {
 protected:
  MemcachedBinary() { config.value_bytes_max = 1 << 20; }
};

TEST_F(MemcachedBinary, StoresReadsAndCounts) {
  start();
  Socket c = memcached();
  const Answer stored =
      ask(c, request(0x01, "a", "abc", number(7, 4) + number(0, 4), 0, 0xdeadbeef));
  EXPECT_EQ(stored.status, 0);
  EXPECT_EQ(stored.opaque, 0xdeadbeef);
  EXPECT_NE(stored.cas, 0);
  const Answer got = ask(c, request(0x0c, "a"));
  EXPECT_EQ(got.key, "a");
  EXPECT_EQ(got.value, "abc");
  EXPECT_EQ(got.extras, number(7, 4));
  EXPECT_EQ(got.cas, stored.cas);
  EXPECT_EQ(ask(c, request(0x00, "none")).status, 1);
  EXPECT_EQ(ask(c, request(0x02, "a", "x", kNever)).status, 2);  // ADD
  EXPECT_EQ(ask(c, request(0x03, "b", "x", kNever)).status, 1);  // REPLACE
  EXPECT_EQ(ask(c, request(0x0e, "none", "x")).status, 5);       // APPEND
  EXPECT_EQ(ask(c, request(0x01, "a", "x", kNever, got.cas + 1)).status, 2);
  EXPECT_EQ(ask(c, request(0x0e, "a", "de", "", got.cas)).status, 0);
  EXPECT_EQ(ask(c, request(0x0f, "a", "_")).status, 0);
  EXPECT_EQ(ask(c, request(0x00, "a")).value, "_abcde");
  const auto add = [](uint64_t by, uint64_t initial, uint32_t expiry) {
    return number(by, 8) + number(initial, 8) + number(expiry, 4);
  };
  EXPECT_EQ(ask(c, request(0x05, "n", "", add(1, 0, 0xffffffff))).status, 1);
  EXPECT_EQ(ask(c, request(0x05, "n", "", add(1, 40, 0))).value, number(40, 8));
  EXPECT_EQ(ask(c, request(0x05, "n", "", add(2, 0, 0))).value, number(42, 8));
  EXPECT_EQ(ask(c, request(0x06, "n", "", add(50, 0, 0))).value, number(0, 8));
  EXPECT_EQ(ask(c, request(0x05, "a", "", add(1, 0, 0))).status, 6);
  EXPECT_EQ(ask(c, request(0x1c, "a", "", number(100, 4))).status, 0);  // TOUCH
  EXPECT_EQ(ask(c, request(0x1d, "a", "", number(0, 4))).value, "_abcde");
  EXPECT_EQ(ask(c, request(0x04, "a", "", "", got.cas)).status, 2);  // DELETE
  EXPECT_EQ(ask(c, request(0x04, "a")).status, 0);
  EXPECT_EQ(ask(c, request(0x04, "a")).status, 1);
  EXPECT_TRUE(ask(c, request(0x0b)).value.starts_with("1."));
  EXPECT_EQ(ask(c, request(0x20)).status, 0x81);  // no SASL here
  // The records are those of the other clients.
  RespClient r = resp();
  EXPECT_EQ(r({"GET", "n"}), "0");
  r({"HSET", "h", "f", "v"});
  EXPECT_EQ(ask(c, request(0x00, "h")).status, 1);
  EXPECT_EQ(ask(c, request(0x05, "h", "", add(1, 40, 0))).status, 6);
  EXPECT_EQ(ask(c, request(0x08)).status, 0);
  EXPECT_EQ(r({"DBSIZE"}), "0");
  // What was not found, or was there, is an answer.
  const std::string text = metrics();
  const std::string failures = "perdure_memcached_command_failures_total{command=";
  EXPECT_NE(text.find(failures + "\"incrby\"} 2\n"), std::string::npos);
  for (const char* name : {"get", "set", "append", "del"}) {
    EXPECT_EQ(text.find(failures + '"' + name + '"'), std::string::npos) << name;
  }
}

TEST_F(MemcachedBinary, QuietRequestsSayOnlyWhatFails) {
  start();
  Socket c = memcached();
  c.send(request(0x11, "a", "1", kNever) + request(0x12, "a", "2", kNever, 0, 5) +
         request(0x09, "none") + request(0x0d, "a", "", "", 0, 6) + request(0x14, "a") +
         request(0x0a, "", "", "", 0, 7));
  const Answer add = read_answer(c);
  EXPECT_EQ(add.opaque, 5);
  EXPECT_EQ(add.status, 2);
  const Answer get = read_answer(c);
  EXPECT_EQ(get.opaque, 6);
  EXPECT_EQ(get.key + get.value, "a1");
  EXPECT_EQ(read_answer(c).opaque, 7);
  // STAT: figures, and an empty one.
  c.send(request(0x10));
  std::map<std::string, std::string> figures;
  for (Answer one = read_answer(c); !one.key.empty(); one = read_answer(c)) {
    figures[one.key] = one.value;
  }
  EXPECT_EQ(figures["get_hits"], "1");
  c.send(request(0x17));
  EXPECT_TRUE(c.ends_within(5000));
}

TEST_F(MemcachedBinary, StaysAfterBadRequests) {
  start();
  Socket c = memcached();
  EXPECT_EQ(ask(c, request(0x70)).status, 0x81);
  EXPECT_EQ(ask(c, request(0x01, "a", "x")).status, 4);  // no extras
  EXPECT_EQ(ask(c, request(0x00)).status, 4);            // no key
  EXPECT_EQ(ask(c, request(0x00, std::string(251, 'k'))).status, 4);
  EXPECT_EQ(ask(c, request(0x01, "a", std::string(2 << 20, 'x'), kNever)).status, 3);
  std::string lying = request(0x00, "abc");
  lying[3] = 100;  // of three bytes
  EXPECT_EQ(ask(c, lying).status, 4);
  EXPECT_EQ(ask(c, request(0x01, "a", std::string(500000, 'x'), kNever)).status, 0);
  EXPECT_EQ(ask(c, request(0x00, "a")).value.size(), 500000);
  for (const char byte : request(0x00, "none")) c.send(std::string(1, byte));
  EXPECT_EQ(read_answer(c).status, 1);
  c.send("get a\r\n");
  EXPECT_TRUE(c.ends_within(5000));
}

TEST_F(MemcachedBinary, AsksForThePasswordBySasl) {
  config.password = "secret";
  config.memcached_sasl = true;
  start();
  Socket c = memcached();
  const auto plain = [](const std::string& user, const std::string& password) {
    return request(0x21, "PLAIN", std::string(1, '\0') + user + std::string(1, '\0') + password);
  };
  EXPECT_EQ(ask(c, request(0x20)).value, "PLAIN");
  EXPECT_EQ(ask(c, request(0x00, "a")).status, 0x20);
  EXPECT_EQ(ask(c, request(0x01, "a", "x", kNever)).status, 0x20);
  EXPECT_EQ(ask(c, request(0x01, "a", std::string(100000, 'x'), kNever)).status, 3);
  EXPECT_EQ(ask(c, request(0x08)).status, 0x20);
  EXPECT_EQ(ask(c, plain("default", "wrong")).status, 0x20);
  EXPECT_EQ(ask(c, plain("other", "secret")).status, 0x20);
  EXPECT_EQ(ask(c, request(0x21, "PLAIN", "secret")).status, 0x20);
  EXPECT_EQ(ask(c, request(0x21, "CRAM-MD5", "secret")).status, 0x20);
  EXPECT_EQ(ask(c, plain("default", "secret")).status, 0);
  EXPECT_EQ(ask(c, request(0x01, "a", std::string(100000, 'x'), kNever)).status, 0);
  EXPECT_EQ(ask(c, plain("default", "wrong")).status, 0x20);
  EXPECT_EQ(ask(c, request(0x00, "a")).status, 0x20);
  Socket text = memcached();
  text.send("get a\r\n");
  EXPECT_TRUE(text.read_line().starts_with("CLIENT_ERROR unauthenticated"));
  EXPECT_TRUE(text.ends_within(5000));
  stop();
  config.password.clear();
  EXPECT_THROW(start(), Error);
}

TEST_F(MemcachedBinary, AReplyThatIsTooLargeIsAnError) {
  stop();
  config.output_bytes_max = 1 << 20;
  config.value_bytes_max = 8 << 20;
  start();
  Socket c = memcached();
  EXPECT_EQ(ask(c, request(0x01, "a", std::string(4'000'000, 'x'), kNever)).status, 0);
  EXPECT_EQ(ask(c, request(0x00, "a")).status, 0x82);
  EXPECT_EQ(ask(c, request(0x0a)).status, 0);
}

}  // namespace
}  // namespace perdure::test
