#include "server/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace perdure::server {

std::vector<std::pair<int, std::string>> sockets_of_service_manager() {
  constexpr int kFirst = 3;
  const char* pid = std::getenv("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::atol(pid) != ::getpid()) return {};
  const char* all_names = std::getenv("LISTEN_FDNAMES");
  std::string_view names = all_names == nullptr ? "" : all_names;
  std::vector<std::pair<int, std::string>> sockets;
  for (int fd = kFirst; fd < kFirst + std::atoi(count); ++fd) {
    const size_t end = names.find(':');
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    sockets.emplace_back(fd, names.substr(0, end));
    names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  }
  return sockets;
}

void tell_service_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || path[0] == '\0') return;
  sockaddr_un address{};
  const size_t bytes = std::strlen(path);
  if (bytes >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, bytes);
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes));
  ::close(fd);
}

}  // namespace perdure::server
