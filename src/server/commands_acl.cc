// ACL: users and what they may do.
#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "perdure/error.h"
#include "server/acl.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/memcached.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

bool hears_what_it_may_not(const RespSession& session) {
  const AclUser& user = *session.user;
  const auto is_denied = [&](const std::vector<std::string>& all, bool literal) {
    return std::ranges::any_of(
        all, [&](const std::string& one) { return !user.may_hear(one, literal); });
  };
  return is_denied(session.channels, false) || is_denied(session.patterns, true);
}

// Ends the connections of users that are there no more, and those that listen to what their users
// may not hear any more.
void close_sessions(Call& call) {
  const auto is_gone = [&](const AclUser& user) {
    return call.server.acl().find(user.name()) != &user;
  };
  for (const auto& loop : call.server.loops()) {
    loop->for_connections([&](const Connection& one) {
      if (const auto* other = dynamic_cast<const MemcachedSession*>(one.session.get())) {
        if (other->user() != nullptr && is_gone(*other->user())) loop->post_close(one.id);
        return;
      }
      const auto* session = dynamic_cast<const RespSession*>(one.session.get());
      if (session == nullptr || session->user == nullptr) return;
      if (!is_gone(*session->user) && !hears_what_it_may_not(*session)) return;
      if (session == &call.session) {
        call.session.closes = true;
      } else {
        loop->post_close(one.id);
      }
    });
  }
}

void acl_getuser(Call& call) {
  const AclUser* user = call.server.acl().find(call[2]);
  if (user == nullptr) return call.reply.null();
  call.reply.map(6);
  call.reply.bulk("flags");
  const std::vector<std::string> flags = user->flags();
  call.reply.set(flags.size());
  for (const std::string& flag : flags) call.reply.bulk(flag);
  call.reply.bulk("passwords");
  call.reply.array(user->passwords().size());
  for (const std::string& one : user->passwords()) call.reply.bulk(one[0] == 'p' ? "" : one);
  call.reply.bulk("commands");
  call.reply.bulk(user->command_rules());
  call.reply.bulk("keys");
  call.reply.bulk(user->key_rules());
  call.reply.bulk("channels");
  call.reply.bulk(user->channel_rules());
  call.reply.bulk("selectors");
  call.reply.array(0);
}

void acl_deluser(Call& call) {
  int64_t removed = 0;
  for (size_t i = 2; i < call.size(); ++i) {
    if (call[i] == "default") throw CommandError("ERR The 'default' user cannot be removed");
  }
  for (size_t i = 2; i < call.size(); ++i)
    removed += call.server.acl().remove_user(call[i]) ? 1 : 0;
  close_sessions(call);
  call.reply.integer(removed);
}

void acl_cat(Call& call) {
  if (call.size() == 2) {
    call.reply.array(categories().size());
    for (const std::string_view one : categories()) call.reply.bulk(one);
    return;
  }
  if (std::ranges::find(categories(), call[2]) == categories().end()) {
    throw CommandError(fmt::format("ERR Unknown category '{}'", call[2].substr(0, 64)));
  }
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    const auto all = categories_of(command);
    if (std::ranges::find(all, call[2]) != all.end()) names.push_back(command.name);
  }
  call.reply.array(names.size());
  for (const std::string_view name : names) call.reply.bulk(name);
}

void acl_genpass(Call& call) {
  const int64_t bits = call.size() == 3 ? integer_of(call[2]) : 256;
  if (bits < 1 || bits > 4096) {
    throw CommandError(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive "
        "number up to 4096");
  }
  const auto digits = static_cast<size_t>((bits + 3) / 4);
  std::string text;
  while (text.size() < digits) {
    unsigned char bytes[32];
    if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) continue;
    for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  }
  text.resize(digits);
  call.reply.bulk(text);
}

