// Tables of a study, as rows of text, for the terminal and for pages.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "lab/html/page.h"
#include "lab/text_table.h"

namespace perdure::lab::study {

// A table with the line that stands above it.
struct TitledRows {
  std::string title;
  std::vector<TextRow> rows = {};  // the first is the header
  size_t text_columns = 1;
};

// Empty without rows.
inline std::string as_text(const TitledRows& table) {
  return table.rows.empty()
             ? ""
             : "\n" + table.title + "\n" + align_columns(table.rows, table.text_columns);
}

inline std::string as_html(const TitledRows& table) {
  return table.rows.empty() ? ""
                            : fmt::format("<h3>{}</h3>\n{}", html::escape(table.title),
                                          html::table(table.rows, table.text_columns));
}

template <class Show>
std::string all_of(const std::vector<TitledRows>& tables, Show show) {
  std::string text;
  for (const TitledRows& table : tables) text += show(table);
  return text;
}

}  // namespace perdure::lab::study
