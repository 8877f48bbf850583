#include "lab/serve/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "common/ticks.h"
#include "common/units.h"
#include "lab/serve/connection.h"
#include "perdure/error.h"

namespace perdure::lab::serve {
namespace {

constexpr double kReadyS = 60;
constexpr double kEndS = 10;
constexpr int kExecFailed = 127;
constexpr const char* kLog = "server.log";
constexpr const char* kKnown =
    "redis, redis+aof, memcached, memcached:meta, perdure, perdure:INDEX, perdure+memcached, or an "
    "address such as "
    "redis://HOST:PORT";

void sleep_ms(unsigned milliseconds) { ::usleep(milliseconds * 1000); }

// One that nobody listens on at the moment.
uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  const bool found = fd >= 0 &&
                     ::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &bytes) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (!found) {
    throw Error(ErrorCode::kIo, fmt::format("cannot find a free port: {}", std::strerror(reason)));
  }
  return ntohs(at.sin_port);
}

std::string last_lines(const std::string& path) {
  constexpr size_t kBytes = 2000;
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.size() > kBytes ? text.substr(text.size() - kBytes) : text;
}

uint64_t kilobytes_of(const std::string& status, std::string_view name) {
  const size_t at = status.find(name);
  return at == std::string::npos
             ? 0
             : std::strtoull(status.c_str() + at + name.size(), nullptr, 10) * 1024;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string ServerKind::durability() const {
  switch (program) {
    case Program::kPerdure:
      return "each write, as the medium of its pool does";
    case Program::kRedis:
      return append_only ? "each write, as the medium of its file does" : "nothing";
    case Program::kMemcached:
      break;
  }
  return "nothing";
}

bool ServerKind::keeps_records() const { return program == Program::kPerdure || append_only; }

ServerKind parse_server_kind(std::string_view name) {
  ServerKind kind{.name = std::string(name)};
  const size_t colon = name.find(':');
  const std::string_view base = name.substr(0, colon);
  const std::string_view detail = colon == std::string_view::npos ? "" : name.substr(colon + 1);
  bool known = colon == std::string_view::npos || !detail.empty();
  if (base == "redis" || base == "redis+aof") {
    kind.append_only = base == "redis+aof";
    known = known && detail.empty();
  } else if (base == "memcached") {
    kind.program = ServerKind::Program::kMemcached;
    kind.protocol = detail.empty() ? Protocol::kMemcachedText : Protocol::kMemcachedMeta;
    known = known && (detail.empty() || detail == "meta");
  } else if (base == "perdure" || base == "perdure+memcached") {
    kind.program = ServerKind::Program::kPerdure;
    kind.index = detail;
    kind.protocol = base == "perdure" ? Protocol::kResp : Protocol::kMemcachedText;
    known = known && (detail.empty() || detail == "ordered" || detail == "hash" || detail == "pm");
  } else {
    known = false;
  }
  if (!known) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no server \"{}\" to measure: choose from {}", name, kKnown));
  }
  return kind;
}

ProcessUsage usage_of(pid_t process) {
  ProcessUsage usage;
  const std::string folder = fmt::format("/proc/{}/", process);
  const std::string status = read_all(folder + "status");
  usage.dram_bytes = kilobytes_of(status, "RssAnon:");
  usage.mapped_bytes = kilobytes_of(status, "RssFile:") + kilobytes_of(status, "RssShmem:");
  // The name, in parentheses, may hold anything.
  const std::string stat = read_all(folder + "stat");
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  uint64_t user = 0;
  uint64_t system = 0;
  fields >> user >> system;
  usage.cpu_s = static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return usage;
}

ServerProcess::ServerProcess(ServerKind kind, ServerStartOptions options)
    : kind_(std::move(kind)), options_(std::move(options)), folder_(options_.folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder_.path(), failed);
  if (failed) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot make the folder {}: {}", folder_.path(), failed.message()));
  }
  address_.protocol = kind_.protocol;
  address_.host = "127.0.0.1";
  address_.port = std::to_string(free_port());
  try {
    start();
    wait_until_ready();
  } catch (...) {
    end(SIGKILL, kEndS);
    throw;
  }
}

ServerProcess::~ServerProcess() { end(SIGTERM, kEndS); }

