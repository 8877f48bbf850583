#include "server/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "server/address.h"

namespace perdure::test {

namespace {
constexpr int kPatienceMs = 30000;
}

Socket::Socket(const std::string& address) {
  const server::Address to =
      address.starts_with('/') ? server::unix_address(address) : server::parse_address(address);
  fd_ = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&to.storage), to.bytes) != 0) {
    const std::string why = std::strerror(errno);
    if (fd_ >= 0) ::close(fd_);
    throw std::runtime_error("cannot connect to " + address + ": " + why);
  }
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket::Socket(Socket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}

void Socket::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) throw std::runtime_error("cannot send");
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

size_t Socket::send_some(std::string_view bytes) {
  const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent > 0 ? static_cast<size_t>(sent) : 0;
}

bool Socket::fill() {
  pollfd wanted{fd_, POLLIN, 0};
  if (::poll(&wanted, 1, kPatienceMs) <= 0) throw std::runtime_error("nothing comes");
  char bytes[65536];
  const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string Socket::read_line() {
  for (size_t from = 0;;) {
    const size_t end = buffer_.find("\r\n", from);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 2);
      return line;
    }
    from = buffer_.empty() ? 0 : buffer_.size() - 1;
    if (!fill()) throw std::runtime_error("the server has closed the connection");
  }
}

std::string Socket::read_bytes(size_t count) {
  while (buffer_.size() < count) {
    if (!fill()) throw std::runtime_error("the server has closed the connection");
  }
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return bytes;
}

std::string Socket::read_to_end() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

bool Socket::ends_within(int timeout_ms) {
  pollfd wanted{fd_, POLLIN, 0};
  if (::poll(&wanted, 1, timeout_ms) <= 0) return false;
  char byte = 0;
  return ::recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

std::string RespClient::encode(const std::vector<std::string>& arguments) {
  std::string bytes = "*" + std::to_string(arguments.size()) + "\r\n";
  for (const std::string& one : arguments) {
    bytes += "$" + std::to_string(one.size()) + "\r\n" + one + "\r\n";
  }
  return bytes;
}

Reply RespClient::read() {
  const std::string line = read_line();
  Reply reply{.kind = line.at(0), .text = line.substr(1)};
  switch (reply.kind) {
    case ':':
      reply.number = std::stoll(reply.text);
      break;
    case '_':
      reply.is_null = true;
      break;
    case '$':
    case '=':
      reply.number = std::stoll(reply.text);
      reply.is_null = reply.number < 0;
      if (reply.is_null) break;
      reply.text = read_bytes(static_cast<size_t>(reply.number));
      read_bytes(2);
      break;
    case '*':
    case '~':
    case '>':
    case '%': {
      const int64_t count = std::stoll(reply.text) * (reply.kind == '%' ? 2 : 1);
      reply.is_null = count < 0;
      for (int64_t i = 0; i < count; ++i) reply.elements.push_back(read());
      break;
    }
    default:
      break;
  }
  return reply;
}

std::string Reply::to_string() const {
  if (is_null) return "(nil)";
  if (kind == '-') return "-" + text;
  if (kind != '*' && kind != '~' && kind != '>' && kind != '%') return text;
  std::string all = "[";
  for (const Reply& one : elements) all += (all.size() > 1 ? " " : "") + one.to_string();
  return all + "]";
}

}  // namespace perdure::test
