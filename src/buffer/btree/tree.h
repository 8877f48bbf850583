// B+trees in the buffer pool. A tree is known by its root's page, which never changes.
//
// Nodes have no links to their neighbours: a scan goes from leaf to leaf by the separators above
// them, so that splits and merges touch a node, its parent, and nothing else.
//
// Reading holds a node shared while the child is looked up, and then tries to hold that; if
// somebody changes it, reading lets go of everything and begins at the root again. So readers never
// wait while they hold a page, and whoever changes pages may wait for them in any order. Reading a
// key does without latches where all pages of its way are in DRAM and nobody changes them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "buffer/btree/node.h"
#include "buffer/change.h"
#include "buffer/pool.h"
#include "buffer/versions.h"

namespace perdure::buffer {

// Bytes that a key may have: an eighth of a page. A record with more than a quarter has its value
// in overflow pages.
inline uint32_t key_bytes_max(const PageFormat& format) { return format.page_bytes() / 8; }
inline uint32_t inline_bytes_max(const PageFormat& format) { return format.page_bytes() / 4; }

// Pages as they are now, or, with a moment, as they were then. A tree at a moment never changes.
struct View {
  View(BufferPool& pages, const Moment* then = nullptr) : pool(pages), moment(then) {}
  BufferPool& pool;
  const Moment* moment;
};

// Reads the value of a key. False if it is absent. Thread-safe. This and the next two throw kTooOld
// if the moment was given up.
bool tree_get(const View& view, uint64_t root, std::string_view key, std::string& value);

// A leaf as it was at one moment.
struct LeafCopy {
  struct Record {
    std::string key;
    std::string value;
  };
  uint64_t page = 0;
  std::vector<Record> records;  // in the order of keys
  bool last = false;            // there is no leaf further on
  std::string next;             // where the next leaf begins; backward: where this one does
};
// The records from `from` on in the leaf that `from` belongs to. Thread-safe.
void tree_read_forward(const View& view, uint64_t root, std::string_view from, LeafCopy& copy);
// The records below `below` in the last leaf that may have any; `to_end`: as if below were above
// all keys.
void tree_read_backward(const View& view, uint64_t root, std::string_view below, bool to_end,
                        LeafCopy& copy);

// Changes; only within a commit.
class TreeWriter {
 public:
  TreeWriter(Change& change, uint64_t root) : change_(change), root_(root) {}

  // An empty tree; returns its root.
  static uint64_t create(Change& change);

  void put(std::string_view key, std::string_view value);
  // False if it is absent.
  bool erase(std::string_view key);

 private:
  struct Step {
    uint64_t page;
    uint32_t child;  // which of its children is the next step
  };

  Node node(uint64_t page, int level = kAnyLevel) const;
  std::vector<Step> descend(std::string_view key) const;
  // Puts a record into a node of the path, which may split.
  void put_record(std::vector<Step>& path, size_t depth, NodeContent::Record record);
  void split(std::vector<Step>& path, size_t depth, const NodeContent& content, size_t fresh);
  void write_node(uint64_t page, uint16_t level, uint64_t first,
                  const std::vector<NodeContent::Record>& records, size_t from, size_t to);
  void merge(std::vector<Step>& path, size_t depth);
  bool merge_children(uint64_t parent, uint32_t left);
  std::string write_overflow(std::string_view value);
  void free_overflow(std::string_view reference);

  Change& change_;
  uint64_t root_;
};

// Verifies a tree: calls `report` with a sentence for each violation, and `meet` with each of its
// pages. Needs that nobody writes. Returns the number of records.
uint64_t tree_check(BufferPool& pool, uint64_t root,
                    const std::function<void(const std::string&)>& report,
                    const std::function<void(uint64_t)>& meet);

// What one damaged page takes with it: the value of one key, or however many records lay between
// two keys.
enum class Loss { kValue, kRange };

// What can be read of trees that are damaged, page by page. For one thread; needs that nobody
// writes.
class TreeSalvage {
 public:
  using Visit = std::function<void(std::string_view key, std::string_view value)>;
  using Lost = std::function<void(Loss, const std::string&)>;

  explicit TreeSalvage(BufferPool& pool) : pool_(pool) {}

  // `visit` gets each record, `lost` a sentence for each leaf and value that cannot be read, with
  // the keys that are missing. Returns whether all inner nodes could be read; else find_strays()
  // has the rest, and the sentences. The tree without a name has the names.
  bool walk(const std::string& tree, uint64_t root, const Visit& visit, const Lost& lost);

  // Below inner nodes that could not be read are leaves to which nothing leads. Looks at the pages
  // [1, pages) for them. A leaf is of a tree if its keys lie where that tree has lost an inner
  // node, and no other tree has. (A page that is no longer used says so; what a write that the
  // device has lost would have changed is told by its LSN, if two leaves have the same keys.) Where
  // trees are not known by name, nobody can say so of any leaf: `pages` is 0 then.
  void find_strays(uint64_t pages, const std::function<void(std::string_view tree)>& begin_tree,
                   const Visit& visit, const Lost& lost);

 private:
  struct Bounds {
    std::optional<std::string> low;
    std::optional<std::string> high;
  };
  // What an inner node that cannot be read took with it.
  struct Part {
    std::string tree;
    Bounds bounds;
    std::string why;
  };
  // A leaf to which nothing leads.
  struct Stray {
    uint64_t page;
    uint64_t lsn;
    std::string first;
    std::string last;
    uint64_t records;
  };

  void walk(uint64_t page, int level, const Bounds& bounds, const std::string& tree,
            const Visit& visit, const Lost& lost);
  // Of the records of a leaf those whose keys lie within the bounds. (Where the log is lost, or a
  // write, pages are of different times: what a leaf had before it was split may be in its right
  // half, or have been removed since, and a page may have been another tree's.)
  void read_leaf(const Node& node, uint64_t page, const Bounds& bounds, const std::string& tree,
                 const Visit& visit, const Lost& lost);
  std::optional<Stray> stray_at(uint64_t page) const;
  static bool is_below(const Bounds& bounds, std::string_view key);
  static bool is_above(const Bounds& bounds, std::string_view key);
  static std::string range_of(const Bounds& bounds);
  static std::string label_of(const std::string& tree);
  void take(const Part& part, std::vector<Stray>& strays,
            const std::function<void(std::string_view tree)>& begin_tree, const Visit& visit,
            const Lost& lost);

  BufferPool& pool_;
  std::unordered_set<uint64_t> met_;
  std::vector<Part> parts_;
};

}  // namespace perdure::buffer
