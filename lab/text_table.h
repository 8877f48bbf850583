// Columns of text and figures, aligned.
#pragma once

#include <string>
#include <vector>

namespace perdure::lab {

using TextRow = std::vector<std::string>;

// A line for each row. The first `text_columns` columns are left-aligned, the others right-aligned;
// rows may be of different length.
std::string align_columns(const std::vector<TextRow>& rows, size_t text_columns);

// "name       a text of many words" of a row of two, over as many lines as it needs.
std::string wrap_fact(const TextRow& fact);

}  // namespace perdure::lab
