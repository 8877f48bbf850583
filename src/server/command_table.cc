#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "server/command_error.h"
#include "server/commands.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

constexpr size_t kNameBytesMax = 24;
constexpr size_t kPlaces = 1024;  // a power of two, several times as many as there are commands

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c; }

size_t place_of(std::string_view lower_case) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : lower_case) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return (hash ^ hash >> 29) & (kPlaces - 1);
}

std::vector<Command> gather() {
  std::vector<Command> all;
  for (const std::span<const Command> part :
       {connection_commands(), server_commands(), key_commands(), string_commands(), bit_commands(),
        hash_commands(), set_commands(), list_commands(), sorted_set_commands(), channel_commands(),
        transaction_commands()}) {
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

const Command* find_command(std::string_view name) {
  static const std::array<const Command*, kPlaces> places = make_places();
  if (name.size() > kNameBytesMax) return nullptr;
  char text[kNameBytesMax];
  for (size_t i = 0; i < name.size(); ++i) text[i] = lower(name[i]);
  const std::string_view wanted(text, name.size());
  for (size_t place = place_of(wanted); places[place] != nullptr;
       place = (place + 1) & (kPlaces - 1)) {
    if (places[place]->name == wanted) return places[place];
  }
  return nullptr;
}

std::string_view Call::key(size_t i, std::string& buffer) const {
  return Keyspace::raw_key(session.database, arguments[i], buffer);
}

int64_t integer_of(std::string_view text) {
  int64_t value = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end) {
    throw CommandError("ERR value is not an integer or out of range");
  }
  return value;
}

double real_of(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  double value = 0;
  const char* begin = digits.data();
  const char* end = begin + digits.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest != end || std::isnan(value) || digits.starts_with('+')) {
    throw CommandError("ERR value is not a valid float");
  }
  return value;
}

bool same_word(std::string_view text, std::string_view upper_case) {
  return text.size() == upper_case.size() &&
         std::ranges::equal(text, upper_case, [](char a, char b) { return upper(a) == b; });
}

void throw_syntax() { throw CommandError("ERR syntax error"); }

Item require_type(Call& call, std::string_view raw, Type type) {
  const Item item = call.keys().find(raw);
  if (item && item.type != type) {
    throw CommandError("WRONGTYPE Operation against a key holding the wrong kind of value");
  }
  return item;
}

bool fits_pattern(std::string_view pattern, std::string_view text) {
  // Where the last star stands, and how much of the text it takes: the way back is only ever to that one.
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
