// report: pages from results, what is wrong with other files, and how a browser draws them.

#include <filesystem>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

using nlohmann::json;

json percentiles(double median) {
  return {{"min", median / 2},       {"p50", median},        {"p90", median * 2},
          {"p99", median * 5},       {"p99.9", median * 20}, {"p99.99", median * 100},
          {"p99.999", median * 400}, {"max", median * 1000}};
}

// As docs/bench-schema.md says, of one structure, number of threads and phase.
json bench_row(const std::string& structure, const std::string& operation, unsigned threads,
               double mops) {
  json row = {{"structure", structure},
              {"kind", "structure"},
              {"durability", "the death of the process"},
              {"phase", operation == "load" ? "load" : "run"},
              {"operation", operation},
              {"threads", threads},
              {"records", 1000},
              {"operations", 1000},
              {"failed", 0},
              {"mops", {mops, mops * 1.01, mops * 0.99}},
              {"ns_per_op_median", threads * 1000 / mops},
              {"percentiles", percentiles(threads * 900 / mops)},
              {"by_operation",
               {{"lookup", {{"percentiles", percentiles(800)}}},
                {"update", {{"percentiles", percentiles(1200)}}},
                {"scan", {{"percentiles", nullptr}}}}},
              {"windows", {{"window_ms", 100}, {"series", {{mops, mops * 0.5}, {mops}, {mops}}}}},
              {"pool_bytes", 64000},
              {"dram_bytes", 500},
              {"raw_bytes", 16000},
              {"space_amplification", 4.0}};
  if (operation == "load") {
    row["open_clean_ms"] = {1.5, 1.6};
    row["open_killed_ms"] = {9.5, 8.5};
  }
  return row;
}

json bench_file(double factor, const std::vector<std::string>& structures = {"plush", "cceh"}) {
  json file = {{"schema", "perdure-bench-2"},
               {"perdure", "0.1.0"},
               {"started", "2026-01-31T12:34:56Z"},
               {"interrupted", false},
               {"machine",
                {{"cpu", "A <processor> & more"},
                 {"processors", 2},
                 {"memory_bytes", 1 << 30},
                 {"kernel", "Linux"},
                 {"compiler", "GCC"},
                 {"flags", "-O2"},
                 {"build", "release"},
                 {"commit", "abc"}}},
               {"parameters",
                {{"records", 1000},
                 {"operations", 1000},
                 {"warmup_operations", 0},
                 {"repeats", 3},
                 {"threads", {1, 2}},
                 {"pinned", false},
                 {"keys", "mixed"},
                 {"distribution", "uniform"},
                 {"key_kind", "u64"},
                 {"value_kind", "u64"},
                 {"key_bytes", 8},
                 {"value_bytes", 8},
                 {"seed", 1}}},
               {"medium", "tmpfs"},
               {"domain", "line"},
               {"domain_forced", true},
               {"durability", "process"},
               {"flush_instruction", "clwb"},
               {"floor_ns", 87.2},
               {"read_chain_ns", nullptr},
               {"emulation", nullptr},
               {"notes", {"a note <with> markup"}},
               {"results", json::array()}};
  double mops = factor;
  for (const std::string& structure : structures) {
    for (const char* operation : {"load", "lookup=0.5,update=0.5"}) {
      for (const unsigned threads : {1U, 2U}) {
        file["results"].push_back(bench_row(structure, operation, threads, mops * threads));
      }
    }
    mops *= 1.5;
  }
  return file;
}

json amp_file() {
  return {{"schema", "perdure-amp-1"},
          {"perdure", "0.1.0"},
          {"profile", {{"name", "optane-100"}}},
          {"parameters", {{"records", 1000}}},
          {"interrupted", false},
          {"results",
           {{{"structure", "plush"},
             {"workload", "load"},
             {"wpq_inserts_per_insert", 1.6},
             {"wpq_inserts_per_lookup", nullptr},
             {"media_writes_per_insert", 1.2},
             {"media_writes_per_wpq_insert", 0.75}}}}};
}

