#include "lab/serve/connection.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "perdure/error.h"

namespace perdure::lab::serve {

void throw_server_gone(const ServerAddress& address, const std::string& why) {
  throw Error(ErrorCode::kIo, fmt::format("the server at {} {}", to_string(address), why));
}

ServerConnection::ServerConnection(const ServerAddress& address)
    : address_(address),
      fd_(connect_to(address)),
      writer_(address.protocol, out_),
      parser_(address.protocol) {
  constexpr timeval kPatience{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  const auto greet = [this](std::initializer_list<std::string_view> words) {
    writer_.command(words);
    send();
    const ServerReply& reply = read();
    if (reply.kind != ServerReply::Kind::kError) return;
    const std::string why = fmt::format("refuses {}: {}", *words.begin(), reply.text);
    ::close(std::exchange(fd_, -1));
    throw Error(ErrorCode::kPermission,
                fmt::format("the server at {} {}", to_string(address_), why));
  };
  try {
    if (!address.password.empty() && !address.user.empty()) {
      greet({"AUTH", address.user, address.password});
    } else if (!address.password.empty()) {
      greet({"AUTH", address.password});
    }
    if (address.database > 0) greet({"SELECT", std::to_string(address.database)});
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

ServerConnection::~ServerConnection() {
  if (fd_ >= 0) ::close(fd_);
}

int ServerConnection::release() { return std::exchange(fd_, -1); }

void ServerConnection::send() {
  for (size_t sent = 0; sent < out_.size();) {
    const ssize_t put = ::send(fd_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_server_gone(address_, std::string("is gone: ") + std::strerror(errno));
    sent += static_cast<size_t>(put);
  }
  out_.clear();
}

const ServerReply& ServerConnection::read() {
  std::array<char, size_t{64} << 10> buffer;
  in_.erase(0, consumed_);
  for (;;) {
    const ReplyParser::Result result = parser_.parse(in_, consumed_);
    if (result == ReplyParser::Result::kReply) return parser_.reply();
    if (result == ReplyParser::Result::kBroken) {
      throw_server_gone(address_, "does not talk the protocol of this address");
    }
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) throw_server_gone(address_, "has not answered for 30 s");
    if (got <= 0) throw_server_gone(address_, "has closed the connection");
    in_.append(buffer.data(), static_cast<size_t>(got));
  }
}

bool ServerConnection::is_ready() {
  if (address_.protocol == Protocol::kResp) {
    writer_.command({"PING"});
  } else {
    out_ += address_.protocol == Protocol::kMemcachedMeta ? "mn\r\n" : "version\r\n";
  }
  send();
  return read().kind != ServerReply::Kind::kError;
}

}  // namespace perdure::lab::serve
