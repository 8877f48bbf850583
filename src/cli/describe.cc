#include "cli/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/units.h"

namespace perdure::cli {
namespace {

std::string exact_bytes(uint64_t bytes) {
  return fmt::format("{} ({} bytes)", format_bytes(bytes), format_count(bytes));
}

bool is_whole(double value) { return value >= 0 && value < 0x1p63 && std::floor(value) == value; }

}  // namespace

std::string to_lines(const Facts& facts) {
  size_t width = 0;
  for (const auto& [name, text] : facts) width = std::max(width, name.size());
  std::string lines;
  for (const auto& [name, text] : facts) lines += fmt::format("{:<{}}  {}\n", name, width, text);
  return lines;
}

std::string medium_in_words(Medium medium) {
  switch (medium) {
    case Medium::kFile:
      return "an ordinary file: page cache over a disk (file)";
    case Medium::kDax:
      return "persistent memory, mapped directly (dax)";
    case Medium::kDaxEadr:
      return "persistent memory with the CPU caches protected (dax-eadr)";
    case Medium::kTmpfs:
      return "DRAM that outlives the process (tmpfs)";
    case Medium::kHugetlbfs:
      return "DRAM on huge pages that outlives the process (hugetlbfs)";
    case Medium::kAnonymous:
      return "private memory, gone with the process (anonymous)";
  }
  return to_string(medium);
}

std::string domain_in_words(Domain domain) {
  switch (domain) {
    case Domain::kPage:
      return "page: writing pages back (msync) makes a store durable";
    case Domain::kLine:
      return "line: a cache-line flush and a fence make a store durable";
    case Domain::kByte:
      return "byte: a store is durable once it is visible";
  }
  return to_string(domain);
}

std::string durability_in_words(const PoolInfo& info) {
  if (info.durability == Durability::kPower) {
    return "every operation that returned survives the loss of power";
  }
  std::string text = "every operation that returned survives the death of the process";
  if (info.medium == Medium::kFile) {
    text +=
        "; what the kernel has not yet written to disk is lost with the power (--durability power "
        "waits for the disk)";
  } else if (info.medium == Medium::kTmpfs || info.medium == Medium::kHugetlbfs) {
    text += ", nothing survives the loss of power";
  } else if (info.medium == Medium::kAnonymous) {
    text = "nothing survives the process";
  }
  return text;
}

Facts pool_facts(const PoolInfo& info) {
  return {{"pool", info.path},
          {"uuid", info.uuid},
          {"format", std::to_string(info.format_version)},
          {"medium", medium_in_words(info.medium)},
          {"domain", domain_in_words(info.domain)},
          {"durability", durability_in_words(info)},
          {"capacity", exact_bytes(info.capacity_bytes)},
          {"size", exact_bytes(info.size_bytes)},
          {"allocated", exact_bytes(info.allocated_bytes)},
          {"free", exact_bytes(info.free_bytes)},
          {"high water", exact_bytes(info.high_water_bytes)},
          {"huge pages", info.huge_pages ? "yes" : "no"},
          {"opened to write", format_counted(info.generation, "time")},
          {"last close", info.clean ? "clean" : "not clean: recovered when opened"}};
}

nlohmann::json pool_json(const PoolInfo& info) {
  return {{"path", info.path},
          {"uuid", info.uuid},
          {"format_version", info.format_version},
          {"medium", to_string(info.medium)},
          {"domain", to_string(info.domain)},
          {"durability", to_string(info.durability)},
          {"durability_in_words", durability_in_words(info)},
          {"capacity_bytes", info.capacity_bytes},
          {"size_bytes", info.size_bytes},
          {"allocated_bytes", info.allocated_bytes},
          {"free_bytes", info.free_bytes},
          {"high_water_bytes", info.high_water_bytes},
          {"generation", info.generation},
          {"clean", info.clean},
          {"huge_pages", info.huge_pages},
          {"read_only", info.read_only},
          {"open_to_write", false}};
}

Facts inspection_facts(const PoolInspection& found) {
  const PoolInfo& info = found.info;
  const char* about = found.exact ? "" : ", about: it changed while it was counted";
  Facts facts = {{"pool", info.path},
                 {"uuid", info.uuid},
                 {"format", std::to_string(info.format_version)},
                 {"medium", medium_in_words(info.medium)},
                 {"capacity", exact_bytes(info.capacity_bytes)},
                 {"size", exact_bytes(info.size_bytes)},
                 {"allocated", exact_bytes(info.allocated_bytes) + about},
                 {"free", exact_bytes(info.free_bytes) + about},
                 {"opened to write", format_counted(info.generation, "time")}};
  if (found.open_to_write) {
    facts.emplace_back("open", "for writing, in another process; figures are those of a moment");
    facts.emplace_back("not known", "domain, durability, high water, huge pages, last close");
  } else {
    facts.emplace_back("last close", info.clean ? "clean" : "not clean: recovered when opened");
    facts.emplace_back("not known", "domain, durability, huge pages: it is not open");
  }
  return facts;
}

nlohmann::json inspection_json(const PoolInspection& found) {
  nlohmann::json object = pool_json(found.info);
  for (const char* unknown : {"domain", "durability", "durability_in_words", "high_water_bytes",
                              "huge_pages", "read_only"}) {
    object.erase(unknown);
  }
  if (found.open_to_write) object.erase("clean");
  object["open_to_write"] = found.open_to_write;
  object["exact"] = found.exact;
  return object;
}

nlohmann::json structure_json(const StructureInfo& structure) {
  return {{"name", structure.name},
          {"type", structure.type},
          {"key_kind", structure.key_kind},
          {"value_kind", structure.value_kind}};
}

std::string figure_in_words(const Statistic& statistic) {
  const bool whole = is_whole(statistic.value);
  if (whole && statistic.unit == "bytes")
    return exact_bytes(static_cast<uint64_t>(statistic.value));
  const std::string number = whole ? format_count(static_cast<uint64_t>(statistic.value))
                                   : fmt::format("{:.4g}", statistic.value);
  return statistic.unit.empty() ? number : number + " " + statistic.unit;
}

nlohmann::json statistics_json(const std::vector<Statistic>& statistics) {
  nlohmann::json object = nlohmann::json::object();
  for (const Statistic& statistic : statistics) {
    auto& figure = object[statistic.name];
    figure = {{"value", statistic.value}, {"unit", statistic.unit}};
    // Counters as integers: 123, not 123.0.
    if (is_whole(statistic.value)) figure["value"] = static_cast<uint64_t>(statistic.value);
  }
  return object;
}

double statistic_value(const std::vector<Statistic>& statistics, const std::string& name) {
  for (const Statistic& statistic : statistics) {
    if (statistic.name == name) return statistic.value;
  }
  return 0;
}

}  // namespace perdure::cli
