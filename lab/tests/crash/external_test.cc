// A program that is not Perdure's through all of its crashes: recorded by running it, checked by
// running its own recovery.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lab/crash/check_server.h"
#include "lab/crash/explorer.h"
#include "lab/crash/external_subject.h"
#include "lab/crash/sites.h"
#include "perdure/error.h"

namespace perdure::lab::crash {
namespace {

using Words = std::vector<std::string>;

TEST(CommandWords, AreThoseOfAShell) {
  EXPECT_EQ(command_words("table --list {}"), (Words{"table", "--list", "{}"}));
  EXPECT_EQ(command_words("  a\t'b c'  \"d e\"f g\\ h ''"), (Words{"a", "b c", "d ef", "g h", ""}));
  EXPECT_EQ(command_words("a --x=1 b~c"), (Words{"a", "--x=1", "b~c"}));
  for (const char* line : {"a | b", "a > b", "a $HOME", "a \"$HOME\"", "X=1 a", "a; b", "a *"}) {
    EXPECT_EQ(command_words(line), (Words{"/bin/sh", "-c", line}));
  }
  EXPECT_EQ(command_words("a '$HOME'"), (Words{"a", "$HOME"}));
  EXPECT_THROW(command_words("  "), Error);
  EXPECT_THROW(command_words("a 'b"), Error);
}

CommandResult shell(const std::string& line, const CommandLimits& limits = {}) {
  return run_command({"/bin/sh", "-c", line}, {{"PERDURE_TEST_WORD", "to last"}}, limits);
}

TEST(Command, GivesItsOutputAndExitCode) {
  const CommandResult result = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.errors, "err");
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.problem, "");
}

TEST(Command, GetsVariablesAndNoInput) {
  EXPECT_EQ(shell("echo $PERDURE_TEST_WORD").output, "to last\n");
  EXPECT_EQ(shell("cat; echo end").output, "end\n");
  setenv("PERDURE_TEST_GONE", "here", 1);
  EXPECT_EQ(
      run_command({"/bin/sh", "-c", "echo $PERDURE_TEST_GONE"}, {{"PERDURE_TEST_GONE", ""}}, {})
          .output,
      "\n");
  unsetenv("PERDURE_TEST_GONE");
}

// Gone, or dead and waiting for somebody to take note.
bool is_dead(const std::string& process) {
  std::ifstream in("/proc/" + process + "/cmdline");
  return in.get() == std::ifstream::traits_type::eof();
}

TEST(Command, IsStoppedWithItsChildren) {
  const auto begin = std::chrono::steady_clock::now();
  const CommandResult stopped = shell("sleep 60 & echo $!; sleep 60", {.seconds = 1});
  EXPECT_NE(stopped.problem.find("hangs"), std::string::npos);
  const std::string child = stopped.output.substr(0, stopped.output.find('\n'));
  ASSERT_FALSE(child.empty());
  while (!is_dead(child) && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(is_dead(child));
  // Without a word, and with its output closed.
  EXPECT_NE(shell("exec >/dev/null 2>&1; sleep 60", {.seconds = 1}).problem.find("hangs"),
            std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Command, TellsOfASignalAndOfEndlessOutput) {
  EXPECT_NE(shell("kill -SEGV $$").problem.find("Segmentation fault"), std::string::npos);
  EXPECT_EQ(shell("yes", {.seconds = 10, .output_bytes = 1 << 20}).problem, "prints without end");
}

TEST(Command, MustExist) {
  try {
    run_command({"/nowhere/at-all"}, {}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(error.what()).find("/nowhere/at-all"), std::string::npos);
  }
}

// Programs that know nothing of it.
TEST(CheckServer, DoesWhatTheCommandDoes) {
  const ScratchFolder folder;
  const std::string file = folder.file("content");
  const auto server = CheckServer::start({"cat", file}, {});
  ASSERT_NE(server, nullptr);
  for (const std::string content : {"first", "second, longer", ""}) {
    std::ofstream(file) << content;
    const CommandResult result = server->check(false, {});
    EXPECT_EQ(result.output, content);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.problem + result.errors, "");
  }
  std::filesystem::remove(file);
  const CommandResult gone = server->check(false, {});
  EXPECT_EQ(gone.status, 1);
  EXPECT_NE(gone.errors.find("content"), std::string::npos) << gone.errors;
}

TEST(CheckServer, TellsOfHangsAndEndlessOutputAndGoesOn) {
  const auto sleeper = CheckServer::start({"sleep", "60"}, {});
  ASSERT_NE(sleeper, nullptr);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(sleeper->check(false, {.seconds = 1}).problem.find("hangs"), std::string::npos);
  }
  const auto printer = CheckServer::start({"yes"}, {});
  ASSERT_NE(printer, nullptr);
  EXPECT_EQ(printer->check(false, {.seconds = 10, .output_bytes = 1 << 20}).problem,
            "prints without end");
  const auto killer = CheckServer::start({"bash", "-c", "kill -SEGV $$"}, {});
  ASSERT_NE(killer, nullptr);
  EXPECT_NE(killer->check(false, {}).problem.find("Segmentation fault"), std::string::npos);
}

