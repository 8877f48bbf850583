// A file that gets its name when it is whole, and goes if it does not become that.
//
//   UnfinishedFile out("monday.backup");
//   write_at(out.file(), out.name(), ...);
//   out.finish(false);   // durable, and called monday.backup
//
// Until then it is NAME.RANDOM.unfinished, which nobody else writes to, and locked: so what a
// killed process left of one can be told from it, and is removed by who makes a file of that name
// next.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace perdure::pm {

class UnfinishedFile {
 public:
  static constexpr mode_t kModeMax = 0666;

  // Throws kNotFound (the folder), kPermission, kReadOnly, kNoSpace, kIo.
  // `mode`: the rights that it may have at most, as far as new files have them.
  explicit UnfinishedFile(const std::string& path, mode_t mode = kModeMax);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  int file() const { return file_; }  // open to read and to write
  const std::string& name() const { return unfinished_; }
  // All that the other one has. Throws kIo, kNoSpace.
  void copy_from(const UnfinishedFile& other);
  // Makes it durable, and gives it its name: in place of a file that has it, or throws kExists.
  // Throws kIo, kNoSpace.
  void finish(bool replace);

 private:
  bool make();
  void remove_left_over() const;

  std::string path_;
  mode_t mode_;
  std::string unfinished_;
  int file_ = -1;
  bool finished_ = false;
};

// The rights of a pool's file, which a backup of it has at most. All if there is no such file.
mode_t mode_of(int file);
mode_t mode_of(const std::string& path);

// Another number with each call. `subject`: for messages. Throws kIo.
uint64_t random_number(const std::string& subject);

}  // namespace perdure::pm
