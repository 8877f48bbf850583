// memcached's clients, over real sockets.
#include "server/fixture.h"

namespace perdure::test {
namespace {

class Memcached : public ServerTest {
 protected:
  Memcached() {
    config.value_bytes_max = 1 << 20;
    start();
  }
  // The lines of the answer, up to one that ends an answer.
  std::string ask(Socket& client, const std::string& request, int lines = 1) {
    client.send(request + "\r\n");
    std::string answer;
    for (int i = 0; i < lines; ++i) answer += (i > 0 ? "|" : "") + client.read_line();
    return answer;
  }
};

TEST_F(Memcached, Classic) {
  Socket c = memcached();
  EXPECT_EQ(ask(c, "set a 7 0 3\r\nabc"), "STORED");
  EXPECT_EQ(ask(c, "get a none", 3), "VALUE a 7 3|abc|END");
  EXPECT_EQ(ask(c, "add a 0 0 1\r\nx"), "NOT_STORED");
  EXPECT_EQ(ask(c, "replace b 0 0 1\r\nx"), "NOT_STORED");
  EXPECT_EQ(ask(c, "append a 0 0 2\r\nde"), "STORED");
  EXPECT_EQ(ask(c, "prepend a 0 0 1\r\n_"), "STORED");
  EXPECT_EQ(ask(c, "get a", 3), "VALUE a 7 6|_abcde|END");
  const std::string with_version = ask(c, "gets a", 3);
  const std::string version =
      with_version.substr(12, with_version.find('|') - 12);  // VALUE a 7 6 VERSION
  EXPECT_EQ(ask(c, "cas a 0 0 1 " + version + "\r\nn"), "STORED");
  EXPECT_EQ(ask(c, "cas a 0 0 1 " + version + "\r\nm"), "EXISTS");
  EXPECT_EQ(ask(c, "cas none 0 0 1 1\r\nm"), "NOT_FOUND");
  ask(c, "set n 0 0 2\r\n10");
  EXPECT_EQ(ask(c, "incr n 5"), "15");
  EXPECT_EQ(ask(c, "decr n 100"), "0");
  EXPECT_EQ(ask(c, "incr a 1"), "CLIENT_ERROR cannot increment or decrement non-numeric value");
  EXPECT_EQ(ask(c, "touch n 100"), "TOUCHED");
  EXPECT_EQ(ask(c, "gat 0 n", 3), "VALUE n 0 1|0|END");
  EXPECT_EQ(ask(c, "delete n"), "DELETED");
  EXPECT_EQ(ask(c, "delete n"), "NOT_FOUND");
  EXPECT_EQ(ask(c, "set gone 0 -1 1\r\nx"), "STORED");
  EXPECT_EQ(ask(c, "get gone"), "END");
  EXPECT_EQ(ask(c, "set q 0 0 1 noreply\r\nq\r\nget q", 3), "VALUE q 0 1|q|END");
  EXPECT_EQ(ask(c, "verbosity 1"), "OK");
  EXPECT_EQ(ask(c, "verbosity"), "ERROR");
  EXPECT_EQ(ask(c, "nosuch"), "ERROR");
  EXPECT_EQ(ask(c, "flush_all"), "OK");
  EXPECT_EQ(ask(c, "get a"), "END");
}

// Requests that come together are parsed, and looked up, ahead of those before them: what is no
// request, or comes in pieces, is answered in its turn.
TEST_F(Memcached, AnswersAreTheSameInWhateverPiecesRequestsCome) {
  std::string requests;
  for (int i = 0; i < 40; ++i) {
    const std::string key = "k" + std::to_string(i);
    requests += "set " + key + " 0 0 5\r\nget x\r\nget " + key + " none " + key + "\r\n";
  }
  requests += "get" + std::string(100, ' ') + "k1\r\n\r\nnosuch\r\nset k1 0 0\r\n";
  requests += "set k2 0 0 2000000\r\n" + std::string(2000000, 'd') + "\r\nget k2\r\n";
  requests += "delete k2\r\nget k2\r\nset k2 0 0 2 noreply\r\nno\r\nget k2\r\nmg k2 v\r\n";
  std::string many = "get";
  for (int i = 39; i >= 0; --i) many += " k" + std::to_string(i);
  requests += many + "\r\nflush_all\r\nquit\r\n";
  const auto answers = [&](size_t piece) {
    Socket c = memcached();
    for (size_t at = 0; at < requests.size(); at += piece) c.send(requests.substr(at, piece));
    return c.read_to_end();
  };
  const std::string whole = answers(requests.size());
  EXPECT_NE(whole.find("VALUE k39 0 5\r\nget x\r\nVALUE k39 0 5\r\nget x\r\nEND\r\n"
                       "VALUE k1 0 5\r\nget x\r\nEND\r\nERROR\r\nERROR\r\nERROR\r\n"),
            std::string::npos)
      << whole.substr(0, 4000);
  EXPECT_TRUE(whole.ends_with("VALUE k0 0 5\r\nget x\r\nEND\r\nOK\r\n"))
      << whole.substr(whole.size() - std::min<size_t>(whole.size(), 1500));
  for (const size_t piece : {97, 1000, 4099, 65536}) EXPECT_EQ(answers(piece), whole) << piece;
}

TEST_F(Memcached, Meta) {
  Socket c = memcached();
  EXPECT_EQ(ask(c, "mn"), "MN");
  EXPECT_EQ(ask(c, "ms a 3 F5 T100\r\nabc"), "HD");
  EXPECT_EQ(ask(c, "mg a v f s k Oxyz", 2), "VA 3 f5 s3 ka Oxyz|abc");
  EXPECT_EQ(ask(c, "mg none v"), "EN");
  EXPECT_EQ(ask(c, "mg none v q\r\nmn"), "MN");
  EXPECT_EQ(ask(c, "ms a 1 ME\r\nx"), "NS");
  EXPECT_EQ(ask(c, "ma n"), "NF");
  EXPECT_EQ(ask(c, "ma n N0 J13 v", 2), "VA 2|13");
  EXPECT_EQ(ask(c, "ma n D7 v", 2), "VA 2|20");
  EXPECT_EQ(ask(c, "md n q\r\nmn"), "MN");
  EXPECT_EQ(ask(c, "mg n"), "EN");
}

TEST_F(Memcached, SharesItsRecordsWithRedisClients) {
  Socket c = memcached();
  RespClient r = resp();
  EXPECT_EQ(ask(c, "set a 9 0 3\r\nabc"), "STORED");
  EXPECT_EQ(r({"GET", "a"}), "abc");
  EXPECT_EQ(r({"APPEND", "a", "d"}), "4");
  EXPECT_EQ(ask(c, "get a", 3), "VALUE a 9 4|abcd|END");
  r({"HSET", "h", "f", "1"});
  EXPECT_EQ(ask(c, "get h"), "END");
  EXPECT_EQ(ask(c, "append h 0 0 1\r\nx"), "NOT_STORED");
  EXPECT_EQ(ask(c, "set h 0 0 1\r\nx"), "STORED");
  EXPECT_EQ(r({"TYPE", "h"}), "string");
}

TEST_F(Memcached, RequestsAreCounted) {
  Socket c = memcached();
  ask(c, "set a 0 0 1\r\n1");
  ask(c, "ms b 1\r\n1");
  ask(c, "touch a 100");
  ask(c, "incr nosuch x");
  ask(c, "flush_all");
  c.send("stats\r\nstats settings\r\n");
  std::map<std::string, std::string> figures;
  for (int ends = 0; ends < 2;) {
    const std::string line = c.read_line();
    if (line == "END") ++ends;
    const size_t blank = line.find(' ', 5);
    if (line.starts_with("STAT ")) figures[line.substr(5, blank - 5)] = line.substr(blank + 1);
  }
  EXPECT_EQ(figures["cmd_set"], "2");
  EXPECT_EQ(figures["cmd_touch"], "1");
  EXPECT_EQ(figures["cmd_flush"], "1");
  EXPECT_EQ(figures["limit_maxbytes"], std::to_string(uint64_t{64} << 20));
  EXPECT_EQ(figures["evictions"], "off");
  const std::string text = metrics();
  EXPECT_NE(text.find("perdure_memcached_command_seconds_count{command=\"set\"} 2\n"),
            std::string::npos);
  EXPECT_NE(text.find("perdure_memcached_command_failures_total{command=\"incrby\"} 1\n"),
            std::string::npos);
}

TEST_F(Memcached, StaysAfterBadRequests) {
  Socket c = memcached();
  EXPECT_EQ(ask(c, "set a 0 0 2000000\r\n" + std::string(2000000, 'x')),
            "SERVER_ERROR object too large for cache");
  EXPECT_EQ(ask(c, "get " + std::string(251, 'k')), "CLIENT_ERROR bad command line format");
  EXPECT_EQ(ask(c, "set a b 0 1\r\nx"), "CLIENT_ERROR bad command line format");
  EXPECT_EQ(ask(c, "get"), "ERROR");
  Socket bad = memcached();
  EXPECT_EQ(ask(bad, "set a 0 0 3\r\nabcdef"), "CLIENT_ERROR bad data chunk");
  EXPECT_TRUE(bad.ends_within(10000));
  EXPECT_EQ(ask(c, "version").substr(0, 8), "VERSION ");
}

TEST_F(Memcached, AReplyThatIsTooLargeIsAnError) {
  stop();
  config.output_bytes_max = 1 << 20;
  config.value_bytes_max = 8 << 20;
  start();
  Socket c = memcached();
  const std::string value(200'000, 'v');
  EXPECT_EQ(ask(c, "set some 0 0 200000\r\n" + value), "STORED");
  std::string keys;
  for (int i = 0; i < 1000; ++i) keys += " some";
  const std::string error = "SERVER_ERROR out of memory writing get response";
  EXPECT_EQ(ask(c, "get" + keys), error);
  EXPECT_EQ(ask(c, "gats 100" + keys), error);
  EXPECT_EQ(ask(c, "version").substr(0, 8), "VERSION ");
  EXPECT_EQ(ask(c, "set long 0 0 4000000\r\n" + std::string(4'000'000, 'v')), "STORED");
  EXPECT_EQ(ask(c, "mg long v"), error);
  EXPECT_EQ(ask(c, "mg long s"), "HD s4000000");
  EXPECT_EQ(ask(c, "get some"), "VALUE some 0 200000");
}

}  // namespace
}  // namespace perdure::test
