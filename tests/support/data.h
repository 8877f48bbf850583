// Keys and values of either kind, made from numbers, so that a test is written once for all kinds.
//
// Both mappings are one-to-one, and both directions are here: from what an index returns, a test
// finds the number again, or learns that the bytes are not what any operation wrote (torn).
// Byte strings have many lengths: none at all, under 8 bytes, and up to several KiB.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "perdure/index.h"

namespace perdure::test {

// The key of this number. Byte-string keys have 0 to 209 bytes.
Value make_key(Kind kind, uint64_t number);
// The value of this number. Byte-string values have 0 to about 5000 bytes, about 120 on average.
Value make_value(Kind kind, uint64_t number);

// The number that makes this key or value; none if there is no such number.
std::optional<uint64_t> key_number(Datum key);
std::optional<uint64_t> value_number(Datum value);

// What an index should hold: the number of each key, and of its value.
using Model = std::map<uint64_t, uint64_t>;
// What a lookup should give.
std::optional<uint64_t> value_in(const Model& model, uint64_t key);
// No value: the key goes.
void assign(Model& model, uint64_t key, std::optional<uint64_t> value);

}  // namespace perdure::test
