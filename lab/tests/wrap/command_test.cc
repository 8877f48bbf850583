// The command line of the stand-in for `as`, which has to be read as the assembler itself reads it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/wrap/assembler.h"

namespace {

using perdure::lab::wrap::AssemblerCommand;
using perdure::lab::wrap::read_command;
using Words = std::vector<std::string>;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "perdure-as-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

TEST(AssemblerCommand, TheInputIsWhatIsNoOption) {
  const AssemblerCommand command = read_command({"--64", "-o", "out.o", "in.s"});
  EXPECT_EQ(command.options, (Words{"--64", "-o", "out.o"}));
  EXPECT_EQ(command.inputs, Words{"in.s"});
  EXPECT_FALSE(command.only_information);
  EXPECT_TRUE(command.is_64_bit);
}

TEST(AssemblerCommand, ValuesOfOptionsAreNoInputs) {
  const Words words = {"-I",    "folder", "-Iother", "--defsym", "a=1",        "--debug-prefix-map",
                       "/a=/b", "--MD",   "out.d",   "-oout.o",  "--gdwarf-5", "-al=list"};
  const AssemblerCommand command = read_command(words);
  EXPECT_EQ(command.options, words);
  EXPECT_TRUE(command.inputs.empty());
}

TEST(AssemblerCommand, StandardInputAndTheEndOfOptions) {
  EXPECT_EQ(read_command({"-o", "out.o", "-"}).inputs, Words{"-"});
  EXPECT_EQ(read_command({"-o", "-", "--", "-in.s"}).inputs, Words{"-in.s"});
}

TEST(AssemblerCommand, OnlyInformationAndOtherWidths) {
  EXPECT_TRUE(read_command({"--version"}).only_information);
  EXPECT_TRUE(read_command({"--help"}).only_information);
  EXPECT_FALSE(read_command({"--32", "in.s"}).is_64_bit);
  EXPECT_FALSE(read_command({"--x32", "in.s"}).is_64_bit);
}

TEST(AssemblerCommand, ArgumentsFromFiles) {
  const Folder folder;
  const std::string inner = folder.file("inner", "'two words.s' \"a \\\"b\\\"\"\n");
  const std::string outer = folder.file("outer", "-o  out.o\n@" + inner + " c\\ d");
  const AssemblerCommand command = read_command({"@" + outer, "@no such file"});
  EXPECT_EQ(command.options, (Words{"-o", "out.o"}));
  EXPECT_EQ(command.inputs, (Words{"two words.s", "a \"b\"", "c d", "@no such file"}));
}

TEST(AssemblerCommand, AFileThatNamesItselfIsRefused) {
  const Folder folder;
  const std::string file = folder.file("file", "");
  folder.file("file", "@" + file);
  EXPECT_THROW(read_command({"@" + file}), std::runtime_error);
}

TEST(AssemblerInputs, EachIsBehindALineWithItsName) {
  const Folder folder;
  const std::string a = folder.file("a.s", "nop");
  const std::string b = folder.file("b\".s", "ret\n");
  const std::string quoted = b.substr(0, b.size() - 3) + "\\\".s";
  EXPECT_EQ(perdure::lab::wrap::read_inputs({a, b}),
            "# 1 \"" + a + "\"\nnop\n# 1 \"" + quoted + "\"\nret\n");
}

TEST(AssemblerInputs, AMissingFileIsNamed) {
  try {
    perdure::lab::wrap::read_inputs({"/nowhere/in.s"});
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere/in.s"), std::string::npos);
  }
}

TEST(FindAssembler, TakesTheOneThatIsNamed) {
  setenv("PERDURE_AS", "/some/as", 1);
  EXPECT_EQ(perdure::lab::wrap::find_assembler(), "/some/as");
  unsetenv("PERDURE_AS");
}

TEST(FindAssembler, PassesOverItself) {
  const Folder folder;
  const std::string self = folder.file("as", "");
  std::filesystem::remove(self);
  std::filesystem::create_symlink("/proc/self/exe", self);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (self.substr(0, self.size() - 3) + ":" + path).c_str(), 1);
  const std::string found = perdure::lab::wrap::find_assembler();
  setenv("PATH", path.c_str(), 1);
  EXPECT_NE(found, self);
  EXPECT_TRUE(found.ends_with("/as"));
}

}  // namespace
