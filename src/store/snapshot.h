// A state of a whole store, to be read while writes go on: of each partition the version of its
// last write.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "store/store_impl.h"

namespace perdure::store {

class StoreSnapshot {
 public:
  explicit StoreSnapshot(const StoreImpl& store);
  ~StoreSnapshot();
  StoreSnapshot(const StoreSnapshot&) = delete;
  StoreSnapshot& operator=(const StoreSnapshot&) = delete;

  const StoreImpl& store() const { return store_; }
  uint64_t version(uint32_t number) const { return versions_[number]; }
  uint64_t position(uint32_t number) const { return positions_[number]; }
  uint64_t time_ms() const { return time_ms_; }

  template <typename Use>
  bool get(std::string_view key, Use use) const {
    const auto [hash, number] = store_.place_of(key);
    return store_.with(number, false, [&](Partition& partition) {
      Partition::Found found;
      if (!partition.get_at(versions_[number], hash, key, time_ms_, found)) return false;
      use(found);
      return true;
    });
  }

 private:
  void release(size_t count) noexcept;

  const StoreImpl& store_;
  std::vector<uint64_t> versions_;   // by partition
  std::vector<uint64_t> positions_;  // the same, of the next write
  uint64_t time_ms_ = 0;             // what had expired by then is not there
};

}  // namespace perdure::store
