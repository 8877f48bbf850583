#include "lab/study/published.h"

#include <algorithm>

namespace perdure::lab::study {

const char* const kPublishedSource =
    "B. Woo et al., Analysis and Optimization of Persistent Memory Index Structures' Write "
    "Amplification, IEEE Access 2021";
const char* const kPublishedConditions =
    "first-generation Optane DIMMs, Xeon 8280M; random 8-byte keys and values, 64 M records "
    "loaded, "
    "then 64 M operations";

const std::vector<Published>& published() {
  static const std::vector<Published> all = {
      {"p-clht", "load", Quantity::kMediaPerWpqInsert, 2.49},
      {"p-clht", "a", Quantity::kMediaPerWpqInsert, 2.71},
      {"p-clht", "b", Quantity::kMediaPerWpqInsert, 2.60},
      {"cceh", "load", Quantity::kMediaPerWpqInsert, 2.39},
      {"cceh", "a", Quantity::kMediaPerWpqInsert, 2.21},
      {"cceh", "b", Quantity::kMediaPerWpqInsert, 2.46},
      {"p-clht", "a", Quantity::kWpqInserts, 3, true},
  };
  return all;
}

const std::vector<PublishedChange>& published_changes() {
  static const std::vector<PublishedChange> all = {
      {"p-clht+fc", "p-clht", "a", Quantity::kWpqInserts, -30.8},
  };
  return all;
}

const Published* find_published(std::string_view structure, std::string_view workload,
                                Quantity quantity) {
  const auto found = std::ranges::find_if(published(), [&](const Published& each) {
    return each.structure == structure && each.workload == workload && each.quantity == quantity;
  });
  return found == published().end() ? nullptr : &*found;
}

const PublishedChange* find_published_change(std::string_view structure, std::string_view base,
                                             std::string_view workload, Quantity quantity) {
  const auto found = std::ranges::find_if(published_changes(), [&](const PublishedChange& each) {
    return each.structure == structure && each.base == base && each.workload == workload &&
           each.quantity == quantity;
  });
  return found == published_changes().end() ? nullptr : &*found;
}

}  // namespace perdure::lab::study
