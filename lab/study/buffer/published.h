// What was published of updates in persistent memory: how many times longer than without a
// checksum.
#pragma once

#include <cstdint>
#include <span>

namespace perdure::lab::study::buffer_pool {

struct PublishedUpdate {
  uint32_t page_bytes;
  uint64_t update_bytes;
  double copy;         // to DRAM
  double checksum;     // one for the page
  double partitioned;  // 8 of them
};

// Table 4.3 of the dissertation.
std::span<const PublishedUpdate> published_updates();

}  // namespace perdure::lab::study::buffer_pool
