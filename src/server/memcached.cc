#include "server/memcached.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <span>

#include "perdure/error.h"
#include "perdure/version.h"
#include "server/acl.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/info.h"
#include "server/memcached_base64.h"
#include "server/server.h"

namespace perdure::server {

namespace {

constexpr size_t kKeyBytesMax = 250;
constexpr char kMemcachedLoading[] = "SERVER_ERROR loading";
constexpr int64_t kRelativeMax = int64_t{60} * 60 * 24 * 30;  // seconds; above, a time since 1970

[[noreturn]] void refuse(std::string text) { throw CommandError(std::move(text)); }

template <typename T>
T number_of(std::string_view word, const char* error = "CLIENT_ERROR bad command line format") {
  T value = 0;
  const auto [rest, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failure != std::errc() || rest != word.data() + word.size()) refuse(error);
  return value;
}

bool is_noreply(const std::vector<std::string_view>& words) { return words.back() == "noreply"; }

}  // namespace

// What stands behind the key of a meta command.
struct MemcachedSession::MetaFlags {
  std::vector<std::string_view> all;  // in their order: the answer has the same
  bool has(char flag) const {
    return std::ranges::any_of(all, [flag](std::string_view one) { return one[0] == flag; });
  }
  std::string_view token(char flag) const {
    for (const std::string_view one : all) {
      if (one[0] == flag) return one.substr(1);
    }
    return {};
  }
};

MemcachedSession::MemcachedSession(Server& server)
    : server_(server),
      parser_(server.config().value_bytes_max - 64),
      binary_(server.config().value_bytes_max - 64) {}

Keyspace& MemcachedSession::keys() { return *server_.keys(); }

size_t MemcachedSession::bytes_wanted(const Connection& connection) const {
  const size_t wanted =
      protocol_ == Protocol::kBinary ? binary_.bytes_wanted() : parser_.bytes_wanted();
  return wanted > connection.in.size() ? wanted - connection.in.size() : 0;
}

void MemcachedSession::refuse_turn(Connection& connection) {
  if (protocol_ == Protocol::kBinary) {
    connection_ = &connection;
    return binary_fail(0x84);  // internal error
  }
  connection.out.append(
      "SERVER_ERROR the medium has failed: what was asked for last may be lost\r\n");
}

void MemcachedSession::say(std::string_view line) {
  if (quiet_) return;
  connection_->out.append(line);
  connection_->out.append("\r\n");
}

void MemcachedSession::note_protocol(const Connection& connection) {
  if (protocol_ != Protocol::kUnknown || connection.in.empty()) return;
  const auto first = static_cast<unsigned char>(connection.in.view()[0]);
  protocol_ = first == MemcachedBinaryParser::kMagic ? Protocol::kBinary : Protocol::kText;
}

// If what it takes for a key is none nothing is lost.
void MemcachedSession::look_ahead(Connection& connection, std::vector<std::string_view>& keys) {
  note_protocol(connection);
  const std::string_view input = connection.in.view();
  if (protocol_ == Protocol::kText) parser_.look_ahead(input, kAheadRequests, keys);
  if (protocol_ == Protocol::kBinary) binary_.look_ahead(input, kAheadRequests, keys);
}

// The loop has asked for the records of the first requests of a turn, this does for later ones,
// after so many.
void MemcachedSession::ask_ahead(Connection& connection, size_t done) {
  if (done == 0 || done % kAheadRequests != 0 || server_.keys() == nullptr) return;
  keys_.clear();
  look_ahead(connection, keys_);
  if (keys_.size() > 1) server_.keys()->prefetch(keys_);
}

Session::Outcome MemcachedSession::execute(Connection& connection) {
  connection_ = &connection;
  note_protocol(connection);
  if (protocol_ == Protocol::kBinary) return execute_binary(connection);
  if (protocol_ == Protocol::kText && server_.config().memcached_sasl) {
    say("CLIENT_ERROR unauthenticated: use the binary protocol, with SASL");
    return Outcome::kClose;
  }
  const size_t begin = connection.out.size();
  for (size_t i = 0; i < kRequestsMax; ++i) {
    if (connection.out.size() - begin > kOutputMax) return Outcome::kMore;
    ask_ahead(connection, i);
    size_t consumed = 0;
    const MemcachedParser::Result result = parser_.parse(connection.in.view(), consumed);
    quiet_ = false;
    if (result == MemcachedParser::Result::kRequest) run(connection);
    connection.in.consume(consumed);
    if (result == MemcachedParser::Result::kNeedMore) {
      if (consumed > 0 && !connection.in.empty()) continue;
      return Outcome::kIdle;
    }
    if (result != MemcachedParser::Result::kRequest) say(parser_.error());
    if (result == MemcachedParser::Result::kError || closes_) return Outcome::kClose;
  }
  return Outcome::kMore;
}

void MemcachedSession::note_request(uint64_t begin, bool failed) {
  if (as_command_ == nullptr) return;
  CommandMetrics& metrics = server_.memcached_metrics_of(number_of(*as_command_));
  metrics.latency.add(static_cast<uint64_t>(static_cast<double>(server_.clock().now() - begin) *
                                            server_.clock().ns_per_tick()));
  if (failed) ++metrics.failed;
}

void MemcachedSession::run(Connection& connection) {
  ++server_.metrics().memcached_commands;
  as_command_ = nullptr;
  const uint64_t begin_ticks = server_.clock().now();
  const size_t begin = connection.out.size();
  const Words& words = parser_.words();
  const KeyEvents::Carrying carrying(server_.events());
  try {
    const bool needs_store =
        words[0] != "version" && words[0] != "verbosity" && words[0] != "quit" && words[0] != "mn";
    if (needs_store && server_.keys() == nullptr) refuse(kMemcachedLoading);
    require_permission_for(words);
    if (!run_meta(words) && !run_classic(words)) say("ERROR");
    if (server_.events().are_on()) [[unlikely]]
      server_.events().end({}, 0);
    return note_request(begin_ticks, false);
  } catch (const CommandError& error) {
    connection.out.truncate(begin);
    quiet_ = false;
    say(error.text);
  } catch (const store::NotReady&) {
    connection.out.truncate(begin);
    quiet_ = false;
    say(kMemcachedLoading);
  } catch (const BufferFull&) {
    connection.out.truncate(begin);
    quiet_ = false;
    say("SERVER_ERROR out of memory writing get response");
  } catch (const Error& error) {
    connection.out.truncate(begin);
    quiet_ = false;
    switch (error.code()) {
      case ErrorCode::kPoolFull:
      case ErrorCode::kNoSpace:
        say("SERVER_ERROR out of memory storing object");
        break;
      case ErrorCode::kTooLarge:
        say("SERVER_ERROR object too large for cache");
        break;
      default:
        say(fmt::format("SERVER_ERROR {}", error.what()));
    }
  }
  note_request(begin_ticks, true);
}

// What is asked for is done as the command of Redis would be, by the user that SASL has named, else
// by default.
void MemcachedSession::require_permission(const char* command, bool reads, bool writes) {
  const AclUser* user = user_ != nullptr ? user_.get() : server_.acl().find("default");
  asks_ = nullptr;
  as_command_ = find_command(command);
  if (!user->is_on()) refuse("CLIENT_ERROR unauthenticated");
  if (server_.events().are_on()) [[unlikely]]
    server_.events().begin(*as_command_, {}, 0);
  if (user->may_all()) return;
  if (!user->may_run(*as_command_, {})) {
    refuse("CLIENT_ERROR this user has no permissions for this command");
  }
  asks_ = user;
  reads_ = reads;
  writes_ = writes;
}

void MemcachedSession::require_permission_for(const Words& words) {
  struct Asked {
    std::string_view word;
    const char* command;
    bool reads;
    bool writes;
  };
  static constexpr Asked kAsked[] = {{"get", "get", true, false},
                                     {"gets", "get", true, false},
                                     {"gat", "getex", true, true},
                                     {"gats", "getex", true, true},
                                     {"set", "set", false, true},
                                     {"add", "set", false, true},
                                     {"replace", "set", false, true},
                                     {"append", "append", false, true},
                                     {"prepend", "append", false, true},
                                     {"cas", "set", false, true},
                                     {"incr", "incrby", true, true},
                                     {"decr", "decrby", true, true},
                                     {"touch", "expire", false, true},
                                     {"delete", "del", false, true},
                                     {"flush_all", "flushdb", false, true},
                                     {"stats", "info", false, false},
                                     {"ms", "set", false, true},
                                     {"md", "del", false, true},
                                     {"ma", "incrby", true, true},
                                     {"me", "get", true, false}};
  asks_ = nullptr;
  if (words[0] == "mg") {
    bool touches = false;
    for (size_t i = 2; i < words.size(); ++i) touches = touches || words[i].starts_with('T');
    return require_permission(touches ? "getex" : "get", true, touches);
  }
  for (const Asked& one : kAsked) {
    if (one.word == words[0]) return require_permission(one.command, one.reads, one.writes);
  }
}

std::string_view MemcachedSession::raw_key(std::string_view key) {
  const bool clean = std::ranges::none_of(key, [](char c) { return c > 0 && c < ' '; });
  if (key.empty() || key.size() > kKeyBytesMax || !clean) {
    refuse("CLIENT_ERROR bad command line format");
  }
  if (asks_ != nullptr && !asks_->may_use(key, reads_, writes_)) {
    refuse("CLIENT_ERROR this user has no permissions for this key");
  }
  return Keyspace::raw_key(0, key, scratch_);
}

// A collection is none of memcached's.
Item MemcachedSession::find(std::string_view raw) {
  const Item item = keys().find(raw);
  return item.type == Type::kString ? item : Item{};
}

uint64_t MemcachedSession::expiry_of(std::string_view word) {
  return expiry_at(number_of<int64_t>(word, "CLIENT_ERROR invalid exptime argument"));
}

uint64_t MemcachedSession::expiry_at(int64_t seconds) {
  if (seconds == 0) return store::kNoExpiry;
  if (seconds < 0) return 1;  // gone at once
  const uint64_t now_ms = server_.keys()->now_ms();
  if (seconds <= kRelativeMax) return now_ms + static_cast<uint64_t>(seconds) * 1000;
  return static_cast<uint64_t>(std::min(seconds, int64_t{1} << 40)) * 1000;
}

bool MemcachedSession::run_classic(const Words& words) {
  const std::string_view name = words[0];
  const size_t count = words.size();
  if (name == "get" || name == "gets") {
    if (count < 2) return false;
    get(words, 1, name == "gets", nullptr);
  } else if (name == "gat" || name == "gats") {
    if (count < 3) return false;
    const uint64_t expiry_ms = expiry_of(words[1]);
    get(words, 2, name == "gats", &expiry_ms);
  } else if (name == "set") {
    classic_store(words, Mode::kSet, false);
  } else if (name == "add") {
    classic_store(words, Mode::kAdd, false);
  } else if (name == "replace") {
    classic_store(words, Mode::kReplace, false);
  } else if (name == "append") {
    classic_store(words, Mode::kAppend, false);
  } else if (name == "prepend") {
    classic_store(words, Mode::kPrepend, false);
  } else if (name == "cas") {
    if (count < 6) return false;
    classic_store(words, Mode::kSet, true);
  } else if (name == "incr" || name == "decr") {
    if (count < 3) return false;
    add_number(words, name == "decr");
  } else if (name == "touch") {
    if (count < 3) return false;
    touch(words);
  } else if (name == "delete") {
    if (count < 2) return false;
    remove(words);
  } else if (name == "flush_all") {
    flush_all(words);
  } else if (name == "version") {
    say(fmt::format("VERSION 1.6.18-perdure-{}", kVersion));
  } else if (name == "verbosity") {
    if (count < 2) return false;
    quiet_ = is_noreply(words);
    say("OK");
  } else if (name == "stats") {
    stats(words);
  } else if (name == "quit") {
    closes_ = true;
  } else {
    return false;
  }
  return true;
}

void MemcachedSession::get(const Words& words, size_t first_key, bool with_version,
                           const uint64_t* expiry_ms) {
  Buffer& out = connection_->out;
  for (size_t i = first_key; i < words.size(); ++i) {
    // A single one was asked for ahead.
    if ((i - first_key) % kAheadRequests == 0 && words.size() - i > 1) {
      keys().prefetch(std::span(words).subspan(i, std::min(kAheadRequests, words.size() - i)));
    }
    const std::string_view raw = raw_key(words[i]);
    Item item = find(raw);
    ++(item ? server_.metrics().keyspace_hits : server_.metrics().keyspace_misses);
    if (!item) continue;
    if (expiry_ms != nullptr) {
      keys().set_expiry(raw, item, *expiry_ms);
      item = find(raw);
      if (!item) continue;
    }
    out.append("VALUE ");
    out.append(words[i]);
    const auto put_number = [&](uint64_t number) {
      char digits[24];
      const char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
      out.push_back(' ');
      out.append({digits, static_cast<size_t>(end - digits)});
    };
    put_number(item.flags);
    put_number(item.text.size());
    if (with_version) put_number(item.version);
    out.append("\r\n");
    out.append(item.text);
    out.append("\r\n");
  }
  out.append("END\r\n");
}

MemcachedSession::Stored MemcachedSession::store(std::string_view raw, Mode mode,
                                                 const Change& change) {
  const bool blind = mode == Mode::kSet && change.version == nullptr;
  if (blind) {
    keys().set_string(raw, change.data, change.flags, change.expiry_ms);
    return Stored::kStored;
  }
  const Item old = keys().find(raw);
  const bool there = old.type == Type::kString;
  if (change.version != nullptr) {
    if (!there) return Stored::kNotFound;
    if (old.version != *change.version) return Stored::kExists;
  }
  switch (mode) {
    case Mode::kAdd:
      if (old) return Stored::kNotStored;
      break;
    case Mode::kReplace:
      if (!old) return Stored::kNotStored;
      break;
    case Mode::kAppend:
    case Mode::kPrepend: {
      if (!there) return Stored::kNotStored;
      std::string text(mode == Mode::kAppend ? old.text : change.data);
      text += mode == Mode::kAppend ? change.data : old.text;
      keys().set_string_over(old, raw, text, old.flags, old.expiry_ms);
      return Stored::kStored;
    }
    case Mode::kSet:
      break;
  }
  keys().set_string_over(old, raw, change.data, change.flags, change.expiry_ms);
  return Stored::kStored;
}

void MemcachedSession::classic_store(const Words& words, Mode mode, bool with_version) {
  quiet_ = is_noreply(words);
  const std::string_view raw = raw_key(words[1]);
  Change change{.data = parser_.data(),
                .flags = number_of<uint32_t>(words[2]),
                .expiry_ms = expiry_of(words[3])};
  uint64_t version = 0;
  if (with_version) {
    version = number_of<uint64_t>(words[5]);
    change.version = &version;
  }
  switch (store(raw, mode, change)) {
    case Stored::kStored:
      return say("STORED");
    case Stored::kNotStored:
      return say("NOT_STORED");
    case Stored::kExists:
      return say("EXISTS");
    case Stored::kNotFound:
      return say("NOT_FOUND");
  }
}

void MemcachedSession::add_number(const Words& words, bool decrement) {
  quiet_ = is_noreply(words);
  const std::string_view raw = raw_key(words[1]);
  const auto by = number_of<uint64_t>(words[2], "CLIENT_ERROR invalid numeric delta argument");
  const Item item = find(raw);
  if (!item) return say("NOT_FOUND");
  const auto value = number_of<uint64_t>(
      item.text, "CLIENT_ERROR cannot increment or decrement non-numeric value");
  const uint64_t sum = decrement ? value - std::min(value, by) : value + by;
  const std::string text = fmt::format("{}", sum);
  keys().set_string_over(item, raw, text, item.flags, item.expiry_ms);
  say(text);
}

void MemcachedSession::touch(const Words& words) {
  quiet_ = is_noreply(words);
  const std::string_view raw = raw_key(words[1]);
  const uint64_t expiry_ms = expiry_of(words[2]);
  const Item item = find(raw);
  if (!item) return say("NOT_FOUND");
  keys().set_expiry(raw, item, expiry_ms);
  say("TOUCHED");
}

void MemcachedSession::remove(const Words& words) {
  quiet_ = is_noreply(words);
  // An older form has a 0 behind the key.
  if (words.size() > 2 && words[2] != "0" && !quiet_) {
    refuse("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
  }
  say(keys().remove(raw_key(words[1])) ? "DELETED" : "NOT_FOUND");
}

void MemcachedSession::flush_all(const Words& words) {
  quiet_ = is_noreply(words);
  if (words.size() > 1 && words[1] != "noreply" && number_of<int64_t>(words[1]) > 0) {
    refuse("SERVER_ERROR flush_all has no delay here");
  }
  keys().flush(0);
  server_.events().forget_expiries(0);
  say("OK");
}

// What the records may take.
static uint64_t memory_bytes(Server& server) {
  const uint64_t bound = server.config().memory_bytes;
  return bound != 0 ? bound : server.pool().info().capacity_bytes;
}

void MemcachedSession::stats(const Words& words) {
  const auto add = [this](std::string_view name, const auto& value) {
    say(fmt::format("STAT {} {}", name, value));
  };
  if (words.size() == 1) {
    general_stats(add);
  } else if (words[1] == "settings") {
    add("maxconns", server_.config().connections_max);
    add("item_size_max", server_.config().value_bytes_max - 64);
    add("maxbytes", memory_bytes(server_));
    add("evictions", server_.config().evict ? "on" : "off");
    add("cas_enabled", "yes");
    add("flush_enabled", "yes");
    add("num_threads", server_.loops().size());
  } else if (words[1] == "reset") {
    return say("RESET");
  } else if (words[1] != "items" && words[1] != "slabs" && words[1] != "sizes" &&
             words[1] != "conns") {
    refuse("ERROR");
  }
  say("END");
}

void MemcachedSession::general_stats(const AddFigure& add_text) {
  const auto add = [&](std::string_view name, const auto& value) {
    add_text(name, fmt::format("{}", value));
  };
  const Metrics& metrics = server_.metrics();
  const std::vector<Statistic> all = server_.store().statistics();
  add("pid", ::getpid());
  add("uptime", server_.uptime_s());
  add("time", static_cast<uint64_t>(std::time(nullptr)));
  add("version", fmt::format("1.6.18-perdure-{}", kVersion));
  add("pointer_size", 64);
  add("curr_connections", metrics.connections.load());
  add("total_connections", metrics.connections_accepted.load());
  add("rejected_connections", metrics.connections_refused.load());
  add("get_hits", metrics.keyspace_hits);
  add("get_misses", metrics.keyspace_misses);
  add("cmd_get", metrics.keyspace_hits + metrics.keyspace_misses);
  const auto requests = [&](std::initializer_list<const char*> names) {
    uint64_t count = 0;
    for (const char* name : names) {
      count += server_.memcached_metrics_of(number_of(*find_command(name))).latency.count();
    }
    return count;
  };
  add("cmd_set", requests({"set", "append"}));
  add("cmd_touch", requests({"expire", "getex"}));
  add("cmd_flush", requests({"flushdb"}));
  add("cmd_total", metrics.memcached_commands);
  add("bytes_read", metrics.bytes_in.load());
  add("bytes_written", metrics.bytes_out.load());
  add("curr_items", static_cast<uint64_t>(statistic(all, "records")));
  add("threads", server_.loops().size());
  add("bytes", static_cast<uint64_t>(statistic(all, "live_bytes")));
  add("evictions", server_.config().evict ? static_cast<uint64_t>(statistic(all, "evicted_records"))
                                          : uint64_t{0});
  add("limit_maxbytes", memory_bytes(server_));
  add("rusage_resident", resident_bytes());
  for (const Statistic& one : all) add("store_" + one.name, fmt::format("{:.0f}", one.value));
}

bool MemcachedSession::run_meta(const Words& words) {
  const std::string_view name = words[0];
  if (name.size() != 2 || name[0] != 'm') return false;
  if (name[1] == 'n') return say("MN"), true;
  if (words.size() < 2) return false;
  switch (name[1]) {
    case 'g':
      return meta_get(words), true;
    case 's':
      return meta_set(words), true;
    case 'd':
      return meta_delete(words), true;
    case 'a':
      return meta_add(words), true;
    case 'e':
      return meta_debug(words), true;
    default:
      return false;
  }
}

MemcachedSession::MetaFlags MemcachedSession::meta_flags(const Words& words, size_t first) {
  MetaFlags flags{
      {words.begin() + static_cast<ptrdiff_t>(std::min(first, words.size())), words.end()}};
  return flags;
}

// CODE, then what each flag asks for, in their order.
void MemcachedSession::meta_reply(std::string_view code, const MetaFlags& flags,
                                  std::string_view key_word, const Item& item,
                                  const uint64_t* size) {
  std::string line(code);
  if (size != nullptr) line += fmt::format(" {}", *size);
  for (const std::string_view one : flags.all) {
    switch (one[0]) {
      case 'O':
        line += fmt::format(" {}", one);
        break;
      case 'k':
        line += fmt::format(" k{}", key_word);
        break;
      case 'b':
        line += " b";
        break;
      case 'c':
        if (item) line += fmt::format(" c{}", item.version);
        break;
      case 'f':
        if (item) line += fmt::format(" f{}", item.flags);
        break;
      case 's':
        if (item) line += fmt::format(" s{}", item.text.size());
        break;
      case 't':
        if (!item) break;
        line +=
            item.expiry_ms == store::kNoExpiry
                ? " t-1"
                : fmt::format(" t{}",
                              (item.expiry_ms - std::min(item.expiry_ms, keys().now_ms())) / 1000);
        break;
      default:
        break;
    }
  }
  say(line);
}

void MemcachedSession::meta_get(const Words& words) {
  const MetaFlags flags = meta_flags(words, 2);
  if (flags.has('N') || flags.has('R')) refuse("CLIENT_ERROR flags N and R of mg are not here");
  const std::string_view key = flags.has('b') ? decode_base64(words[1], decoded_) : words[1];
  const std::string_view raw = raw_key(key);
  Item item = find(raw);
  ++(item ? server_.metrics().keyspace_hits : server_.metrics().keyspace_misses);
  if (item && flags.has('T')) {
    keys().set_expiry(raw, item, expiry_of(flags.token('T')));
    item = find(raw);
  }
  if (!item) {
    quiet_ = flags.has('q');
    return say("EN");
  }
  if (!flags.has('v')) {
    return meta_reply("HD", flags, words[1], item);
  }
  const uint64_t size = item.text.size();
  meta_reply("VA", flags, words[1], item, &size);
  connection_->out.append(item.text);
  connection_->out.append("\r\n");
}

void MemcachedSession::meta_set(const Words& words) {
  const MetaFlags flags = meta_flags(words, 3);
  if (flags.has('I')) refuse("CLIENT_ERROR flag I of ms is not here");
  const std::string_view key = flags.has('b') ? decode_base64(words[1], decoded_) : words[1];
  const std::string_view raw = raw_key(key);
  Change change{.data = parser_.data()};
  if (flags.has('F')) change.flags = number_of<uint32_t>(flags.token('F'));
  if (flags.has('T')) change.expiry_ms = expiry_of(flags.token('T'));
  uint64_t version = 0;
  if (flags.has('C')) {
    version = number_of<uint64_t>(flags.token('C'));
    change.version = &version;
  }
  Mode mode = Mode::kSet;
  const std::string_view wanted = flags.token('M');
  if (!wanted.empty()) {
    switch (wanted[0] | 0x20) {
      case 'e':
        mode = Mode::kAdd;
        break;
      case 'a':
        mode = Mode::kAppend;
        break;
      case 'p':
        mode = Mode::kPrepend;
        break;
      case 'r':
        mode = Mode::kReplace;
        break;
      case 's':
        break;
      default:
        refuse("CLIENT_ERROR invalid mode for ms");
    }
  }
  const Stored stored = store(raw, mode, change);
  quiet_ = flags.has('q') && stored == Stored::kStored;
  const Item item = flags.has('c') || flags.has('s') ? find(raw) : Item{};
  switch (stored) {
    case Stored::kStored:
      return meta_reply("HD", flags, words[1], item);
    case Stored::kNotStored:
      return meta_reply("NS", flags, words[1], {});
    case Stored::kExists:
      return meta_reply("EX", flags, words[1], {});
    case Stored::kNotFound:
      return meta_reply("NF", flags, words[1], {});
  }
}

void MemcachedSession::meta_delete(const Words& words) {
  const MetaFlags flags = meta_flags(words, 2);
  if (flags.has('I') || flags.has('x')) refuse("CLIENT_ERROR flags I and x of md are not here");
  const std::string_view key = flags.has('b') ? decode_base64(words[1], decoded_) : words[1];
  const std::string_view raw = raw_key(key);
  const Item item = find(raw);
  quiet_ = flags.has('q');
  if (!item) return meta_reply("NF", flags, words[1], {});
  if (flags.has('C') && number_of<uint64_t>(flags.token('C')) != item.version) {
    quiet_ = false;
    return meta_reply("EX", flags, words[1], {});
  }
  keys().remove(raw);
  meta_reply("HD", flags, words[1], {});
}

void MemcachedSession::meta_add(const Words& words) {
  const MetaFlags flags = meta_flags(words, 2);
  const std::string_view key = flags.has('b') ? decode_base64(words[1], decoded_) : words[1];
  const std::string_view raw = raw_key(key);
  const auto by = flags.has('D') ? number_of<uint64_t>(flags.token('D')) : 1;
  const std::string_view mode = flags.token('M');
  const bool decrement = !mode.empty() && (mode[0] == '-' || (mode[0] | 0x20) == 'd');
  Item item = find(raw);
  uint64_t sum = 0;
  uint64_t expiry_ms = item.expiry_ms;
  if (!item) {
    quiet_ = flags.has('q');
    if (!flags.has('N')) return meta_reply("NF", flags, words[1], {});
    quiet_ = false;
    if (flags.has('J')) sum = number_of<uint64_t>(flags.token('J'));
    expiry_ms = expiry_of(flags.token('N'));
  } else {
    if (flags.has('C') && number_of<uint64_t>(flags.token('C')) != item.version) {
      return meta_reply("EX", flags, words[1], {});
    }
    const auto value = number_of<uint64_t>(
        item.text, "CLIENT_ERROR cannot increment or decrement non-numeric value");
    sum = decrement ? value - std::min(value, by) : value + by;
    if (flags.has('T')) expiry_ms = expiry_of(flags.token('T'));
  }
  const std::string text = fmt::format("{}", sum);
  keys().set_string_over(keys().find(raw), raw, text, item.flags, expiry_ms);
  item = find(raw);
  if (!flags.has('v')) {
    quiet_ = flags.has('q');
    return meta_reply("HD", flags, words[1], item);
  }
  const uint64_t size = text.size();
  meta_reply("VA", flags, words[1], item, &size);
  say(text);
}

void MemcachedSession::meta_debug(const Words& words) {
  const Item item = find(raw_key(words[1]));
  if (!item) return say("EN");
  say(fmt::format("ME {} exp={} la=0 cas={} fetch=no cls=1 size={}", words[1],
                  item.expiry_ms == store::kNoExpiry
                      ? -1
                      : static_cast<int64_t>((item.expiry_ms - keys().now_ms()) / 1000),
                  item.version, item.text.size()));
}

}  // namespace perdure::server
