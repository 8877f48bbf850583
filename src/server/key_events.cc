#include "server/key_events.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "perdure/error.h"
#include "server/command_error.h"
#include "server/commands.h"
#include "server/expiry.h"
#include "server/server.h"
#include "store/hash_index.h"

namespace perdure::server {

namespace {

using namespace event_kinds;

constexpr std::array<std::pair<char, uint32_t>, 14> kLetters = {{{'g', kGeneric},
                                                                 {'$', kString},
                                                                 {'l', kList},
                                                                 {'s', kSet},
                                                                 {'h', kHash},
                                                                 {'z', kSortedSet},
                                                                 {'x', kExpired},
                                                                 {'e', kEvicted},
                                                                 {'t', kStream},
                                                                 {'d', kModule},
                                                                 {'K', kByKey},
                                                                 {'E', kByEvent},
                                                                 {'m', kMissed},
                                                                 {'n', kNew}}};

// What a command does to the keys that it touches.
enum class Shape : uint8_t {
  kChange,    // the event, and "del" of one that is gone then
  kStore,     // the event, or "del" of what was there if there is no result
  kSet,       // the event, and "expire" if an expiry was given
  kRemove,    // "del"
  kExpire,    // "expire"; "del" if that is over
  kGetEx,     // the same, or "persist"
  kRename,    // rename_from, rename_to
  kMove,      // move_from, move_to
  kCopyTo,    // of the second key alone
  kTransfer,  // of an element from the first key to the second
};
struct Rule {
  std::string_view command;
  uint32_t kind;
  std::string_view event = {};
  Shape shape = Shape::kChange;
};

// Sorted by command.
constexpr Rule kRules[] = {
    {"append", kString, "append"},
    {"bitop", kString, "set", Shape::kStore},
    {"blmove", kList, "", Shape::kTransfer},
    {"blpop", kList, "lpop"},
    {"brpop", kList, "rpop"},
    {"brpoplpush", kList, "", Shape::kTransfer},
    {"bzpopmax", kSortedSet, "zpopmax"},
    {"bzpopmin", kSortedSet, "zpopmin"},
    {"copy", kGeneric, "copy_to", Shape::kCopyTo},
    {"decr", kString, "incrby"},
    {"decrby", kString, "incrby"},
    {"del", kGeneric, "", Shape::kRemove},
    {"expire", kGeneric, "", Shape::kExpire},
    {"expireat", kGeneric, "", Shape::kExpire},
    {"getdel", kGeneric, "", Shape::kRemove},
    {"getex", kGeneric, "", Shape::kGetEx},
    {"getset", kString, "set"},
    {"hdel", kHash, "hdel"},
    {"hincrby", kHash, "hincrby"},
    {"hincrbyfloat", kHash, "hincrbyfloat"},
    {"hmset", kHash, "hset"},
    {"hset", kHash, "hset"},
    {"hsetnx", kHash, "hset"},
    {"incr", kString, "incrby"},
    {"incrby", kString, "incrby"},
    {"incrbyfloat", kString, "incrbyfloat"},
    {"linsert", kList, "linsert"},
    {"lmove", kList, "", Shape::kTransfer},
    {"lpop", kList, "lpop"},
    {"lpush", kList, "lpush"},
    {"lpushx", kList, "lpush"},
    {"lrem", kList, "lrem"},
    {"lset", kList, "lset"},
    {"ltrim", kList, "ltrim"},
    {"move", kGeneric, "", Shape::kMove},
    {"mset", kString, "set"},
    {"msetnx", kString, "set"},
    {"persist", kGeneric, "persist"},
    {"pexpire", kGeneric, "", Shape::kExpire},
    {"pexpireat", kGeneric, "", Shape::kExpire},
    {"psetex", kString, "set", Shape::kSet},
    {"rename", kGeneric, "", Shape::kRename},
    {"renamenx", kGeneric, "", Shape::kRename},
    {"restore", kGeneric, "restore", Shape::kStore},
    {"rpop", kList, "rpop"},
    {"rpoplpush", kList, "", Shape::kTransfer},
    {"rpush", kList, "rpush"},
    {"rpushx", kList, "rpush"},
    {"sadd", kSet, "sadd"},
    {"sdiffstore", kSet, "sdiffstore", Shape::kStore},
    {"set", kString, "set", Shape::kSet},
    {"setbit", kString, "setbit"},
    {"setex", kString, "set", Shape::kSet},
    {"setnx", kString, "set"},
    {"setrange", kString, "setrange"},
    {"sinterstore", kSet, "sinterstore", Shape::kStore},
    {"smove", kSet, "", Shape::kTransfer},
    {"spop", kSet, "spop"},
    {"srem", kSet, "srem"},
    {"sunionstore", kSet, "sunionstore", Shape::kStore},
    {"unlink", kGeneric, "", Shape::kRemove},
    {"zadd", kSortedSet, "zadd"},
    {"zdiffstore", kSortedSet, "zdiffstore", Shape::kStore},
    {"zincrby", kSortedSet, "zincr"},
    {"zinterstore", kSortedSet, "zinterstore", Shape::kStore},
    {"zpopmax", kSortedSet, "zpopmax"},
    {"zpopmin", kSortedSet, "zpopmin"},
    {"zrangestore", kSortedSet, "zrangestore", Shape::kStore},
    {"zrem", kSortedSet, "zrem"},
    {"zremrangebylex", kSortedSet, "zremrangebylex"},
    {"zremrangebyrank", kSortedSet, "zremrangebyrank"},
    {"zremrangebyscore", kSortedSet, "zremrangebyscore"},
    {"zunionstore", kSortedSet, "zunionstore", Shape::kStore},
};
static_assert(std::ranges::is_sorted(kRules, {}, &Rule::command));

const Rule* rule_of(std::string_view command) {
  const auto* const found = std::ranges::lower_bound(kRules, command, {}, &Rule::command);
  return found != std::end(kRules) && found->command == command ? found : nullptr;
}

// Of an element that goes from one key to another: the events of the two.
std::pair<std::string_view, std::string_view> events_of_transfer(
    std::string_view command, std::span<const std::string_view> arguments) {
  if (command == "smove") return {"srem", "sadd"};
  if (command == "rpoplpush" || command == "brpoplpush") return {"rpop", "lpush"};
  return {same_word(arguments[3], "LEFT") ? "lpop" : "rpop",
          same_word(arguments[4], "LEFT") ? "lpush" : "rpush"};
}

bool has_expiry_option(std::span<const std::string_view> arguments) {
  return arguments.size() > 3 && std::ranges::any_of(arguments.subspan(3), is_expiry_option);
}

}  // namespace

uint32_t parse_event_kinds(std::string_view text) {
  uint32_t kinds = 0;
  for (const char letter : text) {
    const auto found =
        std::ranges::find(kLetters, letter, [](const auto& one) { return one.first; });
    if (found == kLetters.end() && letter != 'A') {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("notify-keyspace-events: '{}' is no kind of event; there are K, E, "
                              "and g$lshzxetdmnA",
                              letter));
    }
    kinds |= letter == 'A' ? kAll : found->second;
  }
  return kinds;
}

