#include "cli/command_runner.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#ifndef PERDURE_COMMAND
#define PERDURE_COMMAND "perdure"
#endif

namespace perdure::cli_test {
namespace {

std::string content_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void redirect(const std::string& path, int flags, int descriptor) {
  dup2(open(path.c_str(), flags, 0600), descriptor);
}

// Becomes `arguments` in a child with its streams in files, and waits for it.
Result run_with_files(std::vector<const char*> arguments, const std::string& in,
                      const std::string& out, const std::string& err) {
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    redirect(in, O_RDONLY, STDIN_FILENO);
    redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    setenv("PERDURE", command_path().c_str(), 1);
    execvp(arguments[0], const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  Result result;
  result.code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  result.out = content_of(out);
  result.err = content_of(err);
  return result;
}

}  // namespace

std::string command_path() {
  const char* path = std::getenv("PERDURE_COMMAND");
  return path != nullptr ? path : PERDURE_COMMAND;
}

nlohmann::json Result::json() const {
  nlohmann::json value = nlohmann::json::parse(out, nullptr, false);
  if (!value.is_discarded()) return value;
  ADD_FAILURE() << "not JSON: " << out;
  return nullptr;
}

CommandTest::CommandTest() {
  std::string name = std::filesystem::temp_directory_path().string() + "/perdure-cli-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
  folder_ = name;
}

CommandTest::~CommandTest() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Result CommandTest::run(const std::vector<std::string>& arguments, const std::string& input) const {
  const std::string command = command_path();
  std::vector<const char*> pointers = {command.c_str()};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  return run_with_files(pointers, write_file(".stdin", input), path(".stdout"), path(".stderr"));
}

Result CommandTest::shell(const std::string& line) const {
  return run_with_files({"bash", "-c", line.c_str()}, "/dev/null", path(".stdout"),
                        path(".stderr"));
}

std::string CommandTest::write_file(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary | std::ios::trunc) << content;
  return path(name);
}

std::string CommandTest::read_file(const std::string& name) const { return content_of(path(name)); }

}  // namespace perdure::cli_test
