// What a page was before a commit changed it: the bytes that are to be changed, each time before
// they are, or, once they come to half of a page, all of it.
//
//   memory  | what was there | offset 4 | bytes 4 | ... | the page |
//           the page's header and checksums first; the whole page is there only if it was kept
//
// What is kept later may have been changed by then: the last one goes back first.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "buffer/page.h"

namespace perdure::buffer {

class PageUndo {
 public:
  // The room that its memory must have.
  static uint64_t memory_bytes(const PageFormat& format) {
    return uint64_t{format.page_bytes()} / 2 * 3;
  }

  // `memory` is empty. No call takes more than it has room for.
  PageUndo(const PageFormat& format, std::string memory, const char* page)
      : memory_(std::move(memory)), page_bytes_(format.page_bytes()) {
    assert(memory_.capacity() >= memory_bytes(format));
    put(page, 0, format.body());
  }

  // Before these bytes of the page are changed.
  void keep(const char* page, uint32_t offset, uint32_t bytes) {
    if (whole_) return;
    if (memory_.size() + bytes + sizeof(Range) > page_bytes_ / 2) return keep_all(page);
    put(page, offset, bytes);
  }
  // Before any of them is.
  void keep_all(const char* page) {
    if (whole_) return;
    const size_t ranges = memory_.size();
    memory_.append(page, page_bytes_);
    put_back(memory_.data() + ranges, ranges);
    whole_ = true;
  }

  // Makes the page what it was.
  void restore(char* page) const {
    if (whole_) {
      std::memcpy(page, whole_page(), page_bytes_);
    } else {
      put_back(page, memory_.size());
    }
  }
  // What it was, beside it as it is now. Throws std::bad_alloc.
  std::string before(const char* page) const {
    std::string copy(whole_ ? whole_page() : page, page_bytes_);
    if (!whole_) put_back(copy.data(), memory_.size());
    return copy;
  }
  PageHeader header() const {
    PageHeader header;
    std::memcpy(&header, memory_.data(), sizeof header);
    return header;
  }
  // Ends it.
  std::string take_memory() { return std::move(memory_); }

 private:
  struct Range {
    uint32_t offset;
    uint32_t bytes;
  };

  const char* whole_page() const { return memory_.data() + memory_.size() - page_bytes_; }
  void put(const char* page, uint32_t offset, uint32_t bytes) {
    const Range range{offset, bytes};
    memory_.append(page + offset, bytes);
    memory_.append(reinterpret_cast<const char*>(&range), sizeof range);
  }
  // Of the ranges that end at `end`.
  void put_back(char* page, size_t end) const {
    while (end > 0) {
      Range range;
      end -= sizeof range;
      std::memcpy(&range, memory_.data() + end, sizeof range);
      end -= range.bytes;
      std::memcpy(page + range.offset, memory_.data() + end, range.bytes);
    }
  }

  std::string memory_;
  uint32_t page_bytes_;
  bool whole_ = false;
};

}  // namespace perdure::buffer
