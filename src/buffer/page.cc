#include "buffer/page.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "buffer/page_undo.h"

namespace perdure::buffer {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78U;  // reflected: the highest bit is x^0

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ kPolynomial : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

constexpr uint32_t kOne = 0x80000000U;  // x^0

constexpr uint32_t times_x(uint32_t a) { return (a & 1) != 0 ? a >> 1 ^ kPolynomial : a >> 1; }
constexpr uint32_t divided_by_x(uint32_t a) {
  return (a & kOne) != 0 ? (a ^ kPolynomial) << 1 | 1 : a << 1;
}
constexpr uint32_t repeated(uint32_t (*step)(uint32_t), uint32_t a, uint32_t times) {
  for (; times > 0; --times) a = step(a);
  return a;
}
// Modulo the polynomial.
constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1, b = times_x(b)) {
    if ((a & bit) != 0) sum ^= b;
  }
  return sum;
}

// x^(8 * step * i - 33): the product of two polynomials without carries, taken as 8 bytes, has
// their product times x^33 as its CRC.
template <size_t kCount>
constexpr std::array<uint32_t, kCount> make_powers(uint32_t step) {
  const uint32_t factor = repeated(times_x, kOne, 8 * step);
  std::array<uint32_t, kCount> powers{};
  powers[0] = repeated(divided_by_x, kOne, 33);
  for (size_t i = 1; i < kCount; ++i) powers[i] = product(powers[i - 1], factor);
  return powers;
}
constexpr uint32_t kFine = 512;
constexpr auto kFinePowers = make_powers<kFine>(1);
constexpr auto kCoarsePowers = make_powers<kPageBytesMax / kFine + 1>(kFine);

[[gnu::target("sse4.2,pclmul")]] uint32_t multiply_instruction(uint32_t a, uint32_t b) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)),
                                               _mm_cvtsi32_si128(static_cast<int>(b)), 0);
  return static_cast<uint32_t>(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product))));
}

uint32_t multiply_portable(uint32_t a, uint32_t b) {
  constexpr uint32_t kX33 = repeated(times_x, kOne, 33);
  return product(product(a, b), kX33);
}

[[gnu::target("sse4.2")]] uint32_t crc32c_instruction(uint32_t crc, const char* data,
                                                      size_t bytes) {
  uint64_t state = ~crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; bytes > 0; ++data, --bytes) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*data));
  return ~narrow;
}

[[gnu::target("sse4.2,pclmul")]] uint32_t shift_instruction(uint32_t difference, uint32_t bytes) {
  if (bytes >= kFine) difference = multiply_instruction(difference, kCoarsePowers[bytes / kFine]);
  return multiply_instruction(difference, kFinePowers[bytes % kFine]);
}

[[gnu::target("sse4.2,pclmul")]] uint32_t shifted_instruction(uint64_t difference, uint32_t bytes) {
  return shift_instruction(static_cast<uint32_t>(_mm_crc32_u64(0, difference)), bytes);
}

const bool kHasInstructions =
    __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;

// What a difference of 8 bytes, with `bytes` behind them, makes of a CRC. Zeros before a difference
// count for nothing.
uint32_t shifted(uint64_t difference, uint32_t bytes) {
  if (kHasInstructions) return shifted_instruction(difference, bytes);
  // Without the complements, which differences do not have.
  return crc32c_shift_portable(~crc32c_portable(~0U, &difference, sizeof difference), bytes);
}

// Up to 8 bytes, behind zeros.
uint64_t word_of(const char* data, uint32_t bytes) {
  uint64_t word = 0;
  if (bytes == sizeof word) {
    std::memcpy(&word, data, sizeof word);
  } else {
    std::memcpy(reinterpret_cast<char*>(&word) + sizeof word - bytes, data, bytes);
  }
  return word;
}

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) crc = crc >> 8 ^ kTable[(crc ^ at[i]) & 0xff];
  return ~crc;
}

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? crc32c_instruction(crc, static_cast<const char*>(data), bytes)
                         : crc32c_portable(crc, data, bytes);
}

uint32_t crc32c_shift_portable(uint32_t difference, uint32_t bytes) {
  if (bytes >= kFine) difference = multiply_portable(difference, kCoarsePowers[bytes / kFine]);
  return multiply_portable(difference, kFinePowers[bytes % kFine]);
}

uint32_t crc32c_shift(uint32_t difference, uint32_t bytes) {
  return kHasInstructions ? shift_instruction(difference, bytes)
                          : crc32c_shift_portable(difference, bytes);
}

