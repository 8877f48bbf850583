// An ordered index that is built of many records at once, as recovery needs it: they are sorted by
// the heads of their keys, and the nodes are filled one after the other. So no key is looked up,
// and hardly any record is read out of turn.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "store/huge_allocator.h"
#include "store/ordered_index.h"
#include "store/ordered_row.h"

namespace perdure::store {

// A record in the order of keys: the head of its key behind the first `skip()` bytes, and its
// place.
struct OrderedIndex::Sorted {
  Location location() const { return Location::of_word(word); }
  size_t skip() const { return word >> kSkipShift; }
  void set(std::string_view key, size_t skip) {
    head = head_of(key, skip);
    word = (word & Location::kMask) | uint64_t{skip} << kSkipShift;
  }

  static constexpr int kSkipShift = 40;  // a key has 64 KiB at most
  static_assert(Location::kMask >> kSkipShift == 0);
  uint64_t head = 0;
  uint64_t word = 0;
};

// Sorts by the heads behind what all keys begin with; those whose heads are the same, by the heads
// behind what these begin with, and so on. What comes first in memory is read first: the keys of
// all records in the order that was given.
class OrderedIndex::Sorter {
 public:
  using List = std::vector<Sorted, HugeAllocator<Sorted>>;
  Sorter(const RecordKeys& keys, std::span<const Location> records) : keys_(keys) {
    list_.reserve(records.size());
    for (const Location record : records) list_.push_back({.word = record.word()});
    runs_.push_back({.first = 0, .last = list_.size(), .known = 0});
    while (!runs_.empty()) {
      const Run run = runs_.back();
      runs_.pop_back();
      run.last - run.first <= kFew ? sort_few(run) : sort(run);
    }
  }

  // Of records with the same key, those that `kept_of` does not drop.
  List& kept(const KeptOf& kept_of) {
    size_t kept = 0;
    for (const Sorted& one : list_) {
      const bool may_be_same =
          kept != 0 && list_[kept - 1].head == one.head && list_[kept - 1].skip() == one.skip();
      if (may_be_same && key_of(list_[kept - 1]) == key_of(one)) {
        if (const auto location = kept_of(list_[kept - 1].location(), one.location())) {
          list_[kept - 1].word = location->word() | uint64_t{one.skip()} << Sorted::kSkipShift;
          continue;
        }
      }
      list_[kept++] = one;
    }
    list_.resize(kept);
    return list_;
  }

 private:
  static constexpr size_t kFew = 12;
  struct Run {
    size_t first;
    size_t last;
    size_t known;  // bytes that all its keys begin with
  };

  std::string_view key_of(const Sorted& one) const { return keys_.sound_key_at(one.location()); }
  template <typename Use>
  void for_each(std::span<Sorted> run, Use use) const {
    constexpr size_t kAhead = 12;
    for (size_t i = 0; i < run.size(); ++i) {
      if (i + kAhead < run.size()) keys_.prefetch_at(run[i + kAhead].location());
      use(run[i], key_of(run[i]));
    }
  }

  void sort(const Run& run) {
    std::span<Sorted> all(list_.data() + run.first, run.last - run.first);
    const std::string_view one = key_of(all.front());
    size_t bytes = one.size();
    for_each(all, [&](const Sorted&, std::string_view key) {
      // What is known of it is not compared.
      const std::string_view known = one.substr(run.known, bytes - run.known);
      bytes = run.known + common_bytes(known, key.substr(run.known));
    });
    // Keys that end there come first, and are the same.
    size_t ended = 0;
    for_each(all, [&](Sorted& record, std::string_view key) {
      record.set(key, bytes);
      if (key.size() == bytes) std::swap(record, all[ended++]);
    });
    const std::span<Sorted> rest = all.subspan(ended);
    sort_by_head(rest);
    for (size_t first = 0; first < rest.size();) {
      size_t last = first + 1;
      while (last < rest.size() && rest[last].head == rest[first].head) ++last;
      if (last - first > 1) {
        const size_t begin = run.first + ended;
        // One byte more is the same at least: none ends here.
        runs_.push_back({.first = begin + first, .last = begin + last, .known = bytes});
      }
      first = last;
    }
  }

