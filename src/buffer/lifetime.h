// Tells what may outlive a database whether it is still open, without a store to anything that
// threads share.
//
//   Lifetime lifetime;                            // of the database
//   const Lifetime::Ref alive = lifetime.ref();   // of who refers to it
//   if (alive.is_over()) throw ...
//
// Whoever closes a database while another thread is in a call of it gets no error: only what is
// called afterwards is one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace perdure::buffer {

class Lifetime {
 public:
  // Copyable; may be asked at any time.
  class Ref {
   public:
    bool is_over() const { return place_->load(std::memory_order_acquire) != number_; }
    // No other database of this process has it, nor has this one when it is opened again.
    uint64_t number() const { return number_; }

   private:
    friend class Lifetime;
    Ref(const std::atomic<uint64_t>& place, uint64_t number) : place_(&place), number_(number) {}
    const std::atomic<uint64_t>* place_;
    uint64_t number_;
  };

  Lifetime() {
    Places& all = places();
    const std::lock_guard lock(all.mutex);
    all.free.reserve(all.words.size() + 1);  // to end takes no memory
    if (all.free.empty()) all.free.push_back(&all.words.emplace_back(0));
    place_ = all.free.back();
    all.free.pop_back();
    number_ = ++all.last_number;
    place_->store(number_, std::memory_order_release);
  }
  ~Lifetime() {
    end();
    Places& all = places();
    const std::lock_guard lock(all.mutex);
    all.free.push_back(place_);
  }
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  void end() { place_->store(0, std::memory_order_release); }
  Ref ref() const { return {*place_, number_}; }

 private:
  // Words that are never freed: a later database takes one again, under another number.
  struct Places {
    std::mutex mutex;
    std::deque<std::atomic<uint64_t>> words;
    std::vector<std::atomic<uint64_t>*> free;
    uint64_t last_number = 0;
  };
  // Never destroyed: a database may be a global one.
  static Places& places() {
    static Places& all = *new Places;
    return all;
  }

  std::atomic<uint64_t>* place_;
  uint64_t number_;
};

}  // namespace perdure::buffer
