#include "lab/amp/collect.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lab/crash/sites.h"

namespace perdure::lab {
namespace {

using nlohmann::json;

template <class Counts, class Fields>
Counts parse_counts(const json& object, const Fields& fields) {
  Counts counts;
  for (const auto& field : fields) counts.*field.member = object.at(field.name);
  return counts;
}

// Operations in the order of a report, with what belongs to none at the end.
std::vector<std::pair<std::string, Counters>> parse_types(const json& operations) {
  std::vector<std::pair<std::string, Counters>> types;
  for (const auto& [name, counts] : operations.items()) {
    types.emplace_back(name, parse_counts<Counters>(counts, kCounterFields));
  }
  const auto rank = [](const auto& type) {
    return std::tuple(type.second.operations == 0, type.first);
  };
  std::sort(types.begin(), types.end(),
            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return types;
}

// Names for the places of several modules.
class Places {
 public:
  // Functions in which the program flushed, and stored nothing itself, do nothing but flush.
  void pass_over_flush_functions(const json& entries) {
    using Function = std::pair<std::string, std::string>;  // module and name
    std::set<Function> flushing;
    std::set<Function> storing;
    for (const json& entry : entries) {
      const auto counters = parse_counts<SiteCounters>(entry, kSiteCounterFields);
      const Function function(entry.at("module"), symbols_of(entry).function(entry.at("offset")));
      if (counters.flushes > 0) flushing.insert(function);
      if (counters.pm_lines_written > 0) storing.insert(function);
    }
    for (const Function& function : flushing) {
      if (function.second.empty() || storing.contains(function)) continue;
      modules_[function.first]->pass_over(function.second);
    }
  }

  // Functions that only flush or fence are passed over for who called them.
  AmpSite name(const json& entry) {
    const json* place = &entry;
    if (const auto callers = entry.find("callers"); callers != entry.end()) {
      for (auto caller = callers->begin(); caller != callers->end() && is_primitive(*place);
           ++caller) {
        place = &*caller;
      }
    }
    AmpSite site;
    Symbols& symbols = symbols_of(*place);
    const uint64_t offset = place->at("offset");
    site.place = symbols.place(offset);
    if (const Frame* frame = symbols.site_of(offset)) {
      site.file = frame->file;
      site.line = frame->line;
      site.function = symbols.function(offset);
    }
    return site;
  }

 private:
  Symbols& symbols_of(const json& place) {
    const std::string module = place.at("module");
    auto& symbols = modules_[module];
    if (symbols == nullptr) symbols = std::make_unique<Symbols>(module, 0);
    return *symbols;
  }
  bool is_primitive(const json& place) {
    return symbols_of(place).is_primitive(place.at("offset"));
  }

  std::map<std::string, std::unique_ptr<Symbols>> modules_;
};

bool wrote_more(const AmpSite& a, const AmpSite& b) {
  const auto rank = [](const AmpSite& site) {
    const SiteCounters& counters = site.counters;
    return std::tuple(counters.media_write_twelfths, counters.wpq_inserts(), counters.flushes,
                      counters.fences, counters.pm_misses);
  };
  return std::tuple(rank(b), a.file, a.line, a.function) <
         std::tuple(rank(a), b.file, b.line, b.function);
}

}  // namespace

Counters AmpResult::total() const {
  Counters sum;
  for (const auto& [name, counters] : by_type) sum += counters;
  return sum;
}

Counters AmpResult::of_operations() const {
  Counters sum;
  for (const auto& [name, counters] : by_type) {
    if (counters.operations > 0) sum += counters;
  }
  return sum;
}

const Counters* AmpResult::find(std::string_view type) const {
  for (const auto& [name, counters] : by_type) {
    if (name == type && counters.operations > 0) return &counters;
  }
  return nullptr;
}

uint64_t AmpReport::failed() const {
  uint64_t sum = 0;
  for (const AmpResult& result : results) sum += result.failed;
  return sum;
}

void collect(const json& report, AmpResult& result, Code code) {
  result.by_type = parse_types(report.at("operations"));
  Places places;
  if (code == Code::kForeign) places.pass_over_flush_functions(report.at("sites"));
  // Code that was inlined in several places has several addresses for one line.
  std::map<std::tuple<std::string, unsigned, std::string, std::string>, AmpSite> merged;
  for (const json& entry : report.at("sites")) {
    AmpSite site = places.name(entry);
    AmpSite& into =
        merged.try_emplace({site.file, site.line, site.function, site.place}, site).first->second;
    into.counters += parse_counts<SiteCounters>(entry, kSiteCounterFields);
  }
  result.sites.clear();
  for (auto& [key, site] : merged) result.sites.push_back(std::move(site));
  std::sort(result.sites.begin(), result.sites.end(), wrote_more);
}

}  // namespace perdure::lab
