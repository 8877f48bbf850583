#include "lab/text_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

namespace perdure::lab {

std::string align_columns(const std::vector<TextRow>& rows, size_t text_columns) {
  std::vector<size_t> widths;
  for (const TextRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const TextRow& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string gap = column == 0 ? "" : "  ";
      line += column < text_columns ? fmt::format("{}{:<{}}", gap, row[column], widths[column])
                                    : fmt::format("{}{:>{}}", gap, row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string wrap_fact(const TextRow& fact) {
  constexpr size_t kIndent = 11;
  constexpr size_t kWidth = 100;
  std::string text;
  std::string line = fmt::format("{:<{}}", fact.at(0), kIndent);
  std::istringstream words(fact.at(1));
  for (std::string word; words >> word;) {
    if (line.size() + word.size() > kWidth) {
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = std::string(kIndent, ' ');
    }
    line += word + " ";
  }
  return text + line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace perdure::lab
