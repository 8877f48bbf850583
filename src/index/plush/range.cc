// Tables in the order of their keys: where a key is, and ordered scans.
//
// A key's place in key_min..key_max, moved up so that its leading bits are significant, stands where
// other tables have the hash of the key. Everything that is indexed by leading bits then lies in the
// order of the keys, level by level, and a scan goes along it. What needs bits that are evenly spread
// (filters) mixes the place first.
//
// A scan reads from the top down: a row, its entry, the children. Records move down only, and are in
// their new place before they leave the old one, so one that nobody writes is met at least once; where
// it is met twice the upper copy counts. Each row and entry is copied without a lock, again if records
// went away meanwhile (lookup.cc does the same), and nothing is held while `visit` runs but an epoch
// guard, which keeps payload where it is.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "index/bytes.h"
#include "index/plush/core.h"

namespace perdure::index::plush {

namespace {

constexpr int kCopyAttempts = 64;

}  // namespace

// ---- scans

// One scan. Records are kept in the order in which they were met: newest first.
class Core::Scan {
 public:
  using Visit = std::function<bool(uint64_t key, uint64_t value)>;

  Scan(const Core& core, uint64_t from, uint64_t limit, const Visit& visit)
      : core_(core), from_(from), left_(limit), visit_(visit) {}

  // From the row of `at` to the end.
  void take_all(uint64_t at) {
    for (bool more = true; more;) {
      // Payload stays readable while a row's records are given.
      std::optional<pm::EpochManager::Guard> guard;
      if (core_.payload_.is_used()) guard.emplace(core_.payload_.log().epochs());
      const uint32_t top = core_.geometry_.top_for(at);
      if (take_row(top, core_.geometry_.index_at(top, at))) {
        at = core_.geometry_.next_row(at, top);
        more = at != 0;
      } else if (grown_) {
        grown_ = false;
        at = resume_;
        from_ = std::max(from_, at);  // what is before has been given
      } else {
        more = false;
      }
    }
  }

 private:
  // Everything under a row. Returns whether there is more to visit; false, too, if the row is no more.
  bool take_row(uint32_t top, uint64_t index) {
    const uint64_t row = core_.geometry_.row_of(top, index);
    resume_ = index << core_.geometry_.index_shift(top);
    std::vector<Collected> records;
    if (!copy(row, records, [&] { return copy_row(row, records); })) return false;
    return descend(top, index, std::move(records), row);
  }

  // Calls `read` until no record went away while it ran. Returns false if the partition has grown.
  template <typename Read>
  bool copy(uint64_t row, std::vector<Collected>& records, const Read& read) {
    const uint32_t top = core_.geometry_.level_of_row(row);
    const uint32_t number = core_.geometry_.partition_above(top, Geometry::index_of_row(row));
    const std::atomic<uint64_t>& version_of_row = core_.rows_[row].version;
    const size_t before = records.size();
    for (int attempt = 0; attempt < kCopyAttempts; ++attempt) {
      const uint64_t version = version_of_row.load(std::memory_order_acquire);
      const bool whole = (version & 1) == 0 && read();
      std::atomic_thread_fence(std::memory_order_acquire);
      if (whole && version_of_row.load(std::memory_order_relaxed) == version) return true;
      records.resize(before);
    }
    const std::lock_guard lock(core_.partitions_[number].lock);
    grown_ = core_.geometry_.top_of(number) != top;
    if (!grown_ && !read()) core_.levels_.throw_damaged(top, Geometry::index_of_row(row));
    return !grown_;
  }

  // Returns false if the record changed while it was read.
  bool copy_one(const Bucket& bucket, uint32_t slot, uint32_t level, uint64_t index,
                std::vector<Collected>& records) const {
    const uint64_t tag = pm::load_acquire(bucket.tags[slot]);
    const uint64_t value = pm::load_acquire(bucket.values[slot]);
    if (pm::load_relaxed(bucket.tags[slot]) != tag) return false;
    const uint64_t hash = core_.geometry_.full_hash(tag, index, level);
    // Only superseded records lead to payload that has gone; or this one is damaged.
    const bool dangles = core_.payload_.is_used() && !core_.payload_.log().alive(value);
    if (hash >= from_) records.push_back({hash, tag, value, dangles});
    return true;
  }

  bool copy_row(uint64_t row, std::vector<Collected>& records) const {
    uint32_t slot = core_.rows_[row].count.load(std::memory_order_acquire);
    while (slot-- > 0) {
      if (!copy_one(core_.rows_.records(row), slot, core_.geometry_.level_of_row(row),
                    Geometry::index_of_row(row), records)) {
        return false;
      }
    }
    return true;
  }

