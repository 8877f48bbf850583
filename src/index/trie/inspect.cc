// Looking at a whole tree: statistics, verification.
#include <fmt/core.h>

#include <array>
#include <unordered_set>

#include "index/structure.h"
#include "index/trie/core.h"

namespace perdure::index::trie {

// Calls visit(word, depth) for each leaf and node, a node before its children.
template <typename Policy, typename Content>
template <typename Visit>
void Core<Policy, Content>::visit_words(const Visit& visit) const {
  std::vector<Frame> frames;
  for (uint64_t word = child_at({}, 0);;) {
    if (word != 0) {
      visit(word, frames.size());
      if (!is_leaf(word)) {
        const uint32_t above = frames.empty() ? 0 : branch_of(frames.back().owner.word) + 1;
        frames.push_back({{&enter(word, above), word}, 0});
      }
    }
    word = 0;
    while (!frames.empty() && word == 0) {
      Frame& frame = frames.back();
      word = next_child(frame.owner, frame.position);
      ++frame.position;
      if (word == 0) frames.pop_back();
    }
    if (word == 0) return;
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  visit_words([&](uint64_t word, size_t) {
    meet(offset_of(word), is_leaf(word) ? leaf_bytes(word) : Shape::bytes_of(tag_of(word)));
  });
}

// Follows nothing that it has not judged.
template <typename Policy, typename Content>
class Core<Policy, Content>::Checker {
 public:
  Checker(const Core& core, const std::function<void(const std::string&)>& report)
      : core_(core), report_(report) {}

  uint64_t check() {
    follow(core_.child_at({}, 0));
    return found_;
  }

 private:
  struct Step {
    Owner owner;
    uint32_t symbol;  // that was taken
  };

  void fail(const char* text, uint64_t word) {
    report_(fmt::format("'{}': what is at {} {}", core_.name_, offset_of(word), text));
    ++found_;
  }

  void follow(uint64_t word) {
    if (word == 0) return;
    const uint64_t offset = offset_of(word);
    if (!met_.insert(offset).second) return fail("has two parents", word);
    if (is_leaf(word)) return check_leaf(word);
    const uint64_t bytes = Shape::bytes_of(tag_of(word));
    if (bytes == 0 || !core_.pool_.leads_inside(offset, bytes) ||
        !core_.pool_.heap().is_allocated(offset, bytes)) {
      return fail("is no node, but a word leads there", word);
    }
    const auto& node = *core_.pool_.template at<Node>(offset);
    const uint32_t branch = branch_of(word);
    if (node.branch != branch || (!path_.empty() && branch <= branch_of(path_.back().owner.word)))
      return fail("has another branch than its place is for", word);
    const Owner owner{core_.pool_.template at<Node>(offset), word};
    if (core_.is_obsolete(owner)) fail("was replaced, but is in use", word);
    if (node.end != 0 && !is_leaf(node.end)) return fail("ends in what is no leaf", word);
    if (!Shape::is_sound(*owner.node, tag_of(word)))
      return fail("has entries that contradict one another", word);
    path_.push_back({owner, 0});
    for (uint32_t position = 0;; ++position) {
      const uint64_t child = core_.next_child(owner, position);
      if (child == 0) break;
      path_.back().symbol = symbol_of_position(position);
      follow(child);
    }
    path_.pop_back();
  }

  void check_leaf(uint64_t word) {
    const uint64_t offset = offset_of(word);
    if constexpr (kWords) {
      if (word != leaf_word(offset) || !core_.pool_.leads_inside(offset, sizeof(Leaf)) ||
          !core_.pool_.heap().is_allocated(offset, sizeof(Leaf))) {
        return fail("is no leaf, but a word leads there", word);
      }
    } else if (word != leaf_word(offset) || !core_.records_.intact(offset)) {
      return fail("is no record, or one whose checksum does not hold", word);
    }
    const Text text = core_.text_of_leaf(word);
    for (const Step& step : path_) {
      const uint32_t branch = branch_of(step.owner.word);
      if (Symbol::length(text) < branch || symbol_or_end(text, branch) != step.symbol)
        return fail("has another key than its place is for", word);
      if (!Symbol::window_fits(*step.owner.node, branch, text))
        return fail("has another key than the window above it", word);
    }
  }

  const Core& core_;
  const std::function<void(const std::string&)>& report_;
  std::vector<Step> path_;
  std::unordered_set<uint64_t> met_;
  uint64_t found_ = 0;
};

template <typename Policy, typename Content>
uint64_t Core<Policy, Content>::check(const std::function<void(const std::string&)>& report) const {
  const pm::EpochManager::Guard guard(epochs_);
  uint64_t found = Checker(*this, report).check();
  if (found > 0) return found;
  check_owners(*this, pool_, name_, [&](const std::string& text) { report(text), ++found; });
  return found;
}

template <typename Policy, typename Content>
std::vector<Statistic> Core<Policy, Content>::statistics() const {
  const pm::EpochManager::Guard guard(epochs_);
  const uint64_t pool_bytes = owned_bytes(*this);
  std::array<uint64_t, kTagMask + 1> nodes{};
  uint64_t records = 0;
  uint64_t nodes_above = 0;
  visit_words([&](uint64_t word, size_t depth) {
    if (!is_leaf(word)) {
      ++nodes[tag_of(word)];
      return;
    }
    ++records;
    nodes_above += depth;
  });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes",
           stripes_.dram_bytes() + leaf_stripes_.dram_bytes() + pm::EpochManager::kDramBytes,
           "bytes");
  list.add("recovered_operations", 0, "operations");  // there is nothing to recover
  list.add("records", records, "records");
  for (uint64_t tag = Shape::kSmall; tag <= kTagMask; ++tag) {
    if (Shape::bytes_of(tag) == 0) continue;
    list.add(fmt::format("nodes_of_{}", Shape::room_of(tag)), nodes[tag], "nodes");
  }
  list.add_ratio("nodes_above_a_record", nodes_above, records, "nodes");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_TRIE_INSTANTIATE)

}  // namespace perdure::index::trie
