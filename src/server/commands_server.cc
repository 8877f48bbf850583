// Connections, and the server itself.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <thread>

#include "perdure/error.h"
#include "perdure/version.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/info.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

void authenticate(Call& call, std::string_view user, std::string_view password) {
  std::shared_ptr<AclUser> known = call.server.acl().authenticate(user, password);
  if (known == nullptr) {
    call.session.note_denial("auth", user);
    throw CommandError("WRONGPASS invalid username-password pair or user is disabled.");
  }
  call.session.user = std::move(known);
}

void run_auth(Call& call) {
  if (call.size() > 3) throw_syntax();
  if (call.size() == 2 && !call.server.acl().find("default")->needs_password()) {
    throw CommandError(
        "ERR AUTH <password> called without any password configured for the default user. Are you "
        "sure your configuration is correct?");
  }
  authenticate(call, call.size() == 3 ? call[1] : "default", call[call.size() - 1]);
  call.reply.ok();
}

void set_name(Call& call, std::string_view name) {
  const bool clean = std::ranges::all_of(name, [](char c) { return c > ' ' && c < 127; });
  if (!clean || name.size() > 1024) {
    throw CommandError("ERR Client names cannot contain spaces, newlines or special characters.");
  }
  call.session.name = name;
}

void run_hello(Call& call) {
  int version = call.reply.version();
  size_t at = 1;
  if (call.size() > 1) {
    int64_t wanted = 0;
    const auto [rest, error] =
        std::from_chars(call[1].data(), call[1].data() + call[1].size(), wanted);
    if (error != std::errc() || rest != call[1].data() + call[1].size()) {
      throw CommandError("ERR Protocol version is not an integer or out of range");
    }
    if (wanted != 2 && wanted != 3) throw CommandError("NOPROTO unsupported protocol version");
    version = static_cast<int>(wanted);
    at = 2;
  }
  for (; at < call.size(); ++at) {
    if (same_word(call[at], "AUTH") && at + 2 < call.size()) {
      authenticate(call, call[at + 1], call[at + 2]);
      at += 2;
    } else if (same_word(call[at], "SETNAME") && at + 1 < call.size()) {
      set_name(call, call[++at]);
    } else {
      throw CommandError(
          fmt::format("ERR Syntax error in HELLO option '{}'", call[at].substr(0, 64)));
    }
  }
  if (call.session.user == nullptr) {
    throw CommandError(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
        "<proto> AUTH <user> <pass> option can be used to authenticate the client and select the "
        "RESP protocol version at the same time");
  }
  call.reply.set_version(version);
  call.reply.map(7);
  call.reply.bulk("server");
  call.reply.bulk("redis");
  call.reply.bulk("version");
  call.reply.bulk("7.0.15");
  call.reply.bulk("proto");
  call.reply.integer(version);
  call.reply.bulk("id");
  call.reply.integer(static_cast<int64_t>(call.session.connection().id));
  call.reply.bulk("mode");
  call.reply.bulk("standalone");
  call.reply.bulk("role");
  call.reply.bulk(call.server.is_follower() ? "replica" : "master");
  call.reply.bulk("modules");
  call.reply.array(0);
}

void run_ping(Call& call) {
  if (call.size() > 2) {
    throw CommandError("ERR wrong number of arguments for 'ping' command");
  }
  const std::string_view text = call.size() == 2 ? call[1] : std::string_view();
  if (call.session.subscriptions() > 0 && call.reply.version() == 2) {
    call.reply.array(2);
    call.reply.bulk("pong");
    return call.reply.bulk(text);
  }
  call.size() == 2 ? call.reply.bulk(text) : call.reply.simple("PONG");
}

void run_echo(Call& call) { call.reply.bulk(call[1]); }

void run_quit(Call& call) {
  call.session.closes = true;
  call.reply.ok();
}

void run_reset(Call& call) {
  call.session.reset();
  call.reply.simple("RESET");
}

void run_select(Call& call) {
  call.session.database = database_of(call[1]);
  call.reply.ok();
}

