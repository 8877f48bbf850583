#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "server/acl.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

constexpr int kPlaceBits = 10;
constexpr size_t kPlaces = size_t{1} << kPlaceBits;  // several times as many as there are commands

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c; }

// Of a name in any case: made of its first and last bytes, in words.
size_t place_of(std::string_view name) {
  const auto word_at = [&](size_t at, auto word) -> uint64_t {
    std::memcpy(&word, name.data() + at, sizeof word);
    return word;
  };
  const size_t size = name.size();
  uint64_t first = 0;
  uint64_t last = 0;
  if (size >= sizeof(uint64_t)) {
    first = word_at(0, uint64_t{});
    last = word_at(size - sizeof(uint64_t), uint64_t{});
  } else if (size >= sizeof(uint32_t)) {
    first = word_at(0, uint32_t{});
    last = word_at(size - sizeof(uint32_t), uint32_t{});
  } else if (size >= sizeof(uint16_t)) {
    first = word_at(0, uint16_t{});
    last = word_at(size - sizeof(uint16_t), uint16_t{});
  }
  constexpr uint64_t kLowerCase = 0x2020202020202020;
  const uint64_t mixed = ((first | kLowerCase) * 31 + (last | kLowerCase)) * 0x9e3779b97f4a7c15;
  return mixed >> (64 - kPlaceBits);
}

bool is_named(std::string_view lower_case, std::string_view name) {
  return lower_case.size() == name.size() &&
         std::ranges::equal(lower_case, name, [](char a, char b) { return a == lower(b); });
}

