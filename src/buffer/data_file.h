// The files beside a pool that belong to a database: one process at a time has them open to write.
#pragma once

#include <string>

namespace perdure::buffer {

// Of a file that is in the way of a creation.
inline constexpr const char* kIfLeftBehind =
    "if a creation that was killed has left it, and no database has it, remove it; else give "
    "another name";

// Opens a file to read and write, with O_DIRECT where its file system allows that. With `create` it
// must not exist, and is durable with its name. `what` it is, for messages. Throws kNotFound,
// kExists, kPermission, kReadOnly, kLocked (another process has it open), kIo.
int open_data_file(const std::string& path, const char* what, bool create);
// To read only. Throws as that; kLocked: another process has it open to write.
int open_data_file_to_read(const std::string& path, const char* what);

}  // namespace perdure::buffer
