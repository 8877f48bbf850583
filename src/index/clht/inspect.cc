// Looking at a whole table: iteration, statistics, verification.
#include <fmt/core.h>

#include "index/clht/core.h"
#include "index/structure.h"

namespace perdure::index::clht {

template <typename Policy, typename Content>
void Core<Policy, Content>::collect_chain(Table& table, uint64_t home, std::vector<HashSlot>& out,
                                          const Seen& seen) const {
  uint64_t steps = 0;
  for (Bucket* bucket = &table.main(home); bucket != nullptr;) {
    for (uint32_t s = 0; s < kSlots; ++s) {
      if (!is_live(table, *bucket, s, home)) continue;
      out.push_back({pm::load_relaxed(bucket->hash(s)), pm::load_relaxed(bucket->value(s))});
    }
    bucket = table.next_of(*bucket);
    if (bucket != nullptr && !table.count_step(steps, seen)) return;
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::collect_at(uint64_t hash, std::vector<HashSlot>& out) const {
  for (;;) {
    const State* state = state_.load(std::memory_order_acquire);
    for (Table* table : {state->table, state->next}) {
      if (table == nullptr) continue;
      const uint64_t home = table->home_of(hash);
      pm::GenerationLock lock = table->lock_of(home);
      const uint64_t stamp = lock.begin_read();
      if ((pm::load_acquire(table->main(home).next) & kMoved) != 0) {
        if (table == state->next || state->next == nullptr) require_replaced(state);
        continue;
      }
      out.clear();
      collect_chain(*table, home, out, {&lock, stamp});
      if (!lock.validate(stamp)) break;
      return (home + 1) << (64 - table->bits());  // 0 after the last
    }
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  const State* state = state_.load(std::memory_order_acquire);
  meet(pool_.offset_of(&root_), sizeof(Root));
  for (const Table* table : {state->table, state->next}) {
    if (table != nullptr) meet(table->offset(), table->bytes());
  }
  for (uint32_t i = 0; i < state->table->extent_count(); ++i) {
    meet(state->table->extent_offset(i), Table::extent_bytes_for(state->table->bits()));
  }
  if constexpr (Content::kOutOfPlace) {
    std::vector<HashSlot> slots;
    uint64_t hash = 0;
    do {
      hash = collect_at(hash, slots);
      for (const HashSlot& slot : slots) meet(slot.value, records_.bytes(slot.value));
    } while (hash != 0);
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::check_chain(Table& table, uint64_t home, std::vector<bool>& linked,
                                        const std::function<void(const std::string&)>& fail) const {
  const auto where = [&] { return fmt::format("'{}', bucket {}", name_, home); };
  for (const Bucket* bucket = &table.main(home);;) {
    if (!table.is_link(bucket->next)) return fail(where() + ": a link leads to no bucket");
    const uint64_t number = table.next_number(*bucket);
    if (number == Table::kNone) break;
    bucket = &table.overflow(number);
    if (linked[number]) return fail(where() + ": its chain leads to a bucket of another one");
    linked[number] = true;
    if (Owner{table.overflow(number).lock}.home() != home) {
      fail(where() + ": an overflow bucket of its chain was claimed by another one");
    }
  }
  std::vector<HashSlot> slots;
  collect_chain(table, home, slots);
  KeysMet<Content> keys(records_);
  for (const HashSlot& slot : slots) {
    if (table.home_of(slot.hash) != home) fail(where() + ": a record belongs to another bucket");
    check_slot(records_, keys, slot, [&](const char* what) { fail(where() + ": " + what); });
  }
}

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::check(const std::function<void(const std::string&)>& report) const {
  uint64_t found = 0;
  const auto fail = [&](const std::string& text) { report(text), ++found; };
  const pm::EpochManager::Guard guard(epochs_);
  const State* state = state_.load(std::memory_order_acquire);
  std::vector<bool> linked(state->table->overflow_count());
  std::vector<bool> linked_next(state->next == nullptr ? 0 : state->next->overflow_count());
  for (uint64_t home = 0; home < state->table->size(); ++home) {
    if ((state->table->main(home).next & kMoved) == 0) {
      check_chain(*state->table, home, linked, fail);
      continue;
    }
    if (state->next == nullptr) {
      fail(fmt::format("'{}', bucket {}: it has moved, but there is no new table", name_, home));
      continue;
    }
    const uint32_t shift = state->next->bits() - state->table->bits();
    for (uint64_t i = home << shift; i < (home + 1) << shift; ++i) {
      check_chain(*state->next, i, linked_next, fail);
    }
  }
  if (found > 0) return found;
  check_owners(*this, pool_, name_, fail);
  return found;
}

template <typename Policy, typename Content>
std::vector<Statistic> Core<Policy, Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  uint64_t records = 0;
  std::vector<HashSlot> slots;
  uint64_t hash = 0;
  do {
    hash = collect_at(hash, slots);
    records += slots.size();
  } while (hash != 0);
  const State* state = state_.load(std::memory_order_acquire);
  const Table* newest = state->next != nullptr ? state->next : state->table;
  uint64_t dram_bytes = sizeof(State) + pm::EpochManager::kDramBytes;
  for (const Table* table : {state->table, state->next}) {
    if (table != nullptr) dram_bytes += table->dram_bytes();
  }
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", dram_bytes, "bytes");
  list.add("recovered_operations", recovered_operations_, "operations");
  list.add("records", records, "records");
  list.add("buckets", newest->size(), "buckets");
  list.add("overflow_buckets", newest->overflow_count(), "buckets");
  list.add("growing", state->next != nullptr ? 1 : 0, "");
  list.add_ratio("load_factor", records, (newest->size() + newest->overflow_count()) * kSlots, "");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_CLHT_INSTANTIATE)

}  // namespace perdure::index::clht
