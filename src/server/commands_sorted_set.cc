// Sorted sets: each member has two records, by its name with the score, and by its score.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "server/collections.h"
#include "server/command_error.h"
#include "server/encoding.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

using Members = std::vector<std::pair<std::string, double>>;

// A bound of a range by score, or by name.
struct Bound {
  double score = 0;
  std::string_view name = {};
  bool open = false;      // the bound itself does not belong to it
  bool infinite = false;  // by name: - or +
};

Bound score_bound(std::string_view text) {
  Bound bound{.open = text.starts_with('(')};
  if (bound.open) text.remove_prefix(1);
  // As Redis has them: all that the C library reads; an empty one is zero.
  const std::string copy(text);
  char* end = nullptr;
  bound.score = std::strtod(copy.c_str(), &end);
  if (*end != '\0' || std::isnan(bound.score)) {
    throw CommandError("ERR min or max is not a float");
  }
  return bound;
}

Bound name_bound(std::string_view text) {
  if (text == "-" || text == "+") return {.score = text == "-" ? -1.0 : 1.0, .infinite = true};
  if (!text.starts_with('(') && !text.starts_with('[')) {
    throw CommandError("ERR min or max not valid string range item");
  }
  return {.name = text.substr(1), .open = text[0] == '('};
}

struct Range {
  bool by_name = false;
  Bound min;
  Bound max;

  bool below(double score, std::string_view name) const {  // before the range
    if (!by_name) return score < min.score || (min.open && score == min.score);
    if (min.infinite) return min.score > 0;
    return name < min.name || (min.open && name == min.name);
  }
  bool above(double score, std::string_view name) const {
    if (!by_name) return score > max.score || (max.open && score == max.score);
    if (max.infinite) return max.score < 0;
    return name > max.name || (max.open && name == max.name);
  }
};

// Of the record by a member's name.
double score_in(std::string_view value) {
  if (value.size() != 8) throw Error(ErrorCode::kCorrupt, "the score of a member is damaged");
  return real_of_ordered(read_ordered(value));
}
std::string value_of_score(double score) {
  std::string value;
  append_ordered(value, ordered_of_real(score));
  return value;
}

class SortedSet : public Opened {
 public:
  SortedSet(Call& call, size_t key_argument) : Opened(call, key_argument, Type::kSortedSet) {}
  SortedSet(Keyspace& keys, std::string_view raw) : Opened(keys, raw, Type::kSortedSet) {}

