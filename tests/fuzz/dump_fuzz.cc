// What RESTORE may be given: whatever comes is taken, or refused with an error; no more is unpacked
// than the bound; and what is taken is the same when it was written and read again.
//
// An input is the value of a payload, to which version and checksum are added. It begins with
// tests/fuzz/seeds/dump: what DUMP of Redis 7.0.15 says of keys of every kind, without its last ten
// bytes; and by hand, of the same parts, a packed set of Redis 7.2, a list with an element that is
// not packed, and a list of texts as DUMP says it here.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/command_error.h"
#include "server/dump_format.h"

namespace {

using namespace perdure::server;

constexpr uint64_t kRoomBytes = uint64_t{4} << 20;

std::string payload_of(std::string_view value) {
  std::string payload(value);
  payload += std::string_view("\x08\0", 2);
  const uint64_t crc = crc64(payload);
  payload.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return payload;
}

// Of any type: what all that have read a dump rely on.
void require_sound(const Dump& dump, size_t step) {
  if (dump.texts.empty() || dump.texts.size() % step != 0) std::abort();
  if (dump.scores.size() != (dump.type == Type::kSortedSet ? dump.texts.size() : 0)) std::abort();
  if (dump.type == Type::kString && dump.texts.size() != 1) std::abort();
  if (dump.type == Type::kString || dump.type == Type::kList) return;
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < dump.texts.size(); i += step) {
    if (!seen.insert(dump.texts[i]).second) std::abort();
  }
}

std::string write_again(const Dump& dump, size_t step) {
  DumpWriter out(dump.type, dump.texts.size() / step);
  for (size_t i = 0; i < dump.texts.size(); ++i) {
    out.text(dump.texts[i]);
    if (dump.type == Type::kSortedSet) out.score(dump.scores[i]);
  }
  return out.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  uint64_t room_bytes = kRoomBytes;
  try {
    static_cast<void>(read_dump(input, room_bytes));  // with a checksum that hardly ever holds
  } catch (const CommandError&) {
  }
  room_bytes = kRoomBytes;
  Dump dump;
  try {
    dump = read_dump(payload_of(input), room_bytes);
  } catch (const CommandError&) {
    if (room_bytes > kRoomBytes) std::abort();
    return 0;
  }
  if (room_bytes > kRoomBytes) std::abort();
  const size_t step = dump.type == Type::kHash ? 2 : 1;
  require_sound(dump, step);
  room_bytes = kRoomBytes;
  const Dump again = read_dump(write_again(dump, step), room_bytes);
  if (again.type != dump.type || again.texts != dump.texts || again.scores != dump.scores) {
    std::abort();
  }
  return 0;
}