std::vector<Command> gather() {
  std::vector<Command> all;
  for (const std::span<const Command> part :
       {connection_commands(), server_commands(), key_commands(), dump_commands(),
        string_commands(), bit_commands(), hash_commands(), set_commands(), list_commands(),
        sorted_set_commands(), channel_commands(), transaction_commands(), replication_commands(),
        acl_commands()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  std::ranges::sort(all, {}, &Command::name);
  return all;
}

std::array<const Command*, kPlaces> make_places() {
  std::array<const Command*, kPlaces> places{};
  for (const Command& command : commands()) {
    size_t place = place_of(command.name);
    while (places[place] != nullptr) place = (place + 1) & (kPlaces - 1);
    places[place] = &command;
  }
  return places;
}

// What may stand behind the name of a command, and how many arguments then, as for commands.
struct Subcommand {
  std::string_view command;
  std::string_view name;
  int arity;
};
constexpr Subcommand kSubcommands[] = {
    {"acl", "cat", -2},         {"acl", "deluser", -3},     {"acl", "dryrun", -4},
    {"acl", "genpass", -2},     {"acl", "getuser", 3},      {"acl", "help", 2},
    {"acl", "list", 2},         {"acl", "load", 2},         {"acl", "log", -2},
    {"acl", "save", 2},         {"acl", "setuser", -3},     {"acl", "users", 2},
    {"acl", "whoami", 2},       {"client", "getname", 2},   {"client", "help", 2},
    {"client", "id", 2},        {"client", "info", 2},      {"client", "kill", -3},
    {"client", "list", -2},     {"client", "no-evict", 3},  {"client", "no-touch", 3},
    {"client", "setinfo", 4},   {"client", "setname", 3},   {"command", "count", 2},
    {"command", "docs", -2},    {"command", "getkeys", -4}, {"command", "help", 2},
    {"command", "info", -2},    {"command", "list", -2},    {"config", "get", -3},
    {"config", "help", 2},      {"config", "resetstat", 2}, {"config", "set", -4},
    {"debug", "help", 2},       {"debug", "sleep", 3},      {"memory", "help", 2},
    {"memory", "usage", -3},    {"object", "encoding", 3},  {"object", "freq", 3},
    {"object", "help", 2},      {"object", "idletime", 3},  {"object", "refcount", 3},
    {"pubsub", "channels", -2}, {"pubsub", "help", 2},      {"pubsub", "numpat", 2},
    {"pubsub", "numsub", -2},   {"slowlog", "get", -2},     {"slowlog", "help", 2},
    {"slowlog", "len", 2},      {"slowlog", "reset", 2},
};

constexpr std::string_view kDangerous[] = {"flushall", "flushdb", "keys",     "info",
                                           "role",     "client",  "lastsave", "restore"};
// Commands whose first key gets what is made of the others.
constexpr std::string_view kStoring[] = {"bitop",      "sdiffstore",  "sinterstore", "sunionstore",
                                         "zdiffstore", "zinterstore", "zunionstore", "zrangestore"};
// Whose keys are counted by an argument.
constexpr std::string_view kCounting[] = {"sintercard", "zdiff",       "zdiffstore", "zinter",
                                          "zintercard", "zinterstore", "zunion",     "zunionstore"};
// That move something from the first key to the second one.
constexpr std::string_view kMoving[] = {"rename",    "renamenx", "smove",     "lmove",
                                        "rpoplpush", "blmove",   "brpoplpush"};
// That change a key and tell of what it had, or has.
constexpr std::string_view kReturning[] = {
    "getdel",  "getex",        "getset", "incr",  "incrby",   "incrbyfloat", "decr",    "decrby",
    "hincrby", "hincrbyfloat", "lpop",   "rpop",  "spop",     "zincrby",     "zpopmax", "zpopmin",
    "move",    "bitfield",     "blpop",  "brpop", "bzpopmin", "bzpopmax"};

bool is_one_of(std::string_view name, std::span<const std::string_view> all) {
  return std::ranges::find(all, name) != all.end();
}

std::vector<std::string_view> find_categories(const Command& command) {
  std::vector<std::string_view> all;
  const std::string_view group = command.group;
  const bool writes = (command.flags & kWrites) != 0;
  const bool admin = (command.flags & kAdmin) != 0;
  if (group == "generic" || command.name == "dbsize" || command.name == "flushall" ||
      command.name == "flushdb") {
    if (command.name != "wait") all.emplace_back("keyspace");
  }
  if (writes) {
    all.emplace_back("write");
  } else if (command.first_key != 0 || command.name == "keys" || command.name == "scan" ||
             command.name == "randomkey" || command.name == "dbsize" ||
             is_one_of(command.name, kCounting)) {
    if (group != "transactions") all.emplace_back("read");
  }
  if (group == "sorted-set") all.emplace_back("sortedset");
  if (group == "transactions") all.emplace_back("transaction");
  for (const std::string_view same :
       {"set", "list", "hash", "string", "bitmap", "pubsub", "connection"}) {
    if (group == same) all.emplace_back(same);
  }
  if (admin) all.emplace_back("admin");
  if (admin || is_one_of(command.name, kDangerous)) all.emplace_back("dangerous");
  if ((command.flags & kBlocks) != 0) all.emplace_back("blocking");
  all.emplace_back((command.flags & kFast) != 0 ? "fast" : "slow");
  return all;
}

bool in_class(std::string_view pattern, size_t& at, char c) {
  const bool negated = at < pattern.size() && pattern[at] == '^';
  if (negated) ++at;
  bool hit = false;
  for (bool first = true; at < pattern.size() && (first || pattern[at] != ']'); first = false) {
    if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
    const char from = pattern[at];
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      const char to = pattern[at + 2];
      hit = hit || (c >= std::min(from, to) && c <= std::max(from, to));
      at += 3;
    } else {
      hit = hit || c == from;
      ++at;
    }
  }
  ++at;  // the bracket
  return hit != negated;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = gather();
  return all;
}

size_t command_count() { return commands().size(); }

const std::vector<std::string_view>& categories() {
  static const std::vector<std::string_view> all = {
      "keyspace", "read",   "write",       "set",       "sortedset",  "list",        "hash",
      "string",   "bitmap", "hyperloglog", "geo",       "stream",     "pubsub",      "admin",
      "fast",     "slow",   "blocking",    "dangerous", "connection", "transaction", "scripting"};
  return all;
}

const std::vector<std::string_view>& categories_of(const Command& command) {
  static const std::vector<std::vector<std::string_view>> by_number = [] {
    std::vector<std::vector<std::string_view>> all;
    for (const Command& one : commands()) all.push_back(find_categories(one));
    return all;
  }();
  return by_number[number_of(command)];
}

bool counts_keys(const Command& command) { return is_one_of(command.name, kCounting); }

void for_keys(const Command& command, std::span<const std::string_view> arguments,
              const std::function<void(std::string_view key, bool reads, bool writes)>& visit) {
  const bool writes = (command.flags & kWrites) != 0;
  const std::string_view name = command.name;
  // The last argument that is a key, and from where on they are sources of what the first one gets.
  int last = command.last_key < 0 ? static_cast<int>(arguments.size()) + command.last_key
                                  : command.last_key;
  int first = command.first_key;
  const bool stores = is_one_of(name, kStoring);
  if (counts_keys(command)) {
    // dest numkeys key ..., or numkeys key ...
    const size_t at = stores ? 2 : 1;
    int64_t count = 0;
    if (at < arguments.size()) {
      const std::string_view digits = arguments[at];
      std::from_chars(digits.data(), digits.data() + digits.size(), count);
    }
    if (stores) visit(arguments[1], false, true);
    const auto end = static_cast<int64_t>(arguments.size());
    if (count >= end - static_cast<int64_t>(at)) return;  // so many are not there: it is refused
    for (int64_t i = static_cast<int64_t>(at) + 1; i < end && count > 0; ++i, --count) {
      visit(arguments[static_cast<size_t>(i)], true, false);
    }
    return;
  }
  if (first == 0) return;
  last = std::min(last, static_cast<int>(arguments.size()) - 1);
  bool returns = is_one_of(name, kReturning);
  if (name == "set") {
    for (const std::string_view one : arguments.subspan(1)) {
      returns = returns || same_word(one, "GET");
    }
  }
  for (int i = first; i <= last; i += command.key_step) {
    const std::string_view key = arguments[static_cast<size_t>(i)];
    if (!writes) {
      visit(key, true, false);
    } else if (stores) {
      visit(key, i != first, i == first);
    } else if (name == "copy") {
      visit(key, i == first, i != first);
    } else if (is_one_of(name, kMoving)) {
      visit(key, i == first, true);
    } else {
      visit(key, returns, true);
    }
  }
}

std::optional<AclDenial> denial_of(const AclUser& user, const Command& command,
                                   std::span<const std::string_view> arguments) {
  if (user.may_all() || (command.flags & kNoAuth) != 0) return std::nullopt;
  const std::string_view subcommand = arguments.size() > 1 ? arguments[1] : std::string_view();
  if (!user.may_run(command, subcommand)) {
    return AclDenial{"command", std::string(command.name),
                     "NOPERM this user has no permissions to run the '" +
                         std::string(command.name) + "' command"};
  }
  std::optional<AclDenial> denied;
  for_keys(command, arguments, [&](std::string_view key, bool reads, bool writes) {
    if (denied || user.may_use(key, reads, writes)) return;
    denied = AclDenial{
        "key", std::string(key.substr(0, 128)),
        "NOPERM this user has no permissions to access one of the keys used as arguments"};
  });
  const bool literal = command.name == "psubscribe";
  if (literal || command.name == "subscribe" || command.name == "publish") {
    const size_t end = command.name == "publish" ? 2 : arguments.size();
    for (size_t i = 1; i < end && !denied; ++i) {
      if (user.may_hear(arguments[i], literal)) continue;
      denied = AclDenial{
          "channel", std::string(arguments[i].substr(0, 128)),
          "NOPERM this user has no permissions to access one of the channels used as arguments"};
    }
  }
  return denied;
}

const Command* find_command(std::string_view name) {
  static const std::array<const Command*, kPlaces> places = make_places();
  for (size_t place = place_of(name); places[place] != nullptr;
       place = (place + 1) & (kPlaces - 1)) {
    if (is_named(places[place]->name, name)) return places[place];
  }
  return nullptr;
}

std::optional<std::string> subcommand_error(const Command& command,
                                            std::span<const std::string_view> arguments) {
  if ((command.flags & kHasSubcommands) == 0 || arguments.size() < 2) return std::nullopt;
  for (const Subcommand& one : kSubcommands) {
    if (one.command != command.name || !is_named(one.name, arguments[1])) continue;
    const auto count = static_cast<int>(arguments.size());
    if (one.arity > 0 ? count == one.arity : count >= -one.arity) return std::nullopt;
    return fmt::format("ERR wrong number of arguments for '{}|{}' command", one.command, one.name);
  }
  std::string name(command.name);
  std::ranges::transform(name, name.begin(), upper);
  return fmt::format("ERR unknown subcommand '{}'. Try {} HELP.", arguments[1].substr(0, 128),
                     name);
}

std::string_view Call::key(size_t i, std::string& buffer) const {
  return Keyspace::raw_key(session.database, arguments[i], buffer);
}

// As Redis has them: zeros in front make it none.
static std::optional<int64_t> parse_integer(std::string_view text) {
  const size_t sign = text.starts_with('-') ? 1 : 0;
  if (text.substr(sign).starts_with('0') && text != "0") return {};
  int64_t value = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end) return {};
  return value;
}