std::string text_of_event_kinds(uint32_t kinds) {
  std::string text;
  const bool all = (kinds & kAll) == kAll;
  if (all) text += 'A';
  for (const auto& [letter, kind] : kLetters) {
    if ((kinds & kind) != 0 && !(all && (kAll & kind) != 0)) text += letter;
  }
  return text;
}

void KeyEvents::set_kinds(uint32_t kinds) {
  if ((kinds & (kByKey | kByEvent)) == 0) kinds = 0;
  const bool had_expiries = (kinds_ & kExpired) != 0;
  if ((kinds & kExpired) == 0) {
    expiries_.clear();
    by_time_.clear();
    walks_ = false;
  } else if (!had_expiries) {
    walks_ = true;
    walk_partition_ = 0;
    walk_place_ = {};
  }
  {
    const std::lock_guard lock(evicted_mutex_);
    kinds_ = kinds;
    if ((kinds & (kEvicted | kExpired)) == 0) evicted_.clear();
  }
  abandon();
}

void KeyEvents::begin(const Command& command, std::span<const std::string_view> arguments,
                      uint32_t database) {
  abandon();
  if (server_.keys() == nullptr) return;
  if (rule_of(command.name) != nullptr) {
    command_ = &command;
    server_.keys()->note_touched(&touched_);
    return;
  }
  if ((kinds_ & kMissed) == 0 || (command.flags & kWrites) != 0 || arguments.empty()) return;
  std::string scratch;
  try {
    for_keys(command, arguments, [&](std::string_view key, bool reads, bool) {
      const std::string_view raw = Keyspace::raw_key(database, key, scratch);
      if (reads && !server_.keys()->find(raw)) note(kMissed, "keymiss", raw);
    });
  } catch (const Error&) {
    // The command says so.
  }
}

