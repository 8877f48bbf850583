#include "buffer/page_store.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffer/data_file.h"
#include "buffer/layout.h"
#include "buffer/page.h"
#include "buffer/ring.h"
#include "perdure/error.h"
#include "pm/file.h"
#include "pm/system_error.h"

namespace perdure::buffer {

namespace {

PageFaults* faults_in_use = nullptr;

// Null: it is refused, or not wanted.
std::unique_ptr<Ring> make_ring() {
  const char* wanted = std::getenv("PERDURE_IO_URING");
  if (wanted != nullptr && std::string_view(wanted) == "0") return nullptr;
  return Ring::make(kStagedMax);
}

class PageFile final : public PageStore {
 public:
  PageFile(const std::string& path, uint32_t page_bytes, bool create)
      : subject_(path + ": the page file"),
        page_bytes_(page_bytes),
        faults_(faults_in_use),
        ring_(make_ring()),
        read_ring_(ring_ ? make_ring() : nullptr),
        fd_(open_data_file(path, "page file", create)) {}
  ~PageFile() override { ::close(fd_); }
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  void read(uint64_t id, char* page) override {
    read_into(id, page);
    if (faults_ != nullptr) faults_->read(id, page, page_bytes_);
  }

  void write(uint64_t id, const char* page) override {
    const uint32_t bytes = faults_ != nullptr ? faults_->write(id, page_bytes_) : page_bytes_;
    pm::write_at(fd_, subject_, id * page_bytes_, page, bytes);
  }

  void write_all(std::span<const PageWrite> pages) override {
    if (!ring_) return PageStore::write_all(pages);
    const std::lock_guard lock(ring_mutex_);
    for (size_t at = 0; at < pages.size(); at += kStagedMax) {
      write_some(pages.subspan(at, std::min<size_t>(kStagedMax, pages.size() - at)));
    }
  }
  void read_all(std::span<const PageRead> pages) override {
    if (!read_ring_) return PageStore::read_all(pages);
    const std::lock_guard lock(read_ring_mutex_);
    for (size_t at = 0; at < pages.size(); at += kStagedMax) {
      read_some(pages.subspan(at, std::min<size_t>(kStagedMax, pages.size() - at)));
    }
  }
  bool has_ring() const override { return ring_ != nullptr; }

  void sync() override {
    if (faults_ != nullptr) faults_->sync();
    if (::fdatasync(fd_) != 0) pm::throw_errno("fdatasync", subject_, errno);
  }

  uint64_t capacity() const override { return uint64_t{1} << 40; }

 private:
  void read_into(uint64_t id, char* page) const {
    const uint64_t done = pm::read_at(fd_, subject_, id * page_bytes_, page, page_bytes_);
    std::memset(page + done, 0, page_bytes_ - done);
  }

  void read_some(std::span<const PageRead> pages) {
    std::vector<Ring::Transfer> reads;
    reads.reserve(pages.size());
    for (const PageRead& one : pages) {
      reads.push_back({one.page, one.id * page_bytes_, page_bytes_, 0});
    }
    read_ring_->transfer(fd_, Ring::Kind::kRead, reads);
    for (size_t i = 0; i < pages.size(); ++i) {
      if (reads[i].done != page_bytes_) read_into(pages[i].id, pages[i].page);
    }
    if (faults_ != nullptr) faults_->read_all(pages, page_bytes_);
  }

  void write_some(std::span<const PageWrite> pages) {
    std::vector<Ring::Transfer> writes;
    writes.reserve(pages.size());
    std::exception_ptr fault;
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageWrite& one = pages[i];
      uint32_t bytes = page_bytes_;
      try {
        if (faults_ != nullptr) bytes = faults_->write_beside(one.id, page_bytes_, i);
      } catch (...) {
        fault = std::current_exception();
        break;
      }
      // It is read only.
      char* page = const_cast<char*>(one.page);
      if (bytes != 0) writes.push_back({page, one.id * page_bytes_, bytes, 0});
    }
    ring_->transfer(fd_, Ring::Kind::kWrite, writes);
    for (const Ring::Transfer& one : writes) {
      if (one.done == one.bytes) continue;
      pm::write_at(fd_, subject_, one.offset + one.done, one.memory + one.done,
                   one.bytes - one.done);
    }
    if (fault) std::rethrow_exception(fault);
  }

  std::string subject_;  // of messages
  uint32_t page_bytes_;
  PageFaults* faults_;
  std::mutex ring_mutex_;
  std::unique_ptr<Ring> ring_;
  std::mutex read_ring_mutex_;
  std::unique_ptr<Ring> read_ring_;  // so that reads do not wait for a batch of writes
  int fd_;
};

class PageFileToRead final : public PageStore {
 public:
  PageFileToRead(const std::string& path, uint32_t page_bytes)
      : subject_(path + ": the page file"),
        page_bytes_(page_bytes),
        fd_(open_data_file_to_read(path, "page file")) {}
  ~PageFileToRead() override { ::close(fd_); }
  PageFileToRead(const PageFileToRead&) = delete;
  PageFileToRead& operator=(const PageFileToRead&) = delete;

  void read(uint64_t id, char* page) override {
    if (const auto own = written_.find(id); own != written_.end()) {
      std::memcpy(page, own->second.data(), page_bytes_);
      return;
    }
    const uint64_t done = pm::read_at(fd_, subject_, id * page_bytes_, page, page_bytes_);
    std::memset(page + done, 0, page_bytes_ - done);
  }
  void write(uint64_t id, const char* page) override { written_[id].assign(page, page_bytes_); }
  void sync() override {}
  uint64_t capacity() const override { return uint64_t{1} << 40; }

 private:
  std::string subject_;
  uint32_t page_bytes_;
  int fd_;
  std::unordered_map<uint64_t, std::string> written_;
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

std::unique_ptr<PageStore> open_page_file(const std::string& path, uint32_t page_bytes,
                                          bool create) {
  return std::make_unique<PageFile>(path, page_bytes, create);
}

std::unique_ptr<PageStore> open_page_file_to_read(const std::string& path, uint32_t page_bytes) {
  return std::make_unique<PageFileToRead>(path, page_bytes);
}

std::unique_ptr<PageStore> open_page_area(const pm::Memory& memory, char* area, uint64_t pages,
                                          uint32_t page_bytes) {
  return std::make_unique<PageArea>(memory, area, pages, page_bytes);
}

}  // namespace perdure::buffer
