#include "support/data.h"

#include <algorithm>
#include <cstring>

#include "support/random.h"

namespace perdure::test {

namespace {

constexpr uint64_t kKeySalt = 0x6b6579;
constexpr uint64_t kValueSalt = 0x76616c7565;

// Byte strings are: nothing for 0; else the count of the number's bytes, these bytes, and a filler
// that depends on all bits of the number.
std::string encode(uint64_t number, uint64_t salt, uint64_t filler_bytes) {
  if (number == 0) return {};
  uint64_t number_bytes = 8;
  while (number_bytes > 1 && number >> (8 * (number_bytes - 1)) == 0) --number_bytes;
  std::string bytes(1 + number_bytes + filler_bytes, static_cast<char>(number_bytes));
  for (uint64_t i = 0; i < number_bytes; ++i) bytes[1 + i] = static_cast<char>(number >> (8 * i));
  Random filler(number ^ salt);
  uint64_t position = 1 + number_bytes;
  while (position < bytes.size()) {
    const uint64_t word = filler.next();
    const uint64_t count = std::min<uint64_t>(8, bytes.size() - position);
    std::memcpy(bytes.data() + position, &word, count);
    position += count;
  }
  return bytes;
}

std::string encode_key(uint64_t number) {
  const uint64_t h = mix(number ^ kKeySalt);
  const uint64_t filler = h % 4 == 0 ? 0 : h % 32 == 1 ? (h >> 8) % 200 : (h >> 8) % 24;
  return encode(number, kKeySalt, filler);
}

std::string encode_value(uint64_t number) {
  const uint64_t h = mix(number ^ kValueSalt);
  uint64_t filler = (h >> 8) % 32;
  if (h % 4 == 0) filler = 0;
  if (h % 8 == 1) filler = (h >> 8) % 256;
  if (h % 16 == 2) filler = (h >> 8) % 1500;
  if (h % 64 == 3) filler = (h >> 8) % 5000;
  return encode(number, kValueSalt, filler);
}

std::optional<uint64_t> decode(std::string_view bytes, std::string (*encoder)(uint64_t)) {
  if (bytes.empty()) return 0;
  const auto number_bytes = static_cast<uint64_t>(static_cast<unsigned char>(bytes[0]));
  if (number_bytes > 8 || bytes.size() < 1 + number_bytes) return std::nullopt;
  uint64_t number = 0;
  for (uint64_t i = 0; i < number_bytes; ++i) {
    number |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[1 + i])) << (8 * i);
  }
  if (number == 0 || encoder(number) != bytes) return std::nullopt;
  return number;
}

}  // namespace

Value make_key(Kind kind, uint64_t number) {
  Value key;
  if (kind == Kind::kU64) {
    key.set(mix(number));
  } else {
    key.set_bytes() = encode_key(number);
  }
  return key;
}

Value make_value(Kind kind, uint64_t number) {
  Value value;
  if (kind == Kind::kU64) {
    value.set(mix(number));
  } else {
    value.set_bytes() = encode_value(number);
  }
  return value;
}

std::optional<uint64_t> key_number(Datum key) {
  if (key.kind() == Kind::kU64) return unmix(key.word());
  return decode(key.bytes(), encode_key);
}

std::optional<uint64_t> value_number(Datum value) {
  if (value.kind() == Kind::kU64) return unmix(value.word());
  return decode(value.bytes(), encode_value);
}

std::optional<uint64_t> value_in(const Model& model, uint64_t key) {
  const auto found = model.find(key);
  return found == model.end() ? std::nullopt : std::optional(found->second);
}

void assign(Model& model, uint64_t key, std::optional<uint64_t> value) {
  if (value) {
    model[key] = *value;
  } else {
    model.erase(key);
  }
}

}  // namespace perdure::test