std::string describe(const Connection& connection) {
  const auto* session = dynamic_cast<const RespSession*>(connection.session.get());
  const bool resp = session != nullptr;
  return fmt::format(
      "id={} addr={} name={} user={} db={} sub={} psub={} multi={} resp={} face={} cmd={} "
      "lib-name={} "
      "lib-ver={}\n",
      connection.id, connection.peer, resp ? session->name : "",
      resp && session->user != nullptr ? session->user->name() : "", resp ? session->database : 0,
      resp ? session->channels.size() : 0, resp ? session->patterns.size() : 0,
      resp && session->in_multi ? static_cast<int64_t>(session->queued.size()) : -1,
      resp ? const_cast<RespSession*>(session)->reply().version() : 0, to_string(connection.face),
      resp ? session->last_command : "", resp ? session->library : "",
      resp ? session->library_version : "");
}

// Of a session, as CLIENT LIST and KILL have them.
bool is_of_type(const Connection& connection, std::string_view type) {
  const auto* session = dynamic_cast<const RespSession*>(connection.session.get());
  const bool follows = session != nullptr && session->sync != nullptr;
  const bool listens = session != nullptr && session->subscriptions() > 0;
  if (same_word(type, "NORMAL")) return !follows && !listens;
  if (same_word(type, "PUBSUB")) return listens;
  if (same_word(type, "REPLICA") || same_word(type, "SLAVE")) return follows;
  if (same_word(type, "MASTER")) return false;
  throw CommandError(fmt::format("ERR Unknown client type '{}'", type.substr(0, 64)));
}

void client_kill(Call& call) {
  std::optional<std::string_view> address;
  std::string_view type;
  std::string_view user;
  int64_t id = 0;
  bool spares_itself = call.size() > 3;
  if (call.size() == 3) {
    address = call[2];
  } else {
    if (call.size() % 2 != 0) throw_syntax();
    for (size_t i = 2; i + 1 < call.size(); i += 2) {
      const std::string_view value = call[i + 1];
      if (same_word(call[i], "ID")) {
        constexpr char kWords[] = "ERR client-id should be greater than 0";
        if ((id = integer_of(value, kWords)) < 1) throw CommandError(kWords);
      } else if (same_word(call[i], "ADDR")) {
        address = value;
      } else if (same_word(call[i], "TYPE")) {
        is_of_type(call.session.connection(), type = value);
      } else if (same_word(call[i], "USER")) {
        user = value;
        if (call.server.acl().find(user) == nullptr) {
          throw CommandError(fmt::format("ERR No such user '{}'", user.substr(0, 64)));
        }
      } else if (same_word(call[i], "SKIPME") && same_word(value, "YES")) {
        spares_itself = true;
      } else if (same_word(call[i], "SKIPME") && same_word(value, "NO")) {
        spares_itself = false;
      } else {
        throw_syntax();
      }
    }
  }
  int64_t killed = 0;
  for (const auto& loop : call.server.loops()) {
    loop->for_connections([&](const Connection& one) {
      const auto* session = dynamic_cast<const RespSession*>(one.session.get());
      const bool fits =
          (id == 0 || one.id == static_cast<uint64_t>(id)) && (!address || one.peer == *address) &&
          (type.empty() || is_of_type(one, type)) &&
          (user.empty() ||
           (session != nullptr && session->user != nullptr && session->user->name() == user)) &&
          !(spares_itself && &one == &call.session.connection());
      if (!fits) return;
      loop->post_close(one.id);
      ++killed;
    });
  }
  if (call.size() > 3) return call.reply.integer(killed);
  if (killed == 0) throw CommandError("ERR No such client");
  call.reply.ok();
}

// LIST, or this connection alone.
void client_list(Call& call, bool only_this) {
  std::string_view type;
  std::vector<uint64_t> ids;
  if (call.size() == 4 && same_word(call[2], "TYPE")) {
    is_of_type(call.session.connection(), type = call[3]);
  } else if (call.size() > 3 && same_word(call[2], "ID")) {
    for (size_t i = 3; i < call.size(); ++i) {
      ids.push_back(static_cast<uint64_t>(integer_of(call[i], "ERR Invalid client ID")));
    }
  } else if (call.size() > 2) {
    throw_syntax();
  }
  std::string text;
  for (const auto& loop : call.server.loops()) {
    loop->for_connections([&](const Connection& one) {
      if (only_this && &one != &call.session.connection()) return;
      if (!type.empty() && !is_of_type(one, type)) return;
      if (!ids.empty() && std::ranges::find(ids, one.id) == ids.end()) return;
      text += describe(one);
    });
  }
  call.reply.verbatim(text);
}

