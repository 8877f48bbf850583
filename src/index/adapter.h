// AnyIndex over a typed structure, and structure options from text: what a catalogue entry needs.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "index/owned_blocks.h"
#include "index/participant.h"
#include "perdure/index.h"
#include "pm/pool_impl.h"

namespace perdure {
template <typename K, typename V>
class Plush;
}

namespace perdure::index {

[[noreturn]] void throw_wrong_kind(const char* what, Kind given, Kind wanted);
// Throws kInvalidArgument if a batch has more keys than room for results.
void require_results(size_t keys, size_t results);

template <typename T>
[[gnu::always_inline]] inline Argument<T> argument_of(const Datum& datum, const char* what) {
  constexpr Kind kWanted = ArgumentOf<T>::kind;
  if (datum.kind() != kWanted) [[unlikely]]
    throw_wrong_kind(what, datum.kind(), kWanted);
  if constexpr (std::is_same_v<T, uint64_t>) {
    return datum.word();
  } else {
    return datum.bytes();
  }
}

// Whether a typed structure passes its gate by itself, and finishes transactions when it is opened.
template <typename T>
inline constexpr bool kHasGate = false;
template <typename K, typename V>
inline constexpr bool kHasGate<Plush<K, V>> = true;

// T is a typed structure such as Plush<uint64_t, std::string>.
template <typename T>
class Adapter final : public AnyIndex, public OwnsBlocks, public Participates {
 public:
  using K = typename T::key_type;
  using V = typename T::value_type;

  // The structure of this name, which has just been made or opened. Throws as finish_transactions()
  // does.
  Adapter(T structure, pm::PoolImpl& pool, const std::string& name)
      : structure_(std::move(structure)) {
    if constexpr (!kHasGate<T>) {
      participant_ = std::make_unique<IndexParticipant>(*this, pool, name);
      finish_transactions(*participant_);
    }
  }

  Kind key_kind() const override { return ArgumentOf<K>::kind; }
  Kind value_kind() const override { return ArgumentOf<V>::kind; }

