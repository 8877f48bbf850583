#include "lab/serve/address.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "perdure/error.h"

namespace perdure::lab::serve {
namespace {

struct Scheme {
  std::string_view name;
  Protocol protocol;
  const char* port;  // null: a path follows
};
constexpr std::array<Scheme, 5> kSchemes = {{
    {"redis", Protocol::kResp, "6379"},
    {"memcached", Protocol::kMemcachedText, "11211"},
    {"memcached+meta", Protocol::kMemcachedMeta, "11211"},
    {"unix", Protocol::kResp, nullptr},
    {"unix+memcached", Protocol::kMemcachedText, nullptr},
}};

[[noreturn]] void refuse_address(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no address of a server: {}; write redis://HOST:PORT, "
                          "memcached://HOST:PORT or unix:///PATH",
                          text, why));
}

unsigned parse_number(std::string_view text, std::string_view digits, unsigned most,
                      std::string_view what) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number > most) {
    refuse_address(text, fmt::format("\"{}\" is no {}", digits, what));
  }
  return number;
}

// HOST[:PORT], where HOST may be in brackets.
void parse_host(std::string_view text, std::string_view rest, ServerAddress& address) {
  size_t colon = rest.rfind(':');
  if (rest.starts_with('[')) {
    const size_t bracket = rest.find(']');
    if (bracket == std::string_view::npos) refuse_address(text, "a bracket is not closed");
    address.host = rest.substr(1, bracket - 1);
    colon = bracket + 1 < rest.size() ? bracket + 1 : std::string_view::npos;
    if (colon != std::string_view::npos && rest[colon] != ':') {
      refuse_address(text, "after a bracket comes a colon and the port");
    }
  } else {
    address.host = rest.substr(0, colon);
  }
  if (address.host.empty()) refuse_address(text, "it names no host");
  if (colon == std::string_view::npos) return;
  address.port = rest.substr(colon + 1);
  if (parse_number(text, address.port, 65535, "port") == 0) refuse_address(text, "0 is no port");
}

[[noreturn]] void fail_to_connect(const ServerAddress& address, const char* reason) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot reach the server at {}: {}", to_string(address), reason));
}

int connect_socket(int family, const sockaddr* to, socklen_t bytes) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int result = 0;
  do {
    result = ::connect(fd, to, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return -1;
}

int connect_to_path(const ServerAddress& address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (address.path.size() >= sizeof to.sun_path) fail_to_connect(address, "the path is too long");
  std::memcpy(to.sun_path, address.path.data(), address.path.size());
  const int fd = connect_socket(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  if (fd < 0) fail_to_connect(address, std::strerror(errno));
  return fd;
}

}  // namespace

bool is_server_address(std::string_view text) { return text.find("://") != std::string_view::npos; }

ServerAddress parse_server_address(std::string_view text) {
  const size_t end = std::min(text.find("://"), text.size());
  const auto scheme = std::ranges::find(kSchemes, text.substr(0, end), &Scheme::name);
  if (scheme == kSchemes.end()) refuse_address(text, "it begins with no protocol known here");
  ServerAddress address;
  address.protocol = scheme->protocol;
  std::string_view rest = text.substr(end + 3);
  if (scheme->port == nullptr) {
    if (!rest.starts_with('/')) refuse_address(text, "a path begins with a slash");
    address.path = rest;
    return address;
  }
  address.port = scheme->port;
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    const size_t colon = who.find(':');
    if (address.protocol != Protocol::kResp || colon == std::string_view::npos) {
      refuse_address(text, "a password goes as :PASSWORD@ before the host of a redis://");
    }
    address.user = who.substr(0, colon);
    address.password = who.substr(colon + 1);
    rest.remove_prefix(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view database = rest.substr(slash + 1);
    if (address.protocol != Protocol::kResp && !database.empty()) {
      refuse_address(text, "memcached has no databases");
    }
    if (!database.empty()) address.database = parse_number(text, database, 1'000'000, "database");
    rest = rest.substr(0, slash);
  }
  parse_host(text, rest, address);
  return address;
}

int connect_to(const ServerAddress& address) {
  if (address.host.empty()) return connect_to_path(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) fail_to_connect(address, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = connect_socket(each->ai_family, each->ai_addr, each->ai_addrlen);
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
  }
  fail_to_connect(address, std::strerror(errno));
}

std::string to_string(const ServerAddress& address) {
  const auto scheme = std::ranges::find_if(kSchemes, [&](const Scheme& each) {
    return each.protocol == address.protocol && (each.port == nullptr) == address.host.empty();
  });
  const std::string_view name = scheme == kSchemes.end() ? "redis" : scheme->name;
  if (address.host.empty()) return fmt::format("{}://{}", name, address.path);
  const bool bracketed = address.host.find(':') != std::string::npos;
  std::string text = fmt::format("{}://{}{}{}:{}", name, bracketed ? "[" : "", address.host,
                                 bracketed ? "]" : "", address.port);
  if (address.database > 0) text += fmt::format("/{}", address.database);
  return text;
}

}  // namespace perdure::lab::serve
