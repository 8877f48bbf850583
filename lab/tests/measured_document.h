// The document of a study that measures, for tests of what is made of it.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace perdure::lab::study {

// `keys`, as the parameter has them.
inline nlohmann::json measured_document(const char* schema, const nlohmann::json& keys,
                                        const nlohmann::json& experiments, nlohmann::json results) {
  using nlohmann::json;
  const json study = {
      {"schema", schema},
      {"perdure", "0"},
      {"started", ""},
      {"interrupted", false},
      {"machine",
       {{"cpu", "c"}, {"processors", 1}, {"memory_bytes", 1}, {"kernel", "k"}, {"compiler", "g"}}},
      {"parameters",
       {{"records", 1000},
        {"operations", 1000},
        {"warmup_operations", 0},
        {"repeats", 1},
        {"threads", {1}},
        {"pinned", false},
        {"keys", keys},
        {"distribution", "uniform"},
        {"key_kind", "u64"},
        {"value_kind", "u64"},
        {"key_bytes", 8},
        {"value_bytes", 8},
        {"seed", 1}}},
      {"medium", ""},
      {"floor_ns", nullptr},
      {"read_chain_ns", nullptr},
      {"flush_instruction", "clwb"},
      {"notes", json::array()},
      {"experiments", experiments},
      {"results", std::move(results)}};
  return json::parse(study.dump());  // counts are unsigned, as they are in files
}

}  // namespace perdure::lab::study
