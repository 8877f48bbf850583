// Memory that a program under exploration runs in: nobody's, or a crash image.
#pragma once

#include <cstdint>
#include <string>

namespace perdure::lab::crash {

// Throws the error of the last system call: `what` (a path) and errno in words.
[[noreturn]] void throw_system_error(const std::string& what);

class Mapping {
 public:
  explicit Mapping(uint64_t bytes);           // all zero
  explicit Mapping(const std::string& path);  // a whole file; in worker processes a private copy
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* base_;
  uint64_t bytes_;
};

}  // namespace perdure::lab::crash
