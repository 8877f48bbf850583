// What the server reports about itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"

namespace perdure::server {

class Server;

// The figure of this name, 0 if there is none.
double statistic(const std::vector<Statistic>& all, std::string_view name);

// INFO, with `section` "default" or "all", or the name of one. With the execution lock.
std::string info_text(Server& server, std::string_view section);
// The same figures for Prometheus, in its text format. With the execution lock.
std::string prometheus_text(Server& server);
uint64_t resident_bytes();

}  // namespace perdure::server
