// Columns of text and figures, aligned.
#pragma once

#include <string>
#include <vector>

namespace perdure::lab {

using TextRow = std::vector<std::string>;

// A line for each row. The first `text_columns` columns are left-aligned, the others right-aligned;
// rows may be of different length.
std::string align_columns(const std::vector<TextRow>& rows, size_t text_columns);

}  // namespace perdure::lab
