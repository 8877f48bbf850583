#include "server/acl.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "perdure/error.h"
#include "server/commands.h"
#include "server/config.h"
#include "server/secret.h"

#if defined(PERDURE_HAS_OPENSSL)
#include <openssl/sha.h>
#endif

namespace perdure::server {

namespace {

constexpr size_t kDenialsMax = 128;
constexpr size_t kHashDigits = 64;

[[noreturn]] void refuse_rule(std::string_view rule, std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("Error in ACL SETUSER modifier '{}': {}", rule.substr(0, 128), why));
}

std::string lower_case(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return lowered;
}

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_clean(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 127; });
}

// What a password is kept as. Without OpenSSL it stays as it is, behind a letter that no hash has.
std::string kept_password(std::string_view password) {
#if defined(PERDURE_HAS_OPENSSL)
  return sha256_of(password);
#else
  return fmt::format("p{}", password);
#endif
}

std::vector<std::string_view> words_of_line(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) break;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  return words;
}

}  // namespace

std::string sha256_of(std::string_view text) {
#if defined(PERDURE_HAS_OPENSSL)
  unsigned char digest[SHA256_DIGEST_LENGTH];
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string digits;
  for (const unsigned char byte : digest) digits += fmt::format("{:02x}", byte);
  return digits;
#else
  static_cast<void>(text);
  throw Error(ErrorCode::kInvalidArgument, "this build has no OpenSSL, and so no SHA-256");
#endif
}

AclUser::AclUser(std::string name) : name_(std::move(name)), commands_(command_count(), false) {}

void AclUser::set_all(bool allowed) {
  std::fill(commands_.begin(), commands_.end(), allowed);
  all_commands_ = allowed;
  subcommands_.clear();
  command_rules_ = {allowed ? "+@all" : "-@all"};
}

// The last rule about the same counts.
void AclUser::note_command_rule(std::string_view rule) {
  std::erase_if(command_rules_, [&](const std::string& one) {
    return std::string_view(one).substr(1) == rule.substr(1);
  });
  command_rules_.emplace_back(rule);
}

void AclUser::apply_command(std::string_view given) {
  const std::string rule = lower_case(given);
  const bool allowed = rule[0] == '+';
  const std::string_view what = std::string_view(rule).substr(1);
  if (command_rules_.empty()) command_rules_ = {"-@all"};
  if (what == "@all") return set_all(allowed);
  if (what.starts_with('@')) {
    bool is_known = false;
    for (const Command& command : commands()) {
      const auto categories = categories_of(command);
      if (std::ranges::find(categories, what.substr(1)) == categories.end()) continue;
      is_known = true;
      commands_[number_of(command)] = allowed;
      std::erase_if(subcommands_, [&](const auto& one) {
        return one.first.starts_with(fmt::format("{}|", command.name));
      });
    }
    if (!is_known && std::ranges::find(categories(), what.substr(1)) == categories().end()) {
      refuse_rule(given, "Unknown command or category name in ACL");
    }
  } else {
    const size_t bar = what.find('|');
    const Command* command = find_command(what.substr(0, bar));
    if (command == nullptr) refuse_rule(given, "Unknown command or category name in ACL");
    if (bar != std::string_view::npos) {
      if (bar + 1 == what.size()) refuse_rule(given, "Unknown command or category name in ACL");
      subcommands_[std::string(what)] = allowed;
    } else {
      commands_[number_of(*command)] = allowed;
      std::erase_if(subcommands_, [&](const auto& one) {
        return one.first.starts_with(fmt::format("{}|", command->name));
      });
    }
  }
  if (!allowed) all_commands_ = false;
  note_command_rule(rule);
}

