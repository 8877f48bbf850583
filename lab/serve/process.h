// Servers that a benchmark starts on this machine, each in a folder of its own, and what they take.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/bench/processors.h"
#include "lab/bench/store_path.h"
#include "lab/serve/address.h"

namespace perdure::lab::serve {

// One that can be started, by name.
struct ServerKind {
  std::string name;  // as it was asked for
  enum class Program : uint8_t { kRedis, kMemcached, kPerdure };
  Program program = Program::kRedis;
  bool append_only = false;  // Redis: every write is synced to its append-only file
  std::string index;         // Perdure's; empty: the default
  Protocol protocol = Protocol::kResp;

  // What an answered write survives, in words.
  std::string durability() const;
  bool keeps_records() const;  // when it is killed
};

// Reads "redis", "redis+aof", "memcached", "memcached:meta", "perdure", "perdure:INDEX" and
// "perdure+memcached[:INDEX]". Throws Error(kInvalidArgument).
ServerKind parse_server_kind(std::string_view name);

struct ServerStartOptions {
  std::string folder;                           // a folder is made in it, and removed
  Processors processors = {};                   // empty: any
  unsigned threads = 1;                         // of memcached and Perdure
  uint64_t capacity_bytes = uint64_t{1} << 30;  // the most that it may take
  std::string command = "/proc/self/exe";       // of Perdure
};

// What a process has taken so far. What cannot be read is 0.
struct ProcessUsage {
  double cpu_s = 0;           // of all threads, since it began
  uint64_t dram_bytes = 0;    // memory of its own: anonymous pages
  uint64_t mapped_bytes = 0;  // pages of files that it has mapped: pools, programs
};
ProcessUsage usage_of(pid_t process);

class ServerProcess {
 public:
  // Starts it on a free port of loopback and waits until it answers. Throws Error(kNotFound) if the
  // program is not installed, and Error(kIo), with the end of its log, if it does not come up.
  ServerProcess(ServerKind kind, ServerStartOptions options);
  ~ServerProcess();  // asks it to end, and kills it after 10 s
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const ServerKind& kind() const { return kind_; }
  const ServerAddress& address() const { return address_; }
  pid_t pid() const { return child_; }
  // Bytes that its folder takes on the medium: its pool, its log of writes.
  uint64_t stored_bytes() const;

  // Ends it with SIGKILL, and starts it again on the same files. Returns at once, with the time of
  // the start (of steady_seconds()).
  double kill_and_restart();

 private:
  void start();
  void wait_until_ready();
  bool answers_all() const;
  std::vector<std::string> arguments() const;
  [[noreturn]] void become(const std::vector<std::string>& words) const;
  [[noreturn]] void fail(const std::string& what);
  bool has_ended();
  void end(int signal, double patience_s);

  ServerKind kind_;
  ServerStartOptions options_;
  StorePath folder_;
  ServerAddress address_;
  pid_t child_ = -1;
  bool is_new_ = true;  // its files are not there yet
};

}  // namespace perdure::lab::serve
