// Lists: elements by a number, one after the other, so that both ends are cheap.
#include <fmt/core.h>

#include <algorithm>

#include "server/collections.h"
#include "server/command_error.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

class List : public Opened {
 public:
  List(Call& call, size_t key_argument) : Opened(call, key_argument, Type::kList) {}

  std::string element(uint64_t at) { return element_of_index(id(), header().first + at); }
  void push(std::string_view value, bool front) {
    if (!exists()) {
      begin();
      header().first = kListMiddle;
    }
    if (front) --header().first;
    keys().put_element(raw(), element(front ? 0 : count()), value);
    ++header().count;
  }
  std::string_view at(uint64_t number) {
    std::string_view value;
    if (!keys().find_element(element(number), value)) {
      throw Error(ErrorCode::kCorrupt, "an element of a list is missing");
    }
    return value;
  }
  void drop(bool front) {
    keys().remove_element(raw(), element(front ? 0 : count() - 1));
    if (front) ++header().first;
    --header().count;
  }
  std::string pop(bool front) {
    std::string copy(at(front ? 0 : count() - 1));
    drop(front);
    return copy;
  }
  // From `begin` to before `end`, until `visit` returns false.
  void visit(uint64_t begin, uint64_t end, const std::function<bool(std::string_view)>& visit) {
    if (begin >= end) return;
    const std::string prefix = names_of(id());
    uint64_t left = end - begin;
    keys().scan(element(begin), false, left, [&](std::string_view key, std::string_view value) {
      return key.starts_with(prefix) && visit(value) && --left > 0;
    });
  }
  // Where the value stands among the first, or last, `far` elements, one after the other, until
  // `hit` returns false.
  using Hit = std::function<bool(uint64_t at)>;
  void find_all(std::string_view wanted, uint64_t far, const Hit& hit) {
    uint64_t next = 0;
    visit(0, far, [&](std::string_view value) {
      const uint64_t at = next++;
      return value != wanted || hit(at);
    });
  }
  void find_all_back(std::string_view wanted, uint64_t far, const Hit& hit) {
    constexpr uint64_t kPiece = 256;
    std::vector<uint64_t> found;
    for (uint64_t end = count(), left = far; left > 0;) {
      const uint64_t begin = end - std::min(kPiece, left);
      found.clear();
      uint64_t next = begin;
      visit(begin, end, [&](std::string_view value) {
        if (value == wanted) found.push_back(next);
        return ++next, true;
      });
      for (; !found.empty(); found.pop_back()) {
        if (!hit(found.back())) return;
      }
      left -= end - begin;
      end = begin;
    }
  }
  // An index as commands give it; below 0 from the end. May be outside.
  int64_t place(int64_t index) const {
    return index < 0 ? index + static_cast<int64_t>(count()) : index;
  }
};

// [begin, end) within `count` of a range as commands give it.
std::pair<uint64_t, uint64_t> clip(const List& list, int64_t first, int64_t last) {
  const auto count = static_cast<int64_t>(list.count());
  const int64_t begin = std::max<int64_t>(list.place(first), 0);
  const int64_t end = std::min(list.place(last), count - 1) + 1;
  if (begin >= end) return {0, 0};
  return {static_cast<uint64_t>(begin), static_cast<uint64_t>(end)};
}

void push(Call& call, bool front, bool only_present) {
  List list(call, 1);
  if (only_present && !list.exists()) return call.reply.integer(0);
  for (size_t i = 2; i < call.size(); ++i) {
    list.push(call[i], front);
    list.checkpoint();
  }
  list.end();
  call.reply.integer(static_cast<int64_t>(list.count()));
}
void run_lpush(Call& call) { push(call, true, false); }
void run_rpush(Call& call) { push(call, false, false); }
void run_lpushx(Call& call) { push(call, true, true); }
void run_rpushx(Call& call) { push(call, false, true); }

