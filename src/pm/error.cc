#include "perdure/error.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "pm/system_error.h"

namespace perdure {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid-argument";
    case ErrorCode::kNotFound:
      return "not-found";
    case ErrorCode::kNotAFile:
      return "not-a-file";
    case ErrorCode::kPermission:
      return "permission";
    case ErrorCode::kEmpty:
      return "empty";
    case ErrorCode::kForeign:
      return "foreign";
    case ErrorCode::kTruncated:
      return "truncated";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kVersion:
      return "version";
    case ErrorCode::kLocked:
      return "locked";
    case ErrorCode::kWrongType:
      return "wrong-type";
    case ErrorCode::kNoSuchName:
      return "no-such-name";
    case ErrorCode::kNameExists:
      return "name-exists";
    case ErrorCode::kExists:
      return "exists";
    case ErrorCode::kCapacity:
      return "capacity";
    case ErrorCode::kPoolFull:
      return "pool-full";
    case ErrorCode::kNoSpace:
      return "no-space";
    case ErrorCode::kReadOnly:
      return "read-only";
    case ErrorCode::kDurability:
      return "durability";
    case ErrorCode::kTooLarge:
      return "too-large";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInUse:
      return "in-use";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kTooOld:
      return "too-old";
  }
  return "unknown";
}

namespace pm {

void throw_errno(const std::string& call, const std::string& subject, int error_number) {
  const char* reason = std::strerror(error_number);
  switch (error_number) {
    case ENOENT:
      throw Error(ErrorCode::kNotFound, fmt::format("{}: no such file or folder", subject));
    case EACCES:
    case EPERM:
      throw Error(ErrorCode::kPermission,
                  fmt::format("{}: {}; check the permissions of the file", subject, reason));
    case EISDIR:
      throw Error(ErrorCode::kNotAFile, fmt::format("{}: is a directory, not a file", subject));
    case EEXIST:
      throw Error(ErrorCode::kExists, fmt::format("{}: exists already", subject));
    case EROFS:
      throw Error(ErrorCode::kReadOnly,
                  fmt::format("{}: the medium is mounted read-only", subject));
    case ENOSPC:
    case EDQUOT:
      throw Error(ErrorCode::kNoSpace,
                  fmt::format("{}: no space left on the medium ({})", subject, call));
    default:
      throw Error(ErrorCode::kIo, fmt::format("{}: {} failed: {}", subject, call, reason));
  }
}

}  // namespace pm
}  // namespace perdure
