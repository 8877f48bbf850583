// An ordered index as words: what snapshots have of it.
//
//   kLeavesFollow | leaf | leaf | ... | 0 | place | place | ... | 0
//   leaf: | bytes of the prefix, 32 bits; entries, 32 bits | prefix | heads | places |
//         | bytes of the text that separates it from the next one | that text |
//
// Inner nodes are built anew of these texts. So a leaf can be written while the tree around it
// changes. That the leaves of a walk are in order, and the texts between them: an entry is never
// moved over the point where the walk is, since leaves on both sides of it are not merged. A text
// is the one that stood behind its leaf when that was met: all entries that the leaf had then are
// below it, all that were there and have not been met are not, and stay so.
#include <algorithm>
#include <cstring>
#include <utility>

#include "store/ordered_index.h"
#include "store/ordered_row.h"

namespace perdure::store {

namespace {

constexpr int kPrefixShift = 32;

void put_text(std::string_view text, std::vector<uint64_t>& out) {
  for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(text.size() - i, sizeof word));
    out.push_back(word);
  }
}

}  // namespace

// ---- to words

// What stands between the leaf's entries and those of the next one. Nothing behind the last.
std::string_view OrderedIndex::separator_behind(const Leaf& leaf) {
  for (const Node* node = &leaf; node->parent != nullptr; node = node->parent) {
    const Inner& parent = *node->parent;
    const auto at =
        static_cast<size_t>(std::ranges::find(parent.children, node) - parent.children.begin());
    if (at < parent.separators.size()) return parent.separators[at];
  }
  return {};
}

// Returns how many entries that were: if none, nothing is written.
uint64_t OrderedIndex::save_leaf(const Leaf& leaf, const IsThere& is_there,
                                 std::vector<uint64_t>& out) {
  const auto is_saved = [&](uint64_t place) {
    return !is_there || is_there(Location::of_word(place));
  };
  const auto count = static_cast<uint64_t>(std::ranges::count_if(leaf.places, is_saved));
  if (count == 0) return 0;
  out.push_back(uint64_t{leaf.prefix.size()} << kPrefixShift | count);
  put_text(leaf.prefix, out);
  for (size_t i = 0; i < leaf.places.size(); ++i) {
    if (is_saved(leaf.places[i])) out.push_back(leaf.heads[i]);
  }
  std::ranges::copy_if(leaf.places, std::back_inserter(out), is_saved);
  const std::string_view separator = separator_behind(leaf);
  out.push_back(separator.size());
  put_text(separator, out);
  return count;
}

void OrderedIndex::save(std::vector<uint64_t>& out) const {
  out.push_back(kLeavesFollow);
  for (const Leaf* leaf = first_; leaf != nullptr; leaf = leaf->next) {
    save_leaf(*leaf, nullptr, out);
  }
}

void OrderedIndex::begin_walk() {
  ++walk_;
  is_walked_ = true;
  walk_at_ = first_;
}

std::optional<uint64_t> OrderedIndex::walk_on(const IsThere& is_there, std::vector<uint64_t>& out) {
  if (walk_at_ == nullptr) return {};
  const uint64_t count = save_leaf(*walk_at_, is_there, out);
  walk_at_->walk = walk_;
  walk_at_ = walk_at_->next;
  return count;
}

void OrderedIndex::end_walk() {
  is_walked_ = false;
  walk_at_ = nullptr;
}

// ---- from words

// Words that are read one after the other. What is beyond the last is not there.
class OrderedIndex::Words {
 public:
  explicit Words(std::span<const uint64_t> words) : words_(words) {}

  bool take(size_t count, const uint64_t** out) {
    if (count > words_.size()) return false;
    *out = words_.data();
    words_ = words_.subspan(count);
    return true;
  }
  // A word that is not 0; or 0, if there is one, or none is left.
  uint64_t take_one() {
    const uint64_t* word = nullptr;
    return take(1, &word) ? *word : 0;
  }
  bool take_text(uint64_t bytes, std::string& out) {
    const uint64_t* text = nullptr;
    constexpr uint64_t kMost = uint64_t{1} << 31;
    if (bytes > kMost || !take((bytes + 7) / 8, &text)) return false;
    out.assign(reinterpret_cast<const char*>(text), bytes);
    return true;
  }

 private:
  std::span<const uint64_t> words_;
};

// The leaf that begins with the word `first`, and the text behind it, which replaces the one before
// if the leaf has nothing that is there.
bool OrderedIndex::load_leaf(uint64_t first, Words& words, const IsThere& is_there, Row& leaves) {
  const size_t count = first & 0xffffffff;
  const uint64_t* heads = nullptr;
  const uint64_t* places = nullptr;
  std::string prefix;
  if (!words.take_text(first >> kPrefixShift, prefix) || !words.take(count, &heads) ||
      !words.take(count, &places)) {
    return false;
  }
  const auto is_kept = [&](uint64_t place) {
    return !is_there || is_there(Location::of_word(place));
  };
  if (std::any_of(places, places + count, is_kept)) {
    Leaf& leaf = *add_leaf(std::max(count, kMax), leaves);
    leaf.prefix.swap(prefix);
    for (size_t i = 0; i < count; ++i) {
      if (!is_kept(places[i])) continue;
      leaf.heads.push_back(heads[i]);
      leaf.places.push_back(places[i]);
    }
    size_ += leaf.places.size();
    if (leaf.places.size() < kMax / 4) {
      sparse_.push_back(&leaf);
      leaf.sparse = true;
    }
  }
  const uint64_t* bytes = nullptr;
  return words.take(1, &bytes) && words.take_text(*bytes, leaves.behind_last());
}

bool OrderedIndex::load(std::span<const uint64_t> words, const IsThere& is_there) {
  Words rest(words);
  if (rest.take_one() != kLeavesFollow) return false;
  OrderedIndex made(keys_);
  made.free_node(std::exchange(made.root_, nullptr));
  made.first_ = made.last_ = nullptr;
  {
    Row row(made, 0);
    for (uint64_t first = rest.take_one(); first != 0; first = rest.take_one()) {
      if (!made.load_leaf(first, rest, is_there, row)) return false;
    }
    if (row.size() == 0) made.add_leaf(kMax, row);
    made.build_above(row);
  }
  for (uint64_t place = rest.take_one(); place != 0; place = rest.take_one()) {
    const Location location = Location::of_word(place);
    if (is_there && !is_there(location)) continue;
    const std::string_view key = keys_.key_at(location);
    made.reserve(key, 1);
    made.insert(key, location);
  }
  swap(made);
  return true;
}

}  // namespace perdure::store