int64_t integer_of(std::string_view text) {
  return integer_of(text, "ERR value is not an integer or out of range");
}

int64_t integer_of(std::string_view text, const char* otherwise) {
  const std::optional<int64_t> value = parse_integer(text);
  if (!value) throw CommandError(otherwise);
  return *value;
}

uint64_t count_of(std::string_view text) {
  const std::optional<int64_t> count = parse_integer(text);
  if (!count || *count < 0) throw CommandError("ERR value is out of range, must be positive");
  return static_cast<uint64_t>(*count);
}

// As Redis has them: all that the C library reads, but for blanks in front, for what is no number,
// and for what is too large or too small for one.
template <typename Real>
static Real parse_real(const std::string& text, Real (*read)(const char*, char**)) {
  char* end = nullptr;
  errno = 0;
  const Real value = read(text.c_str(), &end);
  const bool is_beyond = errno == ERANGE && (std::isinf(value) || value == 0);
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0])) != 0 ||
      end != text.c_str() + text.size() || is_beyond || std::isnan(value)) {
    throw CommandError("ERR value is not a valid float");
  }
  return value;
}

double real_of(std::string_view text) { return parse_real(std::string(text), std::strtod); }
long double long_real_of(std::string_view text) {
  return parse_real(std::string(text), std::strtold);
}

