// Strings.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/command_error.h"
#include "server/commands.h"
#include "server/expiry.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

void count_lookup(Call& call, bool found) {
  Metrics& metrics = call.server.metrics();
  ++(found ? metrics.keyspace_hits : metrics.keyspace_misses);
}

void reply_item(Call& call, const Item& item) {
  item ? call.reply.bulk(item.text) : call.reply.null();
}

void require_length(uint64_t bytes) {
  if (bytes > kStringBytesMax) {
    throw CommandError("ERR string exceeds maximum allowed size (64MB)");
  }
}

void run_get(Call& call) {
  const Item item = require_type(call, call.key(1), Type::kString);
  count_lookup(call, static_cast<bool>(item));
  reply_item(call, item);
}

// Of SET and GETEX.
struct Options {
  bool only_absent = false;
  bool only_present = false;
  bool keep_expiry = false;
  bool wants_old = false;
  bool persists = false;
  std::string_view unit;  // of `time`: EX, PX, EXAT or PXAT, if it was given
  std::string_view time;
};

// The last of several times of the same kind counts.
Options parse_options(const Call& call, size_t first, bool sets) {
  Options options;
  for (size_t i = first; i < call.size(); ++i) {
    const std::string_view word = call[i];
    const bool has_time = !options.unit.empty();
    if (sets && same_word(word, "NX") && !options.only_present) {
      options.only_absent = true;
    } else if (sets && same_word(word, "XX") && !options.only_absent) {
      options.only_present = true;
    } else if (sets && same_word(word, "GET")) {
      options.wants_old = true;
    } else if (sets && same_word(word, "KEEPTTL") && !has_time) {
      options.keep_expiry = true;
    } else if (!sets && same_word(word, "PERSIST") && !has_time) {
      options.persists = true;
    } else if (is_expiry_option(word) && i + 1 < call.size() && !options.keep_expiry &&
               !options.persists && (!has_time || is_same_option(options.unit, word))) {
      options.unit = word;
      options.time = call[++i];
    } else {
      throw_syntax();
    }
  }
  return options;
}

void run_set(Call& call) {
  const std::string_view raw = call.key(1);
  require_length(call[2].size());
  if (call.size() == 3) {
    call.keys().set_string(raw, call[2], 0, store::kNoExpiry);
    return call.reply.ok();
  }
  const Options options = parse_options(call, 3, true);
  const uint64_t given_ms =
      options.unit.empty() ? store::kNoExpiry : expiry_of_option(call, options.unit, options.time);
  const Item item = call.keys().find(raw);
  if (options.wants_old && item && item.type != Type::kString)
    require_type(call, raw, Type::kString);
  const bool writes = !(options.only_absent && item) && !(options.only_present && !item);
  if (options.wants_old) {
    reply_item(call, item);
  } else if (writes) {
    call.reply.ok();
  } else {
    call.reply.null();
  }
  if (!writes) return;
  const uint64_t expiry_ms = options.keep_expiry ? item.expiry_ms : given_ms;
  call.keys().set_string_over(item, raw, call[2], 0, expiry_ms);
}

void run_setnx(Call& call) {
  const std::string_view raw = call.key(1);
  require_length(call[2].size());
  const Item item = call.keys().find(raw);
  if (!item) call.keys().set_string_over(item, raw, call[2], 0, store::kNoExpiry);
  call.reply.integer(item ? 0 : 1);
}

void set_with_expiry(Call& call, std::string_view unit) {
  require_length(call[3].size());
  const uint64_t expiry_ms = expiry_of_option(call, unit, call[2]);
  call.keys().set_string(call.key(1), call[3], 0, expiry_ms);
  call.reply.ok();
}
void run_setex(Call& call) { set_with_expiry(call, "EX"); }
void run_psetex(Call& call) { set_with_expiry(call, "PX"); }