void KeyEvents::abandon() {
  command_ = nullptr;
  touched_.clear();
  if (server_.keys() != nullptr) server_.keys()->note_touched(nullptr);
}

void KeyEvents::end(std::span<const std::string_view> arguments, uint32_t database) {
  if (command_ == nullptr) return;
  server_.keys()->note_touched(nullptr);
  try {
    note_events(arguments, database);
  } catch (const Error&) {
    // What was done is done, whether or not it can be read.
  }
  abandon();
}

void KeyEvents::note_events(std::span<const std::string_view> arguments, uint32_t database) {
  const Keyspace& keys = *server_.keys();
  const Rule& rule = *rule_of(command_->name);
  std::string scratch;
  const auto is_key = [&](size_t argument, std::string_view raw) {
    return argument < arguments.size() &&
           Keyspace::raw_key(database, arguments[argument], scratch) == raw;
  };
  // In the order in which Redis tells of them: the source of what is moved first, but of a list's
  // element.
  const size_t first = rule.shape == Shape::kTransfer && rule.kind == kList ? 2 : 1;
  if (touched_.size() == 2 && is_key(first, touched_[1].first)) {
    std::swap(touched_[0], touched_[1]);
  }
  for (const auto& [raw, was_there] : touched_) {
    const Item item = keys.find(raw);
    const bool is_there = static_cast<bool>(item);
    if (keys.in_transaction()) {
      uncommitted_.push_back(raw);  // which may come to nothing
    } else {
      note_expiry(raw, item);
    }
    if (!was_there && !is_there) continue;
    if (!was_there) note(kNew, "new", raw);
    const auto gone = [&] {
      if (!is_there) note(kGeneric, "del", raw);
    };
    switch (rule.shape) {
      case Shape::kChange: {
        const bool adds_to_score =
            rule.command == "zadd" &&
            std::ranges::any_of(arguments, [](auto one) { return same_word(one, "INCR"); });
        note(rule.kind, adds_to_score ? "zincr" : rule.event, raw);
        gone();
        break;
      }
      case Shape::kStore:
        is_there ? note(rule.kind, rule.event, raw) : gone();
        break;
      case Shape::kSet: {
        note(rule.kind, rule.event, raw);
        // Without arguments, from memcached's clients, what it has come to have.
        const bool expires =
            rule.command != "set" ||
            (arguments.empty() ? item.expiry_ms != store::kNoExpiry : has_expiry_option(arguments));
        if (expires) note(kGeneric, "expire", raw);
        break;
      }
      case Shape::kRemove:
        gone();
        break;
      case Shape::kExpire:
      case Shape::kGetEx: {
        const bool stays = rule.shape == Shape::kGetEx && item.expiry_ms == store::kNoExpiry;
        if (is_there) note(kGeneric, stays ? "persist" : "expire", raw);
        gone();
        break;
      }
      case Shape::kRename:
        note(kGeneric, is_there ? "rename_to" : "rename_from", raw);
        break;
      case Shape::kMove:
        note(kGeneric, is_there ? "move_to" : "move_from", raw);
        break;
      case Shape::kCopyTo:
        note(kGeneric, rule.event, raw);
        break;
      case Shape::kTransfer: {
        const auto [from, to] = events_of_transfer(rule.command, arguments);
        if (is_key(2, raw)) note(rule.kind, to, raw);
        if (is_key(1, raw)) note(rule.kind, from, raw);
        gone();
        break;
      }
    }
  }
}

void KeyEvents::note(uint32_t kind, std::string_view event, std::string_view raw) {
  if ((kinds_ & kind) == 0) return;
  if (server_.channels().empty() && server_.patterns().empty()) return;
  waiting_.push_back({event, std::string(raw)});
}

void KeyEvents::tell() {
  if ((kinds_ & (kEvicted | kExpired)) != 0) {
    std::vector<std::string> evicted;
    {
      const std::lock_guard lock(evicted_mutex_);
      evicted.swap(evicted_);
    }
    for (const std::string& raw : evicted) {
      forget_expiry(raw);
      note(kEvicted, "evicted", raw);
    }
  }
  for (const auto& [event, raw] : std::exchange(waiting_, {})) {
    const auto name = Keyspace::name_of(raw);
    if (!name) continue;
    if ((kinds_ & kByKey) != 0) {
      server_.publish(fmt::format("__keyspace@{}__:{}", name->database, name->key), event);
    }
    if ((kinds_ & kByEvent) != 0) {
      server_.publish(fmt::format("__keyevent@{}__:{}", name->database, event), name->key);
    }
  }
}

