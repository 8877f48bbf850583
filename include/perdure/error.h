// Errors of the library: one exception type, a code to branch on, and a message to show.
//
// Everything that input, files or the machine can cause is a perdure::Error. Presence and absence
// of a key are return values, never errors. Programming mistakes assert.
#pragma once

#include <stdexcept>
#include <string>

namespace perdure {

// What went wrong. The numeric values are the exit-code detail of the command and never change.
enum class ErrorCode : int {
  kInvalidArgument = 1,  // an option or argument is outside its legal range
  kNotFound = 2,         // no file at this path
  kNotAFile = 3,         // the path names a directory or a device
  kPermission = 4,       // the operating system refuses access
  kEmpty = 5,            // the file has no content
  kForeign = 6,          // the file is not a Perdure pool
  kTruncated = 7,        // the file is shorter than its header says
  kCorrupt = 8,          // a checksum or invariant does not hold
  kVersion = 9,          // the pool was written by a newer format version
  kLocked = 10,          // another process (or another Pool object) has the pool open
  kWrongType = 11,       // the name holds another structure, or other key or value kinds
  kNoSuchName = 12,      // the pool has no structure of this name
  kNameExists = 13,      // the pool already has a structure of this name
  kExists = 14,          // the file is there already
  kCapacity = 15,        // the capacity asked for is below the minimum, or above the maximum
  kPoolFull = 16,        // the pool has reached its capacity; the operation changed nothing
  kNoSpace = 17,         // the medium has no room for the pool to grow; nothing was changed
  kReadOnly = 18,        // the medium or the pool is open read-only
  kDurability = 19,      // the medium cannot give the durability asked for
  kTooLarge = 20,        // a key or value exceeds the structure's limit
  kIo = 21,              // the medium or a system call has failed
  kInUse = 22,           // a structure or pool is in use elsewhere in this process
  kInternal = 23,        // a bug of the library, found before it could do harm
  kConflict =
      24,        // another transaction was faster; nothing was changed, and a second attempt may do
  kTooOld = 25,  // a snapshot was given up: what it needs took more memory than it may
};

// Returns the stable short name of a code, such as "pool-full". Never null.
const char* to_string(ErrorCode code) noexcept;

// Thrown by every part of the library. what() names the file and the value and says what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace perdure
