// An error of a command, as the client is to read it: "CODE message".
#pragma once

#include <string>
#include <utility>

namespace perdure::server {

struct CommandError {
  explicit CommandError(std::string message) : text(std::move(message)) {}
  std::string text;
};

}  // namespace perdure::server
