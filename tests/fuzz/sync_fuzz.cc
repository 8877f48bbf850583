// What a leader may answer a follower: whatever comes is taken, or refused with an error, and no
// more is taken than the bound of a chunk. The first byte of an input says what is asked for.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "perdure/error.h"
#include "server/follow_state.h"
#include "server/sync_client.h"
#include "server/sync_format.h"

namespace {

using namespace perdure;
using namespace perdure::server;

constexpr uint64_t kChunkMax = 4096;

void read_entries(std::string_view chunk) {
  try {
    SyncEntry entry;
    for (size_t before = chunk.size(); take_entry(chunk, entry); before = chunk.size()) {
      if (chunk.size() >= before || entry.key.size() + entry.value.size() > before) std::abort();
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) std::abort();
  }
}

void read_answers(SyncClient& leader, uint8_t how) {
  for (;; how /= 3) {
    if (how % 3 == 0) {
      const std::string chunk = leader.read_chunk(kChunkMax);
      if (chunk.size() > kChunkMax) std::abort();
      std::string_view rest = chunk;
      if (rest.size() >= sizeof(SyncHeader)) rest.remove_prefix(sizeof(SyncHeader));
      read_entries(rest);
    } else if (how % 3 == 1) {
      static_cast<void>(positions_of(leader.read_text()));
    } else {
      static_cast<void>(leader.read_texts());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 60'000) return 0;  // what fits into a socket
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  read_entries(input);
  try {
    static_cast<void>(FollowState::decode(input));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) std::abort();
  }
  std::array<int, 2> both{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both.data()) != 0) std::abort();
  std::array<int, 2> stop{};
  if (::pipe(stop.data()) != 0) std::abort();
  {
    SyncClient leader(both[0], stop[0]);
    if (::send(both[1], input.data(), input.size(), 0) != static_cast<ssize_t>(input.size())) {
      std::abort();
    }
    ::close(both[1]);
    try {
      read_answers(leader, data[0]);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kTooLarge) std::abort();
    } catch (const LeaderError&) {
      // In its words.
    }
  }
  ::close(stop[0]);
  ::close(stop[1]);
  return 0;
}
