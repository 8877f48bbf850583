// Sets.
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "server/collections.h"
#include "server/command_error.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

void run_sadd(Call& call) {
  Opened set(call, 1, Type::kSet);
  set.begin();
  int64_t added = 0;
  for (size_t i = 2; i < call.size(); ++i) {
    std::string_view value;
    if (set.find(call[i], value)) continue;
    set.put(call[i], "");
    ++set.header().count;
    ++added;
    set.checkpoint();
  }
  if (added > 0) set.end();
  call.reply.integer(added);
}

void run_srem(Call& call) {
  Opened set(call, 1, Type::kSet);
  int64_t removed = 0;
  for (size_t i = 2; i < call.size() && set.count() > 0; ++i) {
    std::string_view value;
    if (!set.find(call[i], value)) continue;
    set.remove(call[i]);
    --set.header().count;
    ++removed;
    set.checkpoint();
  }
  if (removed > 0) set.end();
  call.reply.integer(removed);
}

void run_sismember(Call& call) {
  std::string_view value;
  call.reply.integer(Opened(call, 1, Type::kSet).find(call[2], value) ? 1 : 0);
}

void run_smismember(Call& call) {
  const Opened set(call, 1, Type::kSet);
  call.reply.array(call.size() - 2);
  std::string_view value;
  for (size_t i = 2; i < call.size(); ++i) call.reply.integer(set.find(call[i], value) ? 1 : 0);
}

void run_scard(Call& call) {
  call.reply.integer(static_cast<int64_t>(Opened(call, 1, Type::kSet).count()));
}

void run_smembers(Call& call) {
  const Opened set(call, 1, Type::kSet);
  call.reply.set(set.count());
  set.visit(0, set.count(), [&](std::string_view name, std::string_view) {
    call.reply.bulk(name);
    return true;
  });
}

void run_spop(Call& call) {
  if (call.size() > 3) throw_syntax();
  const bool one = call.size() == 2;
  const uint64_t count = one ? 1 : count_of(call[2]);
  Opened set(call, 1, Type::kSet);
  ReplyRoom room = call.reply.room();
  const auto chosen = set.choose(count, false, room);
  // What cannot be told is not removed.
  if (!one) call.reply.set(chosen.size());
  if (one && chosen.empty()) call.reply.null();
  for (const auto& [name, value] : chosen) call.reply.bulk(name);
  for (const auto& [name, value] : chosen) {
    set.remove(name);
    --set.header().count;
    set.checkpoint();
  }
  if (!chosen.empty()) set.end();
}

void run_srandmember(Call& call) {
  if (call.size() > 3) throw_syntax();
  const int64_t count = call.size() == 2 ? 1 : random_count_of(call[2]);
  const Opened set(call, 1, Type::kSet);
  if (call.size() == 2) {
    ReplyRoom room = call.reply.room();
    const auto chosen = set.choose(1, false, room);
    return chosen.empty() ? call.reply.null() : call.reply.bulk(chosen[0].first);
  }
  const auto chosen = choose_with_repeats(set, count, false, call.reply.room());
  call.reply.array(chosen.size());
  for (const auto& [name, value] : chosen) call.reply.bulk(name);
}

void run_smove(Call& call) {
  Opened from(call, 1, Type::kSet);
  if (!from.exists()) return call.reply.integer(0);
  Opened to(call, 2, Type::kSet);
  std::string_view value;
  if (!from.find(call[3], value)) return call.reply.integer(0);
  if (from.raw() == to.raw()) return call.reply.integer(1);
  from.remove(call[3]);
  --from.header().count;
  from.end();
  to.begin();
  if (!to.find(call[3], value)) {
    to.put(call[3], "");
    ++to.header().count;
    to.end();
  }
  call.reply.integer(1);
}

enum class Combination : uint8_t { kUnion, kIntersection, kDifference };

// Calls `visit` for the members of several sets together, until it returns false: of a union, again
// for each set that has one. All types are looked at before.
void visit_combined(Call& call, size_t first_key, size_t keys, Combination how,
                    const Opened::VisitName& visit) {
  std::vector<Opened> sets;
  for (size_t i = 0; i < keys; ++i) sets.emplace_back(call, first_key + i, Type::kSet);
  if (how == Combination::kUnion) {
    bool goes_on = true;
    const auto visit_one = [&](std::string_view name) { return goes_on = visit(name); };
    for (size_t i = 0; i < keys && goes_on; ++i) sets[i].visit_names(0, sets[i].count(), visit_one);
    return;
  }
  // The smallest one is gone through, for an intersection.
  if (how == Combination::kIntersection) {
    std::iter_swap(sets.begin(), std::ranges::min_element(sets, {}, &Opened::count));
  }
  sets[0].visit_names(0, sets[0].count(), [&](std::string_view name) {
    std::string_view value;
    const bool fits = std::ranges::all_of(sets.begin() + 1, sets.end(), [&](const Opened& set) {
      return set.find(name, value) == (how == Combination::kIntersection);
    });
    return !fits || visit(name);
  });
}