void AclUser::apply(std::string_view rule) {
  const auto add_key = [&](std::string_view pattern, bool reads, bool writes) {
    if (pattern.empty() || !is_clean(pattern)) refuse_rule(rule, "Syntax error");
    if (all_keys_) {
      refuse_rule(rule,
                  "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and "
                  "does not have any effect. Try 'resetkeys' to start with an empty list of "
                  "patterns");
    }
    if (pattern == "*" && reads && writes) {
      all_keys_ = true;
      keys_.clear();
      return;
    }
    const auto same = std::ranges::find(keys_, pattern, &KeyPattern::pattern);
    if (same == keys_.end()) {
      keys_.push_back({std::string(pattern), reads, writes});
    } else {
      same->reads = same->reads || reads;
      same->writes = same->writes || writes;
    }
  };
  const std::string word = lower_case(rule);
  if (rule.empty()) refuse_rule(rule, "Syntax error");
  if (word == "on") {
    on_ = true;
  } else if (word == "off") {
    on_ = false;
  } else if (word == "nopass") {
    nopass_ = true;
    passwords_.clear();
  } else if (word == "resetpass") {
    nopass_ = false;
    passwords_.clear();
  } else if (word == "allkeys") {
    all_keys_ = true;
    keys_.clear();
  } else if (word == "resetkeys") {
    all_keys_ = false;
    keys_.clear();
  } else if (word == "allchannels") {
    all_channels_ = true;
    channels_.clear();
  } else if (word == "resetchannels") {
    all_channels_ = false;
    channels_.clear();
  } else if (word == "allcommands") {
    set_all(true);
  } else if (word == "nocommands") {
    set_all(false);
  } else if (word == "reset") {
    *this = AclUser(name_);
  } else if (word == "sanitize-payload" || word == "skip-sanitize-payload" ||
             word == "clearselectors") {
    // There is nothing that these are about.
  } else if (rule[0] == '>') {
    const std::string kept = kept_password(rule.substr(1));
    if (std::ranges::find(passwords_, kept) == passwords_.end()) passwords_.push_back(kept);
    nopass_ = false;
  } else if (rule[0] == '#') {
    const std::string kept = lower_case(rule.substr(1));
    if (!is_hash(kept)) {
      refuse_rule(rule,
                  "The provided password hash must be exactly 64 characters and contain only "
                  "lowercase hexadecimal characters");
    }
    static_cast<void>(sha256_of(""));  // without it nobody could give that password
    if (std::ranges::find(passwords_, kept) == passwords_.end()) passwords_.push_back(kept);
    nopass_ = false;
  } else if (rule[0] == '<' || rule[0] == '!') {
    const std::string kept =
        rule[0] == '<' ? kept_password(rule.substr(1)) : lower_case(rule.substr(1));
    if (std::erase(passwords_, kept) == 0) {
      refuse_rule(rule, "The password you are trying to remove from the user does not exist");
    }
  } else if (rule[0] == '~') {
    add_key(rule.substr(1), true, true);
  } else if (rule[0] == '%') {
    const size_t tilde = rule.find('~');
    const std::string which = lower_case(rule.substr(1, tilde == rule.npos ? 0 : tilde - 1));
    if (which != "r" && which != "w" && which != "rw" && which != "wr") {
      refuse_rule(rule, "Syntax error");
    }
    add_key(rule.substr(tilde + 1), which.find('r') != which.npos, which.find('w') != which.npos);
  } else if (rule[0] == '&') {
    const std::string_view pattern = rule.substr(1);
    if (pattern.empty() || !is_clean(pattern)) refuse_rule(rule, "Syntax error");
    if (all_channels_) {
      refuse_rule(rule,
                  "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid "
                  "and does not have any effect. Try 'resetchannels' to start with an empty list "
                  "of channels");
    }
    if (pattern == "*") {
      all_channels_ = true;
      channels_.clear();
    } else if (std::ranges::find(channels_, pattern) == channels_.end()) {
      channels_.emplace_back(pattern);
    }
  } else if ((rule[0] == '+' || rule[0] == '-') && rule.size() > 1 && is_clean(rule)) {
    apply_command(rule);
  } else {
    refuse_rule(rule, "Syntax error");
  }
}