void run_getset(Call& call) {
  const std::string_view raw = call.key(1);
  require_length(call[2].size());
  const Item item = require_type(call, raw, Type::kString);
  reply_item(call, item);
  call.keys().set_string_over(item, raw, call[2], 0, store::kNoExpiry);
}

void run_getdel(Call& call) {
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  count_lookup(call, static_cast<bool>(item));
  reply_item(call, item);
  if (item) call.keys().remove(raw);
}

void run_getex(Call& call) {
  const std::string_view raw = call.key(1);
  const Options options = parse_options(call, 2, false);
  const Item item = require_type(call, raw, Type::kString);
  if (!item) {  // whatever else is said
    count_lookup(call, false);
    return call.reply.null();
  }
  uint64_t expiry_ms = options.persists ? store::kNoExpiry : item.expiry_ms;
  if (!options.unit.empty()) expiry_ms = expiry_of_option(call, options.unit, options.time);
  count_lookup(call, true);
  reply_item(call, item);
  if (expiry_ms != item.expiry_ms) call.keys().set_expiry(raw, item, expiry_ms);
}

void run_mget(Call& call) {
  call.reply.array(call.size() - 1);
  if (call.session.database == 0) call.keys().prefetch(call.arguments.subspan(1));
  for (size_t i = 1; i < call.size(); ++i) {
    const Item item = call.keys().find(call.key(i));
    count_lookup(call, item.type == Type::kString);
    item.type == Type::kString ? call.reply.bulk(item.text) : call.reply.null();
  }
}

bool set_all(Call& call, bool only_if_all_absent) {
  if (call.size() % 2 == 0) {
    throw CommandError(fmt::format("ERR wrong number of arguments for '{}' command",
                                   only_if_all_absent ? "msetnx" : "mset"));
  }
  if (only_if_all_absent) {
    for (size_t i = 1; i < call.size(); i += 2) {
      if (call.keys().find(call.key(i))) return false;
    }
  }
  for (size_t i = 2; i < call.size(); i += 2) require_length(call[i].size());
  for (size_t i = 1; i < call.size(); i += 2) {
    call.keys().set_string(call.key(i), call[i + 1], 0, store::kNoExpiry);
    call.keys().checkpoint();
  }
  return true;
}
void run_mset(Call& call) {
  set_all(call, false);
  call.reply.ok();
}
void run_msetnx(Call& call) { call.reply.integer(set_all(call, true) ? 1 : 0); }

void add(Call& call, int64_t by) {
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  int64_t sum = item ? integer_of(item.text) : 0;
  if (__builtin_add_overflow(sum, by, &sum)) {
    throw CommandError("ERR increment or decrement would overflow");
  }
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, sum).ptr;
  call.keys().set_string_over(item, raw, {text, static_cast<size_t>(end - text)}, item.flags,
                              item.expiry_ms);
  call.reply.integer(sum);
}
void run_incr(Call& call) { add(call, 1); }
void run_decr(Call& call) { add(call, -1); }
void run_incrby(Call& call) { add(call, integer_of(call[2])); }
void run_decrby(Call& call) {
  const int64_t by = integer_of(call[2]);
  if (by == INT64_MIN) throw CommandError("ERR decrement would overflow");
  add(call, -by);
}

void run_incrbyfloat(Call& call) {
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  const std::string digits =
      sum_of_reals(item ? long_real_of(item.text) : 0, long_real_of(call[2]));
  call.keys().set_string_over(item, raw, digits, item.flags, item.expiry_ms);
  call.reply.bulk(digits);
}

void run_append(Call& call) {
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  require_length(item.text.size() + call[2].size());
  std::string text(item.text);
  text += call[2];
  call.keys().set_string_over(item, raw, text, item.flags, item.expiry_ms);
  call.reply.integer(static_cast<int64_t>(text.size()));
}

void run_strlen(Call& call) {
  const Item item = require_type(call, call.key(1), Type::kString);
  call.reply.integer(static_cast<int64_t>(item.text.size()));
}

