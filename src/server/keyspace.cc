#include "server/keyspace.h"

#include <algorithm>
#include <cstring>

#include "perdure/error.h"
#include "pm/heap.h"
#include "server/command_error.h"
#include "server/encoding.h"
#include "store/expiry_time.h"

namespace perdure::server {

namespace {

constexpr std::string_view kKeyPrefix{"\0k", 2};
constexpr std::string_view kElementPrefix{"\0e", 2};
constexpr std::string_view kDoomPrefix{"\0x", 2};
constexpr std::string_view kNotePrefix{"\0m", 2};
constexpr std::string_view kLocalPrefix{"\0l", 2};
constexpr std::string_view kMarker{"\0\xd7\x05\x1d", 4};

bool has_marker(std::string_view value) {
  return value.size() >= kMarker.size() &&
         std::memcmp(value.data(), kMarker.data(), kMarker.size()) == 0;
}

Type type_of_letter(char letter) {
  switch (letter) {
    case 'h':
      return Type::kHash;
    case 't':
      return Type::kSet;
    case 'l':
      return Type::kList;
    case 'z':
      return Type::kSortedSet;
    default:
      return Type::kString;
  }
}

char letter_of(Type type) {
  switch (type) {
    case Type::kHash:
      return 'h';
    case Type::kSet:
      return 't';
    case Type::kList:
      return 'l';
    case Type::kSortedSet:
      return 'z';
    case Type::kNone:
    case Type::kString:
      break;
  }
  return 's';
}

std::string doom_key(uint64_t id, uint64_t at_ms) {
  std::string key(kDoomPrefix);
  append_ordered(key, at_ms);
  append_ordered(key, id);
  return key;
}
uint64_t id_of_note(std::string_view key) { return read_ordered(key.substr(10)); }

}  // namespace

bool Keyspace::may_evict(std::string_view raw, std::string_view value) {
  for (const std::string_view own : {kElementPrefix, kDoomPrefix, kNotePrefix, kLocalPrefix}) {
    if (raw.starts_with(own)) return false;
  }
  return type_of(value) == Type::kString;
}

const char* to_string(Type type) noexcept {
  switch (type) {
    case Type::kNone:
      return "none";
    case Type::kString:
      return "string";
    case Type::kHash:
      return "hash";
    case Type::kSet:
      return "set";
    case Type::kList:
      return "list";
    case Type::kSortedSet:
      return "zset";
  }
  return "none";
}

Keyspace::Keyspace(store::StoreImpl& store, uint64_t first_id)
    : turn_(store), ordered_(store.is_ordered()), next_id_(first_id) {
  constexpr int kTries = 64;
  const uint32_t of_state = store.place_of(local_key(kFollowState)).number;
  for (int i = 0; i < kTries && follow_mark_.empty(); ++i) {
    std::string name = local_key("f" + std::to_string(i));
    if (store.place_of(name).number != of_state) follow_mark_ = std::move(name);
  }
  begin_turn();
}

std::string Keyspace::note_key(char what) { return std::string(kNotePrefix) + what; }

std::string Keyspace::local_key(std::string_view name) {
  return std::string(kLocalPrefix).append(name);
}

bool Keyspace::is_local(std::string_view raw) { return raw.starts_with(kLocalPrefix); }

void Keyspace::require_leader() const {
  if (!is_follower_) [[likely]]
    return;
  throw Error(ErrorCode::kReadOnly, "You can't write against a read only replica.");
}

void Keyspace::note_foreign_write(std::string_view raw) {
  if (raw.starts_with(kDoomPrefix)) has_doomed_ = true;
  // Read again when the next turn begins; until then there may be some.
  if (raw.starts_with(kNotePrefix)) {
    has_collections_ = has_databases_ = true;
    notes_read_ = false;
  }
  if (watchers_.empty()) [[likely]]
    return;
  if (!raw.starts_with(kElementPrefix)) return touch(raw);
  // Whose element it is stands in no record.
  for (const auto& [key, watchers] : watchers_) {
    for (Watcher* watcher : watchers) watcher->dirty_ = true;
  }
}

// Records that are the server's own, and no keys, as far as they are there without collections.
uint64_t Keyspace::own_records() const {
  uint64_t count = 0;
  store::Partition::Found found{};
  for (const std::string_view name : {kFollowState, kJournal, kObeyedAnew, kStaging}) {
    if (turn_.get(local_key(name), now_ms_, found)) ++count;
  }
  if (!follow_mark_.empty() && turn_.get(follow_mark_, now_ms_, found)) ++count;
  return count;
}

void Keyspace::read_notes() {
  try {
    store::Partition::Found found{};
    const bool collections = turn_.get(note_key('c'), now_ms_, found);
    const bool databases = turn_.get(note_key('d'), now_ms_, found);
    has_collections_ = collections_noted_ = collections;
    has_databases_ = databases_noted_ = databases;
  } catch (const store::NotReady&) {
    return;  // a later turn
  } catch (const Error&) {
    // Nobody can tell: there may be some, and they are noted again.
  }
  notes_read_ = true;
}

std::string_view Keyspace::raw_key(uint32_t database, std::string_view key, std::string& scratch) {
  if (database == 0 && (key.empty() || key[0] != '\0')) return key;
  scratch.assign(kKeyPrefix);
  scratch += static_cast<char>(database);
  scratch += key;
  return scratch;
}

Type Keyspace::type_of(std::string_view value) {
  if (value.size() <= kMarker.size() || !has_marker(value)) [[likely]]
    return Type::kString;
  return type_of_letter(value[kMarker.size()]);
}

std::optional<Keyspace::Name> Keyspace::name_of(std::string_view raw) {
  if (raw.empty() || raw[0] != '\0') return Name{0, raw};
  if (raw.size() < 3 || !raw.starts_with(kKeyPrefix)) return std::nullopt;
  return Name{static_cast<unsigned char>(raw[2]), raw.substr(3)};
}

Item Keyspace::item_of(const store::Partition::Found& found) const {
  Item item{.type = Type::kString,
            .text = found.value,
            .version = found.version,
            .expiry_ms = found.expiry_ms};
  const std::string_view value = found.value;
  if (value.size() <= kMarker.size() || !has_marker(value)) [[likely]]
    return item;
  std::string_view rest = value.substr(kMarker.size() + 1);
  item.type = type_of_letter(value[kMarker.size()]);
  if (item.type == Type::kString) {
    if (rest.size() < sizeof item.flags) {
      throw Error(ErrorCode::kCorrupt, "a value begins like one of the server's, and is none");
    }
    std::memcpy(&item.flags, rest.data(), sizeof item.flags);
    item.text = rest.substr(sizeof item.flags);
    return item;
  }
  if (rest.size() != sizeof item.collection) {
    throw Error(ErrorCode::kCorrupt, "the header of a collection has the wrong length");
  }
  std::memcpy(&item.collection, rest.data(), sizeof item.collection);
  return item;
}

Item Keyspace::find(std::string_view raw) const {
  require_shown();
  if (!group_.empty()) {
    if (const auto pending = group_.find(raw); pending != group_.end()) {
      if (!pending->second.value) return {};
      return item_of({*pending->second.value, 0, pending->second.expiry_ms});
    }
  }
  store::Partition::Found found{};
  if (!turn_.get(raw, now_ms_, found)) return {};
  return item_of(found);
}

bool Keyspace::find_element(std::string_view element, std::string_view& value) const {
  require_shown();
  if (!group_.empty()) {
    if (const auto pending = group_.find(element); pending != group_.end()) {
      if (!pending->second.value) return false;
      value = *pending->second.value;
      return true;
    }
  }
  store::Partition::Found found{};
  if (!turn_.get(element, now_ms_, found)) return false;
  value = found.value;
  return true;
}

// Writes. In a full pool, what is left of removed collections goes for it.
template <typename Write>
void Keyspace::with_room(Write write) {
  constexpr int kTries = 16;
  constexpr uint64_t kElements = 1024;
  for (int i = 0;; ++i) {
    try {
      return write();
    } catch (const Error& error) {
      if (!pm::is_full(error) || i == kTries) throw;
      turn_.finish();  // as between reap() of two turns
      if (!reap_some(kElements)) throw;
    }
  }
}

void Keyspace::write(std::string_view raw, std::string_view value, uint64_t expiry_ms) {
  with_room([&] { turn_.write({.key = raw, .value = value, .expiry_ms = expiry_ms}, now_ms_); });
}

void Keyspace::put(std::string_view raw, std::string_view value, uint64_t expiry_ms) {
  require_leader();
  if (!in_group_) {
    return write(raw, value, expiry_ms);
  }
  if (raw.size() > Store::kKeyBytesMax || value.size() > Store::kValueBytesMax) {
    throw Error(ErrorCode::kTooLarge, "a key or value is larger than the store takes");
  }
  turn_.require_ready(raw);
  group_bytes_ += std::min<size_t>(raw.size(), 2048) + std::min<size_t>(value.size(), 2048) + 64;
  keep_back(raw, Pending{std::string(value), expiry_ms});
}

// For the group.
void Keyspace::keep_back(std::string_view raw, Pending pending) {
  constexpr uint64_t kNodeBytes = 160;  // of the map, about
  const auto bytes_of = [&](const Pending& one) {
    return kNodeBytes + raw.size() + (one.value ? one.value->size() : 0);
  };
  const auto at = group_.lower_bound(raw);
  const bool is_there = at != group_.end() && at->first == raw;
  const uint64_t held = held_bytes_ - (is_there ? bytes_of(at->second) : 0) + bytes_of(pending);
  if (in_transaction_ && held > kTransactionBytesMax) {
    throw Error(ErrorCode::kTooLarge, "the transaction writes too much");
  }
  held_bytes_ = held;
  if (is_there) {
    at->second = std::move(pending);
  } else {
    group_.emplace_hint(at, std::string(raw), std::move(pending));
  }
}

bool Keyspace::erase(std::string_view raw) {
  require_leader();
  if (!in_group_) return turn_.remove(raw, now_ms_);
  const bool present = [&] {
    const auto pending = group_.find(raw);
    if (pending != group_.end()) return pending->second.value.has_value();
    store::Partition::Found found{};
    return turn_.get(raw, now_ms_, found);
  }();
  if (!present) return false;
  group_bytes_ += std::min<size_t>(raw.size(), 2048) + 64;
  keep_back(raw, Pending{std::nullopt, store::kNoExpiry});
  return true;
}

void Keyspace::note_internal(char what) { put(note_key(what), "", store::kNoExpiry); }

void Keyspace::doom(uint64_t id, uint64_t at_ms, std::string_view raw) {
  put(doom_key(id, at_ms), raw, store::kNoExpiry);
  has_doomed_ = true;
  next_expiry_ms_ = std::min(next_expiry_ms_, at_ms);
}

void Keyspace::doom_parts(uint64_t id, std::string_view raw) {
  doom(id, 0, raw);
  in_parts_ = id;
}

void Keyspace::undoom(uint64_t id, uint64_t at_ms) { erase(doom_key(id, at_ms)); }

// Of what is written over or removed: the elements go later.
void Keyspace::drop_old(const Item& item, std::string_view raw) {
  if (item.type == Type::kNone || item.type == Type::kString) return;
  if (item.expiry_ms != store::kNoExpiry) undoom(item.collection.id, item.expiry_ms);
  doom(item.collection.id, 0, raw);
}

std::string_view Keyspace::encode_string(std::string_view text, uint32_t flags) {
  if (flags == 0 && !has_marker(text)) return text;
  encoded_.assign(kMarker);
  encoded_ += 's';
  encoded_.append(reinterpret_cast<const char*>(&flags), sizeof flags);
  encoded_ += text;
  return encoded_;
}

void Keyspace::set_string(std::string_view raw, std::string_view text, uint32_t flags,
                          uint64_t expiry_ms) {
  set_string_over(has_collections_ ? find(raw) : Item{}, raw, text, flags, expiry_ms);
}

void Keyspace::set_string_over(const Item& item, std::string_view raw, std::string_view text,
                               uint32_t flags, uint64_t expiry_ms) {
  touch(raw);
  const bool is_first = !databases_noted_ && !raw.empty() && raw[0] == '\0';
  const std::string_view value = encode_string(text, flags);
  if (!is_first && (item.type == Type::kNone || item.type == Type::kString)) {
    return put(raw, value, expiry_ms);
  }
  const bool alone = !in_group_;
  in_group_ = true;
  try {
    put(raw, value, expiry_ms);
    drop_old(item, raw);
    if (is_first) note_internal('d');
    if (alone) commit_group();
  } catch (...) {
    if (alone) abandon_group();
    throw;
  }
}

bool Keyspace::remove(std::string_view raw) {
  const Item item = find(raw);
  if (!item) return false;
  touch(raw);
  if (item.type == Type::kString) return erase(raw);
  const bool alone = !in_group_;
  in_group_ = true;
  try {
    drop_old(item, raw);
    erase(raw);
    if (alone) commit_group();
  } catch (...) {
    if (alone) abandon_group();
    throw;
  }
  return true;
}

void Keyspace::set_expiry(std::string_view raw, const Item& item, uint64_t expiry_ms) {
  if (item.type == Type::kString) {
    const std::string text(item.text);  // a write may move what the item leads to
    return set_string_over({}, raw, text, item.flags, expiry_ms);
  }
  if (item.expiry_ms != store::kNoExpiry) undoom(item.collection.id, item.expiry_ms);
  if (expiry_ms != store::kNoExpiry) doom(item.collection.id, expiry_ms, raw);
  put_header(raw, item.type, item.collection, expiry_ms);
}

void Keyspace::rename(std::string_view from, const Item& item, std::string_view to) {
  const std::string text(item.text);
  const Item copy = item;
  const Item old = find(to);
  drop_old(old, to);
  if (copy.type == Type::kString) {
    set_string_over({}, to, text, copy.flags, copy.expiry_ms);
  } else {
    if (copy.expiry_ms != store::kNoExpiry) doom(copy.collection.id, copy.expiry_ms, to);
    put_header(to, copy.type, copy.collection, copy.expiry_ms);
  }
  touch(from);
  erase(from);
}

Collection Keyspace::new_collection() {
  if (!ordered_) {
    throw CommandError(
        "ERR this store has an index by hash; collections need one in the order of keys (start the "
        "server with --index ordered, of a store whose index is in PM a new one)");
  }
  require_leader();
  return {.id = ++next_id_};
}

void Keyspace::put_header(std::string_view raw, Type type, const Collection& collection,
                          uint64_t expiry_ms) {
  touch(raw);
  if (collection.count == 0) {
    if (expiry_ms != store::kNoExpiry) undoom(collection.id, expiry_ms);
    erase(raw);
    return;
  }
  if (!collections_noted_) {
    note_internal('c');
    if (!in_group_) has_collections_ = collections_noted_ = true;
  }
  if (!databases_noted_ && !raw.empty() && raw[0] == '\0') note_internal('d');
  std::string value(kMarker);
  value += letter_of(type);
  value.append(reinterpret_cast<const char*>(&collection), sizeof collection);
  put(raw, value, expiry_ms);
}

void Keyspace::put_element(std::string_view raw, std::string_view element, std::string_view value) {
  touch(raw);
  put(element, value, store::kNoExpiry);
}

void Keyspace::remove_element(std::string_view raw, std::string_view element) {
  touch(raw);
  erase(element);
}

void Keyspace::commit_group() {
  in_group_ = in_transaction_;
  if (group_.empty()) return;
  // What the group is, whatever comes: it is written, or it is not.
  const auto group = std::move(group_);
  group_.clear();
  group_bytes_ = held_bytes_ = 0;
  if (group.size() == 1) {
    const auto& [key, pending] = *group.begin();
    if (pending.value) {
      write(key, *pending.value, pending.expiry_ms);
    } else {
      turn_.remove(key, now_ms_);
    }
  } else {
    Store::Batch batch;
    for (const auto& [key, write] : group) {
      if (!write.value) {
        batch.remove(key);
      } else if (write.expiry_ms == store::kNoExpiry) {
        batch.put(key, *write.value);
      } else {
        batch.put(key, *write.value, store::time_of_expiry(write.expiry_ms));
      }
    }
    with_room([&] { turn_.apply(batch, now_ms_); });
    ++groups_;
  }
  const auto has = [&](char what) { return group.contains(note_key(what)); };
  if (has('c')) has_collections_ = collections_noted_ = true;
  if (has('d')) has_databases_ = databases_noted_ = true;
}

void Keyspace::abandon_group() {
  group_.clear();
  group_bytes_ = held_bytes_ = 0;
  in_parts_ = 0;
  in_group_ = in_transaction_ = false;
}

void Keyspace::checkpoint() {
  if (!wants_checkpoint()) return;
  commit_group();
  in_group_ = true;
}

void Keyspace::checkpoint_part() {
  if (in_transaction_ || (held_bytes_ <= kPartBytesMax && !wants_checkpoint())) return;
  commit_group();
  in_group_ = true;
}

void Keyspace::watch(Watcher& watcher, std::string_view raw, bool is_there) {
  std::vector<Watcher*>& all = watchers_[std::string(raw)];
  if (std::ranges::find(all, &watcher) != all.end()) return;
  all.push_back(&watcher);
  watcher.keys_.emplace_back(raw, is_there);
  watcher.bytes_ += raw.size();
}

bool Keyspace::is_watching(const Watcher& watcher, std::string_view raw) const {
  const auto found = watchers_.find(std::string(raw));
  return found != watchers_.end() &&
         std::ranges::find(found->second, &watcher) != found->second.end();
}

bool Keyspace::has_changed(const Watcher& watcher) const {
  return watcher.dirty_ || std::ranges::any_of(watcher.keys_, [&](const auto& one) {
           return one.second != static_cast<bool>(find(one.first));
         });
}

void Keyspace::forget(Watcher& watcher) {
  for (const auto& [key, was_there] : watcher.keys_) {
    const auto found = watchers_.find(key);
    if (found == watchers_.end()) continue;
    std::erase(found->second, &watcher);
    if (found->second.empty()) watchers_.erase(found);
  }
  watcher.keys_.clear();
  watcher.bytes_ = 0;
  watcher.dirty_ = false;
}

void Keyspace::wait_for(Waiter& waiter, std::string_view raw) {
  std::vector<Waiter*>& all = waiters_[std::string(raw)];
  if (std::ranges::find(all, &waiter) != all.end()) return;
  all.push_back(&waiter);
  waiter.awaited_.emplace_back(raw);
}

void Keyspace::stop_waiting(Waiter& waiter) {
  for (const std::string& key : waiter.awaited_) {
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) continue;
    std::erase(found->second, &waiter);
    if (found->second.empty()) waiters_.erase(found);
  }
  waiter.awaited_.clear();
}