std::string sum_of_reals(long double a, long double b) {
  const long double sum = a + b;
  if (std::isnan(sum) || std::isinf(sum)) {
    throw CommandError("ERR increment would produce NaN or Infinity");
  }
  constexpr int kBytes = 5 * 1024;  // the largest one has 4,933 digits before the point
  std::string text(kBytes, '\0');
  text.resize(static_cast<size_t>(std::snprintf(text.data(), kBytes, "%.17Lf", sum)));
  text.resize(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

void require_names(size_t names, size_t bytes) {
  constexpr size_t kMost = 10000;
  constexpr size_t kMostBytes = size_t{4} << 20;
  if (names > kMost || bytes > kMostBytes) {
    throw CommandError(
        fmt::format("ERR a connection may listen to, watch or wait for {} names, of {} bytes "
                    "together",
                    kMost, kMostBytes));
  }
}

double timeout_of(std::string_view text) {
  constexpr double kSecondsMax = 1e12;
  double seconds = 0;
  try {
    seconds = real_of(text);
  } catch (const CommandError&) {
    throw CommandError("ERR timeout is not a float or out of range");
  }
  if (seconds < 0) throw CommandError("ERR timeout is negative");
  if (seconds > kSecondsMax) throw CommandError("ERR timeout is not a float or out of range");
  return seconds;
}

bool same_word(std::string_view text, std::string_view upper_case) {
  return text.size() == upper_case.size() &&
         std::ranges::equal(text, upper_case, [](char a, char b) { return upper(a) == b; });
}

void throw_syntax() { throw CommandError("ERR syntax error"); }

void help_or_throw(Call& call, std::initializer_list<std::string_view> lines) {
  std::string name(call[0]);
  if (!same_word(call[1], "HELP")) {
    std::string both = fmt::format("{}|{}", name, call[1]);
    std::ranges::transform(both, both.begin(), lower);
    throw CommandError(fmt::format("ERR wrong number of arguments for '{}' command", both));
  }
  std::ranges::transform(name, name.begin(), upper);
  call.reply.array(lines.size() + 2);
  call.reply.simple(
      fmt::format("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", name));
  for (const std::string_view line : lines) call.reply.simple(line);
  call.reply.simple("HELP");
}

Item require_type(Call& call, std::string_view raw, Type type) {
  const Item item = call.keys().find(raw);
  if (item && item.type != type) {
    throw CommandError("WRONGTYPE Operation against a key holding the wrong kind of value");
  }
  return item;
}

bool fits_pattern(std::string_view pattern, std::string_view text) {
  // Where the last star stands, and how much of the text it takes: the way back is only ever to
  // that one.
  size_t star = std::string_view::npos;
  size_t taken = 0;
  size_t at = 0;
  size_t i = 0;
  while (i < text.size() || at < pattern.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
      continue;
    }
    if (at < pattern.size() && i < text.size()) {
      size_t next = at + 1;
      bool hit = false;
      if (pattern[at] == '?') {
        hit = true;
      } else if (pattern[at] == '[') {
        hit = in_class(pattern, next, text[i]);
      } else {
        if (pattern[at] == '\\' && next < pattern.size()) ++next;
        hit = pattern[next - 1] == text[i];
      }
      if (hit) {
        at = next;
        ++i;
        continue;
      }
    }
    if (star == std::string_view::npos || taken >= text.size()) return false;
    at = star + 1;
    i = ++taken;
  }
  return true;
}

}  // namespace perdure::server
