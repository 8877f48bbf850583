#include "server/dump_format.h"

#include <array>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "server/command_error.h"
#include "server/commands.h"

namespace perdure::server {

namespace {

enum DumpKind : uint8_t {
  kStringKind = 0,
  kListKind = 1,
  kSetKind = 2,
  kHashKind = 4,
  kSortedSetKind = 5,  // with binary scores
  kSetOfNumbers = 11,
  kPackedHash = 16,
  kPackedSortedSet = 17,
  kListOfNodes = 18,
  kPackedSet = 20
};
constexpr uint16_t kDumpVersion = 8;      // the first one that has all of what is written
constexpr uint16_t kDumpVersionMax = 12;  // Redis 7.4
constexpr size_t kDumpFooterBytes = sizeof(uint16_t) + sizeof(uint64_t);
// What each element takes beside its text.
constexpr uint64_t kElementBytes = sizeof(std::string);
// Three bytes of LZF become 264 at most.
constexpr uint64_t kInflationMax = 88;

constexpr std::array<uint64_t, 256> kCrcTable = [] {
  std::array<uint64_t, 256> table{};
  for (uint64_t i = 0; i < table.size(); ++i) {
    uint64_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x95ac9329ac4bc9b5U : 0);
    }
    table[i] = crc;
  }
  return table;
}();

DumpKind dump_kind_of(Type type) {
  switch (type) {
    case Type::kList:
      return kListKind;
    case Type::kSet:
      return kSetKind;
    case Type::kHash:
      return kHashKind;
    case Type::kSortedSet:
      return kSortedSetKind;
    case Type::kNone:
    case Type::kString:
      break;
  }
  return kStringKind;
}

[[noreturn]] void throw_bad() { throw CommandError("ERR Bad data format"); }