TEST(CheckServer, LeavesTheEnvironmentAsItWas) {
  setenv("LD_PRELOAD", "libdl.so.2", 1);
  const auto server = CheckServer::start({"env"}, {{"PERDURE_TEST_WORD", "to last"}});
  unsetenv("LD_PRELOAD");
  ASSERT_NE(server, nullptr);
  const std::string output = server->check(false, {}).output;
  EXPECT_NE(output.find("PERDURE_TEST_WORD=to last\n"), std::string::npos);
  EXPECT_NE(output.find("LD_PRELOAD=libdl.so.2\n"), std::string::npos) << output;
  EXPECT_EQ(output.find("PERDURE_LAB_SERVER"), std::string::npos) << output;
}

TEST(CheckServer, IsNoneWhereTheProgramCannotServe) {
  EXPECT_EQ(CheckServer::start({"/nowhere/at-all"}, {}), nullptr);
}

TEST(Copy, BecomesWhatTheFileIs) {
  const ScratchFolder folder;
  const std::string from = folder.file("from");
  const std::string to = folder.file("to");
  const auto write = [](const std::string& path, uint64_t offset, const std::string& text) {
    if (!std::filesystem::exists(path)) std::ofstream(path).flush();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << text;
  };
  const auto content = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  write(from, 5, "begin");
  write(from, 3'000'000, "end");
  update_copy(from, to);
  EXPECT_EQ(content(to), content(from));
  // A recovery has written here and there, and made it longer; the image has changed elsewhere.
  write(to, 7, "x");
  write(to, 1'000'000, "in a hole");
  write(to, 4'000'000, "behind the end");
  write(from, 2'000'000, "new");
  update_copy(from, to);
  EXPECT_EQ(content(to), content(from));
  std::filesystem::resize_file(from, 100);
  update_copy(from, to);
  EXPECT_EQ(content(to), content(from));
}

#ifdef PERDURE_TABLES

ExternalProgram table(const std::string& name, const std::string& operations) {
  const std::string program = std::string(PERDURE_TABLES) + "/" + name;
  return {.run = {program, "{}", "run", operations}, .check = {program, "{}", "list"}};
}

// The first word of the name of the place that a finding is about.
std::string places_of(const Run& run, const Exploration& result) {
  const SiteNames names(run.trace);
  std::string text;
  for (const Finding& finding : result.findings) {
    text += finding.what + "\n";
    for (const LostStore& lost : finding.lost) {
      text += "lost " + names.of(run.trace.events[lost.event].pc) + "\n";
    }
  }
  return text;
}

Exploration explore_table(const std::string& name, std::string* places) {
  ExternalSubject subject(table(name, "24"));
  const crash::Run run = subject.record({});
  EXPECT_EQ(subject.operation_count(), 24U);
  ExploreOptions options;
  options.findings_max = 4;
  options.nested_max = 4;
  options.nested_states = 20;
  Verdicts verdicts;
  Exploration result = explore(run, subject, options, verdicts);
  *places = places_of(run, result);
  return result;
}

TEST(ForeignTable, SurvivesEveryCrash) {
  std::string places;
  const Exploration result = explore_table("table", &places);
  EXPECT_TRUE(result.findings.empty()) << places;
  EXPECT_TRUE(result.finished);
  EXPECT_GT(result.states, 50U);
  EXPECT_GT(result.nested_runs, 0U);
  std::printf("%llu states in %.2f s\n", static_cast<unsigned long long>(result.states),
              result.seconds);
}

TEST(ForeignTable, IsJudgedByAServerAsByProcesses) {
  double images_s[2] = {};
  std::vector<std::string> findings[2];
  for (const bool serve : {false, true}) {
    ExternalProgram program = table("table-bit-first", "12");
    program.serve = serve;
    ExternalSubject subject(program);
    const crash::Run run = subject.record({});
    ExploreOptions options;
    options.findings_max = 4;
    options.nested_max = 4;
    options.nested_states = 20;
    options.states_max = 100;
    Verdicts verdicts;
    const Exploration result = explore(run, subject, options, verdicts);
    for (const Finding& finding : result.findings) findings[serve].push_back(finding.what);
    images_s[serve] = static_cast<double>(result.states) / result.seconds;
  }
  EXPECT_FALSE(findings[0].empty());
  EXPECT_EQ(findings[0], findings[1]);
  std::printf("%.0f images/s by processes, %.0f by a server\n", images_s[0], images_s[1]);
}

