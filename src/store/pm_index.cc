#include "store/pm_index.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "index/entries.h"

namespace perdure::store {

namespace {

constexpr const char* kDefaultStructure = "cceh";

const CatalogEntry& structure_named(std::string_view name) {
  std::string names;
  for (const CatalogEntry& entry : index::structures()) {
    const Traits& traits = entry.traits;
    const bool fits =
        traits.concurrent &&
        std::ranges::find(traits.kinds, std::pair(Kind::kU64, Kind::kU64)) != traits.kinds.end();
    if (!fits) continue;
    if (entry.name == name) return entry;
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("option index_structure: '{}' cannot be the index of a store; there are: {}",
                  name, names));
}

}  // namespace

PmIndex::Structure::Structure(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  entry = &structure_named(name.empty() ? kDefaultStructure : name);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("option index_structure: '{}' is no option of an index; write NAME=VALUE",
                      one));
    }
    options[std::string(one.substr(0, equals))] = one.substr(equals + 1);
  }
}

PmIndex::PmIndex(Pool& pool, uint64_t annex, uint64_t salt, uint64_t owner,
                 const Structure& structure)
    : pool_(pm::impl_of(pool)),
      annex_(pool_, annex, fmt::format("store-index-{:016x}", salt), owner) {
  if (annex_.is_used()) {
    const CatalogEntry& made = structure_named(annex_.entry().type);
    try {
      index_ = made.open(pool, annex_.name(), {});
    } catch (const Error& error) {
      // Who only reads can do without, as the log is the truth.
      if (error.code() != ErrorCode::kCorrupt || !pool_.read_only()) throw;
    }
  } else if (!pool_.read_only()) {
    make(pool, *structure.entry, structure.options);
  }
}

// Or notes that there is no room for it.
void PmIndex::make(Pool& pool, const CatalogEntry& entry, const OptionMap& options) {
  try {
    index_ = entry.create(pool, annex_.name(), Kind::kU64, Kind::kU64, options);
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    in_dram_ = true;
  }
}

void PmIndex::will_forget(uint32_t partition) const {
  const std::lock_guard held(mutex_);
  announced_.insert(partition);
}

std::vector<uint64_t> PmIndex::places_of(uint32_t partition) const {
  const std::lock_guard held(mutex_);
  if (auto found = places_.extract(partition); !found.empty()) return std::move(found.mapped());
  announced_.insert(partition);
  find_places();
  return std::move(places_.extract(partition).mapped());
}

bool PmIndex::find_announced() const {
  const std::lock_guard held(mutex_);
  if (announced_.empty() || index_ == nullptr) return true;
  try {
    if ((*index_).check([](const std::string&) {}) != 0) return false;
    find_places();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return false;
  }
}

void PmIndex::find_places() const {
  // Partitions that are open already go on telling the structure of theirs; what is looked for
  // stays as it is.
  std::map<uint32_t, std::vector<uint64_t>> places;
  (*index_).for_each([&](Datum key, Datum) {
    const uint64_t owner = PmPartitionIndex::partition_of(key.word());
    const auto number = static_cast<uint32_t>(owner);
    if (owner == number && announced_.contains(number)) places[number].push_back(key.word());
  });
  for (const uint32_t one : announced_) places_[one] = std::move(places[one]);
  announced_.clear();
}

void PmIndex::make_anew(Pool& pool) {
  const CatalogEntry& made = structure_named(annex_.entry().type);
  index_.reset();
  const pm::DirectoryEntry none = pm::PoolImpl::free_annex();
  pm::Heap::Txn txn(pool_.heap());
  txn.redo(&annex_.entry(), &none, sizeof none);  // wholly or not at all
  txn.commit_redo([] {});
  make(pool, made, {});
}

void PlaceTable::clear(uint64_t expected) {
  size_ = 0;
  const uint64_t enough = std::bit_ceil(std::max<uint64_t>(4 * expected, 64));
  if (items_.size() > 2 * enough) {
    try {
      std::vector<Item> smaller(enough, Item{kEmpty, 0});
      std::swap(items_, smaller);
      shift_ = 64 - std::countr_zero(items_.size());
      return;
    } catch (const std::bad_alloc&) {
      // It keeps what it has.
    }
  }
  std::ranges::fill(items_, Item{kEmpty, 0});
}

void PlaceTable::grow(uint64_t count) {
  if (!keeps_empty_words_) {
    const auto full = std::ranges::count_if(
        items_, [](const Item& item) { return item.place != kEmpty && item.word != 0; });
    count -= size_ - static_cast<uint64_t>(full);
    size_ = static_cast<uint64_t>(full);
  }
  std::vector<Item> before(std::bit_ceil(std::max<uint64_t>(2 * count, 64)), Item{kEmpty, 0});
  std::swap(items_, before);
  shift_ = 64 - std::countr_zero(items_.size());
  for (const Item& item : before) {
    if (item.place == kEmpty || (item.word == 0 && !keeps_empty_words_)) continue;
    items_[position_of(item.place)] = item;
  }
}

uint64_t PmPartitionIndex::word_at(uint64_t place) const {
  if (const PlaceTable::Item* item = fresh_.find(place); item != nullptr) return item->word;
  if (const PlaceTable::Item* item = covered_.find(place); item != nullptr) return item->word;
  return word_in_structure(place);
}

