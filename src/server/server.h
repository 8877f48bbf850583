// A store on the network: what `perdure serve` runs.
//
//   perdure::server::Config config;
//   config.pool = "/dev/shm/words.pool";
//   perdure::server::Server server(config);
//   server.start([](const std::string& line) { puts(line.c_str()); });
//   server.wait();   // until stop()
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/ticks.h"
#include "perdure/pool.h"
#include "server/acl.h"
#include "server/config.h"
#include "server/follower.h"
#include "server/key_events.h"
#include "server/keyspace.h"
#include "server/log.h"
#include "server/loop.h"
#include "server/metrics.h"
#include "server/sync_source.h"
#include "store/store_impl.h"

namespace perdure::server {

class TlsContext;

// What CONFIG SET may change, for the loops.
struct LiveLimits {
  std::atomic<uint32_t> connections_max;
  std::atomic<uint32_t> idle_timeout_s;
  std::atomic<uint32_t> slow_timeout_s;
  // Of Connection::out: `output-bytes-max`, and what may wait before the reply that takes so much.
  std::atomic<uint64_t> output_bound;
};

struct SlowEntry {
  uint64_t id;
  uint64_t time_s;
  uint64_t us;
  std::vector<std::string> arguments;
  std::string peer;
};

class Server {
 public:
  // Throws Error(kInvalidArgument) if the configuration is not sound.
  explicit Server(const Config& config);
  // Stops it, and closes store and pool.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens, opens the store, and returns once all of it answers. Clients that come meanwhile are
  // answered what is ready, and told that it is loading where it is not. A partition that cannot be
  // read does not keep the others from serving: that is logged, and an error of each command that
  // needs it. `tell` gets a line for each address: "resp 127.0.0.1:6379". Throws what opening a
  // pool and a socket throw.
  void start(const std::function<void(const std::string&)>& tell);
  // Asks it to stop. Any thread.
  void stop();
  // A descriptor that can be read once stop() was called.
  int stop_fd() const { return stop_fd_; }
  // Finishes what was read, and closes store and pool. Throws Error(kIo) if that fails.
  void finish();

  // For the rest: sessions, with the execution lock where not said otherwise.
  std::mutex& execution() { return execution_; }  // any thread
  const Config& config() const { return config_; }
  void set_config(const Setting& setting, std::string_view value);
  Log& log() { return log_; }  // any thread
  Acl& acl() { return acl_; }
  Metrics& metrics() { return metrics_; }
  LiveLimits& limits() { return limits_; }                                     // any thread
  TlsContext* tls() const { return tls_.get(); }                               // any thread
  uint64_t next_connection_id() { return next_connection_.fetch_add(1) + 1; }  // any thread
  std::unique_ptr<Session> make_session(Connection& connection, Loop& loop);   // any thread

  // Null before the first partition could be ready; then it answers what is, and throws
  // store::NotReady for the rest.
  Keyspace* keys() { return keys_.get(); }
  store::StoreImpl& store() { return *store_; }
  Pool& pool() { return *pool_; }
  CommandMetrics& metrics_of(size_t command) { return command_metrics_[command]; }
  // Of memcached's requests, by the command that each would be.
  CommandMetrics& memcached_metrics_of(size_t command) { return memcached_metrics_[command]; }
  std::vector<std::unique_ptr<Loop>>& loops() { return loops_; }
  std::deque<SlowEntry>& slowlog() { return slowlog_; }
  void note_slow(std::span<const std::string_view> arguments, uint64_t us, const std::string& peer);
  uint64_t uptime_s() const;
  double recovery_s() const { return recovery_s_; }
  uint64_t recovered_records() const { return recovered_records_; }
  // Whether partitions are still being opened.
  bool is_loading() const { return loading_; }
  uint64_t started_s() const { return started_s_; }
  uint16_t first_port() const { return first_port_; }
  const TickClock& clock() const { return clock_; }

