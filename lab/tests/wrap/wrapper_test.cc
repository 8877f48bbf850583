// perdure-cc and perdure-c++ as a build calls them. Programs are linked to the tests' own runtime.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace {

const std::string kCc = std::string("'") + PERDURE_WRAPPERS + "/perdure-cc' ";
const std::string kCxx = std::string("'") + PERDURE_WRAPPERS + "/perdure-c++' ";

struct Outcome {
  int status = 0;
  std::string text;  // both outputs
};

bool has(const Outcome& outcome, const std::string& text) {
  return outcome.text.find(text) != std::string::npos;
}

class Wrapper : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "perdure wrap XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    folder_ = name;
    setenv("PERDURE_LAB_LIBRARIES", PERDURE_STUB_FOLDER, 1);
    setenv("PERDURE_CXX", PERDURE_COMPILER, 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  // Runs a command of the shell in the folder.
  Outcome run(const std::string& command) const {
    const std::string line = "cd '" + folder_.string() + "' && { " + command + "; } 2>&1";
    FILE* pipe = popen(line.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
    Outcome outcome;
    for (int c = 0; (c = fgetc(pipe)) != EOF;) outcome.text += static_cast<char>(c);
    const int status = pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
  }

  std::filesystem::path folder_;
};

// Stores 8 bytes, flushes them and fences; what the runtime saw is printed.
constexpr const char* kProgram = R"(
#include <cstdio>
#include "stub.h"
alignas(64) long words[8];
static void persist(void* at) {
  asm volatile(".byte 0x66; xsaveopt %0" : "+m"(*(volatile char*)at));  // line 6
  asm volatile("sfence" ::: "memory");
}
extern "C" void store(long* at);
int main() {
  wrap_stub::start(words, sizeof words);
  store(words);
  persist(words);
  wrap_stub::stop();
  for (auto* seen = wrap_stub::begin(); seen != wrap_stub::end(); ++seen) {
    std::printf("%d:%zu ", int(seen->kind), seen->bytes);
  }
  std::printf("\n");
  for (auto* seen = wrap_stub::begin(); seen != wrap_stub::end(); ++seen) {
    if (seen->kind == wrap_stub::Kind::kFlush) std::printf("%#lx\n", seen->pc - 1);
  }
}
)";
constexpr const char* kStore = "void store(long* at);\nvoid store(long* at) { *at = 42; }\n";
constexpr const char* kStoreCxx = "extern \"C\" void store(long* at) { *at = 42; }\n";
constexpr const char* kStoreAssembly =
    ".globl store\n.type store, @function\nstore:\n movl $42, %eax\n movnti %rax, (%rdi)\n ret\n"
    ".section .note.GNU-stack,\"\",@progbits\n";
// A store of 8 bytes, a flush, a fence; and with a non-temporal store instead.
constexpr const char* kStoreSeen = "1:8 4:1 5:0 \n";
constexpr const char* kStreamSeen = "2:8 4:1 5:0 \n";
const std::string kHeaders = std::string("-I'") + PERDURE_STUB_HEADERS + "' ";

TEST_F(Wrapper, CompilesAndLinksInOneStep) {
  write("program.cc", kProgram);
  write("store.cc", kStoreCxx);
  Outcome built = run(kCxx + kHeaders + "-O2 program.cc store.cc -o program");
  ASSERT_EQ(built.status, 0) << built.text;
  EXPECT_EQ(built.text, "");
  const Outcome ran = run("./program");
  EXPECT_TRUE(ran.text.starts_with(kStoreSeen)) << ran.text;
  EXPECT_FALSE(has(run("ldd ./program"), "libtsan"));
}

TEST_F(Wrapper, EventsAreAttributedToLines) {
  write("program.cc", kProgram);
  write("store.cc", kStoreCxx);
  const Outcome built = run(kCxx + kHeaders + "-O2 -no-pie program.cc store.cc -o program");
  ASSERT_EQ(built.status, 0) << built.text;
  const Outcome place = run("./program | tail -1 | xargs addr2line -f -i -e program");
  EXPECT_TRUE(has(place, "program.cc:6\n")) << place.text;
  EXPECT_TRUE(has(place, "program.cc:13\n")) << place.text;
}

