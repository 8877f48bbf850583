#include "server/replica_writer.h"

#include <fmt/core.h>

#include <algorithm>

#include "pm/heap.h"
#include "store/expiry_time.h"
#include "store/hash.h"

namespace perdure::server {

namespace {

// About so much is done while nobody else is served.
constexpr size_t kCopyStepBytes = size_t{64} << 10;
constexpr size_t kPieceBytes = size_t{8} << 20;
constexpr size_t kMovedBytes = size_t{1} << 20;  // about, at a time, beside the largest

std::string state_key() { return Keyspace::local_key(Keyspace::kFollowState); }
std::string journal_key() { return Keyspace::local_key(Keyspace::kJournal); }
std::string anew_key() { return Keyspace::local_key(Keyspace::kObeyedAnew); }
std::string piece_key(uint64_t number) { return Keyspace::local_key("j" + std::to_string(number)); }
std::string ballast_key(uint64_t number) {
  return Keyspace::local_key("b" + std::to_string(number));
}

std::string staging_key() { return Keyspace::local_key(Keyspace::kStaging); }
// What the keys of a copy that is made beside another begin with, and what stands before all of
// them.
constexpr std::string_view kStaged = "n/";
constexpr std::string_view kBeforeStaged = "n.";
const std::string& staged_prefix() {
  static const std::string prefix = Keyspace::local_key(kStaged);
  return prefix;
}

std::optional<Store::Time> time_of_expiry(uint64_t ms) {
  if (ms == store::kNoExpiry) return std::nullopt;
  return store::time_of_expiry(ms);
}

[[noreturn]] void throw_misformed(const char* what) {
  throw Error(ErrorCode::kCorrupt, fmt::format("what the leader sends has no sense: {}", what));
}

}  // namespace

FollowState ReplicaWriter::read_state() const {
  store::Partition::Found found{};
  if (!keys_.turn().get(state_key(), keys_.now_ms(), found)) return {};
  return FollowState::decode(found.value);
}

void ReplicaWriter::write_state(const FollowState& state) {
  const std::string& mark = keys_.follow_mark();
  store::Partition::Found found{};
  if (!mark.empty() && !keys_.turn().get(mark, keys_.now_ms(), found)) {
    keys_.turn().write({.key = mark, .value = "1"}, keys_.now_ms());
  }
  // Behind all that was written before: it says what is there. And the mark is there whenever it
  // is.
  keys_.finish_turn();
  keys_.turn().write({.key = state_key(), .value = state.encode()}, keys_.now_ms());
  keys_.finish_turn();
}

void ReplicaWriter::remove_state() {
  keys_.finish_turn();
  keys_.turn().remove(state_key(), keys_.now_ms());
  keys_.finish_turn();  // the state, before the mark that is there whenever it is
  if (keys_.follow_mark().empty()) return;
  try {
    keys_.turn().remove(keys_.follow_mark(), keys_.now_ms());
    keys_.finish_turn();
  } catch (const Error& error) {
    // It tells nothing where the absence of the state can be read; the next start removes it.
    if (!pm::is_full(error)) throw;
  }
}

void ReplicaWriter::mend_mark(bool has_state) {
  const std::string& mark = keys_.follow_mark();
  store::Partition::Found found{};
  if (mark.empty() || keys_.turn().get(mark, keys_.now_ms(), found) == has_state) return;
  if (has_state) {
    keys_.turn().write({.key = mark, .value = "1"}, keys_.now_ms());
  } else {
    keys_.turn().remove(mark, keys_.now_ms());
  }
  keys_.finish_turn();
}

void ReplicaWriter::note_anew(bool is_said) {
  if (has_noted_anew() == is_said) return;
  if (is_said) {
    keys_.turn().write({.key = anew_key(), .value = "1"}, keys_.now_ms());
  } else {
    keys_.turn().remove(anew_key(), keys_.now_ms());
  }
  keys_.finish_turn();
}

bool ReplicaWriter::has_noted_anew() const {
  store::Partition::Found found{};
  return keys_.turn().get(anew_key(), keys_.now_ms(), found);
}

// Some more records; false if there are no more. Where keys have an order, those that are staged
// stand together.
bool ReplicaWriter::next_some(bool only_staged, Sweep& sweep,
                              std::vector<store::RecordCopy>& some) const {
  store::StoreImpl& store = keys_.turn().store();
  store::CopyPlace& place = sweep.place;
  if (place.has_ended) ++sweep.partition, place = {};
  if (sweep.partition >= store.partitions()) return false;
  const bool skips = only_staged && store.is_ordered();
  if (skips && !place.has_begun) {
    place.after = Keyspace::local_key(kBeforeStaged);
    place.has_begun = true;
  }
  store.copy_some(sweep.partition, nullptr, place, some);
  if (only_staged) {
    const auto is_other = [](const store::RecordCopy& record) {
      return !record.key.starts_with(staged_prefix());
    };
    if (skips && !some.empty() && is_other(some.back())) place.has_ended = true;
    std::erase_if(some, is_other);
  }
  return true;
}

bool ReplicaWriter::look_at_some(Sweep& sweep) const {
  std::vector<store::RecordCopy> some;
  return next_some(false, sweep, some);
}

bool ReplicaWriter::clear_some(Clear what, Sweep& sweep) {
  std::vector<store::RecordCopy> some;
  if (!next_some(what == Clear::kStaged, sweep, some)) return false;
  for (const store::RecordCopy& record : some) {
    const std::string& key = record.key;
    // With all the others pieces of a journal go, and what is staged.
    const bool stays = what == Clear::kAll
                           ? key == state_key() || key == anew_key() || key == keys_.follow_mark()
                           : what == Clear::kReplaced && Keyspace::is_local(key);
    if (stays) continue;
    if (!Keyspace::is_local(key)) keys_.note_foreign_write(key);
    keys_.turn().remove(key, keys_.now_ms());
  }
  return true;
}

void ReplicaWriter::take_copy(std::string_view& chunk, bool stages) {
  SyncEntry entry;
  std::string_view rest = chunk;
  std::string staged = staged_prefix();
  for (size_t bytes = 0; bytes < kCopyStepBytes && take_entry(rest, entry);) {
    if (entry.kind != SyncEntry::Kind::kPut || entry.goes_on || Keyspace::is_local(entry.key)) {
      throw_misformed("in a copy there are records only");
    }
    std::string_view key = entry.key;
    if (stages) {
      staged.resize(staged_prefix().size());
      key = staged.append(entry.key);
      largest_staged_ = std::max(largest_staged_, entry.key.size() + entry.value.size());
    } else {
      keys_.note_foreign_write(key);
    }
    keys_.turn().write({.key = key, .value = entry.value, .expiry_ms = entry.number},
                       keys_.now_ms());
    chunk = rest;
    bytes += entry.key.size() + entry.value.size() + 64;
    ++applied_;
  }
}

void ReplicaWriter::begin_staging() {
  largest_staged_ = 0;
  keys_.turn().write({.key = staging_key(), .value = "1"}, keys_.now_ms());
  keys_.finish_turn();  // the note, before what it speaks of
}

bool ReplicaWriter::has_staged() const {
  store::Partition::Found found{};
  return keys_.turn().get(staging_key(), keys_.now_ms(), found);
}

bool ReplicaWriter::drop_staged_some(Sweep& sweep) {
  if (clear_some(Clear::kStaged, sweep)) return true;
  remove_ballast();
  keys_.finish_turn();  // what it speaks of, before the note
  keys_.turn().remove(staging_key(), keys_.now_ms());
  keys_.finish_turn();
  return false;
}

void ReplicaWriter::begin_placing(FollowState& state) {
  // What is moved at a time is there twice: so much room is kept until more of it is made by
  // removals.
  write_ballast(largest_staged_ + kMovedBytes);
  FollowState placing = state;
  placing.status = FollowState::Status::kClearing;
  write_state(placing);
  state = std::move(placing);
  remove_ballast();
}

bool ReplicaWriter::place_some(FollowState& state, Sweep& sweep) {
  const auto advance_to = [&](FollowState::Status status) {
    FollowState next = state;
    next.status = status;
    write_state(next);
    state = std::move(next);
    sweep = {};
  };
  if (state.status == FollowState::Status::kClearing) {
    if (!clear_some(Clear::kReplaced, sweep)) advance_to(FollowState::Status::kMoving);
    return true;
  }
  std::vector<store::RecordCopy> some;
  if (next_some(true, sweep, some)) {
    // Not more of them at a time than there is room for twice.
    for (size_t begin = 0, end = 0; begin < some.size(); begin = end) {
      for (size_t bytes = 0; end < some.size() && bytes < kMovedBytes; ++end) {
        const store::RecordCopy& record = some[end];
        const std::string_view key = std::string_view(record.key).substr(staged_prefix().size());
        keys_.note_foreign_write(key);
        keys_.turn().write({.key = key, .value = record.value, .expiry_ms = record.expiry_ms},
                           keys_.now_ms());
        bytes += record.key.size() + record.value.size();
      }
      keys_.finish_turn();  // the records, before those that they were made of go
      for (size_t i = begin; i < end; ++i) keys_.turn().remove(some[i].key, keys_.now_ms());
      keys_.finish_turn();  // the removals, before the room of what they remove is used again
    }
    return true;
  }
  keys_.finish_turn();
  keys_.turn().remove(staging_key(), keys_.now_ms());
  remove_ballast();
  advance_to(FollowState::Status::kFollowing);
  return false;
}

// Takes so much room as long values do, which are not moved together.
void ReplicaWriter::write_ballast(uint64_t bytes) {
  const std::string piece(std::min<uint64_t>(bytes, kPieceBytes), '\0');
  try {
    for (uint64_t i = 0; bytes > 0; ++i) {
      const uint64_t some = std::min<uint64_t>(bytes, piece.size());
      keys_.turn().write({.key = ballast_key(i), .value = std::string_view(piece).substr(0, some)},
                         keys_.now_ms());
      keys_.finish_turn();  // each before the next one: see remove_numbered()
      bytes -= some;
    }
  } catch (const Error&) {
    remove_ballast();
    throw;
  }
}

void ReplicaWriter::remove_ballast() { remove_numbered(ballast_key); }

// The last one first, and each removal before the next one, as they were written the other way
// round: whatever a crash keeps has no gap, behind which some would not be found.
void ReplicaWriter::remove_numbered(std::string (*key)(uint64_t number)) {
  store::Partition::Found found{};
  uint64_t count = 0;
  while (keys_.turn().get(key(count), keys_.now_ms(), found)) ++count;
  while (count > 0) {
    keys_.turn().remove(key(--count), keys_.now_ms());
    keys_.finish_turn();
  }
}

ReplicaWriter::Unit ReplicaWriter::take_unit(std::string_view& chunk) {
  Unit unit{.bytes = chunk};
  SyncEntry entry;
  do {
    if (!take_entry(chunk, entry)) throw_misformed("a unit does not end");
    if (entry.kind != SyncEntry::Kind::kPosition) {
      if (!entry.goes_on) throw_misformed("a unit ends without a position");
      if (Keyspace::is_local(entry.key)) throw_misformed("a record is the leader's own");
      // Of a long value a record has a reference.
      unit.size += std::min<size_t>(entry.key.size(), 2048) +
                   std::min<size_t>(entry.value.size(), 2048) + 64;
    }
    unit.has_prefix = unit.has_prefix || entry.kind == SyncEntry::Kind::kRemovePrefix;
    unit.entries.push_back(entry);
  } while (entry.goes_on);
  unit.bytes.remove_suffix(chunk.size());
  return unit;
}

// The positions behind the unit. Throws kCorrupt if it does not go on where the state is.
void ReplicaWriter::advance(FollowState& state, const Unit& unit) {
  for (const SyncEntry& entry : unit.entries) {
    if (entry.partition >= state.positions.size()) throw_misformed("there is no such partition");
    if (entry.kind != SyncEntry::Kind::kPosition) continue;
    if (entry.number <= state.positions[entry.partition]) {
      throw_misformed("a position goes back");
    }
    state.positions[entry.partition] = entry.number;
  }
}

void ReplicaWriter::apply_some(std::string_view& chunk, FollowState& state) {
  const size_t bytes_max = keys_.turn().block_bytes() / 3;
  std::vector<Unit> units;
  size_t bytes = 0;
  std::string_view rest = chunk;
  while (!rest.empty() && bytes < bytes_max) {
    std::string_view behind = rest;
    Unit unit = take_unit(behind);
    if (unit.has_prefix) {
      // By itself.
      if (!units.empty()) break;
      apply_with_journal(unit, state);
      chunk = behind;
      return;
    }
    bytes += unit.size;
    units.push_back(std::move(unit));
    rest = behind;
  }
  if (units.empty()) return;
  try {
    apply(units, state);
    chunk = rest;
    return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTooLarge) throw;
  }
  // Those of one of our partitions are too many for a block: the first one alone.
  units.resize(1);
  try {
    apply(units, state);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTooLarge) throw;
    apply_with_journal(units.front(), state);
  }
  chunk.remove_prefix(units.front().bytes.size());
}

