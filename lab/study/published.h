// What the write-amplification study published: figures of hardware, to compare ours with. They are
// here and nowhere else; nothing in the model or in a structure is derived from them.
#pragma once

#include <string_view>
#include <vector>

namespace perdure::lab::study {

enum class Quantity {
  kWpqInserts,        // per operation
  kMediaWrites,       // per operation, in 64-byte units
  kMediaPerWpqInsert  // media writes per WPQ insert
};

struct Published {
  std::string_view structure;
  std::string_view workload;
  Quantity quantity;
  double value;
  bool about = false;  // the study gives no more than this precision
};

// How much an optimisation changed a quantity.
struct PublishedChange {
  std::string_view structure;
  std::string_view base;
  std::string_view workload;
  Quantity quantity;
  double percent;
};

const std::vector<Published>& published();
const std::vector<PublishedChange>& published_changes();

// Null where nothing was published.
const Published* find_published(std::string_view structure, std::string_view workload,
                                Quantity quantity);
const PublishedChange* find_published_change(std::string_view structure, std::string_view base,
                                             std::string_view workload, Quantity quantity);

// Where the figures come from, and what they were measured with.
extern const char* const kPublishedSource;
extern const char* const kPublishedConditions;

}  // namespace perdure::lab::study
