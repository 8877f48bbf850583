// B+trees in the buffer pool. A tree is known by its root's page, which never changes.
//
// Nodes have no links to their neighbours: a scan goes from leaf to leaf by the separators above them, so that
// splits and merges touch a node, its parent, and nothing else.
//
// Reading holds a node shared while the child is looked up, and then tries to hold that; if somebody changes it,
// reading lets go of everything and begins at the root again. So readers never wait while they hold a page, and
// whoever changes pages may wait for them in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "buffer/btree/node.h"
#include "buffer/change.h"
#include "buffer/pool.h"

namespace perdure::buffer {

// Bytes that a key may have: an eighth of a page. A record with more than a quarter has its value in overflow pages.
inline uint32_t key_bytes_max(const PageFormat& format) { return format.page_bytes() / 8; }
inline uint32_t inline_bytes_max(const PageFormat& format) { return format.page_bytes() / 4; }

// Reads the value of a key. False if it is absent. Thread-safe.
bool tree_get(BufferPool& pool, uint64_t root, std::string_view key, std::string& value);

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
void tree_read_forward(BufferPool& pool, uint64_t root, std::string_view from, LeafCopy& copy);
// The records below `below` in the last leaf that may have any; `to_end`: as if below were above all keys.
void tree_read_backward(BufferPool& pool, uint64_t root, std::string_view below, bool to_end,
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

// Verifies a tree: calls `report` with a sentence for each violation, and `meet` with each of its pages. Needs that
// nobody writes. Returns the number of records.
uint64_t tree_check(BufferPool& pool, uint64_t root,
                    const std::function<void(const std::string&)>& report,
                    const std::function<void(uint64_t)>& meet);

// What one damaged page takes with it: the value of one key, or however many records lay between two keys.
enum class Loss { kValue, kRange };

// What can be read of a tree that is damaged, page by page: `visit` gets each record, `lost` a sentence for each page and
// value that cannot be read, with the keys that are missing. Needs that nobody writes.
void tree_salvage(BufferPool& pool, uint64_t root,
                  const std::function<void(std::string_view key, std::string_view value)>& visit,
                  const std::function<void(Loss, const std::string&)>& lost);

}  // namespace perdure::buffer
