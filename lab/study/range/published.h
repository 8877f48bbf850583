// What the comparison of range indexes published, as figures and as orders, to set beside ours.
// They are here and nowhere else; nothing in a structure or in the benchmark is derived from them.
#pragma once

#include <string_view>
#include <vector>

namespace perdure::lab::study {

// Seconds until the first operation can run after a crash.
struct PublishedRecovery {
  std::string_view structure;
  double half_s;  // of 50 M records
  double full_s;  // of 100 M records
};

// That one structure is the fastest, or the slowest, of those compared.
struct PublishedOrder {
  std::string_view statement;
  std::string_view experiment;
  std::string_view structure;
  bool is_fastest;
};

// In the order in which the study's structures stand here.
const std::vector<PublishedRecovery>& published_recovery();
const std::vector<PublishedOrder>& published_orders();

// Whether the comparison had this structure: orders are among those that it had.
bool was_compared(std::string_view structure);

extern const char* const kRangeSource;
extern const char* const kRangeConditions;

}  // namespace perdure::lab::study
