// A small program that touches memory in every way there is, and what must be seen of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/seam/event.h"

namespace seam_test {

using perdure::lab::EventKind;

// Memory that the cases run on: so many bytes, aligned to a page, of small numbers.
inline constexpr uint64_t kBytes = 4096;

// An access that must be told: once, of this kind, at this offset, of this length.
struct Access {
  EventKind kind;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Access&) const = default;
};

struct Case {
  std::string name;
  bool (*run)(unsigned char* base);  // false: what it computed is wrong
  std::vector<Access> expected;
  // The compiler may cut it in pieces: each byte is told once, whatever the pieces.
  bool in_pieces = false;
};

std::vector<Case> plain_cases();      // loads and stores of every width, aligned and not, volatile
std::vector<Case> copy_cases();       // vectors, structs, memset, memcpy, memmove, strings
std::vector<Case> atomic_cases();     // of all widths and kinds, and fences
std::vector<Case> primitive_cases();  // flush, fence and non-temporal copies of pm

// Stores 8 bytes at each of `count` words.
void store_words(uint64_t* words, uint64_t count);

}  // namespace seam_test
