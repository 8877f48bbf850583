// io_uring, as much of it as it takes to read or write a batch of pages in one submission. By
// system calls: who links the library needs no other one for it.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>
#include <memory>
#include <span>

namespace perdure::buffer {

class Ring {
 public:
  // For up to `entries` transfers at once, a power of two. Null where the kernel, or who guards the
  // process, refuses it.
  static std::unique_ptr<Ring> make(uint32_t entries);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  enum class Kind : uint8_t { kRead = IORING_OP_READ, kWrite = IORING_OP_WRITE };
  struct Transfer {
    char* memory;  // of a write it is only read
    uint64_t offset;
    uint32_t bytes;
    // How many bytes were transferred; with fewer than `bytes`, pread or pwrite of the rest tells
    // why.
    uint32_t done;
  };
  // Hands all of them to the kernel, and returns when none is under way any more. By one thread at
  // a time.
  void transfer(int file, Kind kind, std::span<Transfer> transfers);

 private:
  Ring() = default;
  bool map(const io_uring_params& params);
  void push(int file, Kind kind, const Transfer& transfer, uint64_t number);
  void take_back(uint32_t count);
  uint32_t reap(std::span<Transfer> transfers);

  int fd_ = -1;
  char* rings_ = nullptr;
  uint64_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  uint64_t entries_bytes_ = 0;
  uint32_t entry_mask_ = 0;
  uint32_t* entry_tail_ = nullptr;
  uint32_t* entry_numbers_ = nullptr;
  uint32_t completion_mask_ = 0;
  uint32_t* completion_head_ = nullptr;
  uint32_t* completion_tail_ = nullptr;
  io_uring_cqe* completions_ = nullptr;
};

}  // namespace perdure::buffer
