// The typed facades of Plush. Words are passed through where both kinds are words; otherwise they
// are stored as their 8 bytes.
#include "perdure/plush.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "index/adapter.h"
#include "index/bytes.h"
#include "index/participant.h"
#include "index/plush/core.h"
#include "pm/pool_impl.h"

namespace perdure {

namespace {

using index::AsBytes;
using index::assign;
using index::from_bytes;
using index::plush::Core;
using index::plush::Key;
using index::plush::LogKind;

template <typename K, typename V>
inline constexpr bool kWords = std::is_same_v<K, uint64_t> && std::is_same_v<V, uint64_t>;

template <typename K, typename V>
bool write(Core& core, LogKind kind, Argument<K> key, Argument<V> value, Logging logging) {
  if constexpr (kWords<K, V>) {
    return core.write(kind, key, value, logging);
  } else {
    return core.write(kind, AsBytes(key).view(), AsBytes(value).view(), logging);
  }
}

template <typename K, typename V>
bool remove_from(Core& core, Argument<K> key) {
  if constexpr (kWords<K, V>) {
    return core.remove(key);
  } else {
    return core.remove(AsBytes(key).view());
  }
}

// A key as the core takes it; `holder` keeps its bytes.
template <typename K, typename V>
Key core_key(const Core& core, Argument<K> key, AsBytes& holder) {
  if constexpr (kWords<K, V>) {
    return core.key_of(key);
  } else {
    holder = AsBytes(key);
    return core.key_of(holder.view());
  }
}

// In ordered tables, some of whose keys may lie outside of their range.
template <typename K, typename V>
uint64_t write_singly(Core& core, LogKind kind, std::span<const RecordOf<K, V>> records,
                      std::span<bool> written) {
  uint64_t count = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto& [key, value] = records[i];
    const bool done = write<K, V>(core, kind, key, value, Logging::kOn);
    if (!written.empty()) written[i] = done;
    count += done ? 1 : 0;
  }
  return count;
}

// Group by group. Without `written`, nobody wants to know. Returns how many were written.
template <typename K, typename V>
uint64_t write_batch(Core& core, LogKind kind, std::span<const RecordOf<K, V>> records,
                     std::span<bool> written) {
  if constexpr (!kWords<K, V>) {
    for (const auto& [key, value] : records) {
      Core::require_sizes(AsBytes(key).view(), AsBytes(value).view());
    }
  }
  std::ranges::fill(written, false);
  if (core.is_ordered()) return write_singly<K, V>(core, kind, records, written);
  std::array<Core::NewRecord, Core::kGroup> group;
  std::array<AsBytes, Core::kGroup> keys;
  std::array<AsBytes, Core::kGroup> values;
  std::array<bool, Core::kGroup> flags;
  uint64_t count = 0;
  for (size_t begin = 0; begin < records.size(); begin += Core::kGroup) {
    const size_t n = std::min(records.size() - begin, Core::kGroup);
    for (size_t i = 0; i < n; ++i) {
      const auto& [key, value] = records[begin + i];
      group[i].key = core_key<K, V>(core, key, keys[i]);
      if constexpr (kWords<K, V>) {
        group[i].value = value;
      } else {
        values[i] = AsBytes(value);
        group[i].payload = values[i].view();
      }
    }
    const auto told = written.empty() ? std::span(flags).first(n) : written.subspan(begin, n);
    core.write_group(kind, std::span(group).first(n), told);
    count += static_cast<uint64_t>(std::ranges::count(told, true));
  }
  return count;
}

// A table in transactions.
template <typename K, typename V>
class PlushParticipant final : public index::Participant {
 public:
  PlushParticipant(Core& core, pm::PoolImpl& pool, const std::string& name)
      : Participant(pool, name), core_(core) {}

  Kind key_kind() const override { return ArgumentOf<K>::kind; }
  Kind value_kind() const override { return ArgumentOf<V>::kind; }
  bool lookup(Datum key, Value& out) const override {
    const auto typed = index::argument_of<K>(key, "key");
    if constexpr (kWords<K, V>) {
      uint64_t word = 0;
      if (!core_.lookup(typed, word)) return false;
      out.set(word);
      return true;
    } else {
      return core_.lookup(AsBytes(typed).view(), [&](std::string_view value) {
        if constexpr (std::is_same_v<V, uint64_t>) {
          out.set(from_bytes<V>(value));
        } else {
          out.set_bytes().assign(value);
        }
      });
    }
  }
  void upsert(Datum key, Datum value) override {
    write<K, V>(core_, LogKind::kUpsert, index::argument_of<K>(key, "key"),
                index::argument_of<V>(value, "value"), Logging::kOn);
  }
  bool remove(Datum key) override {
    return remove_from<K, V>(core_, index::argument_of<K>(key, "key"));
  }
  void require_takes(Datum key) const override {
    if constexpr (std::is_same_v<K, uint64_t>) core_.require_inside(key.word());
  }

