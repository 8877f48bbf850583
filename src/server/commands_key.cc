// Keys, whatever they have.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <random>

#include "server/collections.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/expiry.h"
#include "server/resp_session.h"
#include "store/expiry_time.h"

namespace perdure::server {

bool is_expiry_option(std::string_view word) {
  return same_word(word, "EX") || same_word(word, "PX") || same_word(word, "EXAT") ||
         same_word(word, "PXAT");
}

bool is_same_option(std::string_view a, std::string_view b) {
  constexpr char kLowerCase = 0x20;
  return a.size() == b.size() && ((a[0] ^ b[0]) & ~kLowerCase) == 0;
}

int64_t expiry_ms_of(const Call& call, std::string_view number, int64_t unit_ms, bool absolute) {
  int64_t ms = integer_of(number);
  const bool fits =
      !__builtin_mul_overflow(ms, unit_ms, &ms) &&
      (absolute || !__builtin_add_overflow(ms, static_cast<int64_t>(call.keys().now_ms()), &ms));
  if (!fits) {
    throw CommandError(
        fmt::format("ERR invalid expire time in '{}' command", call.session.last_command));
  }
  return std::min(ms, static_cast<int64_t>(store::kExpiryMsMax));
}

uint64_t expiry_of_option(const Call& call, std::string_view word, std::string_view number) {
  const bool absolute = word.size() == 4;
  const int64_t unit_ms = word[0] == 'E' || word[0] == 'e' ? 1000 : 1;
  if (integer_of(number) <= 0) {
    throw CommandError(
        fmt::format("ERR invalid expire time in '{}' command", call.session.last_command));
  }
  return static_cast<uint64_t>(expiry_ms_of(call, number, unit_ms, absolute));
}

uint32_t database_of(std::string_view text) {
  const int64_t number = integer_of(text);
  if (number < INT32_MIN || number > INT32_MAX) {
    throw CommandError("ERR value is out of range, value must between -2147483648 and 2147483647");
  }
  if (number < 0 || number >= kDatabases) throw CommandError("ERR DB index is out of range");
  return static_cast<uint32_t>(number);
}

namespace {

constexpr int64_t kScanCountMax = 10000;

void run_del(Call& call) {
  int64_t removed = 0;
  for (size_t i = 1; i < call.size(); ++i) removed += call.keys().remove(call.key(i)) ? 1 : 0;
  call.reply.integer(removed);
}

void run_exists(Call& call) {
  int64_t there = 0;
  for (size_t i = 1; i < call.size(); ++i) there += call.keys().find(call.key(i)) ? 1 : 0;
  call.reply.integer(there);
}

void expire(Call& call, int64_t unit_ms, bool absolute) {
  bool nx = false, xx = false, gt = false, lt = false;
  for (size_t i = 3; i < call.size(); ++i) {
    if (same_word(call[i], "NX"))
      nx = true;
    else if (same_word(call[i], "XX"))
      xx = true;
    else if (same_word(call[i], "GT"))
      gt = true;
    else if (same_word(call[i], "LT"))
      lt = true;
    else
      throw CommandError(fmt::format("ERR Unsupported option {}", call[i]));
  }
  if (nx && (xx || gt || lt)) {
    throw CommandError("ERR NX and XX, GT or LT options at the same time are not compatible");
  }
  if (gt && lt) {
    throw CommandError("ERR GT and LT options at the same time are not compatible");
  }
  const int64_t at_ms = expiry_ms_of(call, call[2], unit_ms, absolute);
  const std::string_view raw = call.key(1);
  const Item item = call.keys().find(raw);
  const bool expires = item.expiry_ms != store::kNoExpiry;
  const auto old_ms = static_cast<int64_t>(item.expiry_ms);
  if (!item || (nx && expires) || (xx && !expires) || (gt && (!expires || at_ms <= old_ms)) ||
      (lt && expires && at_ms >= old_ms)) {
    return call.reply.integer(0);
  }
  if (at_ms <= static_cast<int64_t>(call.keys().now_ms())) {
    call.keys().remove(raw);
  } else {
    call.keys().set_expiry(raw, item, static_cast<uint64_t>(at_ms));
  }
  call.reply.integer(1);
}
void run_expire(Call& call) { expire(call, 1000, false); }
void run_pexpire(Call& call) { expire(call, 1, false); }
void run_expireat(Call& call) { expire(call, 1000, true); }
void run_pexpireat(Call& call) { expire(call, 1, true); }

void time_to_live(Call& call, bool in_ms, bool absolute) {
  const Item item = call.keys().find(call.key(1));
  if (!item) return call.reply.integer(-2);
  if (item.expiry_ms == store::kNoExpiry) return call.reply.integer(-1);
  uint64_t ms = item.expiry_ms;
  if (!absolute) ms -= std::min(ms, call.keys().now_ms());
  call.reply.integer(static_cast<int64_t>(in_ms ? ms : (ms + (absolute ? 0 : 500)) / 1000));
}
void run_ttl(Call& call) { time_to_live(call, false, false); }
void run_pttl(Call& call) { time_to_live(call, true, false); }
void run_expiretime(Call& call) { time_to_live(call, false, true); }
void run_pexpiretime(Call& call) { time_to_live(call, true, true); }

void run_persist(Call& call) {
  const std::string_view raw = call.key(1);
  const Item item = call.keys().find(raw);
  if (!item || item.expiry_ms == store::kNoExpiry) return call.reply.integer(0);
  call.keys().set_expiry(raw, item, store::kNoExpiry);
  call.reply.integer(1);
}

void run_type(Call& call) { call.reply.simple(to_string(call.keys().find(call.key(1)).type)); }

void rename(Call& call, bool only_absent) {
  std::string scratch;
  const std::string_view from = call.key(1);
  const std::string_view to = call.key(2, scratch);
  const Item item = call.keys().find(from);
  if (!item) throw CommandError("ERR no such key");
  if (only_absent && call.keys().find(to)) return call.reply.integer(0);
  if (from != to) call.keys().rename(from, call.keys().find(from), to);
  only_absent ? call.reply.integer(1) : call.reply.ok();
}
void run_rename(Call& call) { rename(call, false); }
void run_renamenx(Call& call) { rename(call, true); }

void run_copy(Call& call) {
  bool replace = false;
  uint32_t database = call.session.database;
  for (size_t i = 3; i < call.size(); ++i) {
    if (same_word(call[i], "REPLACE")) {
      replace = true;
    } else if (same_word(call[i], "DB") && i + 1 < call.size()) {
      database = database_of(call[++i]);
    } else {
      throw_syntax();
    }
  }
  std::string scratch;
  const std::string_view from = call.key(1);
  const std::string_view to = Keyspace::raw_key(database, call[2], scratch);
  if (from == to) throw CommandError("ERR source and destination objects are the same");
  const Item item = call.keys().find(from);
  if (!item || (!replace && call.keys().find(to))) return call.reply.integer(0);
  if (item.type == Type::kString) {
    const std::string text(item.text);
    call.keys().set_string(to, text, item.flags, item.expiry_ms);
  } else {
    copy_collection(call.keys(), item, to);
  }
  call.reply.integer(1);
}

void run_move(Call& call) {
  std::string scratch;
  const std::string_view from = call.key(1);
  const std::string_view to = Keyspace::raw_key(database_of(call[2]), call[1], scratch);
  if (from == to) throw CommandError("ERR source and destination objects are the same");
  const Item item = call.keys().find(from);
  if (!item || call.keys().find(to)) return call.reply.integer(0);
  call.keys().rename(from, call.keys().find(from), to);
  call.reply.integer(1);
}

void run_scan(Call& call) {
  const uint64_t cursor = cursor_of(call[1]);
  const ScanArguments arguments = parse_scan(call, 2);
  std::vector<std::string> found;
  ReplyRoom room = call.reply.room();
  const bool by_type = !arguments.type.empty();
  const uint64_t next = call.keys().scan_keys(
      call.session.database, cursor, arguments.count,
      [&](std::string_view, std::string_view key, Type type) {
        if (fits_pattern(arguments.pattern, key) &&
            (!by_type || arguments.type == to_string(type))) {
          room.take(key.size());
          found.emplace_back(key);
        }
        return true;
      },
      by_type);
  reply_scan(call, next, found);
}

void run_keys(Call& call) {
  std::vector<std::string> found;
  ReplyRoom room = call.reply.room();
  call.keys().visit_keys(call.session.database, "", 1024,
                         [&](std::string_view, std::string_view key, Type) {
                           if (!fits_pattern(call[1], key)) return true;
                           room.take(key.size());
                           found.emplace_back(key);
                           return true;
                         });
  call.reply.array(found.size());
  for (const std::string& key : found) call.reply.bulk(key);
}

void run_dbsize(Call& call) {
  call.reply.integer(static_cast<int64_t>(call.keys().count_keys(call.session.database)));
}

// Some key of the first thousand after a random place, or of a block: not each with the same
// chance.
void run_randomkey(Call& call) {
  static thread_local std::mt19937_64 random(std::random_device{}());
  std::string chosen;
  bool any = false;
  uint64_t seen = 0;
  const auto take = [&](std::string_view, std::string_view key, Type) {
    ++seen;
    if (random() % seen == 0) chosen = key;
    any = true;
    return seen < 1000;
  };
  const auto look = [&](std::string_view from) {
    call.keys().visit_keys(call.session.database, from, 64, take);
  };
  if (call.keys().is_ordered()) {
    const std::string from(1, static_cast<char>(random() % 127 + 1));
    std::string scratch;
    look(Keyspace::raw_key(call.session.database, from, scratch));
    if (!any) look("");
  } else {
    call.keys().visit_some_keys(call.session.database, random(), take);
  }
  any ? call.reply.bulk(chosen) : call.reply.null();
}

void run_touch(Call& call) { run_exists(call); }

void run_object(Call& call) {
  const bool encoding = same_word(call[1], "ENCODING");
  const bool references = same_word(call[1], "REFCOUNT");
  const bool idle = same_word(call[1], "IDLETIME");
  if ((!encoding && !references && !idle && !same_word(call[1], "FREQ")) || call.size() != 3) {
    return help_or_throw(call,
                         {"ENCODING <key>", "FREQ <key>", "IDLETIME <key>", "REFCOUNT <key>"});
  }
  const Item item = call.keys().find(call.key(2));
  if (!item) return call.reply.null();
  if (references) return call.reply.integer(1);
  if (idle) return call.reply.integer(0);
  if (!encoding) {
    throw CommandError(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note "
        "that when switching between policies at runtime LRU and LFU data will take some time to "
        "adjust.");
  }
  switch (item.type) {
    case Type::kHash:
    case Type::kSet:
      return call.reply.bulk("hashtable");
    case Type::kList:
      return call.reply.bulk("quicklist");
    case Type::kSortedSet:
      return call.reply.bulk("skiplist");
    case Type::kNone:
    case Type::kString:
      return call.reply.bulk("raw");
  }
}

constexpr Command kKeyCommands[] = {
    {"copy", -3, kWrites | kGroup, 1, 2, 1, "generic", "Copies a key", run_copy},
    {"dbsize", 1, kFast, 0, 0, 0, "server", "Counts the keys of the database", run_dbsize},
    {"del", -2, kWrites, 1, -1, 1, "generic", "Removes keys", run_del},
    {"exists", -2, kFast, 1, -1, 1, "generic", "Counts those of the keys that are there",
     run_exists},
    {"expire", -3, kWrites | kGroup | kFast, 1, 1, 1, "generic", "Lets a key expire in seconds",
     run_expire},
    {"expireat", -3, kWrites | kGroup | kFast, 1, 1, 1, "generic", "Lets a key expire at a time",
     run_expireat},
    {"expiretime", 2, kFast, 1, 1, 1, "generic", "Returns when a key expires", run_expiretime},
    {"keys", 2, 0, 0, 0, 0, "generic", "Returns the keys that fit a pattern", run_keys},
    {"move", 3, kWrites | kGroup, 1, 1, 1, "generic", "Moves a key to another database", run_move},
    {"object", -2, kHasSubcommands, 2, 2, 1, "generic", "Tells how a key is kept", run_object},
    {"persist", 2, kWrites | kGroup | kFast, 1, 1, 1, "generic", "Lets a key never expire",
     run_persist},
    {"pexpire", -3, kWrites | kGroup | kFast, 1, 1, 1, "generic",
     "Lets a key expire in milliseconds", run_pexpire},
    {"pexpireat", -3, kWrites | kGroup | kFast, 1, 1, 1, "generic",
     "Lets a key expire at a time in milliseconds", run_pexpireat},
    {"pexpiretime", 2, kFast, 1, 1, 1, "generic", "Returns when a key expires, in milliseconds",
     run_pexpiretime},
    {"pttl", 2, kFast, 1, 1, 1, "generic", "Returns milliseconds until a key expires", run_pttl},
    {"randomkey", 1, 0, 0, 0, 0, "generic", "Returns some key", run_randomkey},
    {"rename", 3, kWrites | kGroup, 1, 2, 1, "generic", "Renames a key", run_rename},
    {"renamenx", 3, kWrites | kGroup, 1, 2, 1, "generic",
     "Renames a key if the new one is not there", run_renamenx},
    {"scan", -2, 0, 0, 0, 0, "generic", "Goes through the keys, some at a time", run_scan},
    {"touch", -2, kFast, 1, -1, 1, "generic", "Counts those of the keys that are there", run_touch},
    {"ttl", 2, kFast, 1, 1, 1, "generic", "Returns seconds until a key expires", run_ttl},
    {"type", 2, kFast, 1, 1, 1, "generic", "Returns the type of what a key has", run_type},
    {"unlink", -2, kWrites | kFast, 1, -1, 1, "generic", "Removes keys", run_del},
};

}  // namespace

// As Redis has it: all that the C library reads, but for blanks in front.
uint64_t cursor_of(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const uint64_t cursor = std::strtoull(copy.c_str(), &end, 10);
  if (std::isspace(static_cast<unsigned char>(copy[0])) != 0 || *end != '\0' || errno == ERANGE) {
    throw CommandError("ERR invalid cursor");
  }
  return cursor;
}

ScanArguments parse_scan(const Call& call, size_t first) {
  ScanArguments arguments;
  for (size_t i = first; i < call.size(); ++i) {
    if (i + 1 == call.size()) throw_syntax();
    const std::string_view word = call[i++];
    if (same_word(word, "MATCH")) {
      arguments.pattern = call[i];
    } else if (same_word(word, "COUNT")) {
      const int64_t count = integer_of(call[i]);
      if (count < 1) throw_syntax();
      arguments.count = static_cast<uint64_t>(std::min(count, kScanCountMax));
    } else if (same_word(word, "TYPE") && first == 2) {
      arguments.type = call[i];
    } else {
      throw_syntax();
    }
  }
  return arguments;
}

void reply_scan(Call& call, uint64_t next, const std::vector<std::string>& found) {
  call.reply.array(2);
  call.reply.bulk(fmt::format("{}", next));
  call.reply.array(found.size());
  for (const std::string& one : found) call.reply.bulk(one);
}

std::span<const Command> key_commands() { return kKeyCommands; }

}  // namespace perdure::server