void run_client(Call& call) {
  const std::string_view what = call[1];
  if (same_word(what, "ID") && call.size() == 2) {
    call.reply.integer(static_cast<int64_t>(call.session.connection().id));
  } else if (same_word(what, "GETNAME") && call.size() == 2) {
    call.session.name.empty() ? call.reply.null() : call.reply.bulk(call.session.name);
  } else if (same_word(what, "SETNAME") && call.size() == 3) {
    set_name(call, call[2]);
    call.reply.ok();
  } else if (same_word(what, "SETINFO") && call.size() == 4) {
    if (same_word(call[2], "LIB-NAME"))
      call.session.library = call[3].substr(0, 64);
    else if (same_word(call[2], "LIB-VER"))
      call.session.library_version = call[3].substr(0, 64);
    else
      throw CommandError("ERR Unrecognized option");
    call.reply.ok();
  } else if (same_word(what, "LIST") || (same_word(what, "INFO") && call.size() == 2)) {
    client_list(call, same_word(what, "INFO"));
  } else if (same_word(what, "KILL") && call.size() >= 3) {
    client_kill(call);
  } else if ((same_word(what, "NO-EVICT") || same_word(what, "NO-TOUCH")) && call.size() == 3) {
    if (!same_word(call[2], "ON") && !same_word(call[2], "OFF")) throw_syntax();
    call.reply.ok();
  } else {
    help_or_throw(call, {"GETNAME", "ID", "INFO", "KILL <ip:port> | <filter> <value> ...",
                         "LIST [TYPE <type> | ID <id> ...]", "NO-EVICT ON|OFF", "NO-TOUCH ON|OFF",
                         "SETINFO LIB-NAME|LIB-VER <value>", "SETNAME <name>"});
  }
}

void config_get(Call& call) {
  std::vector<std::pair<std::string, std::string>> found;
  // Names that tools of Redis ask for, and what they mean here.
  static const std::pair<const char*, const char*> kFixed[] = {
      {"save", ""}, {"appendonly", "no"}, {"databases", "16"}};
  const auto add = [&](const std::string& name, const std::string& value) {
    for (size_t i = 2; i < call.size(); ++i) {
      std::string pattern(call[i]);
      std::ranges::transform(pattern, pattern.begin(),
                             [](unsigned char c) { return std::tolower(c); });
      if (fits_pattern(pattern, name)) return found.emplace_back(name, value), void();
    }
  };
  for (const Setting& setting : settings()) {
    add(setting.name, setting.name.ends_with("password") ? "" : setting.get(call.server.config()));
  }
  for (const auto& [name, value] : kFixed) add(name, value);
  add("maxmemory", fmt::format("{}", call.server.config().memory_bytes));
  add("maxmemory-policy", call.server.config().evict ? "allkeys-lru" : "noeviction");
  call.reply.map(found.size());
  for (const auto& [name, value] : found) {
    call.reply.bulk(name);
    call.reply.bulk(value);
  }
}

