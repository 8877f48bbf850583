// Tries that were made persistent: a compressed path shortened too early, a node that grows, a
// permutation, a table of nodes. (A lock that stays locked is in recovery.cc.)
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "crash_gallery/gallery.h"

namespace perdure::crash_gallery {
namespace {

using lab::crash::Answer;
using lab::crash::Step;
using lab::crash::Verb;

// ---- a compressed path

struct Radix {
  alignas(64) uint64_t top;  // a node's number
  struct Node {
    alignas(64) char prefix[8];  // changed by one store
    char symbols[2];
    uint64_t children[2];  // a node's number; 0: a leaf
  } nodes[4];
};

// All keys differ from a new one inside of the top node's path: a parent with the part before comes
// above it, and its own path loses that part. With the fault it does so first: until the parent is
// linked all keys have lost their beginning. The twin's paths are counted from the beginning of the
// keys, and never change.
template <bool kRepaired>
class PrefixBeforeParent : public RootProgram<Radix> {
 public:
  uint32_t operation_count() const override { return 2; }

 protected:
  void set_up(Radix& root) override {
    root.nodes[1] = {"abcd", {'x', 'y'}, {0, 0}};
    root.top = 1;
  }
  void perform(Radix& root, uint32_t number) override {
    const std::string key = number == 0 ? "abq" : "az";
    Radix::Node& child = root.nodes[root.top];
    const std::string path = child.prefix;
    const size_t differs = key.size() - 1;
    Radix::Node& parent = root.nodes[root.top + 1];
    set_prefix(parent, path.substr(0, differs));
    parent.symbols[0] = path[differs];
    parent.children[0] = root.top;
    parent.symbols[1] = key[differs];
    memory.persist(&parent, sizeof parent);
    if (!kRepaired) {
      set_prefix(child, path.substr(differs + 1));
      memory.persist(&child.prefix, sizeof child.prefix);  // crash in prefix_before_parent
    }
    root.top += 1;
    memory.persist(&root.top, sizeof root.top);  // crash in prefix_before_parent
  }
  std::string restore(Radix& root) override {
    std::set<std::string> keys;
    collect(root, root.top, "", keys);
    return fmt::format("{}", fmt::join(keys, " "));
  }

 private:
  static void set_prefix(Radix::Node& node, const std::string& path) {
    uint64_t word = 0;
    std::copy(path.begin(), path.end(), reinterpret_cast<char*>(&word));
    pm::store_release(*reinterpret_cast<uint64_t*>(node.prefix), word);
  }
  static void collect(const Radix& root, uint64_t number, const std::string& before,
                      std::set<std::string>& keys) {
    const Radix::Node& node = root.nodes[number];
    const std::string path = kRepaired ? node.prefix : before + node.prefix;
    for (int i = 0; i < 2; ++i) {
      const std::string key = path + node.symbols[i];
      if (node.children[i] == 0) {
        keys.insert(key);
      } else {
        collect(root, node.children[i], key, keys);
      }
    }
  }
};

// ---- a node that grows

struct Growing {
  alignas(64) uint64_t top;
  struct Node {
    alignas(64) uint64_t keys[8];  // 0: none
  } nodes[4];
};

// A full node is replaced by a larger copy, which counts as soon as it is linked. With the fault
// the copy is flushed afterwards.
template <bool kRepaired>
class GrownBeforeCopy : public RootProgram<Growing> {
 public:
  uint32_t operation_count() const override { return 6; }

 protected:
  void perform(Growing& root, uint32_t number) override {
    Growing::Node& node = root.nodes[root.top];
    const uint64_t room = 2 * (root.top + 1);
    const uint64_t key = 30 + number;
    if (number < room) {
      node.keys[number] = key;
      memory.persist(&node.keys[number], sizeof key);
      return;
    }
    Growing::Node& larger = root.nodes[root.top + 1];
    for (uint64_t i = 0; i < room; ++i) larger.keys[i] = node.keys[i];  // lost in grown_before_copy
    larger.keys[room] = key;
    if (kRepaired) memory.persist(&larger, sizeof larger);
    root.top += 1;
    memory.persist(&root.top, sizeof root.top);
    if (!kRepaired) memory.persist(&larger, sizeof larger);
  }
  std::string restore(Growing& root) override {
    std::set<uint64_t> keys;
    for (const uint64_t key : root.nodes[root.top].keys) {
      if (key != 0) keys.insert(key);
    }
    return fmt::format("{}", fmt::join(keys, " "));
  }
};

// ---- a permutation

struct Border {
  alignas(64) uint64_t
      permutation;  // | slot of rank 1, 4 bits | slot of rank 0 | entries, 4 bits |
  alignas(64) uint64_t entries[8];
};

// The permutation publishes an entry of another line, which it shares a fence with.
template <bool kRepaired>
class PermutationBeforeEntry : public RootProgram<Border> {
 public:
  uint32_t operation_count() const override { return 5; }

