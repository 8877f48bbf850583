#include "store/turn.h"

#include <algorithm>
#include <map>
#include <utility>

namespace perdure::store {

StoreTurn::StoreTurn(StoreImpl& store) : store_(store), is_touched_(store.partitions()) {
  touched_.reserve(store.partitions());
}

Partition& StoreTurn::touch(uint32_t number) {
  Partition& own =
      partition(number);  // throws if it cannot be read: then there is nothing to finish
  if (is_touched_[number] == 0) {
    is_touched_[number] = 1;
    touched_.push_back(number);
  }
  return own;
}

void StoreTurn::refuse(uint32_t number) const {
  if (store_.is_opening(number)) throw NotReady();
  store_.require_ready(number);  // throws what its recovery has thrown, or it is ready by now
}

void StoreTurn::require_ready(std::string_view key) const {
  static_cast<void>(partition(store_.place_of(key).number));
}

void StoreTurn::require_all_ready() const {
  if (all_ready_) [[likely]]
    return;
  for (uint32_t i = 0; i < store_.partitions(); ++i) static_cast<void>(partition(i));
  all_ready_ = true;
}

bool StoreTurn::is_all_ready() const {
  if (!all_ready_) all_ready_ = store_.progress().ready == store_.partitions();
  return all_ready_;
}

template <typename Write>
auto StoreTurn::with_all_room(Write write) {
  const bool was_all_ready = all_ready_;
  try {
    return write();
  } catch (const Error& error) {
    if (!pm::is_full(error)) throw;
    const auto opened = store_.progress();
    if (opened.ready + opened.failed < store_.partitions()) throw NotReady();
    if (!store_.give_up_snapshots() && was_all_ready) throw;
  }
  return write();  // what the others have given back meanwhile may do
}

bool StoreTurn::get(std::string_view key, uint64_t now_ms, Partition::Found& out) const {
  const auto [hash, number] = store_.place_of(key);
  const Partition& own = partition(number);
  return own.get_lazily(hash, key, [now_ms] { return now_ms; }, out, foreseen(hash, own));
}

void StoreTurn::prefetch(std::span<const std::string_view> keys) const {
  constexpr size_t kTogether = 32;
  std::pair<const Partition*, Sought> all[kTogether];
  while (!keys.empty()) {
    size_t count = 0;
    for (const std::string_view key : keys.first(std::min(kTogether, keys.size()))) {
      const auto [hash, number] = store_.place_of(key);
      if (!store_.is_ready(number)) continue;
      all[count++] = {&store_.shards_[number]->partition, {hash, key}};
    }
    for (int step = 0; step < PartitionIndex::kAheadSteps; ++step) {
      for (auto& [partition, sought] : std::span(all, count)) partition->prefetch(step, sought);
    }
    if (store_.is_ordered()) {
      for (const auto& [partition, sought] : std::span(all, count)) {
        foreseen_[sought.hash % kForeseen] = {
            partition, {.hash = sought.hash, .way = sought.way, .changes = sought.changes}};
      }
    }
    keys = keys.subspan(std::min(kTogether, keys.size()));
  }
}

bool StoreTurn::write(const WriteRequest& request, uint64_t now_ms, uint64_t* version) {
  const StoreImpl::Place place = store_.place_of(request.key);
  Partition& own = touch(place.number);
  const Sought* ahead = foreseen(place.hash, own);
  return with_all_room([&] { return own.put(place.hash, request, now_ms, version, ahead); });
}

bool StoreTurn::remove(std::string_view key, uint64_t now_ms) {
  const StoreImpl::Place place = store_.place_of(key);
  Partition& own = touch(place.number);
  return with_all_room([&] { return own.remove(place.hash, key, now_ms); });
}

uint64_t StoreTurn::records(uint64_t number) const {
  return partition(static_cast<uint32_t>(number)).records();
}

void StoreTurn::for_tags(uint64_t number, uint64_t first, uint64_t end, uint64_t now_ms,
                         const Partition::Visit& visit) const {
  partition(static_cast<uint32_t>(number)).for_tags(first, end, now_ms, visit);
}

bool StoreTurn::for_some(uint64_t number, uint64_t random, uint64_t now_ms,
                         const Partition::VisitUntil& visit) const {
  return partition(static_cast<uint32_t>(number)).for_some(random, now_ms, visit);
}

bool StoreTurn::takes_away(const Store::Batch& batch, uint64_t now_ms) const {
  std::map<std::string_view, const Store::Batch::Write*> last;  // of equal keys it stays
  for (const auto& write : batch.writes_) last[write.key] = &write;
  bool removes = false;
  uint64_t before = 0;
  uint64_t after = 0;
  // Of records in blocks, too, which have headers: what is kept for removals is a block.
  uint64_t blocks_before = 0;
  uint64_t blocks_after = 0;
  for (const auto& [key, write] : last) {
    const Partition& own = partition(store_.place_of(key).number);
    Partition::Found found{};
    if (get(key, now_ms, found)) {
      before += key.size() + found.value.size();
      blocks_before +=
          own.bytes_in_block({.key = key, .value = found.value, .expiry_ms = found.expiry_ms});
    }
    if (write->removal) {
      removes = true;
      continue;
    }
    after += key.size() + write->value.size();
    blocks_after +=
        own.bytes_in_block({.key = key, .value = write->value, .expiry_ms = write->expiry_ms});
  }
  return removes && after < before && blocks_after < blocks_before;
}

void StoreTurn::apply(const Store::Batch& batch, uint64_t now_ms) {
  // It ends with a fence of its own, which the batch needs: whether all of it is there is told from
  // what each partition's log ends with. Records of the turn that lie before it in these logs are
  // durable too.
  with_all_room([&] {
    try {
      store_.apply_once(batch);
    } catch (const Error& error) {
      if (!pm::is_full(error) || !takes_away(batch, now_ms)) throw;
      store_.apply_once(batch, true);
    }
  });
}

void StoreTurn::finish() {
  if (touched_.empty()) return;
  bool wanted = false;
  for (const uint32_t number : touched_) {
    partition(number).before_fence();
    wanted = wanted || partition(number).wants_fence();
  }
  // Orders the records of the turn before anybody is answered. A crash before it takes back
  // what nobody has heard of.
  if (wanted) store_.fence();
  for (const uint32_t number : touched_) {
    partition(number).after_fence();
    is_touched_[number] = 0;
  }
  touched_.clear();
}

}  // namespace perdure::store
