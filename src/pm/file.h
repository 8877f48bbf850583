// Calls on files that do all that was asked for, or throw the Error that fits. `subject` names the
// file in messages.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace perdure::pm {

// Reads at an offset, on after interruptions. Returns the bytes read, fewer where the file ends.
uint64_t read_at(int file, const std::string& subject, uint64_t offset, void* to, uint64_t bytes);
// Writes at an offset, on after interruptions.
void write_at(int file, const std::string& subject, uint64_t offset, const void* from,
              uint64_t bytes);
// The folder that holds `path`.
std::string parent_of(const std::string& path);
// Makes the name of a file durable.
void sync_parent_of(const std::string& path);
// Gives a file another name, which no file has. Throws kExists.
void rename_to_new(const std::string& from, const std::string& to);

// Pools and backups that the thread makes while one exists are its user's alone to read. The umask
// would not do: where the folder has a default ACL, that comes in its place, and limits itself by
// the mode that a file is made with.
class PrivateFiles {
 public:
  PrivateFiles();
  ~PrivateFiles();
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  bool before_;
};
// What new files are made with.
mode_t new_file_mode();

}  // namespace perdure::pm
