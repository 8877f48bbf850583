#include "server/config.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <thread>

#include "common/units.h"
#include "perdure/error.h"
#include "server/acl.h"
#include "server/address.h"
#include "server/key_events.h"

namespace perdure::server {

namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} \"{}\": {}", name, value, what));
}

template <typename T>
T parse_number(std::string_view name, std::string_view text, T min, T max) {
  T value{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || value < min || value > max) {
    refuse(name, text, fmt::format("a number from {} to {} is needed", min, max));
  }
  return value;
}

bool parse_switch(std::string_view name, std::string_view text) {
  if (text == "yes" || text == "true" || text == "1" || text.empty()) return true;
  if (text == "no" || text == "false" || text == "0") return false;
  refuse(name, text, "yes or no is needed");
}

std::string parse_choice(std::string_view name, std::string_view text,
                         const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, text) == choices.end()) {
    refuse(name, text, fmt::format("it is one of {}", fmt::join(choices, ", ")));
  }
  return std::string(text);
}

Setting text(std::string name, std::string metavar, std::string help, std::string Config::* member,
             bool live = false) {
  return {.name = std::move(name),
          .metavar = std::move(metavar),
          .help = std::move(help),
          .is_live = live,
          .set = [member](Config& c, std::string_view value) { c.*member = value; },
          .get = [member](const Config& c) { return c.*member; }};
}

Setting choice(const std::string& name, std::string help, std::string Config::* member,
               const std::vector<std::string>& choices) {
  return {.name = name,
          .metavar = "NAME",
          .help = std::move(help),
          .set = [=](Config& c, std::string_view v) { c.*member = parse_choice(name, v, choices); },
          .get = [member](const Config& c) { return c.*member; }};
}

Setting list(std::string name, std::string help, std::vector<std::string> Config::* member) {
  return {
      .name = std::move(name),
      .metavar = "ADDR:PORT",
      .help = std::move(help),
      .is_list = true,
      .set =
          [member](Config& c, std::string_view value) {
            if (!value.empty()) (c.*member).emplace_back(value);
          },
      .get = [member](const Config& c) { return fmt::format("{}", fmt::join(c.*member, ",")); }};
}

Setting toggle(const std::string& name, std::string help, bool Config::* member) {
  return {.name = name,
          .metavar = "",
          .help = std::move(help),
          .set = [=](Config& c, std::string_view v) { c.*member = parse_switch(name, v); },
          .get = [member](const Config& c) { return c.*member ? "yes" : "no"; }};
}

template <typename T>
Setting number(const std::string& name, const std::string& help, T Config::* member, T min, T max,
               bool live = false) {
  return {
      .name = name,
      .metavar = "N",
      .help = help,
      .is_live = live,
      .set = [=](Config& c, std::string_view v) { c.*member = parse_number<T>(name, v, min, max); },
      .get = [member](const Config& c) { return fmt::format("{}", c.*member); }};
}

Setting size(const std::string& name, std::string help, uint64_t Config::* member,
             bool live = false) {
  return {.name = name,
          .metavar = "SIZE",
          .help = std::move(help),
          .is_live = live,
          .set = [=](Config& c, std::string_view v) { c.*member = parse_bytes(v); },
          .get = [member](const Config& c) { return fmt::format("{}", c.*member); }};
}