uint64_t PmPartitionIndex::word_in_structure(uint64_t place) const {
  if (!asks_) return 0;
  try {
    if (!(*index_).lookup(place, value_)) return 0;
  } catch (const Error& error) {
    met_damage_ = met_damage_ || error.code() == ErrorCode::kCorrupt;
    throw;
  }
  const uint64_t word = value_.word();
  if (!is_sound(place, word)) [[unlikely]] {
    met_damage_ = true;
    index_.pool().throw_corrupt("an entry of a store's index is damaged");
  }
  return word;
}

void PmPartitionIndex::require_sound(const char* what) const {
  if (!is_damaged()) [[likely]]
    return;
  index_.pool().throw_corrupt(
      fmt::format("the index in PM of partition {} of a store is damaged, so that {}; close the "
                  "store and open it to "
                  "write: that makes the index anew from the records",
                  partition_of(base_), what));
}

void PmPartitionIndex::require_room() {
  if (lost_) [[unlikely]]
    require_sound("nobody knows whether a key that it does not have is absent");
  if (waiting_.size() < kWaitingMax) [[likely]]
    return;
  tell_some();
  if (waiting_.size() < kWaitingMax) return;
  if (damaged_) index_.pool().throw_corrupt("the index of a store is damaged");
  throw Error(
      ErrorCode::kPoolFull,
      fmt::format("{}: the pool has no room for more entries of a store's index; remove records",
                  index_.pool().mapping().path()));
}

void PmPartitionIndex::insert(uint64_t hash, Location location) {
  uint64_t place = place_of(hash);
  uint64_t word = word_at(place);
  // Behind those that have it, and are other keys'.
  while (Location::of_word(word) != Location()) {
    if ((word & kGoesOn) == 0) set(place, (word & kSaid) | kGoesOn);
    place = next(place);
    word = word_at(place);
  }
  set(place, location.word() | (word & kGoesOn));
  ++size_;
}

void PmPartitionIndex::erase(uint64_t entry) {
  const uint64_t word = found_.place == entry ? found_.word : word_at(entry);
  set(entry, word & kGoesOn);
  --size_;
}

void PmPartitionIndex::gather() {
  fresh_.reserve(waiting_.size() + untold_);
  const auto take = [&](const PlaceTable::Item* item) {
    if (item != nullptr && fresh_.find(item->place) == nullptr) fresh_.set(item->place, item->word);
  };
  for (const uint64_t position : waiting_) take(covered_.item_at(position));
  for (uint64_t i = told_; i < covered_.positions(); ++i) take(covered_.item_at(i));
}

void PmPartitionIndex::cover() {
  std::swap(covered_, fresh_);
  fresh_.clear(covered_.size());
  told_ = 0;
  untold_ = covered_.size();
  waiting_.clear();
  try_next_ = 0;
}

// A process that dies in remove() may leave the removal in the caches only. The next one does not
// find the entry, and so makes nothing durable; after a power failure the entry would be back, and
// lead astray, once there is a checkpoint that does not speak of it. So an entry says, durably,
// that its key is gone before it is removed: what comes back then leads nowhere. An upsert or
// update that a process dies in is told once more before another checkpoint, and is durable then.
// Costs one persist more.
void PmPartitionIndex::remove_from_structure(uint64_t place) {
  if ((*index_).update(place, sealed(place, 0))) (*index_).remove(place);
}

// False if there is no room for it, or the structure is damaged.
bool PmPartitionIndex::tell(const PlaceTable::Item& item) {
  try {
    if (item.word == 0) {
      remove_from_structure(item.place);
    } else {
      (*index_).upsert(item.place, item.word);
    }
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) {
      damaged_ = true;
    } else if (!pm::is_full(error)) {
      throw;
    }
    return false;
  }
}

void PmPartitionIndex::tell_some() {
  const uint64_t budget = 2 * set_ + 2;
  set_ = 0;
  if (!waiting_.empty() && !damaged_) {
    if (try_next_ >= waiting_.size()) try_next_ = 0;
    if (tell(*covered_.item_at(waiting_[try_next_]))) {
      waiting_[try_next_] = waiting_.back();
      waiting_.pop_back();
    } else {
      ++try_next_;
    }
  }
  tell_next(budget);
}

bool PmPartitionIndex::tell_all() {
  tell_next(covered_.size());
  return waiting_.empty();
}

// Of what the structure has not been told at all. What it does not take waits.
void PmPartitionIndex::tell_next(uint64_t count) {
  for (; told_ < covered_.positions() && count > 0; ++told_) {
    const PlaceTable::Item* item = covered_.item_at(told_);
    if (item == nullptr) continue;
    --count;
    --untold_;
    waiting_.push_back(told_);
    if (!damaged_ && tell(*item)) waiting_.pop_back();
  }
}

void PmPartitionIndex::load(uint64_t size, PlaceTable changes) {
  size_ = size;
  fresh_ = std::move(changes);
  cover();
  asks_ = index_.get() != nullptr;
}

void PmPartitionIndex::begin_anew() {
  load(0, {});
  if (is_in_dram()) fresh_.drop_empty_words();
  asks_ = false;
  met_damage_ = lost_ = false;
}

void PmPartitionIndex::clear_structure() {
  if (index_.get() == nullptr) return;
  const auto partition = static_cast<uint32_t>(partition_of(base_));
  for (const uint64_t place : index_.places_of(partition)) remove_from_structure(place);
}

void PmPartitionIndex::forget_told() {
  if (untold_ == 0 && waiting_.empty()) {
    covered_.clear(0);
    told_ = covered_.positions();
  }
  if (fresh_.size() == 0) fresh_.clear(0);
}

}  // namespace perdure::store
