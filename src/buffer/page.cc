#include "buffer/page.h"

#include <nmmintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

namespace perdure::buffer {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

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

// Of the part without the checksums themselves; seeded with its number. The first one covers the
// other checksums.
uint32_t PageFormat::checksum(const char* page, uint32_t part) const {
  constexpr uint32_t kSums = sizeof(PageHeader);
  const uint32_t sums_end = kSums + 4 * parts_;
  const uint32_t begin = part * part_bytes_;
  const uint32_t end = begin + part_bytes_;
  uint32_t crc = part + 1;
  if (part == 0) {
    crc = crc32c(crc, page, kSums);
    crc = crc32c(crc, page + kSums + 4, sums_end - kSums - 4);
  }
  const uint32_t rest = std::max(begin, sums_end);
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

}  // namespace perdure::buffer
