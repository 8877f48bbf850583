// The check command of an external program, kept running: it has stopped just before its main() and
// forks for each image.
//
//   std::unique_ptr<CheckServer> server = CheckServer::start(words, variables);
//   if (server != nullptr) CommandResult result = server->check(false, limits);
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/crash/command.h"

namespace perdure::lab::crash {

class CheckServer {
 public:
  // Starts the command with variables added to its environment. Null if it cannot serve: a script,
  // a program that is linked statically, one that has threads before main(), or that ends before
  // it.
  static std::unique_ptr<CheckServer> start(
      const std::vector<std::string>& words,
      const std::vector<std::pair<std::string, std::string>>& variables);
  ~CheckServer();
  CheckServer(const CheckServer&) = delete;
  CheckServer& operator=(const CheckServer&) = delete;

  // Carries the command out in a child, as run_command() does in a process of its own; with
  // `record` the child records what it does. Throws Error(kIo) if the server is gone.
  CommandResult check(bool record, const CommandLimits& limits);

 private:
  CheckServer() = default;
  bool await_start() const;
  void await_end(pid_t child, const CommandLimits& limits, CommandResult& result);

  pid_t owner_ = -1;  // this process: a copy of the object in a forked one must not end the server
  pid_t process_ = -1;
  int socket_ = -1;
  int output_ = -1;  // files in memory that its standard output and error go to
  int errors_ = -1;
};

}  // namespace perdure::lab::crash