TEST_F(Wrapper, CompilesAndLinksInStepsOfBothLanguages) {
  write("program.cc", kProgram);
  write("store.c", kStore);
  const Outcome built =
      run(kCxx + kHeaders + "-pipe -O1 -c program.cc && " + kCc +
          "-std=c11 -Wall -Wextra -Werror -O2 -D_FORTIFY_SOURCE=2 -c store.c && " + kCxx +
          "program.o store.o -o program");
  ASSERT_EQ(built.status, 0) << built.text;
  EXPECT_TRUE(run("./program").text.starts_with(kStoreSeen));
}

TEST_F(Wrapper, BuildsSharedLibraries) {
  write("program.cc", kProgram);
  write("store.cc", kStoreCxx);
  const Outcome built = run(kCxx + "-shared -fPIC store.cc -o libstore.so && " + kCxx + kHeaders +
                            "program.cc -L. -lstore -Wl,-rpath,. -o program");
  ASSERT_EQ(built.status, 0) << built.text;
  EXPECT_TRUE(run("./program").text.starts_with(kStoreSeen));
}

TEST_F(Wrapper, TreatsAssemblyFilesToo) {
  write("program.cc", kProgram);
  write("plain.s", kStoreAssembly);
  write("macros.S",
        std::string("#include <perdure/lab_builtins.h>\n#define STORE store\n") + kStoreAssembly);
  for (const std::string source : {"plain.s", "macros.S"}) {
    const Outcome built = run(kCxx + kHeaders + "program.cc " + source + " -o program");
    ASSERT_EQ(built.status, 0) << built.text;
    EXPECT_TRUE(run("./program").text.starts_with(kStreamSeen)) << source;
  }
}

TEST_F(Wrapper, KeepsIntermediateFilesAndSurvivesLinkTimeOptimisation) {
  write("program.cc", kProgram);
  write("store.cc", kStoreCxx);
  for (const std::string option : {"-save-temps", "-flto", "-no-integrated-cpp"}) {
    const Outcome built = run(kCxx + kHeaders + option + " -O2 program.cc store.cc -o program");
    ASSERT_EQ(built.status, 0) << option << '\n' << built.text;
    EXPECT_TRUE(run("./program").text.starts_with(kStoreSeen)) << option;
  }
}

TEST_F(Wrapper, TreatsWhatTheCompilerWritesInIntelSyntax) {
  write("intrinsics.cc",
        "#include <immintrin.h>\n"
        "void f(void* at, long value) {\n"
        "  long local[2];\n"
        "  asm volatile(\"\" :: \"r\"(local) : \"memory\");\n"
        "  _mm_stream_si64((long long*)at, value);\n"
        "  _mm_clflush(at); _mm_clflush(local); _mm_sfence(); }\n");
  const Outcome built = run("PERDURE_AS_KEEP=kept.s " + kCxx +
                            "-masm=intel -O2 -c intrinsics.cc && grep -c perdure_lab_site kept.s");
  EXPECT_EQ(built.status, 0);
  EXPECT_EQ(built.text, "4\n");
}

TEST_F(Wrapper, OnlyPreprocessesOrListsDependencies) {
  write("a.cc", "#include <string>\nint answer = 42;\n");
  const Outcome text = run(kCxx + "-E a.cc");
  EXPECT_EQ(text.status, 0);
  EXPECT_TRUE(has(text, "int answer = 42;"));
  const Outcome dependencies = run(kCxx + "-MM a.cc");
  EXPECT_EQ(dependencies.status, 0);
  EXPECT_TRUE(has(dependencies, "a.o: a.cc")) << dependencies.text;
  EXPECT_TRUE(has(run(kCxx + "-fsyntax-only a.cc && echo fine"), "fine"));
}

