// Pages and figures, on figures that were made up.
#include "lab/study/page.h"

#include <gtest/gtest.h>

namespace perdure::lab::study {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

BarChart chart() {
  return {.title = "LOAD: writes",
          .unit = "per insert",
          .series = {"inserts", "writes"},
          .mark_name = "published",
          .groups = {{"p-clht", {3, 8}, 2.5}, {"cceh", {1, 4}, {}}, {"none", {0, 0}, {}}}};
}

TEST(StudyPage, HasABarForEachValueThatIsNotZero) {
  const std::string html = html_bars(chart());
  EXPECT_EQ(count(html, "<path"), 4U);
  EXPECT_EQ(count(html, "class=\"mark\""), 1U);
  for (const char* text : {"p-clht, writes: 8.000", "cceh", "none", "published", "per insert"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
}

TEST(StudyPage, ShowsNoFigureOfNothing) {
  BarChart nothing = chart();
  for (BarGroup& group : nothing.groups) group = {group.name, {0, 0}, {}};
  EXPECT_EQ(html_bars(nothing), "");
}

TEST(StudyPage, EscapesWhatNamesContain) {
  EXPECT_EQ(escape_html("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
  const std::string table = html_table({{"a<b", "n"}, {"x&y", "1"}}, 1);
  EXPECT_NE(table.find("<th>a&lt;b</th><th class=\"n\">n</th>"), std::string::npos) << table;
  EXPECT_NE(table.find("<td>x&amp;y</td><td class=\"n\">1</td>"), std::string::npos) << table;
}

TEST(StudyPage, LoadsNothing) {
  const std::string page = make_page("A study", html_bars(chart()));
  for (const char* text : {"http", "src=", "url(", "<script", "@import"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
  EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(count(page, "<title>A study</title>"), 1U);
}

}  // namespace
}  // namespace perdure::lab::study