// Of the part without the checksums themselves; seeded with its number. The first one covers the
// other checksums.
uint32_t PageFormat::checksum(const char* page, uint32_t part) const {
  constexpr uint32_t kSums = sizeof(PageHeader);
  const uint32_t begin = part * part_bytes_;
  const uint32_t end = begin + part_bytes_;
  uint32_t crc = part + 1;
  if (part == 0) {
    crc = crc32c(crc, page, kSums);
    crc = crc32c(crc, page + kSums + 4, sums_end() - kSums - 4);
  }
  const uint32_t rest = std::max(begin, sums_end());
  if (rest < end) crc = crc32c(crc, page + rest, end - rest);
  return crc;
}

void PageFormat::seal(char* page, PartMask parts) const {
  parts &= all_parts();
  if (parts == 0) return;
  for (PartMask others = parts & ~PartMask{1}; others != 0; others &= others - 1) {
    const auto part = static_cast<uint32_t>(std::countr_zero(others));
    checksums(page)[part] = checksum(page, part);
  }
  // The line with the LSN may reach PM at any moment: with the first checksum only if it has the
  // others, too.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  checksums(page)[0] = checksum(page, 0);
}

bool PageFormat::is_sound(const char* page, uint64_t id) const {
  const PageHeader& header = header_of(page);
  if (header.id != id || header.parts != parts_ || header.type == PageType::kNone) return false;
  const uint32_t* sums = checksums(const_cast<char*>(page));
  for (uint32_t part = 0; part < parts_; ++part) {
    if (sums[part] != checksum(page, part)) return false;
  }
  return true;
}

void PageEdit::will_change_all() {
  if (undo_ != nullptr) undo_->keep_all(page_);
  touched_ = format_.all_parts();
  keeps_ = false;
}

void PageEdit::will_change(uint32_t offset, uint32_t bytes) {
  if (bytes == 0) return;
  if (undo_ != nullptr) undo_->keep(page_, offset, bytes);
  touched_ |= format_.parts_of(offset, bytes);
  const uint32_t part_bytes = format_.part_bytes_;
  for (const uint32_t end = offset + bytes; keeps_ && offset < end;) {
    const uint32_t part = offset / part_bytes;
    const uint32_t piece = std::min(end, (part + 1) * part_bytes) - offset;
    // Its bytes are read twice, those of the part would be once.
    if (count_ == kRangesMax || 2 * piece >= part_bytes) {
      keeps_ = false;
      return;
    }
    const char* at = page_ + offset;
    ranges_[count_++] = {part, offset, piece,
                         piece <= kWord ? word_of(at, piece) : crc32c(0, at, piece), 0};
    offset += piece;
  }
}

void PageEdit::end_step() {
  for (; keeps_ && begun_ < count_; ++begun_) {
    Range& range = ranges_[begun_];
    const char* at = page_ + range.offset;
    const uint32_t rest = (range.part + 1) * format_.part_bytes_ - range.offset - range.bytes;
    range.difference =
        range.bytes <= kWord
            ? shifted(range.before ^ word_of(at, range.bytes), rest)
            : crc32c_shift(static_cast<uint32_t>(range.before) ^ crc32c(0, at, range.bytes), rest);
  }
}

PartMask PageEdit::finish(uint64_t id, uint64_t lsn) {
  PageHeader& header = header_of(page_);
  const auto parts = static_cast<uint16_t>(format_.parts());
  if (!keeps_ || header.id != id || header.parts != parts) {
    header.id = id;
    header.parts = parts;
    header.lsn = lsn;
    return touched_ | 1;
  }
  uint32_t* sums = format_.checksums(page_);
  const uint32_t behind = format_.first_body();
  uint32_t first = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    const Range& range = ranges_[i];
    if (range.part == 0) {
      first ^= range.difference;
      continue;
    }
    sums[range.part] ^= range.difference;
    first ^= shifted(uint64_t{range.difference} << 32, 4 * (parts - 1U - range.part) + behind);
  }
  constexpr uint32_t kBehindLsn = sizeof(PageHeader) - offsetof(PageHeader, type);
  first ^= shifted(header.lsn ^ lsn, kBehindLsn + 4 * (parts - 1U) + behind);
  header.lsn = lsn;
  // As in seal().
  std::atomic_signal_fence(std::memory_order_seq_cst);
  sums[0] ^= first;
  return 0;
}

}  // namespace perdure::buffer
