// What a follower notes of itself in its pool: whom it follows, and how far it has come. One
// record, which is written in the batch of what it tells of.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/error.h"

namespace perdure::server {

struct FollowState {
  enum class Status : uint64_t {
    kNone = 0,     // it has nothing of a leader
    kCopying = 1,  // what is in the pool is a part of a copy, or what there was before it
    kFollowing = 2,
    // A whole copy stands beside what there was, which is being removed; and is being put in its
    // place.
    kClearing = 3,
    kMoving = 4
  };
  bool is_placing() const { return status == Status::kClearing || status == Status::kMoving; }

  Status status = Status::kNone;
  uint64_t follower = 0;                 // its number
  uint64_t identity = 0;                 // of the leader's store
  uint64_t run = 0;                      // of the leader, in which it took its last writes
  std::vector<uint64_t> positions = {};  // by the leader's partitions: what is before is there

  static constexpr uint64_t kMagic = 0x31776f6c6c6f6670;  // "pfollow1"

  std::string encode() const {
    const uint64_t head[] = {kMagic, static_cast<uint64_t>(status), follower, identity, run};
    std::string bytes(reinterpret_cast<const char*>(head), sizeof head);
    bytes.append(reinterpret_cast<const char*>(positions.data()),
                 positions.size() * sizeof(uint64_t));
    return bytes;
  }
  // Throws kCorrupt.
  static FollowState decode(std::string_view bytes) {
    uint64_t head[5] = {};
    if (bytes.size() >= sizeof head) std::memcpy(head, bytes.data(), sizeof head);
    if (bytes.size() % sizeof(uint64_t) != 0 || head[0] != kMagic || head[1] < 1 || head[1] > 4) {
      throw Error(ErrorCode::kCorrupt, "the note of the leader that is followed is damaged");
    }
    FollowState state{.status = static_cast<Status>(head[1]),
                      .follower = head[2],
                      .identity = head[3],
                      .run = head[4]};
    bytes.remove_prefix(sizeof head);
    state.positions.resize(bytes.size() / sizeof(uint64_t));
    std::memcpy(state.positions.data(), bytes.data(), bytes.size());
    return state;
  }
};

}  // namespace perdure::server
