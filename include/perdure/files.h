// Files in a pool: a small file system in user space, for stores that keep their data in files.
//
//   perdure::Pool pool = perdure::Pool::create("/dev/shm/files.pool", {.capacity_bytes = 1 << 30});
//   perdure::Files files = perdure::Files::create(pool, "files");
//   perdure::FileWriter log = files.create_file("/db/000001.log");   // after make_directories("/db")
//   log.append("a record"); log.sync();
//   std::string_view bytes = files.open_file("/db/000001.log").read(0, 8, scratch);
//
// A file is a list of extents and an append offset. Bytes are written past the caches and then
// committed by one 8-byte store of the append offset, so an append of any size is there wholly or
// not at all; a short one needs a single fence, for a checksum tells whether its bytes are there.
// Reads return a view of the pool itself. Creating, renaming (over another file, too) and removing
// are atomic and durable when the call returns.
//
// Paths are names separated by '/', from the root directory whether they begin with '/' or not;
// empty names and "." are left out, ".." is refused. A name has 1 to 255 bytes, without '/' and
// NUL.
//
// Any thread may call any method of Files; one thread at a time those of a FileWriter; any number
// those of a FileReader. Errors of all calls: kInvalidArgument (the object was moved from),
// kCorrupt, kIo (the medium has failed, now or before);
// of those that write also kReadOnly, kPoolFull and kNoSpace (nothing was changed).
// Source: the environment for LSM trees of Lersch et al., "Rethinking DRAM Caching for LSMs in an
// NVRAM Environment", ADBIS 2017.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure {

namespace files {
class FileSystem;
class OpenFile;
class Stream;
}  // namespace files

// A file or directory, as list() tells of it.
struct FileInfo {
  std::string name;  // without the path
  bool directory;
  uint64_t bytes;            // visible to readers
  uint64_t modified_unix_s;  // when it was made, or last closed by a writer
};

// A file open to read. What it returns views of stays mapped as long as it, or a copy of it, is
// open: a file that is removed or replaced meanwhile keeps its space until then.
class FileReader {
 public:
  FileReader(const FileReader&) noexcept;
  FileReader& operator=(const FileReader&) noexcept;
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;
  ~FileReader();

  // Bytes that a writer has flushed so far.
  uint64_t size() const;
  // The bytes from `offset` on, at most `bytes`, fewer at the end of the file. A view of the pool
  // where they lie in one extent, else of `scratch`, which has room for `bytes`; never null. Cost:
  // a search of the extents.
  std::string_view read(uint64_t offset, size_t bytes, char* scratch) const;

 private:
  friend class Files;
  explicit FileReader(std::shared_ptr<const files::OpenFile> file);
  std::shared_ptr<const files::OpenFile> file_;
};

// A file open to append. There is one at a time for each file.
class FileWriter {
 public:
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;
  // Closes as close() does, but swallows errors.
  ~FileWriter();

  // Adds bytes at the end. Readers see them after flush(); on an error nothing was added.
  void append(std::string_view bytes);
  // Makes what was appended visible, and safe from the death of the process; in the domain `page`
  // visible only. Cost: one fence, in the domain `page` none; in the domain `line`, where at most
  // 1 KiB was appended since the last time, what was appended is durable then as well.
  void flush();
  // Makes what was appended durable. Cost: flush(), and one fence where that has not made it so.
  void sync();
  // Cuts the file, which is at least as long, to `bytes`. Durable on return. What readers see of
  // the bytes that were cut off is undefined from then on; their space is not given to others while
  // they are there.
  void truncate(uint64_t bytes);
  // Bytes appended so far.
  uint64_t size() const;
  // Flushes, and returns extents that were not needed, unless readers have the file open: then who
  // closes it last does. Errors: kIo.
  void close();

 private:
  friend class Files;
  explicit FileWriter(std::unique_ptr<files::Stream> stream);
  std::unique_ptr<files::Stream> stream_;
};

// A file system in a pool. Copies refer to the same one, which closes with the last of them and of
// its readers and writers.
class Files {
 public:
  static constexpr size_t kNameBytesMax = 255;
  static constexpr char kTypeName[] = "files";

  // An empty root directory in a pool. Errors: kInvalidArgument, kNameExists.
  static Files create(Pool& pool, const std::string& name);
  // Judges and opens what is there; removes what a crash left of removed files. Cost: one PM read
  // for each file and each of its extents. Errors: kNoSuchName, kWrongType, kInUse.
  static Files open(Pool& pool, const std::string& name);
  // Either, whichever the pool needs.
  static Files open_or_create(Pool& pool, const std::string& name);

  Files(const Files&) noexcept;  // another handle of the same
  Files& operator=(const Files&) noexcept;
  Files(Files&&) noexcept;
  Files& operator=(Files&&) noexcept;
  ~Files();

  // Errors: kNotFound, kNotAFile (a directory).
  FileReader open_file(std::string_view path) const;
  // An empty file: a new one, or what there was, cut to nothing. Errors: kNotFound (its directory),
  // kNotAFile, kInUse (another writer).
  FileWriter create_file(std::string_view path);
  // To append to what is there; a new file if there is none. Errors: as create_file().
  FileWriter append_file(std::string_view path);

  // False if it was there already. Errors: kNotFound (the one it is to be in), kNotAFile.
  bool make_directory(std::string_view path);
  // With all that lead to it.
  void make_directories(std::string_view path);
  // A file or an empty directory. Errors: kNotFound, kExists (the directory has files),
  // kInvalidArgument.
  void remove(std::string_view path);
  // Replaces a file (or an empty directory, if `from` is one) named `to`. Errors: kNotFound,
  // kNotAFile, kExists (a directory with files), kInvalidArgument (into itself).
  void rename(std::string_view from, std::string_view to);

  // Nothing if there is none.
  std::optional<FileInfo> find(std::string_view path) const;
  // In the order of names. Errors: kNotFound, kNotAFile.
  std::vector<FileInfo> list(std::string_view path) const;

  // A lock by path, however it is spelled, within this process, whether there is a file or not; the
  // pool keeps other processes away. False if it is taken. Gone with the process. Errors: kNotFound
  // (its directory), kNotAFile (a directory, or in a file).
  bool lock(std::string_view path);
  void unlock(std::string_view path);

  // Bytes that the pool's capacity leaves for files, and for whatever else is in the pool; their
  // medium may have less. Others write meanwhile: a guide. Cost: reads the pool's table of
  // segments, 256 bytes for each 64 KiB.
  uint64_t free_bytes() const;
  // Verifies all metadata; `report` gets one sentence for each violation. Returns how many there
  // were. The content of files has no checksums here: stores have their own. Needs that nobody
  // writes.
  uint64_t check(const std::function<void(const std::string&)>& report) const;
  std::vector<Statistic> statistics() const;

 private:
  explicit Files(std::shared_ptr<files::FileSystem> system);
  std::shared_ptr<files::FileSystem> system_;
};

}  // namespace perdure