Exploration explore_program(const std::string& name, const std::string& check, std::string* words) {
  ExternalProgram program = table(name, "12");
  program.check.back() = check;
  ExternalSubject subject(program);
  const crash::Run run = subject.record({});
  EXPECT_EQ(subject.operation_count(), 12U);
  ExploreOptions options;
  options.nested_max = 2;
  options.nested_states = 10;
  Verdicts verdicts;
  Exploration result = explore(run, subject, options, verdicts);
  *words = places_of(run, result);
  return result;
}

// Its operator new gives persistent memory, to which the C library writes and where locks are.
TEST(ForeignLibrary, IsSeenThroughTheCLibrary) {
  std::string words;
  const Exploration result = explore_program("library", "list", &words);
  EXPECT_TRUE(result.findings.empty()) << words;
  EXPECT_TRUE(result.finished);
  EXPECT_GT(result.states, 50U);
  EXPECT_FALSE(explore_program("library-without-persist", "list", &words).findings.empty());
}

TEST(ForeignChains, SurviveEveryCrashAndUse) {
  std::string words;
  const Exploration result = explore_program("chains", "check", &words);
  EXPECT_TRUE(result.findings.empty()) << words;
  EXPECT_GT(result.states, 50U);
}

TEST(ForeignChains, AreFoundWithTwoOfARecord) {
  std::string words;
  EXPECT_FALSE(explore_program("chains-with-two", "check", &words).findings.empty());
  EXPECT_NE(words.find("is there again after its removal"), std::string::npos) << words;
}

TEST(ForeignTable, IsFoundWithoutAFlush) {
  std::string places;
  EXPECT_FALSE(explore_table("table-without-flush", &places).findings.empty());
  EXPECT_NE(places.find("lost table.cc:"), std::string::npos) << places;
  EXPECT_NE(places.find("::update"), std::string::npos) << places;
}

// Its locked instructions are fences as well; what is after the last of an operation is lost.
TEST(ForeignTable, IsFoundWithoutFences) {
  std::string places;
  EXPECT_FALSE(explore_table("table-without-fence", &places).findings.empty());
  EXPECT_NE(places.find("lost table.cc:"), std::string::npos) << places;
}

TEST(ForeignTable, IsFoundWithTheBitBeforeTheRecord) {
  std::string places;
  EXPECT_FALSE(explore_table("table-bit-first", &places).findings.empty());
  EXPECT_NE(places.find("::insert"), std::string::npos) << places;
}

TEST(ForeignProgram, IsRefusedWithWords) {
  const auto refused = [](const ExternalProgram& program) -> std::string {
    try {
      ExternalSubject(program).record({});
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  ExternalProgram program = table("table", "4");
  program.check = {"true"};
  EXPECT_NE(refused(program).find("must name the image"), std::string::npos);
  program = table("table", "4");
  program.run = {"/bin/sh", "-c", "echo broken >&2; exit 7"};
  EXPECT_NE(refused(program).find("exits with 7: broken"), std::string::npos) << refused(program);
  program.run = {"/bin/sh", "-c", "echo talk >&2; echo perdure: PERDURE_LAB: a byte changed >&2"};
  EXPECT_EQ(refused(program), "/bin/sh cannot be recorded: a byte changed");
  program.run = {"/bin/true"};
  EXPECT_NE(refused(program).find("left no trace"), std::string::npos) << refused(program);
}

TEST(ForeignCheck, MustPrintTheSameOnceMore) {
  ExternalProgram program = table("table", "4");
  program.check = {"/bin/sh", "-c", "wc -c < {}; echo more >> {}"};
  ExternalSubject subject(program);
  const crash::Run run = subject.record({});
  Verdicts verdicts;
  const Exploration result = explore(run, subject, {}, verdicts);
  ASSERT_FALSE(result.findings.empty());
  EXPECT_NE(result.findings[0].what.find("run again"), std::string::npos);
}

TEST(ForeignCheck, ThatFailsIsAFinding) {
  ExternalProgram program = table("table", "4");
  program.check = {"/bin/sh", "-c", "echo bad magic >&2; exit 9 # {}"};
  ExternalSubject subject(program);
  const crash::Run run = subject.record({});
  Verdicts verdicts;
  ExploreOptions options;
  options.findings_max = 1;
  const Exploration result = explore(run, subject, options, verdicts);
  ASSERT_EQ(result.findings.size(), 1U);
  EXPECT_EQ(result.findings[0].what, "the check exits with 9: bad magic");
}

#endif

}  // namespace
}  // namespace perdure::lab::crash