void pop(Call& call, bool front) {
  if (call.size() > 3) {
    throw CommandError(
        fmt::format("ERR wrong number of arguments for '{}' command", front ? "lpop" : "rpop"));
  }
  const bool one = call.size() == 2;
  const uint64_t wanted = one ? 1 : count_of(call[2]);
  List list(call, 1);
  if (!list.exists()) return one ? call.reply.null() : call.reply.null_array();
  const uint64_t count = std::min(wanted, list.count());
  if (!one) call.reply.array(count);
  // What cannot be told is not removed.
  for (uint64_t i = 0; i < count; ++i) {
    call.reply.bulk(list.at(front ? i : list.count() - 1 - i));
  }
  for (uint64_t i = 0; i < count; ++i) {
    list.drop(front);
    list.checkpoint();
  }
  if (count > 0) list.end();
}
void run_lpop(Call& call) { pop(call, true); }
void run_rpop(Call& call) { pop(call, false); }

void run_llen(Call& call) { call.reply.integer(static_cast<int64_t>(List(call, 1).count())); }

void run_lrange(Call& call) {
  const int64_t first = integer_of(call[2]);
  const int64_t last = integer_of(call[3]);
  List list(call, 1);
  const auto [begin, end] = clip(list, first, last);
  call.reply.array(end - begin);
  list.visit(begin, end, [&](std::string_view value) {
    call.reply.bulk(value);
    return true;
  });
}

void run_lindex(Call& call) {
  List list(call, 1);
  if (!list.exists()) return call.reply.null();  // whatever else is said
  const int64_t place = list.place(integer_of(call[2]));
  std::string_view value;
  if (place < 0 || static_cast<uint64_t>(place) >= list.count() ||
      !list.keys().find_element(list.element(static_cast<uint64_t>(place)), value)) {
    return call.reply.null();
  }
  call.reply.bulk(value);
}

void run_lset(Call& call) {
  List list(call, 1);
  if (!list.exists()) throw CommandError("ERR no such key");
  const int64_t place = list.place(integer_of(call[2]));
  if (place < 0 || static_cast<uint64_t>(place) >= list.count()) {
    throw CommandError("ERR index out of range");
  }
  list.keys().put_element(list.raw(), list.element(static_cast<uint64_t>(place)), call[3]);
  call.reply.ok();
}

void run_ltrim(Call& call) {
  const int64_t first = integer_of(call[2]);
  const int64_t last = integer_of(call[3]);
  List list(call, 1);
  const auto [begin, end] = clip(list, first, last);
  const uint64_t behind = list.count() - end;
  for (uint64_t i = 0; i < begin; ++i) {
    list.pop(true);
    list.checkpoint();
  }
  for (uint64_t i = 0; i < behind; ++i) {
    list.pop(false);
    list.checkpoint();
  }
  if (list.exists() && begin + behind > 0) list.end();
  call.reply.ok();
}

// Writes the list anew: for each value, what `tell` puts. Returns how many elements it has then.
uint64_t rewrite(
    List& list, Call& call,
    const std::function<void(std::string_view value,
                             const std::function<void(std::string_view)>& put)>& tell) {
  const uint64_t expiry_ms = call.keys().find(list.raw()).expiry_ms;
  Replacement result(call.keys(), list.raw(), Type::kList);
  const auto put = [&](std::string_view value) {
    Collection& header = result.header();
    header.first = kListMiddle;
    result.put(element_of_index(header.id, header.first + header.count++), value);
  };
  list.visit(0, list.count(), [&](std::string_view value) {
    tell(value, put);
    return true;
  });
  result.finish(expiry_ms);
  return result.count();
}

void run_lrem(Call& call) {
  const int64_t wanted = integer_of(call[2]);
  List list(call, 1);
  uint64_t hits = 0;
  list.visit(0, list.count(), [&](std::string_view value) {
    hits += value == call[3] ? 1 : 0;
    return true;
  });
  if (hits == 0) return call.reply.integer(0);
  const uint64_t limit =
      wanted == 0 ? ~uint64_t{0} : static_cast<uint64_t>(std::abs(std::max(wanted, -INT64_MAX)));
  const uint64_t removed = std::min(hits, limit);
  // The first of them that goes.
  const uint64_t begin = wanted < 0 ? hits - removed : 0;
  uint64_t hit = 0;
  rewrite(list, call, [&](std::string_view value, const auto& put) {
    const bool goes = value == call[3] && hit >= begin && hit < begin + removed;
    hit += value == call[3] ? 1 : 0;
    if (!goes) put(value);
  });
  call.reply.integer(static_cast<int64_t>(removed));
}

