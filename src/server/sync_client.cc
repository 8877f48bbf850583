#include "server/sync_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "perdure/error.h"
#include "server/address.h"

namespace perdure::server {

namespace {

constexpr int kConnectMs = 5000;
constexpr int kAnswerMs = 30000;
constexpr size_t kLineMax = 4096;
constexpr size_t kAnswersMax = 1024;
constexpr uint64_t kNoChunk = uint64_t{1} << 40;  // what says that it is that large is none

[[noreturn]] void throw_leader(const std::string& what) {
  throw Error(ErrorCode::kIo, "the leader: " + what);
}

uint64_t length_of(std::string_view digits, uint64_t max) {
  uint64_t length = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
  if (error != std::errc() || rest != digits.data() + digits.size() || length > max) {
    throw_leader("answers what is no RESP");
  }
  return length;
}

}  // namespace

SyncClient::SyncClient(const std::string& address, int stop_fd) : stop_fd_(stop_fd) {
  try {
    connect(address);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

SyncClient::~SyncClient() {
  if (fd_ >= 0) ::close(fd_);
}

void SyncClient::connect(const std::string& address) {
  const auto try_one = [&](int family, const sockaddr* to, socklen_t bytes) {
    fd_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) throw_leader(std::strerror(errno));
    int failure = 0;
    if (::connect(fd_, to, bytes) != 0) failure = errno;
    if (failure == EINPROGRESS) {
      await(POLLOUT, kConnectMs);
      socklen_t size = sizeof failure;
      ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &failure, &size);
    }
    if (failure == 0) return;
    ::close(std::exchange(fd_, -1));
    throw_leader(fmt::format("{}: {}", address, std::strerror(failure)));
  };
  if (address.starts_with('/')) {
    const Address to = unix_address(address);
    return try_one(AF_UNIX, reinterpret_cast<const sockaddr*>(&to.storage), to.bytes);
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) throw_leader("its address is HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failure =
          ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found)) {
    throw_leader(fmt::format("{}: {}", address, ::gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    try {
      try_one(one->ai_family, one->ai_addr, one->ai_addrlen);
      break;
    } catch (const Error&) {
      if (one->ai_next == nullptr) throw;
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }
  }
  // Where nobody listens on a port of those that the kernel gives to who connects, it may give that
  // one, and the connection leads to itself.
  if (bound_address(fd_).text() == peer_address(fd_).text()) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    throw_leader(fmt::format("{}: nobody is there", address));
  }
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void SyncClient::await(short events, int timeout_ms) {
  pollfd fds[] = {{fd_, events, 0}, {stop_fd_, POLLIN, 0}};
  for (;;) {
    const int ready = ::poll(fds, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if ((fds[1].revents & POLLIN) != 0) throw_leader("is not asked any more");
    if (ready <= 0) throw_leader("does not answer");
    return;
  }
}

void SyncClient::send(std::initializer_list<std::string_view> arguments) {
  std::string bytes = fmt::format("*{}\r\n", arguments.size());
  for (const std::string_view one : arguments) {
    bytes += fmt::format("${}\r\n", one.size());
    bytes += one;
    bytes += "\r\n";
  }
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t sent = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      rest.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EINTR) {
      await(POLLOUT, kAnswerMs);
    } else {
      throw_leader(std::strerror(errno));
    }
  }
}

// Until so many bytes are there, or, with 0, some more.
void SyncClient::fill(size_t bytes) {
  if (at_ > 0 && at_ == buffer_.size()) {
    buffer_.clear();
    at_ = 0;
  }
  const size_t wanted = bytes == 0 ? buffer_.size() - at_ + 1 : bytes;
  if (bytes > 0) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
  char some[65536];
  while (buffer_.size() - at_ < wanted) {
    await(POLLIN, kAnswerMs);
    const ssize_t got = ::recv(fd_, some, sizeof some, 0);
    if (got == 0) throw_leader("has closed the connection");
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      throw_leader(std::strerror(errno));
    }
    buffer_.append(some, static_cast<size_t>(got));
  }
}

std::string SyncClient::read_line() {
  for (;;) {
    const size_t end = buffer_.find("\r\n", at_);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(at_, end - at_);
      at_ = end + 2;
      if (line.empty()) throw_leader("answers what is no RESP");
      if (line[0] == '-') {
        // It goes to the log and to INFO: nothing of it is to look like a line of theirs.
        for (char& c : line) c = static_cast<unsigned char>(c) < ' ' || c == 127 ? '?' : c;
        throw LeaderError{line.substr(1)};
      }
      return line;
    }
    if (buffer_.size() - at_ > kLineMax) throw_leader("answers what is no RESP");
    fill(0);
  }
}

std::string SyncClient::read_bytes(uint64_t length) {
  fill(length + 2);
  std::string bytes = buffer_.substr(at_, length);
  at_ += length + 2;
  return bytes;
}

std::string SyncClient::read_text() {
  const std::string line = read_line();
  if (line[0] == '+' || line[0] == ':') return line.substr(1);
  if (line[0] != '$') throw_leader("answers what is no RESP");
  return read_bytes(length_of(std::string_view(line).substr(1), kWordsBytesMax));
}

std::string SyncClient::read_chunk(uint64_t bytes_max) {
  const std::string line = read_line();
  if (line[0] != '$') throw_leader("answers what is no RESP");
  const uint64_t length = length_of(std::string_view(line).substr(1), kNoChunk);
  if (length > bytes_max) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("the leader tells {} bytes at once, which it has written together; {} "
                            "are the most: raise follow-chunk-max",
                            length, bytes_max));
  }
  return read_bytes(length);
}

std::vector<std::string> SyncClient::read_texts() {
  const std::string line = read_line();
  if (line[0] != '*') throw_leader("answers what is no RESP");
  const uint64_t count = length_of(std::string_view(line).substr(1), kAnswersMax);
  std::vector<std::string> all;
  for (uint64_t i = 0; i < count; ++i) all.push_back(read_text());
  return all;
}

}  // namespace perdure::server
