// Channels and transactions.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "server/acl.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/dump_format.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

void tell_subscription(Call& call, std::string_view kind, const std::string* channel) {
  call.reply.push(3);
  call.reply.bulk(kind);
  channel != nullptr ? call.reply.bulk(*channel) : call.reply.null();
  call.reply.integer(static_cast<int64_t>(call.session.subscriptions()));
}

Server::Subscriber subscriber_of(Call& call) {
  return {&call.session.loop(), call.session.connection().id, call.reply.version()};
}

void subscribe(Call& call, Server::Subscribers& all, std::vector<std::string>& mine,
               std::string_view kind) {
  RespSession& session = call.session;
  std::unordered_set<std::string_view> more;
  size_t bytes = session.subscribed_bytes;
  for (const std::string_view one : call.arguments.subspan(1)) {
    const bool is_new = std::ranges::find(mine, one) == mine.end() && more.insert(one).second;
    if (is_new) bytes += one.size();
  }
  require_names(session.subscriptions() + more.size(), bytes);
  session.subscribed_bytes = bytes;
  for (const std::string_view one : call.arguments.subspan(1)) {
    const std::string channel(one);
    if (more.erase(one) > 0) {
      mine.push_back(channel);
      all[channel].push_back(subscriber_of(call));
    }
    tell_subscription(call, kind, &channel);
  }
}

void unsubscribe(Call& call, Server::Subscribers& all, std::vector<std::string>& mine,
                 std::string_view kind) {
  std::vector<std::string> names(call.arguments.begin() + 1, call.arguments.end());
  if (names.empty()) names = mine;
  for (const std::string& channel : names) {
    if (std::erase(mine, channel) > 0) {
      call.session.subscribed_bytes -= channel.size();
      const auto found = all.find(channel);
      std::erase(found->second, subscriber_of(call));
      if (found->second.empty()) all.erase(found);
    }
    tell_subscription(call, kind, &channel);
  }
  if (names.empty()) tell_subscription(call, kind, nullptr);
}

void run_subscribe(Call& call) {
  subscribe(call, call.server.channels(), call.session.channels, "subscribe");
}
void run_psubscribe(Call& call) {
  subscribe(call, call.server.patterns(), call.session.patterns, "psubscribe");
}
void run_unsubscribe(Call& call) {
  unsubscribe(call, call.server.channels(), call.session.channels, "unsubscribe");
}
void run_punsubscribe(Call& call) {
  unsubscribe(call, call.server.patterns(), call.session.patterns, "punsubscribe");
}

void run_publish(Call& call) {
  call.reply.integer(static_cast<int64_t>(call.server.publish(call[1], call[2])));
}

void run_pubsub(Call& call) {
  const Server::Subscribers& channels = call.server.channels();
  if (same_word(call[1], "CHANNELS") && call.size() <= 3) {
    std::vector<std::string_view> names;
    for (const auto& [name, to] : channels) {
      if (call.size() == 2 || fits_pattern(call[2], name)) names.push_back(name);
    }
    call.reply.array(names.size());
    for (const std::string_view name : names) call.reply.bulk(name);
  } else if (same_word(call[1], "NUMSUB")) {
    call.reply.array(2 * (call.size() - 2));
    for (size_t i = 2; i < call.size(); ++i) {
      const auto found = channels.find(std::string(call[i]));
      call.reply.bulk(call[i]);
      call.reply.integer(found == channels.end() ? 0 : static_cast<int64_t>(found->second.size()));
    }
  } else if (same_word(call[1], "NUMPAT") && call.size() == 2) {
    call.reply.integer(static_cast<int64_t>(call.server.patterns().size()));
  } else {
    help_or_throw(call, {"CHANNELS [<pattern>]", "NUMPAT", "NUMSUB [<channel> ...]"});
  }
}

void run_multi(Call& call) {
  if (call.session.in_multi) throw CommandError("ERR MULTI calls can not be nested");
  call.session.in_multi = true;
  call.reply.ok();
}

void run_discard(Call& call) {
  if (!call.session.in_multi) throw CommandError("ERR DISCARD without MULTI");
  call.session.leave_multi();
  call.reply.ok();
}

void run_watch(Call& call) {
  if (call.session.in_multi) throw CommandError("ERR WATCH inside MULTI is not allowed");
  Keyspace& keys = call.keys();
  auto [names, bytes] = Keyspace::watched(call.session);
  for (size_t i = 1; i < call.size(); ++i) {
    const std::string_view raw = call.key(i);
    if (keys.is_watching(call.session, raw)) continue;
    ++names;
    bytes += raw.size();
  }
  require_names(names, bytes);
  for (size_t i = 1; i < call.size(); ++i) {
    const std::string_view raw = call.key(i);
    keys.watch(call.session, raw, static_cast<bool>(keys.find(raw)));
  }
  call.reply.ok();
}