template <typename T>
void append_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads from the front; throws where there is not as much.
class DumpBytes {
 public:
  explicit DumpBytes(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  size_t size() const { return rest_.size(); }

  std::string_view take(uint64_t bytes) {
    if (bytes > rest_.size()) throw_bad();
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  // Least byte first.
  template <typename T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

 private:
  std::string_view rest_;
};

class DumpReader {
 public:
  DumpReader(std::string_view value, uint64_t& room_bytes) : in_(value), room_bytes_(room_bytes) {}

  Dump read() {
    const uint8_t kind = in_.byte();
    switch (kind) {
      case kStringKind:
        dump_.type = Type::kString;
        add_text();
        break;
      case kListKind:
        dump_.type = Type::kList;
        for (uint64_t left = count(1); left > 0; --left) add_text();
        break;
      case kListOfNodes:
        dump_.type = Type::kList;
        for (uint64_t left = count(1); left > 0; --left) read_node();
        break;
      case kSetKind:
      case kSetOfNumbers:
      case kPackedSet:
        dump_.type = Type::kSet;
        read_set(kind);
        break;
      case kHashKind:
      case kPackedHash:
        dump_.type = Type::kHash;
        if (kind == kPackedHash) {
          unpack_list(text());
        } else {
          for (uint64_t left = 2 * count(2); left > 0; --left) add_text();
        }
        if (dump_.texts.size() % 2 != 0) throw_bad();
        require_distinct(2);
        break;
      case kSortedSetKind:
      case kPackedSortedSet:
        dump_.type = Type::kSortedSet;
        read_sorted_set(kind);
        break;
      default:
        throw_bad();
    }
    if (!in_.empty() || dump_.texts.empty()) throw_bad();
    return std::move(dump_);
  }

 private:
  // A length, or, if `*special` becomes true, how a string is packed.
  uint64_t length(bool* special) {
    const uint8_t first = in_.byte();
    *special = first >> 6 == 3;
    switch (first >> 6) {
      case 0:
        return first;
      case 1:
        return (uint64_t{first} & 0x3f) << 8 | in_.byte();
      case 2:
        if (first == 0x80) return __builtin_bswap32(in_.number<uint32_t>());
        if (first == 0x81) return __builtin_bswap64(in_.number<uint64_t>());
        throw_bad();
      default:
        return first & 0x3f;
    }
  }
  uint64_t plain_length() {
    bool special = false;
    const uint64_t value = length(&special);
    if (special) throw_bad();
    return value;
  }
  // Of elements that take so many bytes each at least.
  uint64_t count(uint64_t bytes_each) {
    const uint64_t value = plain_length();
    if (value > in_.size() / bytes_each) throw_bad();
    return value;
  }
  void note_unpacked(uint64_t bytes) {
    if (bytes > room_bytes_) throw CommandError("ERR the value is too large to be unpacked");
    room_bytes_ -= bytes;
  }
  std::string text() {
    bool special = false;
    const uint64_t what = length(&special);
    if (!special) return std::string(in_.take(what));
    switch (what) {
      case 0:
        return std::to_string(in_.number<int8_t>());
      case 1:
        return std::to_string(in_.number<int16_t>());
      case 2:
        return std::to_string(in_.number<int32_t>());
      case 3:
        return inflated();
      default:
        throw_bad();
    }
  }
  void add(std::string text) {
    note_unpacked(kElementBytes);
    dump_.texts.push_back(std::move(text));
  }
  void add_text() { add(text()); }

  // LZF: literals, and copies of what came before.
  std::string inflated() {
    const uint64_t packed_bytes = plain_length();
    const uint64_t bytes = plain_length();
    DumpBytes in(in_.take(packed_bytes));
    if (bytes > packed_bytes * kInflationMax) throw_bad();
    note_unpacked(bytes);
    std::string out;
    out.reserve(bytes);
    while (!in.empty()) {
      const uint32_t control = in.byte();
      if (control < 32) {
        out += in.take(control + 1);
      } else {
        uint32_t length = control >> 5;
        if (length == 7) length += in.byte();
        const size_t back = (size_t{control & 0x1f} << 8 | in.byte()) + 1;
        if (back > out.size()) throw_bad();
        for (uint32_t i = 0; i < length + 2; ++i) out += out[out.size() - back];
      }
      if (out.size() > bytes) throw_bad();
    }
    if (out.size() != bytes) throw_bad();
    return out;
  }

  void unpack_numbers(const std::string& packed) {
    DumpBytes in(packed);
    const auto width = in.number<uint32_t>();
    const auto numbers = in.number<uint32_t>();
    if ((width != 2 && width != 4 && width != 8) || in.size() != uint64_t{numbers} * width) {
      throw_bad();
    }
    while (!in.empty()) {
      const int64_t value = width == 2   ? in.number<int16_t>()
                            : width == 4 ? in.number<int32_t>()
                                         : in.number<int64_t>();
      add(std::to_string(value));
    }
  }

  void unpack_list(const std::string& packed) {
    DumpBytes in(packed);
    if (in.number<uint32_t>() != packed.size()) throw_bad();
    in.take(sizeof(uint16_t));  // how many there are, if that is not too much
    for (;;) {
      const size_t before = in.size();
      const uint8_t first = in.byte();
      if (first == 0xff) break;
      add(list_entry(in, first));
      // Behind each its length stands, seven bits in a byte, for those who come from behind.
      const size_t bytes = before - in.size();
      in.take(bytes < 1U << 7    ? 1
              : bytes < 1U << 14 ? 2
              : bytes < 1U << 21 ? 3
              : bytes < 1U << 28 ? 4
                                 : 5);
    }
    if (!in.empty()) throw_bad();
  }
  static std::string list_entry(DumpBytes& in, uint8_t first) {
    if (first < 0x80) return std::to_string(first);
    if (first < 0xc0) return std::string(in.take(first & 0x3f));
    if (first < 0xe0) {  // 13 bits with a sign
      const int32_t value = (first & 0x1f) << 8 | in.byte();
      return std::to_string(value >= 1 << 12 ? value - (1 << 13) : value);
    }
    if (first < 0xf0) {
      const uint64_t bytes = (uint64_t{first} & 0x0f) << 8 | in.byte();
      return std::string(in.take(bytes));
    }
    switch (first) {
      case 0xf0:
        return std::string(in.take(in.number<uint32_t>()));
      case 0xf1:
        return std::to_string(in.number<int16_t>());
      case 0xf2: {
        const uint32_t low = in.number<uint16_t>();
        return std::to_string(static_cast<int8_t>(in.byte()) * (1 << 16) +
                              static_cast<int32_t>(low));
      }
      case 0xf3:
        return std::to_string(in.number<int32_t>());
      case 0xf4:
        return std::to_string(in.number<int64_t>());
      default:
        throw_bad();
    }
  }

  // Of a list: one long element, or several.
  void read_node() {
    constexpr uint64_t kPlain = 1;
    constexpr uint64_t kPacked = 2;
    const uint64_t container = plain_length();
    if (container == kPlain) return add_text();
    if (container != kPacked) throw_bad();
    unpack_list(text());
  }
  void read_set(uint8_t kind) {
    if (kind == kSetOfNumbers) {
      unpack_numbers(text());
    } else if (kind == kPackedSet) {
      unpack_list(text());
    } else {
      for (uint64_t left = count(1); left > 0; --left) add_text();
    }
    require_distinct(1);
  }
  void read_sorted_set(uint8_t kind) {
    if (kind == kSortedSetKind) {
      for (uint64_t left = count(1 + sizeof(double)); left > 0; --left) {
        add_text();
        add_score(in_.number<double>());
      }
    } else {
      unpack_list(text());
      std::vector<std::string> both = std::move(dump_.texts);
      dump_.texts.clear();
      if (both.size() % 2 != 0) throw_bad();
      for (size_t i = 0; i < both.size(); i += 2) {
        dump_.texts.push_back(std::move(both[i]));
        try {
          add_score(real_of(both[i + 1]));
        } catch (const CommandError&) {
          throw_bad();
        }
      }
    }
    require_distinct(1);
  }
  void add_score(double score) {
    if (std::isnan(score)) throw_bad();
    dump_.scores.push_back(score);
  }
  void require_distinct(size_t step) const {
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < dump_.texts.size(); i += step) {
      if (!seen.insert(dump_.texts[i]).second) throw_bad();
    }
  }

  DumpBytes in_;
  Dump dump_;
  uint64_t& room_bytes_;
};

}  // namespace

