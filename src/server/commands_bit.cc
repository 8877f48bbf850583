// Strings as rows of bits, the first of which is the highest of the first byte.
#include <algorithm>
#include <bit>
#include <optional>

#include "server/command_error.h"
#include "server/commands.h"
#include "server/resp_session.h"

namespace perdure::server {

namespace {

constexpr uint64_t kBitsMax = (Store::kValueBytesMax - 16) * 8;

uint64_t bit_offset_of(std::string_view text) {
  constexpr char kWords[] = "ERR bit offset is not an integer or out of range";
  const int64_t offset = integer_of(text, kWords);
  if (offset < 0 || static_cast<uint64_t>(offset) >= kBitsMax) throw CommandError(kWords);
  return static_cast<uint64_t>(offset);
}

int bit_of(std::string_view text) {
  if (text != "0" && text != "1") throw CommandError("ERR bit is not an integer or out of range");
  return text[0] - '0';
}

int bit_at(std::string_view text, uint64_t offset) {
  if (offset / 8 >= text.size()) return 0;
  return static_cast<unsigned char>(text[offset / 8]) >> (7 - offset % 8) & 1;
}

void run_getbit(Call& call) {
  const uint64_t offset = bit_offset_of(call[2]);
  call.reply.integer(bit_at(require_type(call, call.key(1), Type::kString).text, offset));
}

void run_setbit(Call& call) {
  const uint64_t offset = bit_offset_of(call[2]);
  const int bit = bit_of(call[3]);
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  std::string text(item.text);
  const int old = bit_at(text, offset);
  if (text.size() <= offset / 8) text.resize(offset / 8 + 1);
  const auto mask = static_cast<unsigned char>(1U << (7 - offset % 8));
  const auto byte = static_cast<unsigned char>(text[offset / 8]);
  text[offset / 8] = static_cast<char>(bit != 0 ? byte | mask : byte & ~mask);
  call.keys().set_string_over(item, raw, text, item.flags, item.expiry_ms);
  call.reply.integer(old);
}

// [begin, end) in bits, of a range as commands give it, from argument `at` on.
std::pair<uint64_t, uint64_t> bits_of_range(const Call& call, size_t at, uint64_t bytes) {
  bool in_bits = false;
  if (call.size() > at + 2) {
    in_bits = same_word(call[at + 2], "BIT");
    if (!in_bits && !same_word(call[at + 2], "BYTE")) throw_syntax();
  }
  if (call.size() > at + 3) throw_syntax();
  const auto count = static_cast<int64_t>(in_bits ? bytes * 8 : bytes);
  int64_t begin = call.size() > at ? integer_of(call[at]) : 0;
  int64_t end = call.size() > at + 1 ? integer_of(call[at + 1]) : -1;
  // An end before the first one is the first one.
  if (begin < 0) begin = std::max<int64_t>(begin + count, 0);
  if (end < 0) end = std::max<int64_t>(end + count, 0);
  end = std::min(end, count - 1);
  if (begin > end) return {0, 0};
  const uint64_t unit = in_bits ? 1 : 8;
  return {static_cast<uint64_t>(begin) * unit, (static_cast<uint64_t>(end) + 1) * unit};
}

void run_bitcount(Call& call) {
  const Item item = require_type(call, call.key(1), Type::kString);
  if (!item) return call.reply.integer(0);  // whatever else is said
  if (call.size() == 3) throw_syntax();
  const std::string_view text = item.text;
  auto [at, end] = bits_of_range(call, 2, text.size());
  if (call.size() > 3) {
    const int64_t first = integer_of(call[2]);
    const int64_t last = integer_of(call[3]);
    if (first < 0 && last < 0 && first > last) return call.reply.integer(0);
  }
  int64_t count = 0;
  for (; at < end && at % 8 != 0; ++at) count += bit_at(text, at);
  for (; at + 8 <= end; at += 8) count += std::popcount(static_cast<unsigned char>(text[at / 8]));
  for (; at < end; ++at) count += bit_at(text, at);
  call.reply.integer(count);
}

void run_bitpos(Call& call) {
  const int64_t number = integer_of(call[2]);
  if (number != 0 && number != 1) throw CommandError("ERR The bit argument must be 1 or 0.");
  const auto bit = static_cast<int>(number);
  const Item item = require_type(call, call.key(1), Type::kString);
  if (!item) return call.reply.integer(bit == 0 ? 0 : -1);
  auto [at, end] = bits_of_range(call, 3, item.text.size());
  if (at == end) return call.reply.integer(-1);
  const auto passed = static_cast<unsigned char>(bit == 0 ? 0xff : 0);
  while (at < end) {
    if (at % 8 == 0 && at + 8 <= end && static_cast<unsigned char>(item.text[at / 8]) == passed) {
      at += 8;
    } else if (bit_at(item.text, at) == bit) {
      return call.reply.integer(static_cast<int64_t>(at));
    } else {
      ++at;
    }
  }
  // Without an end, zeros are taken to follow.
  call.reply.integer(bit == 0 && call.size() < 5 ? static_cast<int64_t>(end) : -1);
}

void run_bitop(Call& call) {
  const bool inverts = same_word(call[1], "NOT");
  const bool ands = same_word(call[1], "AND");
  const bool ors = same_word(call[1], "OR");
  if (!inverts && !ands && !ors && !same_word(call[1], "XOR")) throw_syntax();
  if (inverts && call.size() != 4) {
    throw CommandError("ERR BITOP NOT must be called with a single source key.");
  }
  // One at a time: a request may name the same one very often.
  const auto source = [&](size_t i) { return require_type(call, call.key(i), Type::kString).text; };
  size_t bytes = 0;
  for (size_t i = 3; i < call.size(); ++i) bytes = std::max(bytes, source(i).size());
  std::string result(source(3));
  result.resize(bytes);
  for (size_t i = 0; inverts && i < bytes; ++i) result[i] = static_cast<char>(~result[i]);
  for (size_t s = 4; s < call.size(); ++s) {
    const std::string_view other = source(s);
    for (size_t i = 0; i < other.size(); ++i) {
      const auto a = static_cast<unsigned char>(result[i]);
      const auto b = static_cast<unsigned char>(other[i]);
      result[i] = static_cast<char>(ands ? a & b : ors ? a | b : a ^ b);
    }
    if (ands) std::fill(result.begin() + static_cast<ptrdiff_t>(other.size()), result.end(), '\0');
  }
  const std::string_view to = call.key(2);
  if (result.empty()) {
    call.keys().remove(to);
  } else {
    call.keys().set_string(to, result, 0, store::kNoExpiry);
  }
  call.reply.integer(static_cast<int64_t>(bytes));
}

// BITFIELD: integers of some bits, at any bit of a string.
struct Field {
  enum class What : uint8_t { kGet, kSet, kIncrement };
  enum class Overflow : uint8_t { kWrap, kSaturate, kFail };
  What what = What::kGet;
  Overflow overflow = Overflow::kWrap;
  bool is_signed = false;
  uint32_t bits = 0;
  uint64_t offset = 0;
  int64_t value = 0;  // to be set, or added
};

// As "i16" or "u8", and as "100" or "#2", in units of the field.
void parse_place(std::string_view type, std::string_view offset, Field& field) {
  constexpr char kWords[] =
      "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but "
      "i64 is.";
  field.is_signed = type.starts_with('i');
  if (!field.is_signed && !type.starts_with('u')) throw CommandError(kWords);
  const int64_t bits = integer_of(type.substr(1), kWords);
  if (bits < 1 || bits > (field.is_signed ? 64 : 63)) throw CommandError(kWords);
  field.bits = static_cast<uint32_t>(bits);
  if (offset.starts_with('#')) {
    field.offset = bit_offset_of(offset.substr(1)) * field.bits;
  } else {
    field.offset = bit_offset_of(offset);
  }
  if (field.offset + field.bits > kBitsMax) {
    throw CommandError("ERR bit offset is not an integer or out of range");
  }
}

std::vector<Field> parse_fields(const Call& call) {
  std::vector<Field> fields;
  auto overflow = Field::Overflow::kWrap;
  for (size_t i = 2; i < call.size();) {
    const size_t left = call.size() - i - 1;
    Field field;
    if (same_word(call[i], "OVERFLOW") && left >= 1) {
      const std::string_view how = call[i + 1];
      if (same_word(how, "WRAP")) {
        overflow = Field::Overflow::kWrap;
      } else if (same_word(how, "SAT")) {
        overflow = Field::Overflow::kSaturate;
      } else if (same_word(how, "FAIL")) {
        overflow = Field::Overflow::kFail;
      } else {
        throw CommandError("ERR Invalid OVERFLOW type specified");
      }
      i += 2;
      continue;
    }
    if (same_word(call[i], "GET") && left >= 2) {
      field.what = Field::What::kGet;
    } else if (same_word(call[i], "SET") && left >= 3) {
      field.what = Field::What::kSet;
    } else if (same_word(call[i], "INCRBY") && left >= 3) {
      field.what = Field::What::kIncrement;
    } else {
      throw_syntax();
    }
    field.overflow = overflow;
    parse_place(call[i + 1], call[i + 2], field);
    if (field.what != Field::What::kGet) field.value = integer_of(call[i + 3]);
    i += field.what == Field::What::kGet ? 3 : 4;
    fields.push_back(field);
  }
  return fields;
}

uint64_t low_bits(uint64_t value, uint32_t bits) {
  return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

int64_t read_field(std::string_view text, const Field& field) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < field.bits; ++i) {
    value = value << 1 | static_cast<uint64_t>(bit_at(text, field.offset + i));
  }
  const bool negative = field.is_signed && (value >> (field.bits - 1) & 1) != 0;
  if (negative && field.bits < 64) value |= ~uint64_t{0} << field.bits;
  return static_cast<int64_t>(value);
}

void write_field(std::string& text, const Field& field, int64_t value) {
  for (uint32_t i = 0; i < field.bits; ++i) {
    const uint64_t at = field.offset + i;
    const auto mask = static_cast<unsigned char>(1U << (7 - at % 8));
    const auto byte = static_cast<unsigned char>(text[at / 8]);
    const bool set = (static_cast<uint64_t>(value) >> (field.bits - 1 - i) & 1) != 0;
    text[at / 8] = static_cast<char>(set ? byte | mask : byte & ~mask);
  }
}

// What the field will have; nothing if it has no room for that, and is to fail then.
std::optional<int64_t> new_value_of(const Field& field, int64_t old) {
  __extension__ using Wide = __int128;
  // What is set counts as unsigned, too: a negative number is a great one.
  const auto given = [&](int64_t value) {
    return field.is_signed ? Wide{value} : Wide{static_cast<uint64_t>(value)};
  };
  const Wide wanted =
      field.what == Field::What::kSet ? given(field.value) : given(old) + Wide{field.value};
  const Wide one = 1;
  const Wide max = (one << (field.is_signed ? field.bits - 1 : field.bits)) - 1;
  const Wide min = field.is_signed ? -max - 1 : 0;
  if (wanted >= min && wanted <= max) return static_cast<int64_t>(wanted);
  switch (field.overflow) {
    case Field::Overflow::kFail:
      return std::nullopt;
    case Field::Overflow::kSaturate:
      return static_cast<int64_t>(wanted > max ? max : min);
    case Field::Overflow::kWrap:
      break;
  }
  const uint64_t low = low_bits(static_cast<uint64_t>(wanted), field.bits);
  const bool negative = field.is_signed && (low >> (field.bits - 1) & 1) != 0;
  return static_cast<int64_t>(negative && field.bits < 64 ? low | ~uint64_t{0} << field.bits : low);
}

void run_bitfield(Call& call) {
  const std::vector<Field> fields = parse_fields(call);
  const std::string_view raw = call.key(1);
  const Item item = require_type(call, raw, Type::kString);
  std::string text;
  uint64_t end = 0;  // of what is written, in bits
  for (const Field& field : fields) {
    if (field.what != Field::What::kGet) end = std::max(end, field.offset + field.bits);
  }
  const bool writes = end != 0;
  if (writes) {
    text = item.text;
    text.resize(std::max<size_t>(text.size(), (end + 7) / 8));
  }
  call.reply.array(fields.size());
  for (const Field& field : fields) {
    const int64_t old = read_field(writes ? std::string_view(text) : item.text, field);
    if (field.what == Field::What::kGet) {
      call.reply.integer(old);
    } else if (const auto value = new_value_of(field, old)) {
      write_field(text, field, *value);
      call.reply.integer(field.what == Field::What::kSet ? old : *value);
    } else {
      call.reply.null();
    }
  }
  if (writes && (!item || text != item.text)) {
    call.keys().set_string_over(item, raw, text, item.flags, item.expiry_ms);
  }
}

void run_bitfield_ro(Call& call) {
  for (const Field& field : parse_fields(call)) {
    if (field.what != Field::What::kGet) {
      throw CommandError("ERR BITFIELD_RO only supports the GET subcommand");
    }
  }
  run_bitfield(call);
}

constexpr Command kBitCommands[] = {
    {"bitfield", -2, kWrites, 1, 1, 1, "bitmap", "Reads and changes integers of some bits",
     run_bitfield},
    {"bitfield_ro", -2, kFast, 1, 1, 1, "bitmap", "Reads integers of some bits", run_bitfield_ro},
    {"bitcount", -2, 0, 1, 1, 1, "bitmap", "Counts the bits that are set", run_bitcount},
    {"bitop", -4, kWrites, 2, -1, 1, "bitmap", "Combines strings bit by bit", run_bitop},
    {"bitpos", -3, 0, 1, 1, 1, "bitmap", "Finds the first bit", run_bitpos},
    {"getbit", 3, kFast, 1, 1, 1, "bitmap", "Returns a bit", run_getbit},
    {"setbit", 4, kWrites, 1, 1, 1, "bitmap", "Sets a bit", run_setbit},
};

}  // namespace

std::span<const Command> bit_commands() { return kBitCommands; }

}  // namespace perdure::server
