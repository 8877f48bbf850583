#include "lab/study/serving/published.h"

namespace perdure::lab::study {

const char* const kServingSource = "L. Lersch, dissertation, TU Dresden, 2020, chapter 5.8";
const char* const kServingConditions =
    "16 M records of 1000 bytes, or 160 M of 100; a client on another machine; Optane DC memory; $ "
    "1500 for "
    "128 GB of DRAM and $ 695 for 128 GB of persistent memory";

const std::vector<PublishedCost>& published_costs() {
  static const std::vector<PublishedCost> costs = {{"RStore", 227, 98},
                                                   {"memcached", 335, 207},
                                                   {"Redis", 361, 200},
                                                   {"RocksDB", 187, 160},
                                                   {"FASTER", 342, 195}};
  return costs;
}

}  // namespace perdure::lab::study
