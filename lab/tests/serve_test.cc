// Clients of servers: what they read, when they send, and what they count, against a server that
// does as it is told.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/ticks.h"
#include "lab/serve/clients.h"
#include "lab/serve/process.h"
#include "lab/serve/protocol.h"
#include "perdure/error.h"

namespace perdure::lab::serve {
namespace {

const std::atomic<bool> kNotStopped{false};

// What a parser finds if the input comes in pieces of this size: a letter for each reply, and its
// texts.
std::string found_in(Protocol protocol, std::string_view input, size_t piece) {
  ReplyParser parser(protocol);
  std::string waiting;
  std::string found;
  for (size_t at = 0; at < input.size(); at += piece) {
    waiting += input.substr(at, piece);
    for (;;) {
      size_t consumed = 0;
      const ReplyParser::Result result = parser.parse(waiting, consumed);
      if (result == ReplyParser::Result::kBroken) return found + "!";
      if (result == ReplyParser::Result::kNeedMore) break;
      const ServerReply& reply = parser.reply();
      found += "vda#l-"[static_cast<size_t>(reply.kind)];
      found += reply.text;
      if (reply.kind == ServerReply::Kind::kNumber) found += std::to_string(reply.number);
      if (reply.kind == ServerReply::Kind::kList) {
        for (const std::string_view element : reply.elements) found.append("<").append(element);
      }
      found += ' ';
      waiting.erase(0, consumed);
    }
  }
  return found;
}

TEST(ServeReplies, AreFoundHoweverTheyAreCut) {
  struct Example {
    Protocol protocol;
    std::string_view input;
    std::string_view found;
  };
  const Example examples[] = {
      {Protocol::kResp,
       "+OK\r\n$3\r\nabc\r\n$-1\r\n_\r\n:12\r\n-ERR no\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n*0\r\n",
       "dOK vabc a a #12 -ERR no l<a< l "},
      {Protocol::kResp, "$4\r\na\r\nb\r\n", "va\r\nb "},
      {Protocol::kMemcachedText,
       "STORED\r\nVALUE k 0 4\r\nEND\r\r\nEND\r\nEND\r\nDELETED\r\nNOT_FOUND\r\nSERVER_ERROR "
       "full\r\n",
       "dSTORED vEND\r aEND dDELETED aNOT_FOUND -SERVER_ERROR full "},
      {Protocol::kMemcachedMeta, "HD\r\nVA 3\r\nabc\r\nVA 0 f1\r\n\r\nEN\r\nNF\r\nNS\r\nMN\r\n",
       "dHD vabc v aEN aNF -NS dMN "}};
  for (const Example& example : examples) {
    for (size_t piece = 1; piece <= example.input.size(); ++piece) {
      EXPECT_EQ(found_in(example.protocol, example.input, piece), example.found) << piece;
    }
  }
}

TEST(ServeReplies, OfAnotherProtocolAreRefused) {
  const std::pair<Protocol, const char*> examples[] = {
      {Protocol::kResp, "STORED\r\n"},
      {Protocol::kResp, "\r\n"},
      {Protocol::kResp, "$3\r\nabcd\r\n"},
      {Protocol::kResp, "$-2\r\n"},
      {Protocol::kResp, ":1x\r\n"},
      {Protocol::kResp, "*1\r\n+OK\r\n"},
      {Protocol::kResp, "*99999999999\r\n"},
      {Protocol::kMemcachedText, "+OK\r\n"},
      {Protocol::kMemcachedText, "VALUE k\r\n"},
      {Protocol::kMemcachedText, "VALUE k 0 1\r\nabcdefghi"},
      {Protocol::kMemcachedMeta, "VA x\r\n"}};
  for (const auto& [protocol, input] : examples) {
    EXPECT_EQ(found_in(protocol, input, 100), "!") << input;
  }
  EXPECT_EQ(found_in(Protocol::kResp, std::string(100'000, 'x'), 1000), "!");
}

TEST(ServeRequests, AreOfTheirProtocol) {
  const auto requests = [](Protocol protocol) {
    std::string out;
    RequestWriter writer(protocol, out);
    writer.get("k");
    writer.set("k", "v\r\n");
    writer.remove("k");
    return out;
  };
  EXPECT_EQ(requests(Protocol::kResp),
            "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nv\r\n\r\n*2\r\n$"
            "3\r\nDEL\r\n$1\r\nk\r\n");
  EXPECT_EQ(requests(Protocol::kMemcachedText), "get k\r\nset k 0 0 3\r\nv\r\n\r\ndelete k\r\n");
  EXPECT_EQ(requests(Protocol::kMemcachedMeta), "mg k v\r\nms k 3\r\nv\r\n\r\nmd k\r\n");
}

TEST(ServeAddress, IsReadAndToldWithoutItsPassword) {
  const std::pair<const char*, const char*> good[] = {
      {"redis://a.example", "redis://a.example:6379"},
      {"redis://:secret@127.0.0.1:7000/3", "redis://127.0.0.1:7000/3"},
      {"redis://[::1]:7000", "redis://[::1]:7000"},
      {"redis://[::1]", "redis://[::1]:6379"},
      {"memcached://h:1", "memcached://h:1"},
      {"memcached+meta://h", "memcached+meta://h:11211"},
      {"unix:///run/s", "unix:///run/s"}};
  for (const auto& [text, told] : good) EXPECT_EQ(to_string(parse_server_address(text)), told);
  EXPECT_EQ(parse_server_address("redis://ann:secret@h").password, "secret");
  EXPECT_EQ(parse_server_address("redis://ann:secret@h").user, "ann");
  for (const char* bad :
       {"http://h", "redis://", "redis://:0", "redis://h:x", "redis://h:70000", "redis://[::1",
        "redis://h/x", "redis://p@h", "memcached://h/1", "memcached://:p@h", "unix://run"}) {
    EXPECT_THROW(parse_server_address(bad), Error) << bad;
  }
}

TEST(ServeArrivals, ComeAtTheirRate) {
  ArrivalClock uniform(1000, Arrivals::kUniform, 1);
  EXPECT_DOUBLE_EQ(uniform.due_ns(), 1e6);
  uniform.advance();
  EXPECT_DOUBLE_EQ(uniform.due_ns(), 2e6);
  constexpr int kCount = 100'000;
  ArrivalClock poisson(1000, Arrivals::kPoisson, 1);
  int close = 0;  // closer than a tenth of the mean distance: 1 - exp(-0.1) of them
  double last = poisson.due_ns();
  for (int i = 0; i < kCount; ++i) {
    poisson.advance();
    ASSERT_GE(poisson.due_ns(), last);
    close += poisson.due_ns() - last < 1e5 ? 1 : 0;
    last = poisson.due_ns();
  }
  EXPECT_NEAR(last / 1e6, kCount, 0.02 * kCount);
  EXPECT_NEAR(close, 0.0952 * kCount, 0.005 * kCount);
}

// Serves one connection after another, by RESP requests of whole lines: GET and SET from a map, or
// what `answer` gives.
class FakeServer {
 public:
  using Answer = std::function<std::string(const std::vector<std::string>& words)>;

  explicit FakeServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof at;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    address.host = "127.0.0.1";
    address.port = std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

  ServerAddress address;

 private:
  void serve() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(fd)) {
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      std::string waiting;
      std::array<char, 4096> buffer;
      for (ssize_t got; (got = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
        waiting.append(buffer.data(), static_cast<size_t>(got));
        ReplyParser parser(Protocol::kResp);  // requests are lists, too
        size_t consumed = 0;
        bool open = true;
        while (open && parser.parse(waiting, consumed) == ReplyParser::Result::kReply) {
          const auto& elements = parser.reply().elements;
          const std::string reply = answer_({elements.begin(), elements.end()});
          open = !reply.empty() && ::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL) > 0;
          waiting.erase(0, consumed);
        }
        if (!open) break;
      }
    }
  }

  Answer answer_;
  int listener_ = -1;
  std::thread thread_;
};

// Keeps what it is given.
struct Map {
  std::map<std::string, std::string> records;
  std::string operator()(const std::vector<std::string>& words) {
    if (words[0] == "SET") {
      records[words[1]] = words[2];
      return "+OK\r\n";
    }
    if (words[0] == "DEL") return ":" + std::to_string(records.erase(words[1])) + "\r\n";
    const auto found = records.find(words[1]);
    if (found == records.end()) return "$-1\r\n";
    return "$" + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
  }
};

OperationPlan plan_of(const char* mix, uint64_t records, uint64_t operations) {
  return {Mix::parse(mix), records, operations, 1, KeyOrder::kMixed};
}

TEST(ServeClients, CarryOutThePlanAndCheckEveryAnswer) {
  Map map;
  FakeServer server([&map](const auto& words) { return map(words); });
  ClientsOptions options{.address = server.address, .connections = 1, .pipeline = 7};
  const ClientsResult load = run_clients(plan_of("insert", 0, 500), options, {}, kNotStopped);
  EXPECT_EQ(load.phase.operations, 500U);
  EXPECT_EQ(load.phase.failed, 0U);
  EXPECT_TRUE(load.phase.complete);
  EXPECT_EQ(map.records.size(), 500U);
  const OperationPlan plan = plan_of("lookup=.4,update=.2,rmw=.2,insert=.1,remove=.1", 500, 1000);
  options.warmup = 100;
  const ClientsResult run = run_clients(plan, options, {}, kNotStopped);
  EXPECT_EQ(run.phase.failed, 0U) << run.first_error;
  EXPECT_EQ(run.phase.operations, 900U);
  EXPECT_EQ(run.phase.latency_ticks().count(), 900U);
  EXPECT_EQ(map.records.size(), 500U);  // as many came as went
  EXPECT_EQ(count_missing_effects(plan, options), 0U);
  uint64_t sum = 0;
  for (uint64_t place = 0; place < plan.operations(); ++place) {
    sum += OperationPlan::fingerprint(place, plan.at(place));
  }
  EXPECT_EQ(run.phase.stream_hash, plan.stream_hash(sum));
  // What was written is lost.
  map.records.clear();
  EXPECT_GT(count_missing_effects(plan, options), 300U);
}

TEST(ServeClients, CountWrongValuesAndErrors) {
  FakeServer wrong([](const auto&) { return "$64\r\n" + std::string(64, 'x') + "\r\n"; });
  const OperationPlan lookups = plan_of("lookup", 100, 50);
  EXPECT_EQ(run_clients(lookups, {.address = wrong.address, .connections = 1}, {}, kNotStopped)
                .phase.failed,
            50U);
  FakeServer full([](const auto&) { return std::string("-OOM full\r\n"); });
  const ClientsResult refused = run_clients(
      plan_of("update", 100, 50), {.address = full.address, .connections = 1}, {}, kNotStopped);
  EXPECT_EQ(refused.phase.failed, 50U);
  EXPECT_EQ(refused.first_error, "OOM full");
}

TEST(ServeClients, SayThatTheServerHasGone) {
  FakeServer closing([](const auto&) { return std::string(); });
  FakeServer foreign([](const auto&) { return std::string("HTTP/1.1 400\r\n"); });
  for (const FakeServer* server : {&closing, &foreign}) {
    EXPECT_THROW(run_clients(plan_of("lookup", 100, 50),
                             {.address = server->address, .connections = 1}, {}, kNotStopped),
                 Error);
  }
  ServerAddress nobody = closing.address;
  nobody.port = "1";
  EXPECT_THROW(run_clients(plan_of("lookup", 100, 50), {.address = nobody}, {}, kNotStopped),
               Error);
}

// The server stops for a while at its first request. All others come due meanwhile: they wait, and
// their waiting counts, though each is answered at once when it is sent.
TEST(ServeClients, CountLatenciesOfAnOpenLoopFromWhenRequestsWereDue) {
  constexpr auto kStop = std::chrono::milliseconds(200);
  Map map;
  bool stopped = true;
  FakeServer server([&](const auto& words) {
    if (!stopped) std::this_thread::sleep_for(kStop);
    stopped = true;
    return map(words);
  });
  ClientsOptions options{.address = server.address, .connections = 1};
  run_clients(plan_of("insert", 0, 100), options, {}, kNotStopped);
  const double ns_per_tick = TickClock::get().ns_per_tick();
  for (const Arrivals arrivals : {Arrivals::kUniform, Arrivals::kPoisson}) {
    stopped = false;
    options.arrivals = arrivals;
    options.rate = 2000;  // 200 requests are due in 100 ms, half of the time that it stops for
    const ClientsResult open = run_clients(plan_of("lookup", 100, 200), options, {}, kNotStopped);
    EXPECT_EQ(open.phase.failed, 0U);
    EXPECT_GT(open.phase.latency_ticks().quantile(0.5) * ns_per_tick, 80e6);
  }
  // All at once, if the connection takes them: then none of them waits for its turn, and all for
  // the server.
  stopped = false;
  options.pipeline = 1000;
  const ClientsResult deep = run_clients(plan_of("lookup", 100, 200), options, {}, kNotStopped);
  EXPECT_EQ(deep.phase.failed, 0U);
  EXPECT_GT(deep.phase.latency_ticks().quantile(0.5) * ns_per_tick, 80e6);
}

TEST(ServeClients, EndWhenTheTimeIsOver) {
  Map map;
  FakeServer server([&map](const auto& words) { return map(words); });
  ClientsOptions options{.address = server.address, .connections = 1};
  run_clients(plan_of("insert", 0, 100), options, {}, kNotStopped);
  options.time_limit_s = 0.05;
  for (const double rate : {0.0, 100.0}) {
    options.rate = rate;
    const ClientsResult cut =
        run_clients(plan_of("lookup", 100, 100'000'000), options, {}, kNotStopped);
    EXPECT_FALSE(cut.phase.complete);
    EXPECT_EQ(cut.phase.failed, 0U);
  }
  const std::atomic<bool> stop{true};
  EXPECT_EQ(run_clients(plan_of("lookup", 100, 1000), options, {}, stop).phase.operations, 0U);
}

TEST(ServeKinds, AreNamed) {
  EXPECT_EQ(parse_server_kind("perdure:hash").index, "hash");
  EXPECT_EQ(parse_server_kind("perdure+memcached").protocol, Protocol::kMemcachedText);
  EXPECT_EQ(parse_server_kind("memcached:meta").protocol, Protocol::kMemcachedMeta);
  EXPECT_TRUE(parse_server_kind("redis+aof").keeps_records());
  EXPECT_FALSE(parse_server_kind("redis").keeps_records());
  for (const char* bad :
       {"", "rediss", "redis:hash", "memcached:binary", "perdure:", "perdure:fast"}) {
    EXPECT_THROW(parse_server_kind(bad), Error) << bad;
  }
}

TEST(ServeProcess, SaysWhyItDidNotStart) {
  // A program that ends at once, and none.
  for (const auto& [command, said] : {std::pair("/bin/false", "ended instead of serving"),
                                      std::pair("/nonexistent/perdure", "is not installed")}) {
    try {
      const ServerProcess server(parse_server_kind("perdure"),
                                 {.folder = "/tmp", .command = command});
      FAIL() << command;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  }
}

TEST(ServeProcess, TellsWhatItTakes) {
  const ProcessUsage usage = usage_of(::getpid());
  EXPECT_GT(usage.dram_bytes, 0U);
  EXPECT_GT(usage.mapped_bytes, 0U);
  EXPECT_GE(usage.cpu_s, 0);
}

}  // namespace
}  // namespace perdure::lab::serve
