// Snapshots of a partition. The index leads to the newest record of each key; of those that are
// superseded or removed while there are snapshots that saw them, a table keeps the places.
// Compaction moves them as it does records that count, but as dead ones, which no recovery takes
// for a key's.
#include <algorithm>
#include <cstring>
#include <new>

#include "store/hash.h"
#include "store/partition.h"

namespace perdure::store {

uint64_t Partition::take_snapshot() {
  require_usable();
  auto snapshots = snapshots_ == nullptr ? std::make_unique<Snapshots>() : nullptr;
  const uint64_t version = next_version_ - 1;
  (snapshots != nullptr ? *snapshots : *snapshots_).versions.insert(version);
  if (snapshots != nullptr) snapshots_ = std::move(snapshots);
  return version;
}

void Partition::release_snapshot(uint64_t version) {
  auto& versions = snapshots_->versions;
  reserve_garbage(snapshots_->saved.size());  // may throw: then all stays as it is
  versions.erase(versions.find(version));
  snapshots_->saved.erase_if([&](const auto& item) {
    const Saved& saved = item.second;
    const auto reader = versions.lower_bound(saved.version);
    if (reader != versions.end() && sees(*reader, saved)) return false;
    drop(saved);
    return true;
  });
  if (!versions.empty()) return;
  snapshots_.reset();
  for (Block& block : blocks_) block.pinned = 0;  // what has expired is not needed any more
}

// It is garbage now.
void Partition::drop(const Saved& saved) {
  RecordView record;
  try {
    record = view_at(saved.location);
  } catch (const Error&) {
    accounts_exact_ = false;  // it is damaged, and goes on to take its room
    return;
  }
  discount(record, blocks_[saved.location.slot()]);
  discount_saved(record, blocks_[saved.location.slot()]);
  if (record.has(kOverflow)) account_garbage(record, saved.location, saved.until);
}

void Partition::require_complete() const {
  if (snapshots_->incomplete) throw std::bad_alloc();
}

// In the order of keys, or of tags.
std::string Partition::place_of(uint64_t tag, std::string_view key) const {
  if (config_.ordered) return std::string(key);
  const uint64_t word = __builtin_bswap64(tag);
  return {reinterpret_cast<const char*>(&word), sizeof word};
}

// Returns whether a snapshot sees the record, which then goes on to count in its block.
bool Partition::save(const RecordView& record, Location location, uint64_t until) {
  if (!snapshot_needs(record.version)) return false;
  try {
    const std::string_view key = key_of(record);
    snapshots_->saved.insert(place_of(HashIndex::tag_of(hash_of(key)), key),
                             {location, record.version, until});
    count_saved(record, blocks_[location.slot()]);
    return true;
  } catch (const std::bad_alloc&) {
    snapshots_->incomplete = true;
    return false;
  }
}

Partition::Saved* Partition::find_saved(const RecordView& record, Location location) const {
  if (snapshots_ == nullptr || !record.has_value()) return nullptr;
  if (record.has(kOverflow) && !has_overflow(record)) return nullptr;
  const std::string_view key = key_of(record);
  const std::string place = place_of(HashIndex::tag_of(hash_of(key)), key);
  auto& all = snapshots_->saved;
  for (auto at = all.lower_bound(place); at != all.end() && at->first == place; ++at) {
    if (at->second.location == location) return &at->second;
  }
  return nullptr;
}

void Partition::move_saved(const RecordView& record, Saved& saved) {
  const Location from = saved.location;
  RecordParts parts{.flags = record.flags,
                    .version = record.version,
                    .superseded = record.superseded,
                    .expiry_ms = record.expiry_ms,
                    .key = key_of(record),
                    .value = record.value,
                    .overflow = record.overflow};
  parts.flags |= kDead;
  parts.flags &= ~kGroupGoesOn;
  if (!still_invalidates(record, blocks_[from.slot()].incarnation)) parts.flags &= ~kSupersedes;
  saved.location = append_moved(parts);
  discount(record, blocks_[from.slot()]);
  discount_saved(record, blocks_[from.slot()]);
  count_saved(view_at(saved.location), blocks_[saved.location.slot()]);
  moved_bytes_ += parts.bytes();
}

bool Partition::get_at(uint64_t snapshot, uint64_t hash, std::string_view key, uint64_t now_ms,
                       Found& out) const {
  require_usable();
  require_complete();
  RecordView record;
  Location location;
  const uint64_t entry = find(hash, key, record);
  if (entry != PartitionIndex::kNone) location = index_.at(entry);
  if (entry == PartitionIndex::kNone || record.version > snapshot) {
    const std::string place = place_of(HashIndex::tag_of(hash), key);
    const auto& all = snapshots_->saved;
    auto at = all.lower_bound(place);
    const auto is_it = [&] {
      if (!sees(snapshot, at->second)) return false;
      record = view_at(at->second.location);
      return key_of(record) == key;
    };
    while (at != all.end() && at->first == place && !is_it()) ++at;
    if (at == all.end() || at->first != place) {
      require_certain();
      return false;
    }
    location = at->second.location;
  }
  if (record.version < uncertain_below_) throw_uncertain();
  if (has_expired(record, now_ms)) return false;
  if (pool_.verifies_payload()) require_intact(location, record);
  out = {value_of(record), record.version, record.expiry_ms};
  return true;
}

void Partition::list_hashes() const {
  listed_.clear();
  if (index_.size() == 0) return;
  std::vector<uint64_t> hashes;  // all of them, or, if a block is damaged, none are listed
  for_blocks([&](const RecordView&, Location, uint64_t hash) { hashes.push_back(hash); });
  const auto place = [](uint64_t hash) { return std::pair(HashIndex::tag_of(hash), hash); };
  std::ranges::sort(hashes, {}, place);
  const auto twice = std::ranges::unique(hashes);
  hashes.erase(twice.begin(), twice.end());
  listed_ = std::move(hashes);
}

void Partition::for_tags_at(uint64_t snapshot, uint64_t first, uint64_t end, uint64_t now_ms,
                            const Visit& visit) const {
  require_usable();
  require_certain();
  require_complete();
  const auto meet = [&](Location location) {
    const RecordView record = view_at(location);
    if (record.version > snapshot || has_expired(record, now_ms)) return;
    if (pool_.verifies_payload()) require_intact(location, record);
    visit(key_of(record), {value_of(record), record.version, record.expiry_ms});
  };
  for_tags(first, end, meet);
  const auto stop = snapshots_->saved.lower_bound(place_of(end, {}));
  for (auto at = snapshots_->saved.lower_bound(place_of(first, {})); at != stop; ++at) {
    if (sees(snapshot, at->second)) meet(at->second.location);
  }
}

// Merges what the index leads to with what was saved. No key has both, as the snapshot sees it.
void Partition::scan_at(uint64_t snapshot, const ScanFrom& from, uint64_t now_ms,
                        const VisitUntil& visit) const {
  require_certain();
  require_complete();
  std::vector<const std::pair<std::string, Saved>*> saved;
  const auto& all = snapshots_->saved;
  const auto in_reach = [&](const std::string& key) {
    if (from.whole) return true;
    const int order = std::string_view(key).compare(from.key);
    return order == 0 ? !from.beyond : (order > 0) != from.downwards;
  };
  // As many as the scan will ask for, and the one that makes `visit` end it.
  const auto take = [&](const auto& item) {
    if (!sees(snapshot, item.second) || !in_reach(item.first)) return true;
    if (has_expired(view_at(item.second.location), now_ms)) return true;
    saved.push_back(&item);
    return saved.size() <= from.expected;
  };
  if (from.downwards) {
    auto at = from.whole ? all.end() : all.upper_bound(from.key);
    for (bool more = true; more && at != all.begin();) {
      --at;
      more = take(*at);
    }
  } else {
    auto at = from.whole ? all.begin() : all.lower_bound(from.key);
    while (at != all.end() && take(*at)) ++at;
  }
  size_t next = 0;
  bool goes_on = true;
  const auto give_saved = [&] {
    const Location location = saved[next++]->second.location;
    const RecordView record = view_at(location);
    require_intact(location, record);
    goes_on = visit(key_of(record), {value_of(record), record.version, record.expiry_ms});
  };
  const auto comes_first = [&](std::string_view key) {
    return (std::string_view(saved[next]->first) < key) != from.downwards;
  };
  scan(from, now_ms, [&](std::string_view key, const Found& found) {
    while (goes_on && next < saved.size() && comes_first(key)) give_saved();
    if (!goes_on) return false;
    if (found.version > snapshot) return true;
    return goes_on = visit(key, found);
  });
  while (goes_on && next < saved.size()) give_saved();
}

}  // namespace perdure::store
