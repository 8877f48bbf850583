// Two file systems that are asked the same, that of the machine and that of a pool.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

namespace perdure::test {

inline std::string digest_of(std::string_view bytes) {
  return " " + std::to_string(bytes.size()) + ":" +
         std::to_string(std::hash<std::string_view>{}(bytes));
}

// Expects the same of both, and tells what was asked before where they differ.
class SameAnswers {
 public:
  // `call` asks one of them, and returns all that it answers.
  template <typename Side>
  void expect(Side& of_system, Side& of_pool, const std::string& what,
              const std::function<std::string(Side&)>& call) {
    const std::string system = call(of_system);
    const std::string pool = call(of_pool);
    trace_ += what + ": " + system + (system == pool ? "" : "; in the pool " + pool) + "\n";
    if (trace_.size() > 6000) trace_.erase(0, trace_.find('\n', trace_.size() - 4000) + 1);
    EXPECT_EQ(pool, system) << trace_;
  }

 private:
  std::string trace_;
};

}  // namespace perdure::test