std::vector<Setting> make_settings() {
  constexpr uint32_t kMany = 1'000'000;
  return {
      text("name", "NAME", "The store in the pool", &Config::name),
      toggle("create", "Make pool and store if they are not there", &Config::create),
      size("capacity", "What a new pool may grow to, such as 10G", &Config::capacity_bytes),
      choice("domain", "Force what makes a store durable: page, line or byte", &Config::domain,
             {"", "page", "line", "byte"}),
      choice("durability", "What a write must survive: process, power, or best",
             &Config::durability, {"best", "process", "power"}),
      choice(
          "index",
          "ordered (hashes, sets, lists, sorted sets, SCAN in order; 22 to 32 bytes of DRAM a "
          "record), hash (strings only; 9 to 12 bytes, faster) or pm (strings only; the index is "
          "in "
          "the pool: next to no DRAM, open at once after a crash; fixed when the store is made). "
          "Default: as created; a new store is ordered",
          &Config::index, {"", "hash", "ordered", "pm"}),
      number<uint32_t>("garbage-percent",
                       "Garbage in the log before it is compacted, 5 to 400; 0: 25, and less where "
                       "the pool has no room for so much",
                       &Config::garbage_percent, 0, 400),
      size("memory",
           "Most of the pool that the store takes, such as 4G; 0: the capacity. Beyond it writes "
           "are "
           "refused, or, with --evict, others go. A new pool gets room for it",
           &Config::memory_bytes),
      toggle("evict",
             "Serve as a cache: what has expired goes first, then strings that were not read "
             "lately. Hashes, sets, lists and sorted sets stay",
             &Config::evict),
      text("follow", "HOST:PORT",
           "Follow that server: copy its store, apply what it writes, and serve readers. REPLICAOF "
           "NO ONE, or a start without it, takes over",
           &Config::follow),
      text("follow-user", "NAME", "With what name to AUTH there", &Config::follow_user),
      text("follow-password", "TEXT", "With what password (better in the file)",
           &Config::follow_password),
      toggle("follow-anew",
             "Give up what the pool has, where it is not what the leader has, before it is copied "
             "anew",
             &Config::follow_anew),
      size("follow-chunk-max",
           "Most that a follower takes of its leader at a time; a transaction, or a command, that "
           "wrote more is refused",
           &Config::follow_chunk_max),
      size("log-bytes",
           "Log that is kept for followers that lag behind or are away; one for which it is not "
           "enough copies anew. 0: a quarter of the pool's capacity",
           &Config::log_bytes),
      size("follower-output-max",
           "Most that waits for a follower; one that would have to be told of a transaction, or a "
           "command, that wrote more copies anew",
           &Config::follower_output_max),
      number<uint32_t>("threads", "Event loops; commands run one at a time", &Config::threads, 1,
                       256),
      choice("io", "epoll, uring (io_uring), or auto: the faster one, which is epoll", &Config::io,
             {"auto", "uring", "epoll"}),
      list("resp", "Listen for Redis clients; may be repeated; port 0: any free one",
           &Config::resp),
      list("memcached", "Listen for memcached clients; may be repeated", &Config::memcached),
      list("tls-resp", "Listen for Redis clients over TLS; may be repeated", &Config::tls_resp),
      text("unix", "PATH", "Listen for Redis clients on a Unix socket", &Config::unix_path),
      text("metrics", "ADDR:PORT", "Serve Prometheus' /metrics over HTTP", &Config::metrics),
      text("tls-certificate", "FILE", "The server's certificate chain, PEM",
           &Config::tls_certificate),
      text("tls-key", "FILE", "Its private key, PEM", &Config::tls_key),
      text("tls-ca", "FILE", "Ask clients for a certificate that this one has signed",
           &Config::tls_ca),
      text("password", "TEXT",
           "What clients must give with AUTH (better in the file: others see "
           "the command line)",
           &Config::password, true),
      {.name = "user",
       .metavar = "RULES",
       .help = "A user and what it may do, as Redis' ACL says it: \"alice on >secret ~cache:* "
               "+@read\"; may be repeated (better in the file)",
       .is_list = true,
       .set =
           [](Config& c, std::string_view value) {
             if (!value.empty()) c.users.emplace_back(value);
           },
       .get = [](const Config& c) { return c.users.empty() ? "" : "(set)"; }},
      text("acl-file", "FILE", "Users, one a line; ACL SAVE writes it, ACL LOAD reads it again",
           &Config::acl_file),
      toggle("memcached-sasl",
             "memcached clients give the password by SASL, in the binary protocol",
             &Config::memcached_sasl),
      toggle("allow-unauthenticated",
             "Listen where others reach it although clients need no password",
             &Config::allow_unauthenticated),
      number<uint32_t>("connections-max", "More connections are refused", &Config::connections_max,
                       1, kMany, true),
      number<uint32_t>("idle-timeout", "Seconds until a silent connection is closed; 0: never",
                       &Config::idle_timeout_s, 0, kMany, true),
      number<uint32_t>("slow-timeout",
                       "Seconds until a client is closed that does not take its replies, or stops "
                       "within a request; 0: never",
                       &Config::slow_timeout_s, 0, kMany, true),
      size("value-bytes-max", "Of an argument of a request, 64M at most", &Config::value_bytes_max),
      size("output-bytes-max", "Of a reply, and of those that wait for one client",
           &Config::output_bytes_max, true),
      number<int64_t>("slowlog-us", "Commands that take longer go to SLOWLOG; -1: none",
                      &Config::slowlog_us, -1, int64_t{1} << 40, true),
      number<uint32_t>("slowlog-entries", "How many SLOWLOG keeps", &Config::slowlog_entries, 0,
                       kMany, true),
      {.name = "notify-keyspace-events",
       .metavar = "KINDS",
       .help = "What becomes of keys is told on channels, as in Redis: of K, E, and g$lshzxemnA; "
               "empty: nothing",
       .is_live = true,
       .set = [](Config& c, std::string_view v) { c.notify_events = parse_event_kinds(v); },
       .get = [](const Config& c) { return text_of_event_kinds(c.notify_events); }},
      {.name = "log-level",
       .metavar = "LEVEL",
       .help = "debug, info, warning or error",
       .is_live = true,
       .set = [](Config& c, std::string_view v) { c.log_level = parse_log_level(v); },
       .get = [](const Config& c) { return to_string(c.log_level); }},
  };
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = make_settings();
  return all;
}

