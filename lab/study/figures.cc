#include "lab/study/figures.h"

#include <algorithm>
#include <cmath>

namespace perdure::lab::study {
namespace {

const AmpResult* find_cell(const std::vector<AmpResult>& cells, std::string_view structure,
                           std::string_view workload) {
  const auto found = std::ranges::find_if(cells, [&](const AmpResult& cell) {
    return cell.structure == structure && cell.workload == workload;
  });
  return found == cells.end() ? nullptr : &*found;
}

std::optional<double> change_of(const AmpResult& cell, const AmpResult& base, Quantity quantity) {
  const std::optional<double> value = value_of(cell, quantity);
  const std::optional<double> before = value_of(base, quantity);
  return value && before ? percent_change(*value, *before) : std::nullopt;
}

std::optional<double> published_change(const Effect& effect, Quantity quantity) {
  const PublishedChange* known =
      find_published_change(effect.structure, effect.base, effect.workload, quantity);
  return known == nullptr ? std::nullopt : std::optional(known->percent);
}

// Nothing if the base was not measured, or writes nothing that could change.
void add_effect(std::vector<Effect>& effects, const std::vector<AmpResult>& cells,
                const AmpResult& cell, size_t plus) {
  const std::string base = cell.structure.substr(0, plus);
  const AmpResult* before = find_cell(cells, base, cell.workload);
  if (before == nullptr) return;
  Effect effect{.optimisation = cell.structure.substr(plus),
                .structure = cell.structure,
                .base = base,
                .workload = cell.workload,
                .wpq_inserts_percent = change_of(cell, *before, Quantity::kWpqInserts),
                .media_writes_percent = change_of(cell, *before, Quantity::kMediaWrites)};
  if (!effect.wpq_inserts_percent && !effect.media_writes_percent) return;
  effect.published_wpq_inserts_percent = published_change(effect, Quantity::kWpqInserts);
  effect.published_media_writes_percent = published_change(effect, Quantity::kMediaWrites);
  effects.push_back(std::move(effect));
}

}  // namespace

std::string_view counted_operation(const AmpResult& cell) {
  const Counters* inserts = cell.find("insert");
  return inserts != nullptr && inserts->operations > 0 ? "insert" : "lookup";
}

std::optional<double> value_of(const AmpResult& cell, Quantity quantity) {
  const Counters total = cell.total();
  const auto wpq = static_cast<double>(total.wpq_inserts());
  if (quantity == Quantity::kMediaPerWpqInsert) {
    return wpq > 0 ? std::optional(total.media_write_units() / wpq) : std::nullopt;
  }
  const Counters* counted = cell.find(counted_operation(cell));
  if (counted == nullptr || counted->operations == 0) return std::nullopt;
  const double all = quantity == Quantity::kWpqInserts ? wpq : total.media_write_units();
  return all / static_cast<double>(counted->operations);
}

std::optional<double> percent_change(double value, double reference) {
  if (reference == 0) return std::nullopt;
  return 100 * (value - reference) / std::abs(reference);
}

Compared compare(const AmpResult& cell, Quantity quantity) {
  Compared result{.value = value_of(cell, quantity),
                  .published = find_published(cell.structure, cell.workload, quantity)};
  if (result.value && result.published != nullptr) {
    result.deviation_percent = percent_change(*result.value, result.published->value);
  }
  return result;
}

std::vector<Effect> effects(const std::vector<AmpResult>& cells) {
  std::vector<Effect> all;
  for (const AmpResult& cell : cells) {
    const size_t first = cell.structure.find('+');
    const size_t last = cell.structure.rfind('+');
    if (last == std::string::npos) continue;
    add_effect(all, cells, cell, last);
    if (first != last) add_effect(all, cells, cell, first);
  }
  return all;
}

}  // namespace perdure::lab::study
