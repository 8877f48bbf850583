// Tables in the order of their keys: where a key is, and ordered scans.
//
// A key's place in key_min..key_max, moved up so that its leading bits are significant, stands
// where other tables have the hash of the key. Everything that is indexed by leading bits then lies
// in the order of the keys, level by level, and a scan goes along it. What needs bits that are
// evenly spread (filters) mixes the place first.
//
// A scan reads from the top down: a row, its entry, the children. Records migrate downwards only,
// and are in their new place before they leave the old one, so one that nobody writes is met at
// least once; where it is met twice the upper copy counts. Downwards it is the same, from the last
// row and child to the first: records still move from above to below. Each row and entry is copied
// without a lock, again if records went away meanwhile (lookup.cc does the same), and nothing is
// held while `visit` runs but an epoch guard, which keeps payload where it is.
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

// One scan, of positions from `first` to `last`. Records are kept in the order in which they were
// met: newest first.
template <bool kBack>
class Core::Scan {
 public:
  using Visit = std::function<bool(uint64_t key, uint64_t value)>;

  Scan(const Core& core, uint64_t first, uint64_t last, uint64_t limit, const Visit& visit)
      : core_(core), first_(first), last_(last), left_(limit), visit_(visit) {}

  void take_all() {
    uint64_t at = kBack ? last_ : first_;
    for (bool more = true; more;) {
      // Payload stays readable while a row's records are given.
      std::optional<pm::EpochManager::Guard> guard;
      if (core_.payload_.is_used()) guard.emplace(core_.payload_.log().epochs());
      const uint32_t top = core_.geometry_.top_for(at);
      if (take_row(top, core_.geometry_.index_at(top, at))) {
        at = kBack ? core_.geometry_.row_begin(at, top) : core_.geometry_.next_row(at, top);
        more = at != 0;
        if (kBack) --at;
      } else if (grown_) {
        grown_ = false;
        // What is before has been given.
        if constexpr (kBack) {
          at = last_ = std::min(last_, resume_);
        } else {
          at = first_ = std::max(first_, resume_);
        }
      } else {
        more = false;
      }
    }
  }

 private:
  // Everything under a row. Returns whether there is more to visit; false, too, if the row is no
  // more.
  bool take_row(uint32_t top, uint64_t index) {
    const uint64_t row = core_.geometry_.row_of(top, index);
    resume_ = end_of(index, core_.geometry_.index_shift(top));
    std::vector<Collected> records;
    if (!copy(row, records, [&] { return copy_row(row, records); })) return false;
    return descend(top, index, std::move(records), row);
  }

  // The end of an entry's positions where the scan comes to it.
  static uint64_t end_of(uint64_t index, uint32_t shift) {
    return kBack ? ((index + 1) << shift) - 1 : index << shift;
  }

  // Calls `read` until no record went away while it ran. Returns false if the partition has grown.
  template <typename Read>
  bool copy(uint64_t row, std::vector<Collected>& records, const Read& read) {
    const uint32_t top = core_.geometry_.level_of_row(row);
    const uint32_t number = core_.geometry_.partition_above(top, Geometry::index_of_row(row));
    const std::atomic<uint64_t>& version_of_row = core_.rows_[row].version;
    const size_t before = records.size();
    for (int attempt = 0; attempt < kCopyAttempts; ++attempt) {
      const uint64_t version = pm::acquire(version_of_row);
      const bool whole = (version & 1) == 0 && read();
      const bool same = still(version_of_row, version);
      if (whole && same) return true;
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
    if (hash >= first_ && hash <= last_) records.push_back({hash, tag, value, dangles});
    return true;
  }

  bool copy_row(uint64_t row, std::vector<Collected>& records) const {
    uint32_t slot = pm::acquire(core_.rows_[row].count);
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
    const uint32_t shift = 64 - bits;
    for (uint32_t i = 0; i < core_.geometry_.fanout(); ++i) {
      const uint32_t child = kBack ? core_.geometry_.fanout() - 1 - i : i;
      const uint64_t child_index = (index << core_.geometry_.fanout_bits()) + child;
      const auto [begin, end] = std::ranges::equal_range(
          records, child_index, {}, [&](const Collected& one) { return one.hash >> shift; });
      const uint64_t reached = end_of(child_index, shift);
      resume_ = kBack ? std::min(resume_, reached) : std::max(resume_, reached);
      const bool intersects = child_index >= first_ >> shift && child_index <= last_ >> shift;
      if (intersects && !descend(level + 1, child_index, {begin, end}, row)) return false;
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
      const size_t at = kBack ? records.size() - 1 - i : i;
      const Collected& one = records[at];
      if (at > 0 && records[at - 1].hash == one.hash) continue;  // an older version
      if ((one.tag & 1) != 0) continue;
      const uint64_t key = core_.keys_.word_of_hash(one.hash);
      uint64_t value = one.value;
      // Its successor came to a place above after that was copied; or it is damaged, as find()
      // tells.
      if (one.dangles && !find_now(key, value)) continue;
      if (!visit_(key, value) || --left_ == 0) return false;
    }
    return true;
  }

  const Core& core_;
  uint64_t first_;
  uint64_t last_;
  uint64_t resume_ = 0;  // where to go on: all before, in the order of the scan, has been given
  bool grown_ = false;   // the partition, while it was being scanned
  uint64_t left_;
  const Visit& visit_;
};

void Core::scan(uint64_t from, uint64_t limit,
                const std::function<bool(uint64_t key, uint64_t value)>& visit) const {
  require_ordered();
  if (from > keys_.max() || limit == 0) return;
  const uint64_t first = from <= keys_.min() ? 0 : keys_.position_of(from);
  Scan<false>(*this, first, ~uint64_t{0}, limit, visit).take_all();
}

void Core::scan_back(std::optional<uint64_t> from, uint64_t limit,
                     const std::function<bool(uint64_t key, uint64_t value)>& visit) const {
  require_ordered();
  if ((from && *from < keys_.min()) || limit == 0) return;
  const uint64_t last = !from || *from >= keys_.max() ? ~uint64_t{0} : keys_.position_of(*from);
  Scan<true>(*this, 0, last, limit, visit).take_all();
}

void Core::require_ordered() const {
  if (keys_.is_ordered()) return;
  throw Error(ErrorCode::kWrongType,
              fmt::format("'{}' has no order; ordered scans need plush+range", name_));
}

// A record with its payload.
template <typename Visit>
bool Core::give_bytes(uint64_t key, uint64_t pointer, const Visit& visit) const {
  const PayloadLog::View view = payload_.view_of(pointer);
  if (Keys::word_of(view.key) != key) {
    pool_.throw_corrupt(fmt::format("a record of '{}' leads to another key", name_));
  }
  return visit(key, view.value);
}

void Core::scan_bytes(
    uint64_t from, uint64_t limit,
    const std::function<bool(uint64_t key, std::string_view value)>& visit) const {
  scan(from, limit,
       [&](uint64_t key, uint64_t pointer) { return give_bytes(key, pointer, visit); });
}

void Core::scan_bytes_back(
    std::optional<uint64_t> from, uint64_t limit,
    const std::function<bool(uint64_t key, std::string_view value)>& visit) const {
  scan_back(from, limit,
            [&](uint64_t key, uint64_t pointer) { return give_bytes(key, pointer, visit); });
}

}  // namespace perdure::index::plush
