// Where the model writes its counts: by operation and by call site.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <vector>

#include "lab/model/counters.h"

namespace perdure::lab {

inline constexpr uint16_t kModelOperations = 16;

// Who is charged for what becomes of a line.
struct LineOwner {
  uint32_t site = 0;
  uint16_t operation = 0;
};

class Ledger {
 public:
  Counters& operation(uint16_t number) {
    assert(number < kModelOperations);
    return operations_[number];
  }
  const Counters& operation(uint16_t number) const {
    assert(number < kModelOperations);
    return operations_[number];
  }

  SiteCounters& site(uint32_t number) {
    if (number >= sites_.size()) [[unlikely]]
      sites_.resize(size_t{number} + 1);
    return sites_[number];
  }
  const std::vector<SiteCounters>& sites() const { return sites_; }

  Counters total() const {
    Counters sum;
    for (const Counters& each : operations_) sum += each;
    return sum;
  }

  void reset() {
    operations_.fill(Counters{});
    sites_.assign(sites_.size(), SiteCounters{});
  }

 private:
  std::array<Counters, kModelOperations> operations_{};
  std::vector<SiteCounters> sites_;
};

}  // namespace perdure::lab