bool AclUser::accepts(std::string_view password) const {
  if (!on_) return false;
  if (nopass_) return true;
  if (passwords_.empty()) return false;
  const std::string kept = kept_password(password);
  // Looks at all of them, however many fit.
  bool fits = false;
  for (const std::string& one : passwords_) fits = same_secret(kept, one) || fits;
  return fits;
}

bool AclUser::may_run(const Command& command, std::string_view subcommand) const {
  if (all_commands_ && subcommands_.empty()) return true;
  if (!subcommands_.empty() && !subcommand.empty()) {
    const auto found =
        subcommands_.find(fmt::format("{}|{}", command.name, lower_case(subcommand.substr(0, 64))));
    if (found != subcommands_.end()) return found->second;
  }
  return commands_[number_of(command)];
}

bool AclUser::may_use(std::string_view key, bool reads, bool writes) const {
  if (all_keys_) return true;
  return std::ranges::any_of(keys_, [&](const KeyPattern& one) {
    return (one.reads || !reads) && (one.writes || !writes) && fits_pattern(one.pattern, key);
  });
}

bool AclUser::may_hear(std::string_view channel, bool literal) const {
  if (all_channels_) return true;
  return std::ranges::any_of(channels_, [&](const std::string& pattern) {
    return literal ? pattern == channel : fits_pattern(pattern, channel);
  });
}

std::vector<std::string> AclUser::flags() const {
  std::vector<std::string> flags{on_ ? "on" : "off"};
  if (nopass_) flags.emplace_back("nopass");
  return flags;
}

std::string AclUser::command_rules() const {
  return command_rules_.empty() ? "-@all" : fmt::format("{}", fmt::join(command_rules_, " "));
}

std::string AclUser::key_rules() const {
  if (all_keys_) return "~*";
  std::string text;
  for (const KeyPattern& one : keys_) {
    if (!text.empty()) text += ' ';
    text += one.reads && one.writes ? "~" : one.reads ? "%R~" : "%W~";
    text += one.pattern;
  }
  return text;
}

std::string AclUser::channel_rules() const {
  if (all_channels_) return "&*";
  std::string text;
  for (const std::string& one : channels_) text += (text.empty() ? "&" : " &") + one;
  return text;
}

std::string AclUser::rules() const {
  std::string text = on_ ? "on" : "off";
  if (nopass_) text += " nopass";
  for (const std::string& one : passwords_)
    text += is_hash(one) ? " #" + one : " >" + one.substr(1);
  const std::string keys = key_rules();
  if (!keys.empty()) text += " " + keys;
  const std::string heard = channel_rules();
  text += heard.empty() ? " resetchannels" : " " + heard;
  return text + " " + command_rules();
}

Acl::Acl() {
  auto user = std::make_shared<AclUser>("default");
  for (const char* rule : {"on", "nopass", "~*", "&*", "+@all"}) user->apply(rule);
  users_.emplace("default", std::move(user));
}

void Acl::set_users(std::span<const std::string> lines) {
  Users all;
  for (const auto& [name, user] : users_) all.emplace(name, std::make_shared<AclUser>(*user));
  for (const std::string& line : lines) {
    const std::vector<std::string_view> words = words_of_line(line);
    if (words.empty() || !is_clean(words[0])) {
      throw Error(ErrorCode::kInvalidArgument, "a user is NAME RULE ...");
    }
    auto& user = all[std::string(words[0])];
    if (user == nullptr) user = std::make_shared<AclUser>(std::string(words[0]));
    for (size_t i = 1; i < words.size(); ++i) user->apply(words[i]);
  }
  users_ = std::move(all);
}

void Acl::set_default_password(std::string_view password) {
  AclUser& user = *find("default");
  user.apply(password.empty() ? "nopass" : "resetpass");
  if (!password.empty()) user.apply(fmt::format(">{}", password));
}

