#include "pm/memory.h"
#include "seam/observed/accesses.h"

namespace seam_test {
namespace {

using perdure::Domain;
using perdure::pm::Memory;

bool persist_line(unsigned char* base) {
  Memory(Domain::kLine).persist(base + 100, 8);
  return true;
}
bool flush_range(unsigned char* base) {
  Memory(Domain::kLine).flush(base + 60, 200);
  return true;
}
bool copy_past_caches(unsigned char* base) {
  Memory(Domain::kLine).copy_nontemporal(base + 2048, base + 1024, 128);
  return true;
}
// Where caches survive, order is all that is needed.
bool persist_in_byte_domain(unsigned char* base) {
  Memory(Domain::kByte).persist(base + 100, 8);
  return true;
}
bool store_words_of_pm(unsigned char* base) {
  auto* word = reinterpret_cast<uint64_t*>(base + 8);
  perdure::pm::store_relaxed(word[0], uint64_t{1});
  perdure::pm::store_release(word[1], uint64_t{2});
  return perdure::pm::load_acquire(word[0]) == 1;
}

}  // namespace

std::vector<Case> primitive_cases() {
  return {{"persist", persist_line, {{EventKind::kFlush, 100, 8}, {EventKind::kFence}}},
          {"flush of a range", flush_range, {{EventKind::kFlush, 60, 200}}},
          {"non-temporal copy",
           copy_past_caches,
           {{EventKind::kStream, 2048, 128}, {EventKind::kLoad, 1024, 128}},
           true},
          {"persist in domain byte", persist_in_byte_domain, {{EventKind::kFence}}},
          {"words of pm",
           store_words_of_pm,
           {{EventKind::kStore, 8, 8}, {EventKind::kStore, 16, 8}, {EventKind::kLoad, 8, 8}}}};
}

}  // namespace seam_test
