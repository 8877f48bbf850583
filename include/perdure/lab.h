/* The instruments, for programs that are not Perdure's: built with perdure-cc or perdure-c++, a
   program says with these calls where its persistent memory is and where an operation begins and
   ends; `perdure amp --program` then counts what each operation writes, and `perdure crash
   --program` takes it through every crash. Without those compilers every call does nothing, so they
   can stay in the source. C and C++. See docs/lab.md. */
#ifndef PERDURE_LAB_H
#define PERDURE_LAB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PERDURE_LAB_OPTIONAL __attribute__((weak))

/* [base, base + bytes) is persistent memory from now on, known as `name` (copied; may be null). If it
   is a mapped file, give the file's path as the name: the crash explorer writes images of it.
   Loads and stores elsewhere count as DRAM. Thread-safe. At most 16 regions at a time. */
PERDURE_LAB_OPTIONAL void perdure_lab_region(void* base, size_t bytes, const char* name);

/* The region that begins at `base` is persistent memory no longer. Call it before unmapping. */
PERDURE_LAB_OPTIONAL void perdure_lab_region_end(void* base);

/* The calling thread begins an operation of this type ("insert"; copied on first use; at most 15
   types), which writes `payload_bytes` of the user's data. Operations do not nest. */
PERDURE_LAB_OPTIONAL void perdure_lab_operation_begin(const char* type, size_t payload_bytes);

/* The operation of the calling thread ends: if it wrote, it must be durable now. */
PERDURE_LAB_OPTIONAL void perdure_lab_operation_end(void);

/* Reads a counter of all operations of a type so far ("" or null: of everything). Names are those of
   the JSON of `perdure amp`: "flushes", "fences", "wpq_inserts", "media_writes", ... Returns 0 and
   stores the figure, or -1 if no model is running or there is no such counter or type. */
PERDURE_LAB_OPTIONAL int perdure_lab_counter(const char* type, const char* counter, double* value);

/* The counters start again from zero; the modelled caches keep their content. For warm-up. */
PERDURE_LAB_OPTIONAL void perdure_lab_reset(void);

#ifdef __cplusplus
}
#endif

/* The same, safe to call where the runtime is not linked. */
static inline void perdure_lab_mark_region(void* base, size_t bytes, const char* name) {
  if (perdure_lab_region) perdure_lab_region(base, bytes, name);
}
static inline void perdure_lab_unmark_region(void* base) {
  if (perdure_lab_region_end) perdure_lab_region_end(base);
}
static inline void perdure_lab_begin(const char* type, size_t payload_bytes) {
  if (perdure_lab_operation_begin) perdure_lab_operation_begin(type, payload_bytes);
}
static inline void perdure_lab_end(void) { /* NOLINT: C */
  if (perdure_lab_operation_end) perdure_lab_operation_end();
}

#endif