  bool copy_entry(uint32_t level, uint64_t index, std::vector<Collected>& records) const {
    const Place place = core_.levels_.place_at(level, index);
    const Entry& entry = *place.entry;
    for (uint32_t line = place.lines; line-- > 0;) {
      uint32_t at = Levels::line_count(entry, line);
      if (at > kLineRecords) return false;
      while (at-- > 0) {
        const uint32_t unit = pm::load_relaxed(entry.lines[line].bucket[at / kSlots]);
        if (!core_.pool_.leads_inside(uint64_t{unit} * kUnitBytes, sizeof(Bucket))) return false;
        if (!copy_one(*core_.levels_.bucket_at(unit), at % kSlots, level, index, records))
          return false;
      }
    }
    return true;
  }

  // By key; newest first among equals, as they were met.
  static void sort(std::vector<Collected>& records) {
    std::vector<std::pair<uint64_t, size_t>> order(records.size());
    for (size_t i = 0; i < records.size(); ++i) order[i] = {records[i].hash, i};
    std::ranges::sort(order);
    std::vector<Collected> sorted;
    sorted.reserve(records.size());
    for (const auto& [hash, place] : order) sorted.push_back(records[place]);
    records.swap(sorted);
  }

  // An entry and all below it, with what was found above it.
  bool descend(uint32_t level, uint64_t index, std::vector<Collected> records, uint64_t row) {
    if (!copy(row, records, [&] { return copy_entry(level, index, records); })) return false;
    sort(records);
    if (!core_.levels_.has_children(level, index)) return give(records);
    const uint32_t bits = core_.geometry_.level_bits(level + 1);
    auto begin = records.begin();
    for (uint32_t child = 0; child < core_.geometry_.fanout(); ++child) {
      const uint64_t child_index = (index << core_.geometry_.fanout_bits()) + child;
      const auto end = std::find_if(begin, records.end(), [&](const Collected& one) {
        return one.hash >> (64 - bits) != child_index;
      });
      resume_ = std::max(resume_, child_index << (64 - bits));
      const bool intersects = child_index >= from_ >> (64 - bits);
      if (intersects && !descend(level + 1, child_index, {begin, end}, row)) return false;
      begin = end;
    }
    return true;
  }

  // The payload's chunk stays: the scan has a guard.
  bool find_now(uint64_t key, uint64_t& value) const {
    const AsBytes bytes(key);
    Hit hit;
    if (!core_.lookup_.find(core_.key_of(bytes.view()), hit)) return false;
    value = hit.value;
    return true;
  }

  bool give(const std::vector<Collected>& records) {
    for (size_t i = 0; i < records.size(); ++i) {
      const Collected& one = records[i];
      if (i > 0 && records[i - 1].hash == one.hash) continue;  // an older version
      if ((one.tag & 1) != 0) continue;
      const uint64_t key = core_.keys_.word_of_hash(one.hash);
      uint64_t value = one.value;
      // Its successor came to a place above after that was copied; or it is damaged, as find() tells.
      if (one.dangles && !find_now(key, value)) continue;
      if (!visit_(key, value) || --left_ == 0) return false;
    }
    return true;
  }

  const Core& core_;
  uint64_t from_;        // position
  uint64_t resume_ = 0;  // all before this one has been given
  bool grown_ = false;   // the partition, while it was being scanned
  uint64_t left_;
  const Visit& visit_;
};

void Core::scan(uint64_t from, uint64_t limit,
                const std::function<bool(uint64_t key, uint64_t value)>& visit) const {
  if (!keys_.is_ordered()) {
    throw Error(ErrorCode::kWrongType,
                fmt::format("'{}' has no order; ordered scans need plush+range", name_));
  }
  if (from > keys_.max() || limit == 0) return;
  const uint64_t begin = from <= keys_.min() ? 0 : keys_.position_of(from);
  Scan scan(*this, begin, limit, visit);
  scan.take_all(begin);
}

void Core::scan_bytes(
    uint64_t from, uint64_t limit,
    const std::function<bool(uint64_t key, std::string_view value)>& visit) const {
  scan(from, limit, [&](uint64_t key, uint64_t pointer) {
    const PayloadLog::View view = payload_.view_of(pointer);
    if (Keys::word_of(view.key) != key) {
      pool_.throw_corrupt(fmt::format("a record of '{}' leads to another key", name_));
    }
    return visit(key, view.value);
  });
}

}  // namespace perdure::index::plush
