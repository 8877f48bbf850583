// perdure files: what it prints and how it ends.
#include <filesystem>
#include <string>

#include "cli/command_runner.h"

namespace perdure::cli_test {
namespace {

class FilesCommand : public CommandTest {};

TEST_F(FilesCommand, FilesGoInAndComeOut) {
  const std::string content = "to last,\nto go on existing" + std::string(3, '\0');
  write_file("in", content);
  EXPECT_EQ(run({"files", "put", "--capacity", "16M", pool(), path("in"), "a/b/file"}).code, 0);
  EXPECT_EQ(run({"files", "put", pool(), "-", "a/other"}, "piped").code, 0);
  EXPECT_EQ(run({"files", "cat", pool(), "a/b/file"}).out, content);
  EXPECT_EQ(run({"files", "get", pool(), "/a/b/file", path("out")}).code, 0);
  EXPECT_EQ(read_file("out"), content);
  const Result listed = run({"files", "ls", "--recursive", pool()});
  EXPECT_NE(listed.out.find("a/b/file"), std::string::npos) << listed.out;
  const nlohmann::json json = run({"files", "ls", "--json", pool(), "a"}).json();
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[1]["path"], "a/other");
  EXPECT_EQ(json[1]["bytes"], 5);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
  EXPECT_EQ(run({"files", "check", pool()}).code, 0);
}

TEST_F(FilesCommand, PutReplacesAndRemoveReturnsTheSpace) {
  EXPECT_EQ(run({"files", "put", "--capacity", "16M", pool(), "-", "file"}, "old").code, 0);
  EXPECT_EQ(run({"files", "put", pool(), "-", "file"}, "new").code, 0);
  EXPECT_EQ(run({"files", "cat", pool(), "file"}).out, "new");
  const std::string longest = "d/" + std::string(255, 'n');
  EXPECT_EQ(run({"files", "put", pool(), "-", longest}, "long").code, 0);
  EXPECT_EQ(run({"files", "cat", pool(), longest}).out, "long");
  EXPECT_NE(run({"files", "put", pool(), "-", longest + "n"}, "too long").code, 0);
  EXPECT_EQ(run({"files", "ls", pool(), "d"}).out.find(".perdure-put"), std::string::npos);
  EXPECT_EQ(run({"files", "put", pool(), "-", "d/file"}, "x").code, 0);
  EXPECT_EQ(run({"files", "rm", pool(), "d"}).code, 4);
  EXPECT_EQ(run({"files", "rm", "--recursive", pool(), "d"}).code, 0);
  EXPECT_EQ(run({"files", "rm", pool(), "file"}).code, 0);
  EXPECT_EQ(run({"files", "rm", pool(), "file"}).code, 1);
  EXPECT_EQ(run({"files", "cat", pool(), "file"}).code, 1);
  EXPECT_EQ(run({"files", "ls", pool()}).out, "");
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(FilesCommand, DirectoriesGoInAndComeOutWithWhatIsInThem) {
  std::filesystem::create_directories(path("in/deep/empty"));
  write_file("in/one", "1");
  write_file("in/deep/two", std::string(100'000, '2'));
  const Result refused = run({"files", "put", "--capacity", "16M", pool(), path("in"), "db"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("--recursive"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(pool()));
  EXPECT_EQ(
      run({"files", "put", "--recursive", "--capacity", "16M", pool(), path("in"), "a/db"}).code,
      0);
  const std::string all = run({"files", "ls", "--recursive", pool()}).out;
  for (const char* name : {"a/db/one", "a/db/deep/two", "a/db/deep/empty/"}) {
    EXPECT_NE(all.find(name), std::string::npos) << all;
  }
  EXPECT_NE(run({"files", "get", pool(), "a/db", path("out")}).code, 0);
  EXPECT_EQ(run({"files", "get", "--recursive", pool(), "a", path("out")}).code, 0);
  EXPECT_EQ(read_file("out/db/one"), "1");
  EXPECT_EQ(read_file("out/db/deep/two"), std::string(100'000, '2'));
  EXPECT_TRUE(std::filesystem::is_directory(path("out/db/deep/empty")));
  EXPECT_EQ(run({"files", "get", "--recursive", pool(), "/", path("whole")}).code, 0);
  EXPECT_EQ(read_file("whole/a/db/one"), "1");
  // One file, as without.
  EXPECT_EQ(run({"files", "put", "--recursive", pool(), path("in/one"), "single"}).code, 0);
  EXPECT_EQ(run({"files", "get", "--recursive", pool(), "single", path("single")}).code, 0);
  EXPECT_EQ(read_file("single"), "1");
  // What is no file is not left out in silence.
  std::filesystem::create_symlink("nowhere", path("in/deep/link"));
  EXPECT_NE(run({"files", "put", "--recursive", pool(), path("in"), "b"}).code, 0);
  EXPECT_EQ(run({"pool", "check", pool()}).code, 0);
}

TEST_F(FilesCommand, OtherCommandsSayWhatItIs) {
  EXPECT_EQ(run({"files", "put", "--capacity", "16M", pool(), "-", "file"}, "x").code, 0);
  const Result info = run({"pool", "info", pool()});
  EXPECT_NE(info.out.find("files"), std::string::npos) << info.out;
  const Result got = run({"get", "--name", "files", pool(), "key"});
  EXPECT_EQ(got.code, 4);
  EXPECT_NE(got.err.find("perdure files"), std::string::npos) << got.err;
}

}  // namespace
}  // namespace perdure::cli_test
