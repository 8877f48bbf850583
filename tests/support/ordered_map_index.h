// An ordered index in DRAM, for tests of what drives indexes: a std::map and a lock.
#pragma once

#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>

#include "perdure/index.h"

namespace perdure::test_support {

// Words to words. Thread-safe.
class OrderedMapIndex : public AnyIndex {
 public:
  Kind key_kind() const override { return Kind::kU64; }
  Kind value_kind() const override { return Kind::kU64; }

  bool insert(Datum key, Datum value) override {
    const std::unique_lock lock(mutex_);
    return map_.emplace(key.word(), value.word()).second;
  }
  bool update(Datum key, Datum value) override {
    const std::unique_lock lock(mutex_);
    const auto found = map_.find(key.word());
    if (found == map_.end()) return false;
    found->second = value.word();
    return true;
  }
  void upsert(Datum key, Datum value) override {
    const std::unique_lock lock(mutex_);
    map_[key.word()] = value.word();
  }
  bool remove(Datum key) override {
    const std::unique_lock lock(mutex_);
    return map_.erase(key.word()) > 0;
  }
  bool lookup(Datum key, Value& out) const override {
    const std::shared_lock lock(mutex_);
    const auto found = map_.find(key.word());
    if (found == map_.end()) return false;
    out.set(found->second);
    return true;
  }
  void scan(Datum from, uint64_t limit,
            const std::function<bool(Datum, Datum)>& visit) const override {
    const std::shared_lock lock(mutex_);
    auto at = map_.lower_bound(from.word());
    for (; at != map_.end() && limit > 0; ++at, --limit) {
      if (!visit(at->first, at->second)) return;
    }
  }

  void scan_back(std::optional<Datum> from, uint64_t limit,
                 const std::function<bool(Datum, Datum)>& visit) const override {
    const std::shared_lock lock(mutex_);
    auto at = std::make_reverse_iterator(from ? map_.upper_bound(from->word()) : map_.end());
    for (; at != map_.rend() && limit > 0; ++at, --limit) {
      if (!visit(at->first, at->second)) return;
    }
  }
  void for_each(const std::function<void(Datum, Datum)>& visit) const override {
    const std::shared_lock lock(mutex_);
    for (const auto& [key, value] : map_) visit(key, value);
  }
  uint64_t check(const std::function<void(const std::string&)>&) const override { return 0; }
  std::vector<Statistic> statistics() const override { return {}; }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, uint64_t> map_;
};

}  // namespace perdure::test_support
