#include "server/server.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "perdure/catalog.h"
#include "perdure/error.h"
#include "pm/unfinished_file.h"
#include "server/address.h"
#include "server/commands.h"
#include "server/http.h"
#include "server/info.h"
#include "server/memcached.h"
#include "server/replica_writer.h"
#include "server/resp_session.h"
#include "server/service_manager.h"
#include "server/tls.h"

namespace perdure::server {

namespace {

constexpr size_t kSlowArguments = 32;
constexpr size_t kSlowArgumentBytes = 128;

uint16_t port_of(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  }
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  }
  return 0;
}

}  // namespace

Server::Server(const Config& config)
    : config_(config),
      clock_(TickClock::get()),
      command_metrics_(command_count()),
      memcached_metrics_(command_count()),
      stop_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  require_sound(config_);
  acl_ = make_acl(config_);
  if (stop_fd_ < 0) throw Error(ErrorCode::kIo, "eventfd has failed");
  apply_limits();
}

Server::~Server() {
  try {
    finish();
  } catch (const std::exception& error) {
    log_.write(LogLevel::kError, "{}", error.what());
  }
  ::close(stop_fd_);
}

void Server::apply_limits() {
  log_.set_level(config_.log_level);
  limits_.connections_max = config_.connections_max;
  limits_.idle_timeout_s = config_.idle_timeout_s;
  limits_.slow_timeout_s = config_.slow_timeout_s;
  limits_.output_bound =
      std::min(config_.output_bytes_max, UINT64_MAX / 2) + kOutputPauseBytes + kOutputMax;
  events_.set_kinds(config_.notify_events);
}

void Server::set_config(const Setting& setting, std::string_view value) {
  const std::string password = config_.password;
  setting.set(config_, value);
  if (config_.password != password) acl_.set_default_password(config_.password);
  apply_limits();
}

// As many descriptors as the system grants; connections are limited to what is left of them.
void Server::raise_file_limit() {
  constexpr rlim_t kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < kOthers + limits_.connections_max) {
    limits_.connections_max =
        static_cast<uint32_t>(std::max(limit.rlim_cur, 2 * kOthers) - kOthers);
    log_.write(LogLevel::kWarning, "at most {} connections: the system grants {} descriptors",
               limits_.connections_max.load(), limit.rlim_cur);
  }
}

void Server::start(const std::function<void(const std::string&)>& tell) {
  started_s_ = static_cast<uint64_t>(std::time(nullptr));
  raise_file_limit();
  if (!config_.tls_resp.empty()) {
    tls_ = make_tls_context(config_.tls_certificate, config_.tls_key, config_.tls_ca);
  }
  for (uint32_t i = 0; i < config_.threads; ++i) loops_.push_back(std::make_unique<Loop>(*this, i));
  listen(tell);
  for (const auto& loop : loops_) loop->start();
  opening_s_ = steady_seconds();
  open_store();
  finish_opening();
}

void Server::listen(const std::function<void(const std::string&)>& tell) {
  if (adopt_sockets(tell)) return;
  for (const std::string& one : config_.resp) listen_on_all(one, Face::kResp, tell);
  for (const std::string& one : config_.tls_resp) listen_on_all(one, Face::kTlsResp, tell);
  for (const std::string& one : config_.memcached) listen_on_all(one, Face::kMemcached, tell);
  if (!config_.metrics.empty()) listen_on_all(config_.metrics, Face::kMetrics, tell);
  if (!config_.unix_path.empty()) {
    loops_[0]->add_listener(listen_on(unix_address(config_.unix_path), false), Face::kResp);
    tell(fmt::format("unix {}", config_.unix_path));
  }
}

// One socket for each loop, all on the same address: the kernel spreads the connections.
void Server::listen_on_all(const std::string& text, Face face,
                           const std::function<void(const std::string&)>& tell) {
  Address address = parse_address(text);
  const bool shared = loops_.size() > 1;
  for (const auto& loop : loops_) {
    const int fd = listen_on(address, shared);
    loop->add_listener(fd, face);
    address = bound_address(fd);  // port 0 has become the one that the others share
  }
  if (face == Face::kResp && first_port_ == 0) first_port_ = port_of(address);
  tell(fmt::format("{} {}", to_string(face), address.text()));
}