  bool score_of(std::string_view name, double& score) const {
    std::string_view value;
    if (!find(name, value)) return false;
    score = score_in(value);
    return true;
  }
  void set(std::string_view name, double score, const double* old) {
    begin();
    if (old != nullptr) {
      keys().remove_element(raw(), element_of_score(id(), *old, name));
    } else {
      ++header().count;
    }
    put(name, value_of_score(score));
    keys().put_element(raw(), element_of_score(id(), score, name), "");
  }
  void take(std::string_view name, double score) {
    remove(name);
    keys().remove_element(raw(), element_of_score(id(), score, name));
    --header().count;
  }
  // Members in the order of scores, upwards from a score on or downwards, until `visit` returns
  // false.
  using VisitMember = std::function<bool(std::string_view name, double score)>;
  void visit_scores(double from, bool downwards, uint64_t wanted, const VisitMember& visit) const {
    if (!exists()) return;
    const std::string prefix = scores_of(id());
    std::string begin = prefix;
    // Downwards from behind all members of that score.
    append_ordered(begin, ordered_of_real(from) + (downwards ? 1 : 0));
    keys().scan(begin, downwards, wanted, [&](std::string_view key, std::string_view) {
      if (downwards && key == begin) return true;  // a member without a name, of the next score
      return key.starts_with(prefix) && visit(name_of_score(key), score_of_element(key));
    });
  }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void run_zadd(Call& call) {
  bool nx = false, xx = false, gt = false, lt = false, changed_too = false, increments = false;
  size_t at = 2;
  for (; at < call.size(); ++at) {
    if (same_word(call[at], "NX"))
      nx = true;
    else if (same_word(call[at], "XX"))
      xx = true;
    else if (same_word(call[at], "GT"))
      gt = true;
    else if (same_word(call[at], "LT"))
      lt = true;
    else if (same_word(call[at], "CH"))
      changed_too = true;
    else if (same_word(call[at], "INCR"))
      increments = true;
    else
      break;
  }
  if (at == call.size() || (call.size() - at) % 2 != 0) throw_syntax();
  if (nx && xx) throw CommandError("ERR XX and NX options at the same time are not compatible");
  if ((nx && (gt || lt)) || (gt && lt)) {
    throw CommandError("ERR GT, LT, and/or NX options at the same time are not compatible");
  }
  if (increments && call.size() - at != 2) {
    throw CommandError("ERR INCR option supports a single increment-element pair");
  }
  for (size_t i = at; i < call.size(); i += 2) real_of(call[i]);  // all, before anything is written
  SortedSet set(call, 1);
  int64_t added = 0;
  int64_t changed = 0;
  bool done = false;
  double last = 0;
  for (size_t i = at; i < call.size(); i += 2) {
    double old = 0;
    const bool there = set.score_of(call[i + 1], old);
    double score = real_of(call[i]) + (increments && there ? old : 0);
    if (std::isnan(score)) throw CommandError("ERR resulting score is not a number (NaN)");
    if (score == 0) score = 0;  // not -0
    if ((there && nx) || (!there && xx) || (there && gt && score <= old) ||
        (there && lt && score >= old)) {
      continue;
    }
    done = true;
    last = score;
    if (there && score == old) continue;
    set.set(call[i + 1], score, there ? &old : nullptr);
    ++(there ? changed : added);
    set.checkpoint();
  }
  if (added > 0) set.end();
  if (increments) return done ? call.reply.real(last) : call.reply.null();
  call.reply.integer(changed_too ? added + changed : added);
}

void run_zincrby(Call& call) {
  const double by = real_of(call[2]);
  SortedSet set(call, 1);
  double old = 0;
  const bool there = set.score_of(call[3], old);
  const double score = old + by;
  if (std::isnan(score)) throw CommandError("ERR resulting score is not a number (NaN)");
  if (!there || score != old) set.set(call[3], score, there ? &old : nullptr);
  if (!there) set.end();
  call.reply.real(score);
}

void run_zrem(Call& call) {
  SortedSet set(call, 1);
  int64_t removed = 0;
  for (size_t i = 2; i < call.size() && set.count() > 0; ++i) {
    double score = 0;
    if (!set.score_of(call[i], score)) continue;
    set.take(call[i], score);
    ++removed;
    set.checkpoint();
  }
  if (removed > 0) set.end();
  call.reply.integer(removed);
}

void run_zcard(Call& call) { call.reply.integer(static_cast<int64_t>(SortedSet(call, 1).count())); }

void run_zscore(Call& call) {
  const SortedSet set(call, 1);
  double score = 0;
  set.score_of(call[2], score) ? call.reply.real(score) : call.reply.null();
}

void run_zmscore(Call& call) {
  const SortedSet set(call, 1);
  call.reply.array(call.size() - 2);
  for (size_t i = 2; i < call.size(); ++i) {
    double score = 0;
    set.score_of(call[i], score) ? call.reply.real(score) : call.reply.null();
  }
}

// Looks at all members before it.
void rank(Call& call, bool downwards) {
  const SortedSet set(call, 1);
  double score = 0;
  if (!set.score_of(call[2], score)) return call.reply.null();
  int64_t before = 0;
  set.visit_scores(downwards ? kInfinity : -kInfinity, downwards, 1024,
                   [&](std::string_view name, double) {
                     if (name == call[2]) return false;
                     ++before;
                     return true;
                   });
  call.reply.integer(before);
}
void run_zrank(Call& call) { rank(call, false); }
void run_zrevrank(Call& call) { rank(call, true); }

void reply_members(Call& call, const Members& members, bool with_scores) {
  const bool nested = with_scores && call.reply.version() >= 3;
  call.reply.array(members.size() * (with_scores && !nested ? 2 : 1));
  for (const auto& [name, score] : members) {
    if (nested) call.reply.array(2);
    call.reply.bulk(name);
    if (with_scores) call.reply.real(score);
  }
}

// What is done with each member of a range. It may be removed.
using EachMember = std::function<void(std::string_view name, double score)>;

// By place: [first, last], below 0 from the end; of the order that `downwards` says.
void visit_ranks(const SortedSet& set, int64_t begin, int64_t end, bool downwards,
                 const EachMember& visit) {
  const auto count = static_cast<int64_t>(set.count());
  if (begin < 0) begin = std::max<int64_t>(begin + count, 0);
  if (end < 0) end += count;
  end = std::min(end, count - 1);
  if (begin > end) return;
  int64_t at = 0;
  set.visit_scores(downwards ? kInfinity : -kInfinity, downwards, static_cast<uint64_t>(end) + 1,
                   [&](std::string_view name, double score) {
                     if (at++ < begin) return true;
                     visit(name, score);
                     return at <= end;
                   });
}

struct Limit {
  int64_t offset = 0;
  int64_t count = -1;  // all
};

void visit_range(const SortedSet& set, const Range& range, bool downwards, const Limit& limit,
                 const EachMember& visit) {
  if (limit.offset < 0 || limit.count == 0) return;
  int64_t left = limit.count;
  double from = downwards ? range.max.score : range.min.score;
  if (range.by_name) from = downwards ? kInfinity : -kInfinity;
  int64_t skip = limit.offset;
  set.visit_scores(from, downwards, 64, [&](std::string_view name, double score) {
    if (downwards ? range.above(score, name) : range.below(score, name)) return true;
    if (downwards ? range.below(score, name) : range.above(score, name)) return range.by_name;
    if (skip-- > 0) return true;
    visit(name, score);
    if (left > 0) --left;
    return left != 0;
  });
}

struct RangeArguments {
  enum class By : uint8_t { kRank, kScore, kName };
  By by = By::kRank;
  bool downwards = false;
  bool is_fixed = false;  // an older relative of ZRANGE: its name says by what, and where to
  bool with_scores = false;
  Limit limit = {};
  int64_t first = 0;  // by rank
  int64_t last = 0;
  Range range = {};
};

Range range_of(std::string_view min, std::string_view max, bool by_name) {
  return by_name ? Range{true, name_bound(min), name_bound(max)}
                 : Range{false, score_bound(min), score_bound(max)};
}

// The range from argument `first` on, and ZRANGE's options behind it.
void parse_range(const Call& call, size_t first, bool stores, RangeArguments& arguments) {
  using By = RangeArguments::By;
  bool has_direction = arguments.is_fixed;
  bool has_kind = arguments.is_fixed;
  for (size_t at = first + 2; at < call.size(); ++at) {
    const bool by_score = same_word(call[at], "BYSCORE");
    if (!stores && same_word(call[at], "WITHSCORES")) {
      arguments.with_scores = true;
    } else if (same_word(call[at], "LIMIT") && at + 2 < call.size()) {
      arguments.limit = {integer_of(call[at + 1]), integer_of(call[at + 2])};
      at += 2;
    } else if (!has_direction && same_word(call[at], "REV")) {
      arguments.downwards = has_direction = true;
    } else if (!has_kind && (by_score || same_word(call[at], "BYLEX"))) {
      arguments.by = by_score ? By::kScore : By::kName;
      has_kind = true;
    } else {
      throw_syntax();
    }
  }
  // A limit of -1 is none.
  if (arguments.limit.count != -1 && arguments.by == By::kRank) {
    throw CommandError(
        "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
  }
  if (arguments.with_scores && arguments.by == By::kName) {
    throw CommandError("ERR syntax error, WITHSCORES not supported in combination with BYLEX");
  }
  if (arguments.by == By::kRank) {
    arguments.first = integer_of(call[first]);
    arguments.last = integer_of(call[first + 1]);
    return;
  }
  // Downwards, the greater bound comes first.
  const size_t min = first + (arguments.downwards ? 1 : 0);
  const size_t max = first + (arguments.downwards ? 0 : 1);
  arguments.range = range_of(call[min], call[max], arguments.by == By::kName);
}

void visit_selected(const SortedSet& set, const RangeArguments& arguments,
                    const EachMember& visit) {
  if (arguments.by == RangeArguments::By::kRank) {
    return visit_ranks(set, arguments.first, arguments.last, arguments.downwards, visit);
  }
  visit_range(set, arguments.range, arguments.downwards, arguments.limit, visit);
}

void range(Call& call, RangeArguments arguments) {
  parse_range(call, 2, false, arguments);
  const SortedSet set(call, 1);
  ReplyRoom room = call.reply.room();
  Members members;
  visit_selected(set, arguments, [&](std::string_view name, double score) {
    room.take(name.size());
    members.emplace_back(name, score);
  });
  reply_members(call, members, arguments.with_scores);
}
void range(Call& call, RangeArguments::By by, bool downwards) {
  range(call, {.by = by, .downwards = downwards, .is_fixed = true});
}
void run_zrange(Call& call) { range(call, {}); }
void run_zrevrange(Call& call) { range(call, RangeArguments::By::kRank, true); }
void run_zrangebyscore(Call& call) { range(call, RangeArguments::By::kScore, false); }
void run_zrevrangebyscore(Call& call) { range(call, RangeArguments::By::kScore, true); }
void run_zrangebylex(Call& call) { range(call, RangeArguments::By::kName, false); }
void run_zrevrangebylex(Call& call) { range(call, RangeArguments::By::kName, true); }

// A sorted set that takes the place of another key.
class Result {
 public:
  Result(Keyspace& keys, std::string_view to) : keys_(keys), replacement_(keys, to, kType) {}
  // A member that it does not have yet.
  void add(std::string_view name, double score) {
    add_name(name, score);
    add_score(name, score);
  }
  // In two steps: by name, with a score that may change; and by score, once that is known.
  void add_name(std::string_view name, double score) {
    ++replacement_.header().count;
    set_score(name, score);
  }
  bool score_of(std::string_view name, double& score) {
    std::string_view value;
    if (!keys_.find_element(element_of_name(id(), name), value)) return false;
    score = score_in(value);
    return true;
  }
  void set_score(std::string_view name, double score) {
    replacement_.put(element_of_name(id(), name), value_of_score(score));
  }
  void add_scores() {
    if (replacement_.count() == 0) return;
    const std::string prefix = names_of(id());
    keys_.scan(prefix, false, replacement_.count(),
               [&](std::string_view raw, std::string_view value) {
                 if (!raw.starts_with(prefix)) return false;
                 add_score(name_of_element(raw), score_in(value));
                 return true;
               });
  }
  void finish(Call& call) {
    replacement_.finish(store::kNoExpiry);
    call.reply.integer(static_cast<int64_t>(replacement_.count()));
  }

 private:
  static constexpr Type kType = Type::kSortedSet;
  uint64_t id() { return replacement_.header().id; }
  void add_score(std::string_view name, double score) {
    replacement_.put(element_of_score(id(), score, name), "");
  }

  Keyspace& keys_;
  Replacement replacement_;
};

void run_zrangestore(Call& call) {
  RangeArguments arguments;
  parse_range(call, 3, true, arguments);
  Result result(call.keys(), call.key(1));
  const SortedSet set(call, 2);
  visit_selected(set, arguments,
                 [&](std::string_view name, double score) { result.add(name, score); });
  result.finish(call);
}

void count(Call& call, bool by_name) {
  const Range range = range_of(call[2], call[3], by_name);
  const SortedSet set(call, 1);
  int64_t members = 0;
  visit_range(set, range, false, {}, [&](std::string_view, double) { ++members; });
  call.reply.integer(members);
}
void run_zcount(Call& call) { count(call, false); }
void run_zlexcount(Call& call) { count(call, true); }

// Removes what `visit` calls it for, in parts.
template <typename Visit>
void remove_range(Call& call, Visit visit) {
  SortedSet set(call, 1);
  int64_t removed = 0;
  visit(set, [&](std::string_view name, double score) {
    set.take(name, score);
    ++removed;
    set.checkpoint();
  });
  if (removed > 0) set.end();
  call.reply.integer(removed);
}
void run_zremrangebyscore(Call& call) {
  const Range range = range_of(call[2], call[3], false);
  remove_range(call, [&](const SortedSet& set, const EachMember& remove) {
    visit_range(set, range, false, {}, remove);
  });
}
void run_zremrangebylex(Call& call) {
  const Range range = range_of(call[2], call[3], true);
  remove_range(call, [&](const SortedSet& set, const EachMember& remove) {
    visit_range(set, range, false, {}, remove);
  });
}
void run_zremrangebyrank(Call& call) {
  const int64_t first = integer_of(call[2]);
  const int64_t last = integer_of(call[3]);
  remove_range(call, [&](const SortedSet& set, const EachMember& remove) {
    visit_ranks(set, first, last, false, remove);
  });
}

void pop_by_score(Call& call, bool greatest) {
  if (call.size() > 3) throw_syntax();
  const bool one = call.size() == 2;
  const uint64_t wanted = one ? 1 : count_of(call[2]);
  SortedSet set(call, 1);
  Members members;
  if (wanted > 0) {
    ReplyRoom room = call.reply.room();
    set.visit_scores(greatest ? kInfinity : -kInfinity, greatest, wanted,
                     [&](std::string_view name, double score) {
                       room.take(name.size());
                       members.emplace_back(name, score);
                       return members.size() < wanted;
                     });
  }
  const bool nested = call.reply.version() >= 3 && !one;
  // What cannot be told is not removed.
  call.reply.array(members.size() * (nested ? 1 : 2));
  for (const auto& [name, score] : members) {
    if (nested) call.reply.array(2);
    call.reply.bulk(name);
    call.reply.real(score);
  }
  for (const auto& [name, score] : members) {
    set.take(name, score);
    set.checkpoint();
  }
  if (!members.empty()) set.end();
}
void run_zpopmin(Call& call) { pop_by_score(call, false); }
void run_zpopmax(Call& call) { pop_by_score(call, true); }

// BZPOPMIN and BZPOPMAX: of the first of these sets that has a member.
void pop_by_score_or_wait(Call& call, bool greatest) {
  const double seconds = timeout_of(call[call.size() - 1]);
  std::vector<std::string> raw;
  for (size_t i = 1; i + 1 < call.size(); ++i) {
    SortedSet set(call, i);
    raw.emplace_back(set.raw());
    Members members;
    set.visit_scores(greatest ? kInfinity : -kInfinity, greatest, 1,
                     [&](std::string_view name, double score) {
                       members.emplace_back(name, score);
                       return false;
                     });
    if (members.empty()) continue;
    const auto& [name, score] = members.front();
    set.take(name, score);
    set.end();
    call.reply.array(3);
    call.reply.bulk(call[i]);
    call.reply.bulk(name);
    return call.reply.real(score);
  }
  call.session.wait_for_keys(call, seconds, std::vector<std::string_view>(raw.begin(), raw.end()));
}
void run_bzpopmin(Call& call) { pop_by_score_or_wait(call, false); }
void run_bzpopmax(Call& call) { pop_by_score_or_wait(call, true); }

void run_zscan(Call& call) {
  scan_elements(
      call, Type::kSortedSet,
      [](std::string_view name, std::string_view value, std::vector<std::string>& out) {
        char text[40];
        out.emplace_back(name);
        out.emplace_back(RespReply::format_real(real_of_ordered(read_ordered(value)), text));
      });
}

void run_zrandmember(Call& call) {
  const int64_t count = call.size() == 2 ? 1 : random_count_of(call[2]);
  const bool scores = call.size() == 4 && same_word(call[3], "WITHSCORES");
  if (call.size() > (scores ? 4U : 3U)) throw_syntax();
  const SortedSet set(call, 1);
  if (call.size() == 2) {
    ReplyRoom room = call.reply.room();
    const auto chosen = set.choose(1, false, room);
    return chosen.empty() ? call.reply.null() : call.reply.bulk(chosen[0].first);
  }
  Members members;
  for (const auto& [name, value] : choose_with_repeats(set, count, true, call.reply.room())) {
    members.emplace_back(name, real_of_ordered(read_ordered(value)));
  }
  reply_members(call, members, scores);
}

enum class ScoredCombination : uint8_t { kUnion, kIntersection, kDifference };

// A set or sorted set that is combined with others. Members of a set count with score 1.
class Source : public Opened {
 public:
  Source(Call& call, size_t key_argument)
      : Source(call, key_argument, call.keys().find(call.key(key_argument)).type == Type::kSet) {}

  double score_in(std::string_view value) const { return is_set_ ? 1 : server::score_in(value); }
  bool score_of(std::string_view name, double& score) const {
    std::string_view value;
    if (!find(name, value)) return false;
    score = score_in(value);
    return true;
  }

 private:
  Source(Call& call, size_t key_argument, bool is_set)
      : Opened(call, key_argument, is_set ? Type::kSet : Type::kSortedSet), is_set_(is_set) {}

  bool is_set_;
};

// Calls `visit` for the members that all of them have, with what comes of the scores, or that the
// first one has and no other.
template <typename Weigh, typename Add>
void visit_common(const std::vector<Source>& sources, ScoredCombination combination,
                  const Weigh& weigh, const Add& add, const EachMember& visit) {
  const bool in_all = combination == ScoredCombination::kIntersection;
  // The smallest one is gone through, for an intersection; scores are added in the order of keys.
  const auto least =
      in_all ? std::ranges::min_element(sources, {}, &Source::count) : sources.begin();
  least->visit(0, least->count(), [&](std::string_view name, std::string_view value) {
    double sum = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      double score = 0;
      if (&source == &*least) {
        score = source.score_in(value);
      } else if (source.score_of(name, score) != in_all) {
        return true;
      }
      if (in_all || i == 0) sum = i == 0 ? weigh(i, score) : add(sum, weigh(i, score));
    }
    visit(name, sum);
    return true;
  });
}

// ZUNION, ZINTER, ZDIFF, with STORE: [to] keys [WEIGHTS ..] [AGGREGATE SUM|MIN|MAX] [WITHSCORES].
// Sets count with score 1.
void combine(Call& call, ScoredCombination combination, bool stores) {
  const size_t first = stores ? 3 : 2;
  const int64_t number = integer_of(call[first - 1]);
  if (number > 0 && static_cast<uint64_t>(number) > call.size() - std::min(call.size(), first)) {
    throw_syntax();
  }
  if (number < 1) {
    throw CommandError(fmt::format("ERR at least 1 input key is needed for '{}' command",
                                   call.session.last_command));
  }
  const auto keys = static_cast<size_t>(number);
  std::vector<Source> sources;  // all types are looked at before anything else
  for (size_t i = 0; i < keys; ++i) sources.emplace_back(call, first + i);
  std::vector<double> weights(keys, 1);
  std::string_view aggregate = "SUM";
  bool with_scores = false;
  const bool weighs = combination != ScoredCombination::kDifference;
  for (size_t i = first + keys; i < call.size(); ++i) {
    if (weighs && same_word(call[i], "WEIGHTS") && i + keys < call.size()) {
      try {
        for (double& weight : weights) weight = real_of(call[++i]);
      } catch (const CommandError&) {
        throw CommandError("ERR weight value is not a float");
      }
    } else if (!stores && same_word(call[i], "WITHSCORES")) {
      with_scores = true;
    } else if (weighs && same_word(call[i], "AGGREGATE") && i + 1 < call.size()) {
      ++i;
      aggregate = same_word(call[i], "MIN")   ? "MIN"
                  : same_word(call[i], "MAX") ? "MAX"
                  : same_word(call[i], "SUM") ? "SUM"
                                              : (throw_syntax(), "");
    } else {
      throw_syntax();
    }
  }
  const auto weigh = [&](size_t i, double score) {
    const double weighted = score * weights[i];
    return std::isnan(weighted) ? 0 : weighted;
  };
  const auto add = [&](double sum, double weighted) {
    if (aggregate == "MIN") return std::min(sum, weighted);
    if (aggregate == "MAX") return std::max(sum, weighted);
    return std::isnan(sum + weighted) ? 0 : sum + weighted;
  };
  // What is stored is written as it is found; what is told is collected.
  std::optional<Result> result;
  if (stores) result.emplace(call.keys(), call.key(1));
  Members members;
  ReplyRoom room = call.reply.room();
  if (combination != ScoredCombination::kUnion) {
    visit_common(sources, combination, weigh, add, [&](std::string_view name, double score) {
      if (result) return result->add(name, score);
      room.take(name.size());
      members.emplace_back(name, score);
    });
  } else if (result) {
    for (size_t i = 0; i < keys; ++i) {
      sources[i].visit(0, sources[i].count(), [&](std::string_view name, std::string_view value) {
        const double weighted = weigh(i, sources[i].score_in(value));
        double sum = 0;
        result->score_of(name, sum) ? result->set_score(name, add(sum, weighted))
                                    : result->add_name(name, weighted);
        return true;
      });
    }
    result->add_scores();
  } else {
    std::map<std::string, double, std::less<>> all;
    for (size_t i = 0; i < keys; ++i) {
      sources[i].visit(0, sources[i].count(), [&](std::string_view name, std::string_view value) {
        const double weighted = weigh(i, sources[i].score_in(value));
        const auto [at, is_new] = all.try_emplace(std::string(name), weighted);
        if (is_new) {
          room.take(name.size());
        } else {
          at->second = add(at->second, weighted);
        }
        return true;
      });
    }
    members.assign(all.begin(), all.end());
  }
  if (result) return result->finish(call);
  std::ranges::sort(members, {}, [](const auto& one) { return std::tie(one.second, one.first); });
  const bool pairs = with_scores && call.reply.version() >= 3;
  call.reply.array(with_scores && !pairs ? 2 * members.size() : members.size());
  for (const auto& [name, score] : members) {
    if (pairs) call.reply.array(2);
    call.reply.bulk(name);
    if (with_scores) call.reply.real(score);
  }
}
void run_zunionstore(Call& call) { combine(call, ScoredCombination::kUnion, true); }
void run_zinterstore(Call& call) { combine(call, ScoredCombination::kIntersection, true); }
void run_zdiffstore(Call& call) { combine(call, ScoredCombination::kDifference, true); }
void run_zunion(Call& call) { combine(call, ScoredCombination::kUnion, false); }
void run_zinter(Call& call) { combine(call, ScoredCombination::kIntersection, false); }
void run_zdiff(Call& call) { combine(call, ScoredCombination::kDifference, false); }

constexpr Command kSortedSetCommands[] = {
    {"bzpopmax", -3, kChange | kBlocks | kFast, 1, -2, 1, "sorted-set",
     "Pops the greatest once there is one", run_bzpopmax},
    {"bzpopmin", -3, kChange | kBlocks | kFast, 1, -2, 1, "sorted-set",
     "Pops the least once there is one", run_bzpopmin},
    {"zadd", -4, kChange | kFast, 1, 1, 1, "sorted-set", "Adds members with scores", run_zadd},
    {"zcard", 2, kFast, 1, 1, 1, "sorted-set", "Counts the members", run_zcard},
    {"zcount", 4, 0, 1, 1, 1, "sorted-set", "Counts members by score", run_zcount},
    {"zdiff", -3, 0, 0, 0, 0, "sorted-set", "Returns what the first set has and no other",
     run_zdiff},
    {"zdiffstore", -4, kChange, 1, 1, 1, "sorted-set", "Stores what the first has and no other",
     run_zdiffstore},
    {"zinter", -3, 0, 0, 0, 0, "sorted-set", "Returns what sets have in common", run_zinter},
    {"zunion", -3, 0, 0, 0, 0, "sorted-set", "Returns the members of all sets", run_zunion},
    {"zincrby", 4, kChange | kFast, 1, 1, 1, "sorted-set", "Adds to a score", run_zincrby},
    {"zinterstore", -4, kChange, 1, 1, 1, "sorted-set", "Stores what sets have in common",
     run_zinterstore},
    {"zlexcount", 4, 0, 1, 1, 1, "sorted-set", "Counts members by name", run_zlexcount},
    {"zmscore", -3, kFast, 1, 1, 1, "sorted-set", "Returns scores", run_zmscore},
    {"zpopmax", -2, kChange | kFast, 1, 1, 1, "sorted-set", "Returns and removes the greatest",
     run_zpopmax},
    {"zpopmin", -2, kChange | kFast, 1, 1, 1, "sorted-set", "Returns and removes the least",
     run_zpopmin},
    {"zrandmember", -2, 0, 1, 1, 1, "sorted-set", "Returns members by chance", run_zrandmember},
    {"zrange", -4, 0, 1, 1, 1, "sorted-set", "Returns a range of members", run_zrange},
    {"zrangebylex", -4, 0, 1, 1, 1, "sorted-set", "Returns members by name", run_zrangebylex},
    {"zrangebyscore", -4, 0, 1, 1, 1, "sorted-set", "Returns members by score", run_zrangebyscore},
    {"zrangestore", -5, kChange, 1, 2, 1, "sorted-set", "Stores a range of members",
     run_zrangestore},
    {"zrank", 3, 0, 1, 1, 1, "sorted-set", "Counts the members before one", run_zrank},
    {"zrem", -3, kChange | kFast, 1, 1, 1, "sorted-set", "Removes members", run_zrem},
    {"zremrangebylex", 4, kChange, 1, 1, 1, "sorted-set", "Removes members by name",
     run_zremrangebylex},
    {"zremrangebyrank", 4, kChange, 1, 1, 1, "sorted-set", "Removes members by place",
     run_zremrangebyrank},
    {"zremrangebyscore", 4, kChange, 1, 1, 1, "sorted-set", "Removes members by score",
     run_zremrangebyscore},
    {"zrevrange", -4, 0, 1, 1, 1, "sorted-set", "Returns a range of members, downwards",
     run_zrevrange},
    {"zrevrangebylex", -4, 0, 1, 1, 1, "sorted-set", "Returns members by name, downwards",
     run_zrevrangebylex},
    {"zrevrangebyscore", -4, 0, 1, 1, 1, "sorted-set", "Returns members by score, downwards",
     run_zrevrangebyscore},
    {"zrevrank", 3, 0, 1, 1, 1, "sorted-set", "Counts the members behind one", run_zrevrank},
    {"zscan", -3, 0, 1, 1, 1, "sorted-set", "Goes through the members, some at a time", run_zscan},
    {"zscore", 3, kFast, 1, 1, 1, "sorted-set", "Returns a score", run_zscore},
    {"zunionstore", -4, kChange, 1, 1, 1, "sorted-set", "Stores the members of all sets",
     run_zunionstore},
};

}  // namespace

std::span<const Command> sorted_set_commands() { return kSortedSetCommands; }

}  // namespace perdure::server