void ReplicaWriter::apply(const std::vector<Unit>& units, FollowState& state) {
  FollowState after = state;
  Store::Batch batch;
  for (const Unit& unit : units) {
    advance(after, unit);
    for (const SyncEntry& entry : unit.entries) {
      if (entry.kind == SyncEntry::Kind::kPut) {
        batch.put(entry.key, entry.value, time_of_expiry(entry.number));
      } else if (entry.kind == SyncEntry::Kind::kRemove) {
        batch.remove(entry.key);
      } else {
        continue;
      }
      keys_.note_foreign_write(entry.key);
      ++applied_;
    }
  }
  batch.put(state_key(), after.encode());
  // Durable on return, all of it or, if a crash comes before, nothing.
  keys_.turn().apply(batch, keys_.now_ms());
  state = std::move(after);
}

void ReplicaWriter::apply_with_journal(const Unit& unit, FollowState& state) {
  FollowState after = state;
  advance(after, unit);
  const uint64_t now_ms = keys_.now_ms();
  uint64_t pieces = 0;
  std::string record;
  try {
    for (std::string_view rest = unit.bytes; !rest.empty(); ++pieces) {
      const std::string_view piece = rest.substr(0, kPieceBytes);
      keys_.turn().write({.key = piece_key(pieces), .value = piece}, now_ms);
      keys_.finish_turn();  // as in write_ballast()
      rest.remove_prefix(piece.size());
    }
    // Room for the writes, before there is no way back.
    write_ballast(room_of(unit));
    record.assign(reinterpret_cast<const char*>(&pieces), sizeof pieces);
    record += after.encode();
    // The pieces are durable, before the record that says that they are there.
    keys_.turn().write({.key = journal_key(), .value = record}, now_ms);
  } catch (const Error&) {
    remove_ballast();
    remove_pieces();  // the room that they take, most likely, is what is missing
    throw;
  }
  keys_.finish_turn();  // that, before the first of the writes
  remove_ballast();
  // If the writes come to no end, nobody sees a part of the unit.
  const bool was_hidden = keys_.is_hidden();
  keys_.set_hidden(true);
  finish_journal();
  keys_.set_hidden(was_hidden);
  state = std::move(after);
}

