// The public facade of files.
#include "perdure/files.h"

#include <string>

#include "lsm/files/file_system.h"
#include "lsm/files/stream.h"

namespace perdure {

using files::FileSystem;

namespace {

template <typename Pointer>
typename Pointer::element_type& require(const Pointer& pointer, const char* what) {
  if (pointer) [[likely]]
    return *pointer;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " was moved from; use the other one");
}

constexpr char kReader[] = "a reader of a file";
constexpr char kWriter[] = "a writer of a file";
constexpr char kFiles[] = "a file system";

}  // namespace

FileReader::FileReader(std::shared_ptr<const files::OpenFile> file) : file_(std::move(file)) {}
FileReader::FileReader(const FileReader&) noexcept = default;
FileReader& FileReader::operator=(const FileReader&) noexcept = default;
FileReader::FileReader(FileReader&&) noexcept = default;
FileReader& FileReader::operator=(FileReader&&) noexcept = default;
FileReader::~FileReader() = default;

uint64_t FileReader::size() const { return require(file_, kReader).size(); }
std::string_view FileReader::read(uint64_t offset, size_t bytes, char* scratch) const {
  return require(file_, kReader).read(offset, bytes, scratch);
}

FileWriter::FileWriter(std::unique_ptr<files::Stream> stream) : stream_(std::move(stream)) {}
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;
FileWriter::~FileWriter() = default;

void FileWriter::append(std::string_view bytes) { require(stream_, kWriter).append(bytes); }
void FileWriter::flush() { require(stream_, kWriter).flush(); }
void FileWriter::sync() { require(stream_, kWriter).sync(); }
void FileWriter::truncate(uint64_t bytes) { require(stream_, kWriter).truncate(bytes); }
uint64_t FileWriter::size() const { return require(stream_, kWriter).size(); }
void FileWriter::close() { require(stream_, kWriter).close(); }

Files::Files(std::shared_ptr<FileSystem> system) : system_(std::move(system)) {}
Files::Files(const Files&) noexcept = default;
Files& Files::operator=(const Files&) noexcept = default;
Files::Files(Files&&) noexcept = default;
Files& Files::operator=(Files&&) noexcept = default;
Files::~Files() = default;

Files Files::create(Pool& pool, const std::string& name) {
  return Files(FileSystem::create(pm::impl_of(pool), name));
}

Files Files::open(Pool& pool, const std::string& name) {
  return Files(FileSystem::open(pm::impl_of(pool), name));
}

Files Files::open_or_create(Pool& pool, const std::string& name) {
  return pm::impl_of(pool).find(name) == nullptr ? create(pool, name) : open(pool, name);
}

FileReader Files::open_file(std::string_view path) const {
  require(system_, kFiles);
  return FileReader(std::make_shared<const files::OpenFile>(system_, path));
}

FileWriter Files::create_file(std::string_view path) {
  require(system_, kFiles);
  FileWriter writer(std::make_unique<files::Stream>(system_, path, FileSystem::Make::kEmpty));
  writer.truncate(0);
  return writer;
}

FileWriter Files::append_file(std::string_view path) {
  require(system_, kFiles);
  return FileWriter(std::make_unique<files::Stream>(system_, path, FileSystem::Make::kAppend));
}

bool Files::make_directory(std::string_view path) {
  return require(system_, kFiles).make_directory(path);
}
void Files::make_directories(std::string_view path) {
  require(system_, kFiles).make_directories(path);
}
void Files::remove(std::string_view path) { require(system_, kFiles).remove(path); }
void Files::rename(std::string_view from, std::string_view to) {
  require(system_, kFiles).rename(from, to);
}
std::optional<FileInfo> Files::find(std::string_view path) const {
  return require(system_, kFiles).find(path);
}
std::vector<FileInfo> Files::list(std::string_view path) const {
  return require(system_, kFiles).list(path);
}
bool Files::lock(std::string_view path) { return require(system_, kFiles).lock(path); }
void Files::unlock(std::string_view path) { require(system_, kFiles).unlock(path); }
uint64_t Files::free_bytes() const { return require(system_, kFiles).free_bytes(); }
uint64_t Files::check(const std::function<void(const std::string&)>& report) const {
  return require(system_, kFiles).check(report);
}
std::vector<Statistic> Files::statistics() const { return require(system_, kFiles).statistics(); }

}  // namespace perdure
