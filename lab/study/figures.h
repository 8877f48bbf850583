// The figures of the write-amplification study, calculated from counts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/amp/amp.h"
#include "lab/study/published.h"

namespace perdure::lab::study {

// The operation that a workload's figures are given for: "insert"; "lookup" if it has no inserts.
std::string_view counted_operation(const AmpResult& cell);

// Everything the workload wrote, divided by its inserts (or lookups), as the study divides the
// counters of the hardware. None where the divisor is 0.
std::optional<double> value_of(const AmpResult& cell, Quantity quantity);

// How far `value` is from `reference`, in percent of the latter; none if that is 0.
std::optional<double> percent_change(double value, double reference);

// Our value, and what was published.
struct Compared {
  std::optional<double> value;
  const Published* published = nullptr;
  std::optional<double> deviation_percent;
};
Compared compare(const AmpResult& cell, Quantity quantity);

// What an optimisation, or several, changed in one workload.
struct Effect {
  std::string optimisation;  // "+fc"; "+fc+ve" for several at once
  std::string structure;     // with it
  std::string base;          // without
  std::string workload;
  std::optional<double> wpq_inserts_percent;
  std::optional<double> media_writes_percent;
  std::optional<double> published_wpq_inserts_percent;
  std::optional<double> published_media_writes_percent;
};

// Of every structure "base+x" whose base was measured too, in the order of the cells; of one with
// several optimisations that of the last, and then that of all.
std::vector<Effect> effects(const std::vector<AmpResult>& cells);

}  // namespace perdure::lab::study