 private:
  Core& core_;
};

}  // namespace

template <typename K, typename V>
Plush<K, V>::Plush(std::unique_ptr<Core> core, Pool& pool, const std::string& name)
    : core_(std::move(core)),
      participant_(std::make_unique<PlushParticipant<K, V>>(*core_, pm::impl_of(pool), name)) {
  finish_transactions(*participant_);
}
template <typename K, typename V>
Plush<K, V>::Plush(Plush&&) noexcept = default;
template <typename K, typename V>
Plush<K, V>& Plush<K, V>::operator=(Plush&&) noexcept = default;
template <typename K, typename V>
Plush<K, V>::~Plush() = default;

template <typename K, typename V>
Plush<K, V> Plush<K, V>::create(Pool& pool, const std::string& name, const PlushOptions& options) {
  return Plush(
      Core::create(pm::impl_of(pool), name, ArgumentOf<K>::kind, ArgumentOf<V>::kind, options),
      pool, name);
}

template <typename K, typename V>
Plush<K, V> Plush<K, V>::open(Pool& pool, const std::string& name, const PlushOptions& options) {
  return Plush(
      Core::open(pm::impl_of(pool), name, ArgumentOf<K>::kind, ArgumentOf<V>::kind, options), pool,
      name);
}

template <typename K, typename V>
bool Plush<K, V>::insert(Argument<K> key, Argument<V> value, Logging logging) {
  return participant_->gate().write(key, [=, core = core_.get()] {
    return write<K, V>(*core, LogKind::kInsert, key, value, logging);
  });
}

template <typename K, typename V>
bool Plush<K, V>::update(Argument<K> key, Argument<V> value, Logging logging) {
  return participant_->gate().write(key, [=, core = core_.get()] {
    return write<K, V>(*core, LogKind::kUpdate, key, value, logging);
  });
}

template <typename K, typename V>
void Plush<K, V>::upsert(Argument<K> key, Argument<V> value, Logging logging) {
  participant_->gate().write(key,
                             [&] { write<K, V>(*core_, LogKind::kUpsert, key, value, logging); });
}

template <typename K, typename V>
bool Plush<K, V>::remove(Argument<K> key) {
  return participant_->gate().write(
      key, [=, core = core_.get()] { return remove_from<K, V>(*core, key); });
}

template <typename K, typename V>
bool Plush<K, V>::compare_exchange(Argument<K> key, Argument<V> expected, Argument<V> desired) {
  return participant_->gate().write(key, [=, core = core_.get()] {
    if constexpr (kWords<K, V>) {
      return core->exchange(key, expected, desired);
    } else {
      return core->exchange(AsBytes(key).view(), AsBytes(expected).view(), AsBytes(desired).view());
    }
  });
}

template <typename K, typename V>
bool Plush<K, V>::compare_remove(Argument<K> key, Argument<V> expected) {
  return participant_->gate().write(key, [=, core = core_.get()] {
    if constexpr (kWords<K, V>) {
      return core->remove_if(key, expected);
    } else {
      return core->remove_if(AsBytes(key).view(), AsBytes(expected).view());
    }
  });
}

template <typename K, typename V>
bool Plush<K, V>::lookup(Argument<K> key, V& out) const {
  if constexpr (kWords<K, V>) {
    return core_->lookup(key, out);
  } else {
    return core_->lookup(AsBytes(key).view(), [&](std::string_view value) { assign(out, value); });
  }
}

template <typename K, typename V>
bool Plush<K, V>::visit(Argument<K> key,
                        const std::function<void(std::string_view value)>& use) const
  requires std::is_same_v<V, std::string>
{
  return core_->lookup(AsBytes(key).view(), use);
}