void run_linsert(Call& call) {
  const bool before = same_word(call[2], "BEFORE");
  if (!before && !same_word(call[2], "AFTER")) throw_syntax();
  List list(call, 1);
  if (!list.exists()) return call.reply.integer(0);
  bool there = false;
  list.visit(0, list.count(), [&](std::string_view value) {
    there = value == call[3];
    return !there;
  });
  if (!there) return call.reply.integer(-1);
  bool done = false;
  const uint64_t count = rewrite(list, call, [&](std::string_view value, const auto& put) {
    const bool here = !done && value == call[3];
    if (here && before) put(call[4]);
    put(value);
    if (here && !before) put(call[4]);
    done = done || here;
  });
  call.reply.integer(static_cast<int64_t>(count));
}

int64_t not_negative(std::string_view text, const char* otherwise) {
  const int64_t number = integer_of(text, otherwise);
  if (number < 0) throw CommandError(otherwise);
  return number;
}

void run_lpos(Call& call) {
  int64_t rank = 1;
  int64_t wanted = -1;  // without COUNT: one, not in an array
  int64_t length = 0;
  for (size_t i = 3; i < call.size(); i += 2) {
    if (i + 1 == call.size()) throw_syntax();
    const std::string_view text = call[i + 1];
    if (same_word(call[i], "RANK")) {
      if ((rank = integer_of(text)) == 0) {
        throw CommandError(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or "
            "use negative to start from the end of the list");
      }
      rank = std::max(rank, -INT64_MAX);
    } else if (same_word(call[i], "COUNT")) {
      wanted = not_negative(text, "ERR COUNT can't be negative");
    } else if (same_word(call[i], "MAXLEN")) {
      length = not_negative(text, "ERR MAXLEN can't be negative");
    } else {
      throw_syntax();
    }
  }
  List list(call, 1);
  const uint64_t far =
      length > 0 ? std::min(static_cast<uint64_t>(length), list.count()) : list.count();
  const uint64_t most = wanted < 0 ? 1 : wanted == 0 ? UINT64_MAX : static_cast<uint64_t>(wanted);
  auto skip = static_cast<uint64_t>(std::abs(rank)) - 1;
  std::vector<uint64_t> hits;
  ReplyRoom room = call.reply.room();
  // Returns whether more are wanted.
  const auto take = [&](uint64_t at) {
    if (skip > 0) return --skip, true;
    constexpr size_t kLeastBytes = 4;
    room.take(kLeastBytes);
    hits.push_back(at);
    return hits.size() < most;
  };
  rank > 0 ? list.find_all(call[2], far, take) : list.find_all_back(call[2], far, take);
  if (wanted < 0) {
    return hits.empty() ? call.reply.null() : call.reply.integer(static_cast<int64_t>(hits[0]));
  }
  call.reply.array(hits.size());
  for (const uint64_t hit : hits) call.reply.integer(static_cast<int64_t>(hit));
}

bool is_left(std::string_view word) {
  if (same_word(word, "LEFT")) return true;
  if (!same_word(word, "RIGHT")) throw_syntax();
  return false;
}

void move(Call& call, bool from_left, bool to_left) {
  List from(call, 1);
  if (!from.exists()) return call.reply.null();
  {
    const List checked(call, 2);
  }  // the type, before anything is changed
  const std::string value = from.pop(from_left);
  from.end();
  List to(call, 2);
  to.push(value, to_left);
  to.end();
  call.reply.bulk(value);
}
void run_lmove(Call& call) { move(call, is_left(call[3]), is_left(call[4])); }
void run_rpoplpush(Call& call) { move(call, false, true); }

