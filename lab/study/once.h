// Lists that name each thing once.
#pragma once

#include <fmt/core.h>

#include <algorithm>

#include "perdure/error.h"

namespace perdure::lab::study {

// Throws Error(kInvalidArgument) if two of them have the same name(each).
template <class List, class Name>
void require_once(const List& all, Name name) {
  for (auto each = all.begin(); each != all.end(); ++each) {
    const auto again = std::find_if(each + 1, all.end(),
                                    [&](const auto& other) { return name(other) == name(*each); });
    if (again != all.end()) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is named twice", name(*each)));
    }
  }
}

}  // namespace perdure::lab::study
