// What clients may send: whatever comes, a session answers, or ends the connection; and how the
// bytes are cut into pieces changes nothing of what a parser finds.
//
// PERDURE_FUZZ_FACE is resp, memcached or memcached-binary. The first byte of an input says how it
// is cut, and whether it is bytes as they come over the wire or numbers that choose commands and
// arguments.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands.h"
#include "server/memcached_binary_parser.h"
#include "server/memcached_parser.h"
#include "server/resp_parser.h"
#include "server/server.h"
#include "server/tls.h"
#include "support/files.h"

namespace {

using namespace perdure;
using namespace perdure::server;

bool has_face(std::string_view name) {
  const char* face = std::getenv("PERDURE_FUZZ_FACE");
  return face != nullptr && std::string_view(face) == name;
}

bool is_binary() {
  static const bool is = has_face("memcached-binary");
  return is;
}

// In either of its protocols.
bool is_memcached() {
  static const bool is = has_face("memcached") || is_binary();
  return is;
}

// What a parser finds, in one string.
template <typename Parser, typename Words, typename Result>
std::string found_in(Parser parser, std::string_view input, size_t piece, Words words,
                     Result need_more, Result error) {
  std::string all;
  std::string waiting;
  size_t come = 0;
  for (;;) {
    size_t consumed = 0;
    const auto result = waiting.empty() ? need_more : parser.parse(waiting, consumed);
    if (!waiting.empty()) {
      if (consumed > waiting.size()) std::abort();
      if (result != need_more) {
        all += static_cast<char>('0' + static_cast<int>(result));
        words(parser, result, all);
      }
      waiting.erase(0, consumed);
      if (result == error) return all;
      if (result != need_more || (consumed > 0 && !waiting.empty())) continue;
    }
    if (come == input.size()) return all;
    const std::string_view next = input.substr(come, piece);
    waiting += next;
    come += next.size();
  }
}

void compare_pieces(std::string_view input, size_t piece) {
  const size_t whole = input.size() + 1;
  if (is_binary()) {
    using Parser = MemcachedBinaryParser;
    const auto words = [](const Parser& parser, Parser::Result result, std::string& out) {
      if (result == Parser::Result::kError) return;
      const BinaryRequest& request = parser.request();
      out += std::to_string(request.opcode) + ' ' + std::to_string(request.opaque) + ' ' +
             std::to_string(request.cas) + '|';
      if (result != Parser::Result::kRequest) return;
      for (const std::string_view part : {request.extras, request.key, request.value}) {
        (out += part) += '|';
      }
    };
    const auto find = [&](size_t bytes) {
      return found_in(Parser(1000), input, bytes, words, Parser::Result::kNeedMore,
                      Parser::Result::kError);
    };
    if (find(whole) != find(piece)) std::abort();
    return;
  }
  if (is_memcached()) {
    using Parser = MemcachedParser;
    const auto words = [](const Parser& parser, Parser::Result result, std::string& out) {
      if (result != Parser::Result::kRequest) return void(out += parser.error());
      for (const std::string_view word : parser.words()) (out += word) += '|';
      out += parser.data();
    };
    const auto find = [&](size_t bytes) {
      return found_in(Parser(1000), input, bytes, words, Parser::Result::kNeedMore,
                      Parser::Result::kError);
    };
    if (find(whole) != find(piece)) std::abort();
    return;
  }
  struct Parser : RespParser {
    using RespParser::RespParser;
    Result parse(std::string_view text, size_t& consumed) {
      arguments.clear();
      return RespParser::parse(text, consumed, arguments);
    }
    std::vector<std::string_view> arguments;
  };
  static const RequestLimits limits{.bulk_bytes_max = 1000,
                                    .request_bytes_max = 4000,
                                    .arguments_max = 100,
                                    .inline_bytes_max = 500};
  const auto words = [](const Parser& parser, Parser::Result result, std::string& out) {
    if (result == Parser::Result::kError) return;  // which limit is met first may differ
    for (const std::string_view one : parser.arguments) (out += one) += '|';
  };
  const auto find = [&](size_t bytes) {
    return found_in(Parser(limits), input, bytes, words, Parser::Result::kNeedMore,
                    Parser::Result::kError);
  };
  if (find(whole) != find(piece)) std::abort();
}

// Commands of the table with arguments that often fit.
std::string request_of(std::string_view& input) {
  const auto take = [&input] {
    const auto byte = static_cast<uint8_t>(input.empty() ? 0 : input[0]);
    if (!input.empty()) input.remove_prefix(1);
    return byte;
  };
  static constexpr std::array<std::string_view, 40> kWords = {
      "a",      "b",       "c",     "d",          "e",       "",
      "0",      "1",       "-1",    "2",          "100",     "-9223372036854775808",
      "1.5",    "inf",     "(1",    "[a",         "-",       "+",
      "nan",    "EX",      "PX",    "NX",         "XX",      "GT",
      "CH",     "INCR",    "LIMIT", "COUNT",      "MATCH",   "*",
      "BEFORE", "LEFT",    "RIGHT", "WITHSCORES", "BYSCORE", "BYLEX",
      "REV",    "WEIGHTS", "AND",   "\0k\1x"};
  const Command& command = commands()[take() % command_count()];
  // These wait, or end the server.
  if (command.name == "debug" || command.name == "shutdown" || command.name == "config") return {};
  const size_t least = static_cast<size_t>(std::abs(command.arity)) - 1;
  const size_t count = command.arity > 0 ? least : least + take() % 5;
  std::string bytes = "*" + std::to_string(count + 1) + "\r\n$" +
                      std::to_string(command.name.size()) + "\r\n" + std::string(command.name) +
                      "\r\n";
  for (size_t i = 0; i < count; ++i) {
    const std::string_view word = kWords[take() % kWords.size()];
    bytes += "$" + std::to_string(word.size()) + "\r\n" + std::string(word) + "\r\n";
  }
  return bytes;
}

class Subject {
 public:
  Subject() {
    Config config;
    config.pool = folder_.file("pool");
    config.create = true;
    config.capacity_bytes = uint64_t{16} << 20;
    config.resp = {"127.0.0.1:0"};
    config.io = "epoll";
    config.value_bytes_max = 1 << 16;
    config.log_level = LogLevel::kError;
    server_ = std::make_unique<Server>(config);
    server_->start([](const std::string&) {});
  }

