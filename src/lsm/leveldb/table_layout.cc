#include "lsm/leveldb/table_layout.h"

#include <array>
#include <cstring>
#include <optional>
#include <string_view>

namespace perdure::lsm {
namespace {

// LevelDB's doc/table_format.md: the last 48 bytes are the handles of the metaindex block and of
// the index block, each two varints (offset and length), and at the end a magic number.
constexpr size_t kFooterBytes = 48;
constexpr uint64_t kTableMagic = 0xdb4775248b80fb57;
constexpr size_t kMetaindexBytesMax = 4096;

std::optional<uint64_t> take_varint(std::string_view& text) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !text.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(text.front());
    text.remove_prefix(1);
    value |= uint64_t{byte & 127U} << shift;
    if (byte < 128) return value;
  }
  return std::nullopt;
}

// The first entry of an uncompressed metaindex block names the filter block, if there is one, and
// where it begins: lengths of what the key shares with the one before, of the rest, of the value;
// key; value.
std::optional<uint64_t> filter_begin(std::string_view metaindex) {
  const auto shared = take_varint(metaindex);
  const auto key_bytes = take_varint(metaindex);
  const auto value_bytes = take_varint(metaindex);
  if (shared != 0 || !key_bytes || !value_bytes || *key_bytes > metaindex.size())
    return std::nullopt;
  if (!metaindex.substr(0, *key_bytes).starts_with("filter.")) return std::nullopt;
  metaindex.remove_prefix(*key_bytes);
  return take_varint(metaindex);
}

}  // namespace

uint64_t index_begin(const FileReader& table) {
  const uint64_t end = table.size();
  if (end < kFooterBytes) return end;
  std::array<char, kMetaindexBytesMax> scratch;
  std::string_view footer = table.read(end - kFooterBytes, kFooterBytes, scratch.data());
  if (footer.size() < kFooterBytes) return end;  // it was cut meanwhile
  uint64_t magic = 0;
  std::memcpy(&magic, footer.data() + footer.size() - sizeof magic, sizeof magic);
  const auto offset = take_varint(footer);
  const auto bytes = take_varint(footer);
  if (magic != kTableMagic || !offset || !bytes || *offset > end || *bytes > end - *offset)
    return end;
  if (*bytes >= kMetaindexBytesMax) return *offset;
  // With the byte behind it, which names its compression.
  const std::string_view metaindex =
      table.read(*offset, static_cast<size_t>(*bytes) + 1, scratch.data());
  if (metaindex.size() <= *bytes || metaindex.back() != 0) return *offset;
  const auto filter = filter_begin(metaindex.substr(0, static_cast<size_t>(*bytes)));
  return filter && *filter < *offset ? *filter : *offset;
}

}  // namespace perdure::lsm