void KeyEvents::note_evicted(std::string_view raw) {
  if ((kinds_ & (kEvicted | kExpired)) == 0) return;
  const std::lock_guard lock(evicted_mutex_);
  if ((kinds_ & (kEvicted | kExpired)) != 0) evicted_.emplace_back(raw);
}

void KeyEvents::drop_from(size_t count) {
  waiting_.resize(std::min(count, waiting_.size()));
  uncommitted_.clear();
}

void KeyEvents::note_committed() {
  for (const std::string& raw : std::exchange(uncommitted_, {})) {
    try {
      note_expiry(raw, server_.keys()->find(raw));
    } catch (const Error&) {
      forget_expiry(raw);  // nobody can say
    }
  }
}

// What the key has now.
void KeyEvents::note_expiry(std::string_view raw, uint64_t expiry_ms) {
  if ((kinds_ & kExpired) == 0) return;
  if (expiry_ms == store::kNoExpiry) {
    const auto known = expiries_.find(std::string(raw));
    if (known == expiries_.end()) return;
    by_time_.erase(known->second);
    expiries_.erase(known);
    return;
  }
  const auto [known, is_new] = expiries_.try_emplace(std::string(raw), by_time_.end());
  if (!is_new) {
    if (known->second->first == expiry_ms) return;
    by_time_.erase(known->second);
  }
  known->second = by_time_.emplace(expiry_ms, &known->first);
}

void KeyEvents::forget_expiries(uint32_t database) {
  std::erase_if(expiries_, [&](const auto& one) {
    const auto name = Keyspace::name_of(one.first);
    const bool goes = database == ~uint32_t{0} || (name && name->database == database);
    if (goes) by_time_.erase(one.second);
    return goes;
  });
}

bool KeyEvents::look_at_expiries() {
  constexpr int kExpiredMax = 1000;  // while nobody is served
  if ((kinds_ & kExpired) == 0 || server_.is_follower()) return false;
  Keyspace& keys = *server_.keys();
  if (keys.in_group()) return false;
  if (!keys.turn().is_all_ready()) {
    // Of a partition that cannot be read nobody is told anything.
    const auto opened = server_.store().progress();
    if (opened.ready + opened.failed < server_.store().partitions()) return false;
  }
  if (walks_) walk();
  const auto is_due = [&] { return !by_time_.empty() && by_time_.begin()->first <= keys.now_ms(); };
  for (int i = 0; i < kExpiredMax && is_due(); ++i) {
    const std::string raw = *by_time_.begin()->second;
    try {
      const Item item = keys.find(raw);
      if (item && item.expiry_ms > keys.now_ms()) {
        note_expiry(raw, item);  // of a write that was not told
        continue;
      }
      if (!item) note(kExpired, "expired", raw);
    } catch (const Error&) {
      // Its record is damaged, or cannot be read.
    }
    forget_expiry(raw);
  }
  return walks_ || is_due();
}

// Some more of the records that were there before, of all databases.
void KeyEvents::walk() {
  constexpr size_t kRecords = 1024;
  constexpr size_t kFewest = 64;  // a part counts as so many, even if it has none
  store::StoreImpl& store = server_.store();
  store::CopyPlace& place = walk_place_;
  std::vector<store::RecordCopy> some;
  for (size_t visited = 0; visited < kRecords; visited += std::max(some.size(), kFewest)) {
    if (place.has_ended) ++walk_partition_, place = {};
    if (walk_partition_ >= store.partitions()) {
      walks_ = false;
      return;
    }
    try {
      store.copy_some(walk_partition_, nullptr, place, some);
    } catch (const Error&) {
      // What is damaged is left out: with an index by hash a part, with an ordered one the rest of
      // the partition.
      place.tag += place.step;
      place.has_ended = place.step == 0 || place.tag >= store::HashIndex::kTags;
      continue;
    }
    for (const store::RecordCopy& record : some) {
      if (record.expiry_ms == store::kNoExpiry || !Keyspace::name_of(record.key)) continue;
      note_expiry(record.key, record.expiry_ms);
    }
  }
}

}  // namespace perdure::server