// What writing it takes, at most: blocks of their own for long values, and one for each partition.
uint64_t ReplicaWriter::room_of(const Unit& unit) const {
  const uint64_t block_bytes = keys_.turn().block_bytes();
  const uint64_t inline_max = std::min<uint64_t>(2048, block_bytes / 16);
  uint64_t bytes = 0;
  for (const SyncEntry& entry : unit.entries) {
    if (entry.kind == SyncEntry::Kind::kPosition) continue;
    const uint64_t size = entry.key.size() + entry.value.size() + 128;
    bytes += size > inline_max ? pm::Heap::block_bytes(size) : size;
  }
  const uint64_t partitions = keys_.turn().store().partitions();
  return bytes + std::min<uint64_t>(partitions, unit.entries.size()) * block_bytes;
}

bool ReplicaWriter::has_journal() const {
  store::Partition::Found found{};
  return keys_.turn().get(journal_key(), keys_.now_ms(), found);
}

void ReplicaWriter::finish_journal() {
  store::Partition::Found found{};
  const uint64_t now_ms = keys_.now_ms();
  if (keys_.turn().get(journal_key(), now_ms, found)) {
    uint64_t pieces = 0;
    if (found.value.size() < sizeof pieces) throw_misformed("the journal is damaged");
    std::memcpy(&pieces, found.value.data(), sizeof pieces);
    const FollowState after = FollowState::decode(found.value.substr(sizeof pieces));
    if (!goes_on(read_state(), after)) return drop_journal();
    std::string bytes;
    for (uint64_t i = 0; i < pieces; ++i) {
      if (!keys_.turn().get(piece_key(i), now_ms, found)) throw_misformed("a piece is not there");
      bytes += found.value;
    }
    write_one_by_one(bytes, after.positions.size());
    keys_.finish_turn();  // the writes, before it is said that they are there
    Store::Batch batch;
    batch.put(state_key(), after.encode());
    batch.remove(journal_key());
    keys_.turn().apply(batch, keys_.now_ms());
  }
  remove_pieces();
}