void run_getrange(Call& call) {
  int64_t begin = integer_of(call[2]);
  int64_t end = integer_of(call[3]);
  const std::string_view text = require_type(call, call.key(1), Type::kString).text;
  const auto size = static_cast<int64_t>(text.size());
  if (begin < 0 && end < 0 && begin > end) return call.reply.bulk("");
  // An end before the first byte is the first byte.
  if (begin < 0) begin = std::max<int64_t>(begin + size, 0);
  if (end < 0) end = std::max<int64_t>(end + size, 0);
  end = std::min(end, size - 1);
  if (begin > end || size == 0) return call.reply.bulk("");
  call.reply.bulk(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1)));
}

void run_setrange(Call& call) {
  const int64_t offset = integer_of(call[2]);
  if (offset < 0) throw CommandError("ERR offset is out of range");
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  if (call[3].empty()) return call.reply.integer(static_cast<int64_t>(item.text.size()));
  const auto at = static_cast<uint64_t>(offset);
  require_length(at);
  require_length(at + call[3].size());
  std::string text(item.text);
  if (text.size() < at + call[3].size()) text.resize(at + call[3].size());
  text.replace(at, call[3].size(), call[3]);
  call.keys().set_string_over(item, raw, text, item.flags, item.expiry_ms);
  call.reply.integer(static_cast<int64_t>(text.size()));
}

constexpr Command kStringCommands[] = {
    {"append", 3, kWrites | kFast, 1, 1, 1, "string", "Appends to a string", run_append},
    {"decr", 2, kWrites | kFast, 1, 1, 1, "string", "Subtracts one", run_decr},
    {"decrby", 3, kWrites | kFast, 1, 1, 1, "string", "Subtracts from a number", run_decrby},
    {"get", 2, kFast, 1, 1, 1, "string", "Returns a string", run_get},
    {"getdel", 2, kWrites | kFast, 1, 1, 1, "string", "Returns and removes a string", run_getdel},
    {"getex", -2, kWrites | kFast, 1, 1, 1, "string", "Returns a string, sets its expiry",
     run_getex},
    {"getrange", 4, 0, 1, 1, 1, "string", "Returns a part of a string", run_getrange},
    {"getset", 3, kWrites | kFast, 1, 1, 1, "string", "Sets a string, returns the old one",
     run_getset},
    {"incr", 2, kWrites | kFast, 1, 1, 1, "string", "Adds one", run_incr},
    {"incrby", 3, kWrites | kFast, 1, 1, 1, "string", "Adds to a number", run_incrby},
    {"incrbyfloat", 3, kWrites | kFast, 1, 1, 1, "string", "Adds to a number with a fraction",
     run_incrbyfloat},
    {"mget", -2, kFast, 1, -1, 1, "string", "Returns several strings", run_mget},
    {"mset", -3, kWrites | kGroup, 1, -1, 2, "string", "Sets several strings", run_mset},
    {"msetnx", -3, kWrites | kGroup, 1, -1, 2, "string", "Sets several strings if none is there",
     run_msetnx},
    {"psetex", 4, kWrites, 1, 1, 1, "string", "Sets a string for some milliseconds", run_psetex},
    {"set", -3, kWrites, 1, 1, 1, "string", "Sets a string", run_set},
    {"setex", 4, kWrites, 1, 1, 1, "string", "Sets a string for some seconds", run_setex},
    {"setnx", 3, kWrites | kFast, 1, 1, 1, "string", "Sets a string if the key is not there",
     run_setnx},
    {"setrange", 4, kWrites, 1, 1, 1, "string", "Writes over a part of a string", run_setrange},
    {"strlen", 2, kFast, 1, 1, 1, "string", "Returns the length of a string", run_strlen},
    {"substr", 4, 0, 1, 1, 1, "string", "As GETRANGE", run_getrange},
};

}  // namespace

std::span<const Command> string_commands() { return kStringCommands; }

}  // namespace perdure::server
