// The typed faces of Plush. Words are passed through where both kinds are words; otherwise they are
// stored as their 8 bytes.
#include "perdure/plush.h"

#include "index/bytes.h"
#include "index/plush/core.h"

namespace perdure {

namespace {

using index::AsBytes;
using index::assign;
using index::from_bytes;
using index::plush::Core;
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

}  // namespace

template <typename K, typename V>
Plush<K, V>::Plush(std::unique_ptr<Core> core) : core_(std::move(core)) {}
template <typename K, typename V>
Plush<K, V>::Plush(Plush&&) noexcept = default;
template <typename K, typename V>
Plush<K, V>& Plush<K, V>::operator=(Plush&&) noexcept = default;
template <typename K, typename V>
Plush<K, V>::~Plush() = default;

template <typename K, typename V>
Plush<K, V> Plush<K, V>::create(Pool& pool, const std::string& name, const PlushOptions& options) {
  return Plush(Core::create(pool.impl(), name, ArgumentOf<K>::kind, ArgumentOf<V>::kind, options));
}

template <typename K, typename V>
Plush<K, V> Plush<K, V>::open(Pool& pool, const std::string& name, const PlushOptions& options) {
  return Plush(Core::open(pool.impl(), name, ArgumentOf<K>::kind, ArgumentOf<V>::kind, options));
}

template <typename K, typename V>
bool Plush<K, V>::insert(Argument<K> key, Argument<V> value, Logging logging) {
  return write<K, V>(*core_, LogKind::kInsert, key, value, logging);
}

template <typename K, typename V>
bool Plush<K, V>::update(Argument<K> key, Argument<V> value, Logging logging) {
  return write<K, V>(*core_, LogKind::kUpdate, key, value, logging);
}

template <typename K, typename V>
void Plush<K, V>::upsert(Argument<K> key, Argument<V> value, Logging logging) {
  write<K, V>(*core_, LogKind::kUpsert, key, value, logging);
}

template <typename K, typename V>
bool Plush<K, V>::remove(Argument<K> key) {
  if constexpr (kWords<K, V>) {
    return core_->remove(key);
  } else {
    return core_->remove(AsBytes(key).view());
  }
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