template <typename K, typename V>
uint64_t Plush<K, V>::multi_lookup(std::span<const Argument<K>> keys, std::span<V> values,
                                   std::span<bool> found) const {
  index::require_results(keys.size(), std::min(values.size(), found.size()));
  std::array<Key, Core::kGroup> group;
  std::array<AsBytes, Core::kGroup> holders;
  std::ranges::fill(found.first(keys.size()), false);
  uint64_t count = 0;
  if (core_->is_ordered()) {  // some keys may lie outside of its range
    for (size_t i = 0; i < keys.size(); ++i)
      count += (found[i] = lookup(keys[i], values[i])) ? 1 : 0;
    return count;
  }
  for (size_t begin = 0; begin < keys.size(); begin += Core::kGroup) {
    const size_t n = std::min(keys.size() - begin, Core::kGroup);
    for (size_t i = 0; i < n; ++i) group[i] = core_key<K, V>(*core_, keys[begin + i], holders[i]);
    using Stored = std::conditional_t<kWords<K, V>, uint64_t, std::string_view>;
    core_->lookup_group(std::span(group).first(n), [&](size_t i, Stored value) {
      if constexpr (kWords<K, V>) {
        values[begin + i] = value;
      } else {
        assign(values[begin + i], value);
      }
      found[begin + i] = true;
      ++count;
    });
  }
  return count;
}

template <typename K, typename V>
uint64_t Plush<K, V>::multi_insert(std::span<const RecordOf<K, V>> records,
                                   std::span<bool> inserted) {
  index::require_results(records.size(), inserted.size());
  const std::span<bool> told = inserted.first(records.size());
  uint64_t count = 0;
  if (participant_->gate().write_unlatched(
          [&] { count = write_batch<K, V>(*core_, LogKind::kInsert, records, told); })) {
    return count;
  }
  std::ranges::fill(told, false);
  for (size_t i = 0; i < records.size(); ++i) {
    count += (told[i] = insert(records[i].key, records[i].value)) ? 1 : 0;
  }
  return count;
}

template <typename K, typename V>
void Plush<K, V>::multi_upsert(std::span<const RecordOf<K, V>> records) {
  if (participant_->gate().write_unlatched(
          [&] { write_batch<K, V>(*core_, LogKind::kUpsert, records, {}); })) {
    return;
  }
  for (const auto& [key, value] : records) upsert(key, value);
}

template <typename K, typename V>
void Plush<K, V>::scan(Argument<K> from, uint64_t limit,
                       const std::function<bool(Argument<K>, Argument<V>)>& visit) const {
  if constexpr (kWords<K, V>) {
    core_->scan(from, limit, visit);
  } else if constexpr (std::is_same_v<K, uint64_t>) {
    core_->scan_bytes(from, limit, visit);
  } else {
    throw Error(ErrorCode::kWrongType, "ordered scans need plush+range, which has u64 keys");
  }
}

template <typename K, typename V>
void Plush<K, V>::scan_back(std::optional<Argument<K>> from, uint64_t limit,
                            const std::function<bool(Argument<K>, Argument<V>)>& visit) const {
  if constexpr (kWords<K, V>) {
    core_->scan_back(from, limit, visit);
  } else if constexpr (std::is_same_v<K, uint64_t>) {
    core_->scan_bytes_back(from, limit, visit);
  } else {
    throw Error(ErrorCode::kWrongType, "ordered scans need plush+range, which has u64 keys");
  }
}

template <typename K, typename V>
void Plush<K, V>::checkpoint(unsigned threads) {
  core_->checkpoint(threads);
}

template <typename K, typename V>
void Plush<K, V>::for_each(const std::function<void(Argument<K>, Argument<V>)>& visit) const {
  if constexpr (kWords<K, V>) {
    core_->for_each_word(visit);
  } else {
    core_->for_each_bytes([&](std::string_view key, std::string_view value) {
      visit(from_bytes<K>(key), from_bytes<V>(value));
    });
  }
}

template <typename K, typename V>
uint64_t Plush<K, V>::check(const std::function<void(const std::string&)>& report) const {
  return core_->check(report);
}

template <typename K, typename V>
void Plush<K, V>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  core_->visit_blocks(visit);
}

template <typename K, typename V>
std::vector<Statistic> Plush<K, V>::statistics() const {
  return core_->statistics();
}

template class Plush<uint64_t, uint64_t>;
template class Plush<uint64_t, std::string>;
template class Plush<std::string, uint64_t>;
template class Plush<std::string, std::string>;

}  // namespace perdure
