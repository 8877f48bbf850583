// The file names of the libraries for PiBench: one for each structure of the catalogue.
#pragma once

#include <string>
#include <string_view>

namespace perdure::pibench {

inline constexpr char kLibraryPrefix[] = "libperdure_pibench_";

// A structure's name as it may stand in any file name and identifier: "nv-tree" is "nv_tree", "a+b"
// is "a_plus_b".
inline std::string safe_name(std::string_view structure) {
  std::string safe;
  for (const char c : structure) {
    if (c == '+') {
      safe += safe.empty() ? "plus_" : "_plus_";
    } else {
      safe += c == '-' ? '_' : c;
    }
  }
  if (safe.ends_with("_plus_")) safe.pop_back();
  return safe;
}

inline std::string library_name(std::string_view structure) {
  return kLibraryPrefix + safe_name(structure) + ".so";
}

}  // namespace perdure::pibench