// Whether the journal's state comes directly behind that one. One that does not is of another time:
// what it says has been applied, or was given up, and others may have written since.
bool ReplicaWriter::goes_on(const FollowState& now, const FollowState& after) {
  if (now.status != FollowState::Status::kFollowing || now.follower != after.follower ||
      now.identity != after.identity || now.run != after.run ||
      now.positions.size() != after.positions.size()) {
    return false;
  }
  for (size_t i = 0; i < now.positions.size(); ++i) {
    if (now.positions[i] > after.positions[i]) return false;
  }
  return true;
}

void ReplicaWriter::drop_journal() {
  keys_.turn().remove(journal_key(), keys_.now_ms());
  keys_
      // the record, before the pieces that it speaks of, and before any other state
      .finish_turn();
  remove_pieces();
}

// Pieces that no journal speaks of.
void ReplicaWriter::remove_pieces() { remove_numbered(piece_key); }

void ReplicaWriter::write_one_by_one(std::string_view bytes, size_t partitions) {
  const Unit unit = take_unit(bytes);
  const uint64_t now_ms = keys_.now_ms();
  for (const SyncEntry& entry : unit.entries) {
    keys_.note_foreign_write(entry.key);
    switch (entry.kind) {
      case SyncEntry::Kind::kPut:
        keys_.turn().write({.key = entry.key, .value = entry.value, .expiry_ms = entry.number},
                           now_ms);
        break;
      case SyncEntry::Kind::kRemove:
        keys_.turn().remove(entry.key, now_ms);
        break;
      case SyncEntry::Kind::kRemovePrefix:
        remove_prefix(entry.key, entry.partition, partitions);
        break;
      case SyncEntry::Kind::kPosition:
        break;
    }
    ++applied_;
  }
}

// Removes the records whose keys begin so and are, with the leader, in that one of its
// `partitions`: what the others have may be older here, or newer.
void ReplicaWriter::remove_prefix(std::string_view prefix, uint32_t of, size_t partitions) {
  store::StoreImpl& store = keys_.turn().store();
  std::vector<store::RecordCopy> some;
  for (uint32_t number = 0; number < store.partitions(); ++number) {
    for (store::CopyPlace place; !place.has_ended;) {
      store.copy_some(number, nullptr, place, some);
      for (const store::RecordCopy& record : some) {
        if (!record.key.starts_with(prefix) || Keyspace::is_local(record.key)) continue;
        const uint32_t there =
            store::partition_of(store::hash_of(record.key), static_cast<uint32_t>(partitions));
        if (there != of) continue;
        keys_.note_foreign_write(record.key);
        keys_.turn().remove(record.key, keys_.now_ms());
      }
    }
  }
}

}  // namespace perdure::server
