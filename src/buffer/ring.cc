#include "buffer/ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

namespace perdure::buffer {

std::unique_ptr<Ring> Ring::make(uint32_t entries) {
  io_uring_params params{};
  const auto fd = static_cast<int>(::syscall(__NR_io_uring_setup, entries, &params));
  if (fd < 0) return nullptr;
  std::unique_ptr<Ring> ring(new Ring);
  ring->fd_ = fd;
  // From 5.6 on, which knows IORING_OP_READ and IORING_OP_WRITE.
  constexpr uint32_t kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
  if ((params.features & kNeeded) != kNeeded || !ring->map(params)) return nullptr;
  return ring;
}

bool Ring::map(const io_uring_params& params) {
  const auto map = [this](uint64_t bytes, off_t what) -> char* {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what);
    if (at == MAP_FAILED) return nullptr;
    ::madvise(at, bytes, MADV_DONTFORK);  // it is this process's
    return static_cast<char*>(at);
  };
  rings_bytes_ = std::max<uint64_t>(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                                    params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  char* const entries = map(entries_bytes_, IORING_OFF_SQES);
  entries_ = reinterpret_cast<io_uring_sqe*>(entries);
  if (rings_ == nullptr || entries == nullptr) return false;
  const auto word = [this](uint32_t at) { return reinterpret_cast<uint32_t*>(rings_ + at); };
  entry_mask_ = *word(params.sq_off.ring_mask);
  entry_tail_ = word(params.sq_off.tail);
  entry_numbers_ = word(params.sq_off.array);
  completion_mask_ = *word(params.cq_off.ring_mask);
  completion_head_ = word(params.cq_off.head);
  completion_tail_ = word(params.cq_off.tail);
  completions_ = reinterpret_cast<io_uring_cqe*>(rings_ + params.cq_off.cqes);
  return true;
}

Ring::~Ring() {
  if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  ::close(fd_);
}

void Ring::push(int file, Kind kind, const Transfer& transfer, uint64_t number) {
  const uint32_t tail = *entry_tail_;  // nobody else writes it
  const uint32_t at = tail & entry_mask_;
  io_uring_sqe& entry = entries_[at];
  entry = {};
  entry.opcode = static_cast<uint8_t>(kind);
  entry.fd = file;
  entry.off = transfer.offset;
  entry.addr = reinterpret_cast<uint64_t>(transfer.memory);
  entry.len = transfer.bytes;
  entry.user_data = number;
  entry_numbers_[at] = at;
  std::atomic_ref(*entry_tail_).store(tail + 1, std::memory_order_release);
}

// The last entries, which the kernel has not taken; it looks at them in system calls only.
void Ring::take_back(uint32_t count) {
  std::atomic_ref(*entry_tail_).store(*entry_tail_ - count, std::memory_order_release);
}

// Notes what has completed; returns how many.
uint32_t Ring::reap(std::span<Transfer> transfers) {
  uint32_t head = *completion_head_;
  uint32_t count = 0;
  for (; head != std::atomic_ref(*completion_tail_).load(std::memory_order_acquire); ++head) {
    const io_uring_cqe& one = completions_[head & completion_mask_];
    transfers[one.user_data].done = static_cast<uint32_t>(std::max(0, one.res));
    ++count;
  }
  std::atomic_ref(*completion_head_).store(head, std::memory_order_release);
  return count;
}

void Ring::transfer(int file, Kind kind, std::span<Transfer> transfers) {
  const auto all = static_cast<uint32_t>(transfers.size());
  for (uint32_t i = 0; i < all; ++i) {
    transfers[i].done = 0;
    push(file, kind, transfers[i], i);
  }
  uint32_t to_submit = all;
  // What the kernel has must end before this does: it uses the pages.
  for (uint32_t waiting = all; waiting > 0; waiting -= reap(transfers)) {
    const auto taken =
        ::syscall(__NR_io_uring_enter, fd_, to_submit, waiting, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken >= 0) {
      to_submit -= static_cast<uint32_t>(taken);
    } else if (errno == EAGAIN || errno == EBUSY) {
      std::this_thread::yield();
    } else if (errno != EINTR) {
      take_back(to_submit);
      waiting -= to_submit;
      to_submit = 0;
      std::this_thread::yield();
    }
  }
}

}  // namespace perdure::buffer