  // Many, byte by byte from the last one on, each pass keeping the order of those before; bytes
  // that are the same in all heads are left out. Comparisons of heads would be foretold wrongly
  // half of the time.
  void sort_by_head(std::span<Sorted> all) {
    constexpr size_t kMany = 4096;
    if (all.size() < kMany) return std::ranges::sort(all, {}, &Sorted::head), void();
    constexpr size_t kBytes = sizeof(Sorted::head);
    std::array<std::array<size_t, 256>, kBytes> counts{};
    for (const Sorted& one : all) {
      for (size_t byte = 0; byte < kBytes; ++byte) ++counts[byte][one.head >> 8 * byte & 0xff];
    }
    spare_.resize(all.size());
    std::span<Sorted> from = all;
    std::span<Sorted> to(spare_);
    for (size_t byte = 0; byte < kBytes; ++byte) {
      std::array<size_t, 256>& ends = counts[byte];
      if (ends[all.front().head >> 8 * byte & 0xff] == all.size()) continue;
      std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), size_t{0});
      for (const Sorted& one : from) to[ends[one.head >> 8 * byte & 0xff]++] = one;
      std::swap(from, to);
    }
    if (from.data() != all.data()) std::ranges::copy(from, all.begin());
  }

  void sort_few(const Run& run) {
    const std::span<Sorted> few(list_.data() + run.first, run.last - run.first);
    for (const Sorted& record : few) keys_.prefetch_at(record.location());
    std::ranges::sort(few, {}, [&](const Sorted& record) { return key_of(record); });
    for (Sorted& record : few) record.set(key_of(record), run.known);
  }

  const RecordKeys& keys_;
  List list_;
  List spare_;  // for a pass
  std::vector<Run> runs_;
};

// A leaf behind all others.
OrderedIndex::Leaf* OrderedIndex::add_leaf(size_t entries, Row& leaves) {
  leaves.make_room();
  Leaf* leaf = new_leaf(entries);
  leaves.push_back(leaf);
  leaf->previous = last_;
  (last_ != nullptr ? last_->next : first_) = leaf;
  return last_ = leaf;
}

void OrderedIndex::build_leaf(std::span<const Sorted> records, Row& leaves) {
  Leaf* leaf = add_leaf(kMax, leaves);
  const auto key_of = [&](const Sorted& one) { return keys_.sound_key_at(one.location()); };
  const std::string_view low = key_of(records.front());
  const size_t common = common_bytes(low, key_of(records.back()));
  // Their heads do, if all are behind the same bytes: they were sorted by them.
  const size_t skip = records.front().skip();
  const bool have_heads = skip <= common && std::ranges::all_of(records, [&](const Sorted& one) {
                            return one.skip() == skip;
                          });
  leaf->prefix = low.substr(0, have_heads ? skip : common);
  if (!have_heads) {
    for (const Sorted& one : records) keys_.prefetch_at(one.location());
  }
  for (const Sorted& one : records) {
    leaf->heads.push_back(have_heads ? one.head : head_of(key_of(one), common));
    leaf->places.push_back(one.location().word());
  }
  size_ += records.size();
}

// Levels above, up to the root.
void OrderedIndex::build_above(Row& row) {
  while (row.size() > 1) {
    const size_t groups = (row.size() + kFilled - 1) / kFilled;
    Row above(*this, groups);
    for (size_t group = 0; group < groups; ++group) {
      const size_t first = row.size() * group / groups;
      const size_t last = row.size() * (group + 1) / groups;
      Inner* inner = new_inner().release();
      above.push_back(inner);
      for (size_t i = first; i < last; ++i) {
        inner->children.push_back(row.take(i));
        inner->children.back()->parent = inner;
        if (i + 1 == last) continue;
        inner->separators.push_back(row.take_separator(i));
        inner->heads.push_back(head_of(inner->separators.back(), 0));
      }
      lengthen_prefix(*inner);
      if (group + 1 < groups) above.behind_last() = row.take_separator(last - 1);
    }
    row.swap(above);
  }
  root_ = row.take(0);
}

void OrderedIndex::fill(std::span<const Location> records, const KeptOf& kept_of) {
  if (records.empty()) return;
  OrderedIndex made(keys_);
  Sorter sorter(keys_, records);
  const std::span<const Sorted> sorted = sorter.kept(kept_of);
  const size_t leaves = (sorted.size() + kFilled - 1) / kFilled;
  made.free_node(std::exchange(made.root_, nullptr));
  made.first_ = made.last_ = nullptr;
  Row row(made, leaves);
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    const size_t first = sorted.size() * leaf / leaves;
    const size_t last = sorted.size() * (leaf + 1) / leaves;
    if (last < sorted.size()) {
      // What the next leaf reads out of turn.
      const size_t next_last = sorted.size() * (leaf + 2) / leaves;
      keys_.prefetch_at(sorted[last].location());
      keys_.prefetch_at(sorted[next_last - 1].location());
    }
    if (leaf != 0) {
      const std::string_view low = keys_.sound_key_at(sorted[first].location());
      const std::string_view before = keys_.sound_key_at(sorted[first - 1].location());
      row.behind_last() = low.substr(0, common_bytes(before, low) + 1);
    }
    made.build_leaf(sorted.subspan(first, last - first), row);
  }
  made.build_above(row);
  swap(made);
}

}  // namespace perdure::store
