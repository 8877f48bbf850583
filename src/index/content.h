// What the hash tables are instantiated over: 8-byte words in the slots, or byte strings out of
// place; and the typed facade that turns keys and values of any kind into either.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "index/batch.h"
#include "index/bytes.h"
#include "index/hash.h"
#include "index/records.h"
#include "perdure/index.h"
#include "pm/checksum.h"

namespace perdure::index {

enum class Verb : uint8_t { kInsert, kUpdate, kUpsert };

// Under which condition a write takes place: what its verb says and, of an update or a removal,
// perhaps that the key has a certain value. Who asks holds what keeps other writers of the key out,
// so that a condition that holds does so until the write is done.
template <typename Value>
class Condition {
 public:
  Condition(Verb verb) : verb_(verb) {}  // NOLINT(google-explicit-constructor): a verb is one
  static Condition value_is(const Value& expected) {
    Condition condition(Verb::kUpdate);
    condition.expects_ = true;
    condition.expected_ = expected;
    return condition;
  }

  // Whether the key need not be looked for.
  bool always_holds() const { return verb_ == Verb::kUpsert; }
  bool holds_if_absent() const { return verb_ != Verb::kUpdate; }
  // `has(expected)` says whether the key, which is there, has this value.
  template <typename Has>
  bool holds_if_present(Has has) const {
    return verb_ != Verb::kInsert && (!expects_ || has(expected_));
  }
  // The same of a slot with the value or, of byte strings, the offset of the record.
  bool holds_for(const Records& records, uint64_t stored) const {
    return holds_if_present([&](const Value& expected) {
      if constexpr (std::is_same_v<Value, uint64_t>) {
        return (void)records, stored == expected;
      } else {
        return records.value(stored) == expected;
      }
    });
  }

 private:
  Verb verb_;
  bool expects_ = false;
  Value expected_{};
};

// Both kinds are words. The slot holds the key's hash, from which the key is calculated.
struct HashedWords {
  static constexpr bool kOutOfPlace = false;
  struct Key {
    uint64_t hash;
  };
  using Value = uint64_t;
};

// At least one kind is a byte string; words among them are stored as their 8 bytes.
struct HashedBytes {
  static constexpr bool kOutOfPlace = true;
  struct Key {
    uint64_t hash;
    std::string_view bytes;
  };
  using Value = std::string_view;
};

template <typename K, typename V>
using HashedContentOf =
    std::conditional_t<std::is_same_v<K, uint64_t> && std::is_same_v<V, uint64_t>, HashedWords,
                       HashedBytes>;

// Finds keys that are met twice among slots of one place. Empty slots are not to be given.
template <typename Content>
class KeysMet {
 public:
  explicit KeysMet(const Records& records) : records_(records) {}
  // How many slots with this key were met before.
  uint64_t meet(const HashSlot& slot) {
    uint64_t before = 0;
    const auto [begin, end] = met_.equal_range(slot.hash);
    for (auto other = begin; other != end; ++other) {
      if constexpr (Content::kOutOfPlace) {
        if (records_.key(other->second) != records_.key(slot.value)) continue;
      }
      ++before;
    }
    met_.emplace(slot.hash, slot.value);
    return before;
  }

 private:
  const Records& records_;
  std::unordered_multimap<uint64_t, uint64_t> met_;
};

// A table from K to V over a core that is instantiated over HashedContentOf<K, V>. Core has
//   bool write(Condition, Key, Value), bool remove(Key, Condition), bool lookup(Key, use(Value)),
//   for_each(visit(Key or its bytes, Value)), check, visit_blocks, statistics,
//   and what index/batch.h says.
template <typename Core, typename K, typename V>
class Table : public Batches<Table<Core, K, V>, Core, K, V> {
 public:
  using key_type = K;
  using value_type = V;

  explicit Table(std::unique_ptr<Core> core) : core_(std::move(core)) {}

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
    if constexpr (kWords) {
      return core_->lookup({hash_of(key)}, [&](uint64_t value) { out = value; });
    } else {
      const AsBytes bytes(key);
      return core_->lookup(key_of(bytes.view()),
                           [&](std::string_view value) { assign(out, value); });
    }
  }
  // Of byte strings: where they lie. The record that a lookup has found does not change, and is not
  // used again while the core has its guard.
  template <typename Use>
  bool visit(Argument<K> key, const Use& use) const
    requires std::is_same_v<V, std::string>
  {
    const AsBytes bytes(key);
    return core_->lookup(key_of(bytes.view()), [&](std::string_view value) { use(value); });
  }
  void for_each(const std::function<void(Argument<K>, Argument<V>)>& visit) const {
    if constexpr (kWords) {
      core_->for_each([&](uint64_t hash, uint64_t value) { visit(key_of_hash(hash), value); });
    } else {
      core_->for_each([&](std::string_view key, std::string_view value) {
        visit(from_bytes<K>(key), from_bytes<V>(value));
      });
    }
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const {
    return core_->check(report);
  }
  void visit_blocks(const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
    core_->visit_blocks(visit);
  }
  std::vector<Statistic> statistics() const { return core_->statistics(); }

 private:
  friend class Batches<Table, Core, K, V>;
  static constexpr bool kWords = !HashedContentOf<K, V>::kOutOfPlace;
  using Expect = Condition<typename HashedContentOf<K, V>::Value>;

  const Core& core() const { return *core_; }
  template <typename Approach>
  bool approach(Argument<K> key, Approach& at) const {
    if constexpr (kWords) {
      return core_->approach({hash_of(key)}, at);
    } else {
      const AsBytes bytes(key);
      return core_->approach(key_of(bytes.view()), at);
    }
  }
  template <typename Approach>
  bool lookup_at(Argument<K> key, const Approach&, V& out) const {
    return lookup(key, out);
  }
  static HashedBytes::Key key_of(std::string_view bytes) {
    return {pm::checksum64(bytes.data(), bytes.size()), bytes};
  }
  bool write(const Expect& condition, Argument<K> key, Argument<V> value) {
    if constexpr (kWords) {
      return core_->write(condition, {hash_of(key)}, value);
    } else {
      const AsBytes key_bytes(key);
      const AsBytes value_bytes(value);
      return core_->write(condition, key_of(key_bytes.view()), value_bytes.view());
    }
  }
  bool remove_if(Argument<K> key, const Expect& condition) {
    if constexpr (kWords) {
      return core_->remove({hash_of(key)}, condition);
    } else {
      const AsBytes bytes(key);
      return core_->remove(key_of(bytes.view()), condition);
    }
  }

  std::unique_ptr<Core> core_;
};

// For CoreEntry.
struct HashTables {
  static constexpr const char* kFamily = "hash table";
  static constexpr bool kOrdered = false;
  static constexpr uint64_t kKeyBytesMax = Records::kPartBytesMax;
  template <typename K, typename V>
  using Content = HashedContentOf<K, V>;
  template <typename Core, typename K, typename V>
  using Facade = Table<Core, K, V>;
};

}  // namespace perdure::index