void run_config(Call& call) {
  if (same_word(call[1], "GET") && call.size() >= 3) return config_get(call);
  if (same_word(call[1], "RESETSTAT") && call.size() == 2) {
    for (size_t i = 0; i < command_count(); ++i) {
      call.server.metrics_of(i) = {};
      call.server.memcached_metrics_of(i) = {};
    }
    call.server.metrics().keyspace_hits = call.server.metrics().keyspace_misses = 0;
    return call.reply.ok();
  }
  if (!same_word(call[1], "SET") || call.size() < 4 || call.size() % 2 != 0) {
    return help_or_throw(call, {"GET <pattern> [<pattern> ...]", "RESETSTAT",
                                "SET <name> <value> [<name> <value> ...]"});
  }
  // All of them, before one is changed.
  for (size_t i = 2; i < call.size(); i += 2) {
    const Setting* setting = find_setting(call[i]);
    if (setting == nullptr) {
      throw CommandError(
          fmt::format("ERR Unknown option or number of arguments for CONFIG SET - '{}'",
                      call[i].substr(0, 64)));
    }
    if (!setting->is_live) {
      throw CommandError(fmt::format(
          "ERR CONFIG SET failed (possibly related to argument '{}') - can't set immutable config",
          setting->name));
    }
  }
  Config tried = call.server.config();  // who does not like his value throws
  for (size_t i = 2; i < call.size(); i += 2) find_setting(call[i])->set(tried, call[i + 1]);
  for (size_t i = 2; i < call.size(); i += 2) {
    call.server.set_config(*find_setting(call[i]), call[i + 1]);
  }
  call.reply.ok();
}

void run_info(Call& call) {
  std::string text;
  for (size_t i = 1; i < call.size(); ++i) text += info_text(call.server, call[i]);
  call.reply.verbatim(call.size() == 1 ? info_text(call.server, "default") : text);
}

std::vector<std::string_view> flags_of(const Command& command) {
  std::vector<std::string_view> flags;
  const auto add = [&](uint32_t flag, std::string_view word) {
    if ((command.flags & flag) != 0) flags.push_back(word);
  };
  flags.emplace_back((command.flags & kWrites) != 0 ? "write" : "readonly");
  add(kFast, "fast");
  add(kAdmin, "admin");
  add(kLoading, "loading");
  add(kNoAuth, "no_auth");
  add(kNoMulti, "no_multi");
  add(kBlocks, "blocking");
  return flags;
}

void describe(Call& call, const Command& command) {
  call.reply.array(10);
  call.reply.bulk(command.name);
  call.reply.integer(command.arity);
  const auto flags = flags_of(command);
  call.reply.set(flags.size());
  for (const std::string_view flag : flags) call.reply.simple(flag);
  call.reply.integer(command.first_key);
  call.reply.integer(command.last_key);
  call.reply.integer(command.key_step);
  const auto& all = categories_of(command);
  call.reply.set(all.size());
  for (const std::string_view one : all) call.reply.simple(fmt::format("@{}", one));
  for (int i = 0; i < 3; ++i) call.reply.array(0);  // tips, key specifications, subcommands
}

void document(Call& call, const Command& command) {
  call.reply.bulk(command.name);
  call.reply.map(3);
  call.reply.bulk("summary");
  call.reply.bulk(command.summary);
  call.reply.bulk("since");
  call.reply.bulk("1.0.0");
  call.reply.bulk("group");
  call.reply.bulk(command.group);
}

void command_getkeys(Call& call) {
  const auto arguments = call.arguments.subspan(2);
  const Command* command = find_command(arguments[0]);
  if (command == nullptr) throw CommandError("ERR Invalid command specified");
  const auto count = static_cast<int>(arguments.size());
  if (command->arity > 0 ? count != command->arity : count < -command->arity) {
    throw CommandError("ERR Invalid number of arguments specified for command");
  }
  std::vector<std::string_view> keys;
  for_keys(*command, arguments,
           [&](std::string_view key, bool /*reads*/, bool /*writes*/) { keys.push_back(key); });
  // One that counts them as it does not have them.
  if (counts_keys(*command) && keys.empty()) {
    throw CommandError("ERR Invalid arguments specified for command");
  }
  if (keys.empty()) throw CommandError("ERR The command has no key arguments");
  call.reply.array(keys.size());
  for (const std::string_view key : keys) call.reply.bulk(key);
}

