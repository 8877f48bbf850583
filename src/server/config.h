// What a server is told: by flags, by a file of `name = value` lines, and partly by CONFIG SET.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/log.h"

namespace perdure::server {

struct Config {
  std::string pool;
  std::string name = "main";
  bool create = false;
  uint64_t capacity_bytes = uint64_t{1} << 30;
  std::string domain;
  std::string durability = "best";
  std::string index;  // "hash", "ordered", "pm"; empty: as created, at creation ordered
  uint32_t garbage_percent = 0;
  uint64_t memory_bytes = 0;  // of the pool that the store may take; 0: the capacity
  bool evict = false;
  uint64_t log_bytes = 0;  // that are kept for followers; 0: a quarter of the capacity
  uint64_t follower_output_max = uint64_t{512} << 20;
  std::string follow;  // the leader's address; empty: none
  std::string follow_user = "default";
  std::string follow_password;
  bool follow_anew = false;
  uint64_t follow_chunk_max = uint64_t{512} << 20;

  uint32_t threads = 1;
  std::string io = "auto";  // "auto", "uring" or "epoll"
  std::vector<std::string> resp = {"127.0.0.1:6379"};
  std::vector<std::string> memcached;
  std::vector<std::string> tls_resp;
  std::string unix_path;
  std::string metrics;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_ca;
  std::string password;
  std::vector<std::string> users;  // each "NAME RULE ..."
  std::string acl_file;
  bool allow_unauthenticated = false;
  bool memcached_sasl = false;

  uint32_t connections_max = 10000;
  uint32_t idle_timeout_s = 0;  // 0: none
  uint32_t slow_timeout_s =
      60;  // of a client that does not take its replies, or stops within a request
  uint64_t value_bytes_max = uint64_t{64} << 20;
  uint64_t output_bytes_max = uint64_t{256} << 20;
  int64_t slowlog_us = 10000;  // below 0: nothing is slow
  uint32_t slowlog_entries = 128;
  uint32_t notify_events = 0;  // event_kinds
  LogLevel log_level = LogLevel::kInfo;
};

// One of them. `set` throws Error(kInvalidArgument).
struct Setting {
  std::string name;
  std::string metavar;  // empty: a flag
  std::string help;
  bool is_list = false;
  bool is_live = false;  // CONFIG SET may change it
  std::function<void(Config&, std::string_view)> set;
  std::function<std::string(const Config&)> get;
};
const std::vector<Setting>& settings();
// Null if there is none.
const Setting* find_setting(std::string_view name);

// Empties a setting that is a list.
void clear_list(Config& config, const Setting& setting);

// Applies a file; lists that it has take the place of what was there. Throws
// Error(kInvalidArgument) with file and line, kNotFound.
void read_config_file(const std::string& path, Config& config);

// Throws Error(kInvalidArgument) if settings do not go together: an address that others reach
// without a password, above all.
void require_sound(const Config& config);

}  // namespace perdure::server