TEST_F(Wrapper, AnswersWithoutInput) {
  EXPECT_TRUE(has(run(kCxx + "--version"), "Free Software Foundation"));
  EXPECT_EQ(run(kCxx + "-v").status, 0);
  EXPECT_EQ(run(kCxx + "-dumpmachine").status, 0);
  EXPECT_TRUE(has(run(kCxx + "-print-prog-name=as"), "libexec/perdure/as"));
  const Outcome nothing = run(kCxx);
  EXPECT_NE(nothing.status, 0);
  EXPECT_TRUE(has(nothing, "no input files"));
  for (const std::string& wrapper : {kCc, kCxx}) {
    const Outcome help = run(wrapper + "--perdure-help");
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(has(help, "PERDURE_AS_QUIET"));
    EXPECT_FALSE(has(help, "@"));
  }
}

TEST_F(Wrapper, RefusesStaticLinkingInWords) {
  write("a.cc", "int main() {}\n");
  const Outcome outcome = run(kCxx + "-static a.cc -o a");
  EXPECT_NE(outcome.status, 0);
  EXPECT_TRUE(has(outcome, "drop -static")) << outcome.text;
}

TEST_F(Wrapper, PassesOnErrorsOfAssembly) {
  write("a.s", "\tnop\n\tsfence\n\tno_such_instruction %rax\n");
  const Outcome outcome = run(kCc + "-c a.s");
  EXPECT_NE(outcome.status, 0);
  EXPECT_TRUE(has(outcome, "a.s:3: Error")) << outcome.text;
  EXPECT_FALSE(exists("a.o"));
}

TEST_F(Wrapper, WarnsOfWhatIsNotObserved) {
  write("a.s", "\tlock incl %fs:0\n");
  const Outcome outcome = run(kCc + "-c a.s");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(has(outcome, "a.s: line 1: ")) << outcome.text;
  EXPECT_EQ(run("PERDURE_AS_QUIET=1 " + kCc + "-c a.s").text, "");
}

TEST_F(Wrapper, NamesTheAssemblerThatIsMissing) {
  write("a.s", "\tnop\n");
  const Outcome outcome = run("PERDURE_AS=/nowhere/as " + kCc + "-c a.s");
  EXPECT_NE(outcome.status, 0);
  EXPECT_TRUE(has(outcome, "/nowhere/as")) << outcome.text;
}

// The example, whose data structure knows nothing of Perdure: everything that it does for
// durability is seen, and it does what it does without the wrapper.
class ObservedTable : public Wrapper {
 protected:
  void SetUp() override {
    Wrapper::SetUp();
    const std::string sources =
        std::string("'") + PERDURE_EXAMPLE + "/table.cc' '" + PERDURE_EXAMPLE + "/main.cc' ";
    const std::string includes = std::string("-I'") + PERDURE_HEADERS + "' ";
    const Outcome built =
        run(kCxx + "-std=c++20 -O2 -Wall -Wextra -Werror " + sources + "-o observed && '" +
            PERDURE_COMPILER + "' -std=c++20 -O1 " + includes + sources + "-o plain");
    ASSERT_EQ(built.status, 0) << built.text;
  }
};

TEST_F(ObservedTable, EveryFlushFenceStreamAndLockIsSeen) {
  // Formatting: 512 groups of 8 lines of 8 words, a fence, and twice the header. Then four inserts
  // that flush and fence twice, two updates and a removal that do so once, a removal of an absent
  // key; each takes a lock.
  const Outcome ran = run("WRAP_STUB_REPORT=1 ./observed pool run 8");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.text, "flushes 13, fences 14, streams 32768, locked 8\n");
  // Recovery of a whole table flushes nothing.
  const Outcome listed = run("WRAP_STUB_REPORT=1 ./observed pool list >/dev/null");
  EXPECT_EQ(listed.text, "flushes 0, fences 0, streams 0, locked 0\n");
}

TEST_F(ObservedTable, KeepsWhatItKeepsWithoutTheWrapper) {
  EXPECT_EQ(run("./observed a run 4000").status, 0);
  EXPECT_EQ(run("./plain b run 4000").status, 0);
  const Outcome observed = run("./plain a list");
  EXPECT_EQ(observed.status, 0);
  EXPECT_TRUE(has(observed, "\n")) << "nothing was kept";
  EXPECT_EQ(observed.text, run("./observed b list").text);
}

}  // namespace