  void feed(std::string_view input, size_t piece) {
    Connection connection;
    connection.face = is_memcached() ? Face::kMemcached : Face::kResp;
    connection.session = server_->make_session(connection, *server_->loops()[0]);
    for (size_t at = 0; at < input.size(); at += piece) {
      connection.in.append(input.substr(at, piece));
      Session::Outcome outcome = Session::Outcome::kMore;
      while (outcome == Session::Outcome::kMore) {
        const Server::Turn turn(*server_);
        outcome = connection.session->execute(connection);
        if (!turn.finish() || server_->keys()->in_group()) std::abort();
      }
      connection.out.clear();
      if (outcome == Session::Outcome::kClose) break;
    }
    const Server::Turn turn(*server_);
    connection.session->leave();
    // What it did goes, so that inputs stay apart, and the pool does not fill.
    server_->keys()->flush(~uint32_t{0});
    while (server_->keys()->reap(1000)) server_->keys()->finish_turn();
    if (!turn.finish()) std::abort();
  }

 private:
  perdure::test::TempDir folder_;
  std::unique_ptr<Server> server_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Subject& subject = *new Subject;
  if (size < 2) return 0;
  const uint8_t how = data[0];
  std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = how % 64 == 0 ? input.size() : how % 64;
  std::string bytes(input);
  if (how >= 128 && !is_memcached()) {
    bytes.clear();
    while (!input.empty()) bytes += request_of(input);
  } else {
    for (const std::string_view word : {"SLEEP", "HUTDOWN", "CONFIG"}) {
      const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; };
      const auto found =
          std::ranges::search(bytes, word, [&](char a, char b) { return upper(a) == b; });
      if (!found.empty()) return 0;
    }
    compare_pieces(bytes, std::max<size_t>(piece, 1));
  }
  if (!bytes.empty()) subject.feed(bytes, how >= 128 ? bytes.size() : std::max<size_t>(piece, 1));
  return 0;
}
