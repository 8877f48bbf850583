// Users, and what they may do: the rules of Redis' ACLs.
//
//   user alice on >secret ~cache:* %R~config:* &news +@read +@write -keys
//
// Rules are applied in their order; a command is allowed as the last rule that names it says. What
// is not there: selectors in parentheses.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perdure::server {

struct Command;
struct Config;

// SHA-256 in hexadecimal digits. Throws Error(kInvalidArgument) if the build has no OpenSSL.
std::string sha256_of(std::string_view text);

class AclUser {
 public:
  // A new user may nothing, and is off.
  explicit AclUser(std::string name);

  const std::string& name() const { return name_; }
  bool is_on() const { return on_; }
  bool needs_password() const { return !nopass_; }
  // Applies a rule. Throws Error(kInvalidArgument) with a message as Redis gives it.
  void apply(std::string_view rule);
  bool accepts(std::string_view password) const;
  // Whether there is nothing that it may not.
  bool may_all() const { return all_commands_ && all_keys_ && all_channels_; }
  bool may_run(const Command& command, std::string_view subcommand) const;
  // With a key as clients say it.
  bool may_use(std::string_view key, bool reads, bool writes) const;
  // `literal`: of a pattern that is subscribed to.
  bool may_hear(std::string_view channel, bool literal) const;
  // Its rules, which make the same user; passwords as #hash.
  std::string rules() const;

  std::vector<std::string> flags() const;
  const std::vector<std::string>& passwords() const { return passwords_; }
  std::string command_rules() const;
  std::string key_rules() const;
  std::string channel_rules() const;

 private:
  struct KeyPattern {
    std::string pattern;
    bool reads;
    bool writes;
  };
  void apply_command(std::string_view rule);
  void set_all(bool allowed);
  void note_command_rule(std::string_view rule);

  std::string name_;
  bool on_ = false;
  bool nopass_ = false;
  std::vector<std::string> passwords_;  // SHA-256
  std::vector<bool> commands_;          // by number
  bool all_commands_ = false;
  std::map<std::string, bool, std::less<>> subcommands_;  // "config|get"
  std::vector<std::string> command_rules_;                // as given, those that count
  bool all_keys_ = false;
  std::vector<KeyPattern> keys_;
  bool all_channels_ = false;
  std::vector<std::string> channels_;
};

// All users. For who holds the execution lock.
class Acl {
 public:
  struct Denial {
    uint64_t id;
    uint64_t time_ms;
    std::string reason;  // "command", "key", "channel", "auth"
    std::string object;
    std::string user;
    std::string peer;
  };
  using Users = std::map<std::string, std::shared_ptr<AclUser>, std::less<>>;

  // With the user default, who may all and, without a password, needs none.
  Acl();
  // Each "NAME RULE ...". Throws Error(kInvalidArgument), having changed nothing.
  void set_users(std::span<const std::string> lines);
  void set_default_password(std::string_view password);
  // The same from a file of lines "user NAME RULE ...", in place of all users, but for default if
  // it has none. Returns users that are there no more. Throws Error(kInvalidArgument, kNotFound),
  // having changed nothing.
  void load(const std::string& file);
  // Durable on return. Throws Error(kIo).
  void save(const std::string& file) const;

  const Users& users() const { return users_; }
  AclUser* find(std::string_view name) const;
  // Makes it if it is not there. Throws Error(kInvalidArgument), having changed nothing.
  void set_user(std::string_view name, std::span<const std::string_view> rules);
  bool remove_user(std::string_view name);
  // Null if there is none, or the password is wrong, or it is off.
  std::shared_ptr<AclUser> authenticate(std::string_view name, std::string_view password) const;
  // Whom a client is who has not said: null if default needs a password.
  std::shared_ptr<AclUser> default_user() const;

  void note_denial(Denial denial);
  std::deque<Denial>& denials() { return denials_; }

 private:
  Users users_;
  std::deque<Denial> denials_;
  uint64_t denials_noted_ = 0;
};

// The users that a configuration says. Throws Error(kInvalidArgument, kNotFound).
Acl make_acl(const Config& config);

}  // namespace perdure::server
