#include "server/http.h"

#include <fmt/core.h>

#include "server/info.h"
#include "server/server.h"

namespace perdure::server {

namespace {
constexpr size_t kRequestMax = size_t{8} << 10;
}

// One request, one answer, and the end: what asks comes every some seconds.
Session::Outcome HttpSession::execute(Connection& connection) {
  const std::string_view input = connection.in.view();
  if (input.find("\r\n\r\n") == std::string_view::npos) {
    return input.size() > kRequestMax ? Outcome::kClose : Outcome::kIdle;
  }
  const bool get = input.starts_with("GET /metrics ") || input.starts_with("GET /metrics?");
  const std::string body = get ? prometheus_text(server_) : "only GET /metrics is here\n";
  connection.out.append(
      fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                  "Content-Length: {}\r\nConnection: close\r\n\r\n",
                  get ? "200 OK" : "404 Not Found", body.size()));
  connection.out.append(body);
  connection.in.clear();
  return Outcome::kClose;
}

}  // namespace perdure::server
