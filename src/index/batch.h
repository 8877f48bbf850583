// Batches of the structures under the typed facades (Table, Tree): what the ways of a group of keys
// lead through is fetched from memory together, so that their misses overlap; then each key is
// looked up or written by itself, as if it had come alone. So a batch promises nothing that its
// operations do not, and each write has the flushes and fences of its own that its structure's
// argument counts on.
//
// What a core has for it
//   struct Approach                            how far the way to a key is fetched; {}: not begun
//   bool approach(const Key&, Approach&) const one step: reads what the one before has asked memory
//                                              for, and asks for what comes next. False: that was the
//                                              last one, or the way is changing just now. Needs a
//                                              guard that has lasted since the first step.
//   pm::EpochManager& epochs() const           of that guard
//   bool lookup_at(const Approach&, const Key&, use) const
//                                              if it can: a lookup that goes on where the steps have
//                                              ended, under the same guard; its moment may be any since
//                                              that began
//
// A step reads only what a lookup under the same guard could read: it follows a word to another
// node when it has validated the version under which it has read the word. A write uses nothing
// that was found, so a way that changes meanwhile costs it a miss.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "perdure/index.h"
#include "pm/epoch.h"

namespace perdure::index {

inline constexpr size_t kTogether = 16;  // keys whose misses overlap

// Calls step(i, at[i]) for each of up to kTogether, round after round, until it says no.
template <typename Approach, typename Step>
void step_together(std::span<Approach> at, Step step) {
  for (uint32_t left = (1U << at.size()) - 1; left != 0;) {
    for (uint32_t round = left; round != 0; round &= round - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(round));
      if (!step(i, at[i])) left &= ~(1U << i);
    }
  }
}

template <typename Core>
concept Approachable = requires { typename Core::Approach; };

// The batches of a facade, which has beside the calls of an Index
//   const Core& core() const
//   bool approach(Argument<K>, Core::Approach&) const
//   bool lookup_at(Argument<K>, const Core::Approach&, V& out) const
template <typename Facade, typename Core, typename K, typename V>
class Batches {
 public:
  uint64_t multi_lookup(std::span<const Argument<K>> keys, std::span<V> values,
                        std::span<bool> found) const
    requires Approachable<Core>
  {
    uint64_t count = 0;
    for (size_t begin = 0; begin < keys.size(); begin += kTogether) {
      const auto group = keys.subspan(begin, std::min(kTogether, keys.size() - begin));
      const pm::EpochManager::Guard guard(facade().core().epochs());
      const auto at = fetch(group.size(), [&](uint32_t i) { return group[i]; });
      for (size_t i = 0; i < group.size(); ++i) {
        const bool there = facade().lookup_at(group[i], at[i], values[begin + i]);
        found[begin + i] = there;
        count += there ? 1 : 0;
      }
    }
    return count;
  }
  uint64_t multi_insert(std::span<const RecordOf<K, V>> records, std::span<bool> inserted)
    requires Approachable<Core>
  {
    uint64_t count = 0;
    write_all(records, [&](const RecordOf<K, V>& record, size_t i) {
      const bool done = facade().insert(record.key, record.value);
      inserted[i] = done;
      count += done ? 1 : 0;
    });
    return count;
  }
  void multi_upsert(std::span<const RecordOf<K, V>> records)
    requires Approachable<Core>
  {
    write_all(records, [&](const RecordOf<K, V>& record, size_t) {
      facade().upsert(record.key, record.value);
    });
  }

 private:
  friend Facade;
  Batches() = default;

  Facade& facade() { return static_cast<Facade&>(*this); }
  const Facade& facade() const { return static_cast<const Facade&>(*this); }

  template <typename KeyAt>
  auto fetch(size_t count, KeyAt key_at) const {
    std::array<typename Core::Approach, kTogether> at{};
    step_together(std::span(at).first(count), [&](uint32_t i, typename Core::Approach& one) {
      return facade().approach(key_at(i), one);
    });
    return at;
  }
  // The guard ends before the writes, which may wait for blocks that guards keep.
  template <typename Write>
  void write_all(std::span<const RecordOf<K, V>> records, Write write) {
    for (size_t begin = 0; begin < records.size(); begin += kTogether) {
      const auto group = records.subspan(begin, std::min(kTogether, records.size() - begin));
      {
        const pm::EpochManager::Guard guard(facade().core().epochs());
        fetch(group.size(), [&](uint32_t i) { return group[i].key; });
      }
      for (size_t i = 0; i < group.size(); ++i) write(group[i], begin + i);
    }
  }
};

}  // namespace perdure::index
