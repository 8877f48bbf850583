// Which server to talk to, and how.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure::lab::serve {

enum class Protocol : uint8_t { kResp, kMemcachedText, kMemcachedMeta };

struct ServerAddress {
  Protocol protocol = Protocol::kResp;
  std::string host;  // empty: a Unix socket
  std::string port;
  std::string path;       // of the socket
  unsigned database = 0;  // SELECT
  std::string user;
  std::string password;  // AUTH; empty: none
};

// Whether a text is an address at all: it has "://".
bool is_server_address(std::string_view text);

// Reads redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], memcached://HOST[:PORT] (the classic text
// protocol), memcached+meta://HOST[:PORT], unix:///PATH (RESP) and unix+memcached:///PATH. Hosts
// may be names, addresses, and IPv6 in brackets. Throws Error(kInvalidArgument).
ServerAddress parse_server_address(std::string_view text);

// A connected socket that does not wait for more before it sends. Throws Error(kIo), naming the
// address.
int connect_to(const ServerAddress& address);

std::string to_string(const ServerAddress& address);  // without the password

}  // namespace perdure::lab::serve
