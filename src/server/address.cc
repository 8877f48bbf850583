#include "server/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>

#include "perdure/error.h"

namespace perdure::server {

namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("address \"{}\": {}; write it as 127.0.0.1:6379, [::1]:6379 or *:6379",
                          text, why));
}

[[noreturn]] void throw_socket(const Address& address, const char* what, int reason) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, address.text(), std::strerror(reason)));
}

// Whether somebody listens on a Unix socket.
bool is_in_use(const Address& address) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool answered =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) == 0;
  ::close(fd);
  return answered;
}

}  // namespace

bool Address::is_loopback() const {
  if (storage.ss_family == AF_UNIX) return true;
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
  return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
}

std::string Address::text() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_UNIX) {
    return reinterpret_cast<const sockaddr_un&>(storage).sun_path;
  }
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
    return fmt::format("{}:{}", host, ntohs(in.sin_port));
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
  ::inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof host);
  return fmt::format("[{}]:{}", host, ntohs(in.sin6_port));
}

Address parse_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse(text, "a port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const char* begin = digits.data();
  const char* end = begin + digits.size();
  const auto [rest, error] = std::from_chars(begin, end, port);
  if (error != std::errc() || rest != end) refuse(text, "the port is no number from 0 to 65535");
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  if (brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || host == "localhost") host = "127.0.0.1";
  Address address;
  const bool everywhere = host == "*";
  if (!brackets && !everywhere) {
    auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
    if (::inet_pton(AF_INET, std::string(host).c_str(), &in.sin_addr) == 1) {
      in.sin_family = AF_INET;
      in.sin_port = htons(port);
      address.bytes = sizeof in;
      return address;
    }
  }
  auto& in = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (everywhere) host = "::";
  if ((brackets || everywhere) &&
      ::inet_pton(AF_INET6, std::string(host).c_str(), &in.sin6_addr) == 1) {
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    address.bytes = sizeof in;
    return address;
  }
  refuse(text, "the host is no address (names other than localhost are not looked up)");
}

Address unix_address(std::string_view path) {
  Address address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  if (path.empty() || path.size() >= sizeof un.sun_path) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the path of a Unix socket has 1 to {} bytes, not {}",
                            sizeof un.sun_path - 1, path.size()));
  }
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.data(), path.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

int listen_on(const Address& address, bool shared) {
  const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) throw_socket(address, "make a socket for", errno);
  const auto fail = [&](const char* what) {
    const int reason = errno;
    ::close(fd);
    throw_socket(address, what, reason);
  };
  const int on = 1;
  const int off = 0;
  if (address.storage.ss_family != AF_UNIX) {
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (shared) ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  } else {
    const char* path = reinterpret_cast<const sockaddr_un&>(address.storage).sun_path;
    struct stat there{};
    if (::lstat(path, &there) == 0) {
      if (!S_ISSOCK(there.st_mode) || is_in_use(address)) errno = EADDRINUSE, fail("listen on");
      ::unlink(path);  // of a process that has died
    }
  }
  if (address.storage.ss_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  // The kernel may close the sockets of a process that was killed some moments after its end, where
  // it used io_uring: who starts again at once must not fail for that.
  constexpr int kTries = 100;
  constexpr auto kBetweenTries = std::chrono::milliseconds(10);
  for (int i = 1;; ++i) {
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) == 0) break;
    if (errno != EADDRINUSE || i == kTries) fail("listen on");
    std::this_thread::sleep_for(kBetweenTries);
  }
  if (::listen(fd, 1024) != 0) fail("listen on");
  return fd;
}

Address bound_address(int fd) {
  Address address;
  address.bytes = sizeof address.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes);
  return address;
}

Address peer_address(int fd) {
  Address address;
  address.bytes = sizeof address.storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes);
  return address;
}

}  // namespace perdure::server
