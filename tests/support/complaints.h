// What threads find wrong.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

namespace perdure::test {

// What threads find wrong, for the main thread to tell.
class Complaints {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (++count_ <= 10) text_ += text + "\n";
  }
  // Runs a thread's body; what it throws is a complaint.
  void catch_in(const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      add(std::string("exception: ") + error.what());
    }
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
  uint64_t count_ = 0;
};

}  // namespace perdure::test