void run_command_command(Call& call) {
  if (call.size() > 2 && same_word(call[1], "GETKEYS")) return command_getkeys(call);
  std::vector<const Command*> chosen;
  for (size_t i = 2; i < call.size(); ++i) chosen.push_back(find_command(call[i]));
  if (call.size() <= 2) {
    for (const Command& command : commands()) chosen.push_back(&command);
  }
  if (call.size() == 1 || same_word(call[1], "INFO")) {
    call.reply.array(chosen.size());
    for (const Command* command : chosen) {
      command != nullptr ? describe(call, *command) : call.reply.null();
    }
  } else if (same_word(call[1], "DOCS")) {
    std::erase(chosen, nullptr);
    call.reply.map(chosen.size());
    for (const Command* command : chosen) document(call, *command);
  } else if (same_word(call[1], "COUNT") && call.size() == 2) {
    call.reply.integer(static_cast<int64_t>(command_count()));
  } else if (same_word(call[1], "LIST")) {
    call.reply.array(command_count());
    for (const Command& command : commands()) call.reply.bulk(command.name);
  } else {
    help_or_throw(call, {"COUNT", "DOCS [<command> ...]", "GETKEYS <command> [<arg> ...]",
                         "INFO [<command> ...]", "LIST"});
  }
}

void run_time(Call& call) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  call.reply.array(2);
  call.reply.bulk(fmt::format("{}", now.tv_sec));
  call.reply.bulk(fmt::format("{}", now.tv_nsec / 1000));
}

void flush(Call& call, uint32_t database) {
  if (call.size() > 2 ||
      (call.size() == 2 && !same_word(call[1], "ASYNC") && !same_word(call[1], "SYNC"))) {
    throw_syntax();
  }
  call.keys().flush(database);
  call.server.events().forget_expiries(database);
  call.reply.ok();
}
void run_flushall(Call& call) { flush(call, ~uint32_t{0}); }
void run_flushdb(Call& call) { flush(call, call.session.database); }

void run_shutdown(Call& call) {
  // What was written is durable; what arrives before the end is answered.
  call.session.closes = true;
  call.server.stop();
}

void run_debug(Call& call) {
  constexpr double kSecondsMax = 60;
  if (same_word(call[1], "SLEEP") && call.size() == 3) {
    const double seconds = std::clamp(real_of(call[2]), 0.0, kSecondsMax);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return call.reply.ok();
  }
  help_or_throw(call, {"SLEEP <seconds>"});
}

void run_slowlog(Call& call) {
  std::deque<SlowEntry>& log = call.server.slowlog();
  if (same_word(call[1], "LEN")) return call.reply.integer(static_cast<int64_t>(log.size()));
  if (same_word(call[1], "RESET")) {
    log.clear();
    return call.reply.ok();
  }
  if (!same_word(call[1], "GET") || call.size() > 3) {
    return help_or_throw(call, {"GET [<count>]", "LEN", "RESET"});
  }
  constexpr char kWords[] = "ERR count should be greater than or equal to -1";
  const int64_t wanted = call.size() == 3 ? integer_of(call[2], kWords) : 10;
  if (wanted < -1) throw CommandError(kWords);
  const size_t count = wanted < 0 ? log.size() : std::min(static_cast<size_t>(wanted), log.size());
  call.reply.array(count);
  for (size_t i = 0; i < count; ++i) {
    const SlowEntry& entry = log[i];
    call.reply.array(6);
    call.reply.integer(static_cast<int64_t>(entry.id));
    call.reply.integer(static_cast<int64_t>(entry.time_s));
    call.reply.integer(static_cast<int64_t>(entry.us));
    call.reply.array(entry.arguments.size());
    for (const std::string& one : entry.arguments) call.reply.bulk(one);
    call.reply.bulk(entry.peer);
    call.reply.bulk("");
  }
}

void run_memory(Call& call) {
  if (same_word(call[1], "USAGE")) {
    for (size_t i = 3; i < call.size(); i += 2) {
      if (!same_word(call[i], "SAMPLES") || i + 1 == call.size() || integer_of(call[i + 1]) < 0) {
        throw_syntax();
      }
    }
    const std::string_view raw = call.key(2);
    const Item item = call.keys().find(raw);
    if (!item) return call.reply.null();
    // The record of the key: a string's, or the header of a collection.
    return call.reply.integer(static_cast<int64_t>(32 + raw.size() + item.text.size() + 24));
  }
  help_or_throw(call, {"USAGE <key> [SAMPLES <count>]"});
}

void run_save(Call& call) {
  // All that was answered is durable.
  call.reply.ok();
}

void run_lastsave(Call& call) { call.reply.integer(static_cast<int64_t>(std::time(nullptr))); }

