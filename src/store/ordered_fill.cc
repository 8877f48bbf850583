// An ordered index that is built of many records at once, as recovery needs it: they are sorted by
// the heads of their keys, and the nodes are filled one after the other. So no key is looked up,
// and hardly any record is read out of turn. What a snapshot had is merged with them leaf by leaf.
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

// A leaf behind all others. There is room for it.
void OrderedIndex::append_leaf(Leaf* leaf, Row& leaves) {
  leaves.push_back(leaf);
  leaf->previous = last_;
  leaf->next = nullptr;
  (last_ != nullptr ? last_->next : first_) = leaf;
  last_ = leaf;
}

OrderedIndex::Leaf* OrderedIndex::add_leaf(size_t entries, Row& leaves) {
  leaves.make_room();
  append_leaf(new_leaf(entries), leaves);
  return last_;
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

// The leaves below a node, and what separates them; inner nodes have nothing any more then. There
// is room for all of them.
void OrderedIndex::take_apart(Node* node, Row& leaves, std::vector<Inner*>& inner) {
  node->parent = nullptr;
  if (node->is_leaf) return leaves.push_back(node);
  auto* above = static_cast<Inner*>(node);
  inner.push_back(above);
  for (size_t i = 0; i < above->children.size(); ++i) {
    take_apart(above->children[i], leaves, inner);
    if (i < above->separators.size()) leaves.behind_last() = std::move(above->separators[i]);
  }
}

// Takes leaves one by one, in their order, and gives them to a row with the new records that belong
// between the texts around them.
class OrderedIndex::Merger {
 public:
  Merger(OrderedIndex& index, std::span<const Sorted> records, const KeptOf& kept_of, bool replaces,
         Row& to)
      : index_(index), records_(records), kept_of_(kept_of), replaces_(replaces), to_(to) {
    prefetch_from(0, kAhead);
  }

  // `behind`: what separates the leaf from the next one; null: it is the last. There is room for
  // the leaf.
  void merge(Leaf* leaf, const std::string* behind) {
    index_.append_leaf(leaf, to_);
    take_keys(behind);
    if (keys_.empty()) return;
    const auto common = [&](std::string_view key) { return common_bytes(key, leaf->prefix); };
    if (leaf->heads.empty()) leaf->prefix.clear();
    shorten_prefix(*leaf, std::min(common(keys_.front()), common(keys_.back())));
    merge_entries(*leaf);
    index_.size_ += heads_.size() - leaf->heads.size();
    give(*leaf);
  }

 private:
  static constexpr size_t kAhead = 2 * kMax;

  void prefetch_from(size_t first, size_t count) const {
    for (size_t i = first; i < std::min(first + count, records_.size()); ++i) {
      index_.keys_.prefetch_at(records_[i].location());
    }
  }

  void take_keys(const std::string* behind) {
    keys_.clear();
    begin_ = next_;
    for (; next_ < records_.size(); ++next_) {
      prefetch_from(next_ + kAhead, 1);
      const std::string_view key = index_.keys_.sound_key_at(records_[next_].location());
      if (behind != nullptr && key >= *behind) break;
      keys_.push_back(key);
    }
  }

  void put(uint64_t head, uint64_t place) {
    heads_.push_back(head);
    places_.push_back(place);
  }

  // Of the new keys. Records of the leaf that have one of them are read: if they may be many, all
  // are asked for before.
  void take_heads(const Leaf& leaf) {
    new_heads_.clear();
    size_t i = 0;
    for (const std::string_view key : keys_) {
      const uint64_t head = head_of(key, leaf.prefix.size());
      new_heads_.push_back(head);
      if (!replaces_) continue;
      while (i < leaf.heads.size() && leaf.heads[i] < head) ++i;
      for (; i < leaf.heads.size() && leaf.heads[i] == head; ++i) {
        index_.keys_.prefetch_at(Location::of_word(leaf.places[i]));
      }
    }
  }

  // What the leaf has, and the new ones.
  void merge_entries(const Leaf& leaf) {
    heads_.clear();
    places_.clear();
    take_heads(leaf);
    size_t i = 0;
    for (size_t k = 0; k < keys_.size(); ++k) {
      const uint64_t head = new_heads_[k];
      const Location location = records_[begin_ + k].location();
      for (; i < leaf.heads.size() && leaf.heads[i] < head; ++i) put(leaf.heads[i], leaf.places[i]);
      bool is_kept = true;
      for (; i < leaf.heads.size() && leaf.heads[i] == head; ++i) {
        const std::string_view key = index_.key_at(leaf, i);
        if (key > keys_[k]) break;
        std::optional<Location> kept;
        if (key == keys_[k]) kept = kept_of_(Location::of_word(leaf.places[i]), location);
        put(head, kept ? kept->word() : leaf.places[i]);
        is_kept = is_kept && !kept;
      }
      if (is_kept) put(head, location.word());
    }
    for (; i < leaf.heads.size(); ++i) put(leaf.heads[i], leaf.places[i]);
  }

  // The entries, to the leaf and to others behind it.
  void give(Leaf& leaf) {
    const size_t size = heads_.size();
    const size_t leaves = size <= leaf.heads.capacity() ? 1 : (size + kFilled - 1) / kFilled;
    Leaf* to = &leaf;
    for (size_t i = 0; i < leaves; ++i) {
      const auto first = static_cast<ptrdiff_t>(size * i / leaves);
      const auto last = static_cast<ptrdiff_t>(size * (i + 1) / leaves);
      if (i != 0) {
        std::string separator = separator_before(static_cast<size_t>(first));
        std::string prefix = leaf.prefix;
        to_.behind_last().swap(separator);
        to = index_.add_leaf(kMax, to_);
        to->prefix.swap(prefix);
      }
      to->heads.assign(heads_.begin() + first, heads_.begin() + last);
      to->places.assign(places_.begin() + first, places_.begin() + last);
    }
  }

  std::string separator_before(size_t i) const {
    const std::string_view low = index_.keys_.key_at(Location::of_word(places_[i]));
    const std::string_view before = index_.keys_.key_at(Location::of_word(places_[i - 1]));
    return std::string(low.substr(0, common_bytes(before, low) + 1));
  }

  OrderedIndex& index_;
  const std::span<const Sorted> records_;
  const KeptOf& kept_of_;
  const bool replaces_;
  Row& to_;
  size_t begin_ = 0;  // of records_: those of the leaf
  size_t next_ = 0;
  std::vector<std::string_view> keys_;  // theirs
  std::vector<uint64_t> new_heads_;
  std::vector<uint64_t> heads_;
  std::vector<uint64_t> places_;
};

void OrderedIndex::add(std::span<const Location> records, const KeptOf& kept_of, bool replaces) {
  if (records.empty()) return;
  OrderedIndex empty(keys_);
  try {
    Sorter sorter(keys_, records);
    const std::span<const Sorted> sorted = sorter.kept(kept_of);
    Row leaves(*this, leaves_);
    std::vector<Inner*> inner;
    inner.reserve(leaves_);
    take_apart(std::exchange(root_, nullptr), leaves, inner);
    first_ = last_ = nullptr;
    for (Inner* const one : inner) free_node(one);
    Row row(*this, leaves_ + sorted.size() / kFilled);
    Merger merger(*this, sorted, kept_of, replaces, row);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const bool is_last = i + 1 == leaves.size();
      std::string behind = is_last ? std::string() : leaves.take_separator(i);
      row.make_room();
      merger.merge(static_cast<Leaf*>(leaves.take(i)), is_last ? nullptr : &behind);
      row.behind_last().swap(behind);
    }
    build_above(row);
    ++changes_;
  } catch (...) {
    swap(empty);
    throw;
  }
}

}  // namespace perdure::store
