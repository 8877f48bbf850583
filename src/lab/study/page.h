// Pieces of a report in HTML: one page that loads nothing, light or dark as the reader's system is,
// with figures in SVG.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/text_table.h"

namespace perdure::lab::study {

std::string escape_html(const std::string& text);

// A whole page around `body`, which is HTML.
std::string make_page(const std::string& title, const std::string& body);

// A table of rows of plain text, the first of which is its header.
std::string html_table(const std::vector<TextRow>& rows, size_t text_columns);

// A group of horizontal bars, one for each series.
struct BarGroup {
  std::string name;
  std::vector<double> values;
  // A mark across the group, of a figure to compare with.
  std::optional<double> mark;
};
struct BarChart {
  std::string title;
  std::string unit;                 // of the axis
  std::vector<std::string> series;  // two at most
  std::string mark_name;
  std::vector<BarGroup> groups;
};

// An inline SVG with a caption and, for several series or marks, a legend. Empty if there is nothing
// to show but zeros.
std::string html_bars(const BarChart& chart);

}  // namespace perdure::lab::study
