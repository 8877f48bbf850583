// What the comparison measured of every index.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "lab/study/range/range_indexes.h"
#include "perdure/catalog.h"
#include "perdure/error.h"

namespace perdure::lab::study {
namespace {

constexpr double kSkew = 0.2;

struct Column {
  const char* name;
  const char* mix;
  bool draws = true;  // which records are addressed hangs on the distribution
  bool mixed = false;
};
constexpr Column kColumns[] = {{"insert", "insert", false},
                               {"lookup", "lookup"},
                               {"update", "update"},
                               {"remove", "remove", false},
                               {"scan", "scan"},
                               {"90/10", "lookup=.9,update=.1", true, true},
                               {"50/50", "lookup=.5,update=.5", true, true},
                               {"10/90", "lookup=.1,update=.9", true, true}};

bool has_column(RangePart part, const Column& column) {
  if (part == RangePart::kSelfSimilar) return column.draws;
  return part == RangePart::kUniform || (part == RangePart::kLongKeys && !column.mixed);
}

// What stands behind the name of an experiment.
std::string suffix_of(RangePart part) {
  switch (part) {
    case RangePart::kSelfSimilar:
      return fmt::format(", self-similar {}", kSkew);
    case RangePart::kLongKeys:
      return ", long keys";
    default:
      return "";
  }
}

RangeExperiment load_experiment(const char* name, bool half, bool long_keys) {
  return {.name = name,
          .column = name,
          .part = RangePart::kLoad,
          .workload = Workload::of(Mix::parse("insert")),
          .is_load = true,
          .is_half = half,
          .long_keys = long_keys};
}

void add_part(RangePart part, std::vector<RangeExperiment>& experiments) {
  if (part == RangePart::kLoad) {
    experiments.push_back(load_experiment("load", false, false));
    experiments.push_back(load_experiment("load of half", true, false));
    experiments.push_back(load_experiment("load, long keys", false, true));
    return;
  }
  for (const Column& column : kColumns) {
    if (!has_column(part, column)) continue;
    Workload workload = Workload::of(Mix::parse(column.mix));
    workload.name = (column.mixed ? "lookups/updates " : "") + std::string(column.name);
    workload.name += suffix_of(part);
    if (part == RangePart::kSelfSimilar) {
      workload.distribution = Distribution::parse(fmt::format("selfsimilar={}", kSkew));
    }
    experiments.push_back({.name = workload.name,
                           .column = column.name,
                           .part = part,
                           .workload = workload,
                           .long_keys = part == RangePart::kLongKeys});
  }
}

}  // namespace

const char* to_string(RangePart part) noexcept {
  switch (part) {
    case RangePart::kLoad:
      return "load";
    case RangePart::kUniform:
      return "uniform";
    case RangePart::kSelfSimilar:
      return "self-similar";
    case RangePart::kLongKeys:
      break;
  }
  return "long-keys";
}

RangePart parse_range_part(std::string_view text) {
  std::string names;
  for (const RangePart part : kRangeParts) {
    if (text == to_string(part)) return part;
    names += (names.empty() ? "" : ", ") + std::string(to_string(part));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no part of the study: choose from {}", text, names));
}

std::vector<RangeExperiment> range_experiments(const std::vector<RangePart>& parts) {
  std::vector<RangeExperiment> experiments;
  for (const RangePart part : kRangeParts) {
    if (std::ranges::find(parts, part) != parts.end()) add_part(part, experiments);
  }
  return experiments;
}

std::vector<std::string> range_structures() {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    if (entry.traits.ordered) names.push_back(entry.name);
  }
  names.emplace_back("dram-btree");
  return names;
}

}  // namespace perdure::lab::study