void run_unwatch(Call& call) {
  call.keys().forget(call.session);
  call.reply.ok();
}

// All of it is kept back, and written as one group: a crash keeps all of it or nothing.
void run_exec(Call& call) {
  RespSession& session = call.session;
  if (!session.in_multi) throw CommandError("ERR EXEC without MULTI");
  const bool failed = session.multi_failed;
  // Whatever comes, the transaction ends.
  bool dirty = false;
  std::string cannot;
  try {
    if (call.keyspace == nullptr) throw store::NotReady();
    dirty = call.keys().has_changed(session);
  } catch (const Error& error) {
    cannot = error.what();
  }
  const std::vector<std::vector<std::string>> queued = std::move(session.queued);
  session.leave_multi();
  if (failed) {
    throw CommandError("EXECABORT Transaction discarded because of previous errors.");
  }
  if (!cannot.empty()) {
    throw CommandError("EXECABORT Transaction discarded, nothing was done: " + cannot);
  }
  if (dirty) return call.reply.null_array();
  Buffer& out = call.reply.out();
  const size_t begin = out.size();
  call.reply.array(queued.size());
  call.keys().begin_transaction();
  session.exec_error.clear();
  session.unpack_room_bytes = kUnpackedBytesMax;
  KeyEvents& events = call.server.events();
  const size_t events_before = events.waiting();
  const auto discard = [&, database = session.database] {
    call.keys().abandon_group();
    events.drop_from(events_before);
    out.truncate(begin);
    session.database = database;
  };
  try {
    for (const std::vector<std::string>& one : queued) {
      const std::vector<std::string_view> arguments(one.begin(), one.end());
      const Command& command = *find_command(arguments[0]);
      // The rules may have changed since it was queued.
      const auto denied =
          session.user == nullptr ? std::nullopt : denial_of(*session.user, command, arguments);
      if (denied) {
        call.reply.error(denied->words);
        continue;
      }
      session.run_command(command, arguments);
      if (!session.exec_error.empty()) {
        throw CommandError("EXECABORT Transaction discarded, nothing was done: " +
                           session.exec_error);
      }
    }
    call.keys().end_transaction();
    call.keys().commit_group();
    if (events.are_on()) [[unlikely]]
      events.note_committed();
    const auto writes = [](const auto& one) {
      return (find_command(one[0])->flags & kWrites) != 0;
    };
    if (std::ranges::any_of(queued, writes)) session.note_written();  // now it is in the store
  } catch (const Error& error) {
    discard();
    throw CommandError(
        fmt::format("EXECABORT Transaction discarded, nothing was done: {}", error.what()));
  } catch (...) {
    discard();
    throw;
  }
  call.reply.forget_failure();
}

constexpr uint32_t kChannel = kWithSub | kLoading;
constexpr Command kChannelCommands[] = {
    {"psubscribe", -2, kChannel | kNoMulti, 0, 0, 0, "pubsub", "Listens to channels by pattern",
     run_psubscribe},
    {"publish", 3, kFast | kLoading, 0, 0, 0, "pubsub", "Sends a message to a channel",
     run_publish},
    {"pubsub", -2, kLoading | kHasSubcommands, 0, 0, 0, "pubsub", "Tells of channels", run_pubsub},
    {"punsubscribe", -1, kChannel | kNoMulti, 0, 0, 0, "pubsub",
     "Listens no more to channels by pattern", run_punsubscribe},
    {"subscribe", -2, kChannel | kNoMulti, 0, 0, 0, "pubsub", "Listens to channels", run_subscribe},
    {"unsubscribe", -1, kChannel | kNoMulti, 0, 0, 0, "pubsub", "Listens no more to channels",
     run_unsubscribe},
};
constexpr Command kTransactionCommands[] = {
    {"discard", 1, kAtOnce | kFast | kLoading, 0, 0, 0, "transactions", "Ends MULTI, does nothing",
     run_discard},
    {"exec", 1, kAtOnce | kLoading, 0, 0, 0, "transactions", "Does what was queued, all or nothing",
     run_exec},
    {"multi", 1, kAtOnce | kFast | kLoading, 0, 0, 0, "transactions", "Queues what follows",
     run_multi},
    {"unwatch", 1, kFast, 0, 0, 0, "transactions", "Forgets watched keys", run_unwatch},
    {"watch", -2, kAtOnce | kFast, 1, -1, 1, "transactions",
     "Lets EXEC do nothing if keys have changed", run_watch},
};

}  // namespace

std::span<const Command> channel_commands() { return kChannelCommands; }
std::span<const Command> transaction_commands() { return kTransactionCommands; }

}  // namespace perdure::server
