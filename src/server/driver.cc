#include "server/driver.h"

#include <sys/socket.h>

#include <cerrno>

namespace perdure::server {

bool Driver::accept_some(int listener, uint32_t number, int flags, Events& events) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const int fd = ::accept4(listener, nullptr, nullptr, flags | SOCK_CLOEXEC);
    if (fd >= 0) {
      events.accepted.push_back({fd, number});
      continue;
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return true;
    events.lacks_descriptors = true;
    return false;
  }
  return true;
}

}  // namespace perdure::server