  bool insert(Datum key, Datum value) override {
    return write(
        key, [&](Argument<K> k) { return structure_.insert(k, argument_of<V>(value, "value")); });
  }
  bool update(Datum key, Datum value) override {
    return write(
        key, [&](Argument<K> k) { return structure_.update(k, argument_of<V>(value, "value")); });
  }
  void upsert(Datum key, Datum value) override {
    write(key, [=, this](Argument<K> k) { structure_.upsert(k, argument_of<V>(value, "value")); });
  }
  bool remove(Datum key) override {
    return write(key, [=, this](Argument<K> k) { return structure_.remove(k); });
  }
  bool compare_exchange(Datum key, Datum expected, Datum desired) override {
    return write(key, [=, this](Argument<K> k) {
      return structure_.compare_exchange(k, argument_of<V>(expected, "value"),
                                         argument_of<V>(desired, "value"));
    });
  }
  bool compare_remove(Datum key, Datum expected) override {
    return write(key, [=, this](Argument<K> k) {
      return structure_.compare_remove(k, argument_of<V>(expected, "value"));
    });
  }
  bool lookup(Datum key, Value& out) const override {
    if constexpr (std::is_same_v<V, uint64_t>) {
      uint64_t word = 0;
      if (!structure_.lookup(argument_of<K>(key, "key"), word)) return false;
      out.set(word);
      return true;
    } else {
      std::string bytes;
      if (!structure_.lookup(argument_of<K>(key, "key"), bytes)) return false;
      out.set_bytes().swap(bytes);
      return true;
    }
  }
  bool visit(Datum key, const std::function<void(Datum value)>& use) const override {
    const Argument<K> typed = argument_of<K>(key, "key");
    if constexpr (std::is_same_v<V, uint64_t>) {
      uint64_t word = 0;
      if (!structure_.lookup(typed, word)) return false;
      use(Datum(word));
      return true;
    } else if constexpr (requires { structure_.visit(typed, use); }) {
      return structure_.visit(typed, [&](std::string_view bytes) { use(Datum(bytes)); });
    } else {
      return AnyIndex::visit(key, use);
    }
  }
  uint64_t multi_lookup(std::span<const Datum> keys, std::span<Value> values,
                        std::span<bool> found) const override {
    if constexpr (BatchedIndex<T>) {
      require_results(keys.size(), std::min(values.size(), found.size()));
      std::array<Argument<K>, kGroup> typed;
      std::array<V, kGroup> out;
      uint64_t count = 0;
      for (const Datum& key : keys) argument_of<K>(key, "key");  // before anything is done
      for (size_t begin = 0; begin < keys.size(); begin += kGroup) {
        const size_t n = std::min(keys.size() - begin, kGroup);
        for (size_t i = 0; i < n; ++i) typed[i] = argument_of<K>(keys[begin + i], "key");
        const std::span flags = found.subspan(begin, n);
        count += structure_.multi_lookup(std::span<const Argument<K>>(typed).first(n),
                                         std::span(out).first(n), flags);
        for (size_t i = 0; i < n; ++i) {
          if (flags[i]) give(out[i], values[begin + i]);
        }
      }
      return count;
    } else {
      return AnyIndex::multi_lookup(keys, values, found);
    }
  }
  uint64_t multi_insert(std::span<const AnyRecord> records, std::span<bool> inserted) override {
    if constexpr (BatchedIndex<T>) {
      require_results(records.size(), inserted.size());
      std::ranges::fill(inserted, false);
      uint64_t count = 0;
      if (write_many([&] {
            for_groups(records, [&](std::span<const RecordOf<K, V>> group, size_t begin) {
              count += structure_.multi_insert(group, inserted.subspan(begin));
            });
          })) {
        return count;
      }
    }
    return AnyIndex::multi_insert(records, inserted);
  }
  void multi_upsert(std::span<const AnyRecord> records) override {
    if constexpr (BatchedIndex<T>) {
      if (write_many([&] {
            for_groups(records, [&](std::span<const RecordOf<K, V>> group, size_t) {
              structure_.multi_upsert(group);
            });
          })) {
        return;
      }
    }
    AnyIndex::multi_upsert(records);
  }
  void bulk_upsert(Datum key, Datum value) override {
    if constexpr (requires(Argument<K> k, Argument<V> v) {
                    structure_.upsert(k, v, Logging::kOff);
                  }) {
      write(key, [=, this](Argument<K> k) {
        structure_.upsert(k, argument_of<V>(value, "value"), Logging::kOff);
      });
    } else {
      upsert(key, value);
    }
  }
  void checkpoint(unsigned threads) override {
    if constexpr (requires { structure_.checkpoint(threads); }) structure_.checkpoint(threads);
  }
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum key, Datum value)>& visit) const override {
    if constexpr (OrderedIndex<T>) {
      structure_.scan(argument_of<K>(from, "key"), limit, [&](Argument<K> key, Argument<V> value) {
        return visit(Datum(key), Datum(value));
      });
    } else {
      AnyIndex::scan(from, limit, visit);
    }
  }
  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum key, Datum value)>& visit) const override {
    if constexpr (OrderedIndex<T>) {
      std::optional<Argument<K>> typed;
      if (from) typed = argument_of<K>(*from, "key");
      structure_.scan_back(typed, limit, [&](Argument<K> key, Argument<V> value) {
        return visit(Datum(key), Datum(value));
      });
    } else {
      AnyIndex::scan_back(from, limit, visit);
    }
  }
  void for_each(const std::function<void(Datum key, Datum value)>& visit) const override {
    structure_.for_each(
        [&](Argument<K> key, Argument<V> value) { visit(Datum(key), Datum(value)); });
  }
  uint64_t check(const std::function<void(const std::string&)>& report) const override {
    return structure_.check(report);
  }
  void visit_blocks(const VisitOwned& visit) const override { structure_.visit_blocks(visit); }
  std::vector<Statistic> statistics() const override { return structure_.statistics(); }
  Participant* participant() override {
    if constexpr (kHasGate<T>) {
      return &structure_.participant();
    } else {
      return participant_.get();
    }
  }

 private:
  // Every write passes the gate: once, here or in the structure.
  template <typename Write>
  [[gnu::always_inline]] auto write(Datum key, Write write_it) {
    const Argument<K> typed = argument_of<K>(key, "key");
    if constexpr (kHasGate<T>) {
      return write_it(typed);
    } else {
      return participant_->gate().write(typed, [=] { return write_it(typed); });
    }
  }
  // False, and nothing is done, if each record must pass by itself.
  template <typename Write>
  bool write_many(Write write_it) {
    if constexpr (kHasGate<T>) {
      return write_it(), true;
    } else {
      return participant_->gate().write_unlatched(write_it);
    }
  }

  static constexpr size_t kGroup = 16;  // typed arguments on the stack

  static void give(V& from, Value& to) {
    if constexpr (std::is_same_v<V, uint64_t>) {
      to.set(from);
    } else {
      to.set_bytes().swap(from);
    }
  }

  // Calls `work(records, number of the first)` for each group, once all are known to be of the
  // kinds.
  template <typename Work>
  static void for_groups(std::span<const AnyRecord> records, Work work) {
    std::array<RecordOf<K, V>, kGroup> typed;
    const auto record_of = [](const AnyRecord& record) {
      return RecordOf<K, V>{argument_of<K>(record.key, "key"),
                            argument_of<V>(record.value, "value")};
    };
    for (const AnyRecord& record : records) record_of(record);
    for (size_t begin = 0; begin < records.size(); begin += kGroup) {
      const size_t n = std::min(records.size() - begin, kGroup);
      std::ranges::transform(records.subspan(begin, n), typed.begin(), record_of);
      work(std::span<const RecordOf<K, V>>(typed).first(n), begin);
    }
  }

  T structure_;
  std::unique_ptr<Participant>
      participant_;  // goes before the structure, and the mapping with that
};

// Calls `make` with a null pointer of type Structure<K, V> for the kinds.
template <template <typename, typename> class Structure, typename Make>
std::unique_ptr<AnyIndex> with_kinds(Kind key, Kind value, Make make) {
  using std::string;
  if (key == Kind::kU64) {
    if (value == Kind::kU64) return make(static_cast<Structure<uint64_t, uint64_t>*>(nullptr));
    return make(static_cast<Structure<uint64_t, string>*>(nullptr));
  }
  if (value == Kind::kU64) return make(static_cast<Structure<string, uint64_t>*>(nullptr));
  return make(static_cast<Structure<string, string>*>(nullptr));
}

// Takes the option `name` out of `options` as a number; leaves `out` if it is not there.
// Throws Error(kInvalidArgument) if it is not a number.
void take_option(OptionMap& options, const std::string& name, uint32_t& out);
void take_option(OptionMap& options, const std::string& name, uint64_t& out);
// Throws Error(kInvalidArgument) that names what is left.
void require_empty(const OptionMap& options, const std::string& structure);

}  // namespace perdure::index
