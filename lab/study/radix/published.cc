#include "lab/study/radix/published.h"

namespace perdure::lab::study {

const char* const kRadixSource =
    "S. K. Lee et al., WORT: Write Optimal Radix Tree for Persistent Memory Storage Systems, FAST "
    "2017";
const char* const kRadixConditions =
    "DRAM whose writes were drawn out by stall cycles after each flush, two Xeon E5-2620 v3";

const char* const kRadixInserts = "WORT and WOART insert faster than wB+Tree";
const char* const kRadixLatency = "the difference of WORT and wB+Tree grows with the write latency";
const char* const kRadixFlushes = "B+tree variants flush more lines for each insert";
const char* const kRadixSearches = "WORT searches faster than the B+tree variants";

}  // namespace perdure::lab::study
