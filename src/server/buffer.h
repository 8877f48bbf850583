// Bytes on their way in or out of a connection: appended behind, consumed in front.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace perdure::server {

// Nothing more is taken: there would be more than the bound.
struct BufferFull : std::bad_alloc {
  const char* what() const noexcept override { return "too much waits to be sent"; }
};

class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  size_t capacity() const { return capacity_; }
  const char* data() const { return data_ + begin_; }
  std::string_view view() const { return {data_ + begin_, size()}; }

  // No more than so many bytes may lie in it, nor memory be taken for more: whatever appends more
  // throws BufferFull. Null: no bound. It is looked at where memory is taken, and not before.
  void set_bound(const std::atomic<uint64_t>* bytes_max) { bytes_max_ = bytes_max; }
  // Throws BufferFull if `bytes` more are too many.
  void require(size_t bytes) const {
    const size_t most = bound();
    if (bytes > most - std::min(most, size())) throw BufferFull();
  }

  // Room for `bytes` more; what is written there counts after commit(). Moves what data() has led
  // to. Throws std::bad_alloc.
  char* prepare(size_t bytes) {
    if (begin_ == end_)
      begin_ = end_ = 0;  // here, not where it is consumed: somebody may be writing behind it
    if (capacity_ - end_ < bytes) {
      require(bytes);
      grow(bytes, bound());
    }
    return data_ + end_;
  }
  // Takes memory for so many bytes more, whatever the bound. Throws std::bad_alloc.
  void reserve(size_t bytes) {
    if (capacity_ - end_ < bytes) grow(bytes, SIZE_MAX);
  }
  void commit(size_t bytes) { end_ += bytes; }
  size_t room() const { return empty() ? capacity_ : capacity_ - end_; }

  void append(std::string_view bytes) {
    if (bytes.empty()) return;
    std::memcpy(prepare(bytes.size()), bytes.data(), bytes.size());
    end_ += bytes.size();
  }
  void push_back(char byte) {
    *prepare(1) = byte;
    ++end_;
  }
  void consume(size_t bytes) { begin_ += bytes; }
  // Takes away what was appended last, down to `bytes` in all.
  void truncate(size_t bytes) { end_ = begin_ + bytes; }
  void clear() { begin_ = end_ = 0; }
  // Gives memory back if it is empty and larger than that.
  void shrink(size_t keep_bytes) {
    if (!empty() || capacity_ <= keep_bytes) return;
    std::free(std::exchange(data_, nullptr));
    begin_ = end_ = capacity_ = 0;
  }
  // The bounds stay.
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  size_t bound() const {
    return bytes_max_ != nullptr ? bytes_max_->load(std::memory_order_relaxed) : SIZE_MAX;
  }
  void grow(size_t bytes, size_t bytes_max) {
    const size_t used = size();
    const bool is_room = used + bytes <= capacity_ && begin_ >= used;
    if (begin_ > 0) {
      std::memmove(data_, data_ + begin_, used);
      begin_ = 0;
      end_ = used;
    }
    if (is_room) return;
    // Of much, no second copy: its pages are moved.
    const size_t more = std::max({used + bytes, capacity_ + capacity_ / 2, size_t{4096}});
    const size_t wanted = std::min(more, std::max(bytes_max, used + bytes));
    void* const moved = std::realloc(data_, wanted);
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<char*>(moved);
    capacity_ = wanted;
  }

  char* data_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t capacity_ = 0;
  const std::atomic<uint64_t>* bytes_max_ = nullptr;
};

}  // namespace perdure::server
