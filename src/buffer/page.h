// A page: what the buffer pool holds, the log changes, and the page file keeps.
//
//   0    id       8 bytes; 0 is the space page, ids count from there
//   8    lsn      8 bytes: of the last log record that was applied
//   16   type     2 bytes
//   18   parts    2 bytes: 1 to 32
//   24   reserved 8 bytes
//   32   parts checksums of 4 bytes, CRC32C; each covers page_bytes / parts bytes, without these checksums;
//         the first one covers the others, too: they may lie in another line than the LSN, and be lost without it
//   ...  body
//
// A change computes the checksums of the parts that it touched, and of the first one, where the LSN
// is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::buffer {

inline constexpr uint32_t kPageBytesMin = 4096;
inline constexpr uint32_t kPageBytesMax = 65536;
inline constexpr uint32_t kPartsMax = 32;
inline constexpr uint64_t kNoPage = ~uint64_t{0};

enum class PageType : uint16_t { kNone = 0, kSpace = 1, kNode = 2, kOverflow = 3, kFree = 4 };

struct PageHeader {
  uint64_t id;
  uint64_t lsn;
  PageType type;
  uint16_t parts;
  uint32_t reserved4;
  uint64_t reserved;
};
static_assert(sizeof(PageHeader) == 32);

inline PageHeader& header_of(char* page) { return *reinterpret_cast<PageHeader*>(page); }
inline const PageHeader& header_of(const char* page) {
  return *reinterpret_cast<const PageHeader*>(page);
}

// CRC32C (Castagnoli), with the processor's instruction where it has it. `crc` continues an earlier
// one.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);
// By a table; what crc32c() does on processors without the instruction.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t bytes);

// The parts of a page that were changed since their checksums were computed: a bit for each.
using PartMask = uint32_t;

// Sizes that all pages of a database have.
class PageFormat {
 public:
  PageFormat(uint32_t page_bytes, uint32_t parts)
      : page_bytes_(page_bytes), parts_(parts), part_bytes_(page_bytes / parts) {}

  uint32_t page_bytes() const { return page_bytes_; }
  uint32_t parts() const { return parts_; }
  // Where the body begins, and its bytes.
  uint32_t body() const {
    return static_cast<uint32_t>((sizeof(PageHeader) + uint64_t{4} * parts_ + 7) / 8 * 8);
  }
  uint32_t body_bytes() const { return page_bytes_ - body(); }
  PartMask all_parts() const { return parts_ == 32 ? ~PartMask{0} : (PartMask{1} << parts_) - 1; }

  // The parts that [offset, offset + bytes) lies in.
  PartMask parts_of(uint32_t offset, uint32_t bytes) const {
    if (bytes == 0) return 0;
    const uint32_t first = offset / part_bytes_;
    const uint32_t last = (offset + bytes - 1) / part_bytes_;
    const uint64_t upto = (uint64_t{2} << last) - 1;
    return static_cast<PartMask>(upto & ~((uint64_t{1} << first) - 1));
  }

  // Computes the checksums of these parts, and at last the first one. Of no part: does nothing.
  void seal(char* page, PartMask parts) const;
  // Whether this is page `id`, and all its checksums fit.
  bool is_sound(const char* page, uint64_t id) const;

 private:
  uint32_t checksum(const char* page, uint32_t part) const;
  uint32_t* checksums(char* page) const {
    return reinterpret_cast<uint32_t*>(page + sizeof(PageHeader));
  }

  uint32_t page_bytes_;
  uint32_t parts_;
  uint32_t part_bytes_;
};

}  // namespace perdure::buffer