// Sockets that the service manager has opened, named after what is to be spoken on them.
bool Server::adopt_sockets(const std::function<void(const std::string&)>& tell) {
  const auto sockets = sockets_of_service_manager();
  for (const auto& [fd, name] : sockets) {
    Face face = Face::kResp;
    for (const Face one : {Face::kTlsResp, Face::kMemcached, Face::kMetrics}) {
      if (name == to_string(one)) face = one;
    }
    if (face == Face::kTlsResp && tls_ == nullptr) {
      tls_ = make_tls_context(config_.tls_certificate, config_.tls_key, config_.tls_ca);
    }
    // All loops wait on the same socket; who comes first accepts.
    for (const auto& loop : loops_) loop->add_listener(::dup(fd), face);
    tell(fmt::format("{} {}", to_string(face), bound_address(fd).text()));
    ::close(fd);
  }
  return !sockets.empty();
}

void Server::open_store() {
  PoolOptions options;
  options.capacity_bytes = config_.capacity_bytes;
  options.durability = config_.durability == "process" ? Durability::kProcess
                       : config_.durability == "power" ? Durability::kPower
                                                       : Durability::kBest;
  if (!config_.domain.empty()) {
    options.force_domain = true;
    options.domain = parse_domain(config_.domain);
  }
  options.serve_backups = true;
  StoreOptions store_options;
  store_options.garbage_percent = config_.garbage_percent;
  store_options.bytes_max = config_.memory_bytes;
  store_options.evict = config_.evict;
  store_options.may_evict = Keyspace::may_evict;
  store_options.evicted = [this](std::string_view raw) { events_.note_evicted(raw); };
  // The heap, other structures and the steps of compaction need some, too.
  options.capacity_bytes = std::max(options.capacity_bytes, config_.memory_bytes / 7 * 8);
  // As much again for an index that is in the pool.
  if (config_.index == "pm") {
    options.capacity_bytes = std::max(options.capacity_bytes, 2 * config_.memory_bytes);
  }
  if (config_.index == "hash") store_options.index = StoreIndex::kHash;
  if (config_.index == "ordered") store_options.index = StoreIndex::kOrdered;
  if (config_.index == "pm") store_options.index = StoreIndex::kPm;
  store_options.unread_bytes = config_.log_bytes;
  store_options.serve_early = true;
  const bool is_new = config_.create && ::access(config_.pool.c_str(), F_OK) != 0;
  pool_.emplace(is_new ? Pool::create(config_.pool, options) : Pool::open(config_.pool, options));
  const auto structures = pool_->structures();
  const bool is_there =
      std::ranges::find(structures, config_.name, &StructureInfo::name) != structures.end();
  std::unique_ptr<store::StoreImpl> store;
  if (!is_there && config_.create) {
    if (config_.index.empty()) store_options.index = StoreIndex::kOrdered;
    store = store::StoreImpl::create(*pool_, config_.name, store_options);
  } else {
    store = store::StoreImpl::open(*pool_, config_.name, store_options, Keyspace::keys_at_start());
  }
  auto keys = std::make_unique<Keyspace>(*store, pm::random_number(config_.pool));
  if (!config_.follow.empty()) {
    if (const auto state = Follower::must_make_anew(*keys)) {
      log_.write(LogLevel::kWarning,
                 "{} has a part of a copy, which is damaged: all of it is made anew", config_.pool);
      store_options.index = store->is_ordered()        ? StoreIndex::kOrdered
                            : store->has_index_in_pm() ? StoreIndex::kPm
                                                       : StoreIndex::kHash;
      keys.reset();
      store.reset();
      // A crash in between leaves nothing, of which a copy is made as well.
      drop_structure(*pool_, config_.name);
      store = store::StoreImpl::create(*pool_, config_.name, store_options);
      for (uint32_t i = 0; i < store->partitions(); ++i) store->require_ready(i);
      keys = std::make_unique<Keyspace>(*store, pm::random_number(config_.pool));
      ReplicaWriter(*keys).write_state(*state);
    }
  }
  store->answer_backups(&execution_);
  // Before anybody reads or writes.
  std::unique_ptr<Follower> follower;
  if (config_.follow.empty()) {
    Follower::take_over_at_start(*this, *keys);
  } else {
    follower = std::make_unique<Follower>(*this, *keys);
    follower->prepare();
  }
  const std::lock_guard lock(execution_);
  store_ = std::move(store);
  keys_ = std::move(keys);
  follower_ = std::move(follower);
}

