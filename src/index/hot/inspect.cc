// Looking at a whole trie: statistics, verification.
#include <fmt/core.h>

#include <unordered_set>

#include "index/hot/core.h"

namespace perdure::index::hot {

// Calls on_node(node, word, depth), a node before what is below it, and on_record(item, depth).
template <typename Policy, typename Content>
template <typename OnNode, typename OnRecord>
void Core<Policy, Content>::visit_all(OnNode on_node, OnRecord on_record) const {
  Path frames;
  const auto open = [&](uint64_t word, int32_t above) {
    Node& node = enter(word, above);
    on_node(node, word, frames.size());
    frames.push_back({&node, word, 0});
  };
  if (const uint64_t top = read_top(); top != 0) open(top, kAboveAll);
  while (!frames.empty()) {
    Step& step = frames.back();
    if (step.entry == step.node->count) {
      for_each_added(*step.node, step.word,
                     [&](uint32_t, const Item& item) { on_record(item, frames.size()); });
      frames.pop_back();
      continue;
    }
    const Item item = read(*step.node, step.word, step.entry++);
    if (!item.live) continue;
    if (item.child) {
      open(item.word, first_position(*step.node));
    } else {
      on_record(item, frames.size());
    }
  }
}

template <typename Policy, typename Content>
void Core<Policy, Content>::visit_blocks(
    const std::function<void(uint64_t offset, uint64_t bytes)>& visit) const {
  const VisitBlock meet(pool_, visit);
  const pm::EpochManager::Guard guard(epochs_);
  meet(pool_.offset_of(&root_), sizeof(Root));
  visit_all([&](const Node&, uint64_t word, size_t) { meet(offset_of(word), bytes_of(word)); },
            [&](const Item& item, size_t) {
              if constexpr (!kWords) meet(item.word, records_.bytes(item.word));
            });
}

// Follows nothing that it has not judged.
template <typename Policy, typename Content>
class Core<Policy, Content>::Checker {
 public:
  Checker(const Core& core, const std::function<void(const std::string&)>& report)
      : core_(core), report_(report) {}

  uint64_t check() {
    const uint64_t top = core_.read_top();
    if (top != 0) check_node(top, kAboveAll);
    while (!frames_.empty() && found_ == 0) {
      if (frames_.back().entry == frames_.back().node->count) {
        check_added(frames_.back());
        frames_.pop_back();
      } else {
        check_entry(frames_.back());
      }
    }
    return found_;
  }

 private:
  void fail(const char* text, uint64_t word) {
    report_(fmt::format("'{}': what is at {} {}", core_.name_, offset_of(word), text));
    ++found_;
  }

  // On the way to what is looked at; as in visit_all(), `entry` is the next one.
  struct Frame {
    Node* node;
    uint64_t word;
    int32_t above;  // the last position that decides about the node
    uint32_t entry;
  };

  void check_node(uint64_t word, int32_t above) {
    const uint64_t offset = offset_of(word);
    const uint64_t bytes = bytes_of(word);
    if (word != in_turn(word, 0) && word != in_turn(word, in_turn(word, 0)))
      return fail("is led to by a damaged word", word);
    if (bytes < sizeof(Node) || !core_.pool_.leads_inside(offset, bytes) ||
        !core_.pool_.heap().is_allocated(offset, bytes)) {
      return fail("is no node, but a word leads there", word);
    }
    if (!met_.insert(offset).second) return fail("has two parents", word);
    Node& node = *core_.pool_.template at<Node>(offset);
    if (!Form::fits(node, bytes) || !is_sound(node))
      return fail("is a node that contradicts itself", word);
    if (core_.is_obsolete(node)) fail("was replaced, but is in use", word);
    if (first_position(node) <= above)
      return fail("has another position than its place is for", word);
    frames_.push_back({&node, word, above, 0});
  }

  void check_entry(Frame& frame) {
    const Node& node = *frame.node;
    const uint32_t i = frame.entry++;
    const Item item = core_.read(*frame.node, frame.word, i);
    int32_t between = frame.above;
    if (i > 0) {
      const uint32_t position = position_between(node, i - 1, i);
      between = std::max(between, static_cast<int32_t>(position));
      least_ = std::min(least_, position);
    }
    if (i + 1 < node.count)
      between = std::max(between, static_cast<int32_t>(position_between(node, i, i + 1)));
    if (!item.live) return;
    if (item.child) {
      check_node(item.word, between);  // `frame` may be gone
    } else {
      check_record(item, frame.word);
    }
  }

  // Each belongs into the node by its bits, as all do into the top node, and is there once.
  void check_added([[maybe_unused]] const Frame& frame) {
    if constexpr (kWords) {
      std::unordered_set<uint64_t> keys;
      for (uint32_t i = 0; i < frame.node->count; ++i) {
        const Item item = core_.read(*frame.node, frame.word, i);
        if (item.live) keys.insert(item.word);
      }
      // One that has gone still has its key.
      const uint64_t any = pm::load_relaxed(*Form::slot_in(*frame.node, 0));
      for_each_added(*frame.node, frame.word, [&](uint32_t, const Item& item) {
        if (found_ > 0) return;
        const bool beside = frame.above == kAboveAll || Form::first_difference(any, item.word) >=
                                                            Form::first_position(*frame.node);
        if (!beside || !keys.insert(item.word).second) {
          fail("has a record added that does not belong there", frame.word);
        }
      });
    }
  }

  void check_record(const Item& item, uint64_t word) {
    if constexpr (!kWords) {
      if (!core_.records_.intact(item.word))
        return fail("is no record, or one whose checksum does not hold", item.word);
    }
    // The keys on both sides part where the nodes say.
    const Text text = core_.text_of(item);
    if (begun_ && (Form::first_difference(last_, text) != least_ || !Form::bit_at(text, least_)))
      fail("has another key than its place is for", word);
    begun_ = true;
    last_ = text;
    least_ = Form::kNowhere;
  }

  const Core& core_;
  const std::function<void(const std::string&)>& report_;
  std::unordered_set<uint64_t> met_;
  std::vector<Frame> frames_;
  bool begun_ = false;
  Text last_{};                      // the record before
  uint32_t least_ = Form::kNowhere;  // position between its entries and this one's
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
  uint64_t records = 0;
  uint64_t nodes = 0;
  uint64_t nodes_above = 0;
  uint64_t height = 0;
  visit_all(
      [&](const Node&, uint64_t, size_t depth) {
        ++nodes;
        height = std::max<uint64_t>(height, depth + 1);
      },
      [&](const Item&, size_t depth) {
        ++records;
        nodes_above += depth;
      });
  StatisticList list;
  list.add("pool_bytes", pool_bytes, "bytes");
  list.add("dram_bytes", stripes_.dram_bytes() + pm::EpochManager::kDramBytes, "bytes");
  list.add("recovered_operations", 0, "operations");  // there is nothing to recover
  list.add("records", records, "records");
  list.add("nodes", nodes, "nodes");
  list.add("node_entries_max", node_entries_, "entries");
  list.add("height", height, "nodes");
  list.add_ratio("nodes_above_a_record", nodes_above, records, "nodes");
  list.add_ratio("entries_of_a_node", records + nodes - (nodes == 0 ? 0 : 1), nodes, "entries");
  list.add_ratio("pool_bytes_per_record", pool_bytes, records, "bytes");
  return list.take();
}

PERDURE_INSTANTIATE_PART(PERDURE_HOT_INSTANTIATE)

}  // namespace perdure::index::hot
