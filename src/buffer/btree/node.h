// A node of a B+tree in a page: slotted, with prefix truncation and the heads of keys beside the
// slots.
//
//   body  | level 2 | count 2 | prefix_bytes 2 | - 2 | heap 4 | garbage 4 | first 8 | slots ... | free | cells | prefix |
//   slot  | head 4 | offset 2 | key_bytes 2 | value_bytes 2 | flags 2 |
//
// All keys of a node begin with its prefix, which is kept once; a cell has the rest of the key, and
// the value. A head is the rest's first four bytes as a number, so that most comparisons end there.
// In an inner node a record is a separator and the child with the keys from there on; `first` is
// the child with those below all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "buffer/page.h"

namespace perdure::buffer {

struct NodeHeader {
  uint16_t level;  // 0: a leaf
  uint16_t count;
  uint16_t prefix_bytes;
  uint16_t reserved;
  uint32_t heap;     // where cells begin
  uint32_t garbage;  // bytes of cells that are gone
  uint64_t first;
};
static_assert(sizeof(NodeHeader) == 24);

struct Slot {
  uint32_t head;
  uint16_t offset;
  uint16_t key_bytes;
  uint16_t value_bytes;
  uint16_t flags;
};
static_assert(sizeof(Slot) == 12);
inline constexpr uint16_t kSlotOverflow = 1;  // the value is an OverflowRef
inline constexpr uint16_t kLevelMax =
    40;  // with two children each there are more pages than any store has

struct OverflowRef {
  uint64_t page;
  uint64_t bytes;
};

// What a node holds, outside of a page.
struct NodeContent {
  struct Record {
    std::string key;
    std::string value;
    uint16_t flags;
  };
  uint16_t level = 0;
  uint64_t first = 0;
  std::vector<Record> records;

  // Bytes of the body of a node with the records [from, to).
  static uint64_t bytes_of(const std::vector<Record>& records, size_t from, size_t to);
};

// A view of a page. Nothing is checked here but by assertions: the checksums of a page and
// is_well_formed() are asked when it comes into the buffer pool.
class Node {
 public:
  Node(const PageFormat& format, char* page) : format_(&format), page_(page) {}

  // Whether all that is said of places in the page lies in it, all bytes of it are accounted for,
  // and the keys are in order.
  bool is_well_formed() const;

  uint16_t level() const { return header().level; }
  uint16_t count() const { return header().count; }
  uint64_t first() const { return header().first; }
  // Bytes that would be free after a compaction, and those that a node has for records.
  uint32_t free_bytes() const;
  uint32_t capacity() const {
    return format_->body_bytes() - static_cast<uint32_t>(sizeof(NodeHeader));
  }

  std::string_view prefix() const {
    return {page_ + format_->page_bytes() - header().prefix_bytes, header().prefix_bytes};
  }
  std::string_view suffix(uint32_t i) const { return {page_ + slot(i).offset, slot(i).key_bytes}; }
  std::string key(uint32_t i) const { return std::string(prefix()).append(suffix(i)); }
  std::string_view value(uint32_t i) const {
    return {page_ + slot(i).offset + slot(i).key_bytes, slot(i).value_bytes};
  }
  uint16_t flags(uint32_t i) const { return slot(i).flags; }
  uint64_t child(uint32_t i) const;  // 0: first()

  // The number of keys below `key`, and whether the next one is `key`.
  uint32_t lower_bound(std::string_view key, bool& found) const;
  // The child for a key, or (`below`) for the keys right below it.
  uint32_t child_index(std::string_view key, bool below) const;

  // Whether a record can be put here without making the node anew.
  bool has_room(std::string_view key, size_t value_bytes) const;

  // Changes, of which `edit` hears before.
  void insert(PageEdit& edit, uint32_t i, std::string_view key, std::string_view value,
              uint16_t flags);
  void erase(PageEdit& edit, uint32_t i);
  void replace(PageEdit& edit, uint32_t i, std::string_view value, uint16_t flags);

  NodeContent content() const;
  // Writes a node with the records [from, to); they fit.
  void build(uint16_t level, uint64_t first, const std::vector<NodeContent::Record>& records,
             size_t from, size_t to);
  // Where cells begin: what an image of the node leaves out is between the slots and them.
  uint32_t slots_end() const {
    return format_->body() + static_cast<uint32_t>(sizeof(NodeHeader) + count() * sizeof(Slot));
  }
  uint32_t heap() const { return header().heap; }

 private:
  NodeHeader& header() const { return *reinterpret_cast<NodeHeader*>(page_ + format_->body()); }
  Slot* slots() const {
    return reinterpret_cast<Slot*>(page_ + format_->body() + sizeof(NodeHeader));
  }
  const Slot& slot(uint32_t i) const { return slots()[i]; }
  int compare_prefix(std::string_view key) const;
  uint32_t slot_at(uint32_t i) const {
    return static_cast<uint32_t>(reinterpret_cast<char*>(slots() + i) - page_);
  }
  void compact();

  const PageFormat* format_;
  char* page_;
};

// The node in a page; `level`: the one that it must have, or kAnyLevel. Throws kCorrupt.
inline constexpr int kAnyLevel = -1;
Node node_of(const PageFormat& format, char* data, uint64_t page, int level);

// The shortest text above `low` and not above `high`.
std::string separator_of(std::string_view low, std::string_view high);

}  // namespace perdure::buffer
