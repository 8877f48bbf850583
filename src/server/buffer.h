// Bytes on their way in or out of a connection: appended behind, consumed in front.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace perdure::server {

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

  // Room for `bytes` more; what is written there counts after commit(). Moves what data() has led
  // to. Throws std::bad_alloc.
  char* prepare(size_t bytes) {
    if (begin_ == end_)
      begin_ = end_ = 0;  // here, not where it is consumed: somebody may be writing behind it
    if (capacity_ - end_ < bytes) grow(bytes);
    return data_ + end_;
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
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  void grow(size_t bytes) {
    const size_t used = size();
    if (begin_ > 0 && used + bytes <= capacity_ && begin_ >= used) {
      std::memcpy(data_, data_ + begin_, used);
    } else {
      const size_t wanted = std::max({used + bytes, capacity_ + capacity_ / 2, size_t{4096}});
      char* fresh = static_cast<char*>(std::malloc(wanted));
      if (fresh == nullptr) throw std::bad_alloc();
      if (used > 0) std::memcpy(fresh, data_ + begin_, used);
      std::free(std::exchange(data_, fresh));
      capacity_ = wanted;
    }
    begin_ = 0;
    end_ = used;
  }

  char* data_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t capacity_ = 0;
};

}  // namespace perdure::server
