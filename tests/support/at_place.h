// What a test does in threads that come to a place with a name (pm/pause.h).
//
//   AtPlace here("nv-tree: top", [&] { ...what do others see just now?... });
//
// `look` runs in the thread that came there, which holds what it holds: it must wait for nothing
// that this thread would have to do. One object at a time; it goes when no thread can come to the
// place any more.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "pm/pause.h"

namespace perdure::test {

class AtPlace {
 public:
  AtPlace(std::string_view place, std::function<void()> look)
      : place_(place), look_(std::move(look)) {
    current = this;
    pm::at_place.store(
        [](const char* name) {
          if (name == current->place_) current->look_();
        },
        std::memory_order_release);
  }
  ~AtPlace() { pm::at_place.store(nullptr, std::memory_order_release); }
  AtPlace(const AtPlace&) = delete;
  AtPlace& operator=(const AtPlace&) = delete;

 private:
  static inline AtPlace* current = nullptr;
  std::string_view place_;
  std::function<void()> look_;
};

}  // namespace perdure::test
