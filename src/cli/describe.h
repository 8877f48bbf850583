// What is known of a pool and its structures, in words and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "perdure/index.h"
#include "perdure/pool.h"

namespace perdure::cli {

// Lines of a name and a text, shown with the texts aligned.
using Facts = std::vector<std::pair<std::string, std::string>>;
std::string to_lines(const Facts& facts);

// "DRAM that outlives the process (tmpfs)".
std::string medium_in_words(Medium medium);
// What the persistence primitives do: "a cache-line flush and a fence make a store durable".
std::string domain_in_words(Domain domain);
// What an operation that returned survives on this pool, and what it does not.
std::string durability_in_words(const PoolInfo& info);

Facts pool_facts(const PoolInfo& info);
nlohmann::json pool_json(const PoolInfo& info);
nlohmann::json structure_json(const StructureInfo& structure);
// Of a pool that is open elsewhere. What only that process knows is left out; the facts say what.
Facts inspection_facts(const PoolInspection& found);
nlohmann::json inspection_json(const PoolInspection& found);

// A figure with its unit, such as "12.0 MiB (12,582,912 bytes)" or "123,456 records".
std::string figure_in_words(const Statistic& statistic);
nlohmann::json statistics_json(const std::vector<Statistic>& statistics);
// The value of the statistic of this name; 0 if the structure does not tell.
double statistic_value(const std::vector<Statistic>& statistics, const std::string& name);

}  // namespace perdure::cli
