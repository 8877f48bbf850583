// A bounded queue of pointers from one thread to one other.
//
// Null means free: the consumer looks at the slots alone and never at an index of the producer, so
// that a message is one cache line that moves. The producer looks ahead by a quarter of the ring
// and so reads what the consumer wrote once per quarter.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <span>

#include "pm/pause.h"

namespace perdure::store {

template <typename T>
class Ring {
 public:
  // `capacity` is a power of two.
  explicit Ring(uint32_t capacity)
      : slots_(std::make_unique<std::atomic<T*>[]>(capacity)), mask_(capacity - 1) {
    assert(capacity != 0 && (capacity & mask_) == 0);
  }

  // Producer. False if the ring is full. Everything written before is visible to the consumer.
  bool push(T& item) noexcept {
    if (tail_ == free_until_ && !find_room()) return false;
    pm::publish(slots_[tail_ & mask_], &item);
    ++tail_;
    return true;
  }

  // Consumer. Takes up to `into.size()` items, oldest first; returns how many.
  uint32_t pop(std::span<T*> into) noexcept {
    uint32_t count = 0;
    while (count < into.size()) {
      std::atomic<T*>& slot = slots_[head_ & mask_];
      T* const item = pm::acquire(slot);
      if (item == nullptr) break;
      pm::publish<T*>(slot, nullptr);
      ++head_;
      into[count++] = item;
    }
    return count;
  }
  // Consumer.
  bool empty() const noexcept {
    return slots_[head_ & mask_].load(std::memory_order_relaxed) == nullptr;
  }

 private:
  // Slots are freed in order: if one is free, so are all between it and the tail.
  bool find_room() noexcept {
    const uint64_t quarter = mask_ / 4 + 1;
    for (const uint64_t room : {quarter, uint64_t{1}}) {
      if (pm::acquire(slots_[(tail_ + room - 1) & mask_]) == nullptr) {
        free_until_ = tail_ + room;
        return true;
      }
    }
    return false;
  }

  std::unique_ptr<std::atomic<T*>[]> slots_;
  uint64_t mask_;
  alignas(64) uint64_t tail_ = 0;  // the producer's
  uint64_t free_until_ = 0;
  alignas(64) uint64_t head_ = 0;  // the consumer's
};

}  // namespace perdure::store
