// quickstart: on a small source of its own.

#include <filesystem>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Quickstart : public CommandTest {
 protected:
  std::string small_source() const {
    std::string lines;
    for (int i = 0; i < 20'000; ++i) {
      lines += "word" + std::to_string(i) + "\t(noun) the gloss of word " + std::to_string(i) +
               "\\nand another\n";
    }
    return write_file("words.tsv", lines);
  }
};

TEST_F(Quickstart, LosesNothing) {
  const Result result = run({"quickstart", "--folder", path("data"), "--threads", "2", "--json",
                             "--source", small_source()});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  const nlohmann::json json = result.json();
  EXPECT_EQ(json["records"], 20'000);
  EXPECT_EQ(json["killed"], true);
  EXPECT_GE(json["acknowledged_before_kill"], 10'000);
  EXPECT_LT(json["acknowledged_before_kill"], 20'000);
  EXPECT_EQ(json["lost"], 0);
  EXPECT_EQ(json["wrong"], 0);
  EXPECT_EQ(json["verified"], 20'000);
  EXPECT_EQ(json["excess"], 0);
  EXPECT_GT(json["served_asked"], 100);
  EXPECT_EQ(json["served_right"], json["served_asked"]);
  EXPECT_GT(json["recovery_ms"], 0.0);
  EXPECT_GT(json["loaded_after_kill"], 0);
  EXPECT_FALSE(json["looked_up"].empty());
  EXPECT_TRUE(json["pool"].contains("durability_in_words"));
  // Without --keep the folder is as it was: not there.
  EXPECT_FALSE(std::filesystem::exists(path("data")));
}

TEST_F(Quickstart, TellsItsStepsAndKeepsThePool) {
  const Result result =
      run({"quickstart", "--folder", path("data"), "--keep", "--source", small_source()});
  ASSERT_EQ(result.code, 0) << result.err << result.out;
  for (const char* words : {"killed it with SIGKILL", "opened the pool again in", "0 lost, 0 wrong",
                            "finished the load", "20,000 of 20,000 are right", "durability",
                            "Everything that was acknowledged is there."}) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << "\n" << result.out;
  }
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << "colour where there is no terminal";
  EXPECT_EQ(run({"get", path("data/words.pool"), "word7"}).out,
            "(noun) the gloss of word 7\nand another\n");
  EXPECT_EQ(run({"pool", "check", path("data/words.pool")}).code, 0);
}

TEST_F(Quickstart, RunsAgainOverWhatAnEarlierRunKept) {
  const std::string source = small_source();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(run({"quickstart", "--folder", path("data"), "--keep", "--source", source}).code, 0);
  }
}

TEST_F(Quickstart, RefusesASourceThatIsNone) {
  EXPECT_EQ(run({"quickstart", "--folder", path("data"), "--source", path("missing")}).code, 4);
  EXPECT_EQ(run({"quickstart", "--folder", path("data"), "--source", write_file("e", "")}).code, 4);
  const std::string file = write_file("file", "");
  EXPECT_EQ(run({"quickstart", "--folder", file + "/data", "--source", small_source()}).code, 4);
}

}  // namespace
}  // namespace perdure::cli_test
