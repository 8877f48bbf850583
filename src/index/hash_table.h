// What P-CLHT, level hashing and CCEH share: steps of a write, and of verification, that do not
// depend on where a table's slots are.
#pragma once

#include <cstdint>
#include <string>

#include "index/content.h"
#include "index/records.h"
#include "pm/memory.h"
#include "pm/pool_impl.h"

namespace perdure::index {

// A write of a table of this content: `once()` carries it out, again after blocks were reclaimed if
// there was no room. Throws kReadOnly, kIo, kTooLarge, kPoolFull, kNoSpace.
template <typename Content, typename Once>
bool write_with_reclaim(const pm::PoolImpl& pool, Records& records,
                        const typename Content::Key& key, const typename Content::Value& value,
                        Once once) {
  pool.require_writable();
  if constexpr (Content::kOutOfPlace) records.require_fits(key.bytes, value);
  return records.with_reclaim(once);
}

// Gives a slot another value. The caller holds the lock that keeps writers out; `begin_change` is
// called when readers must be kept out, too. Durable on return: before the lock is released.
template <typename Content, typename BeginChange>
void replace_value(const pm::Memory& memory, Records& records, uint64_t& value_at,
                   const typename Content::Key& key, const typename Content::Value& value,
                   BeginChange begin_change) {
  if constexpr (Content::kOutOfPlace) {
    records.relink(value_at, key.bytes, value, begin_change);
  } else {
    (void)key;
    (void)records;
    begin_change();
    pm::store_release(value_at, value);
    memory.persist(&value_at, sizeof value_at);  // before anybody can see it
  }
}

// Verifies a slot: what it leads to, and that its key was not met in this place before. `fail` gets
// a sentence.
template <typename Content, typename Fail>
void check_slot(const Records& records, KeysMet<Content>& keys, const HashSlot& slot, Fail fail) {
  if constexpr (Content::kOutOfPlace) {
    if (!records.check(slot, fail)) return;
  }
  for (uint64_t before = keys.meet(slot); before > 0; --before) fail("a key is there twice");
}

}  // namespace perdure::index
