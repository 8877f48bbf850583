// Reading and appending: what FileReader and FileWriter are made of.
#pragma once

#include <array>
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
  // Whether what is not committed yet is, with so many bytes more, a tail.
  bool is_tail(size_t more) const;
  void add_to_tail(std::string_view bytes);
  void spill_tail();
  void write_tail() const;
  void commit();

  std::shared_ptr<FileSystem> system_;
  std::shared_ptr<Node> node_;
  const pm::Memory& memory_;
  uint64_t position_;   // the file's end, as its writer sees it
  uint64_t committed_;  // the append offset as stored
  // A tail: bytes that were appended since the last commit, while they are few. Before them what
  // stands in the file's last line, so that whole lines can be written past the caches.
  alignas(pm::kLineBytes) std::array<char, kTailBytesMax + pm::kLineBytes> tail_;
  size_t tail_bytes_ = 0;
  bool has_last_line_ = false;       // whether tail_ begins with what is before committed_
  const char* unflushed_ = nullptr;  // a line that has bytes which are not yet flushed
  bool unfenced_ = false;            // the append offset was stored since the last fence
  bool changed_ = false;
  bool open_ = true;
};

}  // namespace perdure::files