  // Those who follow this server, by their numbers, also while they are away.
  std::map<uint64_t, Replica>& replicas() { return replicas_; }
  // Null unless it was told to follow another one. It may have taken over since.
  Follower* follower() { return follower_.get(); }
  bool is_follower() const { return !config_.follow.empty() && !has_taken_over_; }
  // Follows no more. Throws CommandError.
  void take_over();

  // WAIT. Where the log is behind the writes of this turn, by partitions: known once the turn, or
  // what precedes settle_positions(), has ended.
  using Positions = std::shared_ptr<const std::vector<uint64_t>>;
  Positions positions_of_turn();
  void settle_positions();
  // How many of those that follow have what precedes these, durably; without any, how many follow.
  size_t followers_with(const Positions& positions) const;
  // Wakes it whenever one of them has more.
  void await_followers(Waiter& waiter);
  void stop_awaiting_followers(Waiter& waiter) { std::erase(awaiting_, &waiter); }
  void note_acknowledged();
  bool is_follower_awaited() const { return !awaiting_.empty(); }

  // Sends a message to those who listen to the channel; returns how many they are.
  size_t publish(std::string_view channel, std::string_view message);
  KeyEvents& events() { return events_; }

  // Channels: who listens to what. A session takes itself off when it leaves.
  struct Subscriber {
    Loop* loop;
    uint64_t connection;
    int resp_version;
    bool operator==(const Subscriber& other) const { return connection == other.connection; }
  };
  using Subscribers = std::unordered_map<std::string, std::vector<Subscriber>>;
  Subscribers& channels() { return channels_; }
  Subscribers& patterns() { return patterns_; }

  // Removes some elements of collections that are gone. Returns whether there is more to do. Takes
  // the lock itself.
  bool reap(uint64_t elements_max);

  // The execution lock for a turn of a loop.
  class Turn {
   public:
    explicit Turn(Server& server);
    // Makes what was written durable. False if that failed: nothing of the turn may be told.
    bool finish() const;

   private:
    Server& server_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  void listen(const std::function<void(const std::string&)>& tell);
  void listen_on_all(const std::string& text, Face face,
                     const std::function<void(const std::string&)>& tell);
  bool adopt_sockets(const std::function<void(const std::string&)>& tell);
  void open_store();
  void finish_opening();
  void find_replicas();
  void look_after_replicas();
  void apply_limits();
  void raise_file_limit();

  Config config_;
  Acl acl_;
  Log log_;
  Metrics metrics_;
  LiveLimits limits_;
  std::unique_ptr<TlsContext> tls_;
  const TickClock& clock_;
  std::mutex execution_;
  KeyEvents events_{*this};  // the store tells it of evictions
  std::optional<Pool> pool_;
  std::unique_ptr<store::StoreImpl> store_;
  std::unique_ptr<Keyspace> keys_;
  std::map<uint64_t, Replica> replicas_;
  std::shared_ptr<std::vector<uint64_t>> turn_positions_;  // null: nobody has asked
  std::vector<Waiter*> awaiting_;
  std::unique_ptr<Follower> follower_;
  bool has_taken_over_ = false;
  std::vector<CommandMetrics> command_metrics_;
  std::vector<CommandMetrics> memcached_metrics_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::deque<SlowEntry> slowlog_;
  uint64_t slow_entries_ = 0;
  Subscribers channels_;
  Subscribers patterns_;
  std::atomic<uint64_t> next_connection_{0};
  uint64_t started_s_ = 0;
  bool loading_ = true;
  double opening_s_ = 0;  // when it began
  double recovery_s_ = 0;
  uint64_t recovered_records_ = 0;
  uint16_t first_port_ = 0;
  int stop_fd_;
};

// Runs a server until SIGTERM, SIGINT or SHUTDOWN; SIGHUP reads the configuration file again.
// `reread` gives the new configuration, or is empty. Returns when it has stopped in order. Throws
// as start().
void run_server(const Config& config, const std::function<Config()>& reread);

}  // namespace perdure::server