void Server::finish_opening() {
  uint32_t failed = 0;
  for (uint32_t number = 0; number < store_->partitions(); ++number) {
    try {
      store_->require_ready(number);
    } catch (const Error& error) {
      // What cannot be read at all is not served.
      if (++failed == store_->partitions()) throw;
      log_.write(LogLevel::kError, "partition {} cannot be read, the others serve: {}", number,
                 error.what());
    }
  }
  const PoolInfo info = pool_->info();
  uint64_t records = 0;
  if (failed == 0 && follower_ == nullptr) find_replicas();
  {
    const std::lock_guard lock(execution_);
    records = static_cast<uint64_t>(statistic(store_->statistics(), "records"));
    recovery_s_ = steady_seconds() - opening_s_;
    recovered_records_ = records;
    loading_ = false;
  }
  if (store_->lacks_room_for_index()) {
    log_.write(LogLevel::kWarning,
               "{} has no room for the index in PM: it is in DRAM until the next start with room "
               "for it, which reads all records",
               config_.pool);
  }
  if (!info.serves_backups) {
    log_.write(
        LogLevel::kWarning,
        "backups cannot be made while it runs: the system gave no socket for them, or another "
        "process has its name");
  }
  log_.write(LogLevel::kInfo,
             "{} has {} records, opened in {:.3f} s; {} on {}, durability {}, index {}, io {}",
             config_.pool, records, recovery_s_, to_string(info.domain), to_string(info.medium),
             to_string(info.durability),
             keys_->is_ordered()         ? "ordered"
             : store_->has_index_in_pm() ? "pm"
                                         : "hash",
             loops_[0]->driver_name());
  if (follower_ != nullptr) follower_->start();
}

// Those that the pool knows.
void Server::find_replicas() {
  const Turn turn(*this);
  Follower::forget_anew(*this, *keys_);
  for (const std::string& name : store_->consumers()) {
    if (const auto follower = SyncSource::follower_of(name)) replicas_.try_emplace(*follower);
  }
  if (!turn.finish()) throw Error(ErrorCode::kIo, "the medium has failed");
}

void Server::take_over() {
  if (!is_follower()) return;
  if (follower_ == nullptr) throw store::NotReady();
  follower_->take_over();
  has_taken_over_ = true;
}

// A snapshot costs room as long as it is there. With the execution lock.
void Server::look_after_replicas() {
  constexpr uint64_t kPatienceMs = 60'000;
  for (auto& [id, replica] : replicas_) {
    if (!replica.copies || steady_ms() - replica.asked_ms < kPatienceMs) continue;
    log_.write(LogLevel::kWarning, "follower {:016x} does not take its copy: closed", id);
    for (const auto& loop : loops_) loop->post_close(replica.connection);
    replica.asked_ms = steady_ms();
  }
}

Server::Positions Server::positions_of_turn() {
  if (turn_positions_ == nullptr) turn_positions_ = std::make_shared<std::vector<uint64_t>>();
  return turn_positions_;
}

void Server::settle_positions() {
  if (turn_positions_ == nullptr) [[likely]]
    return;
  for (uint32_t i = 0; i < store_->partitions(); ++i) {
    turn_positions_->push_back(store_->is_ready(i) ? store_->kept_changes(i).next : 0);
  }
  turn_positions_.reset();
}

size_t Server::followers_with(const Positions& positions) const {
  return static_cast<size_t>(std::ranges::count_if(replicas_, [&](const auto& one) {
    const Replica& replica = one.second;
    if (replica.connection == 0 || replica.copies || replica.has.empty()) return false;
    if (positions == nullptr) return true;
    if (positions == turn_positions_) return false;  // what the turn writes nobody has yet
    for (size_t i = 0; i < positions->size(); ++i) {
      if (replica.has[i] < (*positions)[i]) return false;
    }
    return true;
  }));
}

void Server::await_followers(Waiter& waiter) {
  if (std::ranges::find(awaiting_, &waiter) == awaiting_.end()) awaiting_.push_back(&waiter);
}

void Server::note_acknowledged() {
  for (Waiter* waiter : awaiting_) waiter->wake();
}

namespace {

std::shared_ptr<const std::string> message_of(int resp_version,
                                              std::initializer_list<std::string_view> parts) {
  Buffer buffer;
  RespReply reply(buffer);
  reply.set_version(resp_version);
  reply.push(parts.size());
  for (const std::string_view part : parts) reply.bulk(part);
  return std::make_shared<const std::string>(buffer.view());
}

}  // namespace

size_t Server::publish(std::string_view channel, std::string_view message) {
  size_t receivers = 0;
  const auto send = [&](const std::vector<Subscriber>& to,
                        std::initializer_list<std::string_view> parts) {
    std::shared_ptr<const std::string> by_version[2];
    for (const Subscriber& one : to) {
      auto& bytes = by_version[one.resp_version - 2];
      if (bytes == nullptr) bytes = message_of(one.resp_version, parts);
      one.loop->post(one.connection, bytes);
      ++receivers;
    }
  };
  const auto found = channels_.find(std::string(channel));
  if (found != channels_.end()) send(found->second, {"message", channel, message});
  for (const auto& [pattern, to] : patterns_) {
    if (fits_pattern(pattern, channel)) send(to, {"pmessage", pattern, channel, message});
  }
  ++metrics_.messages_published;
  return receivers;
}