void acl_log(Call& call) {
  std::deque<Acl::Denial>& all = call.server.acl().denials();
  if (call.size() == 3 && same_word(call[2], "RESET")) {
    all.clear();
    return call.reply.ok();
  }
  const int64_t wanted = call.size() == 3 ? integer_of(call[2]) : 10;
  const size_t count =
      wanted < 0 ? all.size() : std::min<size_t>(all.size(), static_cast<size_t>(wanted));
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t now_ms =
      static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
  call.reply.array(count);
  for (size_t i = 0; i < count; ++i) {
    const Acl::Denial& one = all[i];
    call.reply.map(7);
    call.reply.bulk("count");
    call.reply.integer(1);
    call.reply.bulk("reason");
    call.reply.bulk(one.reason);
    call.reply.bulk("context");
    call.reply.bulk("toplevel");
    call.reply.bulk("object");
    call.reply.bulk(one.object);
    call.reply.bulk("username");
    call.reply.bulk(one.user);
    call.reply.bulk("age-seconds");
    call.reply.real(static_cast<double>(now_ms - std::min(now_ms, one.time_ms)) / 1e3);
    call.reply.bulk("client-info");
    call.reply.bulk(fmt::format("addr={}", one.peer));
  }
}

void acl_dryrun(Call& call) {
  const AclUser* user = call.server.acl().find(call[2]);
  if (user == nullptr)
    throw CommandError(fmt::format("ERR User '{}' not found", call[2].substr(0, 64)));
  const Command* command = find_command(call[3]);
  if (command == nullptr)
    throw CommandError(fmt::format("ERR Command '{}' not found", call[3].substr(0, 64)));
  const auto arguments = call.arguments.subspan(3);
  const auto count = static_cast<int>(arguments.size());
  if (command->arity > 0 ? count != command->arity : count < -command->arity) {
    throw CommandError(
        fmt::format("ERR wrong number of arguments for '{}' command", command->name));
  }
  const auto denied = denial_of(*user, *command, arguments);
  denied ? call.reply.bulk(denied->words) : call.reply.ok();
}

void run_acl(Call& call) {
  Acl& acl = call.server.acl();
  const std::string_view what = call[1];
  try {
    if (same_word(what, "WHOAMI") && call.size() == 2) {
      call.reply.bulk(call.session.user->name());
    } else if (same_word(what, "USERS") && call.size() == 2) {
      call.reply.array(acl.users().size());
      for (const auto& [name, user] : acl.users()) call.reply.bulk(name);
    } else if (same_word(what, "LIST") && call.size() == 2) {
      call.reply.array(acl.users().size());
      for (const auto& [name, user] : acl.users()) {
        call.reply.bulk(fmt::format("user {} {}", name, user->rules()));
      }
    } else if (same_word(what, "SETUSER") && call.size() >= 3) {
      acl.set_user(call[2], call.arguments.subspan(3));
      close_sessions(call);
      call.reply.ok();
    } else if (same_word(what, "GETUSER") && call.size() == 3) {
      acl_getuser(call);
    } else if (same_word(what, "DELUSER") && call.size() >= 3) {
      acl_deluser(call);
    } else if (same_word(what, "CAT") && call.size() <= 3) {
      acl_cat(call);
    } else if (same_word(what, "GENPASS") && call.size() <= 3) {
      acl_genpass(call);
    } else if (same_word(what, "LOG") && call.size() <= 3) {
      acl_log(call);
    } else if (same_word(what, "DRYRUN") && call.size() >= 4) {
      acl_dryrun(call);
    } else if ((same_word(what, "SAVE") || same_word(what, "LOAD")) && call.size() == 2) {
      const std::string& file = call.server.config().acl_file;
      if (file.empty()) {
        throw CommandError(
            "ERR This Redis instance is not configured to use an ACL file. You may want to specify "
            "users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have "
            "a Redis configuration file set) in order to store users in the Redis configuration.");
      }
      if (same_word(what, "SAVE")) {
        acl.save(file);
      } else {
        require_sound(call.server.config());  // with that file, as at a start
        acl.load(file);
        close_sessions(call);
      }
      call.reply.ok();
    } else {
      help_or_throw(call, {"CAT [<category>]", "DELUSER <username> [<username> ...]",
                           "DRYRUN <username> <command> [<arg> ...]", "GENPASS [<bits>]",
                           "GETUSER <username>", "LIST", "LOAD", "LOG [<count> | RESET]", "SAVE",
                           "SETUSER <username> <rule> [<rule> ...]", "USERS", "WHOAMI"});
    }
  } catch (const Error& error) {
    throw CommandError(fmt::format("ERR {}", error.what()));
  }
}

constexpr Command kAclCommands[] = {
    {"acl", -2, kAdmin | kLoading | kHasSubcommands, 0, 0, 0, "server",
     "Users and what they may do", run_acl},
};

}  // namespace

std::span<const Command> acl_commands() { return kAclCommands; }

}  // namespace perdure::server