// BLPOP and BRPOP: of the first of these lists that has an element.
void pop_or_wait(Call& call, bool front) {
  const double seconds = timeout_of(call[call.size() - 1]);
  std::vector<std::string> raw;
  for (size_t i = 1; i + 1 < call.size(); ++i) {
    List list(call, i);
    raw.emplace_back(list.raw());
    if (!list.exists()) continue;
    const std::string value = list.pop(front);
    list.end();
    call.reply.array(2);
    call.reply.bulk(call[i]);
    return call.reply.bulk(value);
  }
  call.session.wait_for_keys(call, seconds, std::vector<std::string_view>(raw.begin(), raw.end()));
}
void run_blpop(Call& call) { pop_or_wait(call, true); }
void run_brpop(Call& call) { pop_or_wait(call, false); }

void move_or_wait(Call& call, bool from_left, bool to_left) {
  const double seconds = timeout_of(call[call.size() - 1]);
  const List from(call, 1);
  if (from.exists()) return move(call, from_left, to_left);
  const std::string raw(from.raw());
  const std::string_view key = raw;
  call.session.wait_for_keys(call, seconds, {&key, 1});
}
void run_blmove(Call& call) { move_or_wait(call, is_left(call[3]), is_left(call[4])); }
void run_brpoplpush(Call& call) { move_or_wait(call, false, true); }

constexpr uint32_t kWaiting = kChange | kBlocks;
constexpr Command kListCommands[] = {
    {"blmove", 6, kWaiting, 1, 2, 1, "list", "Moves an element once there is one", run_blmove},
    {"blpop", -3, kWaiting, 1, -2, 1, "list", "Pops the first element once there is one",
     run_blpop},
    {"brpop", -3, kWaiting, 1, -2, 1, "list", "Pops the last element once there is one", run_brpop},
    {"brpoplpush", 4, kWaiting, 1, 2, 1, "list", "Moves the last element once there is one",
     run_brpoplpush},
    {"lindex", 3, 0, 1, 1, 1, "list", "Returns an element by its number", run_lindex},
    {"linsert", 5, kChange, 1, 1, 1, "list", "Inserts beside an element; writes the list anew",
     run_linsert},
    {"llen", 2, kFast, 1, 1, 1, "list", "Counts the elements", run_llen},
    {"lmove", 5, kChange, 1, 2, 1, "list", "Moves an element to another list", run_lmove},
    {"lpop", -2, kChange | kFast, 1, 1, 1, "list", "Returns and removes the first elements",
     run_lpop},
    {"lpos", -3, 0, 1, 1, 1, "list", "Finds an element", run_lpos},
    {"lpush", -3, kChange | kFast, 1, 1, 1, "list", "Adds elements in front", run_lpush},
    {"lpushx", -3, kChange | kFast, 1, 1, 1, "list", "Adds elements in front if the list is there",
     run_lpushx},
    {"lrange", 4, 0, 1, 1, 1, "list", "Returns a range of elements", run_lrange},
    {"lrem", 4, kChange, 1, 1, 1, "list", "Removes elements by value; writes the list anew",
     run_lrem},
    {"lset", 4, kChange, 1, 1, 1, "list", "Sets an element by its number", run_lset},
    {"ltrim", 4, kChange, 1, 1, 1, "list", "Removes all but a range", run_ltrim},
    {"rpop", -2, kChange | kFast, 1, 1, 1, "list", "Returns and removes the last elements",
     run_rpop},
    {"rpoplpush", 3, kChange, 1, 2, 1, "list", "Moves the last element to another list's front",
     run_rpoplpush},
    {"rpush", -3, kChange | kFast, 1, 1, 1, "list", "Adds elements behind", run_rpush},
    {"rpushx", -3, kChange | kFast, 1, 1, 1, "list", "Adds elements behind if the list is there",
     run_rpushx},
};

}  // namespace

std::span<const Command> list_commands() { return kListCommands; }

}  // namespace perdure::server