void Server::stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_, &one, sizeof one);
}

void Server::finish() {
  if (follower_ != nullptr) follower_->stop();
  for (const auto& loop : loops_) loop->stop();
  for (const auto& loop : loops_) loop->join();
  loops_.clear();
  if (!config_.unix_path.empty() && started_s_ != 0) ::unlink(config_.unix_path.c_str());
  keys_.reset();
  store_.reset();
  if (!pool_) return;
  Pool pool = std::move(*pool_);
  pool_.reset();
  pool.close();
}

std::unique_ptr<Session> Server::make_session(Connection& connection, Loop& loop) {
  switch (connection.face) {
    case Face::kResp:
    case Face::kTlsResp:
      return std::make_unique<RespSession>(*this, connection, loop);
    case Face::kMemcached:
      return std::make_unique<MemcachedSession>(*this);
    case Face::kMetrics:
      return std::make_unique<HttpSession>(*this);
  }
  return nullptr;
}

void Server::note_slow(std::span<const std::string_view> arguments, uint64_t us,
                       const std::string& peer) {
  if (config_.slowlog_entries == 0) return;
  SlowEntry entry{.id = slow_entries_++,
                  .time_s = static_cast<uint64_t>(std::time(nullptr)),
                  .us = us,
                  .arguments = {},
                  .peer = peer};
  for (size_t i = 0; i < std::min(arguments.size(), kSlowArguments); ++i) {
    entry.arguments.emplace_back(arguments[i].substr(0, kSlowArgumentBytes));
  }
  slowlog_.push_front(std::move(entry));
  while (slowlog_.size() > config_.slowlog_entries) slowlog_.pop_back();
}

uint64_t Server::uptime_s() const { return static_cast<uint64_t>(std::time(nullptr)) - started_s_; }

bool Server::reap(uint64_t elements_max) {
  const Turn turn(*this);
  if (keys_ == nullptr) return false;
  look_after_replicas();
  bool more = false;
  try {
    if (events_.are_on()) more = events_.look_at_expiries();
    more = keys_->reap(elements_max) || more;
  } catch (const std::exception& error) {  // without memory, too: what was removed is finished
    log_.write(LogLevel::kWarning, "garbage of removed collections stays for now: {}",
               error.what());
  }
  return turn.finish() && more;
}

Server::Turn::Turn(Server& server) : server_(server), lock_(server.execution_) {
  if (server_.keys_ != nullptr) server_.keys_->begin_turn();
}

bool Server::Turn::finish() const {
  if (server_.keys_ == nullptr) return true;
  try {
    ++server_.metrics_.turns;
    if (server_.keys_->has_written()) ++server_.metrics_.write_turns;
    server_.keys_->finish_turn();
    server_.settle_positions();
    if (server_.events_.are_on()) [[unlikely]]
      server_.events_.tell();
    return true;
  } catch (const std::exception& error) {
    server_.events_.drop();
    ++server_.metrics_.fence_failures;
    server_.log_.write(LogLevel::kError, "writes may not be durable, and are not acknowledged: {}",
                       error.what());
    return false;
  }
}

void run_server(const Config& config, const std::function<Config()>& reread) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // of all threads that are made from here on
  std::signal(SIGPIPE, SIG_IGN);
  Server server(config);
  server.start([](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  });
  fmt::print("ready\n");
  std::fflush(stdout);
  tell_service_manager("READY=1");
  const int signal_fd = ::signalfd(-1, &signals, SFD_CLOEXEC);
  for (;;) {
    pollfd fds[] = {{signal_fd, POLLIN, 0}, {server.stop_fd(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if ((fds[1].revents & POLLIN) != 0) break;
    signalfd_siginfo info{};
    if (::read(signal_fd, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    if (info.ssi_signo != SIGHUP) {
      server.log().write(LogLevel::kInfo, "signal {}: stops", info.ssi_signo);
      break;
    }
    if (!reread) continue;
    try {
      const Config fresh = reread();
      const std::lock_guard lock(server.execution());
      for (const Setting& setting : settings()) {
        if (setting.is_live) server.set_config(setting, setting.get(fresh));
      }
      server.log().write(LogLevel::kInfo, "the configuration was read again");
    } catch (const Error& error) {
      server.log().write(LogLevel::kError, "the configuration stays: {}", error.what());
    }
  }
  ::close(signal_fd);
  tell_service_manager("STOPPING=1");
  server.finish();
  server.log().write(LogLevel::kInfo, "stopped");
}

}  // namespace perdure::server
