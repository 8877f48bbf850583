// Where a server listens: HOST:PORT, [IPv6]:PORT, or a path of a Unix socket.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure::server {

struct Address {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;

  bool is_loopback() const;
  // "127.0.0.1:6379", "[::1]:6379", or the path.
  std::string text() const;
};

// Of "127.0.0.1:6379", "[::1]:6379", "localhost:6379", "*:6379" (all of IPv6 and IPv4), ":6379"
// (loopback). Throws Error(kInvalidArgument).
Address parse_address(std::string_view text);
// Of a path. Throws Error(kInvalidArgument) if it is too long.
Address unix_address(std::string_view path);

// A socket that listens there, with SO_REUSEPORT if several are to share the address. Throws
// Error(kIo). A Unix socket that nobody listens on is taken over.
int listen_on(const Address& address, bool shared);
// The address that a socket is bound to, with the port that it was given.
Address bound_address(int fd);
// Of the other end.
Address peer_address(int fd);

}  // namespace perdure::server
