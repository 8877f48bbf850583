// The kinds of keys and values of a workload, from the command line.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::cli {

// Whether a structure of the catalogue is among these that takes byte strings alone.
inline bool has_one_of_bytes_only(const std::vector<std::string>& structures) {
  return std::ranges::any_of(structures, [](const std::string& name) {
    try {
      const auto& kinds = catalog_entry(name).traits.kinds;
      return std::ranges::all_of(kinds, [](const std::pair<Kind, Kind>& one) {
        return one == std::pair(Kind::kBytes, Kind::kBytes);
      });
    } catch (const Error&) {
      return false;  // a peer, or nothing: which others find out
    }
  });
}

// What is measured unless the user says it: words, or byte strings where one of the structures
// takes nothing else.
inline std::string kind_or_default(const std::string& given,
                                   const std::vector<std::string>& structures) {
  if (!given.empty()) return given;
  return has_one_of_bytes_only(structures) ? "bytes" : "u64";
}

}  // namespace perdure::cli
