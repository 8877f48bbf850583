#include "cli/served.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/subprocess.h"
#include "common/ticks.h"
#include "perdure/error.h"
#include "server/address.h"

namespace perdure::cli {
namespace {

// A connection to a server on this machine.
class ServerClient {
 public:
  explicit ServerClient(const std::string& address) {
    const server::Address to = server::parse_address(address);
    fd_ = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) != 0) {
      const int reason = errno;
      if (fd_ >= 0) ::close(fd_);
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot reach the server at {}: {}", address, std::strerror(reason)));
    }
  }
  ~ServerClient() { ::close(fd_); }
  ServerClient(const ServerClient&) = delete;
  ServerClient& operator=(const ServerClient&) = delete;

  // Whether what comes back is that.
  bool answers(const std::string& request, const std::string& expected) const {
    if (::send(fd_, request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
      return false;
    }
    std::string answer(expected.size(), '\0');
    const ssize_t got = ::recv(fd_, answer.data(), answer.size(), MSG_WAITALL);
    return got == static_cast<ssize_t>(answer.size()) && answer == expected;
  }

 private:
  int fd_;
};

std::string resp_request(const std::vector<std::string>& words) {
  std::string bytes = fmt::format("*{}\r\n", words.size());
  for (const std::string& word : words) bytes += fmt::format("${}\r\n{}\r\n", word.size(), word);
  return bytes;
}

std::string resp_bulk(const std::string& text) {
  return fmt::format("${}\r\n{}\r\n", text.size(), text);
}

constexpr char kOwnKey[] = "quickstart:served";

class Served {
 public:
  explicit Served(const std::string& pool)
      : process_({"/proc/self/exe", "serve", pool, "--port", "0", "--memcached", "127.0.0.1:0",
                  "--log-level", "error"},
                 STDOUT_FILENO) {
    std::string resp;
    std::string memcached;
    const bool ended = process_.read_lines([&](std::string_view line) {
      if (line.starts_with("resp ")) resp = line.substr(5);
      if (line.starts_with("memcached ")) memcached = line.substr(10);
      return line != "ready";
    });
    if (ended) throw Error(ErrorCode::kIo, "the server did not start");
    resp_ = std::make_unique<ServerClient>(resp);
    memcached_ = std::make_unique<ServerClient>(memcached);
  }

  bool resp(const std::vector<std::string>& words, const std::string& expected) const {
    return resp_->answers(resp_request(words), expected);
  }
  // memcached's keys have no blanks and 250 bytes at most; others are asked for through RESP only.
  static bool is_memcached_key(const std::string& key) {
    return !key.empty() && key.size() <= 250 &&
           key.find_first_of(std::string_view("\0 \r\n\t", 5)) == std::string::npos;
  }
  bool memcached(const std::string& key, const std::string& value) const {
    return memcached_->answers(
        fmt::format("get {}\r\n", key),
        fmt::format("VALUE {} 0 {}\r\n{}\r\nEND\r\n", key, value.size(), value));
  }
  void kill() {
    process_.kill_now();
    process_.wait();
  }
  // In order.
  int shut_down() {
    resp({"SHUTDOWN"}, "");
    return process_.wait();
  }

 private:
  Subprocess process_;
  std::unique_ptr<ServerClient> resp_;
  std::unique_ptr<ServerClient> memcached_;
};

}  // namespace

ServedReport serve_and_ask(const std::string& pool, uint64_t writes,
                           const std::vector<std::pair<std::string, std::string>>& records) {
  ServedReport report;
  const auto expect = [&report](bool right) {
    ++report.asked;
    report.right += right ? 1 : 0;
  };
  const auto ask_all = [&](const Served& served) {
    for (const auto& [key, value] : records) {
      expect(served.resp({"GET", key}, resp_bulk(value)));
      if (Served::is_memcached_key(key)) expect(served.memcached(key, value));
    }
  };
  {
    Served served(pool);
    ask_all(served);
    for (uint64_t i = 1; i <= writes; ++i) {
      expect(served.resp({"INCR", kOwnKey}, fmt::format(":{}\r\n", i)));
    }
    served.kill();
  }
  const double start_s = steady_seconds();
  Served served(pool);
  expect(served.resp({"GET", kOwnKey}, resp_bulk(fmt::format("{}", writes))));
  report.first_answer_ms = (steady_seconds() - start_s) * 1e3;
  ask_all(served);
  expect(served.resp({"DEL", kOwnKey}, ":1\r\n"));
  expect(served.shut_down() == 0);
  return report;
}

}  // namespace perdure::cli
