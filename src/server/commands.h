// The commands of RESP: what they are called, what they need, and what runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/keyspace.h"
#include "server/resp_reply.h"

namespace perdure::server {

class AclUser;
class RespSession;
class Server;

// What a command is given.
struct Call {
  Server& server;
  RespSession& session;
  Keyspace* keyspace;  // null only for commands that run while the store is loading
  std::span<const std::string_view> arguments;
  RespReply& reply;
  std::string scratch = {};

  Keyspace& keys() const { return *keyspace; }
  size_t size() const { return arguments.size(); }
  std::string_view operator[](size_t i) const { return arguments[i]; }
  // The record of the key that is argument i. Valid until the next call with the same buffer.
  std::string_view key(size_t i, std::string& buffer) const;
  std::string_view key(size_t i) { return key(i, scratch); }
};

enum CommandFlag : uint32_t {
  kWrites = 1,    // changes keys
  kGroup = 2,     // its writes are kept back and written together
  kNoAuth = 4,    // needs no AUTH
  kLoading = 8,   // runs while the store is loading
  kWithSub = 16,  // may be used by a RESP2 connection that has subscriptions
  kNoMulti = 32,  // not within MULTI
  kAtOnce = 64,   // is not queued by MULTI
  kAdmin = 128,
  kFast = 256,
  kBlocks = 512,  // may wait
  kHasSubcommands = 1024
};
// Of most commands that change a key.
inline constexpr uint32_t kChange = kWrites | kGroup;

struct Command {
  std::string_view name;  // in lower case
  int arity;              // with the name; negative: at least that many
  uint32_t flags;
  int first_key;  // arguments; 0: no keys
  int last_key;   // negative: from the end
  int key_step;
  std::string_view group;
  std::string_view summary;
  void (*run)(Call& call);
};

// All of them, sorted by name.
const std::vector<Command>& commands();
size_t command_count();
// Null if there is none of this name, in any case.
const Command* find_command(std::string_view name);
// Of a command with subcommands: why this is none of them, if so.
std::optional<std::string> subcommand_error(const Command& command,
                                            std::span<const std::string_view> arguments);
inline size_t number_of(const Command& command) {
  return static_cast<size_t>(&command - commands().data());
}

// The parts of the table, each in its file.
std::span<const Command> connection_commands();
std::span<const Command> server_commands();
std::span<const Command> key_commands();
std::span<const Command> dump_commands();
std::span<const Command> string_commands();
std::span<const Command> bit_commands();
std::span<const Command> hash_commands();
std::span<const Command> set_commands();
std::span<const Command> list_commands();
std::span<const Command> sorted_set_commands();
std::span<const Command> channel_commands();
std::span<const Command> transaction_commands();
std::span<const Command> replication_commands();
std::span<const Command> acl_commands();

// What ACLs, ACL CAT and COMMAND say of commands: "read", "dangerous", ...; all that there are, and
// those of one.
const std::vector<std::string_view>& categories();
const std::vector<std::string_view>& categories_of(const Command& command);
// Calls `visit` for each argument that is a key, and says what the command does to it.
void for_keys(const Command& command, std::span<const std::string_view> arguments,
              const std::function<void(std::string_view key, bool reads, bool writes)>& visit);
// Whether an argument of it says how many keys it has.
bool counts_keys(const Command& command);
// Why the user may not run it with these arguments, if so.
struct AclDenial {
  std::string reason;  // "command", "key" or "channel"
  std::string object;
  std::string words;
};
std::optional<AclDenial> denial_of(const AclUser& user, const Command& command,
                                   std::span<const std::string_view> arguments);

// Helpers of commands. All throw CommandError.
int64_t integer_of(std::string_view text);
// With an error of its own for what is none.
int64_t integer_of(std::string_view text, const char* otherwise);
// Of a command that takes a count: not below 0.
uint64_t count_of(std::string_view text);
// Also "inf", "+inf", "-inf"; no NaN.
double real_of(std::string_view text);
// The number of a database, as commands give it.
uint32_t database_of(std::string_view text);
// As Redis adds and writes them, in the precision of long double: "0.1" and "0.2" are "0.3".
long double long_real_of(std::string_view text);
std::string sum_of_reals(long double a, long double b);
// Of what a connection listens to, watches or waits for: names, and their bytes together, as they
// would be. Throws if they are too many.
void require_names(size_t names, size_t bytes);
// Of a command that waits: seconds, not below 0.
double timeout_of(std::string_view text);
bool same_word(std::string_view text, std::string_view upper_case);
[[noreturn]] void throw_syntax();
// Of a command with subcommands: answers HELP with `lines`, each a subcommand with its arguments;
// else says that the given one has a wrong number of arguments.
void help_or_throw(Call& call, std::initializer_list<std::string_view> lines);
// Of the type, or absent.
Item require_type(Call& call, std::string_view raw, Type type);
// Whether a key fits a pattern with * ? [a-z] [^a] and \.
bool fits_pattern(std::string_view pattern, std::string_view text);

}  // namespace perdure::server