// Followers have what the client wrote last.
void run_wait(Call& call) {
  const int64_t wanted = integer_of(call[1]);
  const int64_t ms = integer_of(call[2], "ERR timeout is not an integer or out of range");
  if (ms < 0) throw CommandError("ERR timeout is negative");
  if (call.server.is_follower()) {
    throw CommandError(
        "ERR WAIT cannot be used with replica instances. Please also note that writes to replicas "
        "are just local and are not propagated.");
  }
  const Server::Positions& written = call.session.written();
  // Of this turn, so far; what a transaction writes is not yet among it.
  if (!call.keys().in_transaction()) call.server.settle_positions();
  const auto there = static_cast<int64_t>(call.server.followers_with(written));
  if (there >= wanted || call.keys().in_transaction() || call.session.is_due()) {
    return call.reply.integer(there);
  }
  call.session.wait_for_followers(call, static_cast<uint64_t>(ms));
}

constexpr uint32_t kAlways = kNoAuth | kLoading | kWithSub | kFast;
constexpr Command kConnectionCommands[] = {
    {"auth", -2, kNoAuth | kLoading | kFast, 0, 0, 0, "connection", "Gives the password", run_auth},
    {"client", -2, kLoading | kHasSubcommands, 0, 0, 0, "connection",
     "Tells of connections, and names them", run_client},
    {"echo", 2, kFast | kLoading, 0, 0, 0, "connection", "Returns its argument", run_echo},
    {"hello", -1, kNoAuth | kLoading | kFast, 0, 0, 0, "connection",
     "Chooses the version of the protocol", run_hello},
    {"ping", -1, kLoading | kWithSub | kFast, 0, 0, 0, "connection", "Returns PONG", run_ping},
    {"quit", -1, kAlways | kAtOnce, 0, 0, 0, "connection", "Closes the connection", run_quit},
    {"reset", 1, kAlways | kAtOnce, 0, 0, 0, "connection", "Makes the connection as new",
     run_reset},
    {"select", 2, kLoading | kFast, 0, 0, 0, "connection", "Chooses a database", run_select},
};
constexpr Command kServerCommands[] = {
    {"bgsave", -1, kAdmin, 0, 0, 0, "server", "Does nothing: all is durable", run_save},
    {"command", -1, kLoading | kHasSubcommands, 0, 0, 0, "server", "Tells of commands",
     run_command_command},
    {"config", -2, kAdmin | kLoading | kHasSubcommands, 0, 0, 0, "server",
     "Reads and changes settings", run_config},
    {"debug", -2, kAdmin | kNoMulti | kHasSubcommands, 0, 0, 0, "server", "SLEEP: waits",
     run_debug},
    {"flushall", -1, kWrites | kNoMulti, 0, 0, 0, "server", "Removes all keys", run_flushall},
    {"flushdb", -1, kWrites | kNoMulti, 0, 0, 0, "server", "Removes all keys of the database",
     run_flushdb},
    {"info", -1, kLoading, 0, 0, 0, "server", "Tells of the server", run_info},
    {"lastsave", 1, kFast | kLoading, 0, 0, 0, "server", "Returns the time: all is durable",
     run_lastsave},
    {"memory", -2, kHasSubcommands, 2, 2, 1, "server", "USAGE: bytes of a key's record",
     run_memory},
    {"save", 1, kAdmin, 0, 0, 0, "server", "Does nothing: all is durable", run_save},
    {"shutdown", -1, kAdmin | kNoMulti | kLoading, 0, 0, 0, "server", "Stops in order",
     run_shutdown},
    {"slowlog", -2, kAdmin | kLoading | kHasSubcommands, 0, 0, 0, "server",
     "Tells of commands that took long", run_slowlog},
    {"time", 1, kFast | kLoading, 0, 0, 0, "server", "Returns the time", run_time},
    {"wait", 3, kBlocks, 0, 0, 0, "generic", "Waits for followers to have what was written",
     run_wait},
};

}  // namespace

std::span<const Command> connection_commands() { return kConnectionCommands; }
std::span<const Command> server_commands() { return kServerCommands; }

}  // namespace perdure::server
