// Failures of system calls, as perdure::Error.
#pragma once

#include <string>

#include "perdure/error.h"

namespace perdure::pm {

// Throws the Error that fits `error_number` (ENOENT is kNotFound, EACCES kPermission, ENOSPC
// kNoSpace, EROFS kReadOnly, others kIo), naming the call and what it was called on.
[[noreturn]] void throw_errno(const std::string& call, const std::string& subject,
                              int error_number);

}  // namespace perdure::pm
