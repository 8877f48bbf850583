// What the crash explorer and a check program that it has started once say to each other. The
// program waits just before its main() and forks for each image, which costs a fraction of starting
// it again.
#pragma once

#include <cstdint>

namespace perdure::lab {

// The socket's number, in the environment of the program.
inline constexpr char kCheckServerVariable[] = "PERDURE_LAB_SERVER";

// From the explorer. Closing the socket ends the program.
struct CheckRequest {
  uint32_t record;  // 1: the child records what it does, as PERDURE_LAB=crash says
};

// From the program: one when it is ready, one when a child has been born, and one when it has
// ended.
struct CheckReply {
  int32_t process;  // 0 at first
  int32_t status;   // of waitpid, when it has ended
};

}  // namespace perdure::lab