void Keyspace::add_touched(std::string_view raw) {
  // Those of one command that come again, come soon.
  const auto is_it = [raw](const auto& one) { return one.first == raw; };
  constexpr ptrdiff_t kBack = 8;
  const auto some = std::min<ptrdiff_t>(std::ssize(*touched_), kBack);
  if (std::any_of(touched_->end() - some, touched_->end(), is_it)) return;
  touched_->emplace_back(raw, static_cast<bool>(find(raw)));
}

void Keyspace::touch(std::string_view raw) {
  if (touched_ != nullptr) [[unlikely]]
    add_touched(raw);
  if (!waiters_.empty()) [[unlikely]] {
    const auto waiting = waiters_.find(std::string(raw));
    if (waiting != waiters_.end()) {
      for (Waiter* waiter : waiting->second) waiter->wake();
    }
  }
  if (watchers_.empty()) [[likely]]
    return;
  const auto found = watchers_.find(std::string(raw));
  if (found == watchers_.end()) return;
  for (Watcher* watcher : found->second) watcher->dirty_ = true;
}

bool Keyspace::reap(uint64_t elements_max) { return !in_group_ && reap_some(elements_max); }

bool Keyspace::reap_some(uint64_t elements_max) {
  // A follower is told by its leader what goes.
  if (!ordered_ || !has_doomed_ || is_follower_) return false;
  if (next_expiry_ms_ > now_ms_ || !turn_.is_all_ready()) return false;
  constexpr uint64_t kNoteElements = 8;  // what a note costs: all partitions are looked at for it
  const size_t notes_max = elements_max / kNoteElements;
  std::vector<std::pair<std::string, std::string>> notes;
  bool has_others = false;
  const auto take_note = [&](std::string_view key, std::string_view) {
    if (!key.starts_with(kDoomPrefix) || key.size() != kDoomPrefix.size() + 16) return false;
    if (in_parts_ != 0 && id_of_note(key) == in_parts_) {
      has_others = true;
      return true;
    }
    std::string_view raw;
    if (find_element(key, raw)) notes.emplace_back(key, raw);
    return notes.size() < notes_max;
  };
  // Without values: behind the notes come clients' keys.
  scan(kDoomPrefix, false, notes_max, take_note, true);
  has_doomed_ = has_others || !notes.empty();
  if (notes.empty()) return false;
  next_expiry_ms_ = 0;
  for (const auto& [note, raw] : notes) {
    const uint64_t at_ms = read_ordered(std::string_view(note).substr(2));
    if (at_ms > now_ms_) {
      // In the order of their times.
      if (&note != &notes.front().first) break;
      next_expiry_ms_ = std::min(at_ms, now_ms_ + 1000);
      return false;
    }
    const uint64_t cost = kNoteElements + reap_one(note, at_ms, raw, elements_max);
    elements_max -= std::min(elements_max, cost);
    if (elements_max == 0) break;
  }
  return true;
}

// Removes elements of the collection that the note names, or the note; returns how many elements.
uint64_t Keyspace::reap_one(const std::string& note, uint64_t at_ms, std::string_view raw,
                            uint64_t elements_max) {
  const uint64_t id = id_of_note(note);
  const Item item = find(raw);
  if (at_ms != 0 && item && item.collection.id == id) {
    turn_.remove(note, now_ms_);  // its expiry has changed since
    return 0;
  }
  std::string prefix(kElementPrefix);
  append_ordered(prefix, id);
  std::vector<std::string> elements;
  const auto take = [&](std::string_view key, std::string_view) {
    if (!key.starts_with(prefix)) return false;
    elements.emplace_back(key);
    return elements.size() < elements_max;
  };
  scan(prefix, false, elements_max, take, true);
  for (const std::string& element : elements) turn_.remove(element, now_ms_);
  // The note goes in a turn after the one that has removed the last elements: a crash may keep the
  // removal of one record and not that of another.
  if (elements.empty()) turn_.remove(note, now_ms_);
  return elements.size();
}

}  // namespace perdure::server
