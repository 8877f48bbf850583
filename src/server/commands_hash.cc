// Hashes: fields with values under a key.
#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "server/collections.h"
#include "server/command_error.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

// Returns how many fields are new.
int64_t set_fields(Call& call) {
  if (call.size() % 2 != 0) {
    throw CommandError(
        fmt::format("ERR wrong number of arguments for '{}' command", call.session.last_command));
  }
  Opened hash(call, 1, Type::kHash);
  hash.begin();
  int64_t added = 0;
  for (size_t i = 2; i < call.size(); i += 2) {
    std::string_view old;
    if (!hash.find(call[i], old)) {
      ++hash.header().count;
      ++added;
    }
    hash.put(call[i], call[i + 1]);
    hash.checkpoint();
  }
  if (added > 0) hash.end();
  return added;
}
void run_hset(Call& call) { call.reply.integer(set_fields(call)); }
void run_hmset(Call& call) {
  set_fields(call);
  call.reply.ok();
}

void run_hsetnx(Call& call) {
  Opened hash(call, 1, Type::kHash);
  std::string_view old;
  if (hash.find(call[2], old)) return call.reply.integer(0);
  hash.begin();
  ++hash.header().count;
  hash.put(call[2], call[3]);
  hash.end();
  call.reply.integer(1);
}

void run_hget(Call& call) {
  const Opened hash(call, 1, Type::kHash);
  std::string_view value;
  hash.find(call[2], value) ? call.reply.bulk(value) : call.reply.null();
}

void run_hmget(Call& call) {
  const Opened hash(call, 1, Type::kHash);
  call.reply.array(call.size() - 2);
  for (size_t i = 2; i < call.size(); ++i) {
    std::string_view value;
    hash.find(call[i], value) ? call.reply.bulk(value) : call.reply.null();
  }
}

void run_hexists(Call& call) {
  const Opened hash(call, 1, Type::kHash);
  std::string_view value;
  call.reply.integer(hash.find(call[2], value) ? 1 : 0);
}

void run_hstrlen(Call& call) {
  const Opened hash(call, 1, Type::kHash);
  std::string_view value;
  call.reply.integer(hash.find(call[2], value) ? static_cast<int64_t>(value.size()) : 0);
}

void run_hdel(Call& call) {
  Opened hash(call, 1, Type::kHash);
  int64_t removed = 0;
  for (size_t i = 2; i < call.size() && hash.count() > 0; ++i) {
    std::string_view value;
    if (!hash.find(call[i], value)) continue;
    hash.remove(call[i]);
    --hash.header().count;
    ++removed;
    hash.checkpoint();
  }
  if (removed > 0) hash.end();
  call.reply.integer(removed);
}

void run_hlen(Call& call) {
  call.reply.integer(static_cast<int64_t>(Opened(call, 1, Type::kHash).count()));
}

void all_of(Call& call, bool keys, bool values) {
  const Opened hash(call, 1, Type::kHash);
  if (!values) {
    call.reply.array(hash.count());
    return hash.visit_names(0, hash.count(), [&](std::string_view name) {
      call.reply.bulk(name);
      return true;
    });
  }
  keys ? call.reply.map(hash.count()) : call.reply.array(hash.count());
  hash.visit(0, hash.count(), [&](std::string_view name, std::string_view value) {
    if (keys) call.reply.bulk(name);
    call.reply.bulk(value);
    return true;
  });
}
void run_hgetall(Call& call) { all_of(call, true, true); }
void run_hkeys(Call& call) { all_of(call, true, false); }
void run_hvals(Call& call) { all_of(call, false, true); }

// Puts a value that was made of the old one.
void change(Opened& hash, std::string_view field, bool is_new, std::string_view value) {
  hash.begin();
  hash.put(field, value);
  if (!is_new) return;
  ++hash.header().count;
  hash.end();
}

void run_hincrby(Call& call) {
  const int64_t by = integer_of(call[3]);
  Opened hash(call, 1, Type::kHash);
  std::string_view value;
  const bool there = hash.find(call[2], value);
  int64_t sum = 0;
  try {
    if (there) sum = integer_of(value);
  } catch (const CommandError&) {
    throw CommandError("ERR hash value is not an integer");
  }
  if (__builtin_add_overflow(sum, by, &sum)) {
    throw CommandError("ERR increment or decrement would overflow");
  }
  change(hash, call[2], !there, fmt::format("{}", sum));
  call.reply.integer(sum);
}