class Report : public CommandTest {
 protected:
  std::string write_json(const std::string& name, const json& content) const {
    return write_file(name, content.dump());
  }
  // The page of these files.
  std::string page(const std::vector<std::string>& files,
                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"report", "-o", path("report.html")};
    arguments.insert(arguments.end(), files.begin(), files.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file("report.html");
  }
  // What is said of a file that is refused.
  std::string refusal(const std::string& content) const {
    const Result result = run({"report", write_file("wrong.json", content)});
    EXPECT_EQ(result.code, 2) << content;
    EXPECT_EQ(result.out, "");
    return result.err;
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Report, ShowsEveryKindOfFigure) {
  const std::string html =
      page({write_json("a.json", bench_file(1)), write_json("w.json", amp_file())});
  for (const char* section :
       {"throughput", "latency", "time", "memory", "recovery", "writes", "conditions"}) {
    EXPECT_TRUE(has(html, "<section id=\"" + std::string(section) + "\">")) << section;
    EXPECT_TRUE(has(html, "<a href=\"#" + std::string(section) + "\">")) << section;
  }
  EXPECT_FALSE(has(html, "<section id=\"comparison\">"));
  for (const char* words : {"lookup=0.5,update=0.5, 2 threads", "99.999", "WPQ inserts",
                            "optane-100", "after a kill", "prefers-color-scheme: dark"}) {
    EXPECT_TRUE(has(html, words)) << words;
  }
}

TEST_F(Report, LoadsNothingAndEscapesWhatItWasGiven) {
  const std::string html =
      page({write_json("a.json", bench_file(1, {"<script>alert(1)</script>"}))});
  EXPECT_FALSE(has(html, "<script"));
  EXPECT_TRUE(has(html, "&lt;script&gt;"));
  EXPECT_TRUE(has(html, "A &lt;processor&gt; &amp; more"));
  EXPECT_TRUE(has(html, "a note &lt;with&gt; markup"));
  EXPECT_FALSE(has(html, "http"));
  EXPECT_FALSE(has(html, "src="));
}

TEST_F(Report, WithoutAnOutputItGoesToStandardOutput) {
  const Result result =
      run({"report", write_json("a.json", bench_file(1)), "--title", "Mine & yours"});
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(has(result.out, "<h1>Mine &amp; yours</h1>"));
}

TEST_F(Report, ComparesTwoResults) {
  const std::string first = write_json("before.json", bench_file(1));
  const std::string second = write_json("after.json", bench_file(2));
  const std::string html = page({first, second}, {"--compare"});
  EXPECT_TRUE(has(html, "<section id=\"comparison\">"));
  // Twice as fast, with repeats that are within 1 %.
  EXPECT_TRUE(has(html, "<td class=\"n\">2.000</td>"));
  EXPECT_TRUE(has(html, "<td>faster</td>"));
  EXPECT_TRUE(has(html, "the same conditions"));
  EXPECT_TRUE(has(page({second, first}, {"--compare"}), "<td>slower</td>"));
  EXPECT_TRUE(has(page({first, first}, {"--compare"}), "<td>unclear</td>"));
}

TEST_F(Report, AComparisonSaysWhatIsOnlyInOneFileAndWhichConditionsDiffer) {
  json other = bench_file(1, {"plush", "level"});
  other["machine"]["cpu"] = "another one";
  const std::string html =
      page({write_json("a.json", bench_file(1)), write_json("b.json", other)}, {"--compare"});
  EXPECT_TRUE(has(html, "Only in a: cceh load"));
  EXPECT_TRUE(has(html, "Only in b: level load"));
  EXPECT_TRUE(has(html, "another one, 2 processors"));
}

TEST_F(Report, AComparisonNeedsTwoResultsOfTheBenchmark) {
  const std::string a = write_json("a.json", bench_file(1));
  for (const std::vector<std::string>& files :
       {std::vector{a}, {a, write_json("w.json", amp_file())}, {a, a, a}}) {
    std::vector<std::string> arguments = {"report", "--compare"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(has(result.err, "a comparison needs two results")) << result.err;
  }
}

TEST_F(Report, SaysInWordsWhatIsWrongWithAFile) {
  EXPECT_TRUE(has(refusal("{\"schema\": "), "is not JSON"));
  EXPECT_TRUE(has(refusal(""), "is not JSON"));
  EXPECT_TRUE(has(refusal("[1, 2]"), "has no \"schema\""));
  EXPECT_TRUE(has(refusal("{\"schema\": \"perdure-bench-1\"}"), "written by an older perdure"));
  EXPECT_TRUE(has(refusal("{\"schema\": \"other-3\"}"), "has schema \"other-3\"; a report reads"));
  json wrong = bench_file(1);
  wrong["results"][1].erase("mops");
  EXPECT_TRUE(has(refusal(wrong.dump()), "wrong.json: $.results[1] has no member \"mops\""));
  wrong = bench_file(1);
  wrong["results"][0]["threads"] = "two";
  EXPECT_TRUE(has(refusal(wrong.dump()), "$.results[0].threads is not a count"));
  wrong = bench_file(1);
  wrong["results"][0]["mops"][1] = -1;
  EXPECT_TRUE(has(refusal(wrong.dump()), "$.results[0].mops[1] is not a number from 0 on"));
  wrong = bench_file(1);
  wrong["parameters"] = 7;
  EXPECT_TRUE(has(refusal(wrong.dump()), "$.parameters has no member"));

  EXPECT_EQ(run({"report"}).code, 2);
  EXPECT_EQ(run({"report", path("missing.json")}).code, 4);
  EXPECT_EQ(run({"report", folder()}).code, 4);
  const std::string good = write_json("a.json", bench_file(1));
  EXPECT_EQ(run({"report", good, "-o", path("no/such/folder.html")}).code, 4);
}

TEST_F(Report, ShowsWhatWasMeasuredAndLeavesOutTheRest) {
  json file = bench_file(1);
  for (json& row : file["results"]) {
    row["percentiles"] = nullptr;
    row["windows"] = nullptr;
    row["by_operation"] = json::object();
    row.erase("open_clean_ms");
    row.erase("open_killed_ms");
  }
  const std::string html = page({write_json("a.json", file)});
  EXPECT_TRUE(has(html, "<section id=\"throughput\">"));
  for (const char* section : {"latency", "time", "recovery", "writes"}) {
    EXPECT_FALSE(has(html, "<section id=\"" + std::string(section) + "\">")) << section;
  }
  file["results"] = json::array();
  file["interrupted"] = true;
  EXPECT_TRUE(has(page({write_json("a.json", file)}), "The run was interrupted"));
}

TEST_F(Report, ReadsWhatTheBenchmarkWrites) {
  const Result result = shell(
      "$PERDURE bench plush null --records 3k --operations 3k --repeats 2 "
      "--threads 1,2 --mix lookup=.5,update=.5 --json --folder " +
      folder() + " > " + path("bench.json") + " && $PERDURE report " + path("bench.json") + " -o " +
      path("report.html"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(has(read_file("report.html"), "lookup=0.5,update=0.5"));
}

TEST_F(Report, ABrowserDrawsEveryPlotWithoutErrors) {
  if (!has_browser()) GTEST_SKIP() << "chromium is not installed";
  page({write_json("a.json", bench_file(1)), write_json("b.json", bench_file(1.1)),
        write_json("w.json", amp_file())},
       {"--compare"});
  const Drawn drawn = draw_in_browser("report.html");
  EXPECT_GE(drawn.figures, 14);
  EXPECT_GT(drawn.paths, 50);
}

}  // namespace
}  // namespace perdure::cli_test