uint64_t crc64(std::string_view bytes) {
  uint64_t crc = 0;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ crc >> 8;
  return crc;
}

DumpWriter::DumpWriter(Type type, uint64_t count) {
  out_ += static_cast<char>(dump_kind_of(type));
  if (type != Type::kString) length(count);
}

void DumpWriter::length(uint64_t value) {
  if (value < 1U << 6) {
    out_ += static_cast<char>(value);
  } else if (value < 1U << 14) {
    out_ += static_cast<char>(0x40 | value >> 8);
    out_ += static_cast<char>(value);
  } else if (value <= ~uint32_t{0}) {
    out_ += '\x80';
    append_number(out_, __builtin_bswap32(static_cast<uint32_t>(value)));
  } else {
    out_ += '\x81';
    append_number(out_, __builtin_bswap64(value));
  }
}

void DumpWriter::text(std::string_view bytes) {
  length(bytes.size());
  out_ += bytes;
}

void DumpWriter::score(double value) { append_number(out_, value); }

std::string DumpWriter::finish() {
  append_number(out_, kDumpVersion);
  append_number(out_, crc64(out_));
  return std::move(out_);
}

Dump read_dump(std::string_view payload, uint64_t& room_bytes) {
  constexpr char kWrong[] = "ERR DUMP payload version or checksum are wrong";
  if (payload.size() < kDumpFooterBytes) throw CommandError(kWrong);
  DumpBytes footer(payload.substr(payload.size() - kDumpFooterBytes));
  const auto version = footer.number<uint16_t>();
  const auto checksum = footer.number<uint64_t>();
  const bool holds = checksum == crc64(payload.substr(0, payload.size() - sizeof checksum));
  if (version > kDumpVersionMax || !holds) throw CommandError(kWrong);
  return DumpReader(payload.substr(0, payload.size() - kDumpFooterBytes), room_bytes).read();
}

}  // namespace perdure::server
