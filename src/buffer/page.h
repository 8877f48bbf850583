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
// A change brings the checksums of the parts that it touched up to date, and the first one, where
// the LSN is: by what is changed, as CRC32C is linear, or by computing them anew (PageEdit).
#pragma once

#include <array>
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
// What the difference of two CRCs becomes when `bytes`, up to kPageBytesMax, that are alike follow
// in both: the difference times x^(8 * bytes) modulo the polynomial. By a multiplication without
// carries, and by a loop.
uint32_t crc32c_shift(uint32_t difference, uint32_t bytes);
uint32_t crc32c_shift_portable(uint32_t difference, uint32_t bytes);

class PageUndo;

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
  // Whatever these parts hold passes for sound then.
  void seal(char* page, PartMask parts) const;
  // Whether this is page `id`, and all its checksums fit.
  bool is_sound(const char* page, uint64_t id) const;

 private:
  friend class PageEdit;
  uint32_t checksum(const char* page, uint32_t part) const;
  // Where the checksums end, and the bytes that the first one covers behind them.
  uint32_t sums_end() const {
    return static_cast<uint32_t>(sizeof(PageHeader)) + uint32_t{4} * parts_;
  }
  uint32_t first_body() const { return part_bytes_ > sums_end() ? part_bytes_ - sums_end() : 0; }
  uint32_t* checksums(char* page) const {
    return reinterpret_cast<uint32_t*>(page + sizeof(PageHeader));
  }

  uint32_t page_bytes_;
  uint32_t parts_;
  uint32_t part_bytes_;
};

// What becomes of the checksums of a page that is changed.
enum class Checksums : uint8_t {
  kLater,  // who changes it has them computed; pages in DRAM, and those that have some to compute
  kNow,    // they are right, and stay so, where that is cheaper than to compute them
};

// One change of a page in place. Whoever changes bytes of the body tells which ones before, in
// steps: ranges of one step do not overlap.
//
// A checksum that is kept is changed by the difference of what the bytes were and what they are:
// the cost goes by the bytes that are changed, not by those of the part. It is also safer than to
// compute it, after which whatever the part holds passes for sound: here a part whose checksum did
// not fit has one that does not fit.
//
// For crashes this is the same as to compute them: the checksums of the other parts are there
// before the LSN, and the first checksum, which covers both, comes last; until then it is the one
// of the old LSN, which does not fit the new one. So it is kept only if all others are: were one
// left to be computed, the page would look right while that part's lines are still the old ones.
class PageEdit {
 public:
  // `undo`, if it is not null, gets what the bytes were.
  PageEdit(const PageFormat& format, char* page, Checksums checksums, PageUndo* undo = nullptr)
      : format_(format), page_(page), undo_(undo), keeps_(checksums == Checksums::kNow) {}

  void will_change(uint32_t offset, uint32_t bytes);
  void will_change_all();
  // What was told since the last one has been changed.
  void end_step();
  // The whole change is done, and makes this the page's id and LSN. Returns the parts whose
  // checksums have to be computed: none if they were kept.
  PartMask finish(uint64_t id, uint64_t lsn);

 private:
  struct Range {
    uint32_t part;
    uint32_t offset;
    uint32_t bytes;
    uint64_t before;      // up to kWord bytes: what they were; else the CRC of that
    uint32_t difference;  // of the part's CRC, once its step has ended
  };
  static constexpr uint32_t kRangesMax = 12;
  static constexpr uint32_t kWord = 8;

  const PageFormat& format_;
  char* page_;
  PageUndo* undo_;
  bool keeps_;
  PartMask touched_ = 0;
  uint32_t begun_ = 0;  // ranges of steps that have ended
  uint32_t count_ = 0;
  std::array<Range, kRangesMax> ranges_;
};

}  // namespace perdure::buffer
