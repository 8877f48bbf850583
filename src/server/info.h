// What the server reports about itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure::server {

class Server;

// INFO, with `section` "default" or "all", or the name of one. With the execution lock.
std::string info_text(Server& server, std::string_view section);
// The same figures for Prometheus, in its text format. With the execution lock.
std::string prometheus_text(Server& server);
uint64_t resident_bytes();

}  // namespace perdure::server
