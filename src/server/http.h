// GET /metrics, for Prometheus.
#pragma once

#include "server/connection.h"

namespace perdure::server {

class Server;

class HttpSession final : public Session {
 public:
  explicit HttpSession(Server& server) : server_(server) {}
  Outcome execute(Connection& connection) override;
  void refuse_turn(Connection& /*connection*/) override {}

 private:
  Server& server_;
};

}  // namespace perdure::server
