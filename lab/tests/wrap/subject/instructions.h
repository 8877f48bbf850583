// Instructions that the assembler step finds, in the forms in which programs have them.
#pragma once

#include <cstddef>

#include "stub.h"

namespace wrap_subject {

// `run` executes it on memory at `at` (64 bytes, aligned) and is to be seen as one call-out.
struct Form {
  const char* name;
  wrap_stub::Kind kind;
  int flavour;
  size_t offset;  // of the address told, from `at`
  size_t bytes;
  unsigned char first_byte;  // of what is at the address then; it was 0
  void (*run)(char* at);
};

const Form* forms_begin();
const Form* forms_end();

// The same with vectors of 32 bytes, for processors that have them.
const Form* avx_forms_begin();
const Form* avx_forms_end();

// Each flushes a line of its own, by clwb, and returns the address that has to be told.
struct OwnMemory {
  const char* name;
  const void* (*run)();
};
const OwnMemory* own_memory_begin();
const OwnMemory* own_memory_end();

// The outcome of a comparison that has a flush between it and its jump.
bool less_across_flush(char* at, long a, long b);

}  // namespace wrap_subject
