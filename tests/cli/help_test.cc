// Help, version, completion and the usage errors of the command line itself.

#include <cctype>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class Help : public CommandTest {};

const std::vector<std::vector<std::string>> kCommands = {
    {"put"},
    {"get"},
    {"del"},
    {"load"},
    {"dump"},
    {"scan"},
    {"count"},
    {"stat"},
    {"pool"},
    {"pool", "create"},
    {"pool", "info"},
    {"pool", "check"},
    {"pool", "backup"},
    {"pool", "restore"},
    {"pool", "salvage"},
    {"pool", "grow"},
    {"pool", "shrink"},
    {"pool", "compact"},
    {"convert"},
    {"drop"},
    {"rename"},
    {"files"},
    {"db"},
    {"store"},
    {"serve"},
    {"quickstart"},
    {"list"},
    {"completion"},
#ifdef PERDURE_HAS_LAB
    {"bench"},
    {"report"},
    {"study"},
    {"study", "buffer-pool"},
    {"study", "lsm"},
    {"study", "radix-trees"},
    {"study", "range-indexes"},
    {"study", "serving"},
#endif
#ifdef PERDURE_HAS_OBSERVED
    {"amp"},
    {"crash"},
    {"trace"},
    {"study", "write-amplification"},
#endif
};

TEST_F(Help, EveryCommandHasExamplesAndExitCodes) {
  for (std::vector<std::string> command : kCommands) {
    command.emplace_back("--help");
    const Result help = run(command);
    EXPECT_EQ(help.code, 0) << command[0];
    // One line that says what it does, as somebody would ask for it.
    EXPECT_NE(std::isupper(static_cast<unsigned char>(help.out[0])), 0) << help.out;
    EXPECT_EQ(help.out.find("\nUsage: perdure " + command[0]), help.out.find('\n')) << help.out;
    EXPECT_NE(help.out.find("\nExamples:\n  "), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("perdure " + command[0]), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("xit code"), std::string::npos) << help.out;
  }
}

TEST_F(Help, TheCommandItselfListsSubcommandsAndExitCodes) {
  const Result help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const auto& command : kCommands) {
    EXPECT_NE(help.out.find(command[0]), std::string::npos) << command[0];
  }
  EXPECT_NE(help.out.find("Exit codes:"), std::string::npos);
}

TEST_F(Help, VersionNamesProgramAndPoolFormat) {
  const Result version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.rfind("perdure ", 0), 0U) << version.out;
  EXPECT_NE(version.out.find("pool format"), std::string::npos) << version.out;
}

TEST_F(Help, UsageErrorsExitWithTwoAndPointToHelp) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"no-such"},
                                             {"put"},
                                             {"put", "--no-such"},
                                             {"pool"},
                                             {"pool", "no-such"},
                                             {"get", pool()},
                                             {"completion", "fish"},
                                             {"put", "--insert", "--update", pool(), "a", "b"}}) {
    const Result result = run(wrong);
    EXPECT_EQ(result.code, 2) << (wrong.empty() ? "" : wrong[0]);
    EXPECT_NE(result.err.find("--help"), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Help, AWordThatIsNoCommandIsNamedWithThoseThereAre) {
  const Result result = run({"nosuch"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("\"nosuch\" is no command of perdure; there are: put, get"),
            std::string::npos)
      << result.err;
  EXPECT_NE(run({"pool", "nosuch"}).err.find("no command of perdure pool; there are: create"),
            std::string::npos);
  EXPECT_NE(run({"pool"}).err.find("subcommand is required"), std::string::npos);
}

TEST_F(Help, OneNameForTheFolderOfACommandsFiles) {
  for (const std::string command : {
           "quickstart",
#ifdef PERDURE_HAS_LAB
           "bench",
#endif
#ifdef PERDURE_HAS_OBSERVED
           "amp",
#endif
       }) {
    const Result help = run({command, "--help"});
    EXPECT_NE(help.out.find("--folder"), std::string::npos) << command;
    EXPECT_EQ(help.out.find("--dir"), std::string::npos) << command;
    EXPECT_EQ(help.out.find("--path"), std::string::npos) << command;
  }
}

#ifdef PERDURE_HAS_OBSERVED
// As every other help: what an option does begins with a capital letter, options come in groups,
// and a default is called one.
TEST_F(Help, TheExplorersOptionsReadAsThoseOfOtherCommands) {
  const Result help = run({"crash", "--help"});
  for (const char* words : {"Workload:", "Exploration:", "Programs and traces:", "(default: 300)",
                            "Examples:\n  perdure crash plush\n"}) {
    EXPECT_NE(help.out.find(words), std::string::npos) << words << help.out;
  }
}
#endif

TEST_F(Help, BashCompletionOffersCommandsOptionsAndValues) {
  const Result script = run({"completion", "bash"});
  ASSERT_EQ(script.code, 0);
  write_file("completion.bash", script.out);
  const auto complete = [this](const std::string& words) {
    const std::string line =
        "source " + path("completion.bash") + "; COMP_WORDS=(" + words +
        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _perdure; echo \"${COMPREPLY[@]}\"";
    const Result result = shell(line);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  EXPECT_EQ(complete("perdure qui"), "quickstart\n");
  EXPECT_EQ(complete("perdure pool c"), "create check compact\n");
  EXPECT_EQ(complete("perdure load --res"), "--resume\n");
  EXPECT_EQ(complete("perdure load --domain ''"), "page line byte\n");
  EXPECT_EQ(complete("perdure dump --format ''"), "tsv csv jsonl\n");
  EXPECT_EQ(complete("perdure pool info --j"), "--json\n");
#ifdef PERDURE_HAS_LAB
  EXPECT_EQ(complete("perdure bench nul"), "null\n");
  EXPECT_EQ(complete("perdure am"), "amp\n");
  EXPECT_EQ(complete("perdure study rad"), "radix-trees\n");
  EXPECT_EQ(complete("perdure study ran"), "range-indexes\n");
  EXPECT_EQ(complete("perdure study range-indexes --par"), "--part\n");
  EXPECT_EQ(complete("perdure study range-indexes fptr"), "fptree\n");
#endif
#ifdef PERDURE_HAS_OBSERVED
  EXPECT_EQ(complete("perdure amp plush --by"), "--by-site\n");
  EXPECT_EQ(complete("perdure amp fptr"), "fptree\n");
  EXPECT_EQ(complete("perdure amp plush --profile opt"), "optane-100 optane-200\n");
  EXPECT_EQ(complete("perdure study wri"), "write-amplification\n");
  EXPECT_EQ(complete("perdure study write-amplification --st"), "--state\n");
  EXPECT_EQ(complete("perdure study write-amplification fptr"), "fptree\n");
#endif
  write_file("one.pool", "");
  EXPECT_EQ(complete("perdure get " + folder() + "/one"), folder() + "/one.pool\n");
}

}  // namespace
}  // namespace perdure::cli_test