void Acl::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::kNotFound, fmt::format("cannot read the users in {}", path));
  Acl fresh;
  *fresh.find("default") = *find("default");
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    const std::vector<std::string_view> words = words_of_line(line);
    if (words.empty() || words[0].starts_with('#')) continue;
    if (words[0] != "user" || words.size() < 2) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}:{}: a line is `user NAME RULE ...`", path, number));
    }
    // A line says all of its user.
    if (words[1] == "default") fresh.find("default")->apply("reset");
    try {
      const std::string one(line.substr(static_cast<size_t>(words[1].data() - line.data())));
      fresh.set_users({&one, 1});
    } catch (const Error& error) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}:{}: {}", path, number, error.what()));
    }
  }
  // Who is there keeps his place: sessions refer to it.
  Users all;
  for (auto& [name, user] : fresh.users_) {
    const auto old = users_.find(name);
    if (old == users_.end()) {
      all.emplace(name, user);
    } else {
      *old->second = *user;
      all.emplace(name, old->second);
    }
  }
  users_ = std::move(all);
}

void Acl::save(const std::string& path) const {
  std::string text;
  for (const auto& [name, user] : users_) text += fmt::format("user {} {}\n", name, user->rules());
  const std::string fresh = path + ".new";
  for (const auto& [name, user] : users_) {
    for (const std::string& one : user->passwords()) {
      if (is_hash(one) || is_clean(one)) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a password of {} has a space or a control character, and without "
                              "OpenSSL no file can say it",
                              name));
    }
  }
  const auto fail = [&](int fd) {
    const int reason = errno;
    if (fd >= 0) ::close(fd);
    ::unlink(fresh.c_str());
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write the users to {}: {}", path, std::strerror(reason)));
  };
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) fail(fd);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written <= 0) fail(fd);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(fd) != 0) fail(fd);
  ::close(fd);
  if (::rename(fresh.c_str(), path.c_str()) != 0) fail(-1);
  // And its name.
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return;
  ::fsync(dir);
  ::close(dir);
}

AclUser* Acl::find(std::string_view name) const {
  const auto found = users_.find(name);
  return found == users_.end() ? nullptr : found->second.get();
}

void Acl::set_user(std::string_view name, std::span<const std::string_view> rules) {
  if (name.empty() || !is_clean(name)) {
    throw Error(ErrorCode::kInvalidArgument, "Usernames can't contain spaces or null characters");
  }
  const AclUser* there = find(name);
  AclUser changed = there == nullptr ? AclUser(std::string(name)) : *there;
  for (const std::string_view rule : rules) changed.apply(rule);
  auto& user = users_[std::string(name)];
  if (user == nullptr) {
    user = std::make_shared<AclUser>(std::move(changed));
  } else {
    *user = std::move(changed);
  }
}

bool Acl::remove_user(std::string_view name) {
  const auto found = users_.find(name);
  if (found == users_.end()) return false;
  users_.erase(found);
  return true;
}

std::shared_ptr<AclUser> Acl::authenticate(std::string_view name, std::string_view password) const {
  const auto found = users_.find(name);
  if (found == users_.end() || !found->second->accepts(password)) return nullptr;
  return found->second;
}

std::shared_ptr<AclUser> Acl::default_user() const {
  const auto& user = users_.at("default");
  return user->is_on() && !user->needs_password() ? user : nullptr;
}

Acl make_acl(const Config& config) {
  Acl acl;
  if (!config.users.empty() && !config.acl_file.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "users are said by `user` or by acl-file, not by both");
  }
  if (!config.password.empty()) acl.set_default_password(config.password);
  acl.set_users(config.users);
  // ACL SAVE makes it.
  if (!config.acl_file.empty() && ::access(config.acl_file.c_str(), F_OK) == 0) {
    acl.load(config.acl_file);
  }
  return acl;
}

void Acl::note_denial(Denial denial) {
  denial.id = denials_noted_++;
  denials_.push_front(std::move(denial));
  if (denials_.size() > kDenialsMax) denials_.pop_back();
}

}  // namespace perdure::server
