// Where the output of the command goes: pipes whose reader goes away, devices that are full.
#include <algorithm>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Output : public CommandTest {
 protected:
  void load_much() const {
    std::string lines;
    for (int i = 0; i < 20'000; ++i) {
      lines += "key" + std::to_string(i) + "\tsome value of a length that is not small\n";
    }
    ASSERT_EQ(run({"load", "--capacity", "64M", pool(), write_file("much.tsv", lines)}).code, 0);
  }
};

// `head` reads one block and is gone long before the dump is through its million bytes.
TEST_F(Output, AReaderThatGoesAwayEndsTheCommandWithoutWords) {
  load_much();
  const Result dump = shell("$PERDURE dump " + pool() + " | head -n 1; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(dump.code, 141);
  EXPECT_EQ(dump.err, "");
  EXPECT_EQ(std::count(dump.out.begin(), dump.out.end(), '\n'), 1);
}

// Less than a buffer: found out when the command ends.
TEST_F(Output, SoItIsForShortOutput) {
  run({"put", pool(), "a", "1"});
  for (const std::string& command :
       {"get " + pool() + " a", "stat " + pool(), "dump " + pool(), "pool info " + pool(),
        "pool check " + pool(), std::string("list"), std::string("--help")}) {
    const Result result =
        shell("mkfifo " + path("pipe") + "; exec 3<>" + path("pipe") + " 4>" + path("pipe") +
              " 3>&-; rm " + path("pipe") + "; $PERDURE " + command + " >&4");
    EXPECT_EQ(result.code, 141) << command;
    EXPECT_EQ(result.err, "") << command;
  }
}

TEST_F(Output, AFullDeviceIsNamedAsTheCause) {
  load_much();
  run({"put", pool(), "a", "1"});
  for (const std::string& command :
       {"get " + pool() + " a", "stat " + pool(), "dump " + pool(), "pool info " + pool(),
        "pool check " + pool(), std::string("list"), std::string("--help")}) {
    const Result result = shell("$PERDURE " + command + " > /dev/full");
    EXPECT_EQ(result.code, 4) << command;
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos)
        << command << ": " << result.err;
  }
}

}  // namespace
}  // namespace perdure::cli_test
