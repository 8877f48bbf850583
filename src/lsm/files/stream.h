// Reading and appending: what FileReader and FileWriter are made of.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lsm/files/file_system.h"

namespace perdure::files {

class OpenFile {
 public:
  // Acquires the file, as the last step that may fail: who acquires it must release it.
  OpenFile(std::shared_ptr<FileSystem> system, std::string_view path)
      : system_(std::move(system)),
        node_(system_->acquire(path, FileSystem::Make::kNo)),
        base_(system_->pool().base()) {}
  ~OpenFile() { system_->release(node_, false); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t size() const { return node_->size.load(std::memory_order_acquire); }
  std::string_view read(uint64_t offset, size_t bytes, char* scratch) const;

 private:
  std::shared_ptr<FileSystem> system_;
  std::shared_ptr<Node> node_;
  const char* base_;
};

class Stream {
 public:
  // Likewise.
  Stream(std::shared_ptr<FileSystem> system, std::string_view path, FileSystem::Make make);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void append(std::string_view bytes);
  void flush();
  void sync();
  void truncate(uint64_t bytes);
  uint64_t size() const { return position_; }
  void close();

 private:
  void require_open() const;
  void write(uint64_t position, std::string_view bytes);
  void write_in_line(char* target, std::string_view bytes);
  void write_lines(char* target, std::string_view bytes) const;
  void commit();

  std::shared_ptr<FileSystem> system_;
  std::shared_ptr<Node> node_;
  const pm::Memory& memory_;
  uint64_t position_;                // the file's end, as its writer sees it
  uint64_t committed_;               // the append offset as stored
  const char* unflushed_ = nullptr;  // a line that has bytes which are not yet flushed
  bool unfenced_ = false;            // the append offset was stored since the last fence
  bool changed_ = false;
  bool open_ = true;
};

}  // namespace perdure::files