void reply_combined(Call& call, Combination how) {
  ReplyRoom room = call.reply.room();
  std::set<std::string> members;
  visit_combined(call, 1, call.size() - 1, how, [&](std::string_view name) {
    if (members.emplace(name).second) room.take(name.size());
    return true;
  });
  call.reply.set(members.size());
  for (const std::string& name : members) call.reply.bulk(name);
}
void run_sunion(Call& call) { reply_combined(call, Combination::kUnion); }
void run_sinter(Call& call) { reply_combined(call, Combination::kIntersection); }
void run_sdiff(Call& call) { reply_combined(call, Combination::kDifference); }

// Members are written as they are found.
void store_combined(Call& call, Combination how) {
  Keyspace& keys = call.keys();
  Replacement result(keys, call.key(1), Type::kSet);
  visit_combined(call, 2, call.size() - 2, how, [&](std::string_view name) {
    const std::string element = element_of_name(result.header().id, name);
    std::string_view value;
    if (how == Combination::kUnion && keys.find_element(element, value)) return true;
    ++result.header().count;
    result.put(element, "");
    return true;
  });
  result.finish(store::kNoExpiry);
  call.reply.integer(static_cast<int64_t>(result.count()));
}
void run_sunionstore(Call& call) { store_combined(call, Combination::kUnion); }
void run_sinterstore(Call& call) { store_combined(call, Combination::kIntersection); }
void run_sdiffstore(Call& call) { store_combined(call, Combination::kDifference); }

void run_sintercard(Call& call) {
  constexpr char kKeyWords[] = "ERR numkeys should be greater than 0";
  const int64_t keys = integer_of(call[1], kKeyWords);
  if (keys < 1) throw CommandError(kKeyWords);
  const auto count = static_cast<size_t>(keys);
  if (count > call.size() - 2) {
    throw CommandError("ERR Number of keys can't be greater than number of args");
  }
  int64_t limit = 0;
  if (call.size() == count + 4 && same_word(call[count + 2], "LIMIT")) {
    constexpr char kLimitWords[] = "ERR LIMIT can't be negative";
    limit = integer_of(call[count + 3], kLimitWords);
    if (limit < 0) throw CommandError(kLimitWords);
  } else if (call.size() != count + 2) {
    throw_syntax();
  }
  int64_t found = 0;
  visit_combined(call, 2, count, Combination::kIntersection,
                 [&](std::string_view) { return ++found != limit; });
  call.reply.integer(found);
}

void run_sscan(Call& call) {
  scan_elements(call, Type::kSet,
                [](std::string_view name, std::string_view, std::vector<std::string>& out) {
                  out.emplace_back(name);
                });
}

constexpr Command kSetCommands[] = {
    {"sadd", -3, kChange | kFast, 1, 1, 1, "set", "Adds members", run_sadd},
    {"scard", 2, kFast, 1, 1, 1, "set", "Counts the members", run_scard},
    {"sdiff", -2, 0, 1, -1, 1, "set", "Returns the first set without the others", run_sdiff},
    {"sdiffstore", -3, kChange, 1, -1, 1, "set", "Stores the first set without the others",
     run_sdiffstore},
    {"sinter", -2, 0, 1, -1, 1, "set", "Returns what sets have in common", run_sinter},
    {"sintercard", -3, 0, 2, 2, 1, "set", "Counts what sets have in common", run_sintercard},
    {"sinterstore", -3, kChange, 1, -1, 1, "set", "Stores what sets have in common",
     run_sinterstore},
    {"sismember", 3, kFast, 1, 1, 1, "set", "Tells whether a member is there", run_sismember},
    {"smembers", 2, 0, 1, 1, 1, "set", "Returns all members", run_smembers},
    {"smismember", -3, kFast, 1, 1, 1, "set", "Tells which members are there", run_smismember},
    {"smove", 4, kChange | kFast, 1, 2, 1, "set", "Moves a member to another set", run_smove},
    {"spop", -2, kChange | kFast, 1, 1, 1, "set", "Returns and removes members by chance",
     run_spop},
    {"srandmember", -2, 0, 1, 1, 1, "set", "Returns members by chance", run_srandmember},
    {"srem", -3, kChange | kFast, 1, 1, 1, "set", "Removes members", run_srem},
    {"sscan", -3, 0, 1, 1, 1, "set", "Goes through the members, some at a time", run_sscan},
    {"sunion", -2, 0, 1, -1, 1, "set", "Returns the members of all sets", run_sunion},
    {"sunionstore", -3, kChange, 1, -1, 1, "set", "Stores the members of all sets",
     run_sunionstore},
};

}  // namespace

std::span<const Command> set_commands() { return kSetCommands; }

}  // namespace perdure::server
