// A place among the records of a store, in the order of keys.
//
// It holds copies of the next records of each partition that it is to look at, read a chunk at a
// time, and gives out the least of them (downwards the greatest). Where the store is cut by
// boundaries, that is one partition at a time; where it is cut by hash, all of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/partition.h"

namespace perdure::store {

class StoreImpl;
class StoreSnapshot;

class StoreCursor {
 public:
  // `wanted`: how many records are to be read, if that is known. Of the store as it is, or as the
  // snapshot sees it. Values of more than `value_bytes_max` are left out: of those only one need be
  // in memory then, rather than one of each partition.
  explicit StoreCursor(const StoreImpl& store, uint64_t wanted = 64,
                       const StoreSnapshot* snapshot = nullptr,
                       uint32_t value_bytes_max = kLeftOut - 1)
      : store_(store), snapshot_(snapshot), wanted_(wanted), value_bytes_max_(value_bytes_max) {}

  // `from.keys_only` not with a snapshot. Throws what reading the store throws: then it stands
  // nowhere.
  void seek(const ScanFrom& from);
  bool valid() const { return !order_.empty(); }
  // Throw the same: then it stands where it stood, and the next call tries again. So no scan goes
  // on without what could not be read.
  void next();
  void previous();
  std::string_view key() const { return key_of(current()); }
  // False if it was left out: then value() is empty.
  bool has_value() const { return current().records[current().at].value_bytes != kLeftOut; }
  std::string_view value() const;
  uint64_t version() const { return current().records[current().at].version; }

 private:
  static constexpr uint32_t kLeftOut = ~uint32_t{0};
  struct Record {
    uint64_t begin;  // of the key in the source's bytes; the value follows
    uint32_t key_bytes;
    uint32_t value_bytes;  // or kLeftOut
    uint64_t version;
  };
  // A partition, and records of it that are yet to come, in the order of the scan.
  struct Source {
    uint32_t number;
    std::vector<Record> records = {};
    std::string bytes = {};  // of their keys and values
    size_t at = 0;
    size_t chunk = 0;    // how many are read together
    bool ended = false;  // there are no more than these
  };

  const Source& current() const { return sources_[order_.front()]; }
  static std::string_view key_of(const Source& source) {
    const Record& record = source.records[source.at];
    return {source.bytes.data() + record.begin, record.key_bytes};
  }
  void place(const ScanFrom& from);
  void read_from(const ScanFrom& from);
  void step();
  void turn(bool downwards);
  void fill(Source& source, const ScanFrom& from) const;
  void enter(const Source& source);
  bool comes_later(uint32_t a, uint32_t b) const;

  const StoreImpl& store_;
  const StoreSnapshot* const snapshot_;
  const uint64_t wanted_;
  const uint32_t value_bytes_max_;
  std::vector<Source> sources_;
  Source spare_{};               // its memory
  std::vector<uint32_t> order_;  // a heap of those that have records; the first has the current one
  bool downwards_ = false;
  bool keys_only_ = false;
};

}  // namespace perdure::store
