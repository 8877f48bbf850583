// A connection to a leader, over which a follower asks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::server {

// What the leader answers an error with: "CODE words".
struct LeaderError {
  std::string text;
  bool has_code(std::string_view code) const { return text.starts_with(std::string(code) + " "); }
};

// Throws Error(kIo) if the connection fails, or nothing comes for half a minute, or it is told to
// stop; LeaderError.
class SyncClient {
 public:
  // "HOST:PORT", "[IPv6]:PORT" or a path of a Unix socket. `stop_fd` can be read once it is to
  // stop.
  SyncClient(const std::string& address, int stop_fd);
  // Over a socket that is connected, and then is its own.
  SyncClient(int fd, int stop_fd) : fd_(fd), stop_fd_(stop_fd) {}
  ~SyncClient();
  SyncClient(const SyncClient&) = delete;
  SyncClient& operator=(const SyncClient&) = delete;

  void send(std::initializer_list<std::string_view> arguments);
  // Most that is taken of an answer in words.
  static constexpr uint64_t kWordsBytesMax = uint64_t{64} << 10;
  // The reply is a line ("+OK"), or bytes.
  std::string read_text();
  // A chunk, which has at least one unit, of many long values maybe. Throws kTooLarge, having taken
  // nothing of it, if it claims to be larger than that.
  std::string read_chunk(uint64_t bytes_max);
  // An array of these.
  std::vector<std::string> read_texts();

 private:
  void connect(const std::string& address);
  void await(short events, int timeout_ms);
  void fill(size_t bytes);
  std::string read_line();
  std::string read_bytes(uint64_t length);

  int fd_ = -1;
  const int stop_fd_;
  std::string buffer_;
  size_t at_ = 0;
};

}  // namespace perdure::server