 protected:
  void perform(Border& root, uint32_t number) override {
    const uint64_t count = root.permutation & 15;
    root.entries[count] = 90 - number;  // lost in permutation_before_entry
    memory.flush(&root.entries[count], sizeof root.entries[count]);
    if (kRepaired) memory.fence();
    // Keys descend: the new one is the first.
    root.permutation = (root.permutation & ~uint64_t{15}) << 4 | count << 4 | (count + 1);
    memory.persist(&root.permutation, sizeof root.permutation);
  }
  std::string restore(Border& root) override {
    std::string keys;
    uint64_t slots = root.permutation >> 4;
    for (uint64_t count = root.permutation & 15; count > 0; --count, slots >>= 4) {
      keys += fmt::format("{} ", root.entries[slots & 7]);
    }
    return keys;
  }
};

// ---- a table of nodes

struct Mapping {
  struct Entry {
    alignas(64) uint64_t node;  // its number + 1; 0: none
    uint64_t changes;           // how often it has led elsewhere
  } entries[2];
  struct Node {
    alignas(64) uint64_t value;
  } nodes[6];
};

// Two threads. A node is durable before the table leads to it; the entry is not when others see it.
// With the fault they answer from it nevertheless; the twin's reader makes it durable first.
template <bool kRepaired>
class EntryBeforeDurable : public lab::crash::KeyedProgram {
 public:
  uint64_t region_bytes() const override { return lab::crash::kImagePageBytes; }
  void create(void* /*base*/) override {}
  std::vector<std::vector<Step>> steps() const override {
    std::vector<std::vector<Step>> all(2);
    for (uint32_t i = 0; i < 6; ++i) {
      all[0].push_back({Verb::kUpsert, i % 2, 10 + i});
      all[1].push_back({Verb::kLookup, (i + 1) % 2, 0});
    }
    return all;
  }
  Answer perform(void* base, const Step& step) override {
    auto& root = *static_cast<Mapping*>(base);
    Mapping::Entry& entry = root.entries[step.key];
    if (step.verb == Verb::kUpsert) {
      const uint64_t number = step.value - 10;
      root.nodes[number].value = step.value;
      memory.persist(&root.nodes[number], sizeof root.nodes[number]);
      pm::store_release(entry.node, number + 1);  // lost in entry_before_durable
      std::atomic_ref<uint64_t>(entry.changes).fetch_add(1);
      memory.persist(&entry, sizeof entry);
      return {};
    }
    const uint64_t node = pm::load_acquire(entry.node);
    if (kRepaired) memory.persist(&entry, sizeof entry);
    if (node == 0) return {.yes = false};
    return {.value = static_cast<uint32_t>(pm::load_relaxed(root.nodes[node - 1].value))};
  }
  Contents recover(void* base) override {
    const auto& root = *static_cast<Mapping*>(base);
    Contents contents;
    for (uint32_t key = 0; key < 2; ++key) {
      const uint64_t node = root.entries[key].node;
      if (node != 0) contents[key] = static_cast<uint32_t>(root.nodes[node - 1].value);
    }
    return contents;
  }
};

}  // namespace

void add_tries(std::vector<Entry>& entries) {
  entries.push_back(make_entry<PrefixBeforeParent>("prefix_before_parent", "tries.cc"));
  entries.push_back(make_entry<GrownBeforeCopy>("grown_before_copy", "tries.cc"));
  entries.push_back(make_entry<PermutationBeforeEntry>("permutation_before_entry", "tries.cc"));
  entries.push_back(make_threaded_entry<EntryBeforeDurable>("entry_before_durable", "tries.cc"));
}

}  // namespace perdure::crash_gallery
