#include "lab/study/range/published.h"

#include <algorithm>

namespace perdure::lab::study {

const char* const kRangeSource =
    "L. Lersch et al., Evaluating Persistent Memory Range Indexes, PVLDB 13(4), 2019";
const char* const kRangeConditions =
    "first-generation Optane DIMMs; 100 M records loaded, then 100 M operations; 8-byte keys and "
    "values; 1 to 47 threads";

const std::vector<PublishedRecovery>& published_recovery() {
  static const std::vector<PublishedRecovery> all = {{"fptree", 1.77, 3.56},
                                                     {"nv-tree", 4.15, 8.45},
                                                     {"wbtree", 0.036, 0.037},
                                                     {"bztree", 0.153, 0.186}};
  return all;
}

const std::vector<PublishedOrder>& published_orders() {
  static const std::vector<PublishedOrder> all = {
      {"fingerprints win point queries", "lookup", "fptree", true},
      {"slot arrays win scans", "scan", "wbtree", true},
      {"copy-on-write is a bad fit", "insert", "bztree", false}};
  return all;
}

bool was_compared(std::string_view structure) {
  return std::ranges::find(published_recovery(), structure, &PublishedRecovery::structure) !=
         published_recovery().end();
}

}  // namespace perdure::lab::study