void run_hincrbyfloat(Call& call) {
  const long double by = long_real_of(call[3]);
  if (std::isinf(by)) throw CommandError("ERR value is NaN or Infinity");
  Opened hash(call, 1, Type::kHash);
  std::string_view value;
  const bool there = hash.find(call[2], value);
  long double old = 0;
  try {
    if (there) old = long_real_of(value);
  } catch (const CommandError&) {
    throw CommandError("ERR hash value is not a float");
  }
  const std::string digits = sum_of_reals(old, by);
  change(hash, call[2], !there, digits);
  call.reply.bulk(digits);
}

void run_hscan(Call& call) {
  scan_elements(call, Type::kHash,
                [](std::string_view name, std::string_view value, std::vector<std::string>& out) {
                  out.emplace_back(name);
                  out.emplace_back(value);
                });
}

void run_hrandfield(Call& call) {
  const int64_t count = call.size() == 2 ? 1 : random_count_of(call[2]);
  const bool values = call.size() == 4 && same_word(call[3], "WITHVALUES");
  if (call.size() > (values ? 4U : 3U)) throw_syntax();
  const Opened hash(call, 1, Type::kHash);
  if (call.size() == 2) {
    ReplyRoom room = call.reply.room();
    const auto chosen = hash.choose(1, false, room);
    return chosen.empty() ? call.reply.null() : call.reply.bulk(chosen[0].first);
  }
  const auto chosen = choose_with_repeats(hash, count, values, call.reply.room());
  const bool nested = values && call.reply.version() >= 3;
  call.reply.array(chosen.size() * (values && !nested ? 2 : 1));
  for (const auto& [name, value] : chosen) {
    if (nested) call.reply.array(2);
    call.reply.bulk(name);
    if (values) call.reply.bulk(value);
  }
}

constexpr Command kHashCommands[] = {
    {"hdel", -3, kChange | kFast, 1, 1, 1, "hash", "Removes fields", run_hdel},
    {"hexists", 3, kFast, 1, 1, 1, "hash", "Tells whether a field is there", run_hexists},
    {"hget", 3, kFast, 1, 1, 1, "hash", "Returns the value of a field", run_hget},
    {"hgetall", 2, 0, 1, 1, 1, "hash", "Returns all fields and values", run_hgetall},
    {"hincrby", 4, kChange | kFast, 1, 1, 1, "hash", "Adds to the number of a field", run_hincrby},
    {"hincrbyfloat", 4, kChange | kFast, 1, 1, 1, "hash", "Adds to the number of a field",
     run_hincrbyfloat},
    {"hkeys", 2, 0, 1, 1, 1, "hash", "Returns all fields", run_hkeys},
    {"hlen", 2, kFast, 1, 1, 1, "hash", "Counts the fields", run_hlen},
    {"hmget", -3, kFast, 1, 1, 1, "hash", "Returns the values of several fields", run_hmget},
    {"hmset", -4, kChange, 1, 1, 1, "hash", "Sets fields", run_hmset},
    {"hrandfield", -2, 0, 1, 1, 1, "hash", "Returns fields by chance", run_hrandfield},
    {"hscan", -3, 0, 1, 1, 1, "hash", "Goes through the fields, some at a time", run_hscan},
    {"hset", -4, kChange | kFast, 1, 1, 1, "hash", "Sets fields", run_hset},
    {"hsetnx", 4, kChange | kFast, 1, 1, 1, "hash", "Sets a field if it is not there", run_hsetnx},
    {"hstrlen", 3, kFast, 1, 1, 1, "hash", "Returns the length of a field's value", run_hstrlen},
    {"hvals", 2, 0, 1, 1, 1, "hash", "Returns all values", run_hvals},
};

}  // namespace

int64_t random_count_of(std::string_view text) {
  const int64_t count = integer_of(text);
  if (count == INT64_MIN) {
    throw CommandError(
        "ERR value is out of range, value must between -9223372036854775807 and "
        "9223372036854775807");
  }
  return count;
}

std::vector<std::pair<std::string, std::string>> choose_with_repeats(const Opened& opened,
                                                                     int64_t count, bool values,
                                                                     ReplyRoom room) {
  constexpr int64_t kCountMax = 1 << 16;
  if (count >= 0) return opened.choose(static_cast<uint64_t>(count), values, room);
  std::vector<std::pair<std::string, std::string>> all;
  if (!opened.exists()) return all;
  if (count < -kCountMax) throw CommandError("ERR value is out of range");
  for (int64_t i = 0; i < -count; ++i) {
    all.push_back(opened.choose(1, values, room).at(0));
  }
  return all;
}

std::span<const Command> hash_commands() { return kHashCommands; }

}  // namespace perdure::server
