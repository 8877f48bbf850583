// Faults of a page file, by chance or from one call on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer/page_store.h"
#include "perdure/error.h"
#include "support/random.h"

namespace perdure::test {

// A page file that tears writes, fails, reads short, flips bits, and is full.
class FaultyFile final : public buffer::PageFaults {
 public:
  explicit FaultyFile(uint64_t seed = 0) : random_(seed) { buffer::inject_page_faults(this); }
  ~FaultyFile() override { buffer::inject_page_faults(nullptr); }
  FaultyFile(const FaultyFile&) = delete;
  FaultyFile& operator=(const FaultyFile&) = delete;

  uint64_t percent = 0;          // of the writes and syncs that fail
  bool full = false;             // with kNoSpace, else with kIo
  bool flips = false;            // reads return a flipped bit
  bool is_short = false;         // reads end early
  uint64_t last = ~uint64_t{0};  // all writes and syncs fail after so many

  void read(uint64_t, char* page, uint32_t bytes) override {
    if (flips && random_.chance(percent)) {
      page[random_.below(bytes)] ^= static_cast<char>(1 << random_.below(8));
      ++faults;
    }
    if (is_short && random_.chance(percent)) {
      std::fill(page + random_.below(bytes / 512) * 512, page + bytes, '\0');
      ++faults;
    }
  }
  uint32_t write(uint64_t, uint32_t bytes) override {
    count();
    if (flips || is_short || !random_.chance(percent)) return bytes;
    ++faults;
    if (random_.chance(50)) {
      torn_ = true;
      return static_cast<uint32_t>(random_.below(bytes / 512) * 512);
    }
    fail();
  }
  void sync() override {
    count();
    if (torn_ || (!flips && !is_short && random_.chance(percent / 4))) {
      torn_ = false;
      fail();
    }
  }
  // No more faults. A write that was lost belongs to a batch that has failed, and is to be written
  // again.
  void mend() {
    percent = 0;
    torn_ = false;
  }
  uint64_t faults = 0;

 private:
  void count() {
    if (last-- > 0) return;
    last = 0;
    ++faults;
    fail();
  }
  [[noreturn]] void fail() const {
    throw Error(full ? ErrorCode::kNoSpace : ErrorCode::kIo, "the page file: told to fail");
  }
  Random random_;
  bool torn_ = false;  // the kernel tells of a lost write when it is synced
};

}  // namespace perdure::test
