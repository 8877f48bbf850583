// The experiment behind the published curve of write amplification against working set, run on the
// model, as numbers, as a table and as a figure.
//
// N adjacent media units on one DIMM; a round writes, non-temporally, the first half of each unit
// in turn and then the second half of each in turn. As long as the DIMM's buffer still holds the
// first half when the second comes, one media write serves both (Yang et al., FAST'20).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/model/profile.h"

namespace perdure::lab {

struct CurvePoint {
  uint64_t working_set_bytes = 0;
  double modelled = 0;
  double published = 0;  // 0: none for this working set
};

// Media bytes written per byte written, in the steady state, on one DIMM of the profile.
double halves_write_amplification(Profile profile, uint64_t units);

// From 4 KiB to 512 KiB, with the published values where there are some.
std::vector<CurvePoint> write_amplification_curve(const Profile& profile);

// A Markdown table.
std::string curve_table(const std::vector<CurvePoint>& points);

// A figure that stands alone and follows the reader's light or dark scheme.
std::string curve_svg(const std::vector<CurvePoint>& points);

}  // namespace perdure::lab
