// The study's figures as rows of text, for the terminal and for pages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/study/figures.h"
#include "lab/study/write_amplification.h"
#include "lab/text_table.h"

namespace perdure::lab::study {

// Three digits that mean something; "-" for none.
std::string show_figure(std::optional<double> value);
// "+1.2 %", "-30.8 %"; "-" for none.
std::string show_percent(std::optional<double> percent);

// The cells of one workload, in order.
std::vector<const AmpResult*> cells_of(const StudyReport& report, const std::string& workload);

// "LOAD: 1,000,000 inserts into an empty structure".
std::string workload_title(const StudyReport& report, const AmpWorkload& workload);

// A header and a row for each structure. Columns of published figures are there if there are some.
std::vector<TextRow> workload_rows(const StudyReport& report, const std::string& workload);

// The effects of the optimisations; no rows if none was measured.
std::vector<TextRow> effect_rows(const StudyReport& report);
// Columns of effect_rows() that are text.
inline constexpr size_t kEffectTextColumns = 3;

// What the figures were made with, as names and texts.
std::vector<TextRow> condition_rows(const StudyReport& report);

// What is not in the tables: failures, wrong answers, an interruption. Lines of text.
std::vector<std::string> remarks(const StudyReport& report);

}  // namespace perdure::lab::study
