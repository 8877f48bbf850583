// Pieces of a report in HTML: one page that loads nothing, light or dark as the reader's system is.
//
//   std::string body = html::table({{"structure", "M ops/s"}, {"plush", "1.25"}}, 1);
//   body += html::figure(html::draw(chart), rows, 1);      // html/lines.h, html/bars.h
//   write(html::page("Results", body));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/text_table.h"

namespace perdure::lab::html {

// Text as it may stand between tags and in quoted attributes. Control characters become '?'.
std::string escape(std::string_view text);

// A whole page around `body`, which is HTML; `title` is text, and its heading too.
std::string page(std::string_view title, std::string_view body);

// A table of rows of plain text, the first of which is its header. The first `text_columns` columns
// are aligned to the left, the others as numbers.
std::string table(const std::vector<TextRow>& rows, size_t text_columns);

// A table of names and what they are, without a header.
std::string facts(const std::vector<TextRow>& rows);

// A drawn chart with its caption. Empty if it is.
std::string figure(const std::string& drawing);
// And under it, folded, the table of what it shows.
std::string figure(const std::string& drawing, const std::vector<TextRow>& data,
                   size_t text_columns);

// `content`, folded under a line of text.
std::string folded(std::string_view summary, const std::string& content);

// How many series have a colour of their own. Later ones repeat the colours with other markers and
// dashes.
inline constexpr size_t kColours = 8;

// The CSS class that gives a series its colour: as --series within the element.
std::string series_class(size_t series);

}  // namespace perdure::lab::html
