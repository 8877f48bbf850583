// What DUMP tells of a key and RESTORE takes: the serialisation of Redis, so that keys can be
// carried between the two.
//
//   type   a byte
//   value  lengths and strings, packed or not
//   footer version of the format (2 bytes), CRC-64 of all before it (8), least byte first
//
// Written are the plain forms, which Redis 4.0 and all later ones take. Read are also the packed
// ones that Redis 7 writes: numbers, LZF, intsets and listpacks; not the ziplists and zipmaps of
// earlier ones. Source: rdb.c, listpack.c, intset.c and lzf_d.c of Redis 7.0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/keyspace.h"

namespace perdure::server {

class DumpWriter {
 public:
  // `count`: of the elements of a collection, which follow one by one.
  DumpWriter(Type type, uint64_t count);
  // A string; an element; the name and then the value of a field; the name of a member, before its
  // score().
  void text(std::string_view bytes);
  void score(double value);
  // The payload, with its footer.
  std::string finish();

 private:
  void length(uint64_t value);
  std::string out_;
};

struct Dump {
  Type type = Type::kNone;
  std::vector<std::string> texts;  // of a hash: names and values by turns
  std::vector<double> scores;      // of a sorted set: of each text
};
// Of one payload, or of all those of a transaction: what may be unpacked, some bytes of which may
// stand for very many. Counted are inflated bytes, and 32 for each element.
inline constexpr uint64_t kUnpackedBytesMax = uint64_t{256} << 20;
// Throws CommandError if the footer is wrong, the value is none, or it would take more than
// `room_bytes` to unpack, from which all that it takes is subtracted, also where it throws. No name
// comes twice.
Dump read_dump(std::string_view payload, uint64_t& room_bytes);

// As Redis has it: the polynomial of Jones, reflected, without inversions.
uint64_t crc64(std::string_view bytes);

}  // namespace perdure::server
