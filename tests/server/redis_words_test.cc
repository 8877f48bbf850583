// What Redis 7.0.15 answers, to arguments that are wrong above all, one request after the other on
// one connection. With PERDURE_TEST_REDIS=ADDRESS:PORT a Redis server is asked, whose keys go.
#include <cstdlib>

#include "server/fixture.h"

namespace perdure::test {
namespace {

struct Row {
  std::vector<std::string> request;
  std::string reply;
};

const Row kRows[] = {
    {{"SET", "s", "abc"}, "OK"},
    {{"RPUSH", "l", "a", "b", "c"}, "3"},
    {{"HSET", "h", "f", "1"}, "1"},
    {{"SADD", "t", "m"}, "1"},
    {{"ZADD", "z", "1", "a", "2", "b"}, "2"},
    {{"LINDEX", "none", "x"}, "(nil)"},
    {{"LINDEX", "l", "x"}, "-ERR value is not an integer or out of range"},
    {{"LINDEX", "s", "x"}, "-WRONGTYPE Operation against a key holding the wrong kind of value"},
    {{"LSET", "none", "x", "v"}, "-ERR no such key"},
    {{"GETEX", "none", "EX", "x"}, "(nil)"},
    {{"GETEX", "none", "EX", "-1"}, "(nil)"},
    {{"GETEX", "none", "EX", "1", "PERSIST"}, "-ERR syntax error"},
    {{"GETEX", "s", "PERSIST", "PERSIST"}, "abc"},
    {{"GETEX", "s", "EX", "100", "EX", "200"}, "abc"},
    {{"GETEX", "h", "EX", "1", "PX", "1"}, "-ERR syntax error"},
    {{"BITCOUNT", "none", "1"}, "0"},
    {{"BITCOUNT", "none", "x", "y"}, "0"},
    {{"BITCOUNT", "h", "1"}, "-WRONGTYPE Operation against a key holding the wrong kind of value"},
    {{"BITCOUNT", "s", "1"}, "-ERR syntax error"},
    {{"HSCAN", "none", "0", "COUNT", "x"}, "[0 []]"},
    {{"SSCAN", "none", "0", "NOSUCH"}, "[0 []]"},
    {{"ZSCAN", "none", "-1"}, "[0 []]"},
    {{"HSCAN", "h", "x"}, "-ERR invalid cursor"},
    {{"HSCAN", "s", "0", "COUNT", "x"},
     "-WRONGTYPE Operation against a key holding the wrong kind of value"},
    {{"SCAN", "0", "TYPE"}, "-ERR syntax error"},
    {{"HRANDFIELD", "none", "-9223372036854775807"}, "[]"},
    {{"SRANDMEMBER", "none", "-9223372036854775808"},
     "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"},
    {{"SRANDMEMBER", "t", "1", "1"}, "-ERR syntax error"},
    {{"HRANDFIELD", "s", "x"}, "-ERR value is not an integer or out of range"},
    {{"PEXPIREAT", "s", "9223372036854775807"}, "1"},
    {{"PEXPIREAT", "none", "9223372036854775807"}, "0"},
    {{"EXPIREAT", "none", "9223372036854775"}, "0"},
    {{"EXPIREAT", "none", "9223372036854776"}, "-ERR invalid expire time in 'expireat' command"},
    {{"PEXPIRE", "none", "-9223372036854775808"}, "0"},
    {{"EXPIRE", "s", "x", "NOSUCH"}, "-ERR Unsupported option NOSUCH"},
    {{"EXPIRE", "s", "x", "GT", "LT"},
     "-ERR GT and LT options at the same time are not compatible"},
    {{"EXPIRE", "s", "100", "NX", "GT", "LT"},
     "-ERR NX and XX, GT or LT options at the same time are not compatible"},
    {{"PERSIST", "s"}, "1"},
    {{"PSETEX", "s", "9223372036854775", "abc"}, "OK"},
    {{"SET", "s", "abc", "EX", "0", "KEEPTTL"}, "-ERR syntax error"},
    {{"SET", "s", "abc", "EX", "100", "EX", "200", "GET"}, "abc"},
    {{"SET", "s", "abc", "PX", "100", "EX", "200"}, "-ERR syntax error"},
    {{"SET", "s", "abc", "EX", "x", "NX", "XX"}, "-ERR syntax error"},
    {{"GETBIT", "s", "x"}, "-ERR bit offset is not an integer or out of range"},
    {{"GETBIT", "s", ""}, "-ERR bit offset is not an integer or out of range"},
    {{"SET", "two", "12"}, "OK"},
    {{"BITCOUNT", "two", "-5", "-3"}, "3"},
    {{"BITCOUNT", "two", "-5", "-6"}, "0"},
    {{"BITPOS", "two", "0", "-6", "-5"}, "0"},
    {{"BITPOS", "two", "0", "-5", "-6"}, "0"},
    {{"BITFIELD", "s", "GET", "u08", "0"},
     "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but "
     "i64 is."},
    {{"BITFIELD", "s", "GET", "u8", "x"}, "-ERR bit offset is not an integer or out of range"},
    {{"BITFIELD", "s", "GET", "i65", "x"},
     "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but "
     "i64 is."},
    {{"ZADD", "z", "+-1", "c"}, "-ERR value is not a valid float"},
    {{"ZADD", "z", "0x10", "c"}, "1"},
    {{"ZADD", "z", "1e400", "c"}, "-ERR value is not a valid float"},
    {{"ZADD", "s", "+-1", "c"}, "-ERR value is not a valid float"},
    {{"INCRBYFLOAT", "f", "+-1"}, "-ERR value is not a valid float"},
    {{"INCRBYFLOAT", "f", "0x10"}, "16"},
    {{"ZCOUNT", "z", "", "1"}, "1"},
    {{"ZCOUNT", "z", "0x1", "1e400"}, "3"},
    {{"ZCOUNT", "z", "( 1", "2"}, "1"},
    {{"ZCOUNT", "s", "x", "1"}, "-ERR min or max is not a float"},
    {{"ZCOUNT", "z", "nan", "1"}, "-ERR min or max is not a float"},
    {{"ZLEXCOUNT", "s", "a", "b"}, "-ERR min or max not valid string range item"},
    {{"ZRANGE", "z", "0", "-1", "REV", "REV"}, "-ERR syntax error"},
    {{"ZRANGE", "z", "0", "-1", "BYSCORE", "BYLEX"}, "-ERR syntax error"},
    {{"ZRANGE", "z", "0", "-1", "BYSCORE", "BYSCORE"}, "-ERR syntax error"},
    {{"ZRANGE", "z", "0", "-1", "LIMIT", "0", "-1"}, "[a b c]"},
    {{"ZRANGE", "z", "0", "-1", "LIMIT", "0", "1"},
     "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"},
    {{"ZRANGE", "s", "x", "y"}, "-ERR value is not an integer or out of range"},
    {{"ZREVRANGE", "z", "0", "-1", "REV"}, "-ERR syntax error"},
    {{"ZREVRANGE", "z", "0", "-1", "LIMIT", "0", "1"},
     "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"},
    {{"ZRANGEBYSCORE", "z", "1", "2", "BYSCORE"}, "-ERR syntax error"},
    {{"ZRANGEBYLEX", "z", "-", "+", "REV"}, "-ERR syntax error"},
    {{"ZRANGEBYLEX", "z", "-", "+", "WITHSCORES"},
     "-ERR syntax error, WITHSCORES not supported in combination with BYLEX"},
    {{"ZRANGESTORE", "to", "z", "0", "-1", "WITHSCORES"}, "-ERR syntax error"},
    {{"ZREMRANGEBYRANK", "s", "x", "y"}, "-ERR value is not an integer or out of range"},
    {{"ZREMRANGEBYSCORE", "s", "x", "y"}, "-ERR min or max is not a float"},
    {{"ZUNION", "1", "s", "NOSUCH"},
     "-WRONGTYPE Operation against a key holding the wrong kind of value"},
    {{"ZINTER", "1", "z", "WEIGHTS", "x"}, "-ERR weight value is not a float"},
    {{"ZUNIONSTORE", "to", "1", "s", "AGGREGATE", "x"},
     "-WRONGTYPE Operation against a key holding the wrong kind of value"},
    {{"ZRANDMEMBER", "s", "x"}, "-ERR value is not an integer or out of range"},
    {{"ZPOPMIN", "s", "-1"}, "-ERR value is out of range, must be positive"},
    {{"SPOP", "s", "-1"}, "-ERR value is out of range, must be positive"},
    {{"LPOP", "s", "-1"}, "-ERR value is out of range, must be positive"},
    {{"LPOP", "s", "1", "2"}, "-ERR wrong number of arguments for 'lpop' command"},
    {{"LRANGE", "s", "x", "y"}, "-ERR value is not an integer or out of range"},
    {{"LTRIM", "s", "x", "y"}, "-ERR value is not an integer or out of range"},
    {{"LREM", "s", "x", "y"}, "-ERR value is not an integer or out of range"},
    {{"LPOS", "l", "a", "COUNT", "x"}, "-ERR COUNT can't be negative"},
    {{"LPOS", "l", "a", "MAXLEN", "x"}, "-ERR MAXLEN can't be negative"},
    {{"LPOS", "l", "a", "NOSUCH", "x"}, "-ERR syntax error"},
    {{"LPOS", "s", "a", "COUNT", "-1"}, "-ERR COUNT can't be negative"},
    {{"SINTERCARD", "01", "t"}, "-ERR numkeys should be greater than 0"},
    {{"SINTERCARD", "1", "t", "LIMIT", "x"}, "-ERR LIMIT can't be negative"},
    {{"HINCRBY", "s", "f", "x"}, "-ERR value is not an integer or out of range"},
    {{"HINCRBY", "h", "f", "x"}, "-ERR value is not an integer or out of range"},
    {{"HINCRBYFLOAT", "s", "f", "inf"}, "-ERR value is NaN or Infinity"},
    {{"HINCRBYFLOAT", "s", "f", "x"}, "-ERR value is not a valid float"},
    {{"WAIT", "x", "0"}, "-ERR value is not an integer or out of range"},
    {{"WAIT", "0", "x"}, "-ERR timeout is not an integer or out of range"},
    {{"MEMORY", "USAGE", "none", "NOSUCH"}, "-ERR syntax error"},
    {{"MEMORY", "USAGE", "none", "SAMPLES", "-1"}, "-ERR syntax error"},
    {{"MEMORY", "USAGE", "none", "SAMPLES", "x"}, "-ERR value is not an integer or out of range"},
    {{"SELECT", "2147483648"},
     "-ERR value is out of range, value must between -2147483648 and 2147483647"},
    {{"COPY", "s", "to", "DB", "2147483648"},
     "-ERR value is out of range, value must between -2147483648 and 2147483647"},
    {{"MOVE", "s", "-2147483649"},
     "-ERR value is out of range, value must between -2147483648 and 2147483647"},
    {{"SLOWLOG", "LEN", "x"}, "-ERR wrong number of arguments for 'slowlog|len' command"},
    {{"SLOWLOG", "GET", "x"}, "-ERR count should be greater than or equal to -1"},
    {{"OBJECT", "HELP", "x"}, "-ERR wrong number of arguments for 'object|help' command"},
    {{"PUBSUB", "NUMPAT", "x"}, "-ERR wrong number of arguments for 'pubsub|numpat' command"},
    {{"CLIENT", "LIST", "ID", "-1"}, ""},
    {{"CLIENT", "KILL", "ID", "0"}, "-ERR client-id should be greater than 0"},
    {{"COMMAND", "GETKEYS", "GET"}, "-ERR wrong number of arguments for 'command|getkeys' command"},
    {{"COMMAND", "GETKEYS", "ZUNION", "x", "a", "b"},
     "-ERR Invalid arguments specified for command"},
    {{"COMMAND", "GETKEYS", "ZUNION", "3", "a", "b"},
     "-ERR Invalid arguments specified for command"},
    {{"COMMAND", "GETKEYS", "GET", "a", "b"},
     "-ERR Invalid number of arguments specified for command"},
    {{"EXEC", "x"},
     "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"},
    {{"MULTI"}, "OK"},
    {{"CLIENT", "NOSUCH"}, "-ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP."},
    {{"EXEC"}, "-EXECABORT Transaction discarded because of previous errors."},
    {{"MULTI"}, "OK"},
    {{"OBJECT", "ENCODING"}, "-ERR wrong number of arguments for 'object|encoding' command"},
    {{"EXEC"}, "-EXECABORT Transaction discarded because of previous errors."},
    {{"MULTI"}, "OK"},
    {{"SET", "s", "abc", "EX", "0"}, "QUEUED"},
    {{"HSET", "h", "f"}, "-ERR wrong number of arguments for 'hset' command"},
    {{"HELLO", "3"}, "QUEUED"},
    {{"ROLE", "x"}, "-ERR wrong number of arguments for 'role' command"},
    {{"EXEC"}, "-EXECABORT Transaction discarded because of previous errors."},
    {{"MULTI"}, "OK"},
    {{"SET", "s", "abc", "EX", "0"}, "QUEUED"},
    {{"HSET", "h", "f", "1", "g"}, "QUEUED"},
    {{"ACL", "WHOAMI"}, "QUEUED"},
    {{"EXEC"},
     "[-ERR invalid expire time in 'set' command -ERR wrong number of arguments for 'hset' command "
     "default]"},
};

class RedisWords : public ServerTest {};

TEST_F(RedisWords, AreOurs) {
  const char* redis = std::getenv("PERDURE_TEST_REDIS");
  if (redis == nullptr) start();
  RespClient c = redis == nullptr ? resp() : RespClient(redis);
  c({"FLUSHALL"});
  for (const Row& row : kRows) {
    std::string words;
    for (const std::string& one : row.request) words += one + " ";
    EXPECT_EQ(c(row.request), row.reply) << words;
  }
  // The version of the protocol changes within the replies of a transaction.
  c({"MULTI"});
  for (const char* version : {"3", "2"}) {
    c({"HELLO", version});
    c({"ZSCORE", "z", "a"});
  }
  const Reply replies = c.call({"EXEC"});
  ASSERT_EQ(replies.elements.size(), 4U) << replies.to_string();
  EXPECT_EQ(replies.elements[0].kind, '%');
  EXPECT_EQ(replies.elements[1].kind, ',');
  EXPECT_EQ(replies.elements[2].kind, '*');
  EXPECT_EQ(replies.elements[3].kind, '$');
}

}  // namespace
}  // namespace perdure::test
