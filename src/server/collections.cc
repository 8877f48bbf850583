#include "server/collections.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <unordered_set>

#include "server/command_error.h"
#include "server/encoding.h"
#include "server/resp_session.h"
#include "store/hash.h"

namespace perdure::server {

namespace {

constexpr size_t kIdEnd = 10;               // 0 'e' id
constexpr size_t kNameBegin = kIdEnd + 9;   // 'm' hash
constexpr size_t kScoreBegin = kIdEnd + 1;  // 's'
// So that a cursor of SCAN is an exact number in all languages.
constexpr uint64_t kHashMask = (uint64_t{1} << 48) - 1;

uint64_t hash_of_name(std::string_view name) { return store::hash_of(name) & kHashMask; }

std::string elements_of(uint64_t collection, char kind) {
  std::string key{"\0e", 2};
  append_ordered(key, collection);
  key += kind;
  return key;
}

std::mt19937_64& random_numbers() {
  static thread_local std::mt19937_64 random(std::random_device{}());
  return random;
}

}  // namespace

std::string names_of(uint64_t collection) { return elements_of(collection, 'm'); }
std::string scores_of(uint64_t collection) { return elements_of(collection, 's'); }

std::string element_of_name(uint64_t collection, std::string_view name) {
  std::string key = names_of(collection);
  append_ordered(key, hash_of_name(name));
  key += name;
  return key;
}
std::string element_of_index(uint64_t collection, uint64_t index) {
  std::string key = names_of(collection);
  append_ordered(key, index);
  return key;
}
std::string element_of_score(uint64_t collection, double score, std::string_view name) {
  std::string key = scores_of(collection);
  append_ordered(key, ordered_of_real(score));
  key += name;
  return key;
}
std::string_view name_of_element(std::string_view raw) { return raw.substr(kNameBegin); }
uint64_t index_of_element(std::string_view raw) { return read_ordered(raw.substr(kIdEnd + 1)); }
double score_of_element(std::string_view raw) {
  return real_of_ordered(read_ordered(raw.substr(kScoreBegin)));
}
std::string_view name_of_score(std::string_view raw) { return raw.substr(kScoreBegin + 8); }

Opened::Opened(Call& call, size_t key_argument, Type type)
    : Opened(call.keys(), call.key(key_argument), type) {}

Opened::Opened(Keyspace& keys, std::string_view raw, Type type)
    : keys_(&keys), raw_(raw), type_(type) {
  const Item item = keys.find(raw);
  if (item && item.type != type) {
    throw CommandError("WRONGTYPE Operation against a key holding the wrong kind of value");
  }
  exists_ = static_cast<bool>(item);
  header_ = item.collection;
  expiry_ms_ = item.expiry_ms;
}

void Opened::begin() {
  if (exists_) return;
  header_ = keys_->new_collection();
  expiry_ms_ = store::kNoExpiry;
  exists_ = true;
}

void Opened::end() {
  if (exists_) keys_->put_header(raw_, type_, header_, expiry_ms_);
}

void Opened::checkpoint() {
  if (!keys_->wants_checkpoint()) return;
  end();
  keys_->checkpoint();
}

bool Opened::find(std::string_view name, std::string_view& value) const {
  return exists_ && keys_->find_element(element_of_name(header_.id, name), value);
}
void Opened::put(std::string_view name, std::string_view value) {
  keys_->put_element(raw_, element_of_name(header_.id, name), value);
}
void Opened::remove(std::string_view name) {
  keys_->remove_element(raw_, element_of_name(header_.id, name));
}

void Opened::visit(uint64_t from_hash, uint64_t wanted, const Visit& visit) const {
  scan(from_hash, wanted, visit, false);
}
void Opened::visit_names(uint64_t from_hash, uint64_t wanted, const VisitName& visit) const {
  scan(
      from_hash, wanted, [&](std::string_view name, std::string_view) { return visit(name); },
      true);
}

void Opened::scan(uint64_t from_hash, uint64_t wanted, const Visit& visit, bool names_only) const {
  if (!exists_) return;
  const std::string prefix = names_of(header_.id);
  std::string from = prefix;
  append_ordered(from, from_hash);
  keys_->scan(
      from, false, wanted,
      [&](std::string_view raw, std::string_view value) {
        return raw.starts_with(prefix) && visit(name_of_element(raw), value);
      },
      names_only);
}

std::vector<std::pair<std::string, std::string>> Opened::choose(uint64_t count, bool values,
                                                                ReplyRoom& room) const {
  std::vector<std::pair<std::string, std::string>> chosen;
  if (!exists_) return chosen;
  const auto add = [&](std::string_view name) {
    std::string_view value;
    if (values) find(name, value);
    room.take(name.size() + value.size());
    chosen.emplace_back(name, value);
    return chosen.size() < count;
  };
  if (count >= header_.count) {
    visit_names(0, header_.count, add);
    return chosen;
  }
  std::unordered_set<std::string> seen;
  const auto add_new = [&](std::string_view name) {
    if (!seen.emplace(name).second) return true;
    add(name);
    return false;
  };
  while (chosen.size() < count) {
    const size_t before = chosen.size();
    visit_names(random_numbers()() & kHashMask, 2, add_new);
    if (chosen.size() == before) visit_names(0, 2, add_new);
  }
  return chosen;
}

void scan_elements(Call& call, Type type,
                   const std::function<void(std::string_view name, std::string_view value,
                                            std::vector<std::string>& out)>& tell) {
  const uint64_t cursor = cursor_of(call[2]);
  const Opened opened(call, 1, type);
  if (!opened.exists()) return reply_scan(call, 0, {});  // whatever else is said
  const ScanArguments arguments = parse_scan(call, 3);
  std::vector<std::string> found;
  ReplyRoom room = call.reply.room();
  uint64_t visited = 0;
  uint64_t last = 0;
  uint64_t next = 0;
  opened.visit(cursor, arguments.count + 1, [&](std::string_view name, std::string_view value) {
    const uint64_t hash = hash_of_name(name);
    if (visited >= arguments.count && hash != last) {
      next = hash;
      return false;
    }
    ++visited;
    last = hash;
    if (!fits_pattern(arguments.pattern, name)) return true;
    room.take(name.size() + value.size());
    tell(name, value, found);
    return true;
  });
  reply_scan(call, next, found);
}

Collection& Replacement::header() {
  if (!has_begun_) {
    header_ = keys_.new_collection();
    if (!keys_.in_transaction()) keys_.doom_parts(header_.id, to_);
    has_begun_ = true;
  }
  return header_;
}

void Replacement::put(std::string_view element, std::string_view value) {
  keys_.put_element(to_, element, value);
  keys_.checkpoint_part();
}

void Replacement::finish(uint64_t expiry_ms) {
  keys_.remove(to_);
  if (header_.count > 0) {
    if (!keys_.in_transaction()) keys_.undoom(header_.id, 0);
    if (expiry_ms != store::kNoExpiry) keys_.doom(header_.id, expiry_ms, to_);
    keys_.put_header(to_, type_, header_, expiry_ms);
  }
}

void copy_collection(Keyspace& keys, const Item& item, std::string_view to) {
  const Item from = item;
  Replacement replacement(keys, to, from.type);
  Collection& header = replacement.header();
  header.count = from.collection.count;
  header.first = from.collection.first;
  std::string prefix = names_of(from.collection.id);
  const std::string old_prefix = prefix.substr(0, kIdEnd);
  const std::string new_prefix = names_of(header.id).substr(0, kIdEnd);
  keys.scan(old_prefix, false, header.count, [&](std::string_view raw, std::string_view value) {
    if (!raw.starts_with(old_prefix)) return false;
    replacement.put(new_prefix + std::string(raw.substr(kIdEnd)), value);
    return true;
  });
  replacement.finish(from.expiry_ms);
}

}  // namespace perdure::server
