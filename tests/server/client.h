// Clients for tests: they send what they are told, and wait for what comes back.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::test {

// A connection to an address as the server prints it: "127.0.0.1:6379", "[::1]:6379" or a path.
// What fails throws std::runtime_error; so does waiting for more than half a minute.
class Socket {
 public:
  explicit Socket(const std::string& address);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(std::string_view bytes);
  // As much as goes at once; returns how much.
  size_t send_some(std::string_view bytes);
  std::string read_line();  // without its end
  std::string read_bytes(size_t count);
  // All until the other side closes.
  std::string read_to_end();
  // Whether the other side has closed, or does within that time.
  bool ends_within(int timeout_ms);
  int fd() const { return fd_; }

 private:
  bool fill();
  int fd_;
  std::string buffer_;
};

// A reply of RESP.
struct Reply {
  char kind = 0;  // its first byte
  std::string text;
  int64_t number = 0;
  bool is_null = false;
  std::vector<Reply> elements;

  // "OK", "7", "(nil)", "-ERR ...", "[a b]".
  std::string to_string() const;
};

class RespClient : public Socket {
 public:
  using Socket::Socket;
  void write(const std::vector<std::string>& arguments) { send(encode(arguments)); }
  Reply read();
  Reply call(const std::vector<std::string>& arguments) {
    write(arguments);
    return read();
  }
  // The reply in short.
  std::string operator()(const std::vector<std::string>& arguments) {
    return call(arguments).to_string();
  }
  static std::string encode(const std::vector<std::string>& arguments);
};

}  // namespace perdure::test
