// systemd's protocols for services: sockets that it has opened, and word of what the service does.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perdure::server {

// Descriptors and their names (FileDescriptorName=), none without socket activation. Once. Source:
// sd_listen_fds(3).
std::vector<std::pair<int, std::string>> sockets_of_service_manager();
// Source: sd_notify(3). Nothing happens without a service manager.
void tell_service_manager(std::string_view state);

}  // namespace perdure::server
