// What was published of servers' memory and its price, to set beside ours. Nothing is derived from
// it but the prices that are taken where none are given.
#pragma once

#include <string_view>
#include <vector>

namespace perdure::lab::study {

// Of 16 GB of values.
struct PublishedCost {
  std::string_view system;
  double small_dollars;  // values of 100 bytes
  double large_dollars;  // of 1000
};
const std::vector<PublishedCost>& published_costs();

extern const char* const kServingSource;
extern const char* const kServingConditions;

}  // namespace perdure::lab::study
