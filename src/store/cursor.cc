#include "store/cursor.h"

#include <algorithm>

#include "store/store_impl.h"

namespace perdure::store {

namespace {

constexpr size_t kRecordsMax = 256;    // of a source
constexpr size_t kBytesMax = 1 << 20;  // the same, and one record more

}  // namespace

void StoreCursor::seek(const ScanFrom& from) {
  order_.clear();
  sources_.clear();
  place(from);
}

// All of it, or nothing has changed.
void StoreCursor::place(const ScanFrom& from) {
  StoreCursor placed(store_, wanted_, snapshot_, value_bytes_max_);
  placed.read_from(from);
  sources_.swap(placed.sources_);
  order_.swap(placed.order_);
  downwards_ = placed.downwards_;
  keys_only_ = placed.keys_only_;
}

void StoreCursor::read_from(const ScanFrom& from) {
  downwards_ = from.downwards;
  keys_only_ = from.keys_only;
  if (store_.cut_by_boundaries()) {
    const uint32_t last = store_.partitions() - 1;
    const uint32_t number = from.whole ? (downwards_ ? last : 0) : store_.place_of(from.key).number;
    sources_.push_back({.number = number});
  } else {
    for (uint32_t number = 0; number < store_.partitions(); ++number) {
      sources_.push_back({.number = number});
    }
  }
  for (Source& source : sources_) {
    // Somewhat more than its share: fewer have to be asked again.
    const uint64_t share = sources_.size() == 1 ? wanted_ : wanted_ * 5 / 4 / sources_.size() + 1;
    source.chunk = std::clamp<size_t>(share, 1, kRecordsMax);
    fill(source, from);
    enter(source);
  }
}

// Reads the next records of the source. Where it has no more, and is one of several in a row, the
// next one takes its place.
void StoreCursor::fill(Source& source, const ScanFrom& from) const {
  ScanFrom next = from;
  for (;;) {
    source.records.clear();
    source.bytes.clear();
    source.at = 0;
    source.ended = true;
    next.expected = source.chunk;
    const auto keep = [&](std::string_view key, const Partition::Found& found) {
      if (source.records.size() == source.chunk || source.bytes.size() > kBytesMax) {
        source.ended = false;
        return false;
      }
      const bool is_left_out = found.value.size() > value_bytes_max_;
      source.records.push_back({source.bytes.size(), static_cast<uint32_t>(key.size()),
                                is_left_out ? kLeftOut : static_cast<uint32_t>(found.value.size()),
                                found.version});
      source.bytes.append(key);
      if (!is_left_out) source.bytes.append(found.value);
      return true;
    };
    store_.scan(source.number, next, snapshot_, keep);
    source.chunk = std::min(2 * source.chunk, kRecordsMax);
    if (!source.records.empty() || !store_.cut_by_boundaries()) return;
    if (source.number == (downwards_ ? 0 : store_.partitions() - 1)) return;
    source.number += downwards_ ? -1 : 1;
    next = {.whole = true, .downwards = downwards_, .keys_only = keys_only_};
  }
}

bool StoreCursor::comes_later(uint32_t a, uint32_t b) const {
  const std::string_view first = key_of(sources_[a]);
  const std::string_view second = key_of(sources_[b]);
  return downwards_ ? first < second : first > second;
}

// The source, if it has records, among the others.
void StoreCursor::enter(const Source& source) {
  if (source.at == source.records.size()) return;
  order_.push_back(static_cast<uint32_t>(&source - sources_.data()));
  std::ranges::push_heap(order_, [&](uint32_t a, uint32_t b) { return comes_later(a, b); });
}

// Past the current record. What has to be read is read aside, before anything changes: an error
// leaves the source, and its place among the others, as they were.
void StoreCursor::step() {
  Source& source = sources_[order_.front()];
  const bool is_last = source.at + 1 == source.records.size();
  const bool reads = is_last && (store_.cut_by_boundaries() || !source.ended);
  if (reads) {
    spare_.number = source.number;
    spare_.chunk = source.chunk;
    fill(spare_,
         {.key = key_of(source), .beyond = true, .downwards = downwards_, .keys_only = keys_only_});
  }
  std::ranges::pop_heap(order_, [&](uint32_t a, uint32_t b) { return comes_later(a, b); });
  order_.pop_back();
  if (reads) {
    std::swap(source, spare_);
  } else {
    ++source.at;
  }
  enter(source);
}

// From the current record on the other way.
void StoreCursor::turn(bool downwards) {
  place({.key = key(), .beyond = true, .downwards = downwards, .keys_only = keys_only_});
}

std::string_view StoreCursor::value() const {
  const Record& record = current().records[current().at];
  if (!has_value()) return {};
  return {current().bytes.data() + record.begin + record.key_bytes, record.value_bytes};
}

void StoreCursor::next() {
  if (!valid()) return;
  downwards_ ? turn(false) : step();
}

void StoreCursor::previous() {
  if (!valid()) return;
  downwards_ ? step() : turn(true);
}

}  // namespace perdure::store
