// When the requests of an open loop are due: by the clock, whatever the server does.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/permutation.h"

namespace perdure::lab::serve {

enum class Arrivals : uint8_t {
  kPoisson,  // independent of one another, as those of many users
  kUniform   // at equal distances
};

class ArrivalClock {
 public:
  // `rate`: in a second, above 0. The first request is due one distance after 0.
  ArrivalClock(double rate, Arrivals arrivals, uint64_t seed)
      : gap_ns_(1e9 / rate), arrivals_(arrivals), seed_(seed) {
    advance();
  }

  double due_ns() const { return due_ns_; }  // of the next request, from the start
  void advance() { due_ns_ += gap_ns_ * (arrivals_ == Arrivals::kUniform ? 1 : exponential()); }

 private:
  double exponential() {
    // In (0, 1].
    const double uniform =
        (static_cast<double>(mix_word(seed_ ^ mix_word(++drawn_)) >> 11) + 1) * 0x1p-53;
    return -std::log(uniform);
  }

  double gap_ns_;
  Arrivals arrivals_;
  uint64_t seed_;
  uint64_t drawn_ = 0;
  double due_ns_ = 0;
};

}  // namespace perdure::lab::serve