const Setting* find_setting(std::string_view name) {
  const auto found = std::ranges::find(settings(), name, &Setting::name);
  return found == settings().end() ? nullptr : &*found;
}

void read_config_file(const std::string& path, Config& config) {
  std::ifstream file(path);
  if (!file) {
    throw Error(ErrorCode::kNotFound, fmt::format("cannot read the configuration {}", path));
  }
  std::vector<std::string> lists_begun;
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    const std::string_view content = trim(line);
    if (content.empty() || content[0] == '#') continue;
    const size_t equals = content.find('=');
    const std::string_view name = trim(content.substr(0, equals));
    const auto fail = [&](std::string_view what) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", path, number, what));
    };
    if (equals == std::string_view::npos) fail("a line is `name = value`");
    const std::string_view value = trim(content.substr(equals + 1));
    if (name == "pool") {
      config.pool = value;
      continue;
    }
    const Setting* setting = find_setting(name);
    if (setting == nullptr) {
      fail(fmt::format("there is no setting \"{}\"; `perdure serve --help` lists them", name));
      return;
    }
    if (setting->is_list && std::ranges::find(lists_begun, setting->name) == lists_begun.end()) {
      lists_begun.push_back(setting->name);
      clear_list(config, *setting);
    }
    try {
      setting->set(config, value);
    } catch (const Error& error) {
      fail(error.what());
    }
  }
}

void clear_list(Config& config, const Setting& setting) {
  if (setting.name == "resp") config.resp.clear();
  if (setting.name == "memcached") config.memcached.clear();
  if (setting.name == "tls-resp") config.tls_resp.clear();
  if (setting.name == "user") config.users.clear();
}

void require_sound(const Config& config) {
  const auto fail = [](const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); };
  if (config.pool.empty()) fail("no POOL is named, on the command line or in the configuration");
  if (config.value_bytes_max < 1024 || config.value_bytes_max > uint64_t{64} << 20) {
    fail("value-bytes-max is from 1K to 64M");
  }
  if (config.follow_chunk_max < uint64_t{8} << 20) fail("follow-chunk-max is 8M at least");
  if (config.follower_output_max < uint64_t{8} << 20) fail("follower-output-max is 8M at least");
  if (!config.tls_resp.empty() && (config.tls_certificate.empty() || config.tls_key.empty())) {
    fail("tls-resp needs tls-certificate and tls-key");
  }
  if (config.resp.empty() && config.memcached.empty() && config.tls_resp.empty() &&
      config.unix_path.empty()) {
    fail("nothing to listen on: give resp, memcached, tls-resp or unix");
  }
  const auto require_guarded = [&](const std::string& text, bool guarded) {
    const Address address = parse_address(text);
    if (address.is_loopback() || guarded || config.allow_unauthenticated) return;
    fail(
        fmt::format("{} can be reached by others, who need no password; set a password (Redis "
                    "clients; memcached's with memcached-sasl), ask for certificates (tls-ca), or "
                    "say allow-unauthenticated",
                    text));
  };
  const bool is_guarded = make_acl(config).default_user() == nullptr;
  for (const std::string& one : config.resp) require_guarded(one, is_guarded);
  for (const std::string& one : config.tls_resp) {
    require_guarded(one, is_guarded || !config.tls_ca.empty());
  }
  if (!config.follow.empty() && config.evict) {
    fail("a follower has what its leader has: evict is for others");
  }
  if (config.memcached_sasl && !is_guarded) {
    fail("memcached-sasl needs a password, or users of whom default has one or is off");
  }
  for (const std::string& one : config.memcached) require_guarded(one, config.memcached_sasl);
  if (!config.metrics.empty()) require_guarded(config.metrics, false);
}

}  // namespace perdure::server
