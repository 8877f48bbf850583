// What the range trees are instantiated over: 8-byte words in the slots, or byte strings out of
// place (index/records.h); and the typed facade that turns keys and values of any kind into either.
//
// Words are compared as numbers. Byte strings are compared as memcmp does, a shorter one before its
// extensions. A slot's first word is the key itself, or the first eight bytes of it as a number, so
// that most comparisons end without a look at the record.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/batch.h"
#include "index/bytes.h"
#include "index/content.h"
#include "index/records.h"
#include "perdure/index.h"

namespace perdure::index::tree {

// The first eight bytes as a number (missing ones are zeros): of two keys with different numbers
// the one with the smaller number comes first.
inline uint64_t prefix_of(std::string_view bytes) {
  uint64_t word = 0;
  if (!bytes.empty()) std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof word));
  return __builtin_bswap64(word);
}

// Both kinds are words.
struct Words {
  static constexpr bool kOutOfPlace = false;
  using Key = uint64_t;
  using Value = uint64_t;
  static Key lowest_key() { return 0; }
  // The first word of the key's slot.
  static uint64_t word_of(Key key) { return key; }
};

// At least one kind is a byte string. Words among them are stored as 8 bytes: a key's highest byte
// first, so that they are in the order of the numbers.
struct Bytes {
  static constexpr bool kOutOfPlace = true;
  struct Key {
    uint64_t prefix;
    std::string_view bytes;
    explicit Key(std::string_view text) : prefix(prefix_of(text)), bytes(text) {}
  };
  using Value = std::string_view;
  static Key lowest_key() { return Key(std::string_view()); }
  static uint64_t word_of(const Key& key) { return key.prefix; }
};

template <typename K, typename V>
using ContentOf =
    std::conditional_t<std::is_same_v<K, uint64_t> && std::is_same_v<V, uint64_t>, Words, Bytes>;

// A leaf's record.
struct Slot {
  uint64_t key;    // Content::word_of() its key
  uint64_t value;  // the value itself, or the offset of a record
};
static_assert(sizeof(Slot) == 16);

// How a slot's key compares with a key. Of byte strings only if the words are equal the record is
// read, for which the caller needs a guard, and has loaded both words consistently.
template <typename Content>
std::strong_ordering compare(const Records& records, const Slot& slot,
                             const typename Content::Key& key) {
  const uint64_t word = Content::word_of(key);
  if constexpr (Content::kOutOfPlace) {
    if (slot.key == word) return records.key(slot.value) <=> key.bytes;
  }
  return slot.key <=> word;
}

// A tree from K to V over a core that is instantiated over ContentOf<K, V>. Core has
//   bool write(Condition, Key, Value), bool remove(Key, Condition), bool lookup(Key, use(Value)),
//   scan(Key from, uint64_t limit, bool visit(key, value)): key and value as words or byte strings,
//   in ascending order, no lock held during a visit,
//   scan_back(const Key* from, uint64_t limit, visit): the same in descending order, null: from the end,
//   check, visit_blocks, statistics,
// and what index/batch.h says, or batches of its own: multi_lookup(keys, values, found), perhaps
// multi_write(Verb, records, done).
template <typename Core, typename K, typename V>
class Tree : public Batches<Tree<Core, K, V>, Core, K, V> {
  using Together = Batches<Tree, Core, K, V>;

 public:
  using key_type = K;
  using value_type = V;

  static constexpr bool kLooksUp =
      requires(const Core& core, std::span<const K> keys, std::span<V> values) {
        core.multi_lookup(keys, values, std::span<bool>());
      };
  static constexpr bool kWrites = requires(Core& core, std::span<const std::pair<K, V>> records) {
    core.multi_write(Verb::kInsert, records, std::span<bool>());
  };

  explicit Tree(std::unique_ptr<Core> core) : core_(std::move(core)) {}

  bool insert(Argument<K> key, Argument<V> value) { return write(Verb::kInsert, key, value); }
  bool update(Argument<K> key, Argument<V> value) { return write(Verb::kUpdate, key, value); }
  void upsert(Argument<K> key, Argument<V> value) { write(Verb::kUpsert, key, value); }
  bool remove(Argument<K> key) { return remove_if(key, Verb::kUpdate); }
  bool compare_exchange(Argument<K> key, Argument<V> expected, Argument<V> desired) {
    if constexpr (kWords) {
      return write(Expect::value_is(expected), key, desired);
    } else {
      const AsBytes bytes(expected);
      return write(Expect::value_is(bytes.view()), key, desired);
    }
  }
  bool compare_remove(Argument<K> key, Argument<V> expected) {
    if constexpr (kWords) {
      return remove_if(key, Expect::value_is(expected));
    } else {
      const AsBytes bytes(expected);
      return remove_if(key, Expect::value_is(bytes.view()));
    }
  }
  bool lookup(Argument<K> key, V& out) const {
    const auto bytes = stored_key(key);
    return core_->lookup(key_of(bytes), taken_to(out));
  }
  // Of byte strings: where they lie. The record that a lookup has found does not change, and is not
  // used again while the core has its guard. Not where a guard that stays keeps writes from going
  // on.
  template <typename Use>
  bool visit(Argument<K> key, const Use& use) const
    requires(std::is_same_v<V, std::string> && !requires { Core::kGuardsHoldUpWriters; })
  {
    const auto bytes = stored_key(key);
    return core_->lookup(key_of(bytes), [&](std::string_view value) { use(value); });
  }
  void scan(Argument<K> from, uint64_t limit,
            const std::function<bool(Argument<K>, Argument<V>)>& visit) const {
    if (limit == 0) return;
    const auto bytes = stored_key(from);
    scan_from(key_of(bytes), limit, visit);
  }
  void scan_back(std::optional<Argument<K>> from, uint64_t limit,
                 const std::function<bool(Argument<K>, Argument<V>)>& visit) const {
    if (limit == 0) return;
    if (!from) {
      core_->scan_back(nullptr, limit, given_to(visit));
      return;
    }
    const auto bytes = stored_key(*from);
    const typename Content::Key key = key_of(bytes);
    core_->scan_back(&key, limit, given_to(visit));
  }
  uint64_t multi_lookup(std::span<const Argument<K>> keys, std::span<V> values,
                        std::span<bool> found) const
    requires(kLooksUp || Approachable<Core>)
  {
    if constexpr (kLooksUp) {
      return core_->multi_lookup(keys, values, found);
    } else {
      return Together::multi_lookup(keys, values, found);
    }
  }
  uint64_t multi_insert(std::span<const RecordOf<K, V>> records, std::span<bool> inserted)
    requires(kWrites || Approachable<Core>)
  {
    if constexpr (kWrites) {
      return write_all(Verb::kInsert, records, inserted);
    } else {
      return Together::multi_insert(records, inserted);
    }
  }
  void multi_upsert(std::span<const RecordOf<K, V>> records)
    requires(kWrites || Approachable<Core>)
  {
    if constexpr (kWrites) {
      write_all(Verb::kUpsert, records, {});
    } else {
      Together::multi_upsert(records);
    }
  }
  void for_each(const std::function<void(Argument<K>, Argument<V>)>& visit) const {
    scan_from(Content::lowest_key(), ~uint64_t{0}, [&](Argument<K> key, Argument<V> value) {
      visit(key, value);
      return true;
    });
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const {
    return core_->check(report);
  }
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
    core_->visit_blocks(visit);
  }
  std::vector<Statistic> statistics() const { return core_->statistics(); }