std::vector<std::string> ServerProcess::arguments() const {
  const std::string megabytes = std::to_string((options_.capacity_bytes >> 20) + 1);
  switch (kind_.program) {
    case ServerKind::Program::kRedis: {
      std::vector<std::string> words = {"redis-server",
                                        "--port",
                                        address_.port,
                                        "--bind",
                                        "127.0.0.1",
                                        "--dir",
                                        folder_.path(),
                                        "--save",
                                        "",
                                        "--appendonly",
                                        kind_.append_only ? "yes" : "no"};
      if (kind_.append_only) words.insert(words.end(), {"--appendfsync", "always"});
      return words;
    }
    case ServerKind::Program::kMemcached: {
      std::vector<std::string> words = {
          "memcached", "-l", "127.0.0.1", "-p", address_.port, "-U",
          "0",         "-m", megabytes,   "-M", "-t",          std::to_string(options_.threads)};
      if (::geteuid() == 0) words.insert(words.end(), {"-u", "root"});
      return words;
    }
    case ServerKind::Program::kPerdure:
      break;
  }
  const bool resp = kind_.protocol == Protocol::kResp;
  const std::string here = "127.0.0.1:" + address_.port;
  std::vector<std::string> words = {options_.command,
                                    "serve",
                                    folder_.path() + "/pool",
                                    "--threads",
                                    std::to_string(options_.threads),
                                    "--resp",
                                    resp ? here : "127.0.0.1:0",
                                    "--log-level",
                                    "warning"};
  if (!resp) words.insert(words.end(), {"--memcached", here});
  if (!is_new_) return words;
  words.insert(words.end(), {"--create", "--capacity", std::to_string(options_.capacity_bytes)});
  if (!kind_.index.empty()) words.insert(words.end(), {"--index", kind_.index});
  return words;
}

// In the child.
void ServerProcess::become(const std::vector<std::string>& words) const {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // Ctrl-C is for the benchmark, which ends it in order
  if (!options_.processors.empty()) run_on_processors(options_.processors);
  const std::string log = folder_.path() + "/" + kLog;
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int nowhere = ::open("/dev/null", O_RDONLY);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  ::_exit(kExecFailed);
}

void ServerProcess::start() {
  const std::vector<std::string> words = arguments();
  child_ = ::fork();
  if (child_ == 0) become(words);
  if (child_ < 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  }
  is_new_ = false;
}

bool ServerProcess::has_ended() {
  int status = 0;
  if (child_ < 0 || ::waitpid(child_, &status, WNOHANG) != child_) return false;
  child_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExecFailed) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} cannot be measured: {} is not installed",
                                                  kind_.name, arguments()[0]));
  }
  return true;
}

void ServerProcess::fail(const std::string& what) {
  throw Error(ErrorCode::kIo,
              fmt::format("{} {}\n{}", kind_.name, what, last_lines(folder_.path() + "/" + kLog)));
}

// Perdure answers before it can answer everything, and says when it can.
bool ServerProcess::answers_all() const {
  if (kind_.program == ServerKind::Program::kPerdure &&
      !last_lines(folder_.path() + "/" + kLog).ends_with("ready\n")) {
    return false;
  }
  try {
    return ServerConnection(address_).is_ready();
  } catch (const Error&) {
    return false;  // not yet
  }
}

void ServerProcess::wait_until_ready() {
  const double start_s = steady_seconds();
  for (;;) {
    if (has_ended()) fail("ended instead of serving");
    if (answers_all()) return;
    if (steady_seconds() - start_s > kReadyS) fail("does not answer");
    sleep_ms(5);
  }
}

void ServerProcess::end(int signal, double patience_s) {
  if (child_ < 0) return;
  ::kill(child_, signal);
  const double start_s = steady_seconds();
  while (::waitpid(child_, nullptr, WNOHANG) == 0) {
    if (steady_seconds() - start_s > patience_s) ::kill(child_, SIGKILL);
    sleep_ms(2);
  }
  child_ = -1;
}

double ServerProcess::kill_and_restart() {
  end(SIGKILL, kEndS);
  const double start_s = steady_seconds();
  start();
  return start_s;
}

uint64_t ServerProcess::stored_bytes() const {
  uint64_t bytes = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path(), failed)) {
    struct stat file{};
    if (entry.path().filename() == kLog || ::stat(entry.path().c_str(), &file) != 0) continue;
    if (S_ISREG(file.st_mode)) bytes += static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace perdure::lab::serve
