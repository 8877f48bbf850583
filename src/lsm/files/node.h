// The volatile side of files: what is found by walking the inodes when a pool's files are opened.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lsm/files/layout.h"

namespace perdure::files {

struct Extent {
  uint64_t begin;   // position in the file
  uint64_t bytes;   //
  uint64_t offset;  // in the pool
};

// The extents of a file. One thread changes them; others find those that were there when they
// learned how long the file is, for an extent never moves.
class ExtentList {
 public:
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  const Extent& operator[](uint32_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  // Bytes that fit in.
  uint64_t end() const {
    const uint32_t n = count();
    return n == 0 ? 0 : (*this)[n - 1].begin + (*this)[n - 1].bytes;
  }
  // Makes room for one more, so that push() does not throw.
  void reserve_one() {
    auto& chunk = chunks_[count_.load(std::memory_order_relaxed) / kChunk];
    if (!chunk) chunk = std::make_unique<Extent[]>(kChunk);
  }
  void push(uint64_t offset, uint64_t bytes) noexcept {
    const uint32_t n = count_.load(std::memory_order_relaxed);
    chunks_[n / kChunk][n % kChunk] = {end(), bytes, offset};
    count_.store(n + 1, std::memory_order_release);
  }
  void shrink(uint32_t count) noexcept { count_.store(count, std::memory_order_release); }
  // The extent of a position below end().
  const Extent& find(uint64_t position) const {
    uint32_t low = 0;
    uint32_t high = count();
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      ((*this)[middle].begin <= position ? low : high) = middle;
    }
    return (*this)[low];
  }

 private:
  static constexpr uint32_t kChunk = 32;
  std::array<std::unique_ptr<Extent[]>, kExtentsMax / kChunk + 1> chunks_;
  std::atomic<uint32_t> count_{0};
};

// A file or a directory. What is not said to be otherwise is guarded by FileSystem's mutex of
// names.
struct Node {
  uint32_t number = 0;
  uint64_t inode = 0;  // offset
  bool directory = false;
  Node* parent = nullptr;  // of a removed one: null
  std::string name;
  std::map<std::string, std::shared_ptr<Node>, std::less<>> children;
  uint32_t opens = 0;  // readers and writers
  bool written = false;
  bool doomed = false;
  // Of a file; changed by its writer alone.
  std::unique_ptr<ExtentList> extents;
  std::atomic<uint64_t> size{0};  // what readers see
};

}  // namespace perdure::files
