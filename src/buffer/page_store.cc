#include "buffer/page_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "buffer/page.h"
#include "perdure/error.h"

namespace perdure::buffer {

namespace {

PageFaults* faults_in_use = nullptr;

class PageFile final : public PageStore {
 public:
  PageFile(std::string path, uint32_t page_bytes, bool create)
      : path_(std::move(path)), page_bytes_(page_bytes), faults_(faults_in_use) {
    const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
    fd_ = ::open(path_.c_str(), flags | O_DIRECT, 0644);
    // tmpfs and some others know no O_DIRECT; some of them have made the file by then.
    if (fd_ < 0 && errno == EINVAL) fd_ = ::open(path_.c_str(), flags & ~O_EXCL, 0644);
    if (fd_ < 0) fail("open", errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      ::close(fd_);
      if (reason == EWOULDBLOCK) {
        throw Error(ErrorCode::kLocked,
                    fmt::format("{}: the page file is in use by another process", path_));
      }
      fail("flock", reason);
    }
    if (!create) return;
    try {
      sync_new_file(fd_, path_, "the page file");
    } catch (...) {
      ::close(fd_);
      ::unlink(path_.c_str());
      throw;
    }
  }
  ~PageFile() override { ::close(fd_); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  void read(uint64_t id, char* page) override {
    uint32_t done = 0;
    while (done < page_bytes_) {
      const ssize_t n = ::pread(fd_, page + done, page_bytes_ - done, at(id) + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("read", errno);
      if (n == 0) break;
      done += static_cast<uint32_t>(n);
    }
    std::memset(page + done, 0, page_bytes_ - done);
    if (faults_ != nullptr) faults_->read(id, page, page_bytes_);
  }

  void write(uint64_t id, const char* page) override {
    uint32_t bytes = page_bytes_;
    if (faults_ != nullptr) bytes = faults_->write(id, bytes);
    for (uint32_t done = 0; done < bytes;) {
      const ssize_t n = ::pwrite(fd_, page + done, bytes - done, at(id) + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write", n == 0 ? ENOSPC : errno);
      done += static_cast<uint32_t>(n);
    }
  }

  void sync() override {
    if (faults_ != nullptr) faults_->sync();
    if (::fdatasync(fd_) != 0) fail("fdatasync", errno);
  }

  uint64_t capacity() const override { return uint64_t{1} << 40; }

 private:
  off_t at(uint64_t id) const { return static_cast<off_t>(id * page_bytes_); }
  [[noreturn]] void fail(const char* call, int reason) const {
    const ErrorCode code = reason == ENOSPC || reason == EDQUOT  ? ErrorCode::kNoSpace
                           : reason == ENOENT                    ? ErrorCode::kNotFound
                           : reason == EEXIST                    ? ErrorCode::kExists
                           : reason == EACCES || reason == EPERM ? ErrorCode::kPermission
                                                                 : ErrorCode::kIo;
    throw Error(code, fmt::format("{}: the page file: {}: {}", path_, call, std::strerror(reason)));
  }

  std::string path_;
  uint32_t page_bytes_;
  PageFaults* faults_;
  int fd_ = -1;
};

class PageArea final : public PageStore {
 public:
  PageArea(const pm::Memory& memory, char* area, uint64_t pages, uint32_t page_bytes)
      : memory_(memory), area_(area), pages_(pages), page_bytes_(page_bytes) {}

  void read(uint64_t id, char* page) override {
    require_inside(id);
    std::memcpy(page, area_ + id * page_bytes_, page_bytes_);
  }
  void write(uint64_t id, const char* page) override {
    require_inside(id);
    memory_.copy_nontemporal(area_ + id * page_bytes_, page, page_bytes_);
  }
  // By the thread that has written.
  void sync() override { memory_.fence(); }
  uint64_t capacity() const override { return pages_; }

 private:
  void require_inside(uint64_t id) const {
    if (id < pages_) return;
    throw Error(ErrorCode::kCorrupt, fmt::format("page {} of the database does not exist", id));
  }

  const pm::Memory& memory_;
  char* area_;
  uint64_t pages_;
  uint32_t page_bytes_;
};

}  // namespace

void inject_page_faults(PageFaults* faults) { faults_in_use = faults; }

void sync_new_file(int fd, const std::string& path, const char* what) {
  const auto slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  int result = ::fsync(fd);
  const int folder = result == 0 ? ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (result == 0) result = folder < 0 ? -1 : ::fsync(folder);
  const int reason = errno;
  if (folder >= 0) ::close(folder);
  if (result == 0) return;
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: fsync: {}", path, what, std::strerror(reason)));
}

std::unique_ptr<PageStore> open_page_file(const std::string& path, uint32_t page_bytes,
                                          bool create) {
  return std::make_unique<PageFile>(path, page_bytes, create);
}

std::unique_ptr<PageStore> open_page_area(const pm::Memory& memory, char* area, uint64_t pages,
                                          uint32_t page_bytes) {
  return std::make_unique<PageArea>(memory, area, pages, page_bytes);
}

}  // namespace perdure::buffer
