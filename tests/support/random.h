// Reproducible randomness for tests.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace perdure::test {

// A bijection of the 64-bit words that looks random (the finaliser of splitmix64); 0 maps to 0.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// The inverse of mix().
constexpr uint64_t unmix(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3U;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089U;
  return x ^ (x >> 30) ^ (x >> 60);
}

static_assert(mix(0) == 0 && unmix(mix(1)) == 1 && unmix(mix(~uint64_t{0})) == ~uint64_t{0});

// The seed of this run: environment variable PERDURE_SEED, or 1.
inline uint64_t base_seed() {
  const char* text = std::getenv("PERDURE_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 0);
}

// A small generator; one for each thread, each from a seed of its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed + 0x9e3779b97f4a7c15U)) {}

  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }
  // Uniform in [0, bound); `bound` is not 0.
  uint64_t below(uint64_t bound) { return next() % bound; }
  bool chance(uint64_t percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace perdure::test