 private:
  friend Together;
  using Content = ContentOf<K, V>;
  static constexpr bool kWords = !Content::kOutOfPlace;
  using Expect = Condition<typename Content::Value>;

  const Core& core() const { return *core_; }
  template <typename Approach>
  bool approach(Argument<K> key, Approach& at) const {
    const auto bytes = stored_key(key);
    return core_->approach(key_of(bytes), at);
  }
  template <typename Approach>
  bool lookup_at(Argument<K> key, const Approach& at, V& out) const {
    const auto bytes = stored_key(key);
    if constexpr (requires { core_->lookup_at(at, key_of(bytes), taken_to(out)); }) {
      return core_->lookup_at(at, key_of(bytes), taken_to(out));
    } else {
      return core_->lookup(key_of(bytes), taken_to(out));
    }
  }
  static auto taken_to(V& out) {
    return [&out](const auto& value) {
      if constexpr (kWords) {
        out = value;
      } else {
        assign(out, value);
      }
    };
  }

  // What the core's key is made of; must outlive it.
  static auto stored_key(Argument<K> key) {
    if constexpr (kWords || !std::is_same_v<K, uint64_t>) {
      return key;
    } else {
      return AsBytes(__builtin_bswap64(key));
    }
  }
  static typename Content::Key key_of(uint64_t word) { return word; }
  static typename Content::Key key_of(std::string_view bytes) {
    return typename Content::Key(bytes);
  }
  static typename Content::Key key_of(const AsBytes& bytes) {
    return typename Content::Key(bytes.view());
  }
  static Argument<K> given_key(std::string_view bytes) {
    if constexpr (std::is_same_v<K, uint64_t>) {
      return prefix_of(bytes);
    } else {
      return bytes;
    }
  }

  uint64_t write_all(Verb verb, std::span<const RecordOf<K, V>> records, std::span<bool> inserted) {
    std::array<std::pair<K, V>, kTogether> some;
    uint64_t count = 0;
    for (size_t begin = 0; begin < records.size(); begin += kTogether) {
      const size_t size = std::min(kTogether, records.size() - begin);
      for (size_t i = 0; i < size; ++i)
        some[i] = {records[begin + i].key, records[begin + i].value};
      count += core_->multi_write(verb, std::span<const std::pair<K, V>>(some).first(size),
                                  inserted.empty() ? inserted : inserted.subspan(begin, size));
    }
    return count;
  }
  bool write(const Expect& condition, Argument<K> key, Argument<V> value) {
    const auto bytes = stored_key(key);
    if constexpr (kWords) {
      return core_->write(condition, key, value);
    } else {
      const AsBytes value_bytes(value);
      return core_->write(condition, key_of(bytes), value_bytes.view());
    }
  }
  bool remove_if(Argument<K> key, const Expect& condition) {
    const auto bytes = stored_key(key);
    return core_->remove(key_of(bytes), condition);
  }
  // What the core calls with keys and values as it stores them.
  template <typename Visit>
  static auto given_to(const Visit& visit) {
    return [&visit](const auto& key, const auto& value) {
      if constexpr (kWords) {
        return visit(key, value);
      } else {
        return visit(given_key(key), from_bytes<V>(value));
      }
    };
  }
  template <typename Visit>
  void scan_from(const typename Content::Key& from, uint64_t limit, const Visit& visit) const {
    core_->scan(from, limit, given_to(visit));
  }

  std::unique_ptr<Core> core_;
};

// For CoreEntry.
struct RangeTrees {
  static constexpr const char* kFamily = "range tree";
  static constexpr bool kOrdered = true;
  static constexpr uint64_t kKeyBytesMax = 1024;
  template <typename K, typename V>
  using Content = ContentOf<K, V>;
  template <typename Core, typename K, typename V>
  using Facade = Tree<Core, K, V>;
};
struct Tries : RangeTrees {
  static constexpr const char* kFamily = "trie";
};

}  // namespace perdure::index::tree
