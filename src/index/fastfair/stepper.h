// Stores that become durable in the order in which they are made.
#pragma once

#include <cstdint>

#include "pm/memory.h"

namespace perdure::index::fastfair {

// Within a cache line the order of the stores is enough. When they go on to another line, the one
// they leave is flushed and fenced first. The last line is flushed by the destructor, not fenced.
class Stepper {
 public:
  explicit Stepper(const pm::Memory& memory) : memory_(memory) {}
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;
  ~Stepper() {
    if (last_ != nullptr) memory_.flush(last_, sizeof *last_);
  }

  void store(uint64_t& word, uint64_t value) {
    if (last_ != nullptr && line_of(last_) != line_of(&word)) {
      memory_.persist(last_,
                      sizeof *last_);  // what was stored there, before what follows elsewhere
    }
    pm::store_release(word, value);
    last_ = &word;
  }

 private:
  static uintptr_t line_of(const uint64_t* word) {
    return reinterpret_cast<uintptr_t>(word) / pm::kLineBytes;
  }

  const pm::Memory& memory_;
  const uint64_t* last_ = nullptr;
};

}  // namespace perdure::index::fastfair
