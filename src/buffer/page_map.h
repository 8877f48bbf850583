// Which frame a page was in last: a hint that is read without a lock. Whether it is there still,
// the frame says.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

namespace perdure::buffer {

class PageMap {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  PageMap() = default;
  ~PageMap() {
    for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  uint32_t find(uint64_t page) const {
    if (page / kChunk >= kChunks) return kNone;
    const Chunk* chunk = chunks_[page / kChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return kNone;
    return (*chunk)[page % kChunk].load(std::memory_order_relaxed) - 1;
  }
  // By one thread at a time. Without memory, and for pages beyond all that are known, there is no
  // hint.
  void set(uint64_t page, uint32_t frame) {
    if (page / kChunk >= kChunks) return;
    auto& at = chunks_[page / kChunk];
    Chunk* chunk = at.load(std::memory_order_relaxed);
    if (chunk == nullptr) {
      chunk = new (std::nothrow) Chunk{};
      if (chunk == nullptr) return;
      at.store(chunk, std::memory_order_release);
    }
    (*chunk)[page % kChunk].store(frame + 1, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kChunk = 8192;
  static constexpr uint64_t kChunks = 1 << 15;
  using Chunk = std::array<std::atomic<uint32_t>, kChunk>;  // number + 1; 0: none
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

}  // namespace perdure::buffer
