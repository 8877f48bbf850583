// The tables of docs/limits.md, which are made of what the sources say:
//
//   <!-- limits of pools -->, <!-- limits of structures -->      each until     <!-- end of limits -->
//
// With PERDURE_WRITE_DOCS=1 in the environment the tables are written instead (make docs-figures).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "perdure/catalog.h"
#include "perdure/pool.h"
#include "pm/epoch.h"
#include "pm/layout.h"

namespace perdure {
namespace {

std::string bytes_text(uint64_t bytes) {
  for (const auto& [unit, name] : {std::pair{uint64_t{1} << 40, "TiB"},
                                   {uint64_t{1} << 30, "GiB"},
                                   {uint64_t{1} << 20, "MiB"},
                                   {uint64_t{1} << 10, "KiB"}}) {
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  }
  return fmt::format("{} bytes", bytes);
}

std::string pools() {
  return fmt::format(
      "| what | limit |\n|---|---|\n"
      "| capacity | {} to {}, can be raised when the pool is opened |\n"
      "| growth | in steps of `growth_bytes`, at least one segment of {} |\n"
      "| structures, stores, databases in a pool | {} |\n"
      "| name of one | {} bytes |\n"
      "| threads that use structures, alive at once in a process | {} |\n"
      "| allocations under way at once | {}; others wait |\n",
      bytes_text(Pool::kMinCapacityBytes), bytes_text(Pool::kMaxCapacityBytes),
      bytes_text(pm::kSegmentBytes), pm::kStructuresMax, pm::kNameBytesMax,
      pm::EpochManager::kMaxThreads, pm::kLanes);
}

std::string structures() {
  std::string text =
      "| structure | keys, values | longest key | longest value | least pool | ordered | DRAM |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const CatalogEntry& entry : catalog()) {
    const Traits& traits = entry.traits;
    std::string kinds;
    bool byte_keys = false;
    bool byte_values = false;
    for (const auto& [key, value] : traits.kinds) {
      byte_keys = byte_keys || key == Kind::kBytes;
      byte_values = byte_values || value == Kind::kBytes;
    }
    if (traits.kinds.size() == 4) {
      kinds = "any";
    } else {
      for (const auto& [key, value] : traits.kinds) {
        kinds +=
            fmt::format("{}{} → {}", kinds.empty() ? "" : ", ", to_string(key), to_string(value));
      }
    }
    text += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", entry.name, kinds,
                        byte_keys ? bytes_text(traits.key_bytes_max) : "8 bytes",
                        byte_values ? bytes_text(traits.value_bytes_max) : "8 bytes",
                        bytes_text(traits.capacity_bytes_min), traits.ordered ? "yes" : "no",
                        to_string(traits.dram));
    EXPECT_TRUE(traits.concurrent) << "the page says that all are";
  }
  return text;
}

TEST(LimitsPage, SaysWhatTheSourcesSay) {
  auto source = std::filesystem::path(__FILE__);
  for (int up = 0; up < 3; ++up) source = source.parent_path();
  const std::filesystem::path page = source / "docs" / "limits.md";
  if (!std::filesystem::exists(page)) GTEST_SKIP() << "the sources are not here";
  std::stringstream content;
  content << std::ifstream(page).rdbuf();
  std::string text = content.str();
  for (const auto& [begin, table] :
       {std::pair{std::string("<!-- limits of pools -->\n"), pools()},
        std::pair{std::string("<!-- limits of structures -->\n"), structures()}}) {
    const size_t found = text.find(begin);
    ASSERT_NE(found, std::string::npos) << begin;
    const size_t from = found + begin.size();
    const size_t to = text.find("<!-- end of limits -->", from);
    ASSERT_NE(to, std::string::npos) << begin;
    if (std::getenv("PERDURE_WRITE_DOCS") != nullptr) {
      text.replace(from, to - from, table);
      std::ofstream(page) << text;
    } else {
      EXPECT_EQ(text.substr(from, to - from), table) << "make docs-figures";
    }
  }
}

}  // namespace
}  // namespace perdure
