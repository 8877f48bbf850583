// Figures in docs/ that commands print, and that are the same in every run: what the pages show is
// what the commands give now. A page says which structures it wants, between two lines:
//
//   <!-- figures per insert: plush cceh; records 20k -->
//   <!-- end of figures -->
//
// or which command prints what stands there, without the lines before the first empty one:
//
//   <!-- printed by: amp plush --workload load --records 20k -->
//   <!-- end of figures -->
//
// With PERDURE_WRITE_DOCS=1 in the environment the tables are written instead (make docs-figures).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;

constexpr const char* kTable = "<!-- figures per insert: ";
constexpr const char* kPrinted = "<!-- printed by: ";
constexpr const char* kMarkEnds = " -->\n";
constexpr const char* kEnd = "<!-- end of figures -->\n";

struct Figures {
  double flushes = 0;
  double nontemporal = 0;  // lines stored past the caches
  double fences = 0;
  double pool_bytes = 0;  // for a record
  double dram_bytes = 0;
};

class DocsFigures : public CommandTest {
 protected:
  void SetUp() override {
#ifndef PERDURE_HAS_OBSERVED
    GTEST_SKIP() << "this build has no instruments";
#endif
    if (!std::filesystem::exists(docs())) GTEST_SKIP() << "the sources are not here";
  }

  static std::filesystem::path docs() {
    auto source = std::filesystem::path(__FILE__);
    for (int up = 0; up < 4; ++up) source = source.parent_path();
    return source / "docs";
  }

  json results(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--folder", folder()});
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? result.json()["results"] : json::array();
  }

  // What the command with these arguments prints behind its conditions, as code.
  std::string printed(const std::string& request) const {
    std::istringstream words(request);
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    arguments.insert(arguments.end(), {"--folder", folder()});
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream lines(
        result.out.substr(std::min(result.out.size(), result.out.find("\n\n"))));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      if (!text.empty() || !line.empty()) text += line.empty() ? "\n" : "    " + line + "\n";
    }
    return "\n" + text + "\n";
  }

  // Whether the lines of one are those of the other, in any order, word for word, but for small
  // differences of figures: how the sources were compiled (with precompiled headers or without) and
  // which vector instructions the processor has decide how many lines are read, where the linker
  // puts the program's own data decides of some of the modelled cache's misses, and of call sites
  // with about the same share either may come first.
  static bool is_about(const std::string& text, const std::string& other) {
    std::istringstream words(sorted_lines(text));
    std::istringstream others(sorted_lines(other));
    std::string word;
    std::string wanted;
    while (words >> word) {
      if (!(others >> wanted)) return false;
      if (word == wanted) continue;
      char* end = nullptr;
      char* wanted_end = nullptr;
      const double figure = std::strtod(word.c_str(), &end);
      const double expected = std::strtod(wanted.c_str(), &wanted_end);
      if (*end != 0 || *wanted_end != 0) return false;
      const bool whole = word.find('.') == std::string::npos;
      const double difference = std::abs(figure - expected);
      if (difference > 0.1 * std::abs(expected) + (whole ? 2 : 0.0025)) return false;
    }
    return !(others >> wanted);
  }

  static std::string sorted_lines(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return fmt::format("{}", fmt::join(lines, "\n"));
  }

  // What stands between two marks is what the commands print now, or is written.
  void compare(const char* mark, const std::function<std::string(const std::string&)>& now) const {
    uint32_t found = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(docs())) {
      if (file.path().extension() != ".md") continue;
      std::stringstream content;
      content << std::ifstream(file.path()).rdbuf();
      std::string text = content.str();
      for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; ++found) {
        const size_t request = at + std::strlen(mark);
        const size_t request_ends = text.find(kMarkEnds, request);
        ASSERT_NE(request_ends, std::string::npos) << file.path();
        const size_t from = request_ends + std::strlen(kMarkEnds);
        const size_t to = text.find(kEnd, from);
        ASSERT_NE(to, std::string::npos) << file.path();
        const std::string figures = now(text.substr(request, request_ends - request));
        if (is_about(text.substr(from, to - from), figures)) {
          at = from;
          continue;
        }
        if (std::getenv("PERDURE_WRITE_DOCS") != nullptr) {
          text.replace(from, to - from, figures);
          std::ofstream(file.path()) << text;
        } else {
          EXPECT_EQ(text.substr(from, to - from), figures) << file.path() << ": make docs-figures";
        }
        at = from;
      }
    }
    EXPECT_GT(found, 0U);
  }

  // Of the words in `request`: structures, then "; records N".
  std::string table(const std::string& request) const {
    std::istringstream words(request.substr(0, request.find(';')));
    std::vector<std::string> names;
    for (std::string name; words >> name;) names.push_back(name);
    const std::string mark = "; records ";
    const std::string records = request.substr(request.find(mark) + mark.size());
    std::map<std::string, Figures> found;

    std::vector<std::string> amp = {"amp"};
    std::vector<std::string> bench = {"bench"};
    amp.insert(amp.end(), names.begin(), names.end());
    bench.insert(bench.end(), names.begin(), names.end());
    amp.insert(amp.end(), {"--workload", "load", "--records", records});
    bench.insert(bench.end(),
                 {"--records", records, "--operations", "0", "--repeats", "1", "--domain", "line"});
    for (const json& row : results(amp)) {
      Figures& figures = found[row["structure"]];
      figures.flushes = row["wpq_flush_per_insert"];
      figures.nontemporal = row["wpq_nontemporal_per_insert"];
      figures.fences = row["fences_per_insert"];
    }
    for (const json& row : results(bench)) {
      if (row["phase"] != "load") continue;
      found[row["structure"]].pool_bytes = row["pool_bytes_per_record"];
      found[row["structure"]].dram_bytes = row["dram_bytes_per_record"];
    }
    return written(names, found);
  }

 private:
  static std::string written(const std::vector<std::string>& names,
                             const std::map<std::string, Figures>& found) {
    std::string text =
        "| | lines flushed | lines stored past the caches | fences | bytes of pool for a record | "
        "of DRAM |\n|---|---:|---:|---:|---:|---:|\n";
    for (const std::string& name : names) {
      if (!found.contains(name)) {
        ADD_FAILURE() << "no figures of " << name;
        continue;
      }
      const Figures& of = found.at(name);
      text += fmt::format("| `{}` | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.0f} |\n", name,
                          of.flushes, of.nontemporal, of.fences, of.pool_bytes, of.dram_bytes);
    }
    return text;
  }
};

TEST_F(DocsFigures, AreThoseThatTheCommandsPrint) {
  compare(kTable, [this](const std::string& request) { return table(request); });
}

// Loads, and the lines that code was inlined at, are those of an optimised build by Debian 12's
// compiler.
TEST_F(DocsFigures, ExamplesAreWhatTheCommandsPrint) {
#if !defined(NDEBUG) || __GNUC__ != 12
  GTEST_SKIP() << "another build prints other figures";
#endif
  compare(kPrinted, [this](const std::string& request) { return printed(request); });
}

}  // namespace
}  // namespace perdure::cli_test
