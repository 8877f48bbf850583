// Figures in docs/ that commands print, and that are the same in every run: what the pages show is what
// the commands give now. A page says which structures it wants, between two lines:
//
//   <!-- figures per insert: plush cceh; records 20k -->
//   <!-- end of figures -->
//
// With PERDURE_WRITE_DOCS=1 in the environment the tables are written instead (make docs-figures).

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;

constexpr const char* kBegin = "<!-- figures per insert: ";
constexpr const char* kBeginEnds = " -->\n";
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
  uint32_t tables = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(docs())) {
    if (file.path().extension() != ".md") continue;
    std::stringstream content;
    content << std::ifstream(file.path()).rdbuf();
    std::string text = content.str();
    for (size_t at = 0; (at = text.find(kBegin, at)) != std::string::npos; ++tables) {
      const size_t request = at + std::string(kBegin).size();
      const size_t request_ends = text.find(kBeginEnds, request);
      ASSERT_NE(request_ends, std::string::npos) << file.path();
      const size_t from = request_ends + std::string(kBeginEnds).size();
      const size_t to = text.find(kEnd, from);
      ASSERT_NE(to, std::string::npos) << file.path();
      const std::string now = table(text.substr(request, request_ends - request));
      if (std::getenv("PERDURE_WRITE_DOCS") != nullptr) {
        text.replace(from, to - from, now);
        std::ofstream(file.path()) << text;
      } else {
        EXPECT_EQ(text.substr(from, to - from), now) << file.path() << ": make docs-figures";
      }
      at = from;
    }
  }
  EXPECT_GT(tables, 0U);
}

}  // namespace
}  // namespace perdure::cli_test
